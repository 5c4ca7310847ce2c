"""The page Usage: its state in the URL, each figure with its records, files with the same rows."""

from __future__ import annotations

import copy
import csv
import datetime as dt
import json
import re
import uuid
from decimal import Decimal, InvalidOperation
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils.timezone import now
from pytest_django import DjangoAssertNumQueries

from billing import exports, rollups
from billing.admin.charts import COLOURS, OTHER, colours
from billing.models import Export, SavedView, UsageDay, UsageRecord
from billing.money import parse
from billing.usage import TokenUsage
from tests.billing import xlsx
from tests.billing.admin_site import Login
from tests.billing.admin_world import World
from tests.billing.factories import make_account, make_adjustment, make_key, make_record, price, unsaved_record

pytestmark = pytest.mark.django_db
PAGE = "/admin/usage/"


def figures(context: Any) -> list[tuple[str, ...]]:
    return [
        (*(place["text"] for place in row["places"]), row["currency"], *(figure["text"] for figure in row["figures"]))
        for row in context["rows"]
    ]


def records_behind(client: Client, url: str) -> list[UsageRecord]:
    response = client.get(url)
    assert response.status_code == 200, url
    return list(response.context["cl"].result_list)


def test_groups_see_it(login: Login) -> None:
    for who in ("root", "operator", "finance"):
        assert login(who).get(PAGE).status_code == 200


def test_others_do_not(login: Login) -> None:
    for path in (PAGE, f"{PAGE}file/csv/", f"{PAGE}records/csv/", f"{PAGE}save/"):
        assert login("nobody").get(path).status_code == 403
        assert login("nobody").post(path).status_code == 403
        assert Client().get(path).status_code == 302


def test_empty_says_what_next(login: Login) -> None:
    content = login("finance").get(PAGE).text
    assert "No requests in this period. Choose other days, or take filters away." in content


def test_every_figure_leads_to_its_records(login: Login, world: World) -> None:
    """The requests that a figure's link shows are as many, and cost as much, as the figure says."""
    client = login("finance")
    make_record(world.key, now(), metering="checkpoint", ending="gateway_lost", provider="")
    for query in ("", "?by=provider&then=day", "?period=last_month&by=key"):
        context = client.get(f"{PAGE}{query}").context
        names = [str(column["name"]) for column in context["columns"]]
        assert context["rows"]
        for row in [*context["rows"], *context["totals"]]:
            cells = dict(zip(names[-len(row["figures"]) :], row["figures"], strict=True))
            counted = records_behind(client, cells["requests"]["url"])
            assert len(counted) == int(cells["requests"]["text"].replace(",", ""))
            if cells["cost"]["text"] != "—":
                cost = sum(record.cost_nanos for record in counted)
                assert cost == parse(cells["cost"]["text"].replace(",", ""))
            assert sum(record.input for record in counted) == int(cells["input"]["text"].replace(",", ""))
        for row in context["totals"]:
            cells = dict(zip(names[-len(row["figures"]) :], row["figures"], strict=True))
            counted = records_behind(client, cells["requests"]["url"])
            cut = records_behind(client, cells["interrupted %"]["url"])
            assert {record.ending for record in cut} <= {*rollups.INTERRUPTED}
            assert len(cut) == sum(record.ending in rollups.INTERRUPTED for record in counted)
            counted_here = records_behind(client, cells["estimated %"]["url"])
            assert len(counted_here) == sum(record.metering in rollups.ESTIMATED for record in counted)
            unpriced = records_behind(client, cells["unpriced"]["url"]) if "unpriced" in cells else []
            assert len(unpriced) == sum(record.unpriced for record in counted)


def test_figure_before_leads_to_its_records(login: Login, world: World) -> None:
    today = now().date()
    query = f"?from={today}&to={today}&compare=previous&by=account&then=none"
    make_record(world.key, now() - dt.timedelta(days=1))
    row = next(
        row
        for row in login("finance").get(f"{PAGE}{query}").context["rows"]
        if row["places"][0]["text"] == "northwind" and row["currency"] == "USD"
    )
    before = row["figures"][-2]
    cost = sum(record.cost_nanos for record in records_behind(login("finance"), before["url"]))
    assert cost == parse(before["text"].replace(",", ""))


