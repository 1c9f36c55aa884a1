"""Scans: the rows of a due range, or of certain messages, out of TimerLog and arrivals.

A slot is read in pieces of bounded size. A large piece that was read whole stays folded in memory for a while, as of
its chain's head: the next page, or the next cancel there, reads only what its chain has gained since.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from delaynode.store.errors import Damaged
from delaynode.store.timer.due_window import CANCELLED_AT, MOVED_AT, RUN_COLUMNS, SortedRun, after, before
from delaynode.store.timer.jobs import SlotRef, TimerView, within
from delaynode.store.timer.timer_log import UNIT_BYTES, TimerLog, as_units
from delaynode.store.timer.units import DEFAULT, DELETE, DELETE_MOVED, ROLL, SAME, UNIT, concatenated, latest_units
from delaynode.store.timer.wheel import NOWHERE
from delaynode.store.types import I64, Bools, Pair, Records

CHUNK_UNITS = 262_144  # of a slot, in memory at a time: 12 MB, about three times that while it is folded
MIN_CACHED_UNITS = 16_384  # live messages: a smaller slot is read again as quickly
MAX_LOOKUP_SLOTS = 4  # a lookup of more slots than that is not one of many small ones
WALKED_SLOTS = 16  # of a search by key, before it pays to look which of the others have the key
WALK_UNITS = 256  # of the TimerLog are read in less time than a small slot is walked in
MASK = (1 << 20) - 1

LatestUnits: TypeAlias = tuple[Records, Bools]
"""Rows (n,) of dtype UNIT sorted by (due, seq), one a message, and which are live."""


class MessageFilter(Protocol):
    """The messages that a scan is about, when it is not about all of a range."""

    def select_units(self, rows: Records) -> Bools:
        """Units (n,) that may decide about one of them -> bools (n,)."""

    def select_latest(self, rows: Records, live: Bools) -> Bools:
        """Latest units (n,) that are to be answered -> bools (n,)."""

    def places(self, run: SortedRun) -> I64:
        """Where in a fold's run they, and what may be dead of them, are: rows, ascending."""


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """Live messages with this hash of their key. A DELETE has none, so it may be about any of them."""

    hash: int

    def has_key(self, rows: Records) -> Bools:
        hit: Bools = rows["key"] == self.hash
        return hit

    def select_units(self, rows: Records) -> Bools:
        hit: Bools = self.has_key(rows) | ((rows["magic"] & DELETE) != 0)
        return hit

    def select_latest(self, rows: Records, live: Bools) -> Bools:
        hit: Bools = live & (rows["key"] == self.hash)
        return hit

    def places(self, run: SortedRun) -> I64:
        return np.flatnonzero((run.key == self.hash) | (run.offset < 0))


class MessageSetFilter:
    """The messages (due, seq) i64[k]."""

    def __init__(self, due: I64, seq: I64) -> None:
        self._due, self._seq = due, seq
        self._seqs = np.unique(seq)
        self._maybe = np.zeros(MASK + 1, bool)  # by a seq's low bits: most units are out with one look
        self._maybe[self._seqs & MASK] = True

    def select_units(self, rows: Records) -> Bools:
        seq = rows["seq"]
        hit: Bools = self._maybe[seq & MASK]
        at = np.flatnonzero(hit)
        some = seq[at]
        index = np.minimum(np.searchsorted(self._seqs, some), len(self._seqs) - 1)
        hit[at] = self._seqs[index] == some
        return hit

    def select_latest(self, rows: Records, live: Bools) -> Bools:
        return np.ones(len(rows), bool)

    def places(self, run: SortedRun) -> I64:
        place = run.places(self._due, self._seq)
        return np.unique(place[place >= 0])


