"""What a model reports for each token that we count, from its own records."""

from __future__ import annotations

import datetime as dt
import random
import threading
from typing import Any

import pytest
from django.db import connection, connections

from billing import tasks
from billing.catalogue import BillingCatalogue
from billing.count_factors import (
    LEAST_RECORDS,
    LEAST_TOKENS,
    SAMPLE,
    Fit,
    comparable_records,
    fit_of,
    median_ppm,
    ratio_ppm,
    refit,
    sampled_models,
)
from billing.models import ApiKey, CatalogueVersion, CountFactor, UsageRecord
from billing.models.count_factors import shown_factor
from billing.usage import TokenUsage
from tests.billing.factories import make_key, unsaved_record, utc

NOW = utc(2026, 11, 30)
MODEL = "claude-opus-5-5"


@pytest.fixture
def key(db: None) -> ApiKey:
    return make_key()


def records(key: ApiKey, *outputs: int, begin: dt.datetime = NOW, **fields: Any) -> None:
    """Streams that can be compared, a second apart, the first at `begin`; 1,000 tokens counted with a factor of 1.1."""
    given = {
        "model": MODEL, "wire_format": "messages", "text_only": True, "counted_input": 40, "counted_output": 1_100,
        "count_factor_ppm": 1_100_000, **fields,
    }  # fmt: skip
    UsageRecord.objects.bulk_create(
        unsaved_record(key, begin + dt.timedelta(seconds=at), TokenUsage(input=40, output=output), **given)
        for at, output in enumerate(outputs)
    )


