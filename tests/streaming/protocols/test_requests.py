"""Reading requests, and splicing the upstream's model name in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streaming.protocols import requests
from streaming.protocols.meter import BadRequest

LIMITS = ("max_tokens",)


def stored(body: dict[str, Any]) -> dict[str, Any]:
    """What a request names; an id where it is the only one of its field."""
    found = requests.stored_objects(json.dumps(body).encode(), body)
    return {name: ids[0] if len(ids) == 1 else list(ids) for name, ids in found.items()}


@pytest.mark.parametrize(
    ("raw", "param", "words"),
    [
        (b"", None, "not valid JSON"),
        (b"{", None, "not valid JSON"),
        (b"\xff{}", None, "not valid JSON"),
        (b'{"model":NaN}', None, "not valid JSON"),
        (b"[" * 100_000, None, "not valid JSON"),
        (b"[]", None, "not a JSON object"),
        (b'"text"', None, "not a JSON object"),
        (b"{}", "model", "/v1/models"),
        (b'{"model":""}', "model", "missing"),
        (b'{"model":5}', "model", "missing"),
        (b'{"model":"a","model":"b"}', "model", "2 times"),
        (rb'{"model":"a","mod\u0065l":"a"}', "model", "2 times"),
        (rb'{"model":"a","str\u0065am":true,"stream":false}', "stream", "2 times"),
        (b'{"model":"a","stream_options":{},"stream_options":{}}', "stream_options", "2 times"),
        (b'{"model":"a","max_tokens":1,"max_tokens":9999}', "max_tokens", "2 times"),
        (rb'{"model":"a","max\u005ftokens":1,"max_tokens":9999}', "max_tokens", "2 times"),
        (b'{"model":"a","previous_response_id":"a","previous_response_id":"b"}', "previous_response_id", "2 times"),
        (b'{"model":"a","container":"a","container":"b"}', "container", "2 times"),
    ],
)
def test_bad_body_names_the_remedy(raw: bytes, param: str | None, words: str) -> None:
    with pytest.raises(BadRequest, match=words) as refused:
        requests.read_body(raw, LIMITS)
    assert refused.value.param == param


@pytest.mark.parametrize(
    "raw",
    [
        rb'{"model":"a","input":"\ud83d"}',
        b'{"model":"a","metadata":{"model":"x","model":"y","stream":1},"seed":123456789012345678901234567890}',
        rb'{"model":"a","vendor":1,"vendor":2,"text":"\"model\":\"b\""}',
        rb' { "mod\u0065l" : "a" } ',
    ],
)
def test_odd_but_valid_body_is_read(raw: bytes) -> None:
    assert requests.read_body(raw, LIMITS)["model"] == "a"


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        ({}, None),
        ({"a": 5}, 5),
        ({"a": 5, "b": 9}, 9),
        ({"a": 7.0}, 7),
        ({"a": None, "b": "9"}, None),
        ({"a": True}, None),
        ({"a": -1}, None),
    ],
)
def test_token_limit_is_a_number(limits: dict[str, Any], found: int | None) -> None:
    assert requests.token_limit(limits, ("a", "b")) == found


def test_stream_is_a_boolean() -> None:
    assert [requests.stream_of(body) for body in ({}, {"stream": None}, {"stream": True})] == [False, False, True]
    with pytest.raises(BadRequest, match="true or false"):
        requests.stream_of({"stream": "true"})


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ({"messages": [{"role": "user", "content": "file_id"}]}, {}),
        ({"previous_response_id": "resp_1"}, {"previous_response_id": "resp_1"}),
        ({"previous_response_id": None, "conversation": None, "prompt": None, "container": ""}, {}),
        ({"conversation": {"id": "conv_1"}}, {"conversation": "conv_1"}),
        ({"conversation": "conv_1"}, {"conversation": "conv_1"}),
        ({"prompt": {"id": "pmpt_1", "version": "2"}}, {"prompt.id": "pmpt_1"}),
        ({"container": "cntr_1"}, {"container": "cntr_1"}),
        ({"container": {"id": "cntr_1", "skills": []}}, {"container": "cntr_1"}),
        ({"container": {"skills": [{"type": "anthropic"}]}}, {}),
        ({"messages": [{"content": [{"type": "file", "file": {"file_id": "file-1"}}]}]}, {"file_id": "file-1"}),
        ({"input": [{"content": [{"type": "input_file", "file_id": "file-1"}]}]}, {"file_id": "file-1"}),
        (
            {"tools": [{"type": "file_search", "vector_store_ids": ["vs_1", "vs_2"]}]},
            {"vector_store_ids": ["vs_1", "vs_2"]},
        ),
        ({"tools": [{"type": "mcp", "connector_id": "connector_x"}]}, {"connector_id": "connector_x"}),
        ({"tools": [{"type": "code_interpreter", "container": "cntr_1"}]}, {"container": "cntr_1"}),
        (
            {"tools": [{"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["f_1"]}}]},
            {"file_id": "f_1"},
        ),
        ({"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]}, {}),
        (
            {
                "tools": [
                    {
                        "function": {
                            "parameters": {"properties": {"file_id": {"type": "string"}}, "default": {"file_id": "x"}}
                        }
                    }
                ]
            },
            {},
        ),
        ({"messages": [{"content": [{"type": "tool_use", "input": {"file_id": "of the customer's own"}}]}]}, {}),
        ({"metadata": {"file_id": "x"}}, {}),
        ({"tools": [{"type": "mcp", "tunnel_id": "tunnel_1"}]}, {"connector_id": "tunnel_1"}),
        (
            {"tools": [{"type": "shell", "environment": {"type": "container_reference", "container_id": "cntr_1"}}]},
            {"container": "cntr_1"},
        ),
        (
            {
                "input": [
                    {"type": "code_interpreter_call", "id": f"ci_{n}", "container_id": f"cntr_{n}"} for n in "121"
                ],
                "tools": [{"type": "code_interpreter", "container": "cntr_3"}],
            },
            {"container": ["cntr_1", "cntr_2", "cntr_3"]},
        ),
        ({"container": {"id": "c_1", "skills": [{"type": "anthropic", "skill_id": "pptx"}]}}, {"container": "c_1"}),
        ({"container": {"skills": [{"type": "custom", "skill_id": "skill_01"}]}}, {"skill_id": "skill_01"}),
        ({"messages": [{"role": "assistant", "audio": {"id": "audio_1"}}]}, {"audio.id": "audio_1"}),
        ({"audio": {"voice": "alloy"}, "messages": [{"content": [{"type": "audio", "audio": "UklGRg=="}]}]}, {}),
        ({"thread": {"type": "continue", "previous_message_id": "msg_1"}}, {"previous_message_id": "msg_1"}),
        ({"thread": {"type": "create"}, "diagnostics": {"previous_message_id": "msg_1"}}, {}),
        ({"input": [{"type": "item_reference", "id": "msg_1"}, {"id": "rs_1"}]}, {"item_reference": ["msg_1", "rs_1"]}),
        ({"input": [{"type": None, "id": "msg_1", "role": "user"}]}, {"item_reference": "msg_1"}),
        ({"input": [{"type": "image_generation_call", "id": "ig_1"}]}, {"item_reference": "ig_1"}),
        ({"input": [{"type": "image_generation_call", "id": "ig_1", "result": "aGk="}]}, {}),
        ({"input": [{"id": "msg_1", "role": "assistant", "content": "Hi"}]}, {}),
        ({"input": [{"type": "reasoning", "id": "rs_1", "summary": []}]}, {}),
        ({"input": [{"type": "web_search_call", "id": "ws_1", "status": "completed"}]}, {}),
        ({"input": [{"type": "item_reference", "id": 5}, {"type": "item_reference"}, "text", None]}, {}),
    ],
)
def test_stored_objects_are_found(body: dict[str, Any], found: dict[str, str]) -> None:
    assert stored(body) == found


def test_escaped_name_of_a_stored_object_is_found() -> None:
    raw = rb'{"messages":[{"content":[{"fil\u0065_id":"file-1"}]}]}'
    assert requests.stored_objects(raw, json.loads(raw)) == {"file_id": ("file-1",)}


@pytest.mark.parametrize(
    "raw",
    [
        b'{"tools":[{"container":"mine","container":"theirs"}]}',
        b'{"tools":[{"container":"theirs"}],"tools":[]}',
        b'{"container":{"id":"mine","id":"theirs"}}',
        rb'{"messages":[{"fil\u0065_id":"theirs","file_id":null}]}',
        b'{"input":[{"id":"theirs"}],"input":"Hi"}',
        b'{"input":[{"id":"theirs"}],"input":[{"type":"custom_tool_call","input":"x"}]}',
    ],
)
def test_hidden_object_is_refused(raw: bytes) -> None:
    """We would read the last of two members, and a provider perhaps the first."""
    with pytest.raises(BadRequest, match=r"send it once"):
        requests.stored_objects(raw, json.loads(raw))


def test_repeated_names_elsewhere_are_read() -> None:
    body = {
        "input": [{"type": "custom_tool_call", "input": "container"}],
        "tools": [{"parameters": {"file_id": {}}}, {"parameters": {"file_id": {}}}],
    }
    assert stored(body) == {}


def test_deep_nesting_is_the_clients_fault() -> None:
    raw = b'{"container":{"id":"mine"},"deep":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}"
    with pytest.raises(BadRequest, match="nests too deep"):
        requests.stored_objects(raw, {"container": {"id": "mine"}})


@pytest.mark.parametrize(
    ("raw", "spliced"),
    [
        (b'{"model":"a","x":1}', b'{"model":"up/stream","x":1}'),
        (b' {"x":{"model":"a"} ,\t"model" :  "a"}\n', b' {"x":{"model":"a"} ,\t"model" :  "up/stream"}\n'),
        (rb'{"mod\u0065l":"a","y":"\ud83d"}', rb'{"mod\u0065l":"up/stream","y":"\ud83d"}'),
        (rb'{"text":"\"model\":\"a\"","model":"a"}', rb'{"text":"\"model\":\"a\"","model":"up/stream"}'),
        (rb'{"text":"model","model":"a\u00e9"}', rb'{"text":"model","model":"up/stream"}'),
    ],
)
def test_model_alone_is_spliced(raw: bytes, spliced: bytes) -> None:
    assert requests.splice_model(raw, "up/stream") == spliced
    assert requests.splice_model(raw, None) is raw
