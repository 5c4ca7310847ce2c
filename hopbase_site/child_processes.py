"""What a child process needs so that it does not outlive its parent."""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Callable

PR_SET_PDEATHSIG = 1
"""linux/prctl.h: the signal that the kernel sends when the parent is gone, `kill -9` included."""


def die_with_parent() -> Callable[[], None] | None:
    """A `preexec_fn` for Popen; None where the system knows nothing of the kind (macOS)."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    return ask
