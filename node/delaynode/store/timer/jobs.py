"""Jobs on the timer index: each reads a capture, on any thread, and is finished by the index's owner.

A capture is the index as it stood: slots with the heads of their chains, which never change below, and the units that
were not in the TimerLog; what arrives later gathers in `since`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain as chained
from itertools import groupby

import numpy as np

from delaynode.store.columns import at_or_below
from delaynode.store.timer.due_window import after, before
from delaynode.store.timer.timer_log import UNIT_BYTES, LogRange, SlotRuns, TimerLog, as_units, build_flush
from delaynode.store.timer.units import DELETE, concatenated, live_units
from delaynode.store.timer.wheel import NOWHERE, TimerWheel
from delaynode.store.types import Bools, Pair, Records

HERD_BINS = 1 << 16
SORTED_FROM = 4  # looks at the unflushed units: from then on it pays to sort them


@dataclass(frozen=True, slots=True)
class SlotRef:
    """A slot as it stood at capture: its chain never changes below `last`."""

    time: int  # ms
    width_ms: int
    last: int  # TimerLog position, or NOWHERE
    num: int  # live units in the chain


@dataclass(slots=True, eq=False)
class TimerView:
    """What a job reads: slots in time order, the units not in the TimerLog, and `since`, where later ones gather."""

    log: TimerLog
    slots: list[SlotRef]
    unflushed: list[Records]
    since: list[Records] = field(default_factory=list)
    start: int = 0  # TimerLog position at which chains end
    _read_count: int = 0
    _by_due: ByDue | None = None  # of the unflushed units, once it pays

    def collect(self, slot: SlotRef, low: Pair, high: Pair, keep: Callable[[Records], Bools] | None = None) -> Records:
        """The slot's units with low <= (due, seq) < high that `keep` accepts, each message's in TimerLog order."""
        begin, end = max(low, Pair(slot.time, 0)), min(high, Pair(slot.time + slot.width_ms, 0))
        parts = [self.recent(begin, end, keep)]
        for block in self.log.walk(slot.last, slot.time, slot.width_ms, self.start):
            parts.append(as_units(within(block, low, high, keep)))
        parts.reverse()
        return concatenated([part for part in parts if len(part)])

    def collect_some(
        self, limit: int, slot: SlotRef, low: Pair, high: Pair, keep: Callable[[Records], Bools] | None = None
    ) -> tuple[Records, Pair]:
        """Collect only the first messages, as many as have about `limit` units; returns where they end, too.

        One pass over the chain, however long: at most twice the limit is held, the latest go first.
        """
        end, many = high, 2 * limit
        begin = max(low, Pair(slot.time, 0))
        parts = [self.recent(begin, min(high, Pair(slot.time + slot.width_ms, 0)), keep)]
        total = len(parts[0])
        for block in self.log.walk(slot.last, slot.time, slot.width_ms, self.start):
            if total > many:
                parts, end = first_of(parts, limit)
                total = sum(map(len, parts))
                many = 2 * max(limit, total)
            parts.append(as_units(within(block, low, end, keep)))
            total += len(parts[-1])
        if total > limit:
            parts, cut = first_of(parts, limit)
            end = min(end, cut) if sum(map(len, parts)) < total else end
        parts.reverse()
        return concatenated([part for part in parts if len(part)]), end

    def recent(self, low: Pair, high: Pair, keep: Callable[[Records], Bools] | None = None) -> Records:
        """The units of [low, high) that were not in the TimerLog, those of one message in order of arrival."""
        self._read_count += 1
        if self._read_count > SORTED_FROM and self._by_due is None:
            self._by_due = ByDue(self.unflushed)
        parts = self.unflushed if self._by_due is None else self._by_due.between(low, high)
        return concatenated([found for part in parts if len(found := within(part, low, high, keep))])

    def arrived(self, low: Pair, high: Pair, keep: Callable[[Records], Bools] | None = None) -> list[Records]:
        """Units of the range that came after the capture."""
        return [found for part in self.since if len(found := within(part, low, high, keep))]


class ByDue:
    """Finds units of several arrays by due, without a copy of them: 12 B a unit, 28 B while it is made."""

    def __init__(self, parts: list[Records]) -> None:
        self._parts = parts
        due = np.concatenate([np.zeros(0, np.int64), *(part["due"] for part in parts)])
        self._row = np.argsort(due, kind="stable").astype(np.uint32)
        self._due = due[self._row]
        self._end = np.cumsum([len(part) for part in parts], dtype=np.int64)  # row at which each array ends

    def between(self, low: Pair, high: Pair) -> list[Records]:
        """The units of these dues, each array's in order of arrival; of the first and last due perhaps more."""
        begin = np.searchsorted(self._due, low.due, "left")
        end = np.searchsorted(self._due, high.due, "right" if high.seq else "left")
        rows = np.sort(self._row[begin:end])
        cuts = np.searchsorted(rows, self._end)
        found = []
        for at in np.flatnonzero(np.diff(cuts, prepend=0)).tolist():
            first, part = int(cuts[at - 1]) if at else 0, self._parts[at]
            found.append(part[rows[first : cuts[at]] - (self._end[at] - len(part))])
        return found


