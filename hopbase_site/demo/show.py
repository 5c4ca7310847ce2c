"""What the demo shows: a stream per wire format with its record and cost, then the month's invoice; all checked."""

from __future__ import annotations

import contextlib
import datetime as dt
import http.client
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from django.db.models import Q, Sum
from django.utils import timezone

from billing import invoices, money, rollups
from billing.models import ApiKey, Invoice, UsageRecord
from billing.periods import local_day
from hopbase_site.demo import script
from hopbase_site.demo.stage import DemoFailed

Say = Callable[[str], None]

KEEPALIVE = b": hopbase-keepalive"
RECORD_S = 5.0
LONGEST_LINE = 108
SHOWN_EVENTS = 4
"""Of an answer's many events, the first and the last few are shown; keepalives always."""
BUCKETS = (
    ("input", "fresh"),
    ("cache_read", "cached"),
    ("cache_write", "written"),
    ("output", "output"),
    ("reasoning", "thought"),
)
"""A record's count -> the script's."""


@dataclass(frozen=True)
class Request:
    """One request of the show: where it goes, and how its text is read out of the events."""

    title: str
    path: str
    body: Mapping[str, Any]
    text: Callable[[Mapping[str, Any]], str]


@dataclass
class Heard:
    """What came back: the text put together, the keepalives, the request's id, the last event's data."""

    request_id: str
    text: str = ""
    keepalives: int = 0
    last: bytes = b""
    lines: list[bytes] = field(default_factory=list)


def _chat_text(event: Mapping[str, Any]) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in event.get("choices", []))


def _responses_text(event: Mapping[str, Any]) -> str:
    return str(event["delta"]) if event.get("type") == "response.output_text.delta" else ""


def _messages_text(event: Mapping[str, Any]) -> str:
    return str(event["delta"].get("text", "")) if event.get("type") == "content_block_delta" else ""


def requests() -> list[Request]:
    """One per wire format; the first has a silence in which keepalives are seen."""
    asked = "What does a gateway do?"
    silent = [{"role": "user", "content": f"{asked} [silent 5]"}]
    chinese = [{"role": "user", "content": "網關是做什麼的？"}]
    chat = {"model": "gpt-5.6-sol", "stream": True, "messages": silent}
    responses = {"model": "gpt-5.6-sol", "stream": True, "input": asked}
    messages = {"model": "claude-sonnet-5", "stream": True, "max_tokens": 1024, "messages": chinese}
    return [
        Request("Chat Completions, with 5 s of silence", "/v1/chat/completions", chat, _chat_text),
        Request("Responses", "/v1/responses", responses, _responses_text),
        Request("Messages", "/v1/messages", messages, _messages_text),
    ]


