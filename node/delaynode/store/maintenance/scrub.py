"""The scrub: a lap over a shard's files that reads everything again and checks it, so that rot is found while small.

    closed CommitLog segments   each frame (crc32, its own offset)
    TimerLog                    each flush (crc32) and its units' own checks
    ConsumeQueue                each unit's own check

A lap is made of steps: begin() on the owner's thread, run() on any, finish() on the owner's. Files that are freed
meanwhile are passed over, and those in which something is wrong, where only the previous checkpoint needs them.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from delaynode.store.errors import Damaged, Trimmed
from delaynode.store.log.checks import first_difference
from delaynode.store.log.frames import BadFrame, parse
from delaynode.store.log.segments import SegmentedFile
from delaynode.store.queue.consume_queue import QUEUED, QUEUED_BYTES
from delaynode.store.queue.consume_queue import own_checks as queue_checks
from delaynode.store.shard import Shard
from delaynode.store.timer.timer_log import HEADER, STORED, UNIT_BYTES, flush_crc, own_checks
from delaynode.store.types import raw

STEP_BYTES = 1 << 20  # a step reads about so much, or one frame or flush that is larger


@dataclass(slots=True)
class ScrubRange:
    """A segment: [offset, end) of it is still to be looked at."""

    file: SegmentedFile
    base: int
    offset: int
    end: int

    @property
    def path(self) -> str:
        return f"{self.file.directory}/{self.base:020d}"

    def bad(self, offset: int, why: str) -> Damaged:
        return Damaged(f"{self.path}: byte {offset - self.base} (offset {offset}): {why}")


class ScrubStep(ABC):
    """Reads on in one piece. Raises Damaged, with the segment and the place, when what is there is not what was."""

    def __init__(self, scrub_range: ScrubRange, uid: int) -> None:
        self.scrub_range = scrub_range
        self.bytes = 0  # read
        self._uid = uid

    def run(self) -> None:
        begun = self.scrub_range.offset
        try:
            self._check_next()
        except (Damaged, Trimmed):
            if self._is_freed():
                return
            # once more: the file may have been freed, and its descriptor been used again, in the middle of it
            self.scrub_range.offset = begun
            try:
                self._check_next()
            except Damaged:
                if not self._is_freed():
                    raise
            except Trimmed as error:
                if not self._is_freed():
                    raise self.scrub_range.bad(self.scrub_range.offset, str(error)) from error

    @abstractmethod
    def _check_next(self) -> None:
        """Reads on. Raises Damaged, Trimmed."""

    def _is_freed(self) -> bool:
        """Whether the segment is not the shard's any more."""
        chunk = self.scrub_range
        if chunk.base in chunk.file.bases:
            return False
        chunk.offset = chunk.end
        return True

    def _read(self, offset: int, size: int) -> bytes:
        self.bytes += size
        return self.scrub_range.file.read(offset, size)


class LogStep(ScrubStep):
    def _check_next(self) -> None:
        chunk = self.scrub_range
        size = min(STEP_BYTES, chunk.end - chunk.offset)
        data, low = memoryview(self._read(chunk.offset, size)), chunk.offset
        while chunk.offset < low + len(data):
            try:
                frame = parse(data, chunk.offset - low, chunk.offset, self._uid)
            except BadFrame as bad:
                needed = int(bad.args[1])
                if not needed or chunk.offset + needed > chunk.end:
                    raise chunk.bad(chunk.offset, str(bad.args[0])) from None
                if chunk.offset > low:
                    return  # the next step begins with it
                data = memoryview(self._read(low, needed))
                continue
            chunk.offset = frame.end


