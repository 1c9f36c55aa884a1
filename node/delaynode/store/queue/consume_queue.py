"""ConsumeQueue: the released messages in order, by queue offset.

unit, 40 bytes, at 40 * queue offset
  0 record's CommitLog offset i64 | 8 size u32 | 12 tag hash u32 | 16 due i64 ms | 24 seq i64
 32 record's check u32 | 36 own check u32, of the unit and its queue offset (see checks.py)
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from delaynode.store.columns import is_few
from delaynode.store.errors import Damaged
from delaynode.store.log.checks import first_difference, unit_check, unit_checks
from delaynode.store.log.files import Files
from delaynode.store.log.segments import SegmentedFile
from delaynode.store.types import I64, U32, Array, Records, Row, raw

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
_UNIT = struct.Struct("<qIIqqII")
TAIL_ROWS = 64  # of the last commit that are kept: a consumer that waits gets them without asking the file
OWN_WORD = QUEUED_BYTES // 4 - 1


def own_checks(rows: Records, offset: int, uid: int) -> Array:
    """The own checks u32 (n,) that a shard's units from queue offset `offset` on should have, whatever they say."""
    return unit_checks(rows, range(offset, offset + len(rows)), OWN_WORD, 32, uid)


NEVER = 2**63 - 1  # ms: nothing becomes visible


class ReleasedRows(NamedTuple):
    """What one frame released: rows of dtype QUEUED. arrived_ms: when they came, if they were due by then; else 0.
    latest_ms: their latest due, where that is after the frame's own time; else 0."""

    rows: Records
    arrived_ms: int
    latest_ms: int

    def before(self, now_ms: int) -> int:
        """How many rows there are before the first that is due after `now_ms`."""
        if is_few(len(self.rows)):
            return next((at for at, due in enumerate(self.rows["due"].tolist()) if due > now_ms), len(self.rows))
        late = self.rows["due"] > now_ms
        return int(late.argmax()) if late.any() else len(late)


class ConsumeQueue:
    """Units are staged when their frame is applied, written when it is committed, and visible once they are due: most
    are by then. Nobody is shown a unit before those in front of it."""

    def __init__(self, files: Files, directory: str, segment_bytes: int, uid: int = 0) -> None:
        self.uid = uid
        self.file = SegmentedFile(files, directory, segment_bytes)
        self._staged: deque[tuple[int, ReleasedRows]] = deque()
        self._unseen: deque[ReleasedRows] = deque()  # written, and not visible yet
        self._tail = np.empty(0, QUEUED)  # the last visible units, as they were written
        self.start = 0  # the first queue offset that is kept; a TRIM moves it
        self.end = self.file.end // QUEUED_BYTES  # queue offset after the last applied unit
        self.visible = self.end  # queue offset after the last unit that consumers may see

    @property
    def committed(self) -> int:
        """Queue offset after the last committed unit."""
        return self.file.end // QUEUED_BYTES

    def next_visible_ms(self) -> int:
        """When the next unit becomes visible, ms; NEVER when all that are committed are."""
        return int(self._unseen[0].rows["due"][0]) if self._unseen else NEVER

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
        latest_ms: int = 0,
    ) -> None:
        """n messages are released by the frame that ends at log offset `frame_end`, see ReleasedRows."""
        rows = np.empty(len(due), QUEUED)
        rows["due"], rows["seq"], rows["offset"] = due, seq, offset
        rows["size"], rows["tag"], rows["check"] = size, tag, check
        rows["own"] = own_checks(rows, self.end, self.uid)
        self._staged.append((frame_end, ReleasedRows(rows, arrived_ms, latest_ms)))
        self.end += len(rows)

    def stage_few(self, frame_end: int, rows: Sequence[Row], latest_ms: int) -> None:
        """stage() of what was in the due window, as plain numbers."""
        units = bytearray()
        for at, (due, seq, offset, size, _, tag, _, check) in enumerate(rows, self.end):
            unit = _UNIT.pack(offset, size, tag, due, seq, check, 0)
            units += unit[:-4] + unit_check(unit, at, OWN_WORD, 32, self.uid).to_bytes(4, "little")
        self._staged.append((frame_end, ReleasedRows(np.frombuffer(units, QUEUED), 0, latest_ms)))
        self.end += len(rows)

    def commit(self, committed_offset: int, now_ms: int) -> list[ReleasedRows]:
        """Write what frames up to log offset `committed_offset` released; returns what became visible, see show()."""
        ready: list[ReleasedRows] = []
        while self._staged and self._staged[0][0] <= committed_offset:
            ready.append(self._staged.popleft()[1])
        if ready:
            buffers = [raw(released.rows) for released in ready]
            self.file.append(buffers, sum(len(buffer) for buffer in buffers))
            self._unseen += ready
        return self.show(now_ms) if self._unseen else ready

    def show(self, now_ms: int) -> list[ReleasedRows]:
        """It is `now_ms` by the master's clock: what was not visible before and is due, in order."""
        seen: list[ReleasedRows] = []
        while self._unseen:
            released = self._unseen.popleft()
            if released.latest_ms > now_ms:
                count = released.before(now_ms)
                self._unseen.appendleft(released._replace(rows=released.rows[count:]))
                if count:
                    seen.append(released._replace(rows=released.rows[:count]))
                break
            seen.append(released)
        if seen:
            self.visible += sum(len(released.rows) for released in seen)
            last = seen[-1].rows
            last.flags.writeable = False  # who reads it has what others read
            self._tail = last if len(last) <= TAIL_ROWS else self._tail[:0]
        return seen

    def read(self, offset: int, count: int) -> Records:
        """Up to `count` committed units from queue offset `offset` on; fewer at the end. Raises Damaged."""
        count = min(count, self.committed - offset)
        if count <= 0:
            return np.empty(0, QUEUED)
        if (before := self.visible - offset - len(self._tail)) <= 0 and offset + count <= self.visible:
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
        self._unseen.clear()
        self._tail = self._tail[:0]
        self.file.truncate(end * QUEUED_BYTES, self.start * QUEUED_BYTES)
        self.end = self.visible = end
