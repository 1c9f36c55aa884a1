"""The timer index of a shard: two wheels over one TimerLog, the units not yet flushed, and the due window.

    arrivals --flush--> TimerLog, wheels        (a checkpoint's first half)
    hour slot --cascade--> arrivals as ROLL     (an hour less than 24 h away)
    wheel + arrivals --load--> due window       (the coming minutes)
    wheel + arrivals --scan--> rows of a range  (cancel, list)

`minute_bound_ms` divides the levels: units due before it belong to minute slots, others to hour slots. It moves by
whole hours, when the hour at it has been cascaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from delaynode.store.timerlog import Flush, TimerLog, as_units, build_flush
from delaynode.store.timerwheel import NOWHERE, TimerWheel
from delaynode.store.types import I64, U32, Bools, Pair, Records, at_or_below
from delaynode.store.units import (
    DELETE,
    DELETE_MOVED,
    ROLL,
    UNIT,
    change_of,
    concatenated,
    last_words,
    live_units,
    units,
)
from delaynode.store.window import CANCELLED_AT, MOVED_AT, DueWindow, Released, after, before

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
MINUTE_SLOTS = 2 * 1440
MINUTE_MARGIN_MS = 2 * HOUR_MS  # the minute level ends this much before it would lap the watermark
CASCADE_AHEAD_MS = DAY_MS


def hour_slots(horizon_ms: int) -> int:
    """Slots of the hour level: the horizon and a week, so that a shard may be down for days without lapping."""
    return (horizon_ms + 7 * DAY_MS) // HOUR_MS + 2


@dataclass(frozen=True, slots=True)
class SlotRef:
    """A slot as it stood at capture: its chain never changes below `last`."""

    time: int  # ms
    width_ms: int
    last: int  # TimerLog position, or NOWHERE
    num: int  # live units in the chain


@dataclass(slots=True, eq=False)
class Capture:
    """What a job reads: slots in time order, the units not in the TimerLog, and `since`, where later ones gather."""

    log: TimerLog
    slots: list[SlotRef]
    unflushed: list[Records]
    since: list[Records] = field(default_factory=list)

    def collect(self, slot: SlotRef, low: Pair, high: Pair, keep: Callable[[Records], Bools] | None = None) -> Records:
        """The slot's units with low <= (due, seq) < high that `keep` accepts, in TimerLog order."""
        parts: list[Records] = []
        if slot.last != NOWHERE:
            for block in self.log.walk(slot.last, slot.time, slot.width_ms):
                parts.append(as_units(_within(block, low, high, keep)))
            parts.reverse()
        begin, end = max(low, Pair(slot.time, 0)), min(high, Pair(slot.time + slot.width_ms, 0))
        parts.extend(_within(part, begin, end, keep) for part in self.unflushed)
        return concatenated([part for part in parts if len(part)])

    def arrived(self, low: Pair, high: Pair, keep: Callable[[Records], Bools] | None = None) -> list[Records]:
        """Units of the range that came after the capture."""
        return [found for part in self.since if len(found := _within(part, low, high, keep))]


def _within(rows: Records, low: Pair, high: Pair, keep: Callable[[Records], Bools] | None = None) -> Records:
    due = rows["due"]
    inside: Bools
    if low.seq == 0 and high.seq == 0:
        inside = (due >= low.due) & (due < high.due)
    else:
        seq = rows["seq"]
        inside = at_or_below(due, seq, before(high)) & ~at_or_below(due, seq, before(low))
    if keep is not None:
        inside &= keep(rows)
    return rows if inside.all() else rows[inside]


class LoadJob:
    """Reads the live messages between the window's bound and a target, as many as fit the budget."""

    def __init__(self, capture: Capture, low: Pair, target_ms: int, budget: int) -> None:
        self.capture = capture
        self.low = low
        self.high = Pair(target_ms, 0)
        self.budget = budget
        self.loaded: list[Records] = []

    def run(self) -> None:
        room = self.budget
        for slot in self.capture.slots:
            low, high = max(self.low, Pair(slot.time, 0)), min(self.high, Pair(slot.time + slot.width_ms, 0))
            expected = slot.num + sum(len(part) for part in self.capture.unflushed)
            cut = self._part_that_fits(slot, low, high, room) if expected > room else high
            part = live_units(self.capture.collect(slot, low, cut))
            if len(part):
                self.loaded.append(part)
                room -= len(part)
            if cut < high:
                self.high = cut
                return

    def _part_that_fits(self, slot: SlotRef, low: Pair, high: Pair, room: int) -> Pair:
        """Where to stop in a slot that may be larger than the room: a histogram of its dues, then of one ms's seqs."""
        room = max(room, 1)
        counts = np.zeros(slot.width_ms, np.int64)
        for block in self._blocks(slot, low, high):
            counts += np.bincount(block["due"] - slot.time, minlength=slot.width_ms)
        reach = np.cumsum(counts)
        if not len(reach) or reach[-1] <= room:
            return high
        due = slot.time + int(np.searchsorted(reach, room, "right"))
        if due > low.due:
            return Pair(due, 0)
        # more than fits in one millisecond: a herd
        herd = [block["seq"][block["due"] == due] for block in self._blocks(slot, low, high)]
        seqs = np.concatenate(herd)
        return Pair(due, int(np.partition(seqs, room - 1)[room - 1]) + 1) if len(seqs) > room else Pair(due + 1, 0)

    def _blocks(self, slot: SlotRef, low: Pair, high: Pair) -> list[Records]:
        chain = self.capture.log.walk(slot.last, slot.time, slot.width_ms) if slot.last != NOWHERE else ()
        begin, end = max(low, Pair(slot.time, 0)), min(high, Pair(slot.time + slot.width_ms, 0))
        columns = ["due", "seq"]
        return [_within(part, begin, end)[columns].copy() for part in (*chain, *self.capture.unflushed)]


