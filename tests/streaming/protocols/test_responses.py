from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing.usage import INPUT_ABSENT, OUTPUT_PLACEHOLDER, ReportedUsage
from streaming.protocols import responses
from streaming.protocols.meter import INTERRUPTED, BadRequest, GatewayError, MeterOptions
from tests.streaming.protocols.playback import Played, cut_at, events_of, framed, play

ASKED = {"model": "gpt-test", "input": "Hi"}
USAGE = {"input_tokens": 14, "output_tokens": 58, "total_tokens": 72}
CUT = GatewayError(502, "upstream_error", "api_error", INTERRUPTED)


def response(status: str = "in_progress", **more: Any) -> dict[str, Any]:
    return {
        "id": "resp_1", "object": "response", "created_at": 1790000000, "status": status, "model": "upstream-model",
        "output": [], "error": None, "usage": None, **more,
    }  # fmt: skip


def created(**more: Any) -> bytes:
    return framed("response.created", sequence_number=0, response=response(**more))


def end(status: str = "completed", usage: dict[str, Any] | None = None, number: int = 9, **more: Any) -> bytes:
    kind = f"response.{status}"
    return framed(kind, sequence_number=number, response=response(status, usage=usage, **more))


def text(delta: Any, kind: str = "response.output_text.delta", index: int = 0, **more: Any) -> bytes:
    return framed(kind, item_id="item_1", output_index=index, content_index=0, delta=delta, **more)


def item(state: str, index: int = 0, **fields: Any) -> bytes:
    return framed(f"response.output_item.{state}", output_index=index, item=fields)


TEXT = text("Hello")
CALL = {"type": "function_call", "id": "fc_1", "name": "look", "arguments": ""}
SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "a"}}
MESSAGE = {"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": "Hello"}]}


def stream(*events: bytes, **options: Any) -> Played:
    return play(responses.Meter, events, **options)


def usage_of(usage: dict[str, Any] | None, options: dict[str, Any] | None = None, **more: Any) -> ReportedUsage:
    found = stream(created(), TEXT, end("completed", usage, **more), **(options or {})).usage
    assert found is not None
    return found


def buckets(given: int = 0, output: int = 0, read: int = 0, write: int = 0, hour: int = 0) -> dict[str, int]:
    return {"input": given, "cache_read": read, "cache_write": write, "cache_write_1h": hour, "output": output}


def details(**named: Any) -> dict[str, Any]:
    return {**USAGE, "input_tokens_details": named}


class TestRequest:
    def test_reads_what_the_gateway_needs(self) -> None:
        body = {
            **ASKED,
            "stream": True,
            "max_output_tokens": 50,
            "previous_response_id": "resp_0",
            "service_tier": "flex",
        }
        facts = responses.read_request(orjson.dumps(body))
        assert (facts.model, facts.stream, facts.max_output, facts.service_tier) == ("gpt-test", True, 50, "flex")
        assert facts.stored == {"previous_response_id": ("resp_0",)}

    def test_background_is_refused(self) -> None:
        with pytest.raises(BadRequest) as refused:
            responses.read_request(orjson.dumps({**ASKED, "background": True}))
        assert refused.value.param == "background"

    @pytest.mark.parametrize("background", [False, None])
    def test_foreground_is_taken(self, background: object) -> None:
        assert responses.read_request(orjson.dumps({**ASKED, "background": background})).model == "gpt-test"

    @pytest.mark.parametrize("given", [{}, {"input": None}, {"input": ""}, {"input": []}, {"input": 7}, {"input": {}}])
    def test_input_is_required(self, given: dict[str, Any]) -> None:
        with pytest.raises(BadRequest) as refused:
            responses.read_request(orjson.dumps({"model": "gpt-test", **given}))
        assert refused.value.param == "input"

    @pytest.mark.parametrize(
        "elsewhere", [{"prompt": {"id": "pmpt_1"}}, {"previous_response_id": "resp_0"}, {"conversation": "conv_1"}]
    )
    def test_input_may_be_elsewhere(self, elsewhere: dict[str, Any]) -> None:
        assert responses.read_request(orjson.dumps({"model": "gpt-test", **elsewhere})).stored

    @pytest.mark.parametrize("name", ["model", "stream", "max_output_tokens"])
    def test_repeated_field_is_refused(self, name: str) -> None:
        raw = orjson.dumps({**ASKED, "stream": True, "max_output_tokens": 5})[:-1] + b',"' + name.encode() + b'":1}'
        with pytest.raises(BadRequest) as refused:
            responses.read_request(raw)
        assert refused.value.param == name

    def test_only_the_model_is_spliced(self) -> None:
        raw = b'{"input": "caf\\u00e9", "model" : "gpt-test", "top_p": 1.0}'
        facts = responses.read_request(raw)
        sent = responses.prepare_request(raw, facts, upstream_model="vendor/gpt", ask_usage=True)
        assert sent == raw.replace(b"gpt-test", b"vendor/gpt")


