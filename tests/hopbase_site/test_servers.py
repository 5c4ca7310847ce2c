"""What signals mean for a process that serves: a drain first, then its end."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from hopbase_site.servers import GRACE_S, LAST_WORDS_S, Application, Ending

DRAIN_S = 60.0
BOTH = [signal.SIGTERM, signal.SIGINT]


class Gateway:
    """Remembers what it was told; `drained` is set by hand. `now` is the clock of its ending."""

    def __init__(self, is_worker: bool = False) -> None:
        self.told: list[str] = []
        self.drained, self.now = False, 100.0
        application = Application(
            self._serve, lambda: self.told.append("drain"), lambda: self.told.append("end"), lambda: self.drained,
            self._aclose, DRAIN_S, is_worker,
        )  # fmt: skip
        self.ending = Ending(application, lambda: self.now)

    async def _serve(self, *arguments: Any) -> None:
        raise AssertionError("nobody asks")

    async def _aclose(self) -> None:
        raise AssertionError("the server does that")


def test_nothing_ends_by_itself() -> None:
    gateway = Gateway()
    gateway.drained, gateway.now = True, 1e9
    assert not gateway.ending.is_over


@pytest.mark.parametrize("number", BOTH)
@pytest.mark.parametrize("is_worker", [False, True])
def test_first_signal_drains(number: int, is_worker: bool) -> None:
    gateway = Gateway(is_worker)
    gateway.ending.signalled(number)
    assert gateway.told == ["drain"]
    assert not gateway.ending.is_over
    gateway.drained = True
    assert gateway.ending.is_over


def test_drain_has_an_end() -> None:
    gateway = Gateway()
    gateway.ending.signalled(signal.SIGTERM)
    assert gateway.ending.left_s == DRAIN_S + LAST_WORDS_S + GRACE_S
    gateway.now += DRAIN_S + LAST_WORDS_S
    assert not gateway.ending.is_over
    gateway.now += 0.1
    assert gateway.ending.is_over
    assert gateway.ending.left_s == GRACE_S


@pytest.mark.parametrize("number", [*BOTH, signal.SIGQUIT])
def test_second_signal_ends_streams(number: int) -> None:
    gateway = Gateway()
    gateway.ending.signalled(signal.SIGTERM)
    gateway.ending.signalled(number)
    assert gateway.told == ["drain", "end"]
    assert gateway.ending.left_s == LAST_WORDS_S + GRACE_S


def test_later_signals_win_no_time() -> None:
    gateway = Gateway()
    for _ in range(3):
        gateway.ending.signalled(signal.SIGTERM)
        gateway.now += 0.5
    assert gateway.ending.left_s == LAST_WORDS_S - 1.0 + GRACE_S


def test_worker_takes_repeats_for_one() -> None:
    """A signal to the whole group comes to a worker twice: directly, and from its parent."""
    gateway = Gateway(is_worker=True)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTERM):
        gateway.ending.signalled(number)
    assert gateway.told == ["drain"]
    gateway.ending.signalled(signal.SIGQUIT)
    assert gateway.told == ["drain", "end"]


def test_quit_alone_ends_streams() -> None:
    gateway = Gateway(is_worker=True)
    gateway.ending.signalled(signal.SIGQUIT)
    gateway.ending.signalled(signal.SIGTERM)
    assert gateway.told == ["end"]
    assert gateway.ending.left_s == LAST_WORDS_S + GRACE_S
