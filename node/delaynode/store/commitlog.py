"""The CommitLog: the shard's frames, one after the other. The truth; everything else is derived from it.

propose() gives a frame its offset   ->  WriteBatch.run() seals, writes and syncs  ->  finish() moves the ends
0 <= start <= synced <= written <= end
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from delaynode.store.checks import checks_in, checks_of, first_difference, join_padded, places_in, record_checks
from delaynode.store.errors import Damaged, Refused
from delaynode.store.files import Files
from delaynode.store.frames import (
    FLAG_NEW_SEGMENT,
    HEADER_BYTES,
    MAGIC,
    MAX_FRAME_BYTES,
    BadFrame,
    Frame,
    Kind,
    Unsealed,
    parse,
)
from delaynode.store.segments import SegmentedFile
from delaynode.store.types import U32, Buffer, Records

SCAN_BYTES = 8 << 20
GAP_BYTES = 1024  # two records closer than this are read by one pread: less copying than the call would cost
FEW_RUNS = 64  # so many reads are cheaper than sorting
LONG_RUN = 32  # records in a run, on average, that are worth a look at each run by itself


@dataclass(slots=True)
class WriteBatch:
    """Frames on their way to the file; made by CommitLog.take(), run on any one thread at a time."""

    log: CommitLog
    frames: list[Unsealed]
    end: int
    sync: bool

    def run(self) -> None:
        """Seal, write and (with `sync`) flush to disk. Raises OSError: the copy is damaged then."""
        synced = self.log.synced
        parts: list[Buffer] = []
        size = 0
        file = self.log.file
        roll = False
        for frame in self.frames:
            if frame.flags & FLAG_NEW_SEGMENT:
                if size:
                    file.append(parts, size, roll=roll)
                parts, size, roll = [], 0, True
            parts.append(frame.seal(synced))
            parts.extend(part for part in frame.payload if len(part))
            size += frame.length
        if size:
            file.append(parts, size, roll=roll)
        if self.sync:
            file.sync()


@dataclass(slots=True)
class CommitLog:
    """Owned by one thread; `read_records` may run on any."""

    file: SegmentedFile
    uid: int
    end: int = 0  # the next frame's offset
    written: int = 0  # in the page cache at least
    synced: int = 0  # known to be on disk
    committed: int = 0  # known to be committed: never cut below it
    segment: int = 0  # where the segment that the next frame goes into starts, if it fits
    _roll: bool = False  # the next frame begins a segment
    pending: list[Unsealed] = field(default_factory=list)

    @classmethod
    def open(cls, files: Files, directory: str, uid: int, segment_bytes: int) -> CommitLog:
        """The log as its files stand; scan() and cut() decide what of it is valid."""
        file = SegmentedFile(files, directory, segment_bytes)
        return cls(file, uid, end=file.end, written=file.end, segment=file.segment_start())

    def propose(
        self,
        kind: Kind,
        epoch: int,
        count: int,
        first_seq: int,
        wall_ms: int,
        payload: tuple[Buffer, ...],
        flags: int = 0,
    ) -> Unsealed:
        """Give a frame its place at the log's end. The payload's buffers must stay as they are until written.

        Raises Refused when it is too long to be read back.
        """
        length = HEADER_BYTES + sum(len(part) for part in payload)
        if length > MAX_FRAME_BYTES:
            raise Refused("BATCH_TOO_LARGE", f"this takes {length:,} bytes in the log, of at most {MAX_FRAME_BYTES:,}")
        full = self._roll or self.end + length - self.segment > self.file.segment_bytes
        if self.end == 0 or (full and self.end > self.segment):
            flags |= FLAG_NEW_SEGMENT
            self.segment, self._roll = self.end, False
        frame = Unsealed(kind, flags, self.uid, epoch, count, first_seq, wall_ms, self.end, payload, length)
        self.pending.append(frame)
        self.end += length
        return frame

    def begin_segment(self) -> None:
        """The next frame begins a segment."""
        self._roll = True

    def take(self, *, sync: bool) -> WriteBatch | None:
        """What waits to be written, or None. One batch is under way at a time."""
        if not self.pending:
            return None
        frames, self.pending = self.pending, []
        return WriteBatch(self, frames, frames[-1].offset + frames[-1].length, sync)

    def finish(self, batch: WriteBatch) -> None:
        """The batch has run."""
        self.written = batch.end
        if batch.sync:
            self.synced = batch.end

    # ------------------------------------------------------------ recovery
    def scan(self, offset: int) -> Iterator[Frame]:
        """Every valid frame from `offset` on. Ends at the log's end or before a torn tail, which it leaves to cut().

        The tail may be torn only at or after the highest `synced` of any frame here: what was known to be on disk
        must be there. Raises Damaged when it is not.
        """
        known_synced = offset  # the caller's checkpoint was written after a sync up to here
        data, base = memoryview(b""), offset
        while True:
            at = offset - base
            try:
                frame = parse(data, at, offset, self.uid)
            except BadFrame as bad:
                needed = int(bad.args[1])
                available = self.file.end - offset
                if needed and needed <= available and len(data) - at < needed:
                    base = offset
                    data = memoryview(self.file.read_some(base, min(max(SCAN_BYTES, needed), available)))
                    if len(data) >= needed:
                        continue
                    # a segment of the unsynced tail is short or missing: pages go to disk in any order
                if available:
                    self._check_tail(offset, known_synced, str(bad.args[0]))
                return
            known_synced = max(known_synced, frame.synced)
            yield frame
            offset = frame.end

    def _check_tail(self, offset: int, known_synced: int, reason: str) -> None:
        """Damaged if any frame, before or after the bad one at `offset`, says that it was on disk."""
        if known_synced > offset:
            raise Damaged(f"{self.file.directory}: offset {offset}: {reason}, though synced to {known_synced}")
        for frame in self._frames_after(offset):
            if frame.synced > offset:
                raise Damaged(
                    f"{self.file.directory}: offset {offset}: {reason}, though the frame at {frame.offset} says "
                    f"that all before {frame.synced} is on disk"
                )

    def _frames_after(self, offset: int) -> Iterator[Frame]:
        """Whatever still parses as a frame of this log behind a bad place."""
        magic = MAGIC.to_bytes(4, "little")
        for low, high in self.file.extents(offset + 1):  # a frame never straddles two segments
            for base in range(low, high, SCAN_BYTES):
                data = self.file.read(base, min(SCAN_BYTES + MAX_FRAME_BYTES, high - base))
                view = memoryview(data)
                at = data.find(magic)
                while 0 <= at < SCAN_BYTES:
                    with suppress(BadFrame):
                        yield parse(view, at, base + at, self.uid)
                    at = data.find(magic, at + 1)

    def cut(self, end: int) -> None:
        """Drop all frames at and after `end`; the log is on disk up to there when this returns.

        Raises Damaged where that would take a committed frame: somebody was told of it.
        """
        if end < self.committed:
            raise Damaged(f"{self.file.directory}: not cut at {end}: all before {self.committed} is committed")
        self.file.truncate(end, None)
        self.file.sync_all()
        self.end = self.written = self.synced = end
        self.segment = self.file.segment_start()
        self.pending.clear()

    # ------------------------------------------------------------ records
    def read_cached(self, rows: Records) -> list[Buffer] | None:
        """As read_records() for a few records, if no disk has to be waited for; else None."""
        offset, size = rows["offset"], rows["size"].astype(np.int64)
        parts: list[Buffer] = []
        for at, length in zip(offset.tolist(), size.tolist(), strict=True):
            data = self.file.read_cached(at, length)
            if data is None:
                return None
            parts.append(data)
        self._verify(rows, checks_of(parts, offset, size, rows["seq"]))
        return parts

    def read_records(self, rows: Records) -> list[Buffer]:
        """The records of rows of dtype QUEUED or UNIT, in this order, as buffers to be joined.

        One pread serves an extent of records that lie close together, whatever their order in the request. Raises
        Damaged where a record is not what its row's check says.
        """
        if not len(rows):
            return []
        offset, size = rows["offset"].astype(np.int64), rows["size"].astype(np.int64)
        stop = offset + size
        # records that follow each other in the log are one run: a herd is a few runs, scattered dues are one each
        breaks = np.flatnonzero(offset[1:] != stop[:-1])
        first, last = np.concatenate(([0], breaks + 1)), np.append(breaks, len(stop) - 1)
        begin, end = offset[first], stop[last]
        if len(begin) <= FEW_RUNS:
            parts = [self.file.read(low, high - low) for low, high in zip(begin.tolist(), end.tolist(), strict=True)]
            if len(rows) < LONG_RUN * len(parts):
                which = np.repeat(np.arange(len(parts)), last - first + 1)
                joined = join_padded(begin.tolist(), parts)
                self._verify(rows, checks_in(joined, begin, end, which, offset, size, rows["seq"]))
            else:  # in place: less to copy
                for part, low, high in zip(parts, first.tolist(), (last + 1).tolist(), strict=True):
                    of = slice(low, high)
                    self._verify(rows[of], record_checks(part, int(offset[low]), size[of], rows["seq"][of]))
            return list(parts)
        order = np.argsort(begin, kind="stable")
        start, reach = begin[order], np.maximum.accumulate(end[order])
        segment = np.searchsorted(self.file.bases, start)  # what lies between two may have been dropped
        apart = (start[1:] > reach[:-1] + GAP_BYTES) | (segment[1:] != segment[:-1])
        opens = np.flatnonzero(np.concatenate(([True], apart)))
        low, high = start[opens], reach[np.append(opens[1:], len(start)) - 1]
        lows = low.tolist()
        joined = join_padded(lows, [self.file.read(at, to - at) for at, to in zip(lows, high.tolist(), strict=True)])
        extent = np.empty(len(begin), np.int64)
        extent[order] = np.repeat(np.arange(len(opens)), np.diff(np.append(opens, len(start))))
        which = np.repeat(extent, last - first + 1)
        self._verify(rows, checks_in(joined, low, high, which, offset, size, rows["seq"]))
        place = begin + places_in(low, high)[extent]
        # C-level iteration: slice(a, b) and [] run without bytecode per message
        return [b"".join(map(joined.__getitem__, map(slice, place.tolist(), (place + end - begin).tolist())))]

    def _verify(self, rows: Records, found: U32) -> None:
        bad = first_difference(rows["check"], found)
        if bad >= 0:
            row = rows[bad]
            raise Damaged(
                f"{self.file.directory}: the record at {int(row['offset'])}, {int(row['size'])} bytes, of the message "
                f"with seq {int(row['seq'])}, due {int(row['due'])} is not what its check says"
            )