@dataclass(frozen=True, slots=True)
class SlotSnapshot:
    """Latest row of each message in [low, high), also the dead, up to the chain's unit at TimerLog position `last`."""

    low: Pair
    high: Pair
    last: int
    run: SortedRun

    def rows(self, at: I64 | slice) -> LatestUnits:
        """The rows as units."""
        offset = self.run.offset[at]
        made = np.empty(len(offset), UNIT)
        for name in RUN_COLUMNS:
            made[name] = getattr(self.run, name)[at]
        live = offset >= 0
        made["magic"] = np.where(live, DEFAULT, np.where(offset == CANCELLED_AT, DELETE, DELETE_MOVED))
        return made, live


def snapshot_of(ordered: Records, low: Pair, high: Pair, last: int) -> SlotSnapshot:
    """From units of [low, high) in TimerLog order."""
    rows, live = latest_units(ordered)
    run = SortedRun.of(rows)
    run.offset[~live] = np.where(rows["magic"][~live] & DELETE_MOVED == DELETE, CANCELLED_AT, MOVED_AT)
    return SlotSnapshot(low, high, last, run)


class SlotSnapshotCache:
    """Folded pieces of slots, of all shards of a node together at most `limit` rows. Safe to use from any thread.

    min_units: live messages of a slot that is worth it. chunk_units: of a slot, read at a time.
    """

    def __init__(
        self, limit: int = 2 * CHUNK_UNITS, min_units: int = MIN_CACHED_UNITS, chunk_units: int = CHUNK_UNITS
    ) -> None:
        self.limit, self.min_units, self.chunk_units = limit, min_units, chunk_units
        self._lock = threading.Lock()
        self._snapshots: OrderedDict[tuple[TimerLog, int, int, Pair], SlotSnapshot] = OrderedDict()
        self._recent_reads: deque[tuple[TimerLog, int, int]] = deque(maxlen=64)

    def __len__(self) -> int:
        return sum(len(snapshot.run) for snapshot in self._snapshots.values())

    def find(self, log: TimerLog, slot: SlotRef, low: Pair) -> SlotSnapshot | None:
        """The piece that `low` lies in."""
        with self._lock:
            for key, snapshot in self._snapshots.items():
                if key[:3] == (log, slot.width_ms, slot.time) and snapshot.low <= low < snapshot.high:
                    self._snapshots.move_to_end(key)
                    return snapshot
        return None

    def put(self, log: TimerLog, slot: SlotRef, snapshot: SlotSnapshot) -> None:
        """In place of the least recently used ones."""
        if len(snapshot.run) > self.limit:
            return
        with self._lock:
            self._snapshots[log, slot.width_ms, slot.time, snapshot.low] = snapshot
            self._snapshots.move_to_end((log, slot.width_ms, slot.time, snapshot.low))
            while len(self) > self.limit:
                self._snapshots.popitem(last=False)

    def was_read_recently(self, log: TimerLog, slot: SlotRef) -> bool:
        """Whether this slot was asked for a short while ago: then it is worth to be kept."""
        key = (log, slot.width_ms, slot.time)
        with self._lock:
            again = key in self._recent_reads
            if not again:
                self._recent_reads.append(key)
        return again


