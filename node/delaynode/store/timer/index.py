"""The timer index of a shard: two wheels over one TimerLog, the units not yet flushed, and the due window.

    arrivals --flush--> TimerLog, wheels        (a checkpoint's first half)
    hour slot --cascade--> TimerLog, wheels     (an hour less than 24 h away, in pieces, see timer/cascade.py)
    wheel + arrivals --load--> due window       (the coming minutes)
    wheel + arrivals --scan--> rows of a range  (cancel, list)

`minute_bound_ms` divides the levels: units due before it belong to minute slots, others to hour slots. It moves by
whole hours, when all of the hour at it has been cascaded. Until then nothing reads that hour's minute slots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from delayapi.units import DAY_MS, HOUR_MS, MINUTE_MS

from delaynode.store.columns import highest, total
from delaynode.store.timer.cascade import CHUNK_UNITS, Cascade, CascadeJob, ChainReader
from delaynode.store.timer.cleanup import STEP_UNITS, CleanupCycle, CleanupJob
from delaynode.store.timer.due_window import CANCELLED_AT, MOVED_AT, NEVER, DueWindow, Released, after, before
from delaynode.store.timer.jobs import FlushJob, FlushLayout, LoadJob, SlotRef, TimerView
from delaynode.store.timer.scan import MessageFilter, MessageSetFilter, ScanJob, SlotSnapshotCache
from delaynode.store.timer.timer_log import UNIT_BYTES, Flush, LogRange, RepairFlush, TimerLog, build_flush
from delaynode.store.timer.units import DELETE, DELETE_MOVED, UNIT, change_of, concatenated, live_units, units
from delaynode.store.timer.wheel import NOWHERE, TimerWheel
from delaynode.store.types import I64, U32, Bools, Pair, Records, Row

CLEAN_SEGMENTS = 2  # TimerLog files that may be of no use before a cleaning is worth its reads
MINUTE_SLOTS = 2 * 1440
LOAD_UNITS = 524_288  # that the window is extended by at a time; being sorted they take four times their memory
MAX_UNCHECKED_SLOTS = 64
MANY_PARTS, SMALL_PART = 64, 4096  # arrays of unflushed units: so many are worth joining those with so few units
JOIN_PARTS = 1024  # so many more are joined in any case: an array of one unit takes four times its memory


def hour_slots(horizon_ms: int, hour_ms: int = HOUR_MS, spare_ms: int = 7 * DAY_MS) -> int:
    """Slots of the hour level: the horizon and a week, so that a shard may be down for days without lapping."""
    return (horizon_ms + spare_ms) // hour_ms + 2


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes of the two wheels, ms and slots: fixed for a shard's life, as its files rest on them.

    The simulation passes smaller ones, so that hours cascade and slots are reused within seconds.
    """

    minute_ms: int = MINUTE_MS  # width of a slot of the minute level
    hour_ms: int = HOUR_MS  # and of the hour level: a multiple of minute_ms
    minute_slots: int = MINUTE_SLOTS
    margin_ms: int = 2 * HOUR_MS  # the minute level ends this much before it would lap the watermark
    ahead_ms: int = DAY_MS  # an hour is cascaded this long before it begins
    spare_ms: int = 7 * DAY_MS  # the hour level spans the horizon and this
    cancelled_retention_ms: int = (
        HOUR_MS  # so long after its due, at least, a late Cancel is told that a message was cancelled
    )

    def minute_end(self, ms: int) -> int:
        """The end of the minute slot that `ms` falls into."""
        return ms - ms % self.minute_ms + self.minute_ms

    def first_bound(self, now_ms: int) -> int:
        """Where the minute level of a shard that is made now ends at first."""
        return now_ms - now_ms % self.hour_ms + self.ahead_ms + self.hour_ms


GEOMETRY = Geometry()


