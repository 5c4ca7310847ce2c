from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing.usage import INPUT_ABSENT, OUTPUT_PLACEHOLDER, ReportedUsage
from streaming.protocols import messages
from streaming.protocols.meter import INTERRUPTED, BadRequest, GatewayError, MeterOptions
from tests.streaming.protocols.playback import Played, cut_at, framed, play

ASKED = {"model": "claude-test", "max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}]}
CUT = GatewayError(502, "upstream_error", "api_error", INTERRUPTED)


def start(usage: dict[str, Any] | None = None, **more: Any) -> bytes:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "upstream-model", "content": []}
    return framed("message_start", message={**message, "usage": usage, **more})


def text(piece: str, kind: str = "text_delta", field: str = "text", index: int = 0) -> bytes:
    return framed("content_block_delta", index=index, delta={"type": kind, field: piece})


def delta(usage: dict[str, Any] | None = None, stop: str | None = "end_turn", **more: Any) -> bytes:
    return framed("message_delta", delta={"stop_reason": stop, "stop_sequence": None, **more}, usage=usage)


STOP = framed("message_stop")
TEXT = text("Hello")


def stream(*events: bytes, **options: Any) -> Played:
    return play(messages.Meter, events, **options)


def usage_of(first: dict[str, Any] | None, *later: dict[str, Any], stop: str = "end_turn") -> ReportedUsage:
    usage = stream(start(first), TEXT, *(delta(usage, stop) for usage in later), STOP).usage
    assert usage is not None
    return usage


def buckets(given: int = 0, output: int = 0, read: int = 0, write: int = 0, hour: int = 0) -> dict[str, int]:
    return {"input": given, "cache_read": read, "cache_write": write, "cache_write_1h": hour, "output": output}


def entry(kind: str, given: int, output: int, **more: Any) -> dict[str, Any]:
    return {"type": kind, "input_tokens": given, "output_tokens": output, **more}


class TestRequest:
    def test_reads_what_the_gateway_needs(self) -> None:
        body = {**ASKED, "stream": True, "service_tier": "auto", "container": "container_1"}
        facts = messages.read_request(orjson.dumps(body))
        assert (facts.model, facts.stream, facts.max_output) == ("claude-test", True, 100)
        assert (facts.service_tier, facts.stored) == ("auto", {"container": ("container_1",)})

    @pytest.mark.parametrize("given", [None, [], "text", {}])
    def test_messages_are_required(self, given: object) -> None:
        with pytest.raises(BadRequest) as refused:
            messages.read_request(orjson.dumps({**ASKED, "messages": given}))
        assert refused.value.param == "messages"

    @pytest.mark.parametrize("name", ["model", "stream", "max_tokens"])
    def test_repeated_field_is_refused(self, name: str) -> None:
        raw = orjson.dumps({**ASKED, "stream": True})[:-1] + b', "' + name.encode() + b'": 1}'
        with pytest.raises(BadRequest) as refused:
            messages.read_request(raw)
        assert refused.value.param == name

    def test_only_the_model_is_spliced(self) -> None:
        raw = b'{ "max_tokens" : 1e2, "model":"claude-test","messages":[{"role":"user","content":"\\u00e9 \\/"}] }'
        facts = messages.read_request(raw)
        sent = messages.prepare_request(raw, facts, upstream_model="vendor/claude", ask_usage=True)
        assert sent == raw.replace(b"claude-test", b"vendor/claude")
        assert messages.prepare_request(raw, facts, upstream_model=None, ask_usage=True) == raw

    def test_file_of_the_account_is_named(self) -> None:
        content = [{"type": "document", "source": {"type": "file", "file_id": "file_1"}}]
        facts = messages.read_request(orjson.dumps({**ASKED, "messages": [{"role": "user", "content": content}]}))
        assert facts.stored == {"file_id": ("file_1",)}