class ScanJob:
    """Reads latest units of [low, high), live and dead, in (due, seq) order.

    message_filter: of which messages; None: all. max_live: stop when so many live ones were found. known: latest units
    (k,) of some of them, as of the capture, which need not be read.
    """

    def __init__(
        self,
        view: TimerView,
        low: Pair,
        high: Pair,
        message_filter: MessageFilter | None,
        max_live: int | None,
        slot_cache: SlotSnapshotCache | None,
        known: Records | None = None,
    ) -> None:
        self.view = view
        self.low, self.high = low, high
        self.message_filter = message_filter
        self.max_live = max_live
        self._slot_cache = slot_cache if slot_cache is not None else SlotSnapshotCache(0)
        self._known = known
        self._found: list[LatestUnits] = []

    def run(self) -> None:
        count = 0
        for slot in self._slots():
            low, high = max(self.low, Pair(slot.time, 0)), min(self.high, Pair(slot.time + slot.width_ms, 0))
            while low < high:
                wanted = None if self.max_live is None else self.max_live - count
                (rows, live), low = self._read_chunk(slot, low, high, wanted)
                if self.message_filter is not None:
                    selected = self.message_filter.select_latest(rows, live)
                    rows, live = rows[selected], live[selected]
                at = np.flatnonzero(live)
                if wanted is not None and len(at) > wanted:
                    last = rows[at[wanted - 1]]
                    low = after(Pair(int(last["due"]), int(last["seq"])))
                    rows, live = rows[: at[wanted - 1] + 1], live[: at[wanted - 1] + 1]
                if len(rows):
                    self._found.append((rows, live))
                    count += int(np.count_nonzero(live))
                if self.max_live is not None and count >= self.max_live:
                    self.high = low
                    return

    def _slots(self) -> Iterator[SlotRef]:
        """The view's; of a search by key, behind some, those that hold a unit with the key."""
        slots = self.view.slots
        yield from slots[:WALKED_SLOTS]
        yield from self._with_key(slots[WALKED_SLOTS:])

    def _with_key(self, slots: list[SlotRef]) -> list[SlotRef]:
        """A message with the key has a unit with it wherever it has been due: at most too many slots are found."""
        log, choice, start = self.view.log, self.message_filter, self.view.start
        through = max((slot.last for slot in slots), default=NOWHERE)
        if not isinstance(choice, KeyFilter) or (through - start) // UNIT_BYTES > WALK_UNITS * len(slots):
            return slots
        try:
            dues = [log.dues(start, through, choice.has_key)]
        except Damaged:  # the flush may be of no slot of these; walking them says so if it is
            return slots
        dues += [part["due"][choice.has_key(part)] for part in self.view.unflushed]
        due = np.sort(np.concatenate(dues))
        low = np.array([slot.time for slot in slots], np.int64)
        high = low + np.array([slot.width_ms for slot in slots], np.int64)
        return [slots[at] for at in np.flatnonzero(due.searchsorted(high) > due.searchsorted(low)).tolist()]

    def result(self) -> LatestUnits:
        """Latest units as of now; `high` says how far they go."""
        rows = concatenated([rows for rows, _ in self._found])
        live = np.concatenate([live for _, live in self._found]) if self._found else np.empty(0, bool)
        if self._known is not None and len(self._known):
            rows, live = latest_units(np.concatenate([self._known, rows]))
        choose = None if self.message_filter is None else self.message_filter.select_units
        later = self.view.arrived(self.low, self.high, choose)
        if not later:
            return rows, live
        rows, live = with_later_units(rows, concatenated(later))
        if self.message_filter is None:
            return rows, live
        selected = self.message_filter.select_latest(rows, live)
        return rows[selected], live[selected]

    def _read_chunk(self, slot: SlotRef, low: Pair, high: Pair, wanted: int | None) -> tuple[LatestUnits, Pair]:
        """The next piece of a slot from `low` on, and where it ends."""
        snapshot = self._slot_snapshot(slot, low)
        choose = None if self.message_filter is None else self.message_filter.select_units
        if snapshot is None:
            units, high = self._read(self.view, slot, low, high)
            return latest_units(units), high
        high = min(high, snapshot.high)
        begin, end = (snapshot.run.rows_through(before(pair)) for pair in (low, high))
        recent = self.view.recent(low, high, choose)
        if self.message_filter is not None:
            positions = self.message_filter.places(snapshot.run)
            latest = snapshot.rows(positions[(positions >= begin) & (positions < end)])
        else:
            if wanted is not None:
                at = np.flatnonzero(snapshot.run.offset[begin:end] >= 0)
                if len(at) > wanted:
                    end = begin + int(at[wanted])
                    high = Pair(int(snapshot.run.due[end]), int(snapshot.run.seq[end]))
                    recent = self.view.recent(low, high)
            latest = snapshot.rows(slice(begin, end))
        return (latest_units(concatenated([latest[0], recent])) if len(recent) else latest), high

    def _slot_snapshot(self, slot: SlotRef, low: Pair) -> SlotSnapshot | None:
        """The chain's piece that `low` lies in, folded, where that is worth its memory; brought up to date."""
        log, slot_cache = self.view.log, self._slot_cache
        if slot.num < slot_cache.min_units or not slot_cache.limit:
            return None
        snapshot = slot_cache.find(log, slot, low)
        if snapshot is not None and snapshot.last >= slot.last:
            return snapshot  # what it knows beyond the capture comes again, in order, in `unflushed` and `since`
        if snapshot is not None and snapshot.last < self.view.start:
            snapshot = None  # what its chain has gained was cleaned: a DEFAULT after a DELETE is a ROLL now
        if snapshot is not None and slot.num > len(snapshot.run) + slot_cache.chunk_units:
            snapshot = None  # it has become another slot
        chain = TimerView(log, [slot], [], start=self.view.start)
        if snapshot is not None:
            units = concatenated([snapshot.rows(slice(None))[0], self._units_since(slot, snapshot)])
            snapshot = snapshot_of(units, snapshot.low, snapshot.high, slot.last)
        elif self.message_filter is None:
            begin = Pair(slot.time, 0) if slot.num <= slot_cache.chunk_units else low
            units, high = self._read(chain, slot, begin, Pair(slot.time + slot.width_ms, 0), unfiltered=True)
            if high <= low:  # the dead made it larger than it looked
                begin = low
                units, high = self._read(chain, slot, begin, Pair(slot.time + slot.width_ms, 0), unfiltered=True)
            snapshot = snapshot_of(units, begin, high, slot.last)
        elif self._is_read_again(slot):
            begin, end = Pair(slot.time, 0), Pair(slot.time + slot.width_ms, 0)
            units, high = self._read(chain, slot, begin, end, unfiltered=True)
            if high < end:
                return None
            snapshot = snapshot_of(units, begin, end, slot.last)
        else:
            return None
        slot_cache.put(log, slot, snapshot)
        return snapshot

    def _is_read_again(self, slot: SlotRef) -> bool:
        """One message after the other is looked up in this slot, as it seems."""
        is_small_lookup = len(self.view.slots) <= MAX_LOOKUP_SLOTS and slot.num <= self._slot_cache.chunk_units
        return is_small_lookup and self._slot_cache.was_read_recently(self.view.log, slot)

    def _units_since(self, slot: SlotRef, snapshot: SlotSnapshot) -> Records:
        """The units of a fold's range that its chain has gained since."""
        start = max(self.view.start, snapshot.last + UNIT_BYTES)
        parts: list[Records] = []
        for block in self.view.log.walk(slot.last, slot.time, slot.width_ms, start):
            parts.append(as_units(within(block, snapshot.low, snapshot.high)))
        parts.reverse()
        return concatenated(parts)

    def _read(
        self, view: TimerView, slot: SlotRef, low: Pair, high: Pair, *, unfiltered: bool = False
    ) -> tuple[Records, Pair]:
        """Units of [low, high) in TimerLog order; where they are too many, of its first part, and where that ends."""
        choose = None if self.message_filter is None or unfiltered else self.message_filter.select_units
        return view.collect_some(self._slot_cache.chunk_units, slot, low, high, choose)


def with_later_units(rows: Records, later: Records) -> LatestUnits:
    """Latest units of messages whose latest units were `rows`, by later units, in order.

    A ROLL of none of them, and with no DEFAULT before it, is of a message whose last word was left out: it is dead.
    """
    moved = (later["magic"] & ~SAME) == ROLL
    if moved.any():
        known = SortedRun.of(concatenated([rows, later[~moved]]))
        moves = np.flatnonzero(moved)
        unknown = known.places(later["due"][moves], later["seq"][moves]) < 0
        later = np.delete(later, moves[unknown])
    return latest_units(concatenated([rows, later]))
