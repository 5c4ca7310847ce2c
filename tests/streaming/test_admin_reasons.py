"""The reasons that pages translate are those that relay and upstream write."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.conf import settings

from billing.phrases import PLACE, Phrase, known_again
from billing.words import STORED
from streaming.admin.standing import WRITTEN

SOURCES = ("relay", "upstream", "errors", "gateway", "passage", "protocols/sse")


@pytest.fixture(scope="module")
def source() -> str:
    return "".join((Path(settings.BASE_DIR) / f"streaming/{name}.py").read_text() for name in SOURCES)


@pytest.mark.parametrize("template", WRITTEN)
def test_somebody_writes_it(source: str, template: str) -> None:
    texts = map(re.escape, PLACE.split(template)[::2])
    assert re.search(r"\{[^}]+\}".join(texts), source)


@pytest.mark.parametrize("reason", ["status 401 invalid_api_key", "no output for 15 s", "no connection: TimeoutError"])
def test_stored_reason_is_known_again(reason: str) -> None:
    assert isinstance(known_again(reason, STORED), Phrase)
