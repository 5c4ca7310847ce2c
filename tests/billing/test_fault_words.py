"""What the core finds wrong is in Chinese on Chinese pages, and in English on the command line."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse
from django.utils.timezone import now

from billing import audit, exports, invoice_runs, invoices, jobs, rollups, sweep
from billing.exports import Format, Kind
from billing.models import Adjustment, ApiKey, Export, InvoiceRun, Price
from billing.usage import TokenUsage
from streaming.models import Model, Provider, Route
from tests.billing.admin_site import Login
from tests.billing.factories import JANUARY, STANDARD, make_account, make_adjustment, make_key, make_record, utc

pytestmark = pytest.mark.django_db
NOVEMBER = dt.date(2026, 11, 1)
NOW = utc(2026, 12, 2)
PRICE_FORM = {
    "model": "sol", "effective_from_0": "2027-01-01", "effective_from_1": "00:00:00", "currency": "USD", "input": "5",
    "tiers": "{}", "server_tools": "{}",
}  # fmt: skip


class Case(NamedTuple):
    """A page that shows a fault: `ask` brings it about and returns the page; what it says, and no longer says."""

    who: str
    ask: Callable[[Client], Any]
    chinese: str
    english: str


def key() -> ApiKey:
    return make_key(make_account("northwind"))


def unpriced(owner: ApiKey) -> None:
    make_record(owner, utc(2026, 11, 3), service_tier="scale", model="sol")


def price_form(**fields: str) -> Callable[[Client], Any]:
    return lambda client: client.post(reverse("admin:billing_price_add"), {**PRICE_FORM, **fields})


def imported(text: str) -> Callable[[Client], Any]:
    file = SimpleUploadedFile("hopbase.yaml", text.encode())
    return lambda client: client.post(reverse("admin:configuration"), {"file": file})


def issue_of_one(client: Client) -> Any:
    unpriced(key())
    (draft,) = invoices.draft(NOVEMBER, now=NOW)
    return client.post(reverse("admin:billing_invoice_issue", args=[draft.pk]))


def issue_of_foreign(client: Client) -> Any:
    owner = key()
    record = make_record(owner, utc(2026, 11, 3))
    (draft,) = invoices.draft(NOVEMBER, now=NOW)
    type(record).objects.filter(pk=record.pk).update(currency="TWD")
    return client.post(reverse("admin:billing_invoice_issue", args=[draft.pk]))


def issue_of_month(client: Client) -> Any:
    unpriced(key())
    run = invoice_runs.ask_issue(NOVEMBER, invoices.draft(NOVEMBER, now=NOW), by=User.objects.get(username="finance"))
    invoice_runs.run(run.pk)
    return client.get(reverse("admin:invoice_run"), {"month": "2026-11"})


def hopeless_month(client: Client) -> Any:
    run = invoice_runs.ask_drafts(NOVEMBER, by=User.objects.get(username="finance"))
    InvoiceRun.objects.filter(pk=run.pk).update(tries=jobs.MAX_TRIES)
    invoice_runs.run(run.pk)
    return client.get(reverse("admin:invoice_run"), {"month": "2026-11"})


def lost_export(client: Client) -> Any:
    export = exports.ask(User.objects.get(username="finance"), Kind.USAGE, Format.CSV, "account=999", language="en")
    exports.run(export.pk)
    return client.get(reverse("admin:billing_export_change", args=[export.pk]))


def hopeless_export(client: Client) -> Any:
    export = exports.ask(User.objects.get(username="finance"), Kind.USAGE, Format.CSV, "", language="en")
    Export.objects.filter(pk=export.pk).update(tries=jobs.MAX_TRIES)
    exports.run(export.pk)
    return client.get(reverse("admin:billing_export_change", args=[export.pk]))


def gone_draft(client: Client) -> Any:
    owner = User.objects.get(username="finance")
    export = exports.ask(owner, Kind.DRAFT, Format.PDF, "invoice=999", language="en")
    exports.run(export.pk)
    return client.get(reverse("admin:billing_export_change", args=[export.pk]))


def unpriced_list(client: Client) -> Any:
    unpriced(key())
    return client.get(reverse("admin:unpriced"))


def unpriced_rate(client: Client) -> Any:
    unpriced(key())
    reason = "no price for service tier scale of model sol"
    return client.get(reverse("admin:unpriced_rate"), {"model": "sol", "tier": "scale", "reason": reason})


def request_page(client: Client) -> Any:
    record = make_record(
        key(), utc(2026, 11, 3), service_tier="scale", model="sol", ending="gateway_lost", reason=sweep.LOST_STREAM
    )
    return client.get(reverse("admin:billing_usagerecord_change", args=[record.pk]))


def lost_answer(client: Client) -> Any:
    record = make_record(key(), utc(2026, 11, 3), ending="gateway_lost", reason=sweep.LOST_ANSWER)
    return client.get(reverse("admin:billing_usagerecord_change", args=[record.pk]))


def silent_provider(client: Client) -> Any:
    record = make_record(key(), utc(2026, 11, 3), ending="stalled", reason="no output for 15 s")
    return client.get(reverse("admin:billing_usagerecord_change", args=[record.pk]))


def route_out(client: Client) -> Any:
    provider = Provider.objects.create(name="acme", base_url="https://api.acme.test", wire_formats=["messages"])
    route = Route.objects.create(model=Model.objects.create(name="sol"), provider=provider, upstream_model="sol")
    Route.objects.filter(pk=route.pk).update(out_since=now(), out_reason="no connection: TimeoutError")
    return client.get(reverse("admin:streaming_route_change", args=[route.pk]))


def preview_of_price(client: Client) -> Any:
    owner = key()
    month = (now().date().replace(day=1) - dt.timedelta(days=1)).replace(day=5)
    at = dt.datetime.combine(month, dt.time(12), dt.UTC)
    make_record(owner, at, TokenUsage(output=5), model="sol")
    rollups.rebuild_due()
    Price.objects.create(model="sol", effective_from=JANUARY, currency="USD", **STANDARD)
    return client.post(reverse("admin:billing_price_add"), PRICE_FORM)


def audited(client: Client) -> Any:
    row = Price.objects.create(model="sol", effective_from=JANUARY, currency="USD", **STANDARD)
    audit.note(row, "rated 3 records of sol (no price for model sol), USD 1.5 in all")
    return client.get(reverse("admin:audit"), {"table": "billing.price"})


def ledgers_adjustment(client: Client) -> Any:
    owner = key()
    make_adjustment(
        owner,
        utc(2026, 11, 3),
        5,
        kind=Adjustment.Kind.SETTLED,
        reason="a later checkpoint of the lost stream was found",
    )
    return client.get(reverse("admin:statement"), {"account": owner.account_id, "month": "2026-11"})


BAD_ACCOUNT = "accounts: [{name: a, timezone: Mars, billing: {tax_rate: 7}, keys: [{name: k, models: [sol]}]}]"
CASES = {
    "price: base tier": Case(
        "finance", price_form(tiers='{"default": "2"}'), "tiers：default 以基本價格計價", "served at the base price"
    ),
    "price: negative": Case(
        "finance", price_form(server_tools='{"web_search": -1}'), "server_tools.web_search：-1 是負數", "is negative"
    ),
    "price: half a long context": Case(
        "finance", price_form(long_context_input="2"), "long_context 需要 above", "long_context needs"
    ),
    "price: no bucket": Case("finance", price_form(input=""), "per_million 沒有列出任何用量分項", "names no bucket"),
    "price: not a number": Case(
        "finance", price_form(tiers='{"flex": "cheap"}'), "tiers.flex：&#x27;cheap&#x27; 不是金額", "not an amount"
    ),
    "price: preview": Case("finance", preview_of_price, "模型 sol 的用量分項 output 沒有價格", "no price for bucket"),
    "import: not YAML": Case("root", imported("a: ["), "第 ", "line "),
    "import: twice": Case("root", imported("{a: 1, a: 2}"), "鍵 &#x27;a&#x27; 出現兩次", "given twice"),
    "import: octal": Case("root", imported("a: 0o17x\nb: 017"), "017 不是一般的十進位數字", "plain decimal"),
    "import: zone": Case("root", imported(BAD_ACCOUNT), "&#x27;Mars&#x27; 不是時區", "not a time zone"),
    "import: tax": Case("root", imported(BAD_ACCOUNT), "5 % 請寫成 0.05", "between 0 and 1"),
    "import: model": Case("root", imported(BAD_ACCOUNT), "不認識的模型 &#x27;sol&#x27;；目前還沒有", "unknown model"),
    "import: field": Case(
        "root", imported("providers: [{nam: a}]"), "不認識的欄位；是否為 &#x27;name&#x27;？", "unknown field"
    ),
    "import: price": Case(
        "root",
        imported("prices: [{model: sol, effective_from: 2027-01-01, currency: USD, per_million: {input: 1}}]"),
        "prices[0].effective_from：2027-01-01 不是確切的時間點",
        "exact instant",
    ),
    "import: secret": Case(
        "root",
        imported("accounts: [{name: a, keys: [{name: k, secret: short}]}]"),
        "有 5 個字元，無法使用",
        "cannot be used",
    ),
    "import: preview": Case(
        "root",
        imported("providers: [{name: acme, base_url: 'https://a.test', wire_formats: [messages]}]"),
        "沒有 api_key：使用前請輸入",
        "newly created",
    ),
    "issue: unpriced": Case("finance", issue_of_one, "模型 sol 的服務等級 scale 沒有價格", "no price for"),
    "issue: another currency": Case(
        "finance", issue_of_foreign, "1 個請求的幣別與帳戶的 USD 不同", "in another currency"
    ),
    "month: unpriced": Case(
        "finance", issue_of_month, "1 個未定價的請求（模型 sol 的服務等級 scale 沒有價格）", "unpriced requests"
    ),
    "month: hopeless": Case("finance", hopeless_month, "但從未完成", "never came to its end"),
    "export: gone": Case("finance", lost_export, "所要求的資料已不存在：", "absent"),
    "export: hopeless": Case("finance", hopeless_export, "但從未完成", "never came to its end"),
    "export: draft": Case("finance", gone_draft, "其計費項目已列入另一張帳單", "gone"),
    "unpriced: list": Case("finance", unpriced_list, "模型 sol 的服務等級 scale 沒有價格", "no price for"),
    "unpriced: rate": Case("finance", unpriced_rate, "模型 sol 沒有價格", "no price for"),
    "request: unpriced": Case("operator", request_page, "模型 sol 的服務等級 scale 沒有價格", "no price for"),
    "request: lost": Case("operator", request_page, "網關行程已終止", "process died"),
    "request: lost answer": Case("operator", lost_answer, "回應及其在供應商的費用已遺失", "process died"),
    "request: stalled": Case("operator", silent_provider, "15 秒沒有輸出", "no output for"),
    "route: out": Case("operator", route_out, "無法連線：TimeoutError", "no connection"),
    "audit: rated": Case("finance", audited, "已補計價 sol 的 3 筆紀錄（模型 sol 沒有價格），合計 USD 1.5", "rated 3"),
    "statement: ledger": Case("finance", ledgers_adjustment, "找到失聯串流較晚的檢查點", "later checkpoint"),
}


@pytest.mark.parametrize("name", CASES)
def test_page_says_it_in_chinese(login: Login, name: str) -> None:
    case = CASES[name]
    client = login(case.who)
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "zh-hant"
    text = case.ask(client).text
    assert case.chinese in text
    assert case.english not in text.replace(f"reason={case.english.replace(' ', '+')}", "")


def test_command_says_it_in_english(tmp_path: Any) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(BAD_ACCOUNT)
    with pytest.raises(CommandError, match=r"accounts\[0\].timezone: 'Mars' is not a time zone; write one such as"):
        call_command("apply", str(file))
    unpriced(key())
    with pytest.raises(CommandError, match=r"1 unpriced requests \(no price for service tier scale of model sol\)"):
        call_command("close_month", "2026-11", "--issue")
