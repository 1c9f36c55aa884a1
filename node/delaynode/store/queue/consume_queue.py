"""ConsumeQueue: the released messages in order, by queue offset.

unit, 40 bytes, at 40 * queue offset
  0 record's CommitLog offset i64 | 8 size u32 | 12 tag hash u32 | 16 due i64 ms | 24 seq i64
 32 record's check u32 | 36 own check u32, of the unit and its queue offset (see checks.py)
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from delaynode.store.errors import Damaged
from delaynode.store.log.checks import first_difference, unit_checks
from delaynode.store.log.files import Files
from delaynode.store.log.segments import SegmentedFile
from delaynode.store.types import I64, U32, Array, Records, raw

QUEUED = np.dtype(
    [
        ("offset", "<i8"),
        ("size", "<u4"),
        ("tag", "<u4"),
        ("due", "<i8"),
        ("seq", "<i8"),
        ("check", "<u4"),
        ("own", "<u4"),
    ]
)
QUEUED_BYTES = QUEUED.itemsize
TAIL_ROWS = 64  # of the last commit that are kept: a consumer that waits gets them without asking the file
OWN_WORD = QUEUED_BYTES // 4 - 1


def own_checks(rows: Records, offset: int, uid: int) -> Array:
    """The own checks u32 (n,) that a shard's units from queue offset `offset` on should have, whatever they say."""
    return unit_checks(rows, range(offset, offset + len(rows)), OWN_WORD, 32, uid)


class ReleasedRows(NamedTuple):
    """What one frame released: rows of dtype QUEUED. arrived_ms: when they came, if they were due by then; else 0."""

    rows: Records
    arrived_ms: int


class ConsumeQueue:
    """Units are staged when their frame is applied and written, and so visible, when it is committed."""

    def __init__(self, files: Files, directory: str, segment_bytes: int, uid: int = 0) -> None:
        self.uid = uid
        self.file = SegmentedFile(files, directory, segment_bytes)
        self._staged: deque[tuple[int, ReleasedRows]] = deque()
        self._tail = np.empty(0, QUEUED)  # the last visible units, as they were written
        self.start = 0  # the first queue offset that is kept; a TRIM moves it
        self.end = self.file.end // QUEUED_BYTES  # queue offset after the last applied unit

    @property
    def visible(self) -> int:
        """Queue offset after the last committed unit."""
        return self.file.end // QUEUED_BYTES

    def stage(
        self,
        frame_end: int,
        due: I64,
        seq: I64,
        offset: I64,
        size: U32,
        tag: U32,
        check: U32,
        arrived_ms: int = 0,
    ) -> None:
        """n messages are released by the frame that ends at log offset `frame_end`, see Released."""
        rows = np.empty(len(due), QUEUED)
        rows["due"], rows["seq"], rows["offset"] = due, seq, offset
        rows["size"], rows["tag"], rows["check"] = size, tag, check
        rows["own"] = own_checks(rows, self.end, self.uid)
        self._staged.append((frame_end, ReleasedRows(rows, arrived_ms)))
        self.end += len(rows)

    def commit(self, committed_offset: int) -> list[ReleasedRows]:
        """Write what frames up to log offset `committed_offset` released; returns it, in order."""
        ready: list[ReleasedRows] = []
        while self._staged and self._staged[0][0] <= committed_offset:
            ready.append(self._staged.popleft()[1])
        if ready:
            buffers = [raw(released.rows) for released in ready]
            self.file.append(buffers, sum(len(buffer) for buffer in buffers))
            last = ready[-1].rows
            last.flags.writeable = False  # who reads it has what others read
            self._tail = last if len(last) <= TAIL_ROWS else self._tail[:0]
        return ready

    def read(self, offset: int, count: int) -> Records:
        """Up to `count` visible units from queue offset `offset` on; fewer at the end. Raises Damaged."""
        count = min(count, self.visible - offset)
        if count <= 0:
            return np.empty(0, QUEUED)
        if (before := self.visible - offset - len(self._tail)) <= 0:
            return self._tail[-before : count - before]
        rows = np.frombuffer(self.file.read(offset * QUEUED_BYTES, count * QUEUED_BYTES), QUEUED)
        bad = first_difference(rows["own"], own_checks(rows, offset, self.uid))
        if bad >= 0:
            raise Damaged(f"{self.file.directory}: the check of the unit at queue offset {offset + bad} differs")
        return rows

    def sync(self) -> None:
        self.file.sync()

    def cut(self, end: int) -> None:
        """Drop what is staged and every unit from queue offset `end` on."""
        self._staged.clear()
        self._tail = self._tail[:0]
        self.file.truncate(end * QUEUED_BYTES, self.start * QUEUED_BYTES)
        self.end = end
