"""Events as JSON lines, each with its time: what every process of ours logs."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TextIO

KEPT_BYTES: Final = 16 << 20


class EventLog:
    """Call it with an event, from any thread. `to`: a file or a stream; None: stderr.

    A file that has grown beyond KEPT_BYTES is first put aside as `.1`. A reader that has gone, or a full disk, is no
    reason for the process to stop: the event is lost then.
    """

    def __init__(self, to: Path | TextIO | None = None) -> None:
        self._owned = isinstance(to, Path)
        if isinstance(to, Path):
            if to.exists() and to.stat().st_size > KEPT_BYTES:
                to.replace(to.with_name(to.name + ".1"))
            to = to.open("a", encoding="utf-8")
        self._out = to
        self._lock = threading.Lock()

    def __call__(self, event: Mapping[str, object]) -> None:
        line = json.dumps({"time_ms": time.time_ns() // 1_000_000, **event}, default=str)
        with self._lock, contextlib.suppress(OSError, ValueError):
            print(line, file=self._out or sys.stderr, flush=True)

    def close(self) -> None:
        if self._owned and self._out is not None:
            self._out.close()
