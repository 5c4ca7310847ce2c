"""`manage.py close_month`."""

from __future__ import annotations

import io
import json
import re
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from billing import overflow
from billing.models import ApiKey, Invoice, UsageRollup
from billing.money import parse
from billing.usage import TokenUsage
from tests.billing.factories import make_key, make_record, price

NOW = timezone.now()
MONTH = f"{NOW:%Y-%m}"


@pytest.fixture
def key(db: None) -> ApiKey:
    return make_key()


def run(*arguments: str) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    call_command("close_month", MONTH, *arguments, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def printed(*arguments: str) -> list[dict[str, Any]]:
    found = json.loads(run(*arguments, "--json")[0])
    assert isinstance(found, list)
    return found


def test_drafts_twice_then_issues(key: ApiKey) -> None:
    other = make_key(key.account, "other")
    for owner in (key, other):
        make_record(owner, NOW, TokenUsage(input=22_000, cache_read=20_000, output=1000))
    runs = [printed(), printed(), printed("--issue")]
    assert [{invoice["status"] for invoice in found} for found in runs] == [{"draft"}, {"draft"}, {"open"}]
    assert [len(found) for found in runs] == [2, 2, 2]
    assert [invoice["number"] for invoice in runs[-1]] == [f"{NOW:%Y}-000001", f"{NOW:%Y}-000002"]
    assert UsageRollup.objects.count() == 2


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_terminal_shows_progress(key: ApiKey) -> None:
    make_record(key, NOW, TokenUsage(input=22_000, output=1000))
    shown = Terminal()
    call_command("close_month", MONTH, "--issue", stdout=io.StringIO(), stderr=shown)
    lines = re.split(r"[\r\n]+", shown.getvalue())
    assert "days rolled up: 1 of 1" in lines
    assert "invoices issued: 1 of 1" in lines
    assert "\r" not in run()[1]


def test_lines_add_up(key: ApiKey) -> None:
    for _ in range(3):
        make_record(key, NOW, TokenUsage(input=2000, cache_read=20_000, output=1000))
    (invoice,) = printed()
    assert sum(Decimal(line["amount"]) for line in invoice["lines"]) == Decimal(invoice["total"]) == Decimal("0.15")
    assert invoice["subtotal"] == invoice["total"]
    for line in invoice["lines"]:
        exact = Decimal(line["quantity"]) * Decimal(line["unit_price"]) / 1_000_000
        assert Decimal(line["amount"]) == exact.quantize(Decimal("0.01"), ROUND_HALF_UP)


def test_issued_invoices_stay_listed(key: ApiKey) -> None:
    make_record(key, NOW)
    (first,) = printed("--issue")
    make_record(key, NOW)
    assert printed() == printed("--issue") == [first]


def test_running_month_warns_on_stderr(key: ApiKey) -> None:
    make_record(key, NOW)
    _, err = run("--issue")
    assert "1 days rolled up, 1 invoices drafted" in err
    assert f"warning: {MONTH} is still running for northwind/production" in err


def test_blocked_issue_fails_with_reasons(key: ApiKey) -> None:
    make_record(key, NOW, service_tier="scale")
    make_record(make_key(key.account, "other"), NOW)
    with pytest.raises(CommandError, match=f"northwind/production {MONTH}: 1 unpriced requests"):
        run("--issue")
    assert dict(Invoice.objects.values_list("key_name", "status")) == {"production": "draft", "other": "open"}


def test_blocker_does_not_stop_the_drafts(key: ApiKey) -> None:
    make_record(key, NOW, service_tier="scale")
    (invoice,) = printed()
    assert (invoice["status"], invoice["unpriced"], invoice["total"]) == ("draft", 1, "0.00")


def test_key_that_cannot_be_drafted_fails_with_reason(key: ApiKey) -> None:
    dear = price(per_million={"input": parse(5 * 10**9)})
    for _ in range(2):
        make_record(key, NOW, TokenUsage(input=1_000_000), version=dear)
    make_record(make_key(key.account, "other"), NOW)
    with pytest.raises(CommandError) as told:
        run("--issue")
    assert str(told.value) == (
        f"not rolled up or drafted:\n- northwind/production: its days cannot be rolled up: {overflow.TOO_LARGE}\n"
        f"- northwind/production {MONTH}: the invoice cannot be kept: {overflow.TOO_LARGE}"
    )
    assert Invoice.objects.get().status == "open"


def test_prints_a_table(key: ApiKey) -> None:
    make_record(key, NOW, TokenUsage(output=1_000_000))
    head, row = run("--issue")[0].splitlines()
    assert head.split() == ["NUMBER", "STATUS", "ACCOUNT", "KEY", "TOTAL", "UNPRICED"]
    assert row.split() == [f"{NOW:%Y}-000001", "open", "northwind", "production", "USD", "30.00", "0"]


@pytest.mark.parametrize(
    ("month", "told"),
    [
        ("november", "write it as YYYY-MM"),
        ("2026-13", "write it as YYYY-MM"),
        ("0001-01", "years 2000 to 2999"),
        ("2999-01", "not begun"),
    ],
)
def test_bad_month_is_one_line(db: None, month: str, told: str) -> None:
    with pytest.raises(CommandError, match=told) as refused:
        call_command("close_month", month)
    assert "\n" not in str(refused.value)
