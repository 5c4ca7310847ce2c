"""Reconciliation in the admin: upload, mapping, result, CSV; who may what; no figure without ground."""

from __future__ import annotations

import csv
import datetime as dt
import io
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from billing import csv_files, rollups
from billing.admin.reconciliation_forms import MappingForm
from billing.models import ApiKey, Attempt, Reconciliation, ReconciliationMapping, ReconciliationRow
from billing.provider_files import guess
from billing.reconciliation import MAX_BYTES
from billing.usage import TokenUsage
from tests.billing.admin_site import Login
from tests.billing.admin_world import World
from tests.billing.factories import make_account, make_key, make_record, utc

pytestmark = pytest.mark.django_db

HEADER = "usage_date_utc,model_version,usage_input_tokens_no_cache,usage_output_tokens,cost_usd\n"
ADD = "admin:billing_reconciliation_add"


@pytest.fixture
def key(db: None) -> ApiKey:
    return make_key(make_account("northwind", timezone="Asia/Taipei"))


@pytest.fixture
def traffic(key: ApiKey) -> None:
    """Three days of two models, a retry, an estimate."""
    for day in (3, 4, 5):
        make_record(key, utc(2026, 10, day), TokenUsage(input=1000, output=200), upstream_model="sol")
    record = make_record(key, utc(2026, 10, 4), TokenUsage(input=500, output=100), upstream_model="sol")
    for number, outcome in ((1, "cut"), (2, "answered")):
        Attempt.objects.create(
            record=record, number=number, provider="acme-cloud", upstream_model="sol", outcome=outcome, status=200,
            started_at=record.started_at, duration_ms=9, input=500, cache_read=0, cache_write=0, cache_write_1h=0,
            output=0,
        )  # fmt: skip
    make_record(key, utc(2026, 10, 4), TokenUsage(input=70), metering="estimated", upstream_model="luna")
    rollups.rebuild_due()


LINES = (
    "2026-10-03,sol-2026-08-06,1000,200,0.004\n"
    "2026-10-04,sol-2026-08-06,2000,300,0.01\n"
    "2026-10-04,luna,80,0,0.001\n"
    "2026-10-04,=comet,5,5,0.5\n"
)


def upload(client: Client, lines: str = LINES, name: str = "october.csv", **fields: Any) -> Any:
    file = SimpleUploadedFile(name, (HEADER + lines).encode(), content_type="text/csv")
    return client.post(reverse(ADD), {"provider": "acme-cloud", "file": file, **fields})


def mapping_url(kept: Reconciliation) -> str:
    return reverse("admin:billing_reconciliation_map_columns", args=[kept.pk])


def result_url(kept: Reconciliation) -> str:
    return reverse("admin:billing_reconciliation_change", args=[kept.pk])


def fields_of(page: Any) -> dict[str, Any]:
    """What a browser would send back of the mapping's form as it was shown."""
    form = page.context["form"]
    return {bound.name: bound.field.prepare_value(bound.value()) or "" for bound in form}


def walk(client: Client, lines: str = LINES, **changes: Any) -> Any:
    """Upload, accept the proposed mapping with these changes, and return the answer to "Compare"."""
    upload(client, lines)
    kept = Reconciliation.objects.get()
    fields = {**fields_of(client.get(mapping_url(kept))), **changes, "compare": "1"}
    return client.post(mapping_url(kept), fields, follow=True)


# --- the walk ---


def test_upload_leads_to_the_mapping(login: Login, traffic: None) -> None:
    answer = upload(login("finance"))
    kept = Reconciliation.objects.get()
    assert (answer.status_code, answer["location"]) == (302, mapping_url(kept))
    assert (kept.provider, kept.file_name, kept.uploaded_by, kept.compared_at) == (
        "acme-cloud", "october.csv", "finance", None,
    )  # fmt: skip


def test_mapping_proposes_and_shows_lines_as_read(login: Login, traffic: None) -> None:
    client = login("finance")
    upload(client)
    page = client.get(mapping_url(Reconciliation.objects.get()))
    fields = fields_of(page)
    assert fields["column_day"] == "usage_date_utc"
    assert fields["column_input"] == "usage_input_tokens_no_cache"
    assert fields["aliases"] == "sol-2026-08-06 = sol"
    assert [row["model"] for row in page.context["sample"]["rows"]][:2] == ["sol-2026-08-06", "sol-2026-08-06"]
    marks = {model["theirs"]: model["mark"] for model in page.context["sample"]["models"]}
    assert "asked for here" in marks["luna"]
    assert "not asked for in these days" in marks["=comet"]
    assert "4 lines from 2026-10-03 to 2026-10-04." in page.text