class TestInputContent:
    def test_all_texts_are_countable(self) -> None:
        body = {
            "instructions": "instructions",
            "input": [
                {"role": "user", "content": "plain"},
                {"role": "user", "content": [{"type": "input_text", "text": "part"}]},
                {
                    "type": "reasoning",
                    "summary": [{"type": "summary_text", "text": "thought"}],
                    "encrypted_content": "eA==",
                },
                {"type": "function_call", "name": "look", "arguments": "{}", "call_id": "call_1"},
                {"type": "function_call_output", "call_id": "call_1", "output": "result"},
                {"role": "user", "content": [{"type": "input_file", "file_data": "data:application/pdf;base64,eA=="}]},
            ],
            "tools": [{"type": "function", "name": "look"}],
            "text": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
        }
        assert responses.input_content(body).texts == [
            "instructions", "plain", "part", "thought", "look", "{}", "result", '{"type":"function","name":"look"}',
            '{"type":"object"}',
        ]  # fmt: skip

    def test_images_are_counted_by_detail(self) -> None:
        image = {"type": "input_image", "image_url": "https://example.com/a.png"}
        content = [{**image, "detail": "low"}, image, {"type": "input_image", "file_id": "file_1"}]
        found = responses.input_content({"input": [{"role": "user", "content": content}]})
        assert (found.image_tokens, found.texts) == (85 + 765 + 765, [])

    @pytest.mark.parametrize("body", [{}, {"input": 7}, {"input": [None, 3, []]}, {"tools": {}, "text": "x"}])
    def test_odd_bodies_are_no_error(self, body: dict[str, Any]) -> None:
        assert responses.input_content(body).image_tokens == 0


