"""ConsumeQueue: the released messages in order, by queue offset.

unit, 32 bytes, at 32 * queue offset
  0 record's CommitLog offset i64 | 8 size u32 | 12 tag hash u32 | 16 due i64 ms | 24 seq i64
"""

from __future__ import annotations

from collections import deque

import numpy as np

from delaynode.store.files import Files
from delaynode.store.segments import SegmentedFile
from delaynode.store.types import I64, U32, Records, raw

QUEUED = np.dtype([("offset", "<i8"), ("size", "<u4"), ("tag", "<u4"), ("due", "<i8"), ("seq", "<i8")])
QUEUED_BYTES = QUEUED.itemsize


class ConsumeQueue:
    """Units are staged when their frame is applied and written, and so visible, when it is committed."""

    def __init__(self, files: Files, directory: str, segment_bytes: int) -> None:
        self.file = SegmentedFile(files, directory, segment_bytes)
        self._staged: deque[tuple[int, Records]] = deque()
        self.end = self.file.end // QUEUED_BYTES  # queue offset after the last applied unit

    @property
    def visible(self) -> int:
        """Queue offset after the last committed unit."""
        return self.file.end // QUEUED_BYTES

    def stage(self, frame_end: int, due: I64, seq: I64, offset: I64, size: U32, tag: U32) -> None:
        """n messages are released by the frame that ends at log offset `frame_end`."""
        rows = np.empty(len(due), QUEUED)
        rows["due"], rows["seq"], rows["offset"], rows["size"], rows["tag"] = due, seq, offset, size, tag
        self._staged.append((frame_end, rows))
        self.end += len(rows)

    def commit(self, committed: int) -> list[Records]:
        """Write what frames up to log offset `committed` released; returns it, in order."""
        ready: list[Records] = []
        while self._staged and self._staged[0][0] <= committed:
            ready.append(self._staged.popleft()[1])
        if ready:
            buffers = [raw(rows) for rows in ready]
            self.file.append(buffers, sum(len(buffer) for buffer in buffers))
        return ready

    def read(self, offset: int, count: int) -> Records:
        """Up to `count` visible units from queue offset `offset` on; fewer at the end."""
        count = min(count, self.visible - offset)
        if count <= 0:
            return np.empty(0, QUEUED)
        return np.frombuffer(self.file.read(offset * QUEUED_BYTES, count * QUEUED_BYTES), QUEUED)

    def sync(self) -> None:
        self.file.sync()

    def cut(self, end: int) -> None:
        """Drop what is staged and every unit from queue offset `end` on."""
        self._staged.clear()
        self.file.truncate(end * QUEUED_BYTES)
        self.end = end
