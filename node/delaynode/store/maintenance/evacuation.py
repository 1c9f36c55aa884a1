"""Emptying mostly dead CommitLog segments: what is still needed of them is found, checked and written again.

    begin_evacuation() -> job.run(), on any thread -> relocate(), on the owner's -> end_evacuation()

Log-structured cleaning (Rosenblum & Ousterhout 1991). The slots' chains are walked once for all segments of a job.
Every frame's crc and every record's check are verified on the way, so that rot is never given a fresh crc. What is
written again gets segments of its own: among new messages, most of which die young, it would soon have to move again.
"""

from __future__ import annotations

from itertools import chain

import numpy as np

from delaynode.store.columns import at_or_below
from delaynode.store.log.commit_log import frames_of
from delaynode.store.log.frames import APPENDS, FrameKind, parse_append, parse_relocate
from delaynode.store.shard import Shard
from delaynode.store.timer.cascade import ChainReader
from delaynode.store.timer.due_window import SortedRun
from delaynode.store.timer.jobs import SlotRef, TimerView
from delaynode.store.timer.units import DEFAULT, MAGIC_MASK, ROLL, SAME, UNIT, concatenated, latest_units
from delaynode.store.types import I64, Bools, Buffer, Pair, Records

BATCH_BYTES = 4 << 20  # of records in one RELOCATE, about
BATCH_ROWS = 65_536
QUEUE_ROWS = 262_144  # queue units looked at in one read


class EvacuationJob:
    """Finds what is needed of closed segments (k,). Made by begin_evacuation()."""

    def __init__(self, shard: Shard, segments: Records, view: TimerView, dead_letters: Records) -> None:
        self.segments = segments[np.argsort(segments["base"])]
        self.view = view
        self.kept: dict[int, int] = {}  # segments left alone -> the queue offset of a message there that is kept
        self._log, self._queue = shard.log, shard.queue
        self._kept = shard.queue.start, shard.queue.committed  # queue offsets: released and kept for the groups
        self._watermark = shard.index.watermark
        self._dead_letters = dead_letters
        self._shard = shard
        self.batches: list[tuple[Records, bytes]] = []  # found: rows of dtype UNIT, and their records

    def _within(self, offset: I64) -> Bools:
        at = np.searchsorted(self.segments["base"], offset, "right") - 1
        inside: Bools = (at >= 0) & (offset < self.segments["end"][at])
        return inside

    def run(self) -> None:
        """Raises Damaged, naming the place, when what it reads is not what was written."""
        self._skip_retained_segments()
        if not len(self.segments):
            return
        minutes = self._minutes()
        likely = [
            slot
            for slot in self.view.slots
            if np.searchsorted(minutes, slot.time) < np.searchsorted(minutes, slot.time + slot.width_ms)
        ]
        letters = self._dead_letters[self._within(self._dead_letters["offset"])]
        found = [_as_units(letters), *map(self._pending, likely)]
        if sum(map(len, found)) < int(self.segments["count"].sum()):  # some have been rescheduled to other slots
            named = {(slot.time, slot.width_ms) for slot in likely}
            found += [self._pending(slot) for slot in self.view.slots if (slot.time, slot.width_ms) not in named]
        rows = concatenated([rows for rows in found if len(rows)])
        rows = rows[np.argsort(rows["due"], kind="stable")]  # what dies together lies together from then on
        group = np.cumsum(rows["size"], dtype=np.int64) // BATCH_BYTES + np.arange(len(rows)) // BATCH_ROWS
        parts = np.split(rows, np.flatnonzero(np.diff(group)) + 1) if len(rows) else []
        self.batches = [(part, b"".join(self._shard.read_records(part))) for part in parts]

    def _skip_retained_segments(self) -> None:
        """Segments that hold a message kept for the groups could not go: these are to be done with it first."""
        low, high = self._kept
        for begin in range(low, high, QUEUE_ROWS):
            if not len(self.segments):
                return
            offset = self._queue.read(begin, min(QUEUE_ROWS, high - begin))["offset"]
            rows = np.flatnonzero(self._within(offset))
            if len(rows):
                base = self.segments["base"]
                at, first = np.unique(np.searchsorted(base, offset[rows], "right") - 1, return_index=True)
                self.kept |= dict(zip(base[at].tolist(), (begin + rows[first]).tolist(), strict=True))
                self.segments = np.delete(self.segments, at)

    def _minutes(self) -> I64:
        """The minutes, ms, of the dues above the watermark that the segments' frames name, ascending, each once."""
        found, minute_ms = [np.empty(0, np.int64)], self._shard.config.geometry.minute_ms
        spans = zip(self.segments["base"].tolist(), self.segments["end"].tolist(), strict=True)
        for frame in chain.from_iterable(frames_of(self._log, base, end) for base, end in spans):
            if frame.kind in (*APPENDS, FrameKind.RELOCATE) and frame.offset not in self._shard.skipped:
                due = parse_append(frame).due if frame.kind in APPENDS else parse_relocate(frame).due
                due = due[due >= self._watermark.due]
                found.append(np.unique(due - due % minute_ms))
        return np.unique(np.concatenate(found))

    def _pending(self, slot: SlotRef) -> Records:
        """The slot's pending messages (above the captured watermark) whose records lie in the segments.

        Read in pieces: after a cascade every unit of a slot is one that keep() must keep.
        """

        def keep(rows: Records) -> Bools:
            # whatever is no DEFAULT may end one of them, or say that its record lies elsewhere
            decisive: Bools = (rows["magic"] & MAGIC_MASK) != DEFAULT
            return decisive | self._within(rows["offset"])

        reader = ChainReader(self.view.log, slot, self.view.start)
        low, high = Pair(slot.time, 0), Pair(slot.time + slot.width_ms, 0)
        parts: list[Records] = []
        while low < high:
            units, end = reader.read(self._shard.config.chunk_units, low, high, keep)
            parts.append(self._live(concatenated([units, self.view.recent(low, end, keep)])))
            low = end
        return concatenated(parts)

    def _live(self, units: Records) -> Records:
        """The pending messages, among units in TimerLog order, whose records lie in the segments."""
        found = units.copy()
        # what said this spoke of a live message: left out may be the DEFAULT that brought it back after a DELETE
        found["magic"][((found["magic"] & MAGIC_MASK) == ROLL | SAME) & self._within(found["offset"])] = DEFAULT
        rows, live = latest_units(found)
        # The slot of the watermark also holds messages that were released within its minute. One that is a dead letter
        # by now is among the dead letters; taken here as well, it would be written twice and counted off its segment
        # twice.
        live &= ~at_or_below(rows["due"], rows["seq"], self._watermark)
        return rows[live & self._within(rows["offset"])]

    def still_needed(self, shard: Shard) -> list[Bools]:
        """Which rows (n,) of each batch are still pending, or dead letters with their record where it was."""
        recorded = [part for part in self.view.since if len(part)]
        later = SortedRun.of(latest_units(concatenated(recorded))[0]) if recorded else None
        return [self._still_needed(rows, later, shard) for rows, _ in self.batches]

    def _still_needed(self, rows: Records, later: SortedRun | None, shard: Shard) -> Bools:
        letters = at_or_below(rows["due"], rows["seq"], self._watermark)
        needed: Bools = letters | ~at_or_below(rows["due"], rows["seq"], shard.index.watermark)
        if later is not None:
            needed &= letters | (later.places(rows["due"], rows["seq"]) < 0)
        if letters.any():
            now = shard.consumers.trimmed_dead_letters()
            needed &= ~letters | np.isin(rows["offset"], now["offset"])
        return needed