class TestUsage:
    @pytest.mark.parametrize(
        ("usage", "wanted"),
        [
            pytest.param(USAGE, buckets(14, 58), id="plain"),
            pytest.param(details(cached_tokens=10, cache_write_tokens=3), buckets(1, 58, read=10, write=3), id="cache"),
            pytest.param(details(cached_tokens=None), buckets(14, 58), id="null-detail"),
            pytest.param({**USAGE, "input_tokens_details": None}, buckets(14, 58), id="null-details"),
            pytest.param({**USAGE, "prompt_cache_hit_tokens": 6}, buckets(8, 58, read=6), id="vendor-cache"),
            pytest.param({**USAGE, "cached_tokens": 6}, buckets(8, 58, read=6), id="top-level-cache"),
            pytest.param({**details(cached_tokens=0), "cached_tokens": 6}, buckets(14, 58), id="standard-first"),
            pytest.param({"prompt_tokens": 5, "completion_tokens": 6}, buckets(5, 6), id="chat-spelling"),
            pytest.param(
                {"prompt_tokens": 100, "completion_tokens": 50, "prompt_tokens_details": {"cached_tokens": 80}},
                buckets(20, 50, read=80), id="chat-spelling-of-details",
            ),
            pytest.param(
                details(cache_read_input_tokens=10, cache_creation_input_tokens=2), buckets(2, 58, read=10, write=2),
                id="anthropic-spelling",
            ),
            pytest.param(
                details(cached_tokens=3, cache_creation_tokens=5,
                        cache_creation_token_details={"ephemeral_5m_input_tokens": 1, "ephemeral_1h_input_tokens": 4}),
                buckets(6, 58, read=3, write=1, hour=4), id="litellm-split",
            ),
            pytest.param(details(cached_tokens=-3), buckets(14, 58), id="negative-raises-nothing"),
            pytest.param({"input_tokens": 0, "output_tokens": 0}, buckets(), id="zeros"),
            pytest.param({**USAGE, "output_tokens_details": {"reasoning_tokens": 50}}, buckets(14, 58), id="inside"),
            pytest.param(
                {**USAGE, "total_tokens": 122, "output_tokens_details": {"reasoning_tokens": 50}}, buckets(14, 108),
                id="outside-by-the-total",
            ),
        ],
    )  # fmt: skip
    def test_buckets_are_disjoint(self, usage: dict[str, Any], wanted: object) -> None:
        assert usage_of(usage).usage.buckets() == wanted

    def test_reasoning_outside_by_setting(self) -> None:
        usage = {**USAGE, "output_tokens_details": {"reasoning_tokens": 50}}
        found = usage_of(usage, {"reasoning_outside": True}).usage
        assert (found.output, found.reasoning) == (108, 50)

    @pytest.mark.parametrize(("usage", "reasoning"), [(USAGE, None), ({**USAGE, "reasoning_tokens": 3}, 3)])
    def test_untold_reasoning_is_none(self, usage: dict[str, Any], reasoning: int | None) -> None:
        assert usage_of(usage).usage.reasoning == reasoning

    @pytest.mark.parametrize(
        ("usage", "flags"),
        [
            (USAGE, ()),
            ({**USAGE, "cost": 0.1, "cost_in_usd_ticks": 5, "is_byok": True, "num_sources_used": 3}, ()),
            ({**USAGE, "novel": 4, "idle": 0}, ("unknown:novel",)),
            (details(cache_write_tokens_details={"ttl_12h_tokens": 4}),
             ("unknown:input_tokens_details.cache_write_tokens_details.ttl_12h_tokens",)),
            (details(cached_tokens=20), ("negative:input",)),
            ({"input_tokens": 1, "output_tokens": 0}, ("zero_with_output",)),
            ({"input_tokens": 1}, (OUTPUT_PLACEHOLDER,)),
            ({"output_tokens": 1}, (INPUT_ABSENT,)),
        ],
    )  # fmt: skip
    def test_flags_for_the_operator(self, usage: dict[str, Any], flags: tuple[str, ...]) -> None:
        assert usage_of(usage).flags == flags

    def test_unpriced_image_tokens_are_flagged(self) -> None:
        told = {"image_gen": {"input_tokens": 5, "output_tokens": 0}, "web_search": {"num_requests": 1}}
        found = usage_of(USAGE, tool_usage=told)
        assert (found.flags, found.usage.server_tools) == (
            ("unknown:tool_usage.image_gen.input_tokens",),
            {"web_search": 1},
        )

    @pytest.mark.parametrize(
        ("usage", "more", "tools"),
        [
            ({}, {"tool_usage": {"web_search": {"num_requests": 3}, "image_gen": {}}}, {"web_search": 3}),
            ({"server_tool_use_details": {"web_search_requests": 2}}, {}, {"web_search": 2}),
            ({"server_side_tool_usage_details": {"web_search_calls": 2, "x_search_calls": 1, "mcp_calls": 0}}, {},
             {"web_search": 2, "x_search": 1}),
            ({}, {"output": [SEARCH, SEARCH]}, {"web_search": 2}),
            ({}, {"output": [SEARCH], "tool_usage": {"web_search": {"num_requests": 0}}}, {}),
            ({"server_tool_use": {"web_search_requests": 0}}, {"output": [SEARCH]}, {}),
            ({"server_tool_use": {"web_search_requests": None}}, {"output": [SEARCH]}, {"web_search": 1}),
            ({}, {"output": [{"type": "openrouter:web_search", "id": "ws_2"}]}, {"web_search": 1}),
            ({}, {"output": [{**SEARCH, "action": {"type": "open_page"}}]}, {}),
        ],
    )  # fmt: skip
    def test_server_tools_are_told_or_counted(self, usage: dict[str, Any], more: dict[str, Any], tools: object) -> None:
        assert usage_of({**USAGE, **usage}, **more).usage.server_tools == tools

    def test_searches_of_a_cut_stream_are_kept(self) -> None:
        played = stream(created(), item("added", **SEARCH), item("done", **SEARCH), item("done", 1, **SEARCH))
        assert played.usage is not None
        assert played.usage.usage.server_tools == {"web_search": 2}
        assert set(played.usage.flags) == {OUTPUT_PLACEHOLDER, INPUT_ABSENT}

    def test_search_counts_once_though_repeated(self) -> None:
        played = stream(item("done", **SEARCH), end("completed", USAGE, output=[SEARCH]))
        assert played.usage is not None
        assert played.usage.usage.server_tools == {"web_search": 1}

    def test_tier_is_the_served_one(self) -> None:
        played = stream(created(service_tier="auto"), TEXT, end("completed", USAGE, service_tier="default"))
        assert played.usage is not None
        assert played.usage.service_tier == "default"

    @pytest.mark.parametrize("usage", [None, {}, {"input_tokens": None}, "odd"])
    def test_nothing_reported_is_none(self, usage: Any) -> None:
        assert stream(created(), TEXT, end("failed", usage)).usage is None


