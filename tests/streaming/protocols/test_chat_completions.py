"""Chat Completions: requests, answers, and streams event by event."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from billing.usage import OUTPUT_PLACEHOLDER
from streaming.protocols import chat_completions as chat
from streaming.protocols.meter import BadRequest, GatewayError, MeterOptions, Verdict
from streaming.protocols.sse import SSEDecoder

# In a fresh clone the first text drawn builds hypothesis's Unicode tables, which takes seconds on a busy machine.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
OPTIONS = MeterOptions("public")
DONE = b"data: [DONE]\n\n"
MESSAGES = b'"messages":[{"role":"user","content":"hi"}]'


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def framed(value: Any) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else compact(value)) + b"\n\n"


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, index: int = 0, **more: Any) -> bytes:
    choice = {"index": index, "delta": delta or {}, "finish_reason": finish}
    return framed(
        {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **more}
    )


def usage_chunk(**usage: Any) -> bytes:
    return framed(
        {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [], "usage": usage}
    )


ROLE, HELLO, STOP = chunk({"role": "assistant", "content": ""}), chunk({"content": "Hello"}), chunk(finish="stop")
USAGE = usage_chunk(prompt_tokens=14, completion_tokens=52, total_tokens=66)


def fed(*events: bytes, options: MeterOptions = OPTIONS) -> tuple[chat.Meter, list[Verdict]]:
    meter = chat.Meter(options)
    return meter, [meter.feed(event) for raw in events for event in SSEDecoder(1 << 20).feed(raw)]


def passed(*events: bytes, **options: Any) -> bytes:
    _, verdicts = fed(*events, options=MeterOptions("public", **options))
    return b"".join(verdict.raw for verdict in verdicts)


# --- requests ---


def test_facts_of_a_request() -> None:
    body = {"model": "m", "stream": True, "n": 3, "max_tokens": 5, "max_completion_tokens": 7, "service_tier": "flex"}
    facts = chat.read_request(compact({**body, "stream_options": {"include_usage": True}, "messages": [{}]}))
    assert (facts.model, facts.stream, facts.choices, facts.max_output) == ("m", True, 3, 7)
    assert (facts.include_usage, facts.service_tier, facts.stored) == (True, "flex", {})


def test_facts_that_are_absent() -> None:
    facts = chat.read_request(b'{"model":"m",' + MESSAGES + b"}")
    assert (facts.stream, facts.choices, facts.max_output) == (False, 1, None)
    assert (facts.include_usage, facts.service_tier) == (False, "")


@pytest.mark.parametrize(
    ("more", "param"),
    [
        (b"", "messages"),
        (b',"messages":[]', "messages"),
        (b',"messages":null', "messages"),
        (b',"messages":"hi"', "messages"),
        (b"," + MESSAGES + b',"stream_options":true', "stream_options"),
        (b"," + MESSAGES + b',"stream":"yes"', "stream"),
        (b"," + MESSAGES + b',"max_completion_tokens":1,"max_completion_tokens":2', "max_completion_tokens"),
    ],
)
def test_bad_request_names_its_field(more: bytes, param: str) -> None:
    with pytest.raises(BadRequest) as refused:
        chat.read_request(b'{"model":"m"' + more + b"}")
    assert refused.value.param == param


PREPARED = [
    (b',"stream":true', b',"stream":true', b',"stream_options":{"include_usage":true}'),
    (b',"stream":true,"stream_options":null', b',"stream":true,"stream_options":{"include_usage":true}', b""),
    (b',"stream":true,"stream_options":{}', b',"stream":true,"stream_options":{"include_usage":true}', b""),
    (
        b',"stream":true,"stream_options" : { "x":1 }',
        b',"stream":true,"stream_options" : {"include_usage":true, "x":1 }',
        b"",
    ),
    (
        b',"stream":true,"stream_options":{"include_usage" :\tfalse,"x":1}',
        b',"stream":true,"stream_options":{"include_usage" :\ttrue,"x":1}',
        b"",
    ),
    (
        rb',"stream":true,"stream_options":{"include\u005fusage":null}',
        rb',"stream":true,"stream_options":{"include\u005fusage":true}',
        b"",
    ),
    (
        b',"stream":true,"stream_options":{ "include_usage" : true }',
        b',"stream":true,"stream_options":{ "include_usage" : true }',
        b"",
    ),
    (b',"stream_options":{"include_usage":false}', b',"stream_options":{"include_usage":false}', b""),
    (b',"stream":false', b',"stream":false', b""),
]


@pytest.mark.parametrize(("more", "wanted", "added"), PREPARED)
@pytest.mark.parametrize("upstream_model", [None, "up"])
def test_prepared_request_asks_for_usage(more: bytes, wanted: bytes, added: bytes, upstream_model: str | None) -> None:
    start, end = b' { "metadata":{"model":"m","stream_options":1} , "model" : ', b"," + MESSAGES + b"\n"
    raw = start + b'"m"' + more + end + b"}\n "
    prepared = chat.prepare_request(raw, chat.read_request(raw), upstream_model=upstream_model, ask_usage=True)
    name = b'"up"' if upstream_model else b'"m"'
    assert prepared == start + name + wanted + end + added + b"}\n "
    assert json.loads(prepared)


@pytest.mark.parametrize(
    ("more", "left"),
    [
        (b"", b""),
        (b',"stream_options":{"include_usage":true,"x":1}', b""),
        (b' , "stream_options":null,"y":1', b',"y":1'),
    ],
)
def test_usage_is_not_asked_where_refused(more: bytes, left: bytes) -> None:
    start = b'{"model":"m","stream":true,' + MESSAGES
    facts = chat.read_request(start + more + b"}")
    prepared = chat.prepare_request(start + more + b"}", facts, upstream_model=None, ask_usage=False)
    assert prepared == start + left + b"}"


def test_input_holds_texts_and_images() -> None:
    pixel = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"
    parts = [
        {"type": "text", "text": "Look:"},
        {"type": "image_url", "image_url": {"url": pixel}},
        {"type": "image_url", "image_url": {"url": "https://example.test/a.png", "detail": "low"}},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
    ]
    call = {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": '{"q":1}'}}
    content = chat.input_content(
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": parts},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "content": "found"},
                5,
            ],
            "tools": [{"type": "function", "function": {"name": "find"}}],
        }
    )
    tools = '[{"type":"function","function":{"name":"find"}}]'
    assert content.texts == ["Be brief.", "Look:", "find", '{"q":1}', "found", tools]
    assert content.image_tokens == 85 + 170 + 85


# --- usage ---


def read(options: MeterOptions = OPTIONS, produced: bool = True, **usage: Any) -> Any:
    return chat.read_usage(usage, options, tier="", produced=produced)


def buckets(
    given: int = 0, read: int = 0, write: int = 0, output: int = 0, reasoning: int | None = None
) -> tuple[Any, ...]:
    return given, read, write, output, reasoning


def told(report: Any) -> tuple[Any, ...]:
    found = report.usage
    return found.input, found.cache_read, found.cache_write, found.output, found.reasoning


OUTSIDE = MeterOptions("m", reasoning_outside=True)


@pytest.mark.parametrize(
    ("usage", "options", "wanted"),
    [
        ({"prompt_tokens": 14, "completion_tokens": 52}, OPTIONS, buckets(14, output=52)),
        (
            {
                "prompt_tokens": 18014,
                "completion_tokens": 1,
                "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 18011},
            },
            OPTIONS,
            buckets(3, write=18011, output=1),
        ),
        (
            {
                "prompt_tokens": 2600,
                "completion_tokens": 1,
                "prompt_tokens_details": {"cached_tokens": 2000, "cache_write_tokens": 400},
            },
            OPTIONS,
            buckets(200, 2000, 400, 1),
        ),
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 1,
                "prompt_cache_hit_tokens": 60,
                "prompt_cache_miss_tokens": 40,
            },
            OPTIONS,
            buckets(40, 60, output=1),
        ),
        ({"prompt_tokens": 100, "completion_tokens": 1, "cached_tokens": 60}, OPTIONS, buckets(40, 60, output=1)),
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 1,
                "prompt_tokens_details": {"cached_tokens": 0},
                "cached_tokens": 60,
            },
            OPTIONS,
            buckets(100, output=1),
        ),
        (
            {"prompt_tokens": 100, "completion_tokens": 1, "prompt_tokens_details": None},
            OPTIONS,
            buckets(100, output=1),
        ),
        ({"input_tokens": 5, "output_tokens": 6}, OPTIONS, buckets(5, output=6)),
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 266,
                "total_tokens": 276,
                "completion_tokens_details": {"reasoning_tokens": 261},
            },
            OPTIONS,
            buckets(10, output=266, reasoning=261),
        ),
        (
            {
                "prompt_tokens": 36,
                "completion_tokens": 10,
                "total_tokens": 46,
                "completion_tokens_details": {"reasoning_tokens": 690},
            },
            OUTSIDE,
            buckets(36, output=700, reasoning=690),
        ),
        (
            {
                "prompt_tokens": 36,
                "completion_tokens": 50,
                "total_tokens": 106,
                "completion_tokens_details": {"reasoning_tokens": 20},
            },
            OPTIONS,
            buckets(36, output=70, reasoning=20),
        ),
        (
            {"prompt_tokens": 36, "completion_tokens": 10, "reasoning_tokens": 20},
            OPTIONS,
            buckets(36, output=30, reasoning=20),
        ),
        (
            {"prompt_tokens": 43, "completion_tokens": 10, "total_tokens": 53, "reasoning_tokens": 11},
            OPTIONS,
            buckets(43, output=10, reasoning=11),
        ),
        ({"prompt_tokens": 5.0, "completion_tokens": 6}, OPTIONS, buckets(5, output=6)),
        ({"prompt_tokens": 10**13, "completion_tokens": 6}, OPTIONS, buckets(10**12, output=6)),
        ({"prompt_tokens": 10, "completion_tokens": -3}, OPTIONS, buckets(10)),
        ({"prompt_tokens": 10, "completion_tokens": 1, "cached_tokens": 40}, OPTIONS, buckets(0, 40, output=1)),
        ({"prompt_tokens": 10, "completion_tokens": 1, "cached_tokens": -3}, OPTIONS, buckets(10, output=1)),
        (
            {
                "prompt_tokens": 3564,
                "completion_tokens": 23,
                "prompt_tokens_details": {
                    "cache_creation": {"ephemeral_5m_input_tokens": 3550},
                    "cache_creation_input_tokens": 3550,
                    "cached_tokens": 0,
                },
            },
            OPTIONS,
            buckets(14, write=3550, output=23),
        ),
        (
            {
                "input_tokens": 130,
                "output_tokens": 25,
                "input_tokens_details": {"cached_tokens": 100},
                "output_tokens_details": {"reasoning_tokens": 9},
            },
            OPTIONS,
            buckets(30, 100, output=25, reasoning=9),
        ),
    ],
)
def test_buckets_of_usage(usage: dict[str, Any], options: MeterOptions, wanted: tuple[Any, ...]) -> None:
    assert told(read(options, **usage)) == wanted


def test_writes_for_an_hour_are_told_apart() -> None:
    split = {"ephemeral_5m_input_tokens": 7, "ephemeral_1h_input_tokens": 3}
    details = {"cached_tokens": 20, "cache_creation_tokens": 10, "cache_creation_token_details": split}
    report = read(prompt_tokens=130, completion_tokens=1, prompt_tokens_details=details)
    assert (told(report), report.usage.cache_write_1h, report.flags) == (buckets(100, 20, 7, 1), 3, ())


@pytest.mark.parametrize(
    ("usage", "flags"),
    [
        ({"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 9, "cost": 3, "queue_time": 0.2}, ()),
        ({"prompt_tokens": 1, "completion_tokens": 0}, ("zero_with_output",)),
        ({"prompt_tokens": 1}, (OUTPUT_PLACEHOLDER,)),
        ({"completion_tokens": 1}, ("input_absent",)),
        ({"prompt_tokens": 1, "completion_tokens": -1}, ("negative:output",)),
        ({"prompt_tokens": 1, "completion_tokens": 10**13}, ("too_large:output",)),
        (
            {"prompt_tokens": 1, "completion_tokens": 1, "num_sources_used": 4, "flying_tokens": 0},
            ("unknown:num_sources_used",),
        ),
        (
            {"prompt_tokens": 1, "completion_tokens": 1, "prompt_tokens_details": {"odd_tokens": 2}},
            ("unknown:prompt_tokens_details.odd_tokens",),
        ),
        (
            {"prompt_tokens": 1, "completion_tokens": 1, "server_tool_use_details": {"tool_calls_executed": 1}},
            ("unknown:server_tool_use_details.tool_calls_executed",),
        ),
    ],
)
def test_flags_for_the_operator(usage: dict[str, Any], flags: tuple[str, ...]) -> None:
    assert read(**usage).flags == flags


@pytest.mark.parametrize(
    "usage", [{}, {"prompt_tokens": None}, {"total_tokens": 5}, {"prompt_tokens": "5"}, {"completion_tokens": True}]
)
def test_usage_without_counts_is_none(usage: dict[str, Any]) -> None:
    assert read(**usage) is None


@pytest.mark.parametrize(
    ("details", "tools"),
    [
        ({"server_tool_use_details": {"web_search_calls": 2, "x_search_calls": 0}}, {"web_search": 2}),
        ({"server_tool_use": {"web_search_requests": 3}}, {"web_search": 3}),
        ({"server_side_tool_usage_details": {"code_interpreter_calls": 1}}, {"code_interpreter": 1}),
    ],
)
def test_server_tools_are_counted(details: dict[str, Any], tools: dict[str, int]) -> None:
    report = read(prompt_tokens=1, completion_tokens=1, **details)
    assert (report.usage.server_tools, report.flags) == (tools, ())


@UNTIMED
@given(
    prompt=st.integers(0, 10**6),
    cached=st.integers(0, 10**6),
    written=st.integers(0, 10**6),
    completion=st.integers(0, 10**6),
    reasoning=st.integers(0, 10**6),
    outside=st.booleans(),
)
def test_no_token_is_lost_or_doubled(
    prompt: int, cached: int, written: int, completion: int, reasoning: int, outside: bool
) -> None:
    total_input = prompt + cached + written
    completion = completion if outside else completion + reasoning
    total = total_input + completion + (reasoning if outside else 0)
    report = read(
        prompt_tokens=total_input,
        completion_tokens=completion,
        total_tokens=total,
        prompt_tokens_details={"cached_tokens": cached, "cache_write_tokens": written},
        completion_tokens_details={"reasoning_tokens": reasoning},
    )
    assert report.usage.total_input + report.usage.output == total
    assert (report.usage.input, report.usage.cache_read, report.usage.cache_write) == (prompt, cached, written)


# --- answers ---


def answer(message: dict[str, Any] | None = None, finish: str | None = "stop", **more: Any) -> bytes:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "Hello"} if message is None else message,
        "finish_reason": finish,
    }
    return compact({"id": "c1", "object": "chat.completion", "model": "m", "choices": [choice], **more})


COUNTS = {"prompt_tokens": 14, "completion_tokens": 52}


def test_answer_is_read_and_kept() -> None:
    raw = answer(usage=COUNTS, service_tier="flex")
    found = chat.read_answer(raw, OPTIONS)
    assert (found.raw, found.ended, found.texts, found.error) == (raw, "complete", ["Hello"], None)
    assert found.usage is not None
    assert (told(found.usage), found.usage.service_tier) == (buckets(14, output=52), "flex")


def test_answer_without_usage_has_texts() -> None:
    call = {"type": "function", "function": {"name": "find", "arguments": "{}"}}
    found = chat.read_answer(answer({"content": None, "reasoning": "Hm", "tool_calls": [call]}, "tool_calls"), OPTIONS)
    assert (found.ended, found.usage, found.texts) == ("complete", None, ["Hm", "find", "{}"])


@pytest.mark.parametrize(
    "finish",
    ["length", "content_filter", "LENGTH", "model_length", "content_filter: PROHIBITED_CONTENT", "sensitive", "SAFETY"],
)
def test_answer_cut_by_a_limit_is_incomplete(finish: str) -> None:
    assert chat.read_answer(answer(finish=finish, usage=COUNTS), OPTIONS).ended == "incomplete"


def test_answer_bears_the_public_name() -> None:
    raw = (
        b'{ "choices":[{"message":{"content":"\\"model\\":\\"m\\"","model":"m"}}], "model" : "m-2026" ,'
        b' "usage":{"prompt_tokens":1} }'
    )
    found = chat.read_answer(raw, MeterOptions("public", rename_from="m"))
    assert found.raw == raw.replace(b'"m-2026"', b'"public"')
    assert chat.read_answer(raw, OPTIONS).raw == raw


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"<html>502</html>", "not a JSON object"),
        (answer(usage=COUNTS)[:-25], "not a JSON object"),
        (b"[]", "not a JSON object"),
        (b"{}", "neither output nor usage"),
        (answer({"content": ""}), "neither output nor usage"),
        (answer({"content": "\u200b"}), "neither output nor usage"),
        (answer({"content": ""}, usage={"prompt_tokens": 0, "completion_tokens": 0}), "neither output nor usage"),
        (compact({"choices": [{"finish_reason": "error", "error": {"code": 429, "message": "Rate"}}]}), "Rate"),
        (b'{"error":{"message":"quota gone","code":"insufficient_quota"}}', "quota gone"),
        (b'{"object":"error","message":"no","code":429}', "no"),
    ],
)
def test_hollow_answer_is_a_failure(raw: bytes, message: str) -> None:
    found = chat.read_answer(raw, OPTIONS)
    assert (found.ended, found.raw) == ("error", raw)
    assert found.error is not None
    assert message in found.error.message


def test_answer_of_reasoning_alone_is_paid() -> None:
    found = chat.read_answer(answer({"content": ""}, "length", usage=COUNTS), OPTIONS)
    assert (found.ended, found.error, found.texts) == ("incomplete", None, [])


def test_error_bodies_have_openai_s_shape() -> None:
    error = GatewayError(429, "rate_limit_exceeded", "rate_limit_error", "Slow down.", None)
    body = {
        "error": {"message": "Slow down.", "type": "rate_limit_error", "param": None, "code": "rate_limit_exceeded"}
    }
    assert json.loads(chat.error_body(error, "req_1")) == body
    assert chat.Meter(OPTIONS).error_event(error) == framed(body)


# --- streams: output ---


@pytest.mark.parametrize(
    ("delta", "texts"),
    [
        ({"content": "Hi"}, {(0, "content", 0): "Hi"}),
        ({"content": " \n"}, {(0, "content", 0): " \n"}),
        ({"content": "世界"}, {(0, "content", 0): "世界"}),
        ({"content": "\u200d"}, {(0, "content", 0): "\u200d"}),
        ({"role": "assistant", "content": "Hi"}, {(0, "content", 0): "Hi"}),
        ({"refusal": "No"}, {(0, "refusal", 0): "No"}),
        ({"reasoning_content": "Hm"}, {(0, "reasoning", 0): "Hm"}),
        (
            {"reasoning": "Hm", "reasoning_details": [{"type": "reasoning.text", "text": "Hm"}]},
            {(0, "reasoning", 0): "Hm"},
        ),
        ({"reasoning": "Hm", "reasoning_content": "Hm"}, {(0, "reasoning", 0): "Hm"}),
        ({"reasoning_details": [{"type": "reasoning.summary", "summary": "Hm"}]}, {(0, "reasoning", 0): "Hm"}),
        ({"reasoning_details": [{"type": "reasoning.encrypted", "data": "AAAA"}]}, {}),
        (
            {"reasoning_details": [{"type": "reasoning.text", "text": "Hm"}], "reasoning": "Hm"},
            {(0, "reasoning", 0): "Hm"},
        ),
        (
            {"reasoning_content": "Hm", "thinking_blocks": [{"type": "thinking", "thinking": "Hm"}]},
            {(0, "reasoning", 0): "Hm"},
        ),
        ({"cot_summary": "Hm"}, {(0, "reasoning", 0): "Hm"}),
        ({"thinking": "Hm"}, {(0, "reasoning", 0): "Hm"}),
        ({"reasoning_steps": [{"thought": "Hm", "type": "web_search"}]}, {(0, "reasoning", 0): "Hm"}),
        (
            {"content": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm"}]}]},
            {(0, "reasoning", 0): "Hm"},
        ),
        (
            {
                "content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]},
                    {"type": "text", "text": "Hi"},
                ]
            },
            {(0, "reasoning", 0): "Hm", (0, "content", 0): "Hi"},
        ),
        ({"tool_calls": [{"index": 1, "id": "c", "function": {"name": "f", "arguments": ""}}]}, {(0, "tool", 1): "f"}),
        ({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}, {(0, "tool", 0): "{}"}),
        ({"tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}, {(0, "tool", 0): 'f{"a":1}'}),
        ({"tool_calls": [{"index": 0, "custom": {"name": "f", "input": "x"}}]}, {(0, "tool", 0): "fx"}),
        ({"function_call": {"name": "f", "arguments": "{}"}}, {(0, "tool", 0): "f{}"}),
        ({"audio": {"id": "a", "data": "AAAA"}}, {}),
        ({"audio": {"id": "a", "transcript": "Hi"}}, {(0, "audio", 0): "Hi"}),
        ({"images": [{"type": "image_url", "image_url": {"url": "data:"}}]}, {}),
    ],
)
def test_real_output_is_seen(delta: dict[str, Any], texts: dict[Any, str]) -> None:
    meter, (verdict,) = fed(chunk(delta))
    assert verdict == Verdict(chunk(delta), True)
    assert (meter.produced, meter.take_texts(), meter.take_texts()) == (True, texts, {})


def test_sound_of_an_answer_is_noted() -> None:
    meter, _ = fed(chunk({"audio": {"id": "audio_1"}}), chunk({"audio": {"id": "audio_1", "transcript": "Hi"}}))
    assert meter.object_ids == ["audio_1"]
    choice = {"index": 0, "message": {"audio": {"id": "audio_2", "data": "AAAA"}}, "finish_reason": "stop"}
    answer = chat.read_answer(json.dumps({"choices": [choice]}).encode(), MeterOptions("gpt-test"))
    assert (answer.ended, answer.object_ids) == ("complete", ["audio_2"])


@pytest.mark.parametrize(
    "event",
    [
        ROLE,
        chunk(),
        chunk({"content": None, "refusal": ""}),
        chunk({"tool_calls": None}),
        chunk({"reasoning_content": ""}),
        chunk({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "", "arguments": ""}}]}),
        chunk({"audio": {"id": "a"}}),
        chunk({"content": []}),
        chunk({"content": 5}),
        framed({"choices": []}),
        framed({"choices": [None, 5, "x"]}),
        framed({"choices": {"0": 1}}),
        framed({"choices": [{"index": [1], "delta": ["x"]}]}),
        framed(b"not json"),
        framed(b"[1]"),
        framed(b"[" * 5000),
        framed({"vendor": 1}),
        chunk({"reasoning_opaque": "AAAA"}),
    ],
)
def test_prelude_and_odd_events_pass_without_output(event: bytes) -> None:
    meter, (verdict,) = fed(event)
    assert (verdict, meter.produced, meter.take_texts()) == (Verdict(event), False, {})


def test_lone_surrogate_is_read() -> None:
    event = framed(b'{"choices":[{"index":0,"delta":{"content":"\\ud83d"}}]}')
    meter, (verdict,) = fed(event)
    assert (verdict.raw, verdict.output, meter.take_texts()) == (event, True, {(0, "content", 0): "\ud83d"})


def test_whole_message_as_one_chunk_is_output() -> None:
    message = {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
    meter, _ = fed(framed({"choices": [message]}))
    assert meter.take_texts() == {(0, "content", 0): "Hi"}
    meter, _ = fed(HELLO, framed({"choices": [message]}))
    assert meter.take_texts() == {(0, "content", 0): "Hello"}


FILLER = chunk({"content": "\u200b"})


@pytest.mark.parametrize(
    ("event", "dropped"),
    [
        (FILLER, True),
        (chunk({"role": "assistant", "content": "\u200b\ufeff"}), True),
        (chunk({"content": "\u200b"}, usage=None), True),
        (chunk({"content": "\u200b"}, finish="stop"), False),
        (chunk({"content": "\u200b", "tool_calls": [{"index": 0, "function": {"name": "f"}}]}), False),
        (chunk({"content": "\u200b", "reasoning": "Hm"}), False),
        (chunk({"content": "\u200b", "annotations": [{"type": "url"}]}), False),
        (chunk({"content": "\u200b"}, citations=["x"]), False),
        (chunk({"content": "a\u200b"}), False),
    ],
)
def test_zero_width_filler_is_dropped(event: bytes, dropped: bool) -> None:
    _, verdicts = fed(HELLO, event, options=MeterOptions("m", include_usage=True))
    assert (verdicts[1].raw == b"") is dropped
    assert not (dropped and verdicts[1].output)


def test_filler_that_brings_the_role_stays() -> None:
    event = chunk({"role": "assistant", "content": "\u200b"})
    meter, (verdict,) = fed(event)
    assert (verdict, meter.produced) == (Verdict(event), False)


def test_filler_with_asked_usage_stays() -> None:
    event = chunk({"content": "\u200b"}, usage=COUNTS)
    assert passed(HELLO, event, include_usage=True) == HELLO + event
    assert passed(HELLO, event) == HELLO


# --- streams: ends ---


@pytest.mark.parametrize(
    ("events", "ended"),
    [
        ((ROLE, HELLO, STOP, USAGE, DONE), "complete"),
        ((ROLE, HELLO, chunk(finish="length"), DONE), "incomplete"),
        ((ROLE, HELLO, chunk(finish="content_filter"), DONE), "incomplete"),
        ((HELLO, DONE), "complete"),
        ((HELLO, STOP, chunk(finish="length", index=1), DONE), "incomplete"),
        ((HELLO, b"data:[DONE] \n\n"), "complete"),
        ((HELLO, chunk(finish="error"), DONE), "error"),
    ],
)
def test_done_ends_the_stream(events: tuple[bytes, ...], ended: str) -> None:
    meter, verdicts = fed(*events)
    assert [verdict.ended for verdict in verdicts] == [None] * (len(events) - 1) + [ended]
    assert verdicts[-1].raw == events[-1]
    assert (meter.error is not None) == (ended == "error")


@pytest.mark.parametrize(
    ("events", "verdict", "patience_s"),
    [
        ((HELLO, STOP), Verdict(DONE, ended="complete"), 5.0),
        ((HELLO, STOP, USAGE), Verdict(DONE, ended="complete"), 5.0),
        ((HELLO, chunk(finish="length")), Verdict(DONE, ended="incomplete"), 5.0),
        ((HELLO, chunk({"content": "x"}, index=1), STOP), Verdict(b"", ended="cut"), None),
        ((HELLO, STOP, chunk({"content": "x"}, index=1)), Verdict(b"", ended="cut"), None),
        (
            (HELLO, chunk({"content": "x"}, index=1), STOP, chunk(finish="stop", index=1)),
            Verdict(DONE, ended="complete"),
            5.0,
        ),
        ((HELLO, chunk({"content": "x"}, finish="")), Verdict(b"", ended="cut"), None),
        ((HELLO, USAGE), Verdict(b"", ended="cut"), None),
        ((HELLO, chunk(finish="error")), Verdict(b"", ended="cut"), 5.0),
        ((), Verdict(b"", ended="cut"), None),
        ((USAGE,), Verdict(b"", ended="cut"), None),
    ],
)
def test_end_without_done(events: tuple[bytes, ...], verdict: Verdict, patience_s: float | None) -> None:
    meter, _ = fed(*events)
    assert (meter.patience_s, meter.finish()) == (patience_s, verdict)


ERROR = {"message": "cap", "type": "server_error", "param": None, "code": "cap"}


@pytest.mark.parametrize(
    ("event", "status"),
    [
        (framed({"error": ERROR}), 502),
        (b"event: error\n" + framed({"error": ERROR}), 502),
        (b"event: error\n" + framed({"message": "cap", "code": 429}), 429),
        (framed({"id": "c1", "choices": [], "error": {"code": 503, "message": "cap"}}), 503),
        (framed({"object": "error", "message": "cap", "type": "invalid_request_error"}), 400),
        (framed({"error": "cap"}), 502),
        (chunk({"content": ""}, error={"code": 400, "message": "cap"}, usage=COUNTS), 400),
        (b"event: error\n" + framed(b"cap"), 502),
        (b"event: error\n" + framed("cap"), 502),
        (framed([{"error": {"code": 429, "message": "cap"}}]), 429),
        (framed({"message": "cap", "type": "invalid_request_error", "code": None}), 400),
        (framed({"detail": "cap"}), 502),
        (framed({"choices": None, "error_type": "overloaded_error", "error_message": "cap"}), 503),
        (framed({"choices": None, "base_resp": {"status_code": 1000, "status_msg": "cap"}}), 502),
        (
            framed({"choices": [{"delta": {}, "finish_reason": "error", "error": {"code": 429, "message": "cap"}}]}),
            429,
        ),
    ],
)
def test_provider_s_error_passes_and_ends(event: bytes, status: int) -> None:
    meter, verdicts = fed(HELLO, event)
    assert verdicts[1] == Verdict(event, False, "error")
    assert meter.error is not None
    assert (meter.error.status, meter.error.message) == (status, "cap")


def test_error_s_usage_counts_and_its_text_too() -> None:
    meter, verdicts = fed(chunk({"content": "Hi"}, error={"message": "cap"}, usage=COUNTS))
    report = meter.usage()
    assert report is not None
    assert (told(report), verdicts[0].output, meter.take_texts()) == (
        buckets(14, output=52),
        True,
        {(0, "content", 0): "Hi"},
    )


def test_base_resp_of_every_chunk_is_no_error() -> None:
    usual = {"base_resp": {"status_code": 0, "status_msg": ""}}
    meter, verdicts = fed(HELLO, framed({"choices": [], **usual, "usage": COUNTS}), DONE)
    assert ([verdict.ended for verdict in verdicts], meter.error) == ([None, None, "complete"], None)


def test_null_error_is_none() -> None:
    meter, verdicts = fed(chunk({"content": "Hi"}, error=None), chunk({"content": "Hi"}, error={}))
    assert ([verdict.ended for verdict in verdicts], meter.error) == ([None, None], None)


# --- streams: what the client sees of usage ---


def spaced(raw: bytes) -> bytes:
    return b"data: " + json.dumps(json.loads(raw[6:])).encode() + b"\n\n"


FIRST_KEY = framed(b'{"usage":{"prompt_tokens":1},"id":"c1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}')
STRIPPED = [
    (USAGE, b""),
    (spaced(USAGE), b""),
    (framed({"usage": COUNTS}), b""),
    (framed({"choices": [], "x_groq": {"usage": COUNTS}}), b""),
    (chunk({"content": "a"}, usage=None), chunk({"content": "a"})),
    (chunk({"content": "a"}, usage=COUNTS), chunk({"content": "a"})),
    (chunk({"content": "a"}, usage={"a": {"b": [{}, "}"]}}, p="x"), chunk({"content": "a"}, p="x")),
    (spaced(chunk({"content": "a"}, usage=COUNTS, p=1)), spaced(chunk({"content": "a"}, p=1))),
    (FIRST_KEY, framed(b'{"id":"c1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}')),
    (framed({"choices": [], "usage": None, "moderation": {}}), framed({"choices": [], "moderation": {}})),
    (framed({"choices": [], "prompt_filter_results": []}), framed({"choices": [], "prompt_filter_results": []})),
    (chunk(x_groq={"id": "r", "usage": COUNTS}), chunk(x_groq={"id": "r"})),
    (chunk(x_groq={"usage": COUNTS, "id": "r"}, usage=COUNTS), chunk(x_groq={"id": "r"})),
    (chunk({"content": '"usage":null,"usage"'}, usage=None), chunk({"content": '"usage":null,"usage"'})),
    (chunk({"content": "a", "usage": None}, usage=None), chunk({"content": "a", "usage": None})),
    (chunk({"content": "a", "usage": None}), chunk({"content": "a", "usage": None})),
    (chunk({"content": "usage"}, usage="usage"), chunk({"content": "usage"})),
    (
        framed(rb'{"choices":[{"delta":{"content":"a","usage":1}}],"us\u0061ge":{"x":1}}'),
        framed(rb'{"choices":[{"delta":{"content":"a","usage":1}}]}'),
    ),
    (
        framed(rb'{"choices":[{"delta":{"usage":1,"content":"\u0075"}}],"us\u0061ge":{"x":1}}'),
        framed(rb'{"choices":[{"delta":{"usage":1,"content":"\u0075"}}]}'),
    ),
    (
        b'data: {"choices":[{"delta":{"content":"a"}}],\ndata: "usage":\ndata: null}\n\n',
        b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n',
    ),
    (
        b'event: x\r\ndata: {"choices":[{"delta":{}}],"usage":null}\r\n\r\n',
        b'event: x\r\ndata: {"choices":[{"delta":{}}]}\r\n\r\n',
    ),
]


@pytest.mark.parametrize(("event", "left"), STRIPPED)
def test_usage_not_asked_is_removed(event: bytes, left: bytes) -> None:
    assert passed(event) == left
    assert passed(event, include_usage=True) == event


@pytest.mark.parametrize(
    ("events", "wanted"),
    [
        ((USAGE, STOP, DONE), buckets(14, output=52)),
        ((usage_chunk(prompt_tokens=1, completion_tokens=1), USAGE), buckets(14, output=52)),
        ((USAGE, chunk(usage=None)), buckets(14, output=52)),
        ((USAGE, usage_chunk(prompt_tokens=0, completion_tokens=0)), buckets()),
        ((USAGE, usage_chunk(prompt_tokens=None, completion_tokens=None)), buckets(14, output=52)),
        ((chunk(x_groq={"usage": COUNTS}), usage_chunk(queue_time=0.1)), buckets(14, output=52)),
        ((chunk(x_groq={"usage": COUNTS}),), buckets(14, output=52)),
        ((USAGE, chunk(x_groq={"usage": {"prompt_tokens": 9, "completion_tokens": 9}})), buckets(14, output=52)),
        (
            (framed({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": COUNTS}]}),),
            buckets(14, output=52),
        ),
        (
            (chunk({"content": "a"}, usage={**COUNTS, "completion_tokens": 1}), chunk({"content": "b"}, usage=COUNTS)),
            buckets(14, output=52),
        ),
    ],
)
def test_last_usage_that_is_not_null_wins(events: tuple[bytes, ...], wanted: tuple[Any, ...]) -> None:
    report = fed(*events)[0].usage()
    assert report is not None
    assert told(report) == wanted


def test_stream_without_usage_reports_none() -> None:
    assert fed(HELLO, chunk(usage=None), chunk(usage=[1]), chunk(usage={}), DONE)[0].usage() is None


def test_zero_with_output_is_flagged() -> None:
    zero = usage_chunk(prompt_tokens=0, completion_tokens=0)
    reports = [fed(HELLO, zero)[0].usage(), fed(ROLE, zero)[0].usage()]
    assert [report.flags for report in reports if report] == [("zero_with_output",), ()]


def test_served_tier_is_the_last_one_told() -> None:
    events = (
        chunk(service_tier="auto"),
        chunk(service_tier=None),
        chunk(service_tier="priority"),
        chunk(service_tier=""),
        USAGE,
    )
    report = fed(*events)[0].usage()
    assert report is not None
    assert report.service_tier == "priority"


# --- streams: the model's name ---


@pytest.mark.parametrize(
    ("event", "left"),
    [
        (HELLO, HELLO.replace(b'"m"', b'"public"')),
        (spaced(HELLO), spaced(HELLO).replace(b'"m"', b'"public"')),
        (framed({"model": "m-2026-01-01", "choices": []}), framed({"model": "public", "choices": []})),
        (framed({"model": "", "choices": []}), framed({"model": "", "choices": []})),
        (framed({"model": None, "choices": []}), framed({"model": None, "choices": []})),
        (framed({"choices": []}), framed({"choices": []})),
        (
            chunk({"content": '"model":"m"'}),
            framed({**json.loads(chunk({"content": '"model":"m"'})[6:]), "model": "public"}),
        ),
        (
            chunk({"model": "m", "content": "x"}),
            framed({**json.loads(chunk({"model": "m", "content": "x"})[6:]), "model": "public"}),
        ),
        (
            framed(rb'{"choices":[{"delta":{"model":"x"}}],"mod\u0065l":"m"}'),
            framed(rb'{"choices":[{"delta":{"model":"x"}}],"mod\u0065l":"public"}'),
        ),
        (
            framed({"choices": [{"delta": {"model": "x"}}], "model": "m"}),
            framed({"choices": [{"delta": {"model": "x"}}], "model": "public"}),
        ),
        (framed(rb'{"mod\u0065l":"m","choices":[]}'), framed(rb'{"mod\u0065l":"public","choices":[]}')),
        (framed(rb'{"model":"a\/m","choices":[]}'), framed(rb'{"model":"public","choices":[]}')),
        (chunk({"content": "a"}, usage=None), HELLO.replace(b'"m"', b'"public"').replace(b"Hello", b"a")),
        (framed({"model": "m", "error": ERROR}), framed({"model": "public", "error": ERROR})),
        (b'data: {"model":\ndata: "m","choices":[]}\n\n', b'data: {"model":\ndata: "public","choices":[]}\n\n'),
        (DONE, DONE),
        (framed(b"not json"), framed(b"not json")),
    ],
)
def test_model_bears_the_public_name(event: bytes, left: bytes) -> None:
    assert passed(event, rename_from="m") == left
    assert passed(event, include_usage=True) == event


# --- streams: any bytes ---

KEYS = st.sampled_from(
    [
        "choices",
        "delta",
        "index",
        "content",
        "finish_reason",
        "usage",
        "x_groq",
        "model",
        "error",
        "tool_calls",
        "function",
        "prompt_tokens",
        "completion_tokens",
        "prompt_tokens_details",
        "reasoning",
        "message",
        "service_tier",
        "object",
        "role",
    ]
)
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["stop", "\u200b", "usage"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@UNTIMED
@given(st.lists(st.dictionaries(KEYS, JUNK, max_size=5), max_size=4), st.booleans())
def test_no_json_breaks_the_meter(values: list[dict[str, Any]], renames: bool) -> None:
    meter = chat.Meter(MeterOptions("public", rename_from="m" if renames else None))
    for raw in map(framed, values):
        (event,) = SSEDecoder(1 << 20).feed(raw)
        verdict = meter.feed(event)
        if verdict.raw:
            expected = json.loads(raw[6:])
            found = json.loads(verdict.raw[6:])
            if verdict.ended is None:
                expected.pop("usage", None)
                if isinstance(expected.get("x_groq"), dict):
                    expected["x_groq"].pop("usage", None)
            if renames and isinstance(expected.get("model"), str) and expected["model"]:
                expected["model"] = "public"
            assert found == expected
    meter.take_texts()
    meter.usage()
    assert meter.finish().ended is not None
