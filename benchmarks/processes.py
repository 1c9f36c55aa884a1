"""What a benchmark asks of a process that it has started, from /proc, and how it waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

TICKS_OF = 100  # clock ticks a second in /proc


def until(true: Callable[[], object], pause_s: float = 0.2, timeout_s: float = 600.0) -> None:
    until_s = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > until_s:
            raise SystemExit(f"not so after {timeout_s:.0f} s")
        time.sleep(pause_s)


def status(pid: int, field: str) -> int:
    """A number of /proc/PID/status: KiB, or a count."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(it for it in lines if it.startswith(f"{field}:")).split()[1])


def cpu_of(pid: int) -> float:
    """Processor seconds since its start."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_OF