class TestStream:
    def test_bytes_go_out_as_they_came(self) -> None:
        events = [created(), framed("response.novelty", x=1.50), TEXT, b"data: 17\n\n", end("completed", USAGE)]
        assert stream(*events).raw == b"".join(events)

    @pytest.mark.parametrize(
        ("status", "ended"), [("completed", "complete"), ("incomplete", "incomplete"), ("failed", "error")]
    )
    def test_terminal_events_end(self, status: str, ended: str) -> None:
        assert stream(created(), TEXT, end(status, USAGE), TEXT).ended == ended

    def test_event_line_is_not_needed(self) -> None:
        bare = [event.partition(b"\n")[2] for event in (created(), TEXT, end("completed", USAGE))]
        played = stream(*bare)
        assert (played.ended, played.raw, played.text) == ("complete", b"".join(bare), "Hello")

    @pytest.mark.parametrize(
        "event",
        [
            TEXT,
            text("a", "response.refusal.delta"),
            text("a", "response.reasoning_text.delta"),
            text("a", "response.reasoning_summary_text.delta"),
            text("{", "response.function_call_arguments.delta"),
            text("{", "response.mcp_call_arguments.delta"),
            text("a", "response.custom_tool_call_input.delta"),
            text("a", "response.code_interpreter_call_code.delta"),
            text("a", "response.shell_call_command.delta"),
            text("+a", "response.apply_patch_call_operation_diff.delta"),
            text("a", "response.compaction.delta"),
            text("eA==", "response.audio.delta"),
            text({"stdout": "a", "stderr": None}, "response.shell_call_output_content.delta"),
            framed("response.image_generation_call.partial_image", partial_image_b64="eA=="),
            framed("response.output_text.done", output_index=0, text="Whole"),
            item("added", **CALL),
            item("added", type="custom_tool_call", name="look", input=""),
            item("added", type="web_search_call", status="in_progress"),
            item("added", type="openrouter:web_search", status="in_progress"),
            item("added", type="mcp_approval_request", name="pay", arguments='{"a":1}'),
            item("done", type="program", code="const a = 1;"),
            item("done", type="compaction", encrypted_content="eA=="),
            item("done", type="reasoning", summary=[], encrypted_content="eA=="),
            item("done", **MESSAGE),
            end("completed", output=[MESSAGE]),
        ],
    )
    def test_real_output(self, event: bytes) -> None:
        played = stream(created(), event)
        assert (played.outputs, played.meter.produced) == ([False, True], True)

    @pytest.mark.parametrize(
        "event",
        [
            text(""),
            text("\u200b"),
            text(None),
            text({"stdout": ""}, "response.shell_call_output_content.delta"),
            framed("response.in_progress", response=response()),
            framed("response.web_search_call.searching", output_index=0),
            framed("response.compaction.compacting", output_index=0),
            framed("response.content_part.added", part={"type": "output_text", "text": ""}),
            framed("response.output_text.done", output_index=0, text=""),
            item("added", type="message", content=[]),
            item("added", type="reasoning", summary=[], encrypted_content="eA=="),
            item("done", type="reasoning", summary=[]),
            item("added", type="function_call", name="", arguments=""),
            framed("response.output_item.added", item=None),
            b'data: {"type":{"odd":1},"sequence_number":"x"}\n\n',
            b"data: no JSON\n\n",
        ],
    )
    def test_no_output(self, event: bytes) -> None:
        played = stream(created(), event)
        assert (played.outputs, played.meter.produced, played.texts) == ([False, False], False, {})

    def test_zero_width_filler_is_dropped(self) -> None:
        assert stream(text("\u200b"), TEXT).raw == TEXT

    def test_repeated_text_counts_once(self) -> None:
        spelled = {**CALL, "arguments": "{}"}
        events = [
            item("added", type="message"), text("Hel"), text("lo"),
            framed("response.output_text.done", output_index=0, content_index=0, text="Hello"),
            framed("response.content_part.done", output_index=0, part={"type": "output_text", "text": "Hello"}),
            item("done", **MESSAGE), item("added", 1, **CALL),
            framed("response.function_call_arguments.delta", output_index=1, item_id="fc_1", delta="{}"),
            framed("response.function_call_arguments.done", output_index=1, item_id="fc_1", arguments="{}"),
            item("done", 1, **spelled), end("completed", USAGE, output=[MESSAGE, spelled]),
        ]  # fmt: skip
        assert list(stream(*events).texts.values()) == ["Hello", "look", "{}"]

    def test_text_that_an_item_begins_with_is_left_to_its_deltas(self) -> None:
        assert stream(item("added", **MESSAGE), TEXT, item("done", **MESSAGE)).text == "Hello"

    def test_repeated_reasoning_counts_once(self) -> None:
        whole = {"type": "reasoning", "summary": [{"text": "Thought"}], "content": [{"text": "Thought"}]}
        events = [text("Thought", "response.reasoning_text.delta"), item("done", **whole)]
        assert stream(*events, end("completed", USAGE, output=[whole])).text == "Thought"

    def test_item_that_is_done_at_another_place_counts_once(self) -> None:
        """SGLang counts its places up before it says that an item is done."""
        thought = {"type": "reasoning", "id": "item_1", "content": [{"type": "reasoning_text", "text": "Hm"}]}
        events = [
            text("Hm", "response.reasoning_text.delta", index=1), item("done", 2, **thought),
            framed("response.reasoning_text.done", item_id="item_1", output_index=2, content_index=0, text="Hm"),
        ]  # fmt: skip
        assert stream(*events).text == "Hm"

    def test_early_names_of_call_events_count_once(self) -> None:
        whole = {"type": "mcp_call", "id": "mcp_1", "name": "look", "arguments": "{}"}
        events = [item("added", **{**whole, "arguments": ""}), text("{}", "response.mcp_call.arguments.delta")]
        assert stream(*events, item("done", **whole)).text == "look{}"

    def test_text_of_the_terminal_alone_counts(self) -> None:
        second = {"type": "message", "content": [{"type": "refusal", "refusal": "No"}]}
        played = stream(created(), end("completed", output=[MESSAGE, second]))
        assert sorted(played.texts.values()) == ["Hello", "No"]
        assert played.outputs == [False, True]

    def test_text_of_done_events_alone_counts(self) -> None:
        call = {"type": "code_interpreter_call", "code": "print(1)"}
        events = [framed("response.output_text.done", output_index=0, text="Hello"), item("done", **MESSAGE)]
        assert stream(*events, item("done", 1, **call)).text == "Helloprint(1)"

    def test_base64_is_no_text(self) -> None:
        events = [text("eA==", "response.audio.delta"), framed("response.x.partial_image", partial_image_b64="eA==")]
        assert stream(*events).texts == {}

    @pytest.mark.parametrize("status", ["incomplete", "failed"])
    def test_status_of_a_completed_response_counts(self, status: str) -> None:
        """vLLM sends `response.completed` at every end."""
        error = {"code": "rate_limit_exceeded", "message": "Slow"} if status == "failed" else None
        whole = response(status, usage=USAGE, error=error)
        played = stream(created(), TEXT, framed("response.completed", sequence_number=9, response=whole))
        assert played.ended == {"incomplete": "incomplete", "failed": "error"}[status]
        assert (played.meter.error and played.meter.error.status) == (429 if error else None)

    @pytest.mark.parametrize(("kind", "ended"), [("completed", "complete"), ("incomplete", "incomplete")])
    def test_terminal_without_a_response_ends(self, kind: str, ended: str) -> None:
        played = stream(created(), TEXT, framed(f"response.{kind}", sequence_number=3, usage=USAGE))
        assert (played.ended, played.usage and played.usage.usage.buckets()) == (ended, buckets(14, 58))

    def test_zeros_of_the_first_event_are_no_report(self) -> None:
        played = stream(created(usage={"input_tokens": 0, "output_tokens": 0}), TEXT, end())
        assert (played.ended, played.usage) == ("complete", None)

    def test_numbers_that_json_has_not_are_read(self) -> None:
        event = end("completed", {**USAGE, "cost": 1}).replace(b'"cost":1', b'"cost":NaN')
        assert stream(created(), TEXT, event).ended == "complete"

    def test_end_without_terminal_is_a_cut(self) -> None:
        played = stream(created(), TEXT)
        assert (played.ended, played.raw) == ("cut", created() + TEXT)

    def test_done_is_no_terminal(self) -> None:
        assert stream(created(), TEXT, b"data: [DONE]\n\n").ended == "cut"

    def test_hollow_stream_tells(self) -> None:
        played = stream(created(), item("added", type="message"), end())
        assert (played.ended, played.meter.produced, played.usage) == ("complete", False, None)

    def test_model_is_renamed(self) -> None:
        events = [created(), TEXT, end("completed", USAGE)]
        played = stream(*events, rename_from="upstream-model")
        assert played.raw == b"".join(events).replace(b"upstream-model", b"public-model")

    def test_object_ids_are_noted_once(self) -> None:
        call = {"type": "code_interpreter_call", "container_id": "cntr_1"}
        shell = {"type": "shell_call", "environment": {"container_id": "cntr_2"}}
        events = [created(), item("added", **call), item("done", **call), item("added", 1, **shell), end()]
        assert stream(*events).meter.object_ids == ["resp_1", "cntr_1", "cntr_2"]

    @settings(max_examples=80, deadline=None)
    @given(places=st.sets(st.integers(1, 1000)), line_end=st.sampled_from([b"\n", b"\r\n", b"\r"]))
    def test_any_split_is_the_same(self, places: set[int], line_end: bytes) -> None:
        data = b"".join([created(), text("世界 🎈"), end("completed", USAGE)]).replace(b"\n", line_end)
        whole = play(responses.Meter, [data], rename_from="upstream-model")
        places -= {len(data) - 1}  # a terminal is whole at the CR of its last CRLF
        assert play(responses.Meter, cut_at(data, places), rename_from="upstream-model").facts() == whole.facts()
        assert whole.raw == data.replace(b"upstream-model", b"public-model")


