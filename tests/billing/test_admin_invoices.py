"""Invoices: read with the records behind each line; drafted, issued, paid and voided by Finance."""

from __future__ import annotations

import datetime as dt
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import Sum
from django.test import Client
from django.urls import reverse
from django.utils.timezone import now

from billing import credit_notes, invoices
from billing.admin.display import money
from billing.admin.invoices import seller_zone
from billing.admin.lines import records_behind
from billing.credit_notes import Wanted
from billing.models import Account, Invoice, InvoiceLine, UsageRecord
from billing.money import parse
from billing.pricing import LongContext
from billing.usage import BUCKETS, Part, TokenUsage
from tests.billing.admin_site import Login
from tests.billing.admin_site import own_world as own_world
from tests.billing.admin_world import World, make_full_record
from tests.billing.factories import TIERS, make_account, make_adjustment, make_key, make_record, per_million, price, utc

pytestmark = pytest.mark.django_db


def url(view: str, invoice: Invoice | None = None) -> str:
    return reverse(f"admin:billing_invoice_{view}", args=[invoice.pk] if invoice else [])


def used(line: InvoiceLine, records: list[UsageRecord]) -> tuple[int, int]:
    """What the records used and cost in the line's bucket: quantity and nanos."""
    quantity = exact = 0
    for record in records:
        if line.per_million and record.model == line.model and record.price_version == line.price_version:
            quantity += getattr(record, line.bucket)
            exact += getattr(record, f"{line.bucket}_nanos")
        for item in record.items:
            if (item["model"], item["bucket"], item["price_version"]) == (line.model, line.bucket, line.price_version):
                quantity += item["quantity"]
                exact += item["amount_nanos"]
    return quantity, exact


def add_variety(world: World) -> None:
    """Records that fall on lines of their own, in the key's running month."""
    moment = now()
    flex = price(tiers=TIERS)
    make_record(world.key, moment, TokenUsage(input=10, output=20), service_tier="default")
    make_record(world.key, moment, TokenUsage(input=10, output=20), service_tier="flex", version=flex)
    make_record(world.key, moment, TokenUsage(input=10, cache_read=7, output=20), metering="estimated")
    make_record(world.key, moment, TokenUsage(input=5, output=5), version=price(effective_from=moment))
    make_full_record(world.key, moment)
    make_record(world.key, moment - dt.timedelta(days=70), TokenUsage(input=900, output=1))


@pytest.mark.parametrize("issued", [False, True])
def test_lines_lead_to_their_records(login: Login, world: World, issued: bool) -> None:
    add_variety(world)
    month = world.draft.month
    invoices.draft(month, now=now())
    invoice = Invoice.objects.get(api_key=world.key, month=month)
    if issued:
        invoice = invoices.issue(invoice.pk, now=now())
    client = login("finance")
    lines = list(invoice.lines.all())
    assert {line.bucket for line in lines} >= {*BUCKETS} - {"cache_write_1h"} | {"web_search"}
    assert any(line.late for line in lines)
    content = client.get(url("change", invoice)).text
    for line in lines:
        if line.bucket == "adjustment":
            continue
        link = f"{reverse('admin:billing_usagerecord_changelist')}?line={line.pk}"
        assert link in content
        found = list(client.get(link).context["cl"].result_list)
        assert found
        assert used(line, found) == (line.quantity, line.exact_nanos), line


def test_invoice_links_all_its_records(login: Login, world: World) -> None:
    records = UsageRecord.objects.filter(invoice=world.open)
    assert records.aggregate(cost=Sum("cost_nanos"))["cost"] == sum(line.exact_nanos for line in world.open.lines.all())
    behind = set()
    for line in world.open.lines.select_related("invoice"):
        behind |= set(records_behind(line, UsageRecord.objects.all()))
    assert behind == set(records)


def test_line_leads_to_its_own_records(db: None) -> None:
    """One item of a record is on a line, not the words of several; nor the same tool or model at another price."""
    key = make_key(make_account())
    own: dict[str, Any] = {
        "server_tools": {"web_search": parse("0.01")},
        "long_context": LongContext(1_000, Fraction(2), Fraction(1)),
    }
    advisor = price("幫手-1")
    asked = [Part("幫手-1", TokenUsage(input=7))]
    long = make_record(key, utc(2026, 10, 3), TokenUsage(input=2_000), version=price(**own))
    mixed = make_record(
        key, utc(2026, 10, 4), TokenUsage(input=500, server_tools={"web_search": 1}), version=price(**own),
        others=(advisor,), parts=asked,
    )  # fmt: skip
    dearer = make_record(
        key, utc(2026, 10, 5), TokenUsage(input=2_000), version=price(**own),
        others=(price("幫手-1", per_million=per_million(input="6", output="1")),), parts=asked,
    )  # fmt: skip
    (draft,) = invoices.draft(dt.date(2026, 10, 1), now=utc(2026, 11, 2))
    found = {
        (line.model, line.bucket, line.long_context, line.unit_nanos): {
            *records_behind(line, UsageRecord.objects.all())
        }
        for line in draft.lines.all()
    }
    assert found == {
        ("gpt-5.6-sol", "input", False, parse("5")): {mixed},
        ("gpt-5.6-sol", "input", True, parse("10")): {long, dearer},
        ("gpt-5.6-sol", "web_search", False, parse("0.01")): {mixed},
        ("幫手-1", "input", False, parse("5")): {mixed},
        ("幫手-1", "input", False, parse("6")): {dearer},
    }