def test_result_shows_every_state(login: Login, traffic: None) -> None:
    page = walk(login("finance"), last="2026-10-05")
    kept = Reconciliation.objects.get()
    assert page.redirect_chain == [(result_url(kept), 302)]
    found = {(row["day"], row["model"]): row for row in page.context["rows"]}
    assert {place: row["kinds"] for place, row in found.items() if row["kinds"]}.keys() == found.keys()
    words = {place: [(str(word), figure) for word, figure in row["kinds"]] for place, row in found.items()}
    assert words["2026-10-04", "sol"][0] == ("failed attempt", "+500")
    assert words["2026-10-04", "luna"][0] == ("estimate", "+10")
    assert words["2026-10-05", "sol"][0] == ("unknown", "-1,200")
    assert [tab["count"] for tab in page.context["tabs"]] == ["5", "1", "2", "1", "1"]
    cards = {card["title"]: card["figures"] for card in page.context["cards"]}
    assert (cards["Theirs"], cards["Ours"]) == (["3,590"], ["4,270"])
    assert (cards["Explained"], cards["Unexplained"]) == (["+510"], ["-1,190"])
    assert 3590 - 4270 == 510 - 1190


def test_tabs_narrow_the_rows(login: Login, traffic: None) -> None:
    client = login("finance")
    walk(client, last="2026-10-05")
    kept = Reconciliation.objects.get()
    for state, models in {
        "matched": ["sol"], "differs": ["luna", "sol"], "only_theirs": ["=comet"], "only_ours": ["sol"], "odd": None,
    }.items():  # fmt: skip
        rows = client.get(result_url(kept), {"state": state}).context["rows"]
        assert models is None or sorted(row["model"] for row in rows) == models
    assert len(rows) == 5


def test_csv_has_what_is_shown(login: Login, traffic: None) -> None:
    client = login("operator")
    walk(login("finance"), last="2026-10-05")
    url = reverse("admin:billing_reconciliation_csv", args=[Reconciliation.objects.get().pk])
    answer = client.get(url)
    assert answer["content-type"] == "text/csv; charset=utf-8"
    rows = list(csv.reader(io.StringIO(answer.content.decode("utf-8-sig"), newline="")))
    assert rows[2] == ["days", "2026-10-03 – 2026-10-05", "UTC"]
    heads, lines, total = rows[7], rows[8:-1], rows[-1]
    assert [line[1] for line in lines] == ["sol", "'=comet", "luna", "sol", "sol"]
    named = [dict(zip(heads, line, strict=True)) for line in lines]
    shown = dict(zip(heads, total, strict=True))
    for column in ("attempts", "ours", "theirs", "failed attempt", "estimate", "unknown"):
        assert sum(int(line[column] or 0) for line in named) == int(shown[column])
    for column in ("their cost", "billed, USD", "margin"):
        nanos = sum(int(line[column].replace(".", "")) for line in named)
        assert nanos == int(shown[column].replace(".", ""))
    only = client.get(url, {"state": "only_theirs"}).content.decode("utf-8-sig").splitlines()
    assert ["'=comet" in line for line in only[-2:]] == [True, False]


def test_row_opens_to_its_buckets(login: Login, traffic: None) -> None:
    walk(login("finance"))
    row = ReconciliationRow.objects.get(day=dt.date(2026, 10, 4), model="sol")
    page = login("operator").get(reverse("admin:billing_reconciliationrow_change", args=[row.pk]))
    assert [str(head) for head in page.context["heads"]] == ["ours", "theirs", "difference", "failed attempt"]
    assert [(str(name), figures) for name, figures in page.context["buckets"]] == [
        ("input", ["1,500", "2,000", "+500", "+500"]),
        ("output", ["300", "300", "0", "0"]),
    ]


def test_mapping_is_remembered(login: Login, traffic: None) -> None:
    client = login("finance")
    walk(client, zone="Asia/Taipei", aliases="sol-2026-08-06 = sol\ncomet-9 = comet")
    upload(client, "2026-11-03,comet-9,1,2,0\n", name="november.csv")
    later = Reconciliation.objects.get(file_name="november.csv")
    fields = fields_of(client.get(mapping_url(later)))
    assert (fields["zone"], fields["column_cost"]) == ("Asia/Taipei", "cost_usd")
    assert "comet-9 = comet" in fields["aliases"]


