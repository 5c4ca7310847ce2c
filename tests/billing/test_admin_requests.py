"""One request and how it is found: by its key and a moment, by indexes alone; what its page takes apart adds up."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils.timezone import now
from pytest_django import DjangoAssertNumQueries

from billing import keys
from billing.admin.lines import records_behind
from billing.admin.record_filters import keys_named, parse_moment
from billing.admin.request_page import Breakdown, breakdown
from billing.models import ApiKey, Attempt, InvoiceLine, UsageRecord
from billing.money import parse
from billing.pricing import BASE_TIERS
from billing.usage import TokenUsage
from tests.billing.admin_site import Login
from tests.billing.admin_world import World, make_price
from tests.billing.factories import LONG, TIERS, make_account, make_key, make_record, per_million, price, utc

pytestmark = pytest.mark.django_db
LIST = "/admin/billing/usagerecord/"
SECRET = "sk-hb-A1b2C3d4E5" + "x" * 40


@dataclass
class Keys:
    """Less than the whole business: a key of each of two accounts."""

    key: ApiKey
    other_key: ApiKey


@pytest.fixture
def two(db: None) -> Keys:
    return Keys(make_key(make_account(timezone="Asia/Taipei")), make_key(make_account("umbrella"), "batch"))


def found(client: Client, **query: object) -> list[str]:
    """The request names of a list, in its order."""
    response = client.get(LIST, query)
    assert response.status_code == 200, response.headers
    return [record.request_name for record in response.context["cl"].result_list]


def page(record: UsageRecord) -> str:
    return reverse("admin:billing_usagerecord_change", args=[record.pk])


# --- key and moment ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("northwind/production", ["northwind/production"]),
        ("production", ["northwind/production", "umbrella/production"]),
        (keys.shown(SECRET), ["northwind/production"]),
        (SECRET[:8], ["northwind/production"]),
        (SECRET, ["northwind/production"]),
        ("sk-hb-Old999", ["northwind/production"]),
        ("sk-hb-Z", ["umbrella/production"]),
        ("sk-hb", []),
        ("umbrella/batch", []),
        ("%", []),
    ],
)
def test_key_is_found_as_customers_name_it(db: None, text: str, expected: list[str]) -> None:
    first = make_key(name="production")
    second = make_key(type(first.account).objects.create(name="umbrella"), "production")
    ApiKey.objects.filter(pk=first.pk).update(shown=keys.shown(SECRET), previous_shown="sk-hb-Old999…")
    ApiKey.objects.filter(pk=second.pk).update(shown="sk-hb-Z9y8X7…")
    names = {first.pk: "northwind/production", second.pk: "umbrella/production"}
    assert sorted(names[pk] for pk in keys_named(text)) == expected


@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        ("2026-11-03 14:05:09 Asia/Taipei", "UTC", utc(2026, 11, 3, 6, 5) + dt.timedelta(seconds=9)),
        ("2026-11-03 14:05", "Asia/Taipei", utc(2026, 11, 3, 6, 5)),
        ("2026-11-03T14:05:09Z", "Asia/Taipei", utc(2026, 11, 3, 14, 5) + dt.timedelta(seconds=9)),
        ("2026-11-03T14:05+05:45", "UTC", utc(2026, 11, 3, 8, 20)),
        ("2026-11-03 14:05:09.250", "UTC", utc(2026, 11, 3, 14, 5) + dt.timedelta(seconds=9.25)),
        ("2026-02-30 14:05", "UTC", None),
        ("2026-11-03 14:05 Asia/Nowhere", "UTC", None),
        ("2026-11-03 14:05 ../../etc/passwd", "UTC", None),
        ("yesterday", "UTC", None),
        ("2026-11-03", "UTC", None),
    ],
)
def test_moments_are_read_as_written(text: str, zone: str, expected: dt.datetime | None) -> None:
    assert parse_moment(text, zone) == expected


def test_moment_finds_what_ran_then(login: Login, two: Keys) -> None:
    """By its beginning, its end, or because it ran all the while; five minutes either way, and no more."""
    moment = utc(2026, 11, 3, 6, 5)
    minutes = {"before": (-20, -6), "ended": (-20, -5), "began": (5, 9), "ran": (-60, 100), "after": (6, 7)}
    for name, (began, ended) in minutes.items():
        start = moment + dt.timedelta(minutes=began)
        make_record(two.key, moment + dt.timedelta(minutes=ended), request_name=name, started_at=start)
    make_record(two.other_key, moment, request_name="other")
    client = login("operator")
    at = "2026-11-03 14:05"  # Taipei's, for the key's account
    assert found(client, key="northwind/production", at=at) == ["ran", "began", "ended"]
    assert found(client, at=f"{at} Asia/Taipei") == ["ran", "began", "other", "ended"]
    assert found(client, key="umbrella/batch", at="2026-11-03 06:05") == ["other"]
    assert found(client, account=two.key.account_id, at=at) == ["ran", "began", "ended"]
    assert found(client, api_key=two.key.pk, at=at) == ["ran", "began", "ended"]
    assert found(client, at="2026-11-03 06:05") == ["ran", "began", "other", "ended"]  # several accounts: UTC


def test_odd_moment_is_told(login: Login, two: Keys) -> None:
    make_record(two.key, now())
    response = login("operator").get(LIST, {"at": "half past two"})
    assert list(response.context["cl"].result_list) == []
    assert "“half past two” is no time" in response.text
    assert 'value="half past two"' in response.text


@pytest.mark.parametrize("text", ["9999-12-31", "0001-01-01", "2026-11-31", "yesterday"])
@pytest.mark.parametrize("name", ["day", "day__gte", "day__lte"])
def test_bad_day_is_told(login: Login, world: World, name: str, text: str) -> None:
    client, query = login("finance"), f"?{name}={text}"
    assert f"“{text}” is no day" in client.get(f"/admin/billing/usagerecord/{query}", follow=True).text
    response = client.get(f"/admin/usage/records/csv/{query}", follow=True)
    assert "There is no file of this list: This is no day" in response.text


@pytest.mark.parametrize("text", ["0001-01-01 00:00", "9999-12-31 23:59"])
def test_moment_out_of_reach_is_told(login: Login, world: World, text: str) -> None:
    response = login("finance").get("/admin/billing/usagerecord/", {"at": text})
    assert f"“{text}” is no time" in response.text


def test_unknown_key_finds_nothing(login: Login, two: Keys) -> None:
    make_record(two.key, now())
    assert found(login("operator"), key="nobody/nothing", period="all") == []


def test_nothing_found_shows_the_way(login: Login, two: Keys) -> None:
    text = login("operator").get(LIST, {"q": "req a/b"}).text
    assert "No record. Refusals (401, 402, 429) leave none; see also Live streams." in text
    assert 'href="/admin/billing/openstream/?q=req%20a/b"' in text


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"q": "ours"},
        {"q": "prov-req-77"},
        {"key": "northwind/production"},
        {"key": "northwind/production", "at": "2026-11-03 14:05"},
        {"at": "2026-11-03 14:05", "ending": "stopped"},
        {"metering": "estimated"},
    ],
)
def test_lists_go_by_indexes(login: Login, two: Keys, query: dict[str, str]) -> None:
    record = make_record(two.key, now(), request_name="ours")
    Attempt.objects.create(
        record=record, number=1, provider="acme", upstream_model="m", outcome="answered", started_at=now(),
        duration_ms=5, provider_request_id="prov-req-77",
    )  # fmt: skip
    rows = login("operator").get(LIST, query).context["cl"].queryset
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL enable_seqscan = off")  # these tables are too small for an index to pay
    plan = rows[:51].explain()
    assert "INDEX" in plan.upper()
    assert "Seq Scan on billing_usagerecord" not in plan
    assert "SCAN billing_usagerecord\n" not in f"{plan}\n"


def test_finding_takes_few_queries(login: Login, two: Keys, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    for number in range(60):
        make_record(two.key, now(), request_name=f"fill-{number}")
    client = login("operator")
    # Session, user, two of rights; accounts and models of the filters; the records; and what the query asks beside.
    for query, count in (
        ({}, 7),
        ({"q": "fill-7"}, 10),
        ({"key": "northwind/production", "at": "2026-11-03 14:05"}, 11),
    ):
        client.get(LIST, query)
        with django_assert_num_queries(count) as seen:
            client.get(LIST, query)
        assert not any("COUNT(" in one["sql"].upper() for one in seen.captured_queries)


# --- one request ---


def test_page_says_what_happened(login: Login, world: World) -> None:
    text = login("operator").get(page(world.record)).text
    for part in (
        "As the provider reported it.", "auto · priority", "overloaded", "prov-req-77", "503", "Began after",
        "Of the output, 700 tokens are reasoning.", "prompt_tokens", "<details", "gpt-5.6-sol@2026-01-01T00:00:00Z",
    ):  # fmt: skip
        assert part in text


def test_prices_show_their_factors(login: Login, world: World) -> None:
    rows = {row["name"]: row for row in breakdown(world.record)["parts"] if not row.get("model")}
    assert (rows["input"]["unit"], rows["input"]["applied"]) == ("USD 5.00", "USD 20.00")
    assert rows["input"]["factors"] == "priority × 2 · long context × 2"
    assert (rows["output"]["factors"], rows["output"]["applied"]) == ("priority × 2 · long context × 1.5", "USD 90.00")
    assert (rows["web_search"]["factors"], rows["web_search"]["unit"], rows["web_search"]["each"]) == (
        "—", "USD 0.01", True,
    )  # fmt: skip


def test_amounts_are_tokens_times_price_times_factors(world: World) -> None:
    for record in UsageRecord.objects.filter(unpriced=False).select_related("account", "invoice"):
        rows = breakdown(record)["parts"]
        amounts = [parse(row["amount"].split()[1].replace(",", "")) for row in rows]
        assert sum(amounts) == record.cost_nanos
        for row, amount in zip(rows, amounts, strict=True):
            applied = row["applied"] or row["unit"]
            if applied == "—":
                continue
            unit = parse(applied.split()[1].replace(",", ""))
            assert int(row["quantity"].replace(",", "")) * unit == amount * (1 if row.get("each") else 10**6)


def test_tier_with_its_own_block_is_named(two: Keys) -> None:
    block = per_million(input="7", output="70")
    tiers = {**TIERS, "batch": block}
    begin = utc(2026, 2, 1, 0)
    make_price(start=begin, tiers={"batch": {"input": block["input"], "output": block["output"]}})
    record = make_record(
        two.key, now(), TokenUsage(input=10, output=5), service_tier="batch",
        version=price(tiers=tiers, long_context=LONG, effective_from=begin),
    )  # fmt: skip
    rows = {row["name"]: row for row in breakdown(record)["parts"]}
    assert (rows["input"]["unit"], rows["input"]["factors"]) == ("USD 7.00", "own price of tier batch")
    assert rows["cache read"]["unit"] == "—"


def test_vanished_price_still_shows_what_was_applied(two: Keys) -> None:
    record = make_record(two.key, now(), version=price(effective_from=utc(2025, 1, 1, 0)))
    rows = {row["name"]: row for row in breakdown(record)["parts"]}
    assert (rows["input"]["unit"], rows["input"]["factors"]) == ("USD 5.00", "—")
    assert breakdown(record)["price_links"] == ["gpt-5.6-sol@2025-01-01T00:00:00Z"]


def test_each_part_names_its_invoice_line(world: World) -> None:
    """Every line of the invoice is named by parts that sum to it, and only by records that the line leads to."""
    sums: dict[int, int] = {}
    for record in UsageRecord.objects.filter(invoice=world.open).select_related("account", "invoice"):
        taken = Breakdown(record)
        for line, amount in named_lines(taken, record):
            assert record in records_behind(line, UsageRecord.objects.all())
            sums[line.pk] = sums.get(line.pk, 0) + amount
    assert sums == {line.pk: line.exact_nanos for line in InvoiceLine.objects.filter(invoice=world.open)}


def named_lines(taken: Breakdown, record: UsageRecord) -> list[tuple[InvoiceLine, int]]:
    """The lines that a page links, with the amount of the part in nanos."""
    by_url = {reverse("admin:billing_invoiceline_change", args=[line.pk]): line for line in taken.lines.values()}
    named = []
    for row in taken.rows():
        url = str(row["line"]).partition('href="')[2].partition('"')[0]
        if url:
            named.append((by_url[url], parse(row["amount"].split()[1].replace(",", ""))))
    return named


def test_record_on_no_invoice_names_no_line(two: Keys) -> None:
    assert {row["line"] for row in breakdown(make_record(two.key, now()))["parts"]} == {"—"}


def test_counts_stand_beside_the_bill(two: Keys) -> None:
    record = make_record(
        two.key, now(), TokenUsage(input=100, cache_read=100, output=50), counted_input=190, counted_output=52
    )
    assert breakdown(record)["counts"] == [
        {"name": "input", "counted": "190", "billed": "200", "difference": "−5.0 %"},
        {"name": "output", "counted": "52", "billed": "50", "difference": "+4.0 %"},
    ]
    uncounted = make_record(two.key, now())
    assert breakdown(uncounted)["counts"] == []
    nothing = make_record(two.key, now(), TokenUsage(), counted_output=3)
    assert [count["difference"] for count in breakdown(nothing)["counts"]] == ["—"]


@pytest.mark.parametrize("metering", ["estimated", "checkpoint", "none"])
def test_metering_says_why(login: Login, two: Keys, metering: str) -> None:
    record = make_record(two.key, now(), metering=metering)
    words = {"estimated": "Counted by us", "checkpoint": "As of the last checkpoint", "none": "Nothing was produced"}
    assert words[metering] in login("operator").get(page(record)).text


def test_raw_usage_is_shown_as_text(login: Login, two: Keys) -> None:
    record = make_record(two.key, now(), raw_usage={"note": "<script>alert(1)</script>"})
    text = login("operator").get(page(record)).text
    assert "<script>alert(1)" not in text
    assert "&lt;script&gt;alert(1)" in text


def test_page_takes_few_queries(login: Login, world: World, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    client = login("operator")
    for number in range(3, 12):
        Attempt.objects.create(
            record=world.record, number=number, provider="acme", upstream_model="m", outcome="failed",
            started_at=world.record.started_at, duration_ms=5,
        )  # fmt: skip
    client.get(page(world.record))
    with django_assert_num_queries(12):
        assert client.get(page(world.record)).status_code == 200


def test_stranger_sees_no_request(login: Login, two: Keys) -> None:
    assert login("nobody").get(page(make_record(two.key, now()))).status_code == 403


def test_base_tiers_have_no_factor(two: Keys) -> None:
    make_price()
    for tier in sorted(BASE_TIERS):
        record = make_record(two.key, now(), service_tier=tier, version=price(tiers=TIERS))
        assert {row["factors"] for row in breakdown(record)["parts"]} == {"—"}


def test_odd_versions_do_no_harm(two: Keys) -> None:
    record = make_record(two.key, now())
    fields: dict[str, Any] = {"price_version": "no version at all"}
    UsageRecord.objects.filter(pk=record.pk).update(**fields)
    record.refresh_from_db()
    assert breakdown(record)["price_links"] == ["no version at all"]
