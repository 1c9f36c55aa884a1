"""The CommitLog, frame by frame: what it says, and whether each frame is what and where it should be.

A place at which no frame parses is passed over to the next one that does. Whether it is damage or a torn tail only the
frames behind it and the checkpoint can say: what was known to be on disk must be there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from delaynode.store.columns import at_or_below
from delaynode.store.errors import Damaged
from delaynode.store.log.checks import checks_in, join_padded
from delaynode.store.log.commit_log import CommitLog
from delaynode.store.log.files import Files
from delaynode.store.log.frame_chunk import SYNCED_LIMIT_FILE, read_synced_limit
from delaynode.store.log.frames import (
    APPENDS,
    FLAG_NEW_SEGMENT,
    MAGIC,
    BadFrame,
    Frame,
    FrameKind,
    parse,
    parse_append,
    parse_cancel,
    parse_firings,
    parse_group,
    parse_progress,
    parse_relocate,
    parse_reschedule,
    parse_schedule,
    parse_tick,
    parse_trim,
)
from delaynode.store.log.segments import SegmentedFile
from delaynode.store.types import I64, MAX_SEQ, U32, Bools, Pair
from delaynode.store.verify.findings import Report
from delaynode.store.verify.table import Table

BLOCK_BYTES = 8 << 20
BEFORE_ALL = Pair(-(2**62), 0)

Expected = Sequence[tuple[int, int]]
"""(base, end) of each CommitLog segment that should be there; the end of the open one is 0."""


@dataclass(slots=True)
class LogState:
    """Where the frames so far have led. None: not known, frames that would say so are freed or damaged."""

    next_seq: int | None = 0
    queue_end: int | None = 0
    queue_start: int = 0
    watermark: Pair = BEFORE_ALL
    ticked: bool = False  # and that is no more than this: a TICK has said so, and no frame is missing since
    epochs: list[list[int]] = field(default_factory=list)
    wall_ms: int = 0


@dataclass(slots=True)
class LogFacts:
    """What the log says as of log offset `as_of`; `records` also of what comes after."""

    as_of: int
    records: Table = field(
        default_factory=lambda: Table(offset="<i8", seq="<i8", due="<i8", size="<u4", key="<u4", tag="<u4", check="<u4")
    )
    rows: int = 0  # of `records`
    relocated: Table = field(default_factory=lambda: Table(row="<i8"))  # rows of `records` that are of RELOCATE
    moved_to: Table = field(default_factory=lambda: Table(due="<i8", seq="<i8"))
    ended: Table = field(default_factory=lambda: Table(due="<i8", seq="<i8"))  # cancelled, or moved away from here
    # what one frame released: its place in the queue; of a TICK the pairs above low and up to high
    runs: Table = field(
        default_factory=lambda: Table(
            start="<i8", tick="?", low_due="<i8", low_seq="<i8", high_due="<i8", high_seq="<i8"
        )
    )
    state: LogState = field(default_factory=LogState)
    end: int = 0  # of the frames that recovery would apply
    at_frame: bool = False  # as_of is a frame's end
    complete: bool = True  # nothing before as_of is freed or damaged: the log accounts for every message


class LogPass:
    """as_of: the checkpoint's log offset, None without one. expected: of the checkpoint; None: all from 0 on.
    skipped: log offsets of frames that were passed over when the copy was repaired: they have no effect.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        uid: int,
        as_of: int | None,
        expected: Expected | None,
        skipped: Collection[int],
        report: Report,
    ) -> None:
        self.file = SegmentedFile(files, directory, 1 << 62)
        self.log = CommitLog(self.file, uid, end=self.file.end, written=self.file.end)
        self.report = report
        self.expected = expected
        self._skipped = frozenset(skipped)
        self.facts = LogFacts(self.log.end if as_of is None else as_of)
        self.state = self.facts.state
        self._known_synced, self._proof = (0, "") if as_of is None else (as_of, "the checkpoint says")
        self._limit = self._read_synced_limit(files, directory)
        self._gaps: list[tuple[int, int, str]] = []  # [low, high) in which no frame parses, and why
        self._bad: tuple[int, str] | None = None  # a gap that is not over yet
        self._last_synced = 0
        self._waiting: list[int] = []  # sizes of runs whose place in the queue is not known yet
        self._fresh: list[tuple[I64, I64, I64, U32, U32, U32]] = []  # columns of `records`, of this block

    def _read_synced_limit(self, files: Files, directory: str) -> int:
        """The log offset above which what frames say of `synced` proves nothing: of a slave that was catching up."""
        try:
            synced_limit = read_synced_limit(files, directory)
        except Damaged as error:
            self.report.add(f"{directory}/{SYNCED_LIMIT_FILE}", -1, str(error))
            return 0
        if synced_limit is None:
            return 1 << 62
        if synced_limit > self._known_synced:
            self._known_synced, self._proof = synced_limit, "the file `floor` says"
        return synced_limit

    def run(self) -> LogFacts:
        facts = self.facts
        position = 0
        for base, end in self._pieces():
            if base > position:
                self._reset_state()
            position = self._segment(base, end)
        facts.end = position
        self._classify_gaps()
        if facts.as_of and not facts.at_frame and facts.complete:
            self._report(facts.as_of, "the checkpoint's log offset is not the end of a frame")
        return facts

    # ------------------------------------------------------------ segments
    def _pieces(self) -> list[tuple[int, int]]:
        """(base, end) of the segments to be read, ascending; tells what is missing."""
        chunks = self.file.extents(0)
        if self.expected is None:
            at = 0
            for base, end in chunks:
                if base != at:
                    self._gap(min(at, base), max(at, base), "a segment is missing" if base > at else "segments overlap")
                at = max(at, end)
            return chunks
        have = dict(chunks)
        for base, end in self.expected:
            if base not in have:
                self._report(base, "the segment is missing")
            elif have[base] < end:
                self._gap(have[base], end, "the segment is cut short")
        known = {base for base, _ in self.expected}
        last = max(known, default=-1)
        held = sum(end - base for base, end in self.expected if end)
        self.facts.complete &= min(known, default=0) == 0 and held == max(last, 0)
        for base in sorted(have.keys() - known):
            if base < last:
                self.report.add(
                    f"{self.file.directory}/{base:020d}", -1, "a freed segment that is still there", note=True
                )
        return [(base, end) for base, end in chunks if base in known or base > last]

    def _segment(self, base: int, end: int) -> int:
        """Read one segment; returns where its last frame ends."""
        offset, size, valid = base, BLOCK_BYTES, base
        while offset < end:
            data = self.file.files.read(f"{self.file.directory}/{base:020d}", offset - base, min(size, end - offset))
            if not data:
                break
            self.report.read(len(data))
            used, needed, valid = self._block(data, offset, offset + len(data) >= end, valid)
            self._flush_records(memoryview(data)[:used], offset)
            offset += used
            size = max(BLOCK_BYTES, needed)
        self._end_gap(end)
        return valid

    def _block(self, data: bytes, offset: int, last: bool, valid: int) -> tuple[int, int, int]:
        """The frames in `data`: (bytes done with, bytes that the next frame needs, where the last one ended)."""
        view, at = memoryview(data), 0
        while at < len(data):
            try:
                frame = parse(view, at, offset + at, self.log.uid)
            except BadFrame as bad:
                needed = int(bad.args[1])
                if needed and not last:
                    return at, needed, valid
                if self._bad is None:
                    self._bad = (offset + at, str(bad.args[0]))
                at = data.find(MAGIC.to_bytes(4, "little"), at + 1)
                if at < 0:
                    return (len(data) if last else max(1, len(data) - 3)), 0, valid
                continue
            self._end_gap(frame.offset)
            self._frame(frame)
            valid = frame.end
            at = frame.end - offset
        return at, 0, valid

    def _gap(self, low: int, high: int, why: str) -> None:
        self._gaps.append((low, high, why))
        if low < self.facts.as_of:
            self.facts.complete = False

    def _end_gap(self, high: int) -> None:
        if self._bad is not None:
            low, why = self._bad
            self._bad = None
            self._gap(low, high, why)
            self._reset_state()

    def _reset_state(self) -> None:
        """Frames are missing here: what follows can't be counted on from what was before."""
        state = self.state
        if state is self.facts.state and state.queue_end is not None:
            self._run(state.queue_end, False, BEFORE_ALL, BEFORE_ALL)  # who released what follows is not known
        state.next_seq = state.queue_end = None
        state.ticked = False
        self._waiting.clear()

    def _classify_gaps(self) -> None:
        """Damage where anything says that it was on disk; else the log ends there."""
        for low, high, why in sorted(self._gaps):
            if low < self._known_synced:
                self._report(
                    low, why, expected=f"a frame: {self._proof} that all before {self._known_synced} is on disk"
                )
            elif low <= self.facts.end or high >= self.facts.end:
                self._report(low, f"torn tail of {high - low:,} bytes ({why}): the next start drops it", note=True)
                self.facts.end = min(self.facts.end, low)

    def _report(self, offset: int, what: str, *, expected: object = "", found: object = "", note: bool = False) -> None:
        base = max((base for base in self.file.bases if base <= offset), default=offset)
        self.report.add(
            f"{self.file.directory}/{base:020d}", offset - base, what, where=f"log offset {offset}",
            expected=expected, found=found, note=note,
        )  # fmt: skip

    # ------------------------------------------------------------ frames
    def _frame(self, frame: Frame) -> None:
        facts, state = self.facts, self.state
        self.report.summary.frames += 1
        if not self._last_synced <= frame.synced <= frame.offset:
            expected = f"{self._last_synced} to {frame.offset}"
            self._report(frame.offset, "`synced` goes back or beyond the frame", expected=expected, found=frame.synced)
        self._last_synced = max(self._last_synced, frame.synced)
        if self._known_synced < min(frame.synced, self._limit) and frame.synced <= frame.offset:
            self._known_synced = min(frame.synced, self._limit)
            self._proof = f"the frame at {frame.offset} says"
        if bool(frame.flags & FLAG_NEW_SEGMENT) != (frame.offset in self.file.bases):
            self._report(frame.offset, "the frame's flag and its place at a segment's start disagree")
        if frame.offset >= facts.as_of and self.state is facts.state:
            self.state = state = replace(state, epochs=list(state.epochs))
        epoch = state.epochs[-1][0] if state.epochs else None
        if frame.kind is FrameKind.EPOCH:
            if epoch is not None and frame.epoch <= epoch:
                self._report(frame.offset, "the epoch does not rise", expected=f"above {epoch}", found=frame.epoch)
        elif epoch is not None and (frame.epoch < epoch or (frame.epoch > epoch and state.next_seq is not None)):
            self._report(frame.offset, "the epoch changes without an EPOCH frame", expected=epoch, found=frame.epoch)
        elif epoch is not None and frame.epoch > epoch:  # its EPOCH frame is freed or damaged
            state.epochs.append([frame.epoch, frame.offset])
        state.wall_ms = max(state.wall_ms, frame.wall_ms)
        try:
            if frame.offset in self._skipped:
                self._report(frame.offset, f"this {frame.kind.name} was skipped by a repair", note=True)
                if frame.kind in APPENDS:
                    state.next_seq = frame.first_seq + frame.count
            else:
                self._apply(frame, before=frame.offset < facts.as_of)
        except (Damaged, ValueError) as error:
            self._report(frame.offset, f"{frame.kind.name} frame that says nothing: {error}")
            self._reset_state()
        if frame.offset < facts.as_of:
            facts.rows = len(facts.records) + sum(len(columns[0]) for columns in self._fresh)
            facts.at_frame |= frame.end == facts.as_of

    def _apply(self, frame: Frame, *, before: bool) -> None:
        """before: it is part of what the checkpoint has."""
        facts, state = self.facts, self.state
        match frame.kind:
            case FrameKind.APPEND | FrameKind.APPEND_RUNS | FrameKind.APPEND_IDS:
                self._append(frame, before=before)
            case FrameKind.FIRE | FrameKind.FIRE_AGAIN:
                parse_firings(frame)
                self._append(frame, before=before)
            case FrameKind.SCHEDULE:
                parse_schedule(frame)
            case FrameKind.TICK | FrameKind.TICK_AHEAD:
                self._tick(frame, before=before)
            case FrameKind.CANCEL:
                cancel = parse_cancel(frame)
                if before:
                    facts.ended.add(frame.count, due=cancel.due, seq=cancel.seq)
            case FrameKind.RESCHEDULE:
                change = parse_reschedule(frame)
                if before:
                    facts.ended.add(frame.count, due=change.old_due, seq=change.seq)
                    facts.moved_to.add(frame.count, due=change.new_due, seq=change.seq)
                over = (change.new_due <= frame.wall_ms) | at_or_below(change.new_due, change.seq, state.watermark)
                self._released_at_once(over, before=before)
            case FrameKind.RELOCATE:
                r = parse_relocate(frame)
                offset = self._places(frame, r.size, r.records_at)
                row = len(facts.records) + sum(len(columns[0]) for columns in self._fresh)
                facts.relocated.add(frame.count, row=np.arange(row, row + frame.count))
                self._fresh.append((offset, r.seq, r.due, r.size, r.key, r.tag))
            case FrameKind.TRIM:
                trim = parse_trim(frame)
                if trim.queue_start < state.queue_start:
                    self._report(frame.offset, "TRIM goes back", expected=state.queue_start, found=trim.queue_start)
                state.queue_start = max(state.queue_start, trim.queue_start)
            case FrameKind.EPOCH:
                state.epochs.append([frame.epoch, frame.offset])
            case FrameKind.GROUP:
                parse_group(frame)
            case _:
                parse_progress(frame)

    def _places(self, frame: Frame, size: U32, records_at: int) -> I64:
        """Where the records of a frame lie, i64 (n,). Raises Damaged when they don't fill it."""
        reach = np.cumsum(size, dtype=np.int64) + records_at
        end = int(reach[-1]) if len(reach) else records_at
        if end != frame.end or not int(size.min(initial=1)):
            raise Damaged(f"its records' sizes lead to {end}, it ends at {frame.end}")
        self.report.summary.messages += len(size)
        positions: I64 = reach - size
        return positions

    def _append(self, frame: Frame, *, before: bool) -> None:
        state, a = self.state, parse_append(frame)
        offset = self._places(frame, a.size, a.records_at)
        if state.next_seq not in (None, frame.first_seq):
            self._report(frame.offset, "seq does not go on", expected=state.next_seq, found=frame.first_seq)
        state.next_seq = frame.first_seq + frame.count
        seq = np.arange(frame.first_seq, state.next_seq, dtype=np.int64)
        self._fresh.append((offset, seq, a.due, a.size, a.key, a.tag))
        self._released_at_once((a.due <= frame.wall_ms) | at_or_below(a.due, seq, state.watermark), before=before)

    def _flush_records(self, data: memoryview, low: int) -> None:
        """The block's records into the table, with their checks: computed for all of them at once."""
        if not self._fresh:
            return
        columns = (np.concatenate(parts) for parts in zip(*self._fresh, strict=True))
        offset, seq, due, size, key, tag = columns
        self._fresh.clear()
        bounds = np.array([low]), np.array([low + len(data)])
        one = np.zeros(len(seq), np.int64)  # all lie in one extent
        check = checks_in(join_padded([low], [data]), *bounds, one, offset, size.astype(np.int64), seq)
        self.facts.records.add(len(seq), offset=offset, seq=seq, due=due, size=size, key=key, tag=tag, check=check)

    # ------------------------------------------------------------ the queue, as the log tells it
    def _released_at_once(self, over: Bools, *, before: bool) -> None:
        count = int(np.count_nonzero(over))
        if not count:
            return
        if self.state.queue_end is None:
            self._waiting.append(count)
            return
        if before:
            self._run(self.state.queue_end, False, BEFORE_ALL, BEFORE_ALL)
        self.state.queue_end += count

    def _run(self, start: int, tick: bool, low: Pair, high: Pair) -> None:
        self.facts.runs.add(
            1, start=start, tick=tick, low_due=low.due, low_seq=low.seq, high_due=high.due, high_seq=high.seq
        )

    def _tick(self, frame: Frame, *, before: bool) -> None:
        state, tick = self.state, parse_tick(frame)
        mark = Pair(tick.due, tick.seq)
        start = tick.queue_end - tick.released
        if mark < state.watermark:
            self._report(frame.offset, "the watermark goes back", expected=state.watermark, found=mark)
        if tick.released < 0 or start < 0 or not 0 <= tick.seq <= MAX_SEQ:
            raise Damaged(f"{tick}")
        if state.queue_end is None:
            at = start - sum(self._waiting)
            for count in self._waiting:
                if before:
                    self._run(at, False, BEFORE_ALL, BEFORE_ALL)
                at += count
            self._waiting.clear()
        elif start != state.queue_end:
            self._report(frame.offset, "TICK does not go on where the queue was", expected=state.queue_end, found=start)
        if before and tick.released:
            self._run(start, True, state.watermark, mark)
        state.queue_end = tick.queue_end
        state.watermark, state.ticked = max(state.watermark, mark), True