class TimerIndex:
    """Owned by one thread; jobs' run() may leave it. At most one flush or cascade at a time."""

    def __init__(
        self,
        log: TimerLog,
        horizon_ms: int,
        watermark: Pair,
        minute_bound_ms: int,
        window_budget: int = NEVER,
        geometry: Geometry = GEOMETRY,
        chunk_units: int = CHUNK_UNITS,
    ) -> None:
        self.log = log
        self.geometry = geometry
        self.minute = TimerWheel(geometry.minute_ms, geometry.minute_slots)
        self.hour = TimerWheel(geometry.hour_ms, hour_slots(horizon_ms, geometry.hour_ms, geometry.spare_ms))
        self.watermark = watermark
        self.minute_bound_ms = minute_bound_ms
        self.window = DueWindow(after(watermark), window_budget)
        self._arrivals: list[Records] = []
        self._join_at = JOIN_PARTS
        self._flushing: list[Records] = []
        self._views: list[TimerView] = []
        self.flushed = 0  # log offset: the units of all frames before it are in the TimerLog
        self.kept_end = log.end  # TimerLog position: what lies beyond is in no checkpoint, a recovery cuts it off
        self.cascade: Cascade | None = None  # how much of the hour at the bound is done
        self._chunk_units = chunk_units
        self._reader: ChainReader | None = None  # of its pass
        self._cycle: CleanupCycle | None = None  # the cleaning under way
        self._dead_units = 0  # dead messages that the last cycle said again
        self._before_flush: tuple[CleanupCycle | None, int, int] = (None, log.start, 0)  # should the flush not be made
        self.unflushed = 0  # units in _arrivals
        self.pending = 0  # live messages above the watermark
        self.pending_bytes = 0

    # ------------------------------------------------------------ changes, in log order
    def insert(self, rows: Records) -> None:
        """New live messages above the watermark."""
        self._arrive(rows)
        if not len(rows) or highest(rows["due"])[0] < self.window.bound.due:
            self.window.add(rows)
        else:
            self.window.add(rows[self.window.covers(rows["due"], rows["seq"])])
        self._count(rows, 1)

    def insert_one(self, row: Row) -> None:
        """insert() of one, as plain numbers."""
        rows = np.array([row], UNIT)
        self._arrive(rows)
        if row[:2] <= before(self.window.bound):
            self.window.add_few((row,))
        self.pending += 1
        self.pending_bytes += row[3]

    def delete(self, due: I64, seq: I64, size: U32, *, moved: bool) -> None:
        """These live messages are dead from here on."""
        rows = units(due, seq, 0, size, 0, 0, DELETE_MOVED if moved else DELETE)
        self._arrive(rows)
        self.window.kill(due, seq, MOVED_AT if moved else CANCELLED_AT)
        self._count(rows, -1)

    def reinsert(self, rows: Records) -> None:
        """Live messages with a seq of old at a new due, which they may have had before."""
        self._arrive(rows)
        inside = self.window.covers(rows["due"], rows["seq"])
        self.window.add(self.window.revive(rows[inside]))
        self._count(rows, 1)

    def relocate(self, rows: Records) -> None:
        """The records of these live messages lie elsewhere from here on: units of ROLL and SAME."""
        self._arrive(rows)
        self.window.relocate(rows)

    def release(self, target: Pair, max_rows: int, max_live: int | None = None) -> Released:
        """Take what is at or below `target` (which must be loaded) out of the window; moves the watermark."""
        taken = self.window.drain(target, max_rows, max_live)
        self.watermark = taken.watermark
        self.pending -= len(taken)
        self.pending_bytes -= taken.record_bytes
        return taken

    def _arrive(self, rows: Records) -> None:
        if len(rows):
            self._arrivals.append(rows)
            if len(self._arrivals) >= self._join_at:
                self._arrivals = joined(self._arrivals)
                self._join_at = len(self._arrivals) + JOIN_PARTS
            self.unflushed += len(rows)
            for view in self._views:
                view.since.append(rows)

    def _count(self, rows: Records, sign: int) -> None:
        self.pending += sign * len(rows)
        self.pending_bytes += sign * total(rows["size"])

    # ------------------------------------------------------------ limits
    def last_due_ms(self) -> int:
        """The latest due that maps onto no unreleased slot: two slots before the hour level would lap the watermark."""
        return self.hour.slot_time(self.watermark.due) + self.hour.span_ms - 2 * self.hour.width_ms - 1

    # ------------------------------------------------------------ jobs
    def view(self, low_ms: int, high_ms: int, starts: I64 | None = None) -> TimerView:
        """Slots that overlap [low_ms, high_ms) and may hold a unit, with heads, and the unflushed units.

        starts: i64[k] ms, only of slots that start at one of these. close_view() is owed.
        """
        self._arrivals = joined(self._arrivals)
        unflushed = [*self._flushing, *self._arrivals]
        refs: list[SlotRef] = []
        for wheel, low, high in (
            (self.minute, max(low_ms, self.minute_bound_ms - self.minute.span_ms), min(high_ms, self.minute_bound_ms)),
            (self.hour, max(low_ms, self.minute_bound_ms), high_ms),
        ):
            if low >= high:
                continue
            first = wheel.slot_time(low)
            last = min(wheel.slot_time(high - 1), first + wheel.span_ms - wheel.width_ms)
            times = np.arange(first, last + 1, wheel.width_ms, dtype=np.int64)
            rows = wheel.slots[times // wheel.width_ms % len(wheel.slots)]
            own = rows["time"] == times
            heads, nums = np.where(own, rows["last"], NOWHERE), np.where(own, rows["num"], 0)
            if starts is not None:
                held = np.isin(times, starts)
            elif len(times) <= MAX_UNCHECKED_SLOTS:  # cheaper than to look which of them the unflushed units are of
                held = np.ones(len(times), bool)
            else:
                held = heads != NOWHERE
                for part in unflushed:
                    due = part["due"]
                    due = due[(due >= first) & (due < last + wheel.width_ms)]
                    held[(due - first) // wheel.width_ms] = True
            refs.extend(
                SlotRef(time, wheel.width_ms, head, num)
                for time, head, num in zip(times[held].tolist(), heads[held].tolist(), nums[held].tolist(), strict=True)
            )
        view = TimerView(self.log, refs, unflushed, start=self.log.start)
        self._views.append(view)
        return view

    def close_view(self, view: TimerView) -> None:
        """The job is over, whether it ran or failed."""
        self._views.remove(view)

    def begin_load(self, target_ms: int, budget: int) -> LoadJob | None:
        """Load the window up to `target_ms` (cut at the minute level's end), at most about `budget` messages."""
        target_ms = min(target_ms, self.minute_bound_ms)
        bound = self.window.bound
        if target_ms <= bound.due:
            return None
        view = self.view(bound.due, target_ms)
        return LoadJob(view, bound, target_ms, min(budget, LOAD_UNITS))

    def finish_load(self, job: LoadJob) -> None:
        self.close_view(job.view)
        if self.window.bound != job.low:
            return  # it has become too full for its far end: what was loaded comes after a gap
        late = job.view.arrived(job.low, job.high)
        loaded = concatenated(job.loaded)
        self.window.extend(live_units(np.concatenate([loaded, *late])) if late else loaded, job.high)

    def cascade_due(self, now_ms: int) -> bool:
        """Whether the hour at the minute level's bound should come down."""
        bound = self.minute_bound_ms
        return bound < now_ms + self.geometry.ahead_ms and bound + self.hour.width_ms <= self._minute_limit()

    def _minute_limit(self) -> int:
        return self.minute.slot_time(self.watermark.due) + self.minute.span_ms - self.geometry.margin_ms

    def begin_cascade(self) -> CascadeJob | None:
        """The next piece of the hour at the bound; None when it was empty, and the bound has moved.

        Not to be called while a flush or a cleaning runs.
        """
        assert not self._flushing, "a flush under way has laid out its units for the bound as it is"
        bound, width = self.minute_bound_ms, self.hour.width_ms
        last, num = self._hour_slot(bound)
        if self.cascade is None:
            if last == NOWHERE:
                self.minute_bound_ms += width
                return None
            self.cascade = Cascade(True, self.log.start, last, Pair(bound, 0))
        cascade = self.cascade
        if self._reader is None:
            self._reader = ChainReader(self.log, SlotRef(bound, width, cascade.last, num), cascade.start)
        minute, hour, position, reached = self.minute, self.hour, self.log.end, (self.flushed, self.flushed)

        def build(units_: Records) -> Flush:
            return build_flush(units_, bound + width, position, minute, hour, reached, self.log.uid)

        return CascadeJob(self._reader, cascade, self._chunk_units, build)

    def _hour_slot(self, time_ms: int) -> tuple[int, int]:
        """The head of an hour's chain, NOWHERE when there is none, and its live units."""
        row = self.hour.slots[time_ms // self.hour.width_ms % len(self.hour.slots)]
        return (int(row["last"]), int(row["num"])) if row["time"] == time_ms else (NOWHERE, 0)

    def finish_cascade(self, job: CascadeJob) -> None:
        """The bound moves when the hour has nothing that is not at the minute level as well."""
        cascade, bound, width = self.cascade, self.minute_bound_ms, self.hour.width_ms
        assert cascade is not None, "a piece belongs to a cascade"
        if job.flush is not None:
            job.flush.minutes.hang(self.minute)
        self.cascade = replace(cascade, cut=job.cut)
        if job.cut < Pair(bound + width, 0):
            return
        self._reader = None
        last, _ = self._hour_slot(bound)
        if last != cascade.last:  # checkpoints have added to it
            self.cascade = Cascade(False, cascade.last + UNIT_BYTES, last, Pair(bound, 0))
            return
        self.cascade = None
        self.hour.empty(bound)
        self.minute_bound_ms += width

    # ------------------------------------------------------------ cleaning
    def clean_due(self) -> bool:
        """Whether a cycle is under way, or half of the TimerLog is of no use any more."""
        needed = (self.pending + self._dead_units) * UNIT_BYTES
        size = self.log.end - self.log.start
        if self._cycle is not None:
            return self._cycle.low is not None
        return size > 2 * needed + CLEAN_SEGMENTS * self.log.file.segment_bytes

    def begin_clean(self) -> CleanupJob | None:
        """A step of the cycle; None when no file is closed, an hour is half cascaded, or the cycle waits for its flush.

        Not to be called while an hour is cascaded or a flush runs.
        """
        if self.cascade is not None:
            return None
        if self._cycle is None:
            end = self.log.file.segment_start()
            if end <= self.log.start:
                return None
            self._cycle = CleanupCycle(end, Pair(0, 0))
        if self._cycle.low is None:
            return None
        retention_start = Pair(self.minute.slot_time(self.watermark.due - self.geometry.cancelled_retention_ms), 0)
        low = self._cycle.low = max(self._cycle.low, retention_start)
        view = self.view(low.due, self.last_due_ms() + 1)
        view.slots = [slot for slot in view.slots if slot.last >= self.log.start]
        return CleanupJob(view, self._cycle.end, low, STEP_UNITS, self.watermark)

    def finish_clean(self, job: CleanupJob) -> None:
        self.close_view(job.view)
        cycle = self._cycle
        assert cycle is not None, "a step belongs to a cycle"
        latest, counts = job.result()
        self._arrive(latest)
        cycle.counts.append(counts)
        cycle.dead_units += int(np.count_nonzero(latest["magic"] & DELETE))
        cycle.low = job.next

    def _end_cycle(self) -> Records:
        """With the flush: all has been said again, so chains end at the cycle's end. Returns COUNT units for the flush.

        It must not happen before: what the old files alone had counted must reach the new ones together with the units
        that end it.
        """
        cycle = self._cycle
        if cycle is None or cycle.low is not None or self.cascade is not None:  # which reads from the start of now
            return np.empty(0, UNIT)
        self._cycle = None
        self.log.start = cycle.end
        self._dead_units = cycle.dead_units
        counts = concatenated(cycle.counts)
        # of slots that are still there: unreleased, and at the level that they were counted at
        hours = counts["size"] == self.hour.width_ms  # the width of its slot
        low = np.where(hours, self.minute_bound_ms, self.minute.slot_time(self.watermark.due))
        return counts[counts["due"] >= low]

    def unread_below(self) -> int:
        """The TimerLog position below which no job reads."""
        return min((view.start for view in self._views), default=self.log.start)

    # ------------------------------------------------------------ ranges
    def begin_scan(
        self,
        low: Pair,
        high: Pair,
        message_filter: MessageFilter | None = None,
        max_live: int | None = None,
        slot_cache: SlotSnapshotCache | None = None,
    ) -> ScanJob:
        """Rows with low <= (due, seq) < high, of `message_filter` or all, until `max_live` live ones are found.

        The caller finishes with result() and close_view().
        """
        view = self.view(low.due, high.due + (high.seq > 0))
        return ScanJob(view, low, high, message_filter, max_live, slot_cache)

    def begin_lookup(
        self, due: I64, seq: I64, away: Bools, known: Records, slot_cache: SlotSnapshotCache | None = None
    ) -> ScanJob:
        """The job that finds the latest units of messages (k,), both `away` from the window and known in it.

        Also the known ones: a message that is in the window now may be cancelled or relocated, and then released or
        pushed out of the window, while the job runs. The caller finishes as with a scan.
        """
        far = due[away]
        starts = np.unique(far - far % np.where(far < self.minute_bound_ms, self.minute.width_ms, self.hour.width_ms))
        view = self.view(int(far.min()), int(far.max()) + 1, starts)
        return ScanJob(
            view,
            Pair(int(due.min()), 0),
            Pair(int(due.max()) + 1, 0),
            MessageSetFilter(due, seq),
            None,
            slot_cache,
            known,
        )

    def begin_flush(self, log_range: LogRange) -> FlushJob:
        """Flush every unflushed unit but those of messages released meanwhile: a short delay never costs a unit."""
        assert not self._flushing, "one flush at a time"
        self._flushing, self._arrivals, self._join_at = joined(self._arrivals), [], JOIN_PARTS
        self.unflushed = 0
        self._before_flush = self._cycle, self.log.start, self._dead_units
        counts = self._end_cycle()
        chunks = FlushLayout(self._chunk_units, self.minute_bound_ms, self.minute, self.hour, log_range)
        return FlushJob(self.log, self._flushing, self.watermark, counts, chunks)

    def finish_flush(self, job: FlushJob) -> None:
        for minutes, hours in job.runs:
            minutes.hang(self.minute)
            hours.hang(self.hour)
        self._flushing = []
        self.flushed, self.kept_end = job.flushed, self.log.end

    def abandon_flush(self) -> None:
        """A flush that has not run: its units wait for the next one."""
        self._arrivals = [*self._flushing, *self._arrivals]
        self._flushing = []
        self.unflushed = sum(map(len, self._arrivals))
        self._cycle, self.log.start, self._dead_units = self._before_flush

    # ------------------------------------------------------------ recovery
    def rebuild(self, position: int, repair: RepairFlush | None = None) -> int:
        """Hang the TimerLog from `position` on onto the wheels; returns the number of units read. Raises Damaged."""
        total = self.log.rebuild(self.minute, self.hour, position, repair)
        stale = (self.hour.slots["time"] >= 0) & (self.hour.slots["time"] < self.minute_bound_ms)
        for time in self.hour.slots["time"][stale].tolist():
            self.hour.empty(time)  # cascaded: its units came again as ROLLs
        return total

    # ------------------------------------------------------------ views
    def begin_count(self, end_ms: int = 2**62) -> Callable[[], tuple[I64, I64, I64]]:
        """The load to come, to be run on any thread: (slot start ms, width ms, live messages) by time.

        The minute that is being released counts what the window still holds of it. Slots that begin at `end_ms` or
        later may be missing, or have too few.
        """
        end_ms = min(end_ms, 2**62)
        low, minute_ms, hour_ms = self.minute.slot_time(self.watermark.due), self.minute.width_ms, self.hour.width_ms
        begun = self.window.count_below(low + minute_ms)
        times, nums, widths = [np.array([low])], [np.array([begun])], [np.array([minute_ms])]
        low += minute_ms
        for wheel, begin, end in (
            (self.minute, low, min(self.minute_bound_ms, end_ms)),
            (self.hour, self.minute_bound_ms, end_ms),
        ):
            time, num = wheel.counts(begin, end)
            times.append(time)
            nums.append(num)
            widths.append(np.full(len(time), wheel.width_ms, np.int64))
        unflushed, bound_ms = [*self._flushing, *self._arrivals], self.minute_bound_ms

        def run() -> tuple[I64, I64, I64]:
            for part in unflushed:
                rows = part[(part["due"] >= low) & (part["due"] < end_ms + hour_ms)]  # whole slots
                due = rows["due"]
                width = np.where(due < bound_ms, minute_ms, hour_ms).astype(np.int64)
                times.append(due - due % width)
                nums.append(change_of(rows["magic"]))
                widths.append(width)
            time, width, num = np.concatenate(times), np.concatenate(widths), np.concatenate(nums)
            slots, first, at = np.unique(time, return_index=True, return_inverse=True)
            total = np.bincount(at, weights=num, minlength=len(slots)).astype(np.int64)
            held = total > 0
            return slots[held], width[first][held], total[held]

        return run


def joined(parts: list[Records]) -> list[Records]:
    """The same units in fewer arrays: single messages come as arrays of one, thousands between two flushes.

    It takes the arrays out of `parts`, so that not all units are in memory twice.
    """
    if len(parts) <= MANY_PARTS:
        return parts
    made: list[Records] = []
    small: list[Records] = []
    count = 0  # units in `small`
    parts.reverse()
    while parts:
        small.append(parts.pop())
        count += len(small[-1])
        if count >= SMALL_PART or not parts:
            large = [small.pop()] if len(small[-1]) >= SMALL_PART else []
            made.extend([concatenated(small)] if small else [])
            made.extend(large)
            small, count = [], 0
    return made