class TestInputContent:
    def test_all_texts_are_countable(self) -> None:
        content = [
            {"type": "text", "text": "question"},
            {"type": "tool_use", "name": "look", "input": {"city": "Keelung"}},
            {"type": "tool_result", "content": [{"type": "text", "text": "result"}]},
            {"type": "document", "title": "report", "source": {"type": "text", "data": "document"}},
            {"type": "thinking", "thinking": "thought", "signature": "c2lnbmF0dXJl"},
            {"type": "redacted_thinking", "data": "aGlkZGVu"},
        ]
        body = {
            "system": [{"type": "text", "text": "system"}],
            "messages": [{"role": "user", "content": "plain"}, {"role": "user", "content": content}],
            "tools": [{"name": "look", "input_schema": {}}],
        }
        assert messages.input_content(body).texts == [
            "system", "plain", "question", "look", '{"city":"Keelung"}', "result", "document", "report", "thought",
            '{"name":"look","input_schema":{}}',
        ]  # fmt: skip

    def test_images_are_counted_by_size(self) -> None:
        image = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
        inner = {"type": "tool_result", "content": [image]}
        found = messages.input_content({"messages": [{"role": "user", "content": [image, inner]}]})
        assert (found.image_tokens, found.texts) == (2 * 1399, [])

    @pytest.mark.parametrize("body", [{}, {"messages": "x"}, {"messages": [None, 3]}, {"system": 4, "tools": {}}])
    def test_odd_bodies_are_no_error(self, body: dict[str, Any]) -> None:
        assert messages.input_content(body).image_tokens == 0


