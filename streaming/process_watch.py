"""What a process uses, for /metrics: looked at once a second."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from streaming import metrics

LOOK_S = 1.0
STATM = Path("/proc/self/statm")


async def watch_process() -> None:
    """Tell of processor time, memory and a busy loop, until cancelled."""
    metrics.PROCESSES.set(1)
    cpu_s = 0.0
    while True:
        now_s = time.process_time()
        metrics.CPU.inc(now_s - cpu_s)
        cpu_s = now_s
        if (resident := resident_bytes()) is not None:
            metrics.RESIDENT.set(resident)
        due = time.monotonic() + LOOK_S
        await asyncio.sleep(LOOK_S)
        metrics.LOOP_DELAY.observe(max(0.0, time.monotonic() - due))


def resident_bytes() -> int | None:
    """The memory of this process; None where the system has no /proc (macOS)."""
    if not STATM.exists():
        return None
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
