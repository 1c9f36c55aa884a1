"""Room on the node's disk: new messages are refused before it is full.

A failed write would make the copy damaged, and what is stored already needs room to be released, acknowledged and
checkpointed. So the last part of the disk is not for enqueues.
"""

from __future__ import annotations

import os
import time

from delaynode.store.errors import Refused

CHECK_SECONDS = 0.25
RETRY_MS = 1_000


class DiskSpace:
    """reserve_bytes: what enqueues leave free. The disk is asked four times a second at most."""

    def __init__(self, directory: str, reserve_bytes: int) -> None:
        self._directory = directory
        self._reserve_bytes = reserve_bytes
        self._free_bytes = 0
        self._good_until = 0.0  # time.monotonic()

    def check(self) -> None:
        """Raises Refused DISK_FULL."""
        now = time.monotonic()
        if now >= self._good_until:
            disk = os.statvfs(self._directory)
            self._free_bytes = disk.f_bavail * disk.f_frsize
            self._good_until = now + CHECK_SECONDS
        if self._free_bytes < self._reserve_bytes:
            raise Refused(
                "DISK_FULL",
                f"the node's disk has {self._free_bytes >> 20:,} MiB free; {self._reserve_bytes >> 20:,} MiB are kept "
                "for what is stored already",
                retry_after_ms=RETRY_MS,
            )
