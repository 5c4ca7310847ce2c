"""The wire formats by their names and by the paths under which customers reach them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from streaming.protocols import chat_completions, messages, responses
from streaming.protocols.meter import (
    Answer,
    GatewayError,
    InputContent,
    MeterOptions,
    ProviderError,
    RequestFacts,
    StreamMeter,
)


@dataclass(frozen=True, slots=True)
class WireFormat:
    """The public names of a wire format's module, as one value (see `meter`)."""

    name: str
    upstream_path: str
    read_request: Callable[[bytes], RequestFacts]
    prepare_request: Callable[..., bytes]
    input_content: Callable[[Mapping[str, Any]], InputContent]
    read_answer: Callable[[bytes, MeterOptions], Answer]
    read_error: Callable[[int, bytes], ProviderError]
    error_body: Callable[[GatewayError, str], bytes]
    Meter: Callable[[MeterOptions], StreamMeter]
    count_factor_ppm: int | None = None
    """What its models' tokens are per million of o200k, until records of a model tell better; None: they are o200k's,
    or the nearest that we have."""


def _of(module: ModuleType) -> WireFormat:
    return WireFormat(
        module.NAME, module.UPSTREAM_PATH, module.read_request, module.prepare_request, module.input_content,
        module.read_answer, module.read_error, module.error_body, module.Meter,
        getattr(module, "COUNT_FACTOR_PPM", None),
    )  # fmt: skip


CHAT_COMPLETIONS, RESPONSES, MESSAGES = map(_of, (chat_completions, responses, messages))
WIRE_FORMATS = {wire.name: wire for wire in (CHAT_COMPLETIONS, RESPONSES, MESSAGES)}
COUNT_TOKENS = replace(
    MESSAGES,
    upstream_path="messages/count_tokens",
    read_request=lambda raw: replace(messages.read_request(raw), stream=False),
    read_answer=messages.read_count,
)
"""Passed through and not billed. It never streams: a `stream` in its body is the provider's to refuse or to ignore."""