def enough(*, ratio: float) -> list[int]:
    """Outputs around a ratio to 1,000 counted tokens, in no order."""
    outputs = [round(ratio * 1_000) + away for away in range(-LEAST_RECORDS // 2, LEAST_RECORDS // 2 + 1)]
    random.Random(7).shuffle(outputs)
    return outputs


def in_force() -> int | None:
    catalogue = BillingCatalogue()
    catalogue.load(-1)
    return catalogue.count_factor_ppm(MODEL)


class TestRatio:
    @pytest.mark.parametrize(
        ("reported", "counted", "counted_with_ppm", "wanted"),
        [
            (1_200, 1_100, 1_100_000, 1_200_000),
            (1_200, 1_300, 1_300_000, 1_200_000),  # the same stream, counted with another factor
            (500, 1_000, 1_000_000, 500_000),
            (1, 3, 1_000_000, 333_333),
            (2, 3, 1_000_000, 666_667),
        ],
    )
    def test_is_freed_of_its_factor(self, reported: int, counted: int, counted_with_ppm: int, wanted: int) -> None:
        assert ratio_ppm(reported, counted, counted_with_ppm) == wanted

    @pytest.mark.parametrize(
        ("ratios", "wanted"), [([3], 3), ([9, 1, 5], 5), ([1, 2, 4, 100], 3), ([1, 2], 1), ([7] * 500, 7)]
    )
    def test_median_is_whole(self, ratios: list[int], wanted: int) -> None:
        assert median_ppm(ratios) == wanted


class TestFit:
    def test_is_the_median(self, key: ApiKey) -> None:
        records(key, *enough(ratio=1.25))
        assert fit_of(MODEL) == Fit(1_250_000, LEAST_RECORDS + 1)

    def test_outliers_do_not_weigh(self, key: ApiKey) -> None:
        records(key, *enough(ratio=1.25))
        records(key, *[40_000] * 20, *[1] * 20)
        assert fit_of(MODEL) == Fit(1_250_000, LEAST_RECORDS + 41)

    def test_too_few_prove_nothing(self, key: ApiKey) -> None:
        records(key, *[1_250] * (LEAST_RECORDS - 1))
        assert fit_of(MODEL) is None
        records(key, 1_250, begin=NOW + dt.timedelta(hours=1))
        assert fit_of(MODEL) == Fit(1_250_000, LEAST_RECORDS)

    def test_newest_sample_counts(self, key: ApiKey) -> None:
        records(key, *[1_400] * SAMPLE, begin=NOW - dt.timedelta(days=1))
        records(key, *[1_300] * SAMPLE)
        assert fit_of(MODEL) == Fit(1_300_000, SAMPLE)

    def test_records_may_differ_in_factor(self, key: ApiKey) -> None:
        """Those that were counted before the last fit and those after it say the same."""
        records(key, *[1_250] * LEAST_RECORDS)
        records(key, *[1_250] * LEAST_RECORDS, counted_output=1_250, count_factor_ppm=1_250_000)
        assert fit_of(MODEL) == Fit(1_250_000, 2 * LEAST_RECORDS)

    @pytest.mark.parametrize("output", [1, 499, 3_001, 10**6])
    def test_nonsense_is_refused(self, key: ApiKey, output: int, caplog: pytest.LogCaptureFixture) -> None:
        records(key, *[output] * LEAST_RECORDS)
        assert fit_of(MODEL) is None
        assert "its factor stays as it is" in caplog.text

    @pytest.mark.parametrize("output", [500, 3_000])
    def test_bounds_are_sense(self, key: ApiKey, output: int) -> None:
        records(key, *[output] * LEAST_RECORDS)
        assert fit_of(MODEL) == Fit(output * 1_000, LEAST_RECORDS)

    @pytest.mark.parametrize(
        "fields",
        [
            {"text_only": False},
            {"count_factor_ppm": None},
            {"count_factor_ppm": None, "counted_output": None},
            {"counted_output": LEAST_TOKENS - 1},
            {"metering": "estimated"},
            {"metering": "checkpoint", "ending": "gateway_lost"},
            {"ending": "client_left"},
            {"ending": "provider_cut"},
        ],
        ids=str,
    )
    def test_other_records_tell_nothing(self, key: ApiKey, fields: dict[str, Any]) -> None:
        records(key, 1_250, **fields)
        assert not comparable_records().exists()
        records(key, 1_250)
        assert comparable_records().count() == 1

    def test_models_are_found_by_name(self, key: ApiKey) -> None:
        for model in ("b", "a", "c-1", "b"):
            records(key, 1_250, model=model)
        records(key, 1_250, model="gpt", count_factor_ppm=None)
        assert list(sampled_models()) == ["a", "b", "c-1"]

    def test_sample_comes_by_its_index(self, key: ApiKey) -> None:
        """Not by reading a model's records, of which there may be millions."""
        plan = comparable_records().filter(model=MODEL).order_by("-ended_at")[:SAMPLE]
        if connection.vendor == "sqlite":
            assert "record_count_sample" in plan.explain()
            return
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL enable_seqscan = off")
        assert "record_count_sample" in plan.explain()


class TestRefit:
    def test_is_in_force_at_once(self, key: ApiKey) -> None:
        records(key, *enough(ratio=1.25))
        assert in_force() is None
        assert refit(NOW) == 1
        kept = CountFactor.objects.get()
        assert (kept.model, kept.factor_ppm, kept.records, kept.fitted_at) == (MODEL, 1_250_000, LEAST_RECORDS + 1, NOW)
        assert in_force() == 1_250_000

    def test_raises_the_catalogues_version(self, key: ApiKey) -> None:
        records(key, *enough(ratio=1.25))
        records(key, *enough(ratio=1.4), model="another")
        before = CatalogueVersion.current()
        refit(NOW)
        assert CatalogueVersion.current() == before + 1
        assert set(CountFactor.objects.values_list("changed_in", flat=True)) == {before + 1}

    def test_repeats_change_nothing(self, key: ApiKey) -> None:
        records(key, *enough(ratio=1.25))
        refit(NOW)
        before = CatalogueVersion.current()
        records(key, 1_250, 1_250, begin=NOW + dt.timedelta(hours=1))
        assert [refit(NOW + dt.timedelta(days=days)) for days in (0, 1)] == [0, 0]
        assert (CountFactor.objects.count(), CatalogueVersion.current()) == (1, before)

    def test_changes_are_a_history(self, key: ApiKey) -> None:
        records(key, *[1_250] * SAMPLE)
        refit(NOW)
        records(key, *[1_300] * SAMPLE, begin=NOW + dt.timedelta(days=1))
        refit(NOW + dt.timedelta(days=2))
        assert list(CountFactor.objects.values_list("factor_ppm", flat=True)) == [1_300_000, 1_250_000]
        assert in_force() == 1_300_000

    def test_nonsense_leaves_the_old_one(self, key: ApiKey) -> None:
        records(key, *enough(ratio=1.25))
        refit(NOW)
        records(key, *[50_000] * SAMPLE, begin=NOW + dt.timedelta(days=1))
        assert refit(NOW) == 0
        assert in_force() == 1_250_000

    def test_task_fits(self, key: ApiKey) -> None:
        records(key, *enough(ratio=1.25))
        assert (tasks.fit_count_factors(), tasks.fit_count_factors()) == (1, 0)


@pytest.mark.django_db(transaction=True)
def test_two_fits_at_once_keep_one() -> None:
    records(make_key(), *enough(ratio=1.25))
    together, changed = threading.Barrier(2), []

    def fit() -> None:
        together.wait(5)
        changed.append(refit(NOW))
        connections.close_all()

    threads = [threading.Thread(target=fit) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(changed) == [0, 1]
    assert CountFactor.objects.count() == 1


class TestCatalogue:
    def test_takes_in_what_changed(self, db: None) -> None:
        catalogue = BillingCatalogue()
        CountFactor.objects.create(model="a", factor_ppm=1_200_000, records=500, fitted_at=NOW)
        catalogue.load(-1)
        version = CatalogueVersion.current()
        for factor_ppm in (1_300_000, 1_400_000):
            CountFactor.objects.create(model="b", factor_ppm=factor_ppm, records=500, fitted_at=NOW)
        catalogue.load(version)
        assert [catalogue.count_factor_ppm(model) for model in ("a", "b", "c")] == [1_200_000, 1_400_000, None]

    def test_other_database_forgets_them(self, db: None) -> None:
        catalogue = BillingCatalogue()
        CountFactor.objects.create(model="a", factor_ppm=1_200_000, records=500, fitted_at=NOW)
        catalogue.load(-1)
        CountFactor.objects.all().delete()
        catalogue.load(-1)
        assert catalogue.count_factor_ppm("a") is None


@pytest.mark.parametrize(
    ("factor_ppm", "text"), [(1_100_000, "1.1000"), (1_183_249, "1.1832"), (1_183_250, "1.1833"), (999_950, "1.0000")]
)
def test_factor_is_shown_to_four_places(factor_ppm: int, text: str) -> None:
    assert shown_factor(factor_ppm) == text