def test_unpriced_is_never_zero(login: Login, world: World) -> None:
    response = login("finance").get(f"{PAGE}?by=model&compare=none")
    rows = {row[0]: row for row in figures(response.context)}
    assert rows["unpriced-model"][-1] == "—"
    assert "Some requests have no price yet" in response.text


def test_several_zones_are_named(login: Login, world: World) -> None:
    assert f"Each account&#x27;s own day: {world.northwind.timezone}, UTC" in login("finance").get(PAGE).text
    own = login("finance").get(f"{PAGE}?account={world.northwind.pk}")
    assert dict(own.context["heads"])["Time zone"] == world.northwind.timezone


def test_adjustments_are_told_not_added(login: Login, world: World) -> None:
    make_adjustment(world.key, now(), -7_000_000_000)
    content = login("finance").get(f"{PAGE}?account={world.northwind.pk}").text
    assert "Adjustments, not in the cost" in content


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("from=yesterday", "This is no day"),
        ("from=2026-11-02&to=2026-11-01", "The first day must not be after the last one."),
        ("from=2020-01-01&to=2026-01-01", "at most 400 days"),
        ("by=day&then=day", "The two dimensions are the same"),
        ("account=999999", "There is no such account or key"),
        ("by=colour", "The field “by” has an unknown value."),
        ("key=%00", "The field “key” has an unknown value."),
    ],
)
def test_fault_keeps_what_was_typed(login: Login, query: str, words: str) -> None:
    response = login("finance").get(f"{PAGE}?{query}")
    assert response.status_code == 400
    assert words in response.text
    assert "Nothing was read." in response.text
    if query.startswith("from=2026"):
        assert 'value="2026-11-02"' in response.text


def test_hostile_query_is_escaped(login: Login) -> None:
    text = login("finance").get(f"{PAGE}?model=%22%3E%3Cscript%3Ealert(1)%3C/script%3E&from=%3Cb%3E").text
    assert "<script>alert(1)" not in text
    assert "<b>" not in text


def test_charts_are_drawn_from_the_rows(login: Login, world: World) -> None:
    context = login("finance").get(f"{PAGE}?by=model").context
    titles = [chart["title"] for chart in context["charts"]]
    assert titles == [
        "Cost per day by model, TWD", "Cost per day by model, USD", "Requests per day by model",
        "Tokens per day by bucket", "Cached, estimated, interrupted", "Cost by model, TWD", "Cost by model, USD",
    ]  # fmt: skip
    chart = next(chart for chart in context["charts"] if chart["title"] == "Cost per day by model, USD")
    data, options = json.loads(chart["data"]), json.loads(chart["options"])
    now_series = [one for one in data["datasets"] if one.get("type") != "line"]
    (before,) = [one for one in data["datasets"] if one.get("type") == "line"]
    drawn = sum(parse(value) for one in now_series for value in one["data"])
    total = next(row for row in context["totals"] if row["currency"] == "USD")
    cost = dict(
        zip(
            [str(column["name"]) for column in context["columns"]][-len(total["figures"]) :],
            total["figures"],
            strict=True,
        )
    )
    assert drawn == parse(cost["cost"]["text"].replace(",", ""))
    assert sum(parse(value) for value in before["data"]) == parse(cost["before"]["text"].replace(",", ""))
    assert before["borderDash"]
    assert before["borderColor"] == OTHER
    assert options["scales"]["y"]["beginAtZero"]
    assert set(options["scales"]) == {"x", "y"}