def begin_evacuation(shard: Shard, segments: Records) -> EvacuationJob:
    """The job for closed segments: rows (k,) of dtype SEGMENT, or one. To be called on the owner's thread."""
    index = shard.index
    view = index.view(index.watermark.due, index.last_due_ms() + 1)
    return EvacuationJob(shard, np.atleast_1d(segments), view, shard.consumers.trimmed_dead_letters())


def relocate(shard: Shard, job: EvacuationJob, now_ms: int) -> int:
    """Append RELOCATEs of what is still needed of what the job found; returns their number. On the owner's thread."""
    needed = job.still_needed(shard)  # of all, before the first of them is among what has been said since
    if not any(which.any() for which in needed):
        return 0
    shard.log.begin_segment()
    frames = sum(_relocate(shard, *batch, which, now_ms) for batch, which in zip(job.batches, needed, strict=True))
    shard.log.begin_segment()
    return frames


def _relocate(shard: Shard, rows: Records, records: Buffer, needed: Bools, now_ms: int) -> bool:
    if not needed.all():
        stop = np.cumsum(rows["size"], dtype=np.int64)
        low, high = (stop - rows["size"])[needed].tolist(), stop[needed].tolist()
        records = b"".join(map(memoryview(records).__getitem__, map(slice, low, high)))
        rows = rows[needed]
    if len(rows):
        shard.space.relocate(rows, records, now_ms)
    return bool(len(rows))


def end_evacuation(shard: Shard, job: EvacuationJob) -> None:
    """Always, also when the job failed."""
    shard.index.close_view(job.view)


def _as_units(queued: Records) -> Records:
    """Rows of dtype QUEUED as units. The key is not known, and never asked for of what is released.

    Nor is the due: 0 says on every replica that this is a letter. Its own may be above the watermark, when it was
    released as it came, and a pending message it must not become.
    """
    made = np.zeros(len(queued), UNIT)
    for name in ("seq", "offset", "size", "tag", "check"):
        made[name] = queued[name]
    made["magic"] = ROLL
    return made