class CascadeJob:
    """Takes one hour slot's last words to the minute level as ROLL units: live, or dead and why."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.rolls = np.empty(0, UNIT)

    def run(self) -> None:
        slot = self.capture.slots[0]
        chain = Capture(self.capture.log, [slot], [])
        rows, live = last_words(chain.collect(slot, *self._range(slot)))
        rows = rows.copy()
        rows["magic"] = np.where(live, ROLL, rows["magic"] | ROLL)
        self.rolls = self._still_true(rows, self.capture.unflushed)

    def _range(self, slot: SlotRef) -> tuple[Pair, Pair]:
        return Pair(slot.time, 0), Pair(slot.time + slot.width_ms, 0)

    def _still_true(self, rolls: Records, later: list[Records]) -> Records:
        """`rolls` without the dead that a later unit speaks of: it goes to the minute level by itself, and before them.

        The live ones stay, whatever came later: they never revive, and the slot's count needs them.
        """
        dead = rolls["magic"] != ROLL
        spoken = [part for other in later if len(part := _within(other, *self._range(self.capture.slots[0])))]
        if not spoken or not dead.any():
            return rolls
        rows, _ = last_words(np.concatenate([rolls[dead], *spoken]))
        return np.concatenate([rolls[~dead], rows[(rows["magic"] & ROLL) != 0]])

    def result(self) -> Records:
        return self._still_true(self.rolls, self.capture.since)


class ScanJob:
    """Reads rows of a due range out of wheel and arrivals, live and dead, in (due, seq) order.

    keep: which units to look at, (n,) -> bools (n,); None: all. most: stop after the slot that reaches it.
    """

    def __init__(
        self, capture: Capture, low: Pair, high: Pair, keep: Callable[[Records], Bools] | None, most: int | None
    ) -> None:
        self.capture = capture
        self.low, self.high = low, high
        self.keep = keep
        self.most = most
        self._units: list[Records] = []

    def run(self) -> None:
        found = 0
        for slot in self.capture.slots:
            part = self.capture.collect(slot, self.low, self.high, self.keep)
            if len(part):
                self._units.append(part)
                found += int(np.count_nonzero(last_words(part)[1]))
            if self.most is not None and found >= self.most:
                self.high = min(self.high, Pair(slot.time + slot.width_ms, 0))
                return

    def result(self) -> tuple[Records, Bools]:
        """(rows (k,) of dtype UNIT, live bools (k,)) as of now; `high` says how far it goes."""
        return last_words(concatenated([*self._units, *self.capture.arrived(self.low, self.high, self.keep)]))


class FlushJob:
    """Writes units to the TimerLog and syncs it."""

    def __init__(self, log: TimerLog, rows: Records, build: Callable[[Records], Flush]) -> None:
        self.log = log
        self.rows = rows
        self._build = build
        self.flush: Flush | None = None

    def run(self) -> None:
        if len(self.rows):
            self.flush = self._build(self.rows)
            self.log.write(self.flush)


class TimerIndex:
    """Owned by one thread; jobs' run() may leave it. At most one flush or cascade at a time."""

    def __init__(self, log: TimerLog, horizon_ms: int, watermark: Pair, minute_bound_ms: int) -> None:
        self.log = log
        self.minute = TimerWheel(MINUTE_MS, MINUTE_SLOTS)
        self.hour = TimerWheel(HOUR_MS, hour_slots(horizon_ms))
        self.watermark = watermark
        self.minute_bound_ms = minute_bound_ms
        self.window = DueWindow(after(watermark))
        self._arrivals: list[Records] = []
        self._flushing: list[Records] = []
        self._captures: list[Capture] = []
        self.unflushed = 0  # units in _arrivals
        self.pending = 0  # live messages above the watermark
        self.pending_bytes = 0

    # ------------------------------------------------------------ changes, in log order
    def insert(self, rows: Records) -> None:
        """New live messages above the watermark."""
        self._arrive(rows)
        inside = self.window.covers(rows["due"], rows["seq"])
        self.window.add(rows if inside.all() else rows[inside])
        self._count(rows, 1)

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

    def release(self, target: Pair, most: int) -> Released:
        """Take what is at or below `target` (which must be loaded) out of the window; moves the watermark."""
        taken = self.window.take(target, most)
        self.watermark = taken.watermark
        self.pending -= len(taken)
        self.pending_bytes -= int(taken.size.sum(dtype=np.int64))
        return taken

    def _arrive(self, rows: Records) -> None:
        if len(rows):
            self._arrivals.append(rows)
            self.unflushed += len(rows)
            for capture in self._captures:
                capture.since.append(rows)

    def _count(self, rows: Records, sign: int) -> None:
        self.pending += sign * len(rows)
        self.pending_bytes += sign * int(rows["size"].sum(dtype=np.int64))

    # ------------------------------------------------------------ limits
    def last_due_ms(self) -> int:
        """The latest due that maps onto no unreleased slot: two slots before the hour level would lap the watermark."""
        return self.hour.slot_time(self.watermark.due) + self.hour.span_ms - 2 * HOUR_MS - 1

    # ------------------------------------------------------------ jobs
    def _capture(self, low_ms: int, high_ms: int) -> Capture:
        """Slots that overlap [low_ms, high_ms), with heads, and the unflushed units."""
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
            refs.extend(
                SlotRef(time, wheel.width_ms, head, num)
                for time, head, num in zip(times.tolist(), heads.tolist(), nums.tolist(), strict=True)
            )
        capture = Capture(self.log, refs, [*self._flushing, *self._arrivals])
        self._captures.append(capture)
        return capture

    def end_capture(self, capture: Capture) -> None:
        """The job is over, whether it ran or failed."""
        self._captures.remove(capture)

    def begin_load(self, target_ms: int, budget: int) -> LoadJob | None:
        """Load the window up to `target_ms` (cut at the minute level's end), at most about `budget` messages."""
        target_ms = min(target_ms, self.minute_bound_ms)
        bound = self.window.bound
        if target_ms <= bound.due:
            return None
        capture = self._capture(bound.due, target_ms)
        capture.slots = self._with_units(capture)
        return LoadJob(capture, bound, target_ms, budget)

    def finish_load(self, job: LoadJob) -> None:
        self.end_capture(job.capture)
        late = job.capture.arrived(job.low, job.high)
        loaded = concatenated(job.loaded)
        self.window.extend(live_units(np.concatenate([loaded, *late])) if late else loaded, job.high)

    def cascade_due(self, now_ms: int) -> bool:
        """Whether the hour at the minute level's bound should come down."""
        bound = self.minute_bound_ms
        return bound < now_ms + CASCADE_AHEAD_MS and bound + HOUR_MS <= self._minute_limit()

    def _minute_limit(self) -> int:
        return self.minute.slot_time(self.watermark.due) + self.minute.span_ms - MINUTE_MARGIN_MS

    def begin_cascade(self) -> CascadeJob | None:
        """For the hour at the bound; None when it was empty, and the bound has moved."""
        capture = self._capture(self.minute_bound_ms, self.minute_bound_ms + HOUR_MS)
        if capture.slots[0].last == NOWHERE:
            self.end_capture(capture)
            self.minute_bound_ms += HOUR_MS
            return None
        return CascadeJob(capture)

    def finish_cascade(self, job: CascadeJob) -> None:
        self.end_capture(job.capture)
        self._arrive(job.result())
        self.hour.empty(self.minute_bound_ms)
        self.minute_bound_ms += HOUR_MS

    def begin_scan(
        self, low: Pair, high: Pair, keep: Callable[[Records], Bools] | None = None, most: int | None = None
    ) -> ScanJob:
        """Rows with low <= (due, seq) < high. The caller finishes with result() and end_capture()."""
        capture = self._capture(low.due, high.due + (high.seq > 0))
        capture.slots = self._with_units(capture)
        return ScanJob(capture, low, high, keep, most)

    def begin_lookup(self, due: I64, seq: I64, away: Bools) -> ScanJob:
        """Every unit of those messages (k,) that are `away` from the window, and what comes later of any of them.

        Of any: one that is in the window now may be cancelled and passed by the watermark while the job runs. The
        caller finishes as with a scan.
        """
        far = due[away]
        capture = self._capture(int(far.min()), int(far.max()) + 1)
        wanted = np.unique(np.where(far < self.minute_bound_ms, far - far % MINUTE_MS, far - far % HOUR_MS))
        times = np.fromiter((ref.time for ref in capture.slots), np.int64, len(capture.slots))
        capture.slots = [ref for ref, keep in zip(capture.slots, np.isin(times, wanted).tolist(), strict=True) if keep]
        return ScanJob(capture, Pair(int(due.min()), 0), Pair(int(due.max()) + 1, 0), by_identity(seq), None)

    def _with_units(self, capture: Capture) -> list[SlotRef]:
        """The capture's slots that hold any unit."""
        if not capture.slots:
            return []
        times = np.fromiter((ref.time for ref in capture.slots), np.int64, len(capture.slots))
        held = np.fromiter((ref.last != NOWHERE for ref in capture.slots), bool, len(capture.slots))
        for part in capture.unflushed:
            at = np.searchsorted(times, part["due"], "right") - 1
            held[at[at >= 0]] = True
        return [ref for ref, keep in zip(capture.slots, held.tolist(), strict=True) if keep]

    def begin_flush(self, log_range: tuple[int, int]) -> FlushJob:
        """Flush every unflushed unit but those of messages released meanwhile: a short delay never costs a unit."""
        assert not self._flushing, "one flush at a time"
        self._flushing, self._arrivals = self._arrivals, []
        self.unflushed = 0
        rows = concatenated(self._flushing)
        if len(rows):
            over = at_or_below(rows["due"], rows["seq"], self.watermark)
            ended = (rows["magic"] & DELETE) != 0
            if ended.any():  # what became of a message that was cancelled or moved takes all that was said of it
                over &= ~np.isin(rows["seq"], rows["seq"][ended])
            rows = rows[~over] if over.any() else rows
        bound, minute, hour, position = self.minute_bound_ms, self.minute, self.hour, self.log.end

        def build(units_: Records) -> Flush:
            return build_flush(units_, bound, position, minute, hour, log_range)

        return FlushJob(self.log, rows, build)

    def finish_flush(self, job: FlushJob) -> None:
        if job.flush is not None:
            job.flush.minutes.hang(self.minute)
            job.flush.hours.hang(self.hour)
        self._flushing = []

    # ------------------------------------------------------------ recovery
    def rebuild(self, position: int) -> int:
        """Hang the TimerLog from `position` on onto the wheels; returns the number of units read."""
        total = self.log.rebuild(self.minute, self.hour, position)
        stale = (self.hour.slots["time"] >= 0) & (self.hour.slots["time"] < self.minute_bound_ms)
        for time in self.hour.slots["time"][stale].tolist():
            self.hour.empty(time)  # cascaded: its units came again as ROLLs
        return total

    # ------------------------------------------------------------ views
    def begin_count(self) -> Callable[[], tuple[I64, I64, I64]]:
        """The load to come, to be run on any thread: (slot start ms, width ms, live messages) by time.

        The minute that is being released counts what the window still holds of it.
        """
        low = self.minute.slot_time(self.watermark.due)
        begun = self.window.count_below(low + MINUTE_MS)
        times, nums, widths = [np.array([low])], [np.array([begun])], [np.array([MINUTE_MS])]
        low += MINUTE_MS
        for wheel, begin, end in (
            (self.minute, low, self.minute_bound_ms),
            (self.hour, self.minute_bound_ms, 2**62),
        ):
            time, num = wheel.counts(begin, end)
            times.append(time)
            nums.append(num)
            widths.append(np.full(len(time), wheel.width_ms, np.int64))
        unflushed, bound_ms = [*self._flushing, *self._arrivals], self.minute_bound_ms

        def run() -> tuple[I64, I64, I64]:
            for part in unflushed:
                rows = part[part["due"] >= low]
                due = rows["due"]
                width = np.where(due < bound_ms, MINUTE_MS, HOUR_MS).astype(np.int64)
                times.append(due - due % width)
                nums.append(change_of(rows["magic"]))
                widths.append(width)
            time, width, num = np.concatenate(times), np.concatenate(widths), np.concatenate(nums)
            slots, first, at = np.unique(time, return_index=True, return_inverse=True)
            total = np.bincount(at, weights=num, minlength=len(slots)).astype(np.int64)
            held = total > 0
            return slots[held], width[first][held], total[held]

        return run


def by_identity(seq: I64) -> Callable[[Records], Bools]:
    """A filter for the units of messages with these seqs."""
    wanted = np.unique(seq)

    def keep(rows: Records) -> Bools:
        at = np.minimum(np.searchsorted(wanted, rows["seq"]), len(wanted) - 1)
        hit: Bools = wanted[at] == rows["seq"]
        return hit

    return keep