def test_file_comes_back_as_uploaded(login: Login, traffic: None) -> None:
    upload(login("finance"))
    url = reverse("admin:billing_reconciliation_file", args=[Reconciliation.objects.get().pk])
    answer = login("operator").get(url)
    assert (answer.content, answer["content-type"]) == ((HEADER + LINES).encode(), "application/octet-stream")
    assert answer["content-disposition"].startswith("attachment")


# --- what cannot be ---


def test_same_file_says_so(login: Login, traffic: None) -> None:
    client = login("finance")
    walk(client)
    answer = client.post(
        reverse(ADD),
        {"provider": "acme-cloud", "file": SimpleUploadedFile("again.csv", (HEADER + LINES).encode())},
        follow=True,
    )
    assert answer.redirect_chain == [(result_url(Reconciliation.objects.get()), 302)]
    assert "The same file was uploaded before: october.csv, by finance on" in answer.text


def test_bad_lines_are_named_and_nothing_saved(login: Login, traffic: None) -> None:
    answer = walk(login("finance"), LINES + "Total,,3085,505,0.515\n2026-10-04,sol,many,0,0\n")
    assert answer.status_code == 200
    assert answer.context["sample"]["faults"] == [
        "Line 6: It counts something, but names no model.",
        "Line 7: input, cache left out: “many” is no number.",
    ]
    assert "Nothing was saved: these lines cannot be read." in answer.text
    assert not ReconciliationRow.objects.exists()
    assert not ReconciliationMapping.objects.exists()


def test_preview_compares_nothing(login: Login, traffic: None) -> None:
    client = login("finance")
    upload(client)
    kept = Reconciliation.objects.get()
    fields = {**fields_of(client.get(mapping_url(kept))), "unit": "millions", "preview": "1"}
    page = client.post(mapping_url(kept), fields)
    assert page.context["sample"]["rows"][0]["figures"][0] == "1,000,000,000"
    kept.refresh_from_db()
    assert kept.compared_at is None


def test_mapping_says_what_is_wrong() -> None:
    """Each fault at the field where it can be mended."""
    header = (HEADER.strip() + ",x").split(",")
    mapping = guess(csv_files.read((HEADER + LINES).encode()))
    given = MappingForm(header, mapping).initial
    for changes, field, words in (
        ({}, None, ""),
        ({"column_day": ""}, "column_day", "This field is required."),
        ({"column_output": "cost_usd"}, "column_cost", "This column is chosen twice."),
        ({"column_input_with_cache": "x"}, "column_input_with_cache", "Choose one of the two kinds of input."),
        ({"column_cost": "no_such"}, "column_cost", "Select a valid choice."),
        ({"currency": "XXQ"}, "currency", "is no currency"),
        ({"zone": "Mars/Olympus"}, "zone", "Select a valid choice."),
        ({"aliases": "sol"}, "aliases", "is no pair of names"),
        ({"aliases": "a = b\n\nc = d"}, None, ""),
        ({"column_input": "", "column_output": "", "column_cost": ""}, "__all__", "Choose at least one column"),
    ):
        form = MappingForm(header, mapping, None, {**given, "aliases": "", **changes})
        assert form.is_valid() is (field is None), changes
        assert field is None or words in str(form.errors[field])


def test_faulty_mapping_is_asked_again(login: Login, traffic: None) -> None:
    page = walk(login("finance"), currency="XXQ")
    assert page.status_code == 200
    assert "is no currency" in str(page.context["form"].errors["currency"])
    assert Reconciliation.objects.get().compared_at is None


def test_period_that_leaves_lines_out_is_refused(login: Login, traffic: None) -> None:
    page = walk(login("finance"), first="2026-10-04")
    assert page.context["stopped"] == ["Line 2: 2026-10-03 is outside the days that are to be compared."]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "The submitted file is empty."),
        (b"\0\0 \n", "The file is empty."),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "This is no text"),
        (b"a\nb\n", "No line has two columns or more"),
        (b'a,b\n1,"2\n', "Near line 2 a quotation mark"),
    ],
)
def test_no_table_is_refused(login: Login, traffic: None, content: bytes, words: str) -> None:
    file = SimpleUploadedFile("x.csv", content)
    page = login("finance").post(reverse(ADD), {"provider": "acme-cloud", "file": file})
    assert page.status_code == 200
    assert words in str(page.context["form"].errors["file"])
    assert not Reconciliation.objects.exists()