def test_many_series_are_four_and_others(login: Login, world: World) -> None:
    """What the four largest leave of each day is Other: a chart adds up to the total, however many series there are."""
    long_report(world, 30)
    context = login("finance").get(f"{PAGE}?by=model&compare=none&currency=USD").context
    (total,) = context["totals"]
    cost = parse(total["figures"][-1]["text"].replace(",", ""))
    per_day, rank = context["charts"][0], context["charts"][-1]
    datasets = json.loads(per_day["data"])["datasets"]
    assert len(datasets) == 5
    assert datasets[-1]["label"] == "Other"
    assert len({one["backgroundColor"] for one in datasets}) == 5
    assert sum(parse(value) for one in datasets for value in one["data"]) == cost
    ranked = json.loads(rank["data"])
    assert (len(ranked["labels"]), ranked["labels"][-1]) == (11, "Other")
    values = [parse(value) for value in ranked["datasets"][0]["data"]]
    assert values[:-1] == sorted(values[:-1], reverse=True)
    assert sum(values) == cost


def test_model_keeps_its_colour() -> None:
    alone = {name: colours([name])[name] for name in ("gpt-5.6-sol", "claude-sonnet-5", "gemini-4", "mistral-l")}
    assert set(alone.values()) <= set(COLOURS)
    together = colours(list(alone))
    assert len(set(together.values())) == 4
    assert colours(list(reversed(alone))) == together
    assert together[min(alone)] == alone[min(alone)]


def long_report(world: World, rows: int) -> None:
    for at in range(rows):
        make_record(world.key, now(), TokenUsage(input=at + 1), model=f"model-{at:03}", version=price(f"model-{at:03}"))
    rollups.rebuild_due()


def test_pages_hold_all_rows_once(login: Login, world: World) -> None:
    long_report(world, 60)
    client, query = login("finance"), f"?by=model&account={world.northwind.pk}&compare=none"
    first, second = (client.get(f"{PAGE}{query}&p={page}").context for page in (1, 2))
    assert len(first["rows"]) == 50
    names = [row[0] for row in (*figures(first), *figures(second))]
    assert len(names) == len(set(names)) >= 61
    assert first["totals"] == second["totals"]
    assert first["pages"]["after"].endswith("p=2#table")
    raw = client.get(f"{PAGE}file/csv/{query}").content.decode("utf-8-sig")
    in_file = [line[0] for line in csv.reader(raw.splitlines()) if len(line) > 5][1:]
    assert in_file == [*names, "Total", "On no invoice yet"]


@pytest.mark.parametrize("query", ["", "?by=day&then=key", "?by=model&compare=previous"])
def test_files_have_the_pages_figures(login: Login, world: World, query: str) -> None:
    world.key.name = "=1+1"
    world.key.save(update_fields=["name"])
    client = login("finance")
    page = client.get(f"{PAGE}{query}")
    shown = [[*row] for row in figures(page.context)]
    response = client.get(f"{PAGE}file/csv/{query}")
    assert response["Content-Type"] == "text/csv; charset=utf-8"
    assert re.fullmatch(r'attachment; filename="usage-\d{8}-\d{6}\.csv"', response["Content-Disposition"])
    assert "no-store" in response["Cache-Control"]
    lines = list(csv.reader(response.content.decode("utf-8-sig").splitlines()))
    width = len(page.context["columns"])
    in_csv = [line for line in lines if len(line) == width][1:]
    assert [[clean(cell) for cell in line] for line in in_csv[: len(shown)]] == [list(map(clean, row)) for row in shown]
    (sheet,) = xlsx.read(client.get(f"{PAGE}file/xlsx/{query}").content)
    in_xlsx = [row for row in sheet if len(row) > 5][1:]
    assert [[clean(cell) for cell in pad(row, width)] for row in in_xlsx] == [
        [clean(cell) for cell in line] for line in in_csv
    ]


def pad(row: list[Any], width: int) -> list[Any]:
    return [*row, *[None] * (width - len(row))]


