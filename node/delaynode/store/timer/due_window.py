"""The due window: the coming minutes' live messages as sorted runs in memory. Only a cache of the wheel's slots.

A run is columns sorted by (due, seq). Arrivals wait unsorted until the next look, become a run, and runs of like size
merge as long as they are small, so there are few of them; a release is a binary search in each. Those that arrive a few
at a time wait in a heap of plain rows, from which a release takes them as they are. Above its limit the window forgets
the latest rows; they are read from the wheel again when they are near.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from heapq import heappop, heappush
from typing import TypeAlias

import numpy as np

from delaynode.store.columns import at_or_below, is_few, lowest, release_order, total
from delaynode.store.timer.units import DEFAULT, DELETE, DELETE_MOVED, UNIT, concatenated
from delaynode.store.types import I64, MAX_SEQ, U32, Array, Bools, Pair, Records, Row

RUN_COLUMNS = ("due", "seq", "offset", "size", "key", "tag", "check")  # in the order of SortedRun's fields
CANCELLED_AT, MOVED_AT = -1, -2  # in place of a record's offset: dead, and why
NEVER = 2**63 - 1  # a due: nothing waits
MAX_MERGED_RUN = 262_144  # rows: merging larger ones would take twice their memory
MAX_HEAP = 1024  # rows in the heap


@dataclass(slots=True)
class SortedRun:
    """Columns (n,) sorted by (due, seq); rows before `at` have been released."""

    due: I64
    seq: I64
    offset: I64
    size: U32
    key: U32
    tag: U32
    check: U32
    _: KW_ONLY
    at: int = 0

    @classmethod
    def of(cls, units: Records) -> SortedRun:
        """From units of any order."""
        rows = units[release_order(units["due"], units["seq"])]
        return cls(*(np.ascontiguousarray(rows[name]) for name in RUN_COLUMNS))

    def columns(self) -> tuple[Array, ...]:
        return self.due, self.seq, self.offset, self.size, self.key, self.tag, self.check

    def __len__(self) -> int:
        return len(self.due) - self.at

    def first(self) -> Pair:
        """The first row that is not released."""
        return Pair(int(self.due[self.at]), int(self.seq[self.at]))

    def merged(self, other: SortedRun) -> SortedRun:
        pairs = zip(self.columns(), other.columns(), strict=True)
        joined = (np.concatenate((mine[self.at :], others[other.at :])) for mine, others in pairs)  # one at a time
        due, seq = next(joined), next(joined)
        order = release_order(due, seq)
        return SortedRun(due[order], seq[order], *(column[order] for column in joined))

    def cut(self, end: int) -> SortedRun:
        """The rows before `end` in memory of their own."""
        return SortedRun(*(column[self.at : end].copy() for column in self.columns()))

    def rows_through(self, pair: Pair) -> int:
        """How many of this run's rows, from its beginning, are at or below `pair`."""
        low, high = int(self.due.searchsorted(pair.due, "left")), int(self.due.searchsorted(pair.due, "right"))
        return low + int(self.seq[low:high].searchsorted(pair.seq, "right"))

    def places(self, due: I64, seq: I64) -> I64:
        """The row of each (due, seq) wanted, (k,) -> (k,); -1 where it is not here or is released."""
        low, high = np.searchsorted(self.due, due, "left"), np.searchsorted(self.due, due, "right")
        ends = high.copy()
        for _ in range(int((high - low).max(initial=0)).bit_length()):  # all binary searches at once, step by step
            middle = (low + high) // 2
            less = (low < high) & (self.seq[np.minimum(middle, len(self.seq) - 1)] < seq)
            low, high = np.where(less, middle + 1, low), np.where(less, high, np.minimum(middle, high))
        present = low < ends
        present[present] = self.seq[low[present]] == seq[present]
        place: I64 = np.where(present, low, -1)
        place[place < self.at] = -1
        return place


