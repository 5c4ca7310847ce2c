"""What a consumer answers when something fails that is no refusal."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from django.db import InterfaceError, OperationalError, ProgrammingError

from streaming.consumers import UsageConsumer, UsageRequestConsumer
from tests.streaming.entries import key

SECRET = "sk-test-consumers-0123456789abcdef"


class Failing:
    """A gateway that knows every key, and whose database answers nothing but an error."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.catalogue = self.billing = self.key_uses = self.limits = self

    async def start(self) -> None:
        pass

    def key_by_digest(self, digest: str, now: float) -> Any:
        return key()

    def note(self, digest: str, now: float) -> None:
        pass

    async def key_in_database(self, digest: str) -> Any:
        raise self._error

    async def admit_bare(self, *asked: Any) -> dict[str, str]:
        return {}

    async def in_database(self, *asked: Any) -> Any:
        raise self._error


class Unknowing(Failing):
    """The same, of a key that is not in memory."""

    def key_by_digest(self, digest: str, now: float) -> Any:
        return None


async def answer(consumer: type[Any], gateway: Any) -> tuple[int, dict[bytes, bytes], Any]:
    """Status, headers and body."""

    class Asked(consumer):  # type: ignore[misc]
        gateway_now = staticmethod(lambda: gateway)

    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "GET", "path": "/v1/usage", "query_string": b"", "client": ("127.0.0.1", 1),
        "headers": [(b"x-api-key", SECRET.encode())], "url_route": {"kwargs": {"name": "req_1"}},
    }  # fmt: skip
    await Asked.as_asgi()(scope, None, send)
    return sent[0]["status"], dict(sent[0]["headers"]), orjson.loads(sent[1]["body"])


@pytest.mark.parametrize("consumer", [UsageConsumer, UsageRequestConsumer])
@pytest.mark.parametrize("gateway", [Failing, Unknowing])
@pytest.mark.parametrize("error", [OperationalError("gone"), InterfaceError("closed")])
async def test_database_away_is_503(consumer: Any, gateway: Any, error: Exception) -> None:
    status, headers, body = await answer(consumer, gateway(error))
    assert (status, body["error"]["code"]) == (503, "service_unavailable")
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"x-request-id"] == headers[b"request-id"]


@pytest.mark.parametrize("error", [ProgrammingError("no such column"), KeyError("x")])
async def test_fault_of_ours_is_500_in_shape(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    status, headers, body = await answer(UsageConsumer, Failing(error))
    assert (status, body["error"]["code"], headers[b"x-should-retry"]) == (500, "internal_error", b"false")
    assert headers[b"x-request-id"].decode() in caplog.text
    assert str(error) in caplog.text
    assert SECRET not in caplog.text
    assert str(error) not in body["error"]["message"]