def clean(cell: Any) -> str:
    """A figure without separators and signs of unknown, as a plain number where it is one."""
    text = "" if cell in (None, "—") else str(cell).replace(",", "").removeprefix("+").removeprefix("'")
    try:
        return f"{Decimal(text):.9f}"
    except InvalidOperation:
        return text


def test_long_report_is_made_by_a_worker(login: Login, users: dict[str, User], world: World) -> None:
    """More than 5,000 rows: asked first, made in the background, with the rows of the page."""
    rollups.rebuild_due()
    day = UsageDay.objects.first()
    assert day is not None
    fields = {field.attname: getattr(day, field.attname) for field in UsageDay._meta.fields if field.attname != "id"}
    many = [UsageDay(**{**fields, "day": now().date(), "model": f"model-{at}"}) for at in range(5_001)]
    UsageDay.objects.bulk_create(many)
    client, url = login("finance"), f"{PAGE}file/csv/?by=model&compare=none"
    asked = client.get(url)
    assert "A worker makes it in the background" in asked.text
    assert not Export.objects.filter(owner=users["finance"]).exists()
    response = client.post(url)
    export = Export.objects.get(owner=users["finance"])
    assert (export.kind, export.format, export.query) == ("usage", "csv", "compare=none&by=model")
    assert response["location"] == reverse("admin:billing_export_change", args=[export.pk])
    exports.run(export.pk)
    export.refresh_from_db()
    assert export.rows_done > 5_000
    shown = [row[0] for row in figures(client.get(f"{PAGE}?by=model&compare=none").context)]
    lines = list(csv.reader(exports.path(export).read_text("utf-8-sig").splitlines()))
    assert [line[0] for line in lines if len(line) > 5][1 : len(shown) + 1] == shown


def test_long_list_is_made_by_a_worker(login: Login, users: dict[str, User], world: World) -> None:
    record = unsaved_record(world.key, now(), model="many")
    UsageRecord.objects.bulk_create(
        [copied(record, at) for at in range(5_001)], batch_size=500
    )  # fmt: skip
    client, url = login("finance"), f"{PAGE}records/csv/?model=many&key=northwind/production"
    assert "more than 5,000 rows" in client.get(url).text
    client.post(url)
    export = Export.objects.get(owner=users["finance"])
    assert "since=" in export.query
    assert f"api_key__in={world.key.pk}" in export.query
    exports.run(export.pk)
    export.refresh_from_db()
    assert (export.state, export.rows_done) == ("done", 5_001)
    lines = list(csv.reader(exports.path(export).read_text("utf-8-sig").splitlines()))
    names = [line[5] for line in lines if len(line) > 5][1:-1]
    assert len(names) == len(set(names)) == 5_001
    assert lines[-1][5] == "5001"


def copied(record: UsageRecord, at: int) -> UsageRecord:
    other = copy.copy(record)
    other.id, other.request_name = uuid.uuid4(), f"many-{at}"
    return other


def test_unknown_format_is_not_found(login: Login) -> None:
    for path in ("file/pdf/", "file/exe/", "records/pdf/"):
        assert login("finance").get(f"{PAGE}{path}").status_code == 404


def test_faulty_file_leads_back(login: Login) -> None:
    response = login("finance").get(f"{PAGE}file/csv/?by=colour")
    assert response.status_code == 302
    assert response["location"] == f"{PAGE}?by=colour"
    response = login("finance").get(f"{PAGE}records/csv/?q=req-1")
    assert response["location"].startswith("/admin/billing/usagerecord/")


def test_records_file_has_the_lists_records(login: Login, world: World) -> None:
    client = login("finance")
    for query in (
        "day__gte=2020-01-01",
        f"api_key={world.other_key.pk}&period=all",
        "metering__in=estimated&period=all",
        "",
    ):
        shown = {record.request_name for record in records_behind(client, f"/admin/billing/usagerecord/?{query}")}
        raw = client.get(f"{PAGE}records/csv/?{query}").content.decode("utf-8-sig")
        lines = [line for line in csv.reader(raw.splitlines()) if len(line) > 5]
        at = lines[0].index("request id")
        assert {line[at] for line in lines[1:] if line[0] != "Total"} == shown, query


