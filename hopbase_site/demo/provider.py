"""The fake provider: an ASGI application that streams scripts at a natural pace.

`python -m hopbase_site.demo.provider` serves it. It counts what it says by words, reports cached, written and reasoning
tokens, and knows one credential.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import uvicorn

from hopbase_site.demo import script, wire

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

CREDENTIAL_VARIABLE = "DEMO_PROVIDER_KEY"
BODIES = {
    "/v1/chat/completions": wire.chat_body,
    "/v1/responses": wire.responses_body,
    "/v1/messages": wire.messages_body,
}
JSON = [(b"content-type", b"application/json")]


class Provider:
    """The ASGI application. `credential` "": any is taken."""

    def __init__(self, credential: str = "") -> None:
        self._credential = credential

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = _parsed(await _read(receive))
        path = scope["path"]
        if not self._knows(dict(scope["headers"])):
            await _answer(send, 401, _error("authentication_error", "unknown credential"))
        elif path == "/v1/messages/count_tokens":
            await _answer(send, 200, {"input_tokens": script.write(script.prompt_of(body)).usage.input})
        elif path not in BODIES:
            await _answer(send, 404, _error("not_found_error", f"no {path} here"))
        else:
            await self._speak(path, body, send)

    def _knows(self, headers: Mapping[bytes, bytes]) -> bool:
        given = (headers.get(b"authorization", b"").removeprefix(b"Bearer "), headers.get(b"x-api-key", b""))
        return not self._credential or self._credential.encode() in given

    async def _speak(self, path: str, body: Mapping[str, Any], send: Send) -> None:
        said, model, identity = script.write(script.prompt_of(body)), str(body.get("model", "")), uuid.uuid4().hex
        if said.fail is not None:
            await _answer(send, said.fail, _error("api_error", "told to fail by the prompt"))
        elif body.get("stream"):
            await _stream(send, _events(path, said, model, identity, body), cut=said.cut)
        else:
            await asyncio.sleep(script.FIRST_S + said.silent_s)
            await _answer(send, 200, BODIES[path](said, model, identity))


def _events(path: str, said: script.Script, model: str, identity: str, body: Mapping[str, Any]) -> wire.Events:
    if path == "/v1/responses":
        return wire.responses_stream(said, model, identity)
    if path == "/v1/messages":
        return wire.messages_stream(said, model, identity)
    return wire.chat_stream(said, model, identity, bool((body.get("stream_options") or {}).get("include_usage")))


async def _stream(send: Send, events: wire.Events, *, cut: bool) -> None:
    """Send the events; a cut stream returns without the body's end, on which the server breaks the connection."""
    headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for pause_s, event in events:
        await asyncio.sleep(pause_s)
        await send({"type": "http.response.body", "body": event, "more_body": True})
    if not cut:
        await send({"type": "http.response.body", "body": b""})


def _error(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message, "code": kind, "param": None}}


async def _answer(send: Send, status: int, value: Any) -> None:
    await send({"type": "http.response.start", "status": status, "headers": JSON})
    await send({"type": "http.response.body", "body": json.dumps(value, ensure_ascii=False).encode()})


async def _read(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += bytes(message.get("body", b""))
        if not message.get("more_body"):
            return body


def _parsed(raw: bytes) -> dict[str, Any]:
    try:
        value = json.loads(raw or b"{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def main() -> None:
    """Serve on an inherited listener until a signal ends it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="an inherited listening socket")
    listener = socket.socket(fileno=parser.parse_args().fd)
    provider = Provider(os.environ.get(CREDENTIAL_VARIABLE, ""))
    config = uvicorn.Config(
        provider, lifespan="off", ws="none", log_level="critical", access_log=False, timeout_graceful_shutdown=1
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