def within(rows: Records, low: Pair, high: Pair, keep: Callable[[Records], Bools] | None = None) -> Records:
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


def first_of(parts: list[Records], max_units: int) -> tuple[list[Records], Pair]:
    """The units of the first messages among n: at most `max_units`, but one message or more; and where they end."""
    due = np.concatenate([part["due"] for part in parts])
    last_due = int(np.partition(due, max_units - 1)[max_units - 1])
    herd = np.concatenate([part["seq"][part["due"] == last_due] for part in parts])
    rank = max_units - 1 - int(np.count_nonzero(due < last_due))
    end = after(Pair(last_due, int(np.partition(herd, rank)[rank])))
    return [within(part, Pair(0, 0), end) for part in parts], end


def part_that_fits(view: TimerView, slot: SlotRef, low: Pair, high: Pair, room: int) -> Pair:
    """Where to stop in a slot that may be larger than the room: a histogram of its dues, then of one ms's seqs."""
    room = max(room, 1)
    counts = np.zeros(slot.width_ms, np.int64)
    for block in _blocks(view, slot, low, high):
        counts += np.bincount(block["due"] - slot.time, minlength=slot.width_ms)
    reach = np.cumsum(counts)
    if not len(reach) or reach[-1] <= room:
        return high
    due = slot.time + int(np.searchsorted(reach, room, "right"))
    if due > low.due:
        return Pair(due, 0)
    return _part_of_herd(view, slot, low, min(high, Pair(due + 1, 0)), room)