def test_list_offers_its_files(login: Login, world: World) -> None:
    content = login("finance").get("/admin/billing/usagerecord/?model=gpt-5.6-sol").text
    assert f"{PAGE}records/csv/?model=gpt-5.6-sol" in content
    assert f"{PAGE}records/csv/" not in login("finance").get("/admin/billing/usagerecord/?q=x").text


def test_view_is_saved_and_shared(login: Login, users: dict[str, User], world: World) -> None:
    finance, operator = login("finance"), login("operator")
    response = finance.post(f"{PAGE}save/", {"name": "Mine", "query": "by=model&period=last_month&p=3&junk=1"})
    assert response["location"] == f"{PAGE}?period=last_month&by=model"
    assert "Mine" in finance.get(PAGE).text
    assert "Mine" not in operator.get(PAGE).text
    finance.post(f"{PAGE}save/", {"name": "Mine", "query": "by=key", "shared": "on"})
    view = SavedView.objects.get(owner=users["finance"])
    assert (view.query, view.shared) == ("by=key", True)
    content = operator.get(PAGE).text
    assert "Mine" in content
    assert "(finance)" in content


def test_view_is_its_owners_to_change(login: Login, users: dict[str, User]) -> None:
    view = SavedView.objects.create(owner=users["finance"], name="Mine", query="by=key")
    url = reverse("admin:billing_savedview_change", args=[view.pk])
    assert login("operator").get(url).status_code == 302
    view.shared = True
    view.save()
    assert "_save" not in login("operator").get(url).text
    assert login("operator").post(url, {"name": "Theirs"}).status_code == 403
    login("finance").post(url, {"name": "Renamed", "hidden": "on"})
    view.refresh_from_db()
    assert (view.name, view.hidden) == ("Renamed", True)
    assert "Renamed" not in login("finance").get(PAGE).text


def test_name_of_another_view_is_refused(login: Login, users: dict[str, User]) -> None:
    views = [SavedView.objects.create(owner=users["finance"], name=name, query="by=key") for name in ("A", "B")]
    SavedView.objects.create(owner=users["operator"], name="C", query="by=key")
    url = reverse("admin:billing_savedview_change", args=[views[1].pk])
    page = login("finance").post(url, {"name": "A"})
    assert page.status_code == 200
    assert "You have another view of this name: choose another name." in page.text
    assert login("finance").post(url, {"name": "C"}).status_code == 302


@pytest.mark.parametrize("given", [{"query": "by=key"}, {"name": "x" * 101}, {"name": "Bad", "query": "by=colour"}])
def test_bad_view_is_not_saved(login: Login, users: dict[str, User], given: dict[str, str]) -> None:
    assert login("finance").post(f"{PAGE}save/", given).status_code == 302
    assert not SavedView.objects.exists()
    assert login("finance").get(f"{PAGE}save/").status_code == 405


def test_narrower_report_by_click(login: Login, world: World) -> None:
    context = login("finance").get(PAGE).context
    place = next(row["places"][0] for row in context["rows"] if row["places"][0]["text"] == "northwind")
    assert parse_qs(urlsplit(place["url"]).query) == {"by": ["model"], "account": [str(world.northwind.pk)]}
    assert login("finance").get(f"{PAGE}{place['url']}").status_code == 200


def test_page_takes_few_queries(
    login: Login, world: World, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    """The same number whatever there is: sums, names, choices; session and rights; alarms."""
    for at in range(15):
        key = make_key(make_account(f"account-{at}"))
        make_record(key, now(), model=f"model-{at}", version=price(f"model-{at}"))
    rollups.rebuild_due()
    client = login("finance")
    client.get(PAGE)
    with django_assert_max_num_queries(25) as seen:
        client.get(PAGE)
    assert not any('FROM "billing_usagerecord"' in query["sql"] for query in seen.captured_queries)