@dataclass(slots=True)  # not frozen: one is made for each message, see docs/benchmarks.md
class ReleasedColumns:
    """The rows that one tick releases: columns (n,) in (due, seq) order, and the watermark after it."""

    due: I64
    seq: I64
    offset: I64
    size: U32
    tag: U32
    check: U32
    _: KW_ONLY
    watermark: Pair

    def __len__(self) -> int:
        return len(self.due)

    @property
    def record_bytes(self) -> int:
        return total(self.size)

    @property
    def latest_due(self) -> int:
        return int(self.due[-1])


@dataclass(slots=True)  # not frozen: one is made for each message, see docs/benchmarks.md
class ReleasedFew:
    """Up to FEW rows that one tick releases, in (due, seq) order, as plain numbers; and the watermark after it."""

    rows: list[Row]
    watermark: Pair

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def record_bytes(self) -> int:
        return sum(row[3] for row in self.rows)

    @property
    def latest_due(self) -> int:
        return self.rows[-1][0]


Released: TypeAlias = ReleasedColumns | ReleasedFew
"""What one tick releases."""


class DueWindow:
    """Holds every live message with watermark < (due, seq) < bound, about `limit` rows at most."""

    def __init__(self, bound: Pair, limit: int = NEVER) -> None:
        self.bound = bound
        self.limit = limit
        self._runs: list[SortedRun] = []
        self._arrivals: list[Records] = []
        self._arrived = 0  # rows in _arrivals
        self._first_arrival = NEVER  # the earliest due in _arrivals, ms
        self._heap: list[Row] = []

    def __len__(self) -> int:
        return sum(map(len, self._runs)) + self._arrived + len(self._heap)

    def covers(self, due: I64, seq: I64) -> Bools:
        """Which of these messages belong here."""
        return at_or_below(due, seq, before(self.bound))

    def add(self, units: Records) -> None:
        """Arrivals below the bound, in any order. Copies nothing: the array must stay as it is."""
        if not len(units):
            return
        if is_few(len(units)) and lowest(units["offset"])[0] >= 0:
            self.add_few(units.tolist())
            return
        self._arrivals.append(units)
        self._arrived += len(units)
        self._first_arrival = min(self._first_arrival, int(units["due"].min()))
        self._keep_limit()

    def add_few(self, rows: Iterable[Row]) -> None:
        """add() of live rows, as plain numbers: what is dead has no place in the heap."""
        for row in rows:
            heappush(self._heap, row)
        if len(self._heap) > MAX_HEAP:
            self._empty_heap()
        self._keep_limit()

    def _keep_limit(self) -> None:
        if len(self) > self.limit:
            self._shed(max(1, self.limit * 3 // 4))

    def _empty_heap(self) -> None:
        """Its rows wait with the other arrivals."""
        units = np.array(self._heap, UNIT)
        self._first_arrival = min(self._first_arrival, self._heap[0][0])
        self._heap.clear()
        self._arrivals.append(units)
        self._arrived += len(units)

    def extend(self, loaded: Records, bound: Pair) -> None:
        """Install what was loaded from the wheel between the old bound and `bound`."""
        self.bound = bound
        if len(loaded):
            self._runs.append(SortedRun.of(loaded))
            self._merge()

    def flush_arrivals(self) -> None:
        """Turn waiting arrivals into a run; what needs it does it, but it is better done in good time."""
        if self._heap:
            self._empty_heap()
        if self._arrivals:
            self._runs.append(SortedRun.of(concatenated(self._arrivals)))
            self._arrivals.clear()
            self._arrived = 0
            self._first_arrival = NEVER
            self._merge()

    def _merge(self) -> None:
        large = [run for run in self._runs if len(run) > MAX_MERGED_RUN // 2]
        small = [run for run in self._runs if 0 < len(run) <= MAX_MERGED_RUN // 2]
        while len(small) > 1 and len(small[-2]) <= 2 * len(small[-1]):
            last = small.pop()
            small[-1] = small[-1].merged(last)
        self._runs = large + small

    def _shed(self, keep: int) -> None:
        """Lower the bound so that at most `keep` rows stay."""
        self.flush_arrivals()
        low, high = self.next_due(), max((int(run.due[-1]) for run in self._runs), default=0)
        while low < high:  # the last due before which at most `keep` rows lie
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._below(Pair(middle, 0)) <= keep else (low, middle - 1)
        due, low, high = low, 0, MAX_SEQ
        while low < high:  # and within that due, a herd perhaps, the last seq
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._below(Pair(due, middle)) <= keep else (low, middle - 1)
        self.bound = min(self.bound, Pair(due, low))
        through = before(self.bound)
        ends = [run.rows_through(through) for run in self._runs]
        self._runs = [
            run if end == len(run.due) else run.cut(end)
            for run, end in zip(self._runs, ends, strict=True)
            if end > run.at
        ]

    def _below(self, pair: Pair) -> int:
        """How many rows of the runs lie below `pair`."""
        through = before(pair)
        return sum(max(0, run.rows_through(through) - run.at) for run in self._runs)

    def next_due(self) -> int:
        """The earliest due here, ms; NEVER when there is none."""
        first = self._heap[0][0] if self._heap else NEVER
        return min(first, self._first_arrival, *(int(run.due[run.at]) for run in self._runs if len(run)))

    def count_below(self, due_ms: int) -> int:
        """How many live rows are due before `due_ms`."""
        return int(self.begin_count()(np.array([due_ms]))[0])

    def begin_count(self) -> Callable[[I64], I64]:
        """For any thread: how many live rows are due before each of these times, ms (k,) -> (k,)."""
        self.flush_arrivals()
        runs = [(run.due, run.offset, run.at) for run in self._runs]

        def count(edges: I64) -> I64:
            counts = np.zeros(len(edges), np.int64)
            for due, offset, at in runs:
                rows = np.maximum(due.searchsorted(edges), at)
                dead = np.flatnonzero(offset[at : rows.max(initial=at)] < 0) + at
                counts += rows - at - dead.searchsorted(rows)
            return counts

        return count

    def drain(self, target: Pair, max_rows: int, max_live: int | None = None) -> Released:
        """Remove what is at or below `target`, at most `max_rows` rows and `max_live` live ones, in (due, seq) order.

        Its watermark is `target`, or the last row taken where one of these cut it short.
        """
        if self._first_arrival <= target.due:
            self.flush_arrivals()
        if self._heap and self._heap[0][:2] <= target:
            if not any(len(run) and run.first() <= target for run in self._runs):
                return self._drain_heap(target, max_rows if max_live is None else min(max_rows, max_live))
            rows = self._pop(target, len(self._heap))
            self._runs.append(SortedRun.of(np.array(rows, UNIT)))
        ends = [max(run.at, run.rows_through(target)) for run in self._runs]
        cut = sum(end - run.at for run, end in zip(self._runs, ends, strict=True)) > max_rows
        if cut:  # nothing beyond the `max_rows`-th row of any one run is needed
            last = [
                run.at + max_rows - 1 for run, end in zip(self._runs, ends, strict=True) if end - run.at >= max_rows
            ]
            full = [run for run, end in zip(self._runs, ends, strict=True) if end - run.at >= max_rows]
            brims = [Pair(int(run.due[at]), int(run.seq[at])) for run, at in zip(full, last, strict=True)]
            if brims:
                ends = [max(run.at, run.rows_through(min(brims))) for run in self._runs]
        parts: list[list[Array]] = [
            [column[run.at : end] for column in (run.due, run.seq, run.offset, run.size, run.tag, run.check)]
            for run, end in zip(self._runs, ends, strict=True)
            if end > run.at
        ]
        if not parts:
            none, none4 = np.empty(0, np.int64), np.empty(0, np.uint32)
            return ReleasedColumns(none, none, none, none4, none4, none4, watermark=target)
        columns = parts[0]
        if len(parts) > 1:
            columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
            order = release_order(columns[0], columns[1])[:max_rows]
            columns = [column[order] for column in columns]
        if max_live is not None:
            over = np.flatnonzero(columns[2] >= 0)[max_live:]
            if len(over):
                cut, columns = True, [column[: int(over[0])] for column in columns]
        due, seq, offset = columns[:3]
        watermark = Pair(int(due[-1]), int(seq[-1])) if cut else target
        for run, end in zip(self._runs, ends, strict=True):
            run.at = max(run.at, run.rows_through(watermark)) if cut else end
        if cut:
            self._merge()  # what came out of the heap and stays is a run of each release
        else:
            self._runs = [run for run in self._runs if len(run)]
        live = offset >= 0
        if not live.all():
            columns = [column[live] for column in columns]
        return ReleasedColumns(*columns, watermark=watermark)

    def _pop(self, target: Pair, most: int) -> list[Row]:
        """Take up to `most` rows at or below `target` out of the heap, in order."""
        rows: list[Row] = []
        while len(rows) < most and self._heap and self._heap[0][:2] <= target:
            rows.append(heappop(self._heap))
        return rows

    def _drain_heap(self, target: Pair, most: int) -> Released:
        """drain() where the heap alone has rows at or below `target`: all of them live."""
        rows = self._pop(target, most)
        cut = bool(self._heap) and self._heap[0][:2] <= target
        watermark = Pair(*rows[-1][:2]) if cut else target
        if is_few(len(rows)):
            return ReleasedFew(rows, watermark)
        due, seq, offset, size, _, tag, _, check = zip(*rows, strict=True)
        return ReleasedColumns(
            np.array(due, np.int64), np.array(seq, np.int64), np.array(offset, np.int64), np.array(size, np.uint32),
            np.array(tag, np.uint32), np.array(check, np.uint32), watermark=watermark,
        )  # fmt: skip

    def kill(self, due: I64, seq: I64, mark: int) -> None:
        """Mark rows dead; those not here are left alone."""
        self.flush_arrivals()
        for run in self._runs:
            place = run.places(due, seq)
            run.offset[place[place >= 0]] = mark

    def revive(self, units: Records) -> Records:
        """Make dead rows of these messages live again, in place; returns the units that have no row here."""
        self.flush_arrivals()
        left = np.ones(len(units), bool)
        for run in self._runs:
            place = run.places(units["due"], units["seq"])
            hit = left & (place >= 0)
            run.offset[place[hit]], run.check[place[hit]] = units["offset"][hit], units["check"][hit]
            left &= ~hit
        return units[left]

    def relocate(self, units: Records) -> None:
        """The records of these messages lie elsewhere now; those not here, or dead, are left alone."""
        self.flush_arrivals()
        for run in self._runs:
            place = run.places(units["due"], units["seq"])
            hit = np.flatnonzero(place >= 0)
            hit = hit[run.offset[place[hit]] >= 0]
            run.offset[place[hit]], run.check[place[hit]] = units["offset"][hit], units["check"][hit]

    def find(self, due: I64, seq: I64) -> tuple[Records, Bools]:
        """The rows (k,) of these messages as units, and which were found; a dead one's magic has DELETE."""
        self.flush_arrivals()
        rows = np.zeros(len(due), UNIT)
        found = np.zeros(len(due), bool)
        for run in self._runs:
            place = run.places(due, seq)
            hit = np.flatnonzero((place >= 0) & ~found)
            at = place[hit]
            for name, column in zip(RUN_COLUMNS, run.columns(), strict=True):
                rows[name][hit] = column[at]
            offset = run.offset[at]
            dead = np.where(offset == CANCELLED_AT, DELETE, DELETE_MOVED)
            rows["magic"][hit] = np.where(offset >= 0, DEFAULT, dead)
            found[hit] = True
        return rows, found


def after(pair: Pair) -> Pair:
    """The least pair above `pair`."""
    return Pair(pair.due, pair.seq + 1) if pair.seq < MAX_SEQ else Pair(pair.due + 1, 0)


def before(pair: Pair) -> Pair:
    """The greatest pair below `pair`."""
    return Pair(pair.due, pair.seq - 1) if pair.seq > 0 else Pair(pair.due - 1, MAX_SEQ)