def _part_of_herd(view: TimerView, slot: SlotRef, low: Pair, high: Pair, room: int) -> Pair:
    """Where to stop in one millisecond that holds more than fits: histograms of its seqs, finer and finer."""
    ends = [(int(s.min()), int(s.max())) for b in _blocks(view, slot, low, high) if len(s := b["seq"])]
    first, last = min(low for low, _ in ends), max(high for _, high in ends)
    while True:
        width = -(-(last - first + 1) // HERD_BINS)
        counts = np.zeros(HERD_BINS, np.int64)
        for block in _blocks(view, slot, low, high):
            seq = block["seq"]
            counts += np.bincount((seq[seq <= last] - first) // width, minlength=HERD_BINS)
        fitting_bins = int(np.searchsorted(np.cumsum(counts), room, "right"))  # bins that fit
        if fitting_bins == HERD_BINS:
            return Pair(low.due, last + 1)
        if fitting_bins or width == 1:
            return Pair(low.due, first + max(1, fitting_bins) * width)
        last = first + width - 1


def _blocks(view: TimerView, slot: SlotRef, low: Pair, high: Pair) -> Iterator[Records]:
    """(due, seq) of the slot's units of [low, high), block by block."""
    blocks = view.log.walk(slot.last, slot.time, slot.width_ms, view.start)
    begin, end = max(low, Pair(slot.time, 0)), min(high, Pair(slot.time + slot.width_ms, 0))
    columns = ["due", "seq"]
    for part in chained(blocks, [view.recent(begin, end)]):
        yield within(part, begin, end)[columns].copy()


def without_chains_as_one(slots: Iterable[SlotRef]) -> Iterator[SlotRef]:
    """Neighbours that have nothing in the TimerLog become one slot, whose units are looked for once."""
    for chainless, near in groupby(slots, lambda slot: slot.last == NOWHERE):
        if chainless:
            times = [(slot.time, slot.time + slot.width_ms) for slot in near]
            yield SlotRef(times[0][0], times[-1][1] - times[0][0], NOWHERE, 0)
        else:
            yield from near


class LoadJob:
    """Reads the live messages between the window's bound and a target, as many as fit the budget."""

    def __init__(self, view: TimerView, low: Pair, target_ms: int, budget: int) -> None:
        self.view = view
        self.low = low
        self.high = Pair(target_ms, 0)
        self.budget = budget
        self.loaded: list[Records] = []

    def run(self) -> None:
        room = self.budget
        for slot in without_chains_as_one(self.view.slots):
            low, high = max(self.low, Pair(slot.time, 0)), min(self.high, Pair(slot.time + slot.width_ms, 0))
            units, cut = self.view.collect_some(max(1, room), slot, low, high)
            part = live_units(units)
            if len(part):
                self.loaded.append(part)
                room -= len(part)
            if cut < high:
                self.high = cut
                return


class FlushJob:
    """Writes units to the TimerLog, but those of messages released before it began, and syncs it.

    In pieces, in order of arrival: sorted and laid out a unit takes some 150 bytes. All of them lie in one segment, so
    that the TimerLog never begins in their midst: a bad one is made again with the others' help, see timer/repair.py.
    """

    def __init__(
        self, log: TimerLog, parts: list[Records], watermark: Pair, counts: Records, layout: FlushLayout
    ) -> None:
        self.units = 0  # written
        self.runs: list[tuple[SlotRuns, SlotRuns]] = []  # that each piece adds to the minute and to the hour level
        self.flushed = layout.log_range[1]  # log offset: the units of all frames before it are in the TimerLog then
        self._log, self._parts, self._watermark, self._counts, self._layout = log, parts, watermark, counts, layout

    def run(self) -> None:
        """Raises OSError."""
        log, chunks = self._log, self._layout
        kept = self._kept()
        self.units = sum(len(part) if mask is None else int(np.count_nonzero(mask)) for part, mask in kept)
        many = -(-self.units // chunks.limit)
        minute, hour = (chunks.minute.copy(), chunks.hour.copy()) if many > 1 else (chunks.minute, chunks.hour)
        new_segment = log.file.begins_segment((self.units + many) * UNIT_BYTES)
        for rows in _cut(kept, chunks.limit):
            flush = build_flush(rows, chunks.bound_ms, log.end, minute, hour, chunks.log_range, log.uid)
            log.append(flush, new_segment=new_segment)
            new_segment = False
            self.runs.append((flush.minutes, flush.hours))
            if many > 1:  # the next piece's chains go on from here
                flush.minutes.hang(minute)
                flush.hours.hang(hour)
        if self.runs:
            log.sync()

    def _kept(self) -> list[tuple[Records, Bools | None]]:
        """The parts, each with which of its units are written; None: all."""
        deleted = [part["seq"][(part["magic"] & DELETE) != 0] for part in self._parts]
        ended = np.sort(np.concatenate(deleted)) if any(map(len, deleted)) else np.empty(0, np.int64)
        kept: list[tuple[Records, Bools | None]] = []
        for part in self._parts:
            over = at_or_below(part["due"], part["seq"], self._watermark)
            if len(ended):  # what became of a message that was cancelled or moved takes all that was said of it
                seq = part["seq"]
                over &= ended[np.minimum(np.searchsorted(ended, seq), len(ended) - 1)] != seq
            kept.append((part, ~over if over.any() else None))
        return [*kept, (self._counts, None)]


@dataclass(frozen=True, slots=True)
class FlushLayout:
    """How a flush is laid out: about `limit` units at a time, for these wheels, which stay as they are meanwhile."""

    limit: int
    bound_ms: int
    minute: TimerWheel
    hour: TimerWheel
    log_range: LogRange


def _cut(kept: list[tuple[Records, Bools | None]], limit: int) -> Iterator[Records]:
    """The units that are kept, `limit` at a time."""
    chunk: list[Records] = []
    room = limit
    for part, mask in kept:
        for at in range(0, len(part), limit):
            rows = part[at : at + limit]
            rows = rows if mask is None else rows[mask[at : at + limit]]
            while len(rows):
                chunk.append(rows[:room])
                rows, room = rows[room:], room - len(chunk[-1])
                if not room:
                    yield concatenated(chunk)
                    chunk, room = [], limit
    if chunk:
        yield concatenated(chunk)
