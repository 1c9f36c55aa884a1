"""Events as JSON lines, into a file or a stream, from several threads."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

KEPT_BYTES = 16 << 20


class EventFile:
    """Call it with an event. A file that has grown beyond KEPT_BYTES is put aside first, as `.1`."""

    def __init__(self, to: Path | TextIO) -> None:
        self._owned = isinstance(to, Path)
        if isinstance(to, Path):
            if to.exists() and to.stat().st_size > KEPT_BYTES:
                to.replace(to.with_name(to.name + ".1"))
            to = to.open("a", encoding="utf-8")
        self._out = to
        self._lock = threading.Lock()

    def __call__(self, event: Mapping[str, object]) -> None:
        line = json.dumps({"time_ms": time.time_ns() // 1_000_000, **event})
        with self._lock, contextlib.suppress(OSError, ValueError):
            # The reader has gone, or the disk is full: no reason for the cluster to stop.
            self._out.write(line + "\n")
            self._out.flush()

    def close(self) -> None:
        if self._owned:
            self._out.close()
