"""What is the same in the requests of all wire formats: reading them, and splicing the upstream's model name in."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from streaming.protocols import counts, lenient_json, spans
from streaming.protocols.meter import BadRequest

# The letters of every key that is looked for lie in U+005F..U+007A, so these begin any other spelling of one.
_ESCAPED_LETTERS = (b"\\u005", b"\\u006", b"\\u007")

_IDS = {
    "previous_response_id": "previous_response_id",
    "conversation": "conversation",
    "file_id": "file_id",
    "file_ids": "file_id",
    "vector_store_ids": "vector_store_ids",
    "connector_id": "connector_id",
    "tunnel_id": "connector_id",  # of an MCP server in the provider account's own network
    "skill_id": "skill_id",
    "container": "container",  # code_interpreter: {"container": "cntr_…"}
    "container_id": "container",  # a shell's environment, and earlier calls: "auto" goes on in their container
    "audio": "audio.id",  # of an assistant's earlier message
}
"""Members that name stored objects, wherever they stand, and as what."""

_MEMBERS = re.compile(rb'"(?:' + "|".join(_IDS).encode() + rb')"[ \t\n\r]*+:')

_ONCE = ("model", "stream", "stream_options", "previous_response_id", "container", "conversation", "prompt", "thread")
"""What we would read one way and the provider the other: fields that must not be repeated, beside the token limits."""

_FREE_JSON = ("parameters", "input_schema", "schema", "metadata")
"""Values that hold whatever a customer wants, with any names."""

_CUSTOM_SKILL = "skill_"
"""What the ids of an account's own skills begin with; the vendors' have plain names."""


def read_body(raw: bytes, limits: Collection[str]) -> dict[str, Any]:
    """A request's JSON object, with a model. `limits`: the names of its token limits, and what else must come once.

    BadRequest: no JSON, no object, no model, or a field twice that we would read one way and the provider the other.
    """
    try:
        body = lenient_json.loads(raw)
    except ValueError as error:
        raise BadRequest(f"The body is not valid JSON ({error}); send a JSON object in UTF-8.") from None
    if not isinstance(body, dict):
        raise BadRequest("The body is not a JSON object; send one with at least `model`.")
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise BadRequest("`model` is missing; set it to the id of one of the models of /v1/models.", param="model")
    _refuse_repeated(raw, (*_ONCE, *limits))
    return body


def _refuse_repeated(raw: bytes, names: Collection[str]) -> None:
    if not has_escaped_letters(raw) and all(raw.count(_quoted(name)) <= 1 for name in names):
        return
    seen = Counter(member.key for member in spans.members(raw))
    for name in names:
        if seen[name] > 1:
            raise BadRequest(f"`{name}` stands in the body {seen[name]} times; send it once.", param=name)


def stream_of(body: Mapping[str, Any]) -> bool:
    """BadRequest: `stream` is neither a boolean nor null."""
    stream = body.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise BadRequest("`stream` is not a boolean; send true or false.", param="stream")
    return bool(stream)


def token_limit(body: Mapping[str, Any], names: Iterable[str]) -> int | None:
    """The largest of the token limits that are numbers above zero; what is none is the provider's to refuse."""
    found = [number for name in names if (number := counts.whole(body.get(name))) is not None and number > 0]
    return max(found, default=None)


def text_of(body: Mapping[str, Any], name: str) -> str:
    """A field's text; "" where it is none."""
    value = body.get(name)
    return value if isinstance(value, str) else ""


# --- stored objects ---


