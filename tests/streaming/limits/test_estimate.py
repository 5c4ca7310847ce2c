"""What a request is taken for before anything is counted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.limits.estimate import MAX_NANOS, base64_bytes, cost_nanos, estimate
from streaming.protocols import CHAT_COMPLETIONS, MESSAGES, RESPONSES
from tests.billing.factories import TIERS, price, priced
from tests.streaming.limits.processes import NOW

ASKED = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
BASE64 = "iVBORw0KGgo" + "Qk1Gm7Xz" * 4_000


def chat(**fields: Any) -> tuple[bytes, Any]:
    raw = json.dumps({**ASKED, **fields}).encode()
    return raw, CHAT_COMPLETIONS.read_request(raw)


@pytest.mark.parametrize(
    ("fields", "output"),
    [
        ({}, 4096),
        ({"max_tokens": 100}, 100),
        ({"max_completion_tokens": 70}, 70),
        ({"max_tokens": 100, "max_completion_tokens": 70}, 100),
        ({"n": 3}, 3 * 4096),
        ({"n": 3, "max_tokens": 100}, 300),
        ({"max_tokens": None, "n": None}, 4096),
    ],
)
def test_output_is_limit_times_choices(fields: dict[str, Any], output: int) -> None:
    raw, facts = chat(**fields)
    assert estimate(raw, facts) == (len(raw) // 4, output)


def test_other_formats_have_their_limits() -> None:
    raw = b'{"model":"m","input":"hi","max_output_tokens":9}'
    assert estimate(raw, RESPONSES.read_request(raw)) == (len(raw) // 4, 9)
    raw = b'{"model":"m","max_tokens":12,"messages":[{"role":"user","content":"hi"}]}'
    assert estimate(raw, MESSAGES.read_request(raw)).tokens == len(raw) // 4 + 12


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{BASE64}"}},
        {"type": "input_audio", "input_audio": {"data": BASE64, "format": "wav"}},
        {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{BASE64}=="}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": BASE64}},
    ],
)
def test_base64_is_no_text(part: dict[str, Any]) -> None:
    raw, facts = chat(messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}, part]}])
    assert estimate(raw, facts).input < 100


@pytest.mark.parametrize(
    "text", ["word " * 2_000, "這是中文" * 500, '{"a":1,"b":[2]}' * 200, "https://a.test/" * 50, "ab" * 50]
)
def test_text_is_no_base64(text: str) -> None:
    raw, facts = chat(messages=[{"role": "user", "content": text}])
    assert estimate(raw, facts).input == len(raw) // 4


@given(
    st.recursive(
        st.text() | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_any_json_is_walked(value: Any) -> None:
    assert (
        0 <= base64_bytes({"messages": value}) <= len(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    )


def test_deep_nesting_is_walked() -> None:
    value: Any = BASE64
    for _ in range(50_000):
        value = [value]
    assert base64_bytes(value) == len(BASE64)


def test_cost_is_that_of_the_price() -> None:
    prices = priced(price("m", tiers=TIERS))
    common = {"model": "m", "at": NOW, "currency": "USD", "price_of": prices}
    assert cost_nanos(1_000, 100, tier="", **common) == 1_000 * 5_000 + 100 * 30_000
    assert cost_nanos(1_000, 100, tier="priority", **common) == 2 * cost_nanos(1_000, 100, tier="", **common)
    assert cost_nanos(1_000, 100, tier="unheard-of", **common) == cost_nanos(1_000, 100, tier="", **common)
    assert cost_nanos(1, 1, **{**common, "tier": "", "currency": "EUR"}) == 0
    assert cost_nanos(10**12, 10**12, tier="", **common) <= MAX_NANOS
