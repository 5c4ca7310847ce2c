"""What is the same in the requests of all wire formats: reading them, and splicing the upstream's model name in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from streaming.protocols import counts, lenient_json, spans
from streaming.protocols.meter import BadRequest

# The letters of every key that is looked for lie in U+005F..U+007A, so these begin any other spelling of one.
_ESCAPED_LETTERS = (b"\\u005", b"\\u006", b"\\u007")

_NESTED_IDS = {
    "file_id": "file_id",
    "file_ids": "file_id",
    "vector_store_ids": "vector_store_ids",
    "connector_id": "connector_id",
}
_TOOL_IDS = {**_NESTED_IDS, "container": "container"}  # code_interpreter: {"container": "cntr_…"}
_FREE_JSON = ("parameters", "input_schema", "schema", "metadata")
"""Values that hold whatever a customer wants, with any names."""


def read_body(raw: bytes, limits: Collection[str]) -> dict[str, Any]:
    """A request's JSON object, with a model. `limits`: the names of its token limits.

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
    _refuse_repeated(raw, ("model", "stream", "stream_options", *limits))
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


def stored_objects(raw: bytes, body: Mapping[str, Any]) -> dict[str, str]:
    """The objects of the provider's account that a request names, by field, each with the first id."""
    found = {name: id_ for name in ("previous_response_id", "container", "conversation") if (id_ := _id_of(body, name))}
    prompt = body.get("prompt")
    if isinstance(prompt, dict) and (id_ := text_of(prompt, "id")):
        found["prompt.id"] = id_
    if _mentions_ids(raw):
        for root in ("input", "messages", "system"):
            _collect(body.get(root), _NESTED_IDS, found)
        _collect(body.get("tools"), _TOOL_IDS, found)
    return found


def _id_of(body: Mapping[str, Any], name: str) -> str:
    """The id of a field that is an id, or an object that has one."""
    value = body.get(name)
    return text_of(value, "id") if isinstance(value, dict) else text_of(body, name)


def _mentions_ids(raw: bytes) -> bool:
    """Whether the walk is worth it: a long conversation without any of the names is searched faster than walked."""
    return has_escaped_letters(raw) or any(name.encode() in raw for name in _TOOL_IDS)


def _collect(root: object, names: Mapping[str, str], found: dict[str, str]) -> None:
    pending = [root]
    for node in pending:  # grows while it is walked: no recursion, so depth costs nothing
        if isinstance(node, list):
            pending += [item for item in node if isinstance(item, dict | list)]
        elif isinstance(node, dict):
            for key, value in _told(node):
                if key in names and (id_ := _first_text(value)):
                    found.setdefault(names[key], id_)
                elif isinstance(value, dict | list):
                    pending.append(value)


def _told(node: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The members that mean something to the provider: not free JSON, nor what a model handed to a tool."""
    is_call = text_of(node, "type").endswith("tool_use")
    return ((key, value) for key, value in node.items() if key not in _FREE_JSON and not (is_call and key == "input"))


def _first_text(value: object) -> str:
    """A text, the first text of a list, or the id of an object."""
    if isinstance(value, list):
        value = next((item for item in value if isinstance(item, str) and item), "")
    if isinstance(value, dict):
        value = value.get("id")
    return value if isinstance(value, str) else ""


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