FLAT = framed("error", sequence_number=7, code="server_error", message="The model failed.", param=None)
NESTED = framed("error", sequence_number=7, error={"type": "x", "code": "server_error", "message": "The model failed."})
FAILED = end("failed", number=8, error={"code": "server_error", "message": "The model failed."})


class TestErrors:
    @pytest.mark.parametrize("error", [FLAT, NESTED])
    def test_error_waits_for_its_failed(self, error: bytes) -> None:
        meter = responses.Meter(MeterOptions("m"))
        play(lambda _: meter, [created(), TEXT, error])
        assert meter.patience_s == 1.0
        assert meter.error is not None
        assert (meter.error.code, meter.error.message) == ("server_error", "The model failed.")

    @pytest.mark.parametrize("error", [FLAT, NESTED])
    def test_both_pass_on(self, error: bytes) -> None:
        played = stream(created(), TEXT, error, FAILED)
        assert (played.ended, played.raw) == ("error", created() + TEXT + error + FAILED)

    def test_failed_alone_ends(self) -> None:
        played = stream(created(), TEXT, FAILED)
        assert played.meter.error is not None
        assert (played.ended, played.meter.error.message) == ("error", "The model failed.")

    @pytest.mark.parametrize("last", [b"", b"data: [DONE]\n\n"])
    def test_lone_error_gets_our_failed(self, last: bytes) -> None:
        played = stream(created(), TEXT, FLAT, *([last] if last else []))
        assert played.ended == "error"
        assert played.raw.startswith(created() + TEXT + FLAT + b"event: response.failed\ndata: ")
        added = events_of(played.raw)[-1]
        assert (added["type"], added["sequence_number"]) == ("response.failed", 8)
        assert added["response"]["error"] == {"code": "server_error", "message": "The model failed."}

    @pytest.mark.parametrize(
        ("code", "shown"),
        [("rate_limit_exceeded", "rate_limit_exceeded"), ("slow_down", "server_error"), ("novel", "server_error"),
         ("invalid_request_error", "invalid_prompt"), ("insufficient_quota", "server_error"),
         ("invalid_prompt", "invalid_prompt")],
    )  # fmt: skip
    def test_code_becomes_one_of_three(self, code: str, shown: str) -> None:
        played = stream(created(), framed("error", code=code, message="Told."))
        assert events_of(played.raw)[-1]["response"]["error"] == {"code": shown, "message": "Told."}

    @pytest.mark.parametrize(
        "error",
        [
            framed("response.error", error={"code": "rate_limit_exceeded", "message": "Slow"}),
            b'event: error\ndata: {"type":"server_error","code":"rate_limit_exceeded","message":"Slow"}\n\n',
            b'data: {"object":"error","message":"Slow","type":"RateLimitError","code":429}\n\n',
            b'data: {"error":"Slow","code":429}\n\n',
            b'event: error\ndata: [{"error":{"code":429,"message":"Slow"}}]\n\n',
            b'data: {"type":"error","status":429,"error":{"type":"some_limit","message":"Slow"}}\n\n',
        ],
    )
    def test_error_of_any_shape_gets_our_failed(self, error: bytes) -> None:
        played = stream(created(), TEXT, error)
        assert (played.ended, played.meter.error and played.meter.error.status) == ("error", 429)
        assert played.raw.startswith(created() + TEXT + error + b"event: response.failed\n")
        shown = events_of(played.raw)[-1]["response"]["error"]
        assert shown == {"code": "rate_limit_exceeded", "message": "Slow"}

    def test_failed_without_a_response_is_the_end(self) -> None:
        failed = framed("response.failed", sequence_number=3, error={"code": "rate_limit_exceeded", "message": "Slow"})
        played = stream(created(), TEXT, failed)
        assert (played.ended, played.raw) == ("error", created() + TEXT + failed)
        assert (played.meter.error and played.meter.error.status) == 429

    def test_failed_says_what_the_error_left_open(self) -> None:
        lone = framed("error", code=None, message="Sorry")
        failed = end("failed", error={"code": "rate_limit_exceeded", "message": "Slow"})
        assert stream(created(), lone, failed).meter.error == stream(created(), failed).meter.error

    def test_nulls_are_no_response(self) -> None:
        meter = responses.Meter(MeterOptions("gpt-test", fallback_id="resp_ours"))
        play(lambda _: meter, [created(id=None, tools=None, parallel_tool_calls=False), TEXT])
        [event] = events_of(meter.error_event(CUT))
        told = (event["response"][name] for name in ("id", "tools", "parallel_tool_calls"))
        assert tuple(told) == ("resp_ours", [], False)

    def test_error_then_completed_is_an_error(self) -> None:
        assert stream(created(), TEXT, FLAT, end("completed", USAGE)).ended == "error"

    def test_failing_tool_is_no_error(self) -> None:
        played = stream(created(), framed("response.mcp_call.failed", error={"message": "x"}), end("completed", USAGE))
        assert (played.ended, played.meter.error) == ("complete", None)

    def test_error_event_holds_the_whole_response(self) -> None:
        meter = responses.Meter(MeterOptions("public-model", rename_from="upstream-model"))
        play(lambda _: meter, [created(tools=[{"type": "x"}], usage=USAGE), text("a", sequence_number=4)])
        raw = meter.error_event(CUT)
        assert raw.startswith(b"event: response.failed\ndata: {")
        assert raw.endswith(b"}\n\n")
        [event] = events_of(raw)
        assert event == {
            "type": "response.failed", "sequence_number": 5,
            "response": event["response"] | {
                "id": "resp_1", "object": "response", "created_at": 1790000000, "model": "public-model", "output": [],
                "status": "failed", "error": {"code": "server_error", "message": INTERRUPTED}, "usage": None,
                "tools": [{"type": "x"}],
            },
        }  # fmt: skip

    def test_stream_s_own_model_name_stays(self) -> None:
        meter = responses.Meter(MeterOptions("gpt-test"))
        play(lambda _: meter, [created(model="gpt-test-2026-01-01")])
        assert events_of(meter.error_event(CUT))[0]["response"]["model"] == "gpt-test-2026-01-01"

    def test_error_event_without_any_event_before(self) -> None:
        meter = responses.Meter(MeterOptions("gpt-test", fallback_id="resp_ours"))
        [event] = events_of(meter.error_event(CUT))
        assert event["sequence_number"] == 0
        assert (event["response"]["id"], event["response"]["model"]) == ("resp_ours", "gpt-test")

    @pytest.mark.parametrize(
        ("status", "code"),
        [(429, "rate_limit_exceeded"), (400, "invalid_prompt"), (422, "invalid_prompt"), (502, "server_error"),
         (504, "server_error"), (503, "server_error")],
    )  # fmt: skip
    def test_status_becomes_one_of_three_codes(self, status: int, code: str) -> None:
        raw = responses.Meter(MeterOptions("m")).error_event(GatewayError(status, "any", "api_error", "Told."))
        assert events_of(raw)[0]["response"]["error"]["code"] == code

    def test_sdk_reads_the_error_event(self) -> None:
        from openai.types.responses import ResponseFailedEvent

        raw = responses.Meter(MeterOptions("gpt-test")).error_event(CUT)
        event = ResponseFailedEvent.model_validate(events_of(raw)[0])
        assert event.response.status == "failed"

    def test_error_body_has_openai_s_shape(self) -> None:
        error = GatewayError(404, "model_not_found", "not_found_error", "No such model", "model")
        body = orjson.loads(responses.error_body(error, "req_1"))
        assert list(body["error"]) == ["message", "type", "param", "code"]
        assert (body["error"]["code"], body["error"]["param"]) == ("model_not_found", "model")

    def test_provider_s_error_is_read(self) -> None:
        error = responses.read_error(429, b'{"error":{"message":"Slow","code":"rate_limit_exceeded"}}')
        assert (error.status, error.message, error.code) == (429, "Slow", "rate_limit_exceeded")