def test_page_shows_money_exactly(login: Login, world: World) -> None:
    content = login("operator").get(url("change", world.open)).text
    assert "2026-000001" in content or str(world.open.number) in content
    assert "USD 6.52" in content
    assert "USD -0.000600000" in content
    assert not re.search(r"\de-\d", content, re.IGNORECASE) or "0E-9" not in content


def test_draft_warns_of_boxes_in_its_pdf(login: Login, world: World) -> None:
    words = "The PDF shows boxes in place of these characters"
    assert words not in login("finance").get(url("change", world.draft)).text
    Account.objects.filter(pk=world.draft.account_id).update(legal_name="Łódź บท 🎉")
    (draft,) = (one for one in invoices.draft(world.draft.month, now=now()) if one.pk == world.draft.pk)
    content = login("finance").get(url("change", draft)).text
    assert f"{words}, for none of its fonts has them: ท บ 🎉." in content


def test_buttons_fit_status_and_group(login: Login, world: World) -> None:
    finance, operator = login("finance"), login("operator")
    for invoice, shown in ((world.draft, {"issue"}), (world.open, {"mark-paid", "void"})):
        content = finance.get(url("change", invoice)).text
        for action in ("issue", "mark-paid", "void"):
            assert (f"/{invoice.pk}/{action}/" in content) == (action in shown), action
        content = operator.get(url("change", invoice)).text
        assert not any(f"/{invoice.pk}/{action}/" in content for action in ("issue", "mark-paid", "void"))
    assert finance.get(url("run_month")).headers["location"] == reverse("admin:invoice_run")


def test_unpriced_records_block_the_issue(login: Login, world: World) -> None:
    client = login("finance")
    response = client.post(url("issue", world.draft))
    assert response.status_code == 409
    assert "1 unpriced requests (no price for model unpriced-model)." in response.text
    world.draft.refresh_from_db()
    assert (world.draft.status, world.draft.number) == ("draft", None)
    assert not UsageRecord.objects.filter(invoice=world.draft).exists()


def test_issue_gives_the_next_number(login: Login, world: World) -> None:
    draft = Invoice.objects.get(api_key=world.key, status="draft")
    client = login("finance")
    response = client.post(url("issue", draft), {"seen": seen(client, draft)})
    assert response.status_code == 302
    draft.refresh_from_db()
    year, last = str(world.note.invoice_number).split("-")
    assert (draft.status, draft.number) == ("open", f"{year}-{int(last) + 1:06d}")


def seen(client: Client, draft: Invoice) -> str:
    """What the page that asks has shown, as its button sends it."""
    found: str = dict(client.get(url("issue", draft)).context["hidden"])["seen"]
    return found


def test_issue_bills_what_was_seen(login: Login, world: World) -> None:
    """What arrived after the question was asked makes it ask again, with the draft made anew; nothing is claimed."""
    client, draft = login("finance"), Invoice.objects.get(api_key=world.key, status="draft")
    before = seen(client, draft)
    late = make_adjustment(world.key, draft.period_start, parse(550))
    response = client.post(url("issue", draft), {"seen": before}, follow=True)
    assert response.redirect_chain == [(url("issue", draft), 302)]
    assert "The draft has changed since you looked. Nothing was issued: look again." in response.text
    assert "USD 550." in response.context["question"]
    late.refresh_from_db()
    draft.refresh_from_db()
    assert (draft.status, draft.number, late.invoice) == ("draft", None, None)
    client.post(url("issue", draft), {"seen": seen(client, draft)})
    late.refresh_from_db()
    draft.refresh_from_db()
    assert (draft.status, draft.total_nanos > parse(550), late.invoice) == ("open", True, draft)


def test_issue_that_nobody_saw_is_refused(login: Login, world: World) -> None:
    draft = Invoice.objects.get(api_key=world.key, status="draft")
    assert login("finance").post(url("issue", draft)).headers["location"] == url("issue", draft)
    draft.refresh_from_db()
    assert draft.status == "draft"


