"""Attempts, failover, and how streams end; the provider is a script."""

import asyncio
import json

import httpx
import pytest

from streaming.errors import Failure
from tests.streaming.entries import route
from tests.streaming.runs import ScriptedAnswer, relayed

FORMATS = ("chat_completions", "responses", "messages")


def event(data: dict | str, name: str | None = None) -> bytes:
    text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
    return (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()


def chunk(**choice) -> bytes:
    choice = {"index": 0, "delta": {}, "finish_reason": None, **choice}
    return event({"id": "c1", "object": "chat.completion.chunk", "model": "m", "choices": [choice]})


def typed(kind: str, **fields) -> bytes:
    return event({"type": kind, **fields}, kind)


RESPONSE = {"id": "resp_1", "object": "response", "model": "m", "output": []}
STARTED = {"id": "msg_1", "role": "assistant", "model": "m", "content": []}
RESPONSES_USAGE = {"input_tokens": 9, "output_tokens": 2, "total_tokens": 11}
PLACE = {"item_id": "i", "output_index": 0, "content_index": 0}
PRELUDE = {
    "chat_completions": chunk(delta={"role": "assistant", "content": ""}),
    "responses": typed("response.created", sequence_number=0, response={**RESPONSE, "status": "in_progress"}),
    "messages": typed("message_start", message={**STARTED, "usage": {"input_tokens": 9, "output_tokens": 1}}),
}
OUTPUT = {
    "chat_completions": chunk(delta={"content": "hello"}),
    "responses": typed("response.output_text.delta", sequence_number=1, **PLACE, delta="hello"),
    "messages": typed("content_block_delta", index=0, delta={"type": "text_delta", "text": "hello"}),
}
COMPLETED = {**RESPONSE, "status": "completed", "usage": RESPONSES_USAGE}
ENDING = {
    "chat_completions": chunk(finish_reason="stop") + event("[DONE]"),
    "responses": typed("response.completed", sequence_number=2, response=COMPLETED),
    "messages": typed("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 2})
    + typed("message_stop"),
}
JSON = {"content-type": "application/json"}


def whole(wire: str) -> bytes:
    return PRELUDE[wire] + OUTPUT[wire] + ENDING[wire]


def answer(wire: str) -> ScriptedAnswer:
    return ScriptedAnswer(PRELUDE[wire], OUTPUT[wire], ENDING[wire])


def two_routes():
    return [route(1), route(2)]


@pytest.mark.parametrize("wire", FORMATS)
async def test_bytes_pass_untouched(wire):
    outcome = await relayed(wire, answer(wire))
    assert (outcome.status, outcome.body, outcome.complete) == (200, whole(wire), True)
    assert outcome.run.ending == "complete"
    assert [attempt.outcome for attempt in outcome.run.attempts] == ["answered"]


@pytest.mark.parametrize("wire", FORMATS)
@pytest.mark.parametrize(
    "first",
    [
        lambda wire: Failure("unreachable", "reset"),
        lambda wire: ScriptedAnswer(b"{}", status=500, headers=JSON),
        lambda wire: ScriptedAnswer(PRELUDE[wire]),
        lambda wire: ScriptedAnswer(PRELUDE[wire], httpx.ReadError("broke")),
        lambda wire: ScriptedAnswer(b"<html>", headers={"content-type": "text/html"}),
        lambda wire: ScriptedAnswer(b"\x8b\x02", headers={"content-encoding": "br"}),
    ],
    ids=["unreachable", "500", "cut in prelude", "reset in prelude", "html", "brotli"],
)
async def test_failed_attempt_leaks_nothing(wire, first):
    outcome = await relayed(wire, first(wire), answer(wire), routes=two_routes())
    assert (outcome.status, outcome.body) == (200, whole(wire))
    assert len(outcome.run.attempts) == 2
    assert outcome.run.route.id == 2


@pytest.mark.parametrize("wire", FORMATS)
@pytest.mark.parametrize("how", [(), (httpx.ReadError("broke"),)], ids=["clean eof", "reset"])
async def test_cut_after_output_is_an_error_event(wire, how):
    cut = ScriptedAnswer(PRELUDE[wire], OUTPUT[wire], *how)
    outcome = await relayed(wire, cut, routes=two_routes())
    assert outcome.body.startswith(PRELUDE[wire] + OUTPUT[wire])
    tail = outcome.body[len(PRELUDE[wire] + OUTPUT[wire]) :]
    assert tail.count(b"\n\n") == 1
    assert b"Response stream interrupted, please retry" in tail
    assert outcome.run.ending == "provider_cut"
    assert [attempt.outcome for attempt in outcome.run.attempts] == ["cut"]
    assert len(outcome.upstream.calls) == 1
    assert cut.closed


async def test_half_an_event_is_cut_off():
    outcome = await relayed(
        "chat_completions", ScriptedAnswer(PRELUDE["chat_completions"], OUTPUT["chat_completions"] + b'data: {"ch')
    )
    assert b'data: {"ch\n' not in outcome.body
    assert outcome.run.ending == "provider_cut"


@pytest.mark.parametrize("wire", FORMATS)
async def test_terminal_ends_before_the_provider_does(wire):
    hanging = ScriptedAnswer(PRELUDE[wire], OUTPUT[wire], ENDING[wire] + OUTPUT[wire], "hang")
    outcome = await relayed(wire, hanging)
    assert (outcome.body, outcome.complete, outcome.run.ending) == (whole(wire), True, "complete")
    assert hanging.closed


class Watch(set):
    """Interrupts the first stream that it sees, for a reason, once that stream has flowed."""

    def __init__(self, why, after_s=0.05):
        super().__init__()
        self.why, self.after_s = why, after_s

    def add(self, live):
        if not self:
            asyncio.get_running_loop().call_later(self.after_s, live.interrupt, self.why)
        super().add(live)

    def discard(self, live):
        return


@pytest.mark.parametrize("wire", FORMATS)
async def test_stall_before_output_goes_on(wire):
    stuck = ScriptedAnswer(PRELUDE[wire], "hang")
    outcome = await relayed(wire, stuck, answer(wire), routes=two_routes(), watch=Watch("stalled"))
    assert outcome.body == whole(wire)
    assert [attempt.outcome for attempt in outcome.run.attempts] == ["stalled", "answered"]
    assert stuck.closed


@pytest.mark.parametrize(("why", "ending"), [("stalled", "stalled"), ("stopped", "stopped"), ("shutdown", "shutdown")])
@pytest.mark.parametrize("wire", FORMATS)
async def test_interruption_after_output_is_told(wire, why, ending):
    outcome = await relayed(wire, ScriptedAnswer(PRELUDE[wire], OUTPUT[wire], "hang"), watch=Watch(why))
    assert outcome.run.ending == ending
    assert outcome.complete
    assert b'"error"' in outcome.body[len(PRELUDE[wire] + OUTPUT[wire]) :]
    [attempt] = outcome.run.attempts
    assert (attempt.outcome, attempt.reason) == ("stalled" if why == "stalled" else "stopped", why)


@pytest.mark.parametrize(("why", "header"), [("stopped", "false"), ("shutdown", None)])
async def test_stop_is_not_retried(why, header):
    """What an operator stops before anything is committed does not come back by an SDK's retries."""
    outcome = await relayed("messages", ScriptedAnswer("hang"), watch=Watch(why))
    assert (outcome.status, outcome.run.ending) == (503, why)
    assert outcome.headers.get("x-should-retry") == header
    assert [attempt.outcome for attempt in outcome.run.attempts] == ["stopped"]


async def test_finished_chat_gets_its_done():
    wire = "chat_completions"
    silent = ScriptedAnswer(PRELUDE[wire], OUTPUT[wire], chunk(finish_reason="stop"), "hang")
    outcome = await relayed(wire, silent, watch=Watch("patience"))
    assert outcome.body == whole(wire)
    assert outcome.run.ending == "complete"


@pytest.mark.parametrize(("piece", "is_silence"), [(b"x" * 10, False), (b": wait\n\n", True)])
async def test_slow_event_is_no_silence(piece, is_silence):
    """After its finish a stream is over once nothing comes: parts of a large event are something, comments are not."""
    wire, watch, ages = "chat_completions", set(), []

    class Slow(ScriptedAnswer):
        async def _play(self):
            yield PRELUDE[wire] + OUTPUT[wire] + chunk(finish_reason="stop")
            yield b": a comment\n\n" if is_silence else b'data: {"choices":[],"moderation":"'
            for _ in range(5):
                await asyncio.sleep(0.02)
                yield piece
                (live,) = watch
                ages.append(asyncio.get_running_loop().time() - live.last_event)
            yield b"data: [DONE]\n\n" if is_silence else b'"}\n\ndata: [DONE]\n\n'

    outcome = await relayed(wire, Slow(), watch=watch)
    assert outcome.run.ending == "complete"
    assert (b"moderation" in outcome.body) is not is_silence
    assert (max(ages) > 0.08) is is_silence


@pytest.mark.parametrize("why", ["slow_reader", "drained"])
async def test_vanished_client_gets_no_event(why):
    wire = "messages"
    outcome = await relayed(wire, ScriptedAnswer(PRELUDE[wire], OUTPUT[wire], "hang"), watch=Watch(why))
    assert outcome.run.ending == "client_left"
    assert [attempt.outcome for attempt in outcome.run.attempts] == ["client_left"]
    assert not outcome.complete


async def test_refusal_is_shown_scrubbed():
    error = {"message": "http://provider-1.test/v1 says max_tokens is wrong", "type": "invalid_request_error"}
    refusal = ScriptedAnswer(json.dumps({"error": error}).encode(), status=400, headers=JSON)
    outcome = await relayed("chat_completions", refusal)
    assert outcome.status == 400
    assert json.loads(outcome.body)["error"]["message"] == "[provider] says max_tokens is wrong"
    assert outcome.run.ending == "refused"


@pytest.mark.parametrize("wire", FORMATS)
async def test_page_of_a_proxy_is_no_answer(wire):
    page = ScriptedAnswer(b"<html><h1>413 Too Large</h1></html>", status=413, headers={"content-type": "text/html"})
    outcome = await relayed(wire, page)
    assert (outcome.status, outcome.headers["content-type"]) == (413, "application/json")
    assert json.loads(outcome.body)["error"]["message"] == "The provider refused the request."


@pytest.mark.parametrize(("told", "status", "code"), [(429, 429, "rate_limit_exceeded"), (404, 404, None)])
async def test_status_counts_without_its_body(told, status, code):
    """A body that breaks off is not shown, but says no less of the request than its status does."""
    cut = ScriptedAnswer(b'{"error":{"mess', httpx.ReadError("reset"), status=told, headers=JSON)
    outcome = await relayed("chat_completions", cut)
    assert outcome.status == status
    error = json.loads(outcome.body)["error"]
    assert error["message"]
    assert code is None or error["code"] == code


async def test_account_trouble_is_our_trouble():
    trouble = ScriptedAnswer(b'{"error":{"message":"Incorrect API key secret-1"}}', status=401, headers=JSON)
    outcome = await relayed("chat_completions", trouble)
    assert (outcome.status, outcome.run.ending) == (502, "provider_error")
    assert b"secret-1" not in outcome.body


async def test_refused_stream_options_are_remembered():
    error = {
        "message": "Unknown parameter: stream_options", "type": "invalid_request_error",
        "param": "stream_options", "code": "unknown_parameter",
    }  # fmt: skip
    refusal = ScriptedAnswer(json.dumps({"error": error}).encode(), status=400, headers=JSON)
    outcome = await relayed("chat_completions", refusal, answer("chat_completions"))
    assert outcome.status == 200
    first, second = (json.loads(body) for _, body, _ in outcome.upstream.calls)
    assert first["stream_options"] == {"include_usage": True}
    assert "stream_options" not in second
    assert outcome.unasked == {1}


def refused(message: str, **error) -> ScriptedAnswer:
    told = {"message": message, "type": "invalid_request_error", **error}
    return ScriptedAnswer(json.dumps({"error": told}).encode(), status=400, headers=JSON)


@pytest.mark.parametrize(
    ("wire", "asked", "stream", "answers"),
    [
        ("chat_completions", {}, False, ["'stream_options' is only allowed when 'stream' is enabled"]),
        ("chat_completions", {"stream_options": {"foo": 1}}, True, ["Unknown parameter in 'stream_options'"]),
        ("chat_completions", {"stream_options": {"include_usage": True}}, True, ["Unknown: 'stream_options.foo'"]),
        ("responses", {}, True, ["Unknown parameter: 'stream_options'"]),
        ("messages", {}, True, ["stream_options: Extra inputs are not permitted"]),
        ("chat_completions", {}, True, ["bad effort: 'stream_options'", "bad effort: 'stream_options'"]),
        ("chat_completions", {}, True, ["Unknown parameter: 'stream_options'", "The tool's schema is wrong"]),
    ],
)
async def test_client_s_own_mistake_costs_nobody_the_usage(wire, asked, stream, answers):
    """What a provider says of stream_options is ours to mend only where we sent them, and where that helps."""
    outcome = await relayed(wire, *map(refused, answers), request=asked, stream=stream)
    assert (outcome.status, json.loads(outcome.body)["error"]["message"]) == (400, answers[-1])
    assert (len(outcome.upstream.calls), outcome.unasked) == (len(answers), set())


async def test_refused_stream_options_leave_other_routes():
    outcome = await relayed(
        "chat_completions", refused("Unknown parameter: 'stream_options'"), refused("Unknown parameter: 'n'"),
        answer("chat_completions"), routes=two_routes(),
    )  # fmt: skip
    assert (outcome.status, outcome.run.route.id) == (200, 2)


@pytest.mark.parametrize("wire", FORMATS)
async def test_failed_attempt_is_nobody_s_bill(wire):
    """Its prelude may report an input: whoever leaves while the error is written pays nothing for it."""
    outcome = await relayed(wire, ScriptedAnswer(PRELUDE[wire]), attempts=1)
    assert (outcome.status, outcome.run.live, outcome.run.meter) == (502, None, None)


# --- what a client must not see ---

TELLTALE = "call to http://provider-1.test/v1/x with Bearer secret-1 for vendor-model failed"
CLEAN = "call to [provider]/x with Bearer [credential] for m failed"


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("wire", FORMATS)
async def test_error_event_is_scrubbed_wherever_it_goes(wire, late):
    """Before the first output it becomes an answer, after it it passes; the record keeps no more than the client."""
    error = {"type": "server_error", "code": "server_error", "message": TELLTALE}
    events = {
        "chat_completions": event({"error": error}),
        "responses": typed("response.failed", response={**RESPONSE, "status": "failed", "error": error}),
        "messages": typed("error", error=error),
    }
    before = PRELUDE[wire] + OUTPUT[wire] if late else PRELUDE[wire]
    outcome = await relayed(
        wire, ScriptedAnswer(before, events[wire]), routes=[route(1, upstream_model="vendor-model")], attempts=1
    )
    assert outcome.status == (200 if late else 502)
    assert CLEAN.encode() in outcome.body
    for told in (outcome.body.decode(), outcome.run.reason, *(attempt.reason for attempt in outcome.run.attempts)):
        assert not any(word in told for word in ("secret-1", "provider-1", "vendor-model"))


async def test_refusal_after_a_keepalive_keeps_its_words():
    class Late(ScriptedAnswer):
        async def _play(self):
            (live,) = watch
            live.run.client.keepalive(one_line_end=False)
            await asyncio.sleep(0.02)
            yield json.dumps(
                {"error": {"message": "n is too large", "param": "n", "code": "invalid_value", "type": "x"}}
            ).encode()

    watch = set()
    outcome = await relayed("chat_completions", Late(status=400, headers=JSON), watch=watch)
    assert outcome.body.startswith(b": hopbase-keepalive\n\ndata: ")
    error = json.loads(outcome.body.partition(b"data: ")[2])["error"]
    assert (error["message"], error["param"], error["code"]) == ("n is too large", "n", "invalid_value")


@pytest.mark.parametrize("wire", FORMATS)
async def test_cut_after_a_keepalive_says_the_one_sentence(wire):
    class Late(ScriptedAnswer):
        async def _play(self):
            yield PRELUDE[wire]
            (live,) = watch
            live.run.client.keepalive(one_line_end=False)
            await asyncio.sleep(0.02)

    watch = set()
    outcome = await relayed(wire, Late(), watch=watch)
    assert b"Response stream interrupted, please retry" in outcome.body
    assert wire != "messages" or b'"type":"api_error"' in outcome.body


# --- errors in a 200 ---


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("error", "kind", "status", "calls"),
    [
        ({"type": "invalid_request_error", "code": "invalid_value", "message": "bad"}, "refused", 400, 2),
        ({"code": "context_length_exceeded", "message": "too long"}, "refused", 400, 1),
        ({"type": "insufficient_quota", "code": "insufficient_quota", "message": "pay"}, "account", 502, 2),
        ({"type": "server_error", "message": "down"}, "failed", 502, 2),
    ],
)
async def test_error_in_a_200_means_what_it_says(stream, error, kind, status, calls):
    told = [ScriptedAnswer(json.dumps({"error": error}).encode(), headers=JSON) for _ in range(2)]
    outcome = await relayed("chat_completions", *told, routes=two_routes(), stream=stream)
    assert (outcome.status, len(outcome.upstream.calls)) == (status, calls)
    assert {failure.kind for failure in outcome.run.failures} == {kind}
    assert outcome.headers.get("x-should-retry") == ("false" if kind == "account" else None)


# --- a short rate limit ---


@pytest.mark.parametrize("told", [{"retry-after": "0.1"}, {"retry-after-ms": "100.5"}])
async def test_client_is_watched_while_a_rate_limit_is_waited_for(told):
    class Seen(set):
        def add(self, live):
            seen.append(live)
            super().add(live)

    seen, watch = [], Seen()
    limited = ScriptedAnswer(b"{}", status=429, headers={**JSON, **told})
    outcome = await relayed("messages", limited, answer("messages"), watch=watch)
    assert (outcome.status, len(seen), seen[1].passage, set(watch)) == (200, 3, None, set())


async def test_bad_milliseconds_hide_no_seconds():
    limited = ScriptedAnswer(b"{}", status=429, headers={**JSON, "retry-after-ms": "abc", "retry-after": "23"})
    outcome = await relayed("messages", limited)
    assert (outcome.status, outcome.headers["retry-after"]) == (429, "23")


async def test_error_event_before_output_has_its_status():
    error = typed("error", error={"type": "overloaded_error", "message": "Overloaded"})
    outcome = await relayed("messages", ScriptedAnswer(error), ScriptedAnswer(error))
    assert outcome.status == 503
    assert json.loads(outcome.body)["error"] == {"type": "overloaded_error", "message": "Overloaded"}


async def test_error_event_after_output_passes():
    error = typed("error", error={"type": "overloaded_error", "message": "Overloaded"})
    shown = PRELUDE["messages"] + OUTPUT["messages"] + error
    outcome = await relayed("messages", ScriptedAnswer(shown, "hang"))
    assert (outcome.body, outcome.run.ending, outcome.complete) == (shown, "provider_error", True)
    assert [(attempt.outcome, attempt.reason) for attempt in outcome.run.attempts] == [("failed", "Overloaded")]


async def test_whole_answer_passes_untouched():
    body = (
        b'{"id":"c1","model":"m", "choices":[{"index":0,"message":{"role":"assistant","content":"hi"},'
        b'"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}'
    )
    told = ScriptedAnswer(body, headers={**JSON, "x-ratelimit-remaining-requests": "4"})
    outcome = await relayed("chat_completions", told, stream=False)
    assert outcome.body == body
    assert outcome.headers["x-ratelimit-remaining-requests"] == "4"
    assert outcome.run.answer.usage.usage.output == 1


async def test_silent_whole_answer_times_out():
    hanging = ScriptedAnswer("hang", headers=JSON)
    outcome = await relayed("chat_completions", hanging, stream=False)
    assert (outcome.status, outcome.run.ending) == (504, "timed_out")
    assert hanging.closed


async def test_event_over_the_limit_fails_cleanly():
    wire = "chat_completions"
    outcome = await relayed(wire, ScriptedAnswer(PRELUDE[wire], OUTPUT[wire], b"data: " + b"x" * 1_100_000))
    assert outcome.run.ending == "provider_cut"
    assert outcome.complete


async def test_last_event_over_the_limit_fails_cleanly():
    wire = "chat_completions"
    outcome = await relayed(wire, ScriptedAnswer(whole(wire)[:-20] + b"\n\n" + b"data: " + b"x" * 1_100_000))
    assert (outcome.run.ending, outcome.complete) == ("provider_cut", True)


async def test_endless_prelude_is_bounded():
    outcome = await relayed("chat_completions", ScriptedAnswer(*[PRELUDE["chat_completions"]] * 10_000))
    assert outcome.status == 502


# --- stored objects ---

CONTAINER = typed("response.output_item.added", output_index=1, item={"id": "ci", "container_id": "cntr_1"})


async def test_objects_are_remembered_as_they_come():
    outcome = await relayed(
        "responses", ScriptedAnswer(PRELUDE["responses"], OUTPUT["responses"], CONTAINER, ENDING["responses"])
    )
    assert outcome.remembered == [(1, ("resp_1",)), (1, ("resp_1", "cntr_1"))]


async def test_objects_are_known_before_the_client_knows():
    told = []

    def remember(run, route, ids):
        told.append((ids, run.client.started))

    await relayed("responses", answer("responses"), remember=remember)
    whole_answer = ScriptedAnswer(json.dumps(COMPLETED).encode(), headers=JSON)
    await relayed("responses", whole_answer, stream=False, remember=remember)
    assert told == [(("resp_1",), False)] * 2


async def test_failed_attempt_brings_no_objects():
    failing = ScriptedAnswer(PRELUDE["responses"])
    outcome = await relayed("responses", failing, answer("responses"), routes=two_routes())
    assert outcome.remembered == [(2, ("resp_1",))]
    assert [tuple(attempt.object_ids) for attempt in outcome.run.attempts] == [("resp_1",), ("resp_1",)]
    failed = await relayed("responses", ScriptedAnswer(PRELUDE["responses"]), attempts=1)
    assert failed.remembered == []


async def test_paid_answer_without_output_is_remembered():
    outcome = await relayed("responses", ScriptedAnswer(PRELUDE["responses"], ENDING["responses"]))
    assert (outcome.run.ending, outcome.remembered) == ("complete", [(1, ("resp_1",))])


async def test_cut_answer_is_remembered():
    outcome = await relayed("responses", ScriptedAnswer(PRELUDE["responses"], OUTPUT["responses"]))
    assert (outcome.run.ending, outcome.remembered) == ("provider_cut", [(1, ("resp_1",))])
