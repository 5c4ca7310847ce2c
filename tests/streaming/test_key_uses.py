"""When secrets were last used: told at once for the first time, then once a minute."""

from __future__ import annotations

from streaming.key_uses import AGAIN_S, KeyUses

NOW = 1_800_000_000.0


def written(uses: KeyUses, now: float) -> dict[str, float]:
    due = uses.due(now)
    uses.written(due)
    return due


def test_first_use_is_due_at_once() -> None:
    uses = KeyUses()
    uses.note("a", NOW)
    uses.note("a", NOW + 1)
    uses.note("b", NOW)
    assert written(uses, NOW + 2) == {"a": NOW + 1, "b": NOW}
    assert written(uses, NOW + 3) == {}


def test_further_uses_wait_a_minute() -> None:
    uses = KeyUses()
    uses.note("a", NOW)
    written(uses, NOW)
    uses.note("a", NOW + 30)
    assert uses.due(NOW + AGAIN_S - 1) == {}
    assert uses.due(NOW + 40, all=True) == {"a": NOW + 30}
    assert written(uses, NOW + AGAIN_S) == {"a": NOW + 30}


def test_use_while_writing_is_kept() -> None:
    uses = KeyUses()
    uses.note("a", NOW)
    due = uses.due(NOW)
    uses.note("a", NOW + 1)
    uses.written(due)
    assert uses.due(NOW + AGAIN_S) == {"a": NOW + 1}


def test_failed_write_is_tried_again() -> None:
    uses = KeyUses()
    uses.note("a", NOW)
    assert uses.due(NOW) == uses.due(NOW + 5) == {"a": NOW}
