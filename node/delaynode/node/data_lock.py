"""One process a data directory: two that append to the same logs would ruin them.

The registry can't see to that: it would give a second process of the node the next term while the first still serves.
"""

from __future__ import annotations

import fcntl
import os
from typing import IO


class DataInUse(RuntimeError):
    """Another process works in the directory."""


def lock_data(directory: str) -> IO[str]:
    """Held while the file is open: until the process ends, however it ends. Raises DataInUse, OSError."""
    os.makedirs(directory, exist_ok=True)
    lock = open(os.path.join(directory, "lock"), "a", encoding="utf-8")  # noqa: SIM115
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise DataInUse(f"{directory} is used by another process") from None
    return lock