class TestAnswer:
    def test_answer_is_read(self) -> None:
        call = {**CALL, "arguments": "{}"}
        interpreter = {"type": "code_interpreter_call", "code": "1", "container_id": "cntr_1"}
        raw = orjson.dumps(response("completed", usage=USAGE, output=[MESSAGE, call, interpreter, SEARCH]))
        answer = responses.read_answer(raw, MeterOptions("upstream-model"))
        assert (answer.raw, answer.ended, answer.object_ids) == (raw, "complete", ["resp_1", "cntr_1"])
        assert answer.usage is not None
        assert (answer.usage.usage.buckets(), answer.usage.usage.server_tools) == (buckets(14, 58), {"web_search": 1})
        assert answer.texts == ["Hello", "look", "{}", "1"]

    def test_model_alone_is_renamed(self) -> None:
        raw = orjson.dumps(response("completed", usage=USAGE, output=[MESSAGE]))
        answer = responses.read_answer(raw, MeterOptions("public-model", "upstream-model"))
        assert answer.raw == raw.replace(b"upstream-model", b"public-model")

    def test_incomplete_answer(self) -> None:
        raw = orjson.dumps(response("incomplete", usage=USAGE))
        assert responses.read_answer(raw, MeterOptions("m")).ended == "incomplete"

    def test_failed_answer_keeps_its_usage(self) -> None:
        raw = orjson.dumps(response("failed", usage=USAGE, error={"code": "server_error", "message": "Failed."}))
        answer = responses.read_answer(raw, MeterOptions("m"))
        assert answer.ended == "error"
        assert answer.error is not None
        assert answer.usage is not None
        assert (answer.error.status, answer.error.message, answer.usage.usage.input) == (502, "Failed.", 14)

    @pytest.mark.parametrize(
        "raw",
        [b"", b" \n", b"<html>bad gateway</html>", orjson.dumps(response("completed", usage=USAGE))[:-9], b"[]",
         orjson.dumps(response("completed")),
         orjson.dumps(response("completed", usage={"input_tokens": 0, "output_tokens": 0})),
         b'{"error":{"message":"Down","code":"server_error"}}'],
    )  # fmt: skip
    def test_hollow_answer_is_an_error(self, raw: bytes) -> None:
        answer = responses.read_answer(raw, MeterOptions("m"))
        assert answer.ended == "error"
        assert answer.error is not None
        assert answer.error.status == 502