def test_huge_file_is_refused(login: Login, traffic: None) -> None:
    file = SimpleUploadedFile("x.csv", b"a,b\n" + b"1,2\n" * (MAX_BYTES // 4))
    page = login("finance").post(reverse(ADD), {"provider": "acme-cloud", "file": file})
    assert "The file is larger than 10 MB" in str(page.context["form"].errors["file"])


def test_unmapped_file_leads_on(login: Login, traffic: None) -> None:
    upload(login("finance"))
    kept = Reconciliation.objects.get()
    for who, may in (("finance", True), ("operator", False)):
        page = login(who).get(result_url(kept))
        assert "its columns are not mapped yet" in page.text
        assert (mapping_url(kept) in page.text) is may
    assert login("operator").get(reverse("admin:billing_reconciliation_csv", args=[kept.pk])).status_code == 302


def test_formula_in_a_name_stays_text(login: Login, traffic: None) -> None:
    page = walk(login("finance"), "2026-10-03,<b>=1+1</b>,1,1,1\n")
    assert "&lt;b&gt;=1+1&lt;/b&gt;" in page.text
    assert "<b>=1+1" not in page.text


def test_other_currency_has_no_margin(login: Login, traffic: None) -> None:
    make_record(make_key(make_account("umbrella", currency="TWD")), utc(2026, 10, 3), upstream_model="sol")
    page = walk(login("finance"))
    margin = next(card for card in page.context["cards"] if card["title"] == "Margin")
    assert (margin["figures"], margin["note"]) == (["—"], "not known: other currencies were billed too")
    assert [row["margin"] for row in page.context["models"] if row["model"] == "sol"] == ["—"]


def test_file_of_costs_alone_shows_no_tokens(login: Login, traffic: None) -> None:
    page = walk(login("finance"), column_input="", column_output="")
    cards = {card["title"]: card["figures"] for card in page.context["cards"]}
    assert cards["Theirs"] == ["—"]
    assert "Unexplained" not in cards
    assert {row["theirs"] for row in page.context["rows"]} == {"—"}


# --- rights, pages, queries ---


@pytest.mark.parametrize(
    ("who", "sees", "acts"), [("root", 200, 200), ("finance", 200, 200), ("operator", 200, 403), ("nobody", 403, 403)]
)
def test_rights_follow_the_groups(login: Login, traffic: None, who: str, sees: int, acts: int) -> None:
    walk(login("finance"))
    kept = Reconciliation.objects.get()
    before = list(ReconciliationRow.objects.values())
    client = login(who)
    for name in ("csv", "file"):
        assert client.get(reverse(f"admin:billing_reconciliation_{name}", args=[kept.pk])).status_code == sees
    assert client.get(result_url(kept)).status_code == sees
    assert client.get(mapping_url(kept)).status_code == acts
    if acts == 403:
        assert client.post(mapping_url(kept), {"compare": "1"}).status_code == 403
        assert upload(client, "2026-10-09,sol,1,1,1\n").status_code == 403
    assert list(ReconciliationRow.objects.values()) == before
    assert Reconciliation.objects.count() == 1


def test_result_takes_few_queries(login: Login, key: ApiKey) -> None:
    """As many for a thousand rows as for ten: sums are kept, rows come a page at a time, files stay where they are."""
    make_record(key, utc(2026, 1, 1), upstream_model="sol")
    rollups.rebuild_due()
    client = login("finance")
    days = [dt.date(2026, 1, 1) + dt.timedelta(days=ahead) for ahead in range(150)]
    walk(client, "".join(f"{day},{model},1,1,1\n" for day in days for model in ("sol", "luna", "terra")))
    kept = Reconciliation.objects.get()
    with CaptureQueriesContext(connection) as queries:
        page = client.get(result_url(kept), {"p": "2"})
    ours = [query["sql"] for query in queries if "reconciliation" in query["sql"]]
    assert len(ours) == 3  # the comparison, its object for the form, the rows
    assert not any('"content"' in query.replace('"django_content_type"', "") for query in ours)
    assert page.context["pages"]["shown"].startswith("Rows 51 to 100 of 450;")
    assert len(page.context["rows"]) == 50


def test_list_reads_no_files(login: Login, world: World) -> None:
    client = login("operator")
    with CaptureQueriesContext(connection) as queries:
        page = client.get(reverse("admin:billing_reconciliation_changelist"))
    assert "last-month.csv" in page.text
    assert not any('"billing_reconciliation"."content"' in query["sql"] for query in queries)