def test_issued_twice_changes_nothing(login: Login, world: World) -> None:
    client = login("finance")
    response = client.post(url("issue", world.open), follow=True)
    assert "Nothing was changed" in response.text
    world.open.refresh_from_db()
    assert world.open.status == "open"


def test_paid_keeps_date_and_reference(login: Login, world: World) -> None:
    client = login("finance")
    response = client.post(url("mark_paid", world.open), {"paid_on": "", "reference": "x"})
    assert response.status_code == 200
    client.post(url("mark_paid", world.open), {"paid_on": now().date(), "reference": "bank 77"})
    world.open.refresh_from_db()
    assert (world.open.status, world.open.paid_on) == ("paid", now().date())
    assert world.open.payment_reference == "bank 77"


def test_question_of_payment_tells_what_is_due(login: Login, world: World) -> None:
    """As the list has it: a credit note has lowered it."""
    client, number = login("finance"), world.open.number
    total = money(world.open.total_nanos, "USD")
    asked = client.get(url("mark_paid", world.open))
    assert (asked.context["question"], len(asked.context["effects"])) == (
        f"Mark the invoice {number} paid? {total} is due.", 1,
    )  # fmt: skip
    credit_notes.make(world.open.pk, Wanted(amount_nanos=parse(1)), "a wrong price", by=None, now=now())
    due = money(world.open.total_nanos - parse(1), "USD")
    asked = client.get(url("mark_paid", world.open))
    assert asked.context["question"] == f"Mark the invoice {number} paid? {due} is due."
    assert asked.context["effects"][0] == f"Its total is {total}, of which credit notes took USD 1.00 back."


def test_payment_has_a_day_near_its_invoice(login: Login, world: World) -> None:
    client = login("finance")
    today = dt.datetime.now(seller_zone()).date()
    first, last = world.open.month - dt.timedelta(days=92), today + dt.timedelta(days=1)
    for day in (dt.date.min, first - dt.timedelta(days=1), last + dt.timedelta(days=1), dt.date.max):
        answer = client.post(url("mark_paid", world.open), {"paid_on": day, "reference": "bank 77"})
        assert f"Write the day of the payment, from {first} to {last}." in answer.text, day
        assert "bank 77" in answer.text
    world.open.refresh_from_db()
    assert (world.open.status, world.open.paid_on) == ("open", None)
    client.post(url("mark_paid", world.open), {"paid_on": first})
    world.open.refresh_from_db()
    assert (world.open.status, world.open.paid_on) == ("paid", first)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("action", ["mark_paid", "void"])
def test_who_comes_second_is_told(login: Login, world: World, action: str) -> None:
    """Two at once: whoever waited for the other finds the invoice paid, reads so, and has changed nothing."""
    client, paying = login("finance"), threading.Event()

    def pay() -> None:
        with transaction.atomic():
            invoices.mark_paid(world.open.pk, dt.date(2026, 11, 20), "first")
            paying.set()
            time.sleep(0.5)  # by then the other one waits for this transaction
        connection.close()

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(pay)
        paying.wait()
        answer = client.post(
            url(action, world.open),
            {"paid_on": now().date(), "reference": "second", "number": world.open.number, "reason": "an error"},
            follow=True,
        )
        first.result()
    assert "Nothing was changed: the invoice" in answer.text
    paid = Invoice.objects.get(pk=world.open.pk)
    assert (paid.status, paid.payment_reference) == ("paid", "first")


def test_void_needs_number_and_reason(login: Login, world: World) -> None:
    client = login("finance")
    for data in ({"reason": "wrong", "number": "2026-9"}, {"reason": "", "number": world.open.number}):
        assert client.post(url("void", world.open), data).status_code == 200
        world.open.refresh_from_db()
        assert world.open.status == "open"
    client.post(url("void", world.open), {"reason": "wrong price", "number": world.open.number})
    world.open.refresh_from_db()
    assert (world.open.status, world.open.void_reason) == ("void", "wrong price")
    assert not UsageRecord.objects.filter(invoice=world.open).exists()


def test_void_invoice_has_no_records(login: Login, world: World) -> None:
    invoices.void(world.open.pk, "wrong", now())
    response = login("finance").get(url("change", world.open))
    assert "?line=" not in response.text
    assert "freed when it was made void" in response.text


def test_list_filters_and_search(login: Login, world: World) -> None:
    client = login("finance")

    def found(**query: object) -> set[Invoice]:
        return set(client.get(url("changelist"), query).context["cl"].result_list)

    assert found(status="open") == {world.open}
    assert world.draft in found(month=world.draft.month)
    assert {invoice.account for invoice in found(account=world.umbrella.pk)} == {world.umbrella}
    assert found(q=world.open.number) == {world.open}
    assert found(month="x") == found()