class Show:
    """The show on a gateway at 127.0.0.1. `say` prints a line; `problems` is what did not come out right."""

    def __init__(self, port: int, key: str, say: Say) -> None:
        self._port, self._key, self._say = port, key, say
        self.problems: list[str] = []

    def run(self) -> None:
        """All of it, in order."""
        for request in requests():
            self._say(f"\n=== {request.title}: POST {request.path}\n")
            heard = self._stream(request)
            self._check_stream(request, heard)
            self._show_record(request, self._record(heard.request_id))
        self._show_invoice()

    def _expect(self, condition: bool, problem: str) -> None:
        if not condition:
            self.problems.append(problem)

    @contextlib.contextmanager
    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        headers = {"authorization": f"Bearer {self._key}", "content-type": "application/json"}
        with contextlib.closing(connection):
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            yield connection.getresponse()

    def _stream(self, request: Request) -> Heard:
        began = time.monotonic()
        with self._ask("POST", request.path, request.body) as answer:
            if answer.status != 200:
                raise DemoFailed(f"{request.path} answers {answer.status}: {answer.read().decode()[:300]}")
            heard = Heard(answer.getheader("x-request-id", ""))
            for raw in answer:
                self._hear(request, heard, raw.rstrip(b"\r\n"), time.monotonic() - began)
        for line in heard.lines[-SHOWN_EVENTS:]:
            self._say(f"          {_cut(line)}")
        self._say(f"\n  text: {heard.text}")
        return heard

    def _hear(self, request: Request, heard: Heard, line: bytes, at_s: float) -> None:
        """Take a line of the stream in: the first events and every keepalive are shown as they come."""
        if line == KEEPALIVE:
            heard.keepalives += 1
            self._say(f"  {at_s:6.2f}  {line.decode()}")
        elif line:
            heard.lines.append(line)
            if len(heard.lines) <= SHOWN_EVENTS:
                self._say(f"  {at_s:6.2f}  {_cut(line)}")
            elif len(heard.lines) == SHOWN_EVENTS + 1:
                self._say("          …")
        if line.startswith(b"data: {"):
            heard.last = line
            heard.text += request.text(json.loads(line.removeprefix(b"data: ")))

    def _check_stream(self, request: Request, heard: Heard) -> None:
        wanted = script.write(script.prompt_of(request.body))
        self._expect(heard.text == wanted.text, f"{request.title}: the text is not what the provider said")
        if wanted.silent_s:
            self._expect(heard.keepalives > 0, f"{request.title}: no keepalive in {wanted.silent_s:.0f} s of silence")

    def _record(self, request_id: str) -> dict[str, Any]:
        """The usage record, which can be read within 5 s of the end."""
        deadline = time.monotonic() + RECORD_S
        while True:
            with self._ask("GET", f"/v1/usage/requests/{request_id}") as answer:
                if answer.status == 200:
                    record: dict[str, Any] = json.loads(answer.read())
                    return record
                said = answer.status
            if time.monotonic() > deadline:
                raise DemoFailed(f"the usage record of {request_id} cannot be read: status {said}")
            time.sleep(0.1)

    def _show_record(self, request: Request, record: Mapping[str, Any]) -> None:
        counts = " · ".join(f"{name} {record['usage'][name]}" for name, _ in BUCKETS)
        self._say(f"  record: {record['ending']}, {record['metering']} · {counts}")
        parts = " + ".join(f"{name} {amount}" for name, amount in record["cost_by_bucket"].items())
        self._say(f"  cost:   {record['currency']} {record['cost']} = {parts}")
        usage = script.write(script.prompt_of(request.body)).usage
        wanted = {name: getattr(usage, attribute) for name, attribute in BUCKETS}
        found = {name: record["usage"][name] for name, _ in BUCKETS}
        cost = Decimal(record["cost"])
        said = (record["ending"], record["metering"])
        self._expect(said == ("complete", "reported"), f"{request.title}: the record says {', '.join(said)}")
        self._expect(found == wanted, f"{request.title}: the record counts {found}, the provider {wanted}")
        self._expect(cost > 0, f"{request.title}: the cost is {cost}")
        summed = sum((Decimal(amount) for amount in record["cost_by_bucket"].values()), Decimal(0))
        self._expect(summed == cost, f"{request.title}: the parts of the cost sum to {summed}")

    def _show_invoice(self) -> None:
        """Close the month as far as a draft: a demo that issued could not be run twice in a month."""
        now = timezone.now()
        key = ApiKey.objects.select_related("account").get(account__name="northwind", name="production")
        first = local_day(now, ZoneInfo(key.account.timezone)).replace(day=1)
        rollups.rebuild_due()
        invoices.draft(first, account=key.account, now=now)
        found = invoices.of_month(first).filter(api_key=key).prefetch_related("lines").first()
        if found is None:
            raise DemoFailed(f"{first:%Y-%m} has no invoice for {key}")
        self._print_invoice(found, first)
        self._check_invoice(found)

    def _print_invoice(self, invoice: Invoice, first: dt.date) -> None:
        places = money.currency_places(invoice.currency)
        self._say(f"\n=== Invoice of {invoice.account_name}/{invoice.key_name} for {first:%Y-%m}: {invoice.status}\n")
        for line in invoice.lines.all():
            amount, exact = money.show(line.amount_nanos, places), money.show(line.exact_nanos)
            what = f"{line.model} {line.bucket} ({line.metering})"
            self._say(f"  {what:<44} {line.quantity:>12,}  exact {exact:>14}  {amount:>8}")
        self._say(f"  {'total':<44} {invoice.currency:>12}  {'':>20}  {money.show(invoice.total_nanos, places):>8}")

    def _check_invoice(self, invoice: Invoice) -> None:
        lines = list(invoice.lines.all())
        total = sum(line.amount_nanos for line in lines) + invoice.tax_nanos
        self._expect(bool(lines), "the invoice has no lines")
        self._expect(total == invoice.total_nanos, "the invoice's lines do not sum to its total")
        records = UsageRecord.objects.filter(Q(invoice=None) | Q(invoice=invoice), api_key=invoice.api_key)
        used = records.filter(ended_at__lt=invoice.period_end).aggregate(sum=Sum("cost_nanos"))["sum"]
        exact = sum(line.exact_nanos for line in lines)
        self._expect(exact == used, f"the invoice's exact sum is {exact} nanos, the records' {used}")


def _cut(line: bytes) -> str:
    """A long line without its middle: an event's kind is at its beginning, its news at its end."""
    text = line.decode(errors="replace")
    return text if len(text) <= LONGEST_LINE else f"{text[: LONGEST_LINE // 3]} … {text[-LONGEST_LINE * 2 // 3 :]}"