class TestUsage:
    @pytest.mark.parametrize(
        ("first", "later", "wanted"),
        [
            pytest.param({"input_tokens": 25, "output_tokens": 1}, [{"output_tokens": 15}], buckets(25, 15)),
            pytest.param(
                {"input_tokens": 25, "output_tokens": 1}, [{"output_tokens": 7}, {"output_tokens": 15}],
                buckets(25, 15), id="cumulative",
            ),
            pytest.param(
                {"input_tokens": 0, "output_tokens": 0}, [{"input_tokens": 900, "output_tokens": 10}],
                buckets(900, 10), id="raised",
            ),
            pytest.param(
                {"input_tokens": 900, "cache_read_input_tokens": 40, "output_tokens": 1},
                [{"input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 10}],
                buckets(900, 10, read=40), id="zero-keeps-positive",
            ),
            pytest.param(
                {"input_tokens": 900, "cache_creation_input_tokens": 100, "output_tokens": 1},
                [{"input_tokens": None, "cache_creation_input_tokens": None, "output_tokens": 10}],
                buckets(900, 10, write=100), id="null-keeps-value",
            ),
            pytest.param(
                {"input_tokens": 10, "cache_creation_input_tokens": 1000, "output_tokens": 1,
                 "cache_creation": {"ephemeral_5m_input_tokens": 600, "ephemeral_1h_input_tokens": 400}},
                [{"output_tokens": 10}], buckets(10, 10, write=600, hour=400), id="split",
            ),
            pytest.param(
                {"input_tokens": 10, "cache_creation_input_tokens": 1000, "output_tokens": 1,
                 "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 1000}},
                [{"cache_creation_input_tokens": 1300, "output_tokens": 10}],
                buckets(10, 10, write=300, hour=1000), id="total-outgrows-split",
            ),
            pytest.param(
                {"input_tokens": 10, "output_tokens": 1, "cache_creation": {"ephemeral_1h_input_tokens": 400}},
                [{"output_tokens": 10}], buckets(10, 10, hour=400), id="split-without-total",
            ),
            pytest.param(
                {"input_tokens": 10, "cache_creation_input_tokens": 1000, "output_tokens": 1,
                 "cache_creation": {"ephemeral_5m_input_tokens": 1000, "ephemeral_1h_input_tokens": 0}},
                [{"cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 1000},
                  "output_tokens": 10}],
                buckets(10, 10, hour=1000), id="split-is-one-thing",
            ),
            pytest.param(
                {"input_tokens": 10, "output_tokens": 1, "cache_creation": {"ephemeral_1h_input_tokens": 400}},
                [{"output_tokens": 10, "cache_creation": {"ephemeral_1h_input_tokens": 0}}],
                buckets(10, 10, hour=400), id="zero-split-keeps-positive",
            ),
            pytest.param(
                {"input_tokens": 173_056, "output_tokens": 0},
                [{"input_tokens": 0, "cache_read_input_tokens": 173_056, "output_tokens": 9}],
                buckets(0, 9, read=173_056), id="input-moves-into-cache",
            ),
            pytest.param(
                {"input_tokens": 5, "output_tokens": 1}, [{"output_tokens": 0}], buckets(5), id="placeholder-gives-way"
            ),
            pytest.param(
                {"input_tokens": 5, "output_tokens": 1, "iterations": [entry("message", 5, 1)]},
                [{"output_tokens": 50}], buckets(5, 50), id="iterations-at-the-start-are-placeholders",
            ),
            pytest.param(None, [{"input_tokens": 9, "output_tokens": 4}], buckets(9, 4), id="only-at-the-end"),
            pytest.param({"input_tokens": 14.0, "output_tokens": 1}, [{"output_tokens": 2.0}], buckets(14, 2)),
        ],
    )  # fmt: skip
    def test_fields_are_folded(self, first: dict[str, Any], later: list[dict[str, Any]], wanted: object) -> None:
        assert usage_of(first, *later).usage.buckets() == wanted

    @pytest.mark.parametrize(
        ("listed", "wanted"),
        [
            pytest.param([entry("message", 100, 30), entry("message", 50, 5)], buckets(150, 35), id="messages"),
            pytest.param(
                [entry("compaction", 180_000, 3_500), entry("message", 23_000, 1_000)], buckets(203_000, 4_500),
                id="compaction-is-added",
            ),
            pytest.param(
                [entry("message", 100, 30, cache_creation={"ephemeral_1h_input_tokens": 7}),
                 entry("message", 1, 1, cache_read_input_tokens=5, cache_creation_input_tokens=6)],
                buckets(101, 31, read=5, write=6, hour=7), id="caches-are-summed",
            ),
            pytest.param([entry("advisor_message", 9, 9, model="other")], buckets(23_000, 1_000), id="advisor-alone"),
            pytest.param(
                [{"type": "message", "input_tokens": None, "output_tokens": None}], buckets(23_000, 1_000), id="nulls"
            ),
            pytest.param([], buckets(23_000, 1_000), id="none"),
            pytest.param("odd", buckets(23_000, 1_000), id="no-list"),
            pytest.param([None, 3], buckets(23_000, 1_000), id="no-objects"),
        ],
    )  # fmt: skip
    def test_iterations_decide(self, listed: object, wanted: object) -> None:
        ends = {"input_tokens": 23_000, "output_tokens": 1_000, "iterations": listed}
        assert usage_of({"input_tokens": 23_000, "output_tokens": 1}, ends).usage.buckets() == wanted

    def test_empty_list_keeps_the_iterations_before(self) -> None:
        told = {"output_tokens": 5, "iterations": [entry("message", 10, 5), entry("compaction", 20, 7)]}
        found = usage_of({"input_tokens": 10}, told, {"output_tokens": 5, "iterations": []})
        assert found.usage.buckets() == buckets(30, 12)

    def test_advisor_is_a_part_of_its_own(self) -> None:
        listed = [entry("message", 10, 5), entry("advisor_message", 2543, 18, model="adviser")]
        usage = usage_of({"input_tokens": 10}, {"output_tokens": 5, "iterations": listed})
        assert [(part.model, part.usage.input, part.usage.output) for part in usage.parts] == [("adviser", 2543, 18)]
        assert usage.usage.buckets() == buckets(10, 5)

    @pytest.mark.parametrize(
        ("listed", "wanted"),
        [
            ([entry("message", 3, 5, cache_creation_input_tokens=10_054)], buckets(3, 5, write=238, hour=9_816)),
            ([entry("message", 3, 5, cache_creation_input_tokens=54,
                    cache_creation={"ephemeral_5m_input_tokens": 54, "ephemeral_1h_input_tokens": 0}),
              entry("message", 3, 5, cache_creation_input_tokens=10_000)], buckets(6, 10, write=238, hour=9_816)),
            ([entry("message", 3, 5), entry("compaction", 1, 1, cache_creation_input_tokens=20)],
             buckets(4, 6, hour=20)),
        ],
    )  # fmt: skip
    def test_split_beside_the_iterations_is_theirs(self, listed: object, wanted: object) -> None:
        split = {"ephemeral_5m_input_tokens": 238, "ephemeral_1h_input_tokens": 9_816}
        first = {"input_tokens": 3, "cache_creation_input_tokens": 10_054, "cache_creation": split}
        assert usage_of(first, {"output_tokens": 5, "iterations": listed}).usage.buckets() == wanted

    def test_own_model_by_another_name_is_no_hop(self) -> None:
        listed = [entry("message", 408, 7, model="vendor.public:1"), entry("fallback_message", 4, 9, model="other")]
        usage = usage_of({"input_tokens": 4}, {"output_tokens": 9, "iterations": listed})
        assert ([part.model for part in usage.parts], usage.usage.buckets()) == (["other"], buckets(408, 7))

    def test_thinking_of_a_serving_fallback_is_its_own(self) -> None:
        listed = [entry("message", 408, 0), entry("fallback_message", 412, 264, model="other")]
        ends = {"output_tokens": 264, "iterations": listed, "output_tokens_details": {"thinking_tokens": 200}}
        usage = usage_of({"input_tokens": 412}, ends)
        assert [part.usage.reasoning for part in usage.parts] == [200]
        assert (usage.usage.buckets(), usage.usage.reasoning, usage.flags) == (buckets(408), None, ())

    def test_serving_fallback_is_priced_as_its_model(self) -> None:
        listed = [entry("message", 535, 8, model="public-model"), entry("fallback_message", 412, 264, model="other")]
        usage = usage_of({"input_tokens": 412}, {"output_tokens": 264, "iterations": listed})
        assert [(part.model, part.usage.input, part.usage.output) for part in usage.parts] == [("other", 412, 264)]
        assert usage.usage.buckets() == buckets(535, 8)

    def test_hop_between_is_priced_as_its_model(self) -> None:
        listed = [
            entry("message", 1, 1, model="public-model-20260601"),
            entry("message", 2, 2, model="between"),
            entry("fallback_message", 3, 3, model="last"),
        ]
        usage = usage_of({"input_tokens": 3}, {"output_tokens": 3, "iterations": listed})
        assert {part.model: part.usage.output for part in usage.parts} == {"last": 3, "between": 2}
        assert usage.usage.buckets() == buckets(1, 1)

    @pytest.mark.parametrize(("stop", "output"), [("refusal", 20), ("end_turn", 0)])
    def test_declined_fallback_is_not_billed(self, stop: str, output: int) -> None:
        listed = [entry("message", 535, 8), entry("fallback_message", 412, output, model="other")]
        usage = usage_of({"input_tokens": 412}, {"output_tokens": output, "iterations": listed}, stop=stop)
        assert (usage.parts, usage.usage.buckets()) == ((), buckets(535, 8))

    def test_reasoning_and_server_tools(self) -> None:
        tools = {"web_search_requests": 5, "web_fetch_requests": 0}
        ends = {"output_tokens": 50, "output_tokens_details": {"thinking_tokens": 30}, "server_tool_use": tools}
        usage = usage_of({"input_tokens": 10, "output_tokens": 1}, ends)
        assert (usage.usage.reasoning, usage.usage.server_tools) == (30, {"web_search": 5})

    def test_server_tools_in_the_vendors_spelling(self) -> None:
        ends = {"output_tokens": 5, "server_tool_use_details": {"web_search_requests": 2}}
        usage = usage_of({"input_tokens": 10}, ends)
        assert (usage.usage.server_tools, usage.flags) == ({"web_search": 2}, ())

    @pytest.mark.parametrize(
        ("told", "tier"),
        [({"service_tier": "priority"}, "priority"), ({"service_tier": None}, ""), ({}, ""),
         ({"service_tier": "standard", "speed": "fast"}, "fast")],
    )  # fmt: skip
    def test_tier_is_the_served_one(self, told: dict[str, Any], tier: str) -> None:
        assert usage_of({"input_tokens": 1, **told}, {"output_tokens": 1}).service_tier == tier

    def test_raw_usage_is_kept(self) -> None:
        first, last = {"input_tokens": 1, "output_tokens": 1}, {"output_tokens": 3}
        assert usage_of(first, {"output_tokens": 2}, last).raw == {"message_start": first, "message_delta": last}

    @pytest.mark.parametrize(
        ("first", "last", "flags"),
        [
            ({"input_tokens": 5}, {"output_tokens": 5}, ()),
            ({"input_tokens": 5}, {"output_tokens": 0}, ("zero_with_output",)),
            ({"input_tokens": -5}, {"output_tokens": 5}, ("negative:input",)),
            ({"input_tokens": 10**13}, {"output_tokens": 5}, ("too_large:input",)),
            ({"input_tokens": 5, "novel_tokens": 7, "idle_tokens": 0}, {"output_tokens": 5}, ("unknown:novel_tokens",)),
            ({"input_tokens": 5, "cache_creation": {"ephemeral_9h_input_tokens": 7}}, {"output_tokens": 5},
             ("unknown:cache_creation.ephemeral_9h_input_tokens",)),
            (None, {"output_tokens": 5}, (INPUT_ABSENT,)),
            (None, {"iterations": [entry("message", 5, 5)]}, ()),
            ({"input_tokens": 5}, {"output_tokens": 5, "iterations": [entry("message", 5, 5), entry("grader", 2, 2)]},
             ("unknown:iterations.grader",)),
            ({"input_tokens": 5, "output_tokens": 2}, {"output_tokens": None}, (OUTPUT_PLACEHOLDER,)),
        ],
    )  # fmt: skip
    def test_flags_for_the_operator(self, first: dict[str, Any], last: dict[str, Any], flags: tuple[str, ...]) -> None:
        assert usage_of(first, last).flags == flags

    def test_placeholder_is_no_report(self) -> None:
        usage = stream(start({"input_tokens": 9, "output_tokens": 1}), TEXT).usage
        assert usage is not None
        assert (usage.usage.input, usage.flags) == (9, (OUTPUT_PLACEHOLDER,))

    def test_starting_zeros_are_no_report(self) -> None:
        usage = stream(start({"input_tokens": 0, "output_tokens": 0}), TEXT).usage
        assert usage is not None
        assert set(usage.flags) == {OUTPUT_PLACEHOLDER, INPUT_ABSENT}

    @pytest.mark.parametrize("first", [None, {}, {"input_tokens": None}, {"service_tier": "standard"}, [], "none"])
    def test_nothing_reported_is_none(self, first: object) -> None:
        assert stream(start(first), TEXT, STOP).usage is None  # type: ignore[arg-type]


class TestStream:
    def test_bytes_go_out_as_they_came(self) -> None:
        events = [start({"input_tokens": 1}), framed("ping"), TEXT, framed("novelty", x=[1.50]), delta(), STOP]
        assert stream(*events).raw == b"".join(events)

    @pytest.mark.parametrize(
        ("reason", "ended"),
        [("end_turn", "complete"), ("pause_turn", "complete"), ("tool_use", "complete"), ("stop_sequence", "complete"),
         ("max_tokens", "incomplete"), ("refusal", "incomplete"), ("model_context_window_exceeded", "incomplete"),
         (None, "complete")],
    )  # fmt: skip
    def test_stop_reason_says_how_it_ended(self, reason: str | None, ended: str) -> None:
        assert stream(start(), TEXT, delta(stop=reason), STOP).ended == ended

    @pytest.mark.parametrize(
        "event",
        [
            TEXT,
            text("Hmm", "thinking_delta", "thinking"),
            text('{"a', "input_json_delta", "partial_json"),
            text("Summary", "compaction_delta", "content"),
            framed("content_block_delta", index=0, delta={"type": "compaction_delta", "encrypted_content": "eA=="}),
            framed("content_block_start", index=0, content_block={"type": "tool_use", "name": "look", "input": {}}),
            framed("content_block_start", index=0, content_block={"type": "server_tool_use", "name": "web_search"}),
            framed("content_block_start", index=0, content_block={"type": "web_search_tool_result", "content": []}),
            framed("content_block_start", index=0, content_block={"type": "redacted_thinking", "data": "eA=="}),
            framed("content_block_start", index=0, content_block={"type": "text", "text": "At once"}),
        ],
    )
    def test_real_output(self, event: bytes) -> None:
        played = stream(start(), event)
        assert (played.outputs, played.meter.produced) == ([False, True], True)

    @pytest.mark.parametrize(
        "event",
        [
            framed("ping"),
            text(""),
            text("\u200b\u200b"),
            text("", "input_json_delta", "partial_json"),
            text("c2lnbg==", "signature_delta", "signature"),
            framed("content_block_delta", index=0, delta={"type": "citations_delta", "citation": {"title": "A page"}}),
            framed("content_block_start", index=0, content_block={"type": "text", "text": ""}),
            framed("content_block_start", index=0, content_block={"type": "thinking", "thinking": "", "signature": ""}),
            framed("content_block_start", index=0, content_block={"type": "compaction", "content": None}),
            framed("content_block_delta", index=0, delta=None),
            framed("content_block_delta", index=0, delta={"type": "text_delta", "text": 7}),
            framed("content_block_delta", index=0, delta={"type": {}, "text": "odd"}),
            b'data: {"type":["odd"]}\n\n',
            b"data: 17\n\n",
            b"data: no JSON\n\n",
        ],
    )
    def test_no_output(self, event: bytes) -> None:
        played = stream(start(), event)
        assert (played.outputs, played.meter.produced, played.texts) == ([False, False], False, {})

    def test_zero_width_filler_is_dropped(self) -> None:
        assert stream(text("\u200b"), text("a\u200b"), text("\u200d")).raw == text("a\u200b") + text("\u200d")

    @pytest.mark.parametrize("tokens", [50, None])
    def test_hidden_thinking_shows_by_its_count(self, tokens: int | None) -> None:
        thought = {"type": "thinking_delta", "thinking": "", "estimated_tokens": tokens}
        played = stream(start(), framed("content_block_delta", index=0, delta=thought))
        assert (played.outputs, played.texts) == ([False, tokens is not None], {})

    def test_content_of_the_start_is_output(self) -> None:
        content = [{"type": "code_execution_tool_result"}, {"type": "tool_use", "name": "look", "input": {"a": 1}}]
        events = [start({"input_tokens": 0, "output_tokens": 0}, content=content, stop_reason="max_tokens"), STOP]
        played = stream(*events)
        assert (played.outputs, played.ended, played.raw) == ([True, False], "incomplete", b"".join(events))
        assert list(played.texts.values()) == ["look", '{"a":1}']

    def test_texts_are_told_apart(self) -> None:
        tool = {"type": "tool_use", "name": "look", "input": {}}
        events = [
            text("Hm", "thinking_delta", "thinking"), text("mm", "thinking_delta", "thinking"), text("Hel", index=1),
            text("lo", index=1), text("c2lnbg==", "signature_delta", "signature"),
            framed("content_block_start", index=2, content_block=tool),
            text("{}", "input_json_delta", "partial_json", 2),
        ]  # fmt: skip
        assert list(stream(*events).texts.values()) == ["Hmmm", "Hello", "look", "{}"]

    def test_texts_are_taken_once(self) -> None:
        meter = messages.Meter(MeterOptions("m"))
        play(lambda _: meter, [TEXT])
        assert meter.take_texts() == {}

    def test_error_event_passes_and_ends(self) -> None:
        error = framed("error", error={"type": "overloaded_error", "message": "Overloaded"})
        played = stream(start(), TEXT, error, STOP)
        assert played.meter.error is not None
        assert (played.meter.error.status, played.meter.error.message) == (503, "Overloaded")
        assert (played.ended, played.raw) == ("error", start() + TEXT + error)

    @pytest.mark.parametrize(
        "data",
        [
            b'{"error":{"type":"rate_limit_error","message":"Slow"}}',
            b'{"type":"error","error":{"type":"rate_limit_error","message":"Slow"}}',
            b'{"error":"Slow","code":429}',
            b'{"object":"error","message":"Slow","type":"RateLimitError"}',
            b'{"code":"Throttling","message":"Slow","request_id":"1"}',
        ],
    )
    def test_error_without_its_line_gets_it(self, data: bytes) -> None:
        """The SDKs pass over an event without a line: a half answer would look whole."""
        played = stream(start(), TEXT, b"data: " + data + b"\n\n", STOP)
        assert (played.ended, played.raw) == ("error", start() + TEXT + b"event: error\ndata: " + data + b"\n\n")
        assert played.meter.error is not None
        assert (played.meter.error.status, played.meter.error.message) == (429, "Slow")

    def test_error_with_another_line_gets_its_own(self) -> None:
        played = stream(b'event: oops\ndata: {"error":\ndata: {"message":"Slow"}}\n\n')
        assert (played.ended, played.raw) == ("error", b'event: error\ndata: {"error":\ndata: {"message":"Slow"}}\n\n')

    @pytest.mark.parametrize(
        ("data", "status", "message"),
        [
            (b"upstream exploded", 502, "upstream exploded"),
            (b'"upstream exploded"', 502, "upstream exploded"),
            (b'{"type":"overloaded_error","message":"Overloaded"}', 503, "Overloaded"),
            (b'[{"error":{"code":429,"message":"Slow"}}]', 429, "Slow"),
        ],
    )
    def test_error_line_is_an_error_whatever_its_data(self, data: bytes, status: int, message: str) -> None:
        error = b"event: error\ndata: " + data + b"\n\n"
        played = stream(start(), TEXT, error, STOP)
        assert (played.ended, played.raw) == ("error", start() + TEXT + error)
        assert played.meter.error is not None
        assert (played.meter.error.status, played.meter.error.message) == (status, message)

    def test_end_without_terminal_is_a_cut(self) -> None:
        played = stream(start({"input_tokens": 1}), TEXT, delta({"output_tokens": 5}))
        assert played.ended == "cut"
        assert played.usage is not None
        assert played.usage.flags == ()

    def test_done_is_no_terminal(self) -> None:
        played = stream(start(), TEXT, b"data: [DONE]\n\n")
        assert (played.ended, played.raw) == ("cut", start() + TEXT)

    def test_hollow_stream_tells(self) -> None:
        played = stream(start(), STOP)
        assert (played.ended, played.meter.produced, played.usage) == ("complete", False, None)

    def test_model_is_renamed(self) -> None:
        listed = [entry("message", 1, 1, model="upstream-model"), entry("advisor_message", 1, 1, model="adviser")]
        events = [start({"input_tokens": 1}), TEXT, delta({"output_tokens": 1, "iterations": listed}), STOP]
        played = stream(*events, rename_from="upstream-model")
        assert played.raw == b"".join(events).replace(b"upstream-model", b"public-model")

    def test_snapshot_name_of_the_same_model_is_renamed(self) -> None:
        listed = [entry("message", 1, 1, model="upstream-model-20260601")]
        events = [start({}, model="upstream-model-20260601"), delta({"output_tokens": 1, "iterations": listed})]
        assert b"upstream" not in stream(*events, rename_from="upstream-model").raw

    def test_empty_model_stays_empty(self) -> None:
        event = start({}, model="")
        assert stream(event, rename_from="upstream-model").raw == event

    def test_declining_model_is_renamed(self) -> None:
        block = {"type": "fallback", "from": {"model": "upstream-model"}, "to": {"model": "other"}}
        event = framed("content_block_start", index=0, content_block=block)
        played = stream(event, rename_from="upstream-model")
        assert played.raw == event.replace(b"upstream-model", b"public-model")

    def test_model_of_a_hop_keeps_its_name(self) -> None:
        events = [
            framed("content_block_start", index=at, content_block={"type": "fallback", "from": {"model": name}})
            for at, name in enumerate(("upstream-model-20260601", "between"))
        ]
        raw = b"".join(events).replace(b"upstream-model-20260601", b"public-model")
        assert stream(*events, rename_from="upstream-model").raw == raw

    def test_serving_model_keeps_its_name_in_the_usage(self) -> None:
        listed = [entry("message", 1, 1, model="upstream-model"), entry("fallback_message", 1, 1, model="serving")]
        ends = delta({"output_tokens": 1, "iterations": listed})
        raw = stream(start({}, model="serving"), ends, rename_from="upstream-model").raw
        assert raw == start({}, model="public-model") + ends.replace(b"upstream-model", b"public-model")

    def test_recommended_model_is_renamed(self) -> None:
        event = delta({}, "refusal", stop_details={"type": "refusal", "recommended_model": "upstream-model"})
        assert b"upstream" not in stream(event, rename_from="upstream-model").raw

    def test_container_ids_are_noted(self) -> None:
        played = stream(start({}, container={"id": "container_1"}), delta({}, container={"id": "container_2"}))
        assert played.meter.object_ids == ["container_1", "container_2"]

    @settings(max_examples=80, deadline=None)
    @given(places=st.sets(st.integers(1, 800)), line_end=st.sampled_from([b"\n", b"\r\n", b"\r"]))
    def test_any_split_is_the_same(self, places: set[int], line_end: bytes) -> None:
        events = [start({"input_tokens": 1}), text("世界 🎈"), framed("ping"), delta({"output_tokens": 3}), STOP]
        data = b"".join(events).replace(b"\n", line_end)
        whole = play(messages.Meter, [data], rename_from="upstream-model")
        places -= {len(data) - 1}  # a terminal is whole at the CR of its last CRLF
        assert play(messages.Meter, cut_at(data, places), rename_from="upstream-model").facts() == whole.facts()
        assert whole.raw == data.replace(b"upstream-model", b"public-model")


class TestErrors:
    def test_cut_stream_says_exactly_this(self) -> None:
        assert messages.Meter(MeterOptions("m")).error_event(CUT) == (
            b'event: error\ndata: {"type":"error","error":{"type":"api_error",'
            b'"message":"Response stream interrupted, please retry"}}\n\n'
        )

    def test_error_body_has_the_request_id(self) -> None:
        error = GatewayError(404, "model_not_found", "not_found_error", "No such model: 模型", "model")
        assert orjson.loads(messages.error_body(error, "req_1")) == {
            "type": "error",
            "error": {"type": "not_found_error", "message": "No such model: 模型"},
            "request_id": "req_1",
        }

    def test_provider_s_error_is_read(self) -> None:
        error = messages.read_error(529, b'{"type":"error","error":{"type":"overloaded_error","message":"Busy"}}')
        assert (error.status, error.message, error.kind) == (529, "Busy", "overloaded_error")


class TestCount:
    @pytest.mark.parametrize("raw", [b"", b"<html>", b"{}", b'{"error":{"message":"down"}}', b'{"input_tokens":"9"}'])
    def test_what_counts_nothing_is_no_answer(self, raw: bytes) -> None:
        assert messages.read_count(raw, MeterOptions("m")).ended == "error"

    def test_count_bears_the_public_name(self) -> None:
        raw = b'{"input_tokens": 9, "model":"upstream-model"}'
        assert messages.read_count(raw, MeterOptions("m")).raw == raw
        found = messages.read_count(raw, MeterOptions("public-model", "upstream-model"))
        assert (found.ended, found.raw) == ("complete", raw.replace(b"upstream-model", b"public-model"))


class TestAnswer:
    ANSWER = {
        "id": "msg_1", "type": "message", "model": "upstream-model", "stop_reason": "end_turn",
        "content": [{"type": "text", "text": "Hello"}, {"type": "tool_use", "name": "look", "input": {"a": 1}}],
        "usage": {"input_tokens": 9, "output_tokens": 14}, "container": {"id": "container_1"},
    }  # fmt: skip

    def test_answer_is_read(self) -> None:
        raw = orjson.dumps(self.ANSWER)
        answer = messages.read_answer(raw, MeterOptions("public-model"))
        assert (answer.raw, answer.ended, answer.object_ids) == (raw, "complete", ["container_1"])
        assert answer.usage is not None
        assert (answer.usage.usage.buckets(), answer.usage.flags) == (buckets(9, 14), ())
        assert answer.usage.raw == self.ANSWER["usage"]
        assert answer.texts == ["Hello", "look", '{"a":1}']

    def test_model_alone_is_renamed(self) -> None:
        raw = orjson.dumps({**self.ANSWER, "usage": {"output_tokens": 1, "iterations": [{"model": "upstream-model"}]}})
        answer = messages.read_answer(raw, MeterOptions("public-model", "upstream-model"))
        assert answer.raw == raw.replace(b"upstream-model", b"public-model")

    def test_declining_model_is_renamed(self) -> None:
        blocks = [{"type": "fallback", "from": {"model": name}} for name in ("upstream-model", "between")]
        usage = {"output_tokens": 1, "iterations": [entry("fallback_message", 1, 1, model="serving")]}
        raw = orjson.dumps({**self.ANSWER, "model": "serving", "content": blocks, "usage": usage})
        answer = messages.read_answer(raw, MeterOptions("public-model", "upstream-model"))
        assert answer.raw == raw.replace(b"upstream-model", b"public-model").replace(b"serving", b"public-model", 1)

    def test_content_may_be_a_text(self) -> None:
        answer = messages.read_answer(
            orjson.dumps({**self.ANSWER, "content": "Hello", "usage": None}), MeterOptions("m")
        )
        assert (answer.ended, answer.texts) == ("complete", ["Hello"])

    def test_length_is_incomplete(self) -> None:
        raw = orjson.dumps({**self.ANSWER, "stop_reason": "max_tokens"})
        assert messages.read_answer(raw, MeterOptions("m")).ended == "incomplete"

    def test_answer_without_usage_has_texts(self) -> None:
        answer = messages.read_answer(orjson.dumps({**self.ANSWER, "usage": None}), MeterOptions("m"))
        assert (answer.ended, answer.usage, len(answer.texts)) == ("complete", None, 3)

    @pytest.mark.parametrize(
        "raw",
        [b"", b" \n", b"<html>bad gateway</html>", b'{"type":"message","content":[{"type":"te', b"[]",
         b'{"type":"message","content":[]}',
         b'{"type":"message","content":[],"usage":{"input_tokens":0,"output_tokens":0}}',
         b'{"type":"error","error":{"type":"api_error","message":"Down"}}'],
    )  # fmt: skip
    def test_hollow_answer_is_an_error(self, raw: bytes) -> None:
        answer = messages.read_answer(raw, MeterOptions("m"))
        assert answer.ended == "error"
        assert answer.error is not None
        assert answer.error.status == 502
