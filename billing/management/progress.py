"""The progress line of a command that takes long: written over and over on a terminal, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable

from django.core.management.base import OutputWrapper


def progress(out: OutputWrapper, what: str) -> Callable[[int, int], None]:
    """What a long step tells how many of its parts are done, and how many there are."""

    def tell(done: int, total: int) -> None:
        if out.isatty():
            out.write(f"\r{what}: {done} of {total}", ending="\n" if done >= total else "")
            out.flush()

    return tell
