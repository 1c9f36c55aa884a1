"""The CommitLog: the shard's frames, one after the other. The truth; everything else is derived from it.

propose() gives a frame its offset   ->  WriteBatch.run() seals, writes and syncs  ->  finish() moves the ends
receive() takes a master's frames    ->  ReceivedBatch.run() writes and syncs      ->  finish()
0 <= start <= synced <= written <= end
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from delaynode.store.errors import Damaged, NewerFormat, Refused
from delaynode.store.log.batches import ReceivedFrames
from delaynode.store.log.batches import WriteBatch as WriteBatch  # callers know it from here
from delaynode.store.log.checks import (
    checks_in,
    checks_of,
    first_difference,
    join_padded,
    position_shifts,
    record_checks,
)
from delaynode.store.log.extents import Runs, extents_of, runs_of
from delaynode.store.log.files import Files
from delaynode.store.log.frame_chunk import (
    FrameChunk,
    check_successors,
    chunk_of,
    parse_frames,
    read_synced_limit,
    remove_synced_limit,
)
from delaynode.store.log.frames import (
    FLAG_NEW_SEGMENT,
    HEADER_BYTES,
    MAGIC,
    MAX_FRAME_BYTES,
    BadFrame,
    Frame,
    FrameKind,
    UnknownKind,
    Unsealed,
    parse,
)
from delaynode.store.log.segments import SegmentedFile
from delaynode.store.types import I64, U32, Buffer, Records

SCAN_BYTES = 8 << 20
MAX_UNSORTED_RUNS = 64  # so many reads are cheaper than sorting
LONG_RUN = 32  # records in a run, on average, that are worth a look at each run by itself


@dataclass(slots=True)
class CommitLog:
    """Owned by one thread; `read_records` may run on any."""

    file: SegmentedFile
    uid: int
    end: int = 0  # the next frame's offset
    written: int = 0  # in the page cache at least
    synced: int = 0  # known to be on disk
    committed_offset: int = 0  # known to be committed: never cut below it
    segment: int = 0  # where the segment that the next frame goes into starts, if it fits
    synced_limit: int | None = None  # from here on, what frames say of `synced` may not be true of this disk
    epochs: list[tuple[int, int]] = field(default_factory=list)  # (epoch, start offset) of the whole log, ascending
    pending: list[Unsealed | FrameChunk] = field(default_factory=list)  # what next_batch() has not taken
    _new_segment: bool = False  # the next frame begins a segment

    @classmethod
    def open(cls, files: Files, directory: str, uid: int, segment_bytes: int) -> CommitLog:
        """The log as its files stand; scan() and cut() decide what of it is valid."""
        file = SegmentedFile(files, directory, segment_bytes)
        synced_limit = read_synced_limit(files, directory)
        return cls(file, uid, end=file.end, written=file.end, segment=file.segment_start(), synced_limit=synced_limit)

    @property
    def last_epoch(self) -> int:
        """The epoch of the log's last frame; 0: it has none."""
        return self.epochs[-1][0] if self.epochs else 0

    def propose(
        self,
        kind: FrameKind,
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
        length = HEADER_BYTES + sum(map(len, payload))
        if length > MAX_FRAME_BYTES:
            raise Refused("BATCH_TOO_LARGE", f"this takes {length:,} bytes in the log, of at most {MAX_FRAME_BYTES:,}")
        full = self._new_segment or self.end + length - self.segment > self.file.segment_bytes
        if self.end == 0 or (full and self.end > self.segment):
            flags |= FLAG_NEW_SEGMENT
            self.segment, self._new_segment = self.end, False
        frame = Unsealed(kind, flags, self.uid, epoch, count, first_seq, wall_ms, self.end, payload, length)
        if kind is FrameKind.EPOCH:
            self.epochs.append((epoch, self.end))
        self.pending.append(frame)
        self.end += length
        return frame

    def retract(self, frame: Unsealed) -> None:
        """The frame proposed last was not taken and goes nowhere. Its copy has failed: nothing is proposed after it."""
        assert self.pending[-1] is frame, "the last frame, proposed in this very step"
        self.pending.pop()
        self.end = frame.offset
        self.epochs = [pair for pair in self.epochs if pair[1] < self.end]

    def begin_segment(self) -> None:
        """The next frame begins a segment."""
        self._new_segment = True

    # ------------------------------------------------------------ a master's frames
    def receive(self, data: memoryview) -> list[Frame]:
        """Take whole frames of a master that begin at the log's end; `data` must stay as it is until written, and while
        the frames are in use. The highest epoch among them was persisted before.

        Raises BadFrame, and takes nothing, unless all of them may follow here.
        """
        frames = parse_frames(data, self.end, self.uid)
        check_successors(frames, self.last_epoch)
        if frames:
            chunk = chunk_of(frames, data)
            self.pending.append(chunk)
            self.epochs += [(frame.epoch, frame.offset) for frame in frames if frame.kind is FrameKind.EPOCH]
            self.segment = chunk.segment_starts[-1] if chunk.segment_starts else self.segment
            self.end = chunk.end
        return frames

    def parse_all(self, data: memoryview, offset: int) -> list[Frame]:
        """The frames that bytes of this log from `offset` on consist of. Raises Damaged."""
        try:
            return parse_frames(data, offset, self.uid)
        except BadFrame as bad:
            raise Damaged(f"{self.file.directory}: after offset {offset}: {bad.args[0]}") from bad

    def forget_pending(self) -> None:
        """Drop what next_batch() has not taken; nothing is being written."""
        if self.pending:
            first = self.pending[0]
            self.end = first.start if isinstance(first, FrameChunk) else first.offset
            self.pending.clear()
            self._forget_after(self.end)

    def _forget_after(self, end: int) -> None:
        self.epochs = [pair for pair in self.epochs if pair[1] < end]
        self.segment, self._new_segment = self.file.segment_start(), False

    # ------------------------------------------------------------ writing
    def next_batch(self, *, sync: bool) -> WriteBatch | None:
        """What waits to be written, or None. One batch is under way at a time."""
        if not self.pending:
            return None
        waiting, self.pending = self.pending, []
        frames = [one for one in waiting if isinstance(one, Unsealed)]
        if len(frames) == len(waiting):
            last = frames[-1]
            return WriteBatch(self, frames[0].offset, last.offset + last.length, sync, frames)
        chunks = [one for one in waiting if isinstance(one, FrameChunk)]
        self.pending = [*frames]  # of a term that has begun since: after what came before it
        return ReceivedFrames(self, chunks[0].start, chunks[-1].end, sync, chunks=chunks)

    def finish(self, batch: WriteBatch) -> None:
        """The batch has run."""
        self.written = batch.end
        if batch.sync:
            self.synced = batch.end

    # ------------------------------------------------------------ for other copies
    def read_raw(self, offset: int, max_bytes: int) -> bytes:
        """Whole frames from `offset` on as they stand in the files, at most `max_bytes` bytes but at least one frame;
        b"" at `written`. Any thread. Fewer where a segment ends.

        Raises Trimmed where they were dropped, BadFrame where no frame begins at `offset`, Damaged.
        """
        end = self.written
        if offset >= end:
            return b""
        end = min(end, self.file.segment_end(offset))
        data = self.file.read(offset, min(max_bytes, end - offset))
        view, at = memoryview(data), 0
        while at < len(data):
            try:
                at = parse(view, at, offset + at, self.uid).end - offset
            except BadFrame as bad:
                needed = int(bad.args[1])
                if at:
                    break
                if not needed or needed > end - offset:
                    self._raise_unreadable(offset, bad)
                data = self.file.read(offset, needed)
                view = memoryview(data)
        return data[:at]

    def _raise_unreadable(self, offset: int, bad: BadFrame) -> None:
        """No frame can be read at `offset`: Damaged, unless none begins there, and whoever asked is wrong."""
        base = max(base for base in self.file.bases if base <= offset)
        for frame in frames_of(self, base, self.file.segment_end(offset)):
            if frame.offset < offset < frame.end:
                raise BadFrame(f"no frame begins at {offset}", 0) from bad
            if frame.end == offset:
                break
        raise Damaged(f"{self.file.directory}: offset {offset}: {bad.args[0]}") from bad

    def holds_from(self, offset: int) -> bool:
        """Whether the log still holds everything from `offset` on."""
        return offset <= self.end and self.file.is_complete_from(min(offset, self.written))

    # ------------------------------------------------------------ recovery
    def scan(self, offset: int, synced: int = 0) -> Iterator[Frame]:
        """Every valid frame from `offset` on. Ends at the log's end or before a torn tail, which it leaves to cut().

        The tail may be torn only at or after the highest `synced` of any frame here, as far as the floor lets it count:
        what was known to be on disk must be there. Raises Damaged when it is not, NewerFormat at a frame of a kind that
        this program does not know: that is no torn tail. synced: log offset that was on disk, as a checkpoint says.
        """
        # the caller's checkpoint was written after a sync up to `offset`
        known_synced = max(offset, synced, self.synced_limit or 0)
        data, base = memoryview(b""), offset
        while True:
            at = offset - base
            try:
                frame = parse(data, at, offset, self.uid)
            except UnknownKind as unknown:
                why = f"{self.file.directory}: offset {offset}: {unknown.args[0]}"
                raise NewerFormat(why) from unknown
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
            known_synced = max(known_synced, self._synced_proof(frame))
            yield frame
            offset = frame.end

    def _check_tail(self, offset: int, known_synced: int, reason: str) -> None:
        """Damaged if any frame, before or after the bad one at `offset`, says that it was on disk."""
        if known_synced > offset:
            raise Damaged(f"{self.file.directory}: offset {offset}: {reason}, though synced to {known_synced}")
        for frame in self._frames_after(offset):
            if self._synced_proof(frame) > offset:
                raise Damaged(
                    f"{self.file.directory}: offset {offset}: {reason}, though the frame at {frame.offset} says "
                    f"that all before {frame.synced} is on disk"
                )

    def _synced_proof(self, frame: Frame) -> int:
        """The log offset before which all was on this disk when the frame was written."""
        return frame.synced if self.synced_limit is None else min(frame.synced, self.synced_limit)

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
        """Drop all frames at and after `end`, while nothing is being written; what is left is on disk after it.

        Raises Damaged where that would take a committed frame: somebody was told of it.
        """
        if end < self.committed_offset:
            raise Damaged(f"{self.file.directory}: not cut at {end}: all before {self.committed_offset} is committed")
        self._write_before(end)
        self.file.truncate(end, None)
        self.file.sync_all()
        if self.synced_limit is not None:
            remove_synced_limit(self.file.files, self.file.directory)
            self.synced_limit = None
        self.end = self.written = self.synced = end
        self.pending.clear()
        self._forget_after(end)

    def _write_before(self, end: int) -> None:
        """The received frames before `end` that wait to be written."""
        chunks = [one.before(end) for one in self.pending if isinstance(one, FrameChunk) and one.start < end]
        if chunks:
            batch = ReceivedFrames(self, chunks[0].start, chunks[-1].end, sync=True, chunks=chunks)
            batch.run()
            self.finish(batch)

    # ------------------------------------------------------------ records
    def read_cached(self, rows: Records) -> list[Buffer] | None:
        """The same as read_records() for a few records, if no disk has to be waited for; else None."""
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

        One pread serves an extent (extents.py) of records that lie close together, whatever their order in the request.
        Raises Damaged where a record is not what its row's check says.
        """
        if not len(rows):
            return []
        offset, size = rows["offset"].astype(np.int64), rows["size"].astype(np.int64)
        runs = runs_of(offset, size)
        if len(runs.begin) <= MAX_UNSORTED_RUNS:
            return self._read_runs(rows, runs, offset, size)
        low, high, extent = extents_of(runs, self.file.bases)
        lows = low.tolist()
        joined = join_padded(lows, [self.file.read(at, to - at) for at, to in zip(lows, high.tolist(), strict=True)])
        which = np.repeat(extent, runs.lengths)
        self._verify(rows, checks_in(joined, low, high, which, offset, size, rows["seq"]))
        start = runs.begin + position_shifts(low, high)[extent]
        stop = start + runs.end - runs.begin
        # C-level iteration: slice(a, b) and [] run without bytecode per message
        return [b"".join(map(joined.__getitem__, map(slice, start.tolist(), stop.tolist())))]

    def _read_runs(self, rows: Records, runs: Runs, offset: I64, size: I64) -> list[Buffer]:
        """The same for a few runs: a read each, in the order of the rows."""
        ends = zip(runs.begin.tolist(), runs.end.tolist(), strict=True)
        parts = [self.file.read(begin, end - begin) for begin, end in ends]
        if len(rows) < LONG_RUN * len(parts):
            which = np.repeat(np.arange(len(parts)), runs.lengths)
            joined = join_padded(runs.begin.tolist(), parts)
            self._verify(rows, checks_in(joined, runs.begin, runs.end, which, offset, size, rows["seq"]))
        else:  # in place: less to copy
            for part, first, last in zip(parts, runs.first.tolist(), runs.last.tolist(), strict=True):
                of = slice(first, last + 1)
                self._verify(rows[of], record_checks(part, int(offset[first]), size[of], rows["seq"][of]))
        return list(parts)

    def _verify(self, rows: Records, found: U32) -> None:
        bad = first_difference(rows["check"], found)
        if bad >= 0:
            row = rows[bad]
            raise Damaged(
                f"{self.file.directory}: the record at {int(row['offset'])}, {int(row['size'])} bytes, of the message "
                f"with seq {int(row['seq'])}, due {int(row['due'])} is not what its check says"
            )


def frames_of(log: CommitLog, base: int, end: int) -> Iterator[Frame]:
    """The frames that [base, end) of the log consists of. Raises Trimmed, and Damaged where one is not whole."""
    offset = low = base
    data = memoryview(b"")
    while offset < end:
        try:
            frame = parse(data, offset - low, offset, log.uid)
        except BadFrame as bad:
            wanted = min(max(SCAN_BYTES, int(bad.args[1])), end - offset)
            if not bad.args[1] or wanted <= len(data) - (offset - low):
                raise Damaged(f"{log.file.directory}: offset {offset}: {bad.args[0]}") from bad
            low, data = offset, memoryview(log.file.read(offset, wanted))
            continue
        yield frame
        offset = frame.end