def stored_objects(raw: bytes, body: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The objects of the provider's account that a request names, by field; BadRequest where it could hide some.

    `item_reference` stands for every input item that is but an id.
    """
    named = [("prompt.id", id) for id in _ids_in(counts.inner(body, "prompt"))]
    if thread_id := text_of(counts.inner(body, "thread"), "previous_message_id"):
        named.append(("previous_message_id", thread_id))
    if "input" in body:
        named += _references(raw, body["input"])
    # A long conversation without any of the names is searched faster than walked.
    if (mentioned := len(_MEMBERS.findall(raw))) or has_escaped_letters(raw):
        named += _named_members(raw, body, mentioned)
    found: dict[str, dict[str, None]] = {}
    for name, id in named:
        found.setdefault(name, {})[id] = None
    return {name: tuple(ids) for name, ids in found.items()}


def _references(raw: bytes, given: object) -> list[tuple[str, str]]:
    """The input items that are references, of an input that no other one can hide."""
    items = [item for item in given if isinstance(item, dict)] if isinstance(given, list) else []
    if raw.count(b'"input"') > 1 + sum("input" in item for item in items):
        _refuse_repeated(raw, ("input",))
    return [("item_reference", item["id"]) for item in items if _is_reference(item)]


def _is_reference(item: Mapping[str, Any]) -> bool:
    """Whether an input item is but an id, whose content the provider would fetch from what it has stored.

    The type may be left out. An image_generation_call without its result is how OpenAI documents the editing of an
    earlier image.
    """
    if not text_of(item, "id"):
        return False
    kind = item.get("type")
    if not kind:
        return item.get("content") is None
    return kind == "item_reference" or (kind == "image_generation_call" and not item.get("result"))


def _named_members(raw: bytes, body: Mapping[str, Any], mentioned: int) -> list[tuple[str, str]]:
    """What members name, as (field, id). Where more are mentioned than seen, a repeated key may hide them."""
    named: list[tuple[str, str]] = []
    seen = 0
    pending: list[Any] = [body]
    for node in pending:  # grows while it is walked: no recursion, so depth costs nothing
        if isinstance(node, list):
            pending += [item for item in node if isinstance(item, dict | list)]
        elif isinstance(node, dict):
            for key, value in _told(node):
                if key in _IDS:
                    seen += 1
                    named += [(_IDS[key], id) for id in _ids_in(value) if _is_stored(key, value, id)]
                if isinstance(value, dict | list):
                    pending.append(value)
    if named or seen != mentioned or has_escaped_letters(raw):
        _refuse_repeated_anywhere(raw)
    return named


def _is_stored(key: str, value: object, id: str) -> bool:
    """Whether what a member names is kept in the provider's account: not sound as such, nor a vendor's own skill."""
    if key == "audio":
        return isinstance(value, dict)
    return key != "skill_id" or id.startswith(_CUSTOM_SKILL)


def _refuse_repeated_anywhere(raw: bytes) -> None:
    try:
        key = lenient_json.repeated_key(raw)
    except ValueError as error:
        raise BadRequest(f"The body cannot be read ({error}); send less nested JSON.") from None
    if key is not None:
        raise BadRequest(f"`{key[:100]}` stands twice in one object; send it once.", param=key[:100])


def _told(node: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The members that mean something to the provider: not free JSON, nor what a model handed to a tool."""
    is_call = text_of(node, "type").endswith("tool_use")
    return ((key, value) for key, value in node.items() if key not in _FREE_JSON and not (is_call and key == "input"))


def _ids_in(value: object) -> list[str]:
    """The ids in a value that is one, a list of them, or an object that has one."""
    if isinstance(value, dict):
        value = value.get("id")
    return [id for id in (value if isinstance(value, list) else [value]) if isinstance(id, str) and id]


# --- splicing ---


def model_edits(raw: bytes, upstream_model: str) -> list[spans.Edit]:
    """The edits that put the upstream's model name in the place of the customer's."""
    name = lenient_json.dumps(upstream_model)
    return [(member.value_start, member.value_end, name) for member in locate(raw, "model")]


def splice_model(raw: bytes, upstream_model: str | None) -> bytes:
    """The request with the upstream's model name; None: as it came."""
    return raw if upstream_model is None else spans.apply_edits(raw, model_edits(raw, upstream_model))


def locate(raw: bytes, name: str) -> Sequence[spans.Member]:
    """The top-level members of this name, of which the parsed body has at least one.

    Where the quoted name occurs once and no letter is escaped, that one is it, and the rest need not be scanned.
    """
    quoted = _quoted(name)
    if raw.count(quoted) == 1 and not has_escaped_letters(raw):
        return [spans.member_at(raw, raw.index(quoted))]
    return [member for member in spans.members(raw) if member.key == name]


def has_escaped_letters(raw: bytes) -> bool:
    return b"\\u00" in raw and any(escape in raw for escape in _ESCAPED_LETTERS)


def _quoted(name: str) -> bytes:
    return b'"' + name.encode() + b'"'