class FlushStep(ScrubStep):
    def _check_next(self) -> None:
        chunk = self.scrub_range
        stop = chunk.offset + STEP_BYTES
        while chunk.offset < min(stop, chunk.end):
            chunk.offset = self._flush(chunk.offset)

    def _flush(self, position: int) -> int:
        """One flush, in parts; returns where it ends."""
        chunk = self.scrub_range
        if position + UNIT_BYTES > chunk.end:
            raise chunk.bad(position, "the file is cut off in a flush header")
        header = np.frombuffer(self._read(position, UNIT_BYTES), STORED).copy()
        count, expected, kind = int(header["offset"][0]), int(header["key"][0]), int(header["magic"][0])
        header["key"] = 0
        end = position + (count + 1) * UNIT_BYTES
        if kind != HEADER or count < 0 or end > chunk.end:
            raise chunk.bad(position, "no flush header")
        crc = zlib.crc32(raw(header), flush_crc(position, self._uid))
        at = position + UNIT_BYTES
        while at < end:
            size = min(STEP_BYTES // UNIT_BYTES * UNIT_BYTES, end - at)
            data = self._read(at, size)
            crc = zlib.crc32(data, crc)
            units = np.frombuffer(data, STORED)
            positions = at + UNIT_BYTES * np.arange(len(units), dtype=np.int64)
            wrong = first_difference(units["own"], own_checks(units, positions, self._uid))
            if wrong >= 0:
                raise chunk.bad(int(positions[wrong]), "the unit's own check differs")
            at += size
        if crc != expected:
            raise chunk.bad(position, "the crc32 of the flush differs")
        return end


class QueueStep(ScrubStep):
    def _check_next(self) -> None:
        chunk = self.scrub_range
        size = min(STEP_BYTES // QUEUED_BYTES * QUEUED_BYTES, chunk.end - chunk.offset)
        if rest := size % QUEUED_BYTES:
            raise chunk.bad(chunk.offset + size - rest, "the file is cut off in a unit")
        rows = np.frombuffer(self._read(chunk.offset, size), QUEUED)
        wrong = first_difference(rows["own"], queue_checks(rows, chunk.offset // QUEUED_BYTES, self._uid))
        if wrong >= 0:
            raise chunk.bad(chunk.offset + wrong * QUEUED_BYTES, f"the unit's own check differs{self._named(wrong)}")
        chunk.offset += size

    def _named(self, row: int) -> str:
        return f" (queue offset {self.scrub_range.offset // QUEUED_BYTES + row})"


STEPS: Mapping[str, type[ScrubStep]] = {"log": LogStep, "timerlog": FlushStep, "queue": QueueStep}


def scrub_segment(part: str, file: SegmentedFile, base: int, uid: int) -> int:
    """Checks a segment of a copy that is not in use. Returns the bytes read. Raises Damaged."""
    end = dict(file.segments())[base]
    scrub_range, read = ScrubRange(file, base, base, end), 0
    while scrub_range.offset < end:
        step = STEPS[part](scrub_range, uid)
        step.run()
        read += step.bytes
    return read


class Scrub:
    """One lap over a shard's files as they are now. Owned by the shard's thread.

    start: in [0, 1): where in the round of files it begins, so that those which are restarted often see all of them.
    """

    def __init__(self, shard: Shard, start: float) -> None:
        self._shard = shard
        log, timer, queue = shard.log.file, shard.index.log.file, shard.queue.file
        steps: list[tuple[type[ScrubStep], SegmentedFile, int]] = [(LogStep, log, base) for base in log.bases[:-1]]
        steps += [(FlushStep, timer, base) for base in timer.bases]
        steps += [(QueueStep, queue, base) for base in queue.bases]
        first = int(start * len(steps))
        self._todo = deque([*steps[first:], *steps[:first]])
        self._now: tuple[type[ScrubStep], ScrubRange] | None = None
        self.bytes = 0  # read so far

    def begin(self) -> ScrubStep | None:
        """The next step; None: the lap is over."""
        while self._now is None:
            if not self._todo:
                return None
            kind, file, base = self._todo.popleft()
            end = dict(file.segments()).get(base, base)
            if end > base:
                self._now = kind, ScrubRange(file, base, base, end)
        kind, chunk = self._now
        return kind(chunk, self._shard.identity.uid)

    def finish(self, step: ScrubStep) -> None:
        self.bytes += step.bytes
        if step.scrub_range.offset >= step.scrub_range.end:
            self._now = None

    def pass_over_spare(self, step: ScrubStep) -> bool:
        """After a step that raised: goes on with the next file, if the copy does without this one, or does so since a
        checkpoint came in between."""
        file, base = step.scrub_range.file, step.scrub_range.base
        spare = base not in file.bases or base in self._shard.spare_bases(file)
        if spare:
            step.scrub_range.offset = step.scrub_range.end
            self.finish(step)
        return spare


def size_of(shard: Shard) -> int:
    """Bytes that a lap reads, about."""
    files = (shard.log.file, shard.index.log.file, shard.queue.file)
    return sum(end - base for file in files for base, end in file.segments())
