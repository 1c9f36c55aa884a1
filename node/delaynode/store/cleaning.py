"""Emptying a mostly dead CommitLog segment: what is still needed of it is found, checked and written again.

    begin_emptying() -> job.run(), on any thread -> relocate(), on the owner's -> end_emptying()

Log-structured cleaning (Rosenblum & Ousterhout 1991). Every frame's crc and every record's check are verified on the
way, so that rot is never given a fresh crc. What is written again gets segments of its own: among new messages, most
of which die young, it would soon have to move again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from delaynode.store.commitlog import SCAN_BYTES, CommitLog
from delaynode.store.errors import Damaged
from delaynode.store.frames import BadFrame, Frame, Kind, parse, parse_append, parse_relocate
from delaynode.store.shard import Shard
from delaynode.store.timerjobs import Capture, SlotRef
from delaynode.store.types import I64, Bools, Buffer, Pair, Records, at_or_below
from delaynode.store.units import DEFAULT, MAGIC_MASK, ROLL, UNIT, concatenated, last_words
from delaynode.store.window import Run

BATCH_BYTES = 4 << 20  # of records in one RELOCATE, about
BATCH_ROWS = 65_536
QUEUE_ROWS = 262_144  # queue units looked at in one read


class EmptyJob:
    """Finds what is needed of one closed segment. Made by begin_emptying()."""

    def __init__(self, shard: Shard, segment: Records, capture: Capture, letters: Records) -> None:
        self.base, self.end = int(segment["base"]), int(segment["end"])  # log offsets
        self.capture = capture
        self._log, self._queue = shard.log, shard.queue
        self._count = int(segment["count"])
        self._kept = shard.queue.start, shard.queue.visible  # queue offsets: released and kept for the groups
        self._watermark = shard.index.watermark
        self._letters = letters[self._within(letters["offset"])]
        self._shard = shard
        self.batches: list[tuple[Records, bytes]] = []  # found: rows of dtype UNIT, and their records

    def _within(self, offset: I64) -> Bools:
        inside: Bools = (offset >= self.base) & (offset < self.end)
        return inside

    def run(self) -> None:
        """Raises Damaged, naming the place, when what it reads is not what was written."""
        if self._holds_kept():
            return  # it could not go: the groups are to be done with these first
        dues = self._dues()
        likely = [
            slot
            for slot in self.capture.slots
            if np.searchsorted(dues, slot.time) < np.searchsorted(dues, slot.time + slot.width_ms)
        ]
        found = [_as_units(self._letters), *map(self._pending, likely)]
        if sum(map(len, found)) < self._count:  # some have been rescheduled to other slots
            named = {(slot.time, slot.width_ms) for slot in likely}
            found += [self._pending(slot) for slot in self.capture.slots if (slot.time, slot.width_ms) not in named]
        rows = concatenated([rows for rows in found if len(rows)])
        rows = rows[np.argsort(rows["due"], kind="stable")]  # what dies together lies together from then on
        group = np.cumsum(rows["size"], dtype=np.int64) // BATCH_BYTES + np.arange(len(rows)) // BATCH_ROWS
        parts = np.split(rows, np.flatnonzero(np.diff(group)) + 1) if len(rows) else []
        self.batches = [(part, b"".join(self._shard.read_records(part))) for part in parts]

    def _holds_kept(self) -> bool:
        """Whether a released message that is kept for its groups lies here."""
        low, high = self._kept
        return any(
            self._within(self._queue.read(at, min(QUEUE_ROWS, high - at))["offset"]).any()
            for at in range(low, high, QUEUE_ROWS)
        )

    def _dues(self) -> I64:
        """The dues above the watermark that the segment's frames name, ascending, each once."""
        found = [np.empty(0, np.int64)]
        for frame in frames_of(self._log, self.base, self.end):
            if frame.kind in (Kind.APPEND, Kind.RELOCATE):
                due = parse_append(frame).due if frame.kind is Kind.APPEND else parse_relocate(frame).due
                found.append(np.unique(due[due >= self._watermark.due]))
        return np.unique(np.concatenate(found))

    def _pending(self, slot: SlotRef) -> Records:
        """The slot's live messages whose records lie in the segment."""

        def keep(rows: Records) -> Bools:
            # whatever is no DEFAULT may end one of them, or say that its record lies elsewhere
            told: Bools = (rows["magic"] & MAGIC_MASK) != DEFAULT
            return told | self._within(rows["offset"])

        span = Pair(slot.time, 0), Pair(slot.time + slot.width_ms, 0)
        rows, live = last_words(self.capture.collect(slot, *span, keep))
        return rows[live & self._within(rows["offset"])]

    def still_needed(self, rows: Records, shard: Shard) -> Bools:
        """Which of these rows (n,), found before, are still pending or letters with their record where it was."""
        letters = at_or_below(rows["due"], rows["seq"], self._watermark)
        needed: Bools = letters | ~at_or_below(rows["due"], rows["seq"], shard.index.watermark)
        later = concatenated([part for part in self.capture.since if len(part)])
        if len(later):
            needed &= letters | (Run.of(last_words(later)[0]).places(rows["due"], rows["seq"]) < 0)
        if letters.any():
            now = shard.consumers.trimmed_letters()
            needed &= ~letters | np.isin(rows["offset"], now["offset"])
        return needed


def begin_emptying(shard: Shard, segment: Records) -> EmptyJob:
    """Of one row of dtype SEGMENT, closed. On the owner's thread."""
    index = shard.index
    capture = index.capture(index.watermark.due, index.last_due_ms() + 1)
    return EmptyJob(shard, segment, capture, shard.consumers.trimmed_letters())


def relocate(shard: Shard, jobs: Sequence[EmptyJob], now_ms: int) -> int:
    """Append RELOCATEs of what is still needed of what the jobs found; returns their number. On the owner's thread."""
    if not any(job.batches for job in jobs):
        return 0
    shard.log.begin_segment()
    frames = sum(_relocate(shard, job, *batch, now_ms) for job in jobs for batch in job.batches)
    shard.log.begin_segment()
    return frames


def _relocate(shard: Shard, job: EmptyJob, rows: Records, records: Buffer, now_ms: int) -> bool:
    needed = job.still_needed(rows, shard)
    if not needed.all():
        stop = np.cumsum(rows["size"], dtype=np.int64)
        low, high = (stop - rows["size"])[needed].tolist(), stop[needed].tolist()
        records = b"".join(map(memoryview(records).__getitem__, map(slice, low, high)))
        rows = rows[needed]
    if len(rows):
        shard.freeing.relocate(rows, records, now_ms)
    return bool(len(rows))


def end_emptying(shard: Shard, job: EmptyJob) -> None:
    """Always, also when the job failed."""
    shard.index.end_capture(job.capture)


def frames_of(log: CommitLog, base: int, end: int) -> Iterator[Frame]:
    """The frames that a closed segment [base, end) consists of. Raises Damaged where one is not whole."""
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


def _as_units(queued: Records) -> Records:
    """Rows of dtype QUEUED as units. The key is not known, and never asked for of what is released."""
    made = np.zeros(len(queued), UNIT)
    for name in ("due", "seq", "offset", "size", "tag", "check"):
        made[name] = queued[name]
    made["magic"] = ROLL
    return made
