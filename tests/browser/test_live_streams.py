"""Live streams as an operator watches them: of two processes, kept fresh, stopped one by one and together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.stage import KEYS, Site, Visits, overflows
from tests.end_to_end.formats import CHAT, MESSAGES, WORDS, request
from tests.end_to_end.product import Gateway
from tests.end_to_end.raw import RawClient

LIVE = "/admin/billing/openstream/"


class Streams:
    """Begins streams that say words without end, and leaves them when the test is over."""

    def __init__(self, clients: ExitStack) -> None:
        self._clients = clients

    def begin(self, gateway: Gateway, key: str = "production", wire: str = CHAT) -> RawClient:
        body = request(wire, "endless", "Tell the walrus.", stream=True)
        client = self._clients.enter_context(RawClient(gateway, wire, KEYS[key], body))
        client.read_until(WORDS[0].encode())
        return client


@pytest.fixture
def streams() -> Iterator[Streams]:
    with ExitStack() as clients:
        yield Streams(clients)


def row_of(page: Page, stream: RawClient) -> Locator:
    return page.locator("tr.data-row", has_text=stream.request_id)


def tokens(row: Locator) -> int:
    """The tokens so far of a row."""
    return int(row.locator("td.field-tokens_figure .hb-figure").inner_text().replace(",", ""))


def wait_for_more(row: Locator, than: int) -> None:
    for _ in range(100):
        if tokens(row) > than:
            return
        row.page.wait_for_timeout(100)
    raise AssertionError(f"no more than {than} tokens")


def as_of(page: Page) -> str:
    return page.locator('[data-live-part="news"] .hb-note').inner_text()


def wait_for_swap(page: Page) -> None:
    """Until the list has been refreshed once more."""
    expect(page.locator('[data-live-part="news"] .hb-note')).not_to_have_text(as_of(page))


def test_stream_of_another_process_is_stopped(operator: Page, site: Site, second: Gateway, streams: Streams) -> None:
    mine, theirs = streams.begin(site.gateway), streams.begin(second, "batch")
    operator.goto(LIVE)
    own, other = row_of(operator, mine), row_of(operator, theirs)
    for row in (own, other):
        expect(row).to_contain_text("streaming")
        expect(row).to_contain_text("/ 120 s")
    processes = {row.locator("td.field-process_label").inner_text() for row in (own, other)}
    assert len(processes) == 2
    wait_for_more(other, tokens(other))

    other.get_by_role("link", name="Stop").click()
    dialog = operator.get_by_role("dialog", name="Stop this stream of northwind/batch?")
    expect(
        dialog.get_by_text(re.compile(r"The client gets an error event; the [\d,]+ tokens so far are billed\."))
    ).to_be_visible()
    dialog.get_by_role("button", name="Stop").click()
    expect(operator.get_by_text("Stopping the stream of northwind/batch.")).to_be_visible()

    body = theirs.read_all()
    assert b'"code":"stopped"' in body
    assert b"[DONE]" not in body
    record = site.gateway.record(theirs.request_id, KEYS["batch"])
    assert (record["ending"], record["metering"]) == ("stopped", "estimated")
    assert record["usage"]["output"] > 0
    assert [attempt["outcome"] for attempt in record["attempts"]] == ["stopped"]

    link = operator.get_by_role("link", name=f"Record of {theirs.request_id}")
    expect(link).to_be_visible()
    expect(other).to_have_count(0)
    mine.read_until(mine.body + b"data")  # it goes on
    expect(own).to_contain_text("streaming")
    link.click()
    expect(operator.get_by_text("Stopped by operator.")).to_be_visible()


def test_swaps_keep_focus_and_choice(operator: Page, site: Site, second: Gateway, streams: Streams) -> None:
    chosen, reached = streams.begin(site.gateway, wire=MESSAGES), streams.begin(second)
    operator.goto(LIVE)
    row_of(operator, chosen).get_by_role("checkbox").check()
    stop = row_of(operator, reached).get_by_role("link", name="Stop")
    stop.focus()
    for _ in range(2):
        wait_for_swap(operator)
    third = streams.begin(site.gateway, "batch")
    expect(row_of(operator, third)).to_be_visible()
    expect(operator.get_by_role("status").filter(has_text="3 streams under way.")).to_have_count(1)
    expect(row_of(operator, chosen).get_by_role("checkbox")).to_be_checked()
    expect(operator.get_by_role("button", name="Stop selected (1)")).to_be_enabled()
    expect(stop).to_be_focused()

    operator.keyboard.press("Enter")
    dialog = operator.get_by_role("dialog")
    expect(dialog.get_by_role("link", name="Cancel")).to_be_focused()
    operator.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(stop).to_be_focused()


def test_pause_and_failure_are_told(visit: Visits, operator: Page, site: Site, streams: Streams) -> None:
    streams.begin(site.gateway)
    operator.clock.install()
    operator.goto(LIVE)
    operator.get_by_role("button", name="Pause").click()

    asked: list[str] = []
    operator.on("request", lambda sent: asked.append(sent.url) if "/rows/" in sent.url else None)
    operator.clock.fast_forward(10_000)
    assert asked == []
    operator.get_by_role("button", name="Resume").click()
    wait_for_requests(operator, asked, 1)

    hide(operator, True)
    operator.clock.fast_forward(10_000)
    assert len(asked) == 1
    hide(operator, False)
    wait_for_requests(operator, asked, 2)

    operator.route("**/rows/**", lambda route: route.fulfill(status=500, body="oh no"))
    operator.clock.fast_forward(2500)
    stale = operator.locator("[data-live-stale]")
    expect(stale).to_be_visible()
    expect(stale).to_contain_text(re.compile(r"Not refreshed since \d\d:\d\d:\d\d UTC\."))
    operator.unroute("**/rows/**")
    operator.clock.fast_forward(2500)
    expect(stale).to_be_hidden()
    assert all("500" in fault for fault in visit.faults)
    visit.faults.clear()


def wait_for_requests(page: Page, asked: list[str], count: int) -> None:
    for _ in range(100):
        if len(asked) >= count:
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"asked {len(asked)} times")


def hide(page: Page, hidden: bool) -> None:
    """Let the page think that its tab is in the background, or in front again."""
    script = "(hidden) => Object.defineProperty(document, 'hidden', {value: hidden, configurable: true})"
    page.evaluate(script, hidden)
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def test_chosen_streams_are_stopped_together(operator: Page, site: Site, second: Gateway, streams: Streams) -> None:
    ends = [streams.begin(site.gateway), streams.begin(second)]
    stays = streams.begin(second, "batch")
    operator.goto(LIVE)
    for stream in ends:
        row_of(operator, stream).get_by_role("checkbox").check()
    operator.get_by_role("button", name="Stop selected (2)").click()
    dialog = operator.get_by_role("dialog", name="Stop 2 streams?")
    expect(dialog.get_by_text("northwind/production · endless")).to_have_count(2)
    dialog.get_by_role("button", name="Stop").click()
    expect(operator.get_by_text("Stopping 2 streams.")).to_be_visible()
    for stream in ends:
        assert b'"code":"stopped"' in stream.read_all()
        assert site.gateway.record(stream.request_id, KEYS["production"])["ending"] == "stopped"
    stays.read_until(stays.body + b"data")


def test_finance_may_only_watch(finance: Page, site: Site, streams: Streams) -> None:
    stream = streams.begin(site.gateway)
    finance.goto(LIVE)
    row = row_of(finance, stream)
    expect(row).to_contain_text("streaming")
    expect(row.get_by_role("checkbox")).to_have_count(0)
    expect(finance.get_by_role("link", name="Stop")).to_have_count(0)
    wait_for_more(row, tokens(row))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_list_fits_its_window(operator: Page, site: Site, streams: Streams) -> None:
    stream = streams.begin(site.gateway)
    operator.goto(LIVE)
    expect(row_of(operator, stream)).to_be_visible()
    assert not overflows(operator)
    row_of(operator, stream).get_by_role("link", name="Stop").click()
    expect(operator.get_by_role("dialog")).to_be_visible()
    assert not overflows(operator)
