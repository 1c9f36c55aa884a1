"""Scans: the rows of a due range, or of certain messages, out of TimerLog and arrivals.

A slot is read in pieces of bounded size. A large piece that was read whole stays folded in memory for a while, as of
its chain's head: the next page, or the next cancel there, reads only what its chain has gained since.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from delaynode.store.timer.due_window import CANCELLED_AT, MOVED_AT, RUN_COLUMNS, Run, after, before
from delaynode.store.timer.jobs import Capture, SlotRef, within
from delaynode.store.timer.timer_log import UNIT_BYTES, TimerLog, as_units
from delaynode.store.timer.units import DEFAULT, DELETE, DELETE_MOVED, ROLL, SAME, UNIT, concatenated, last_words
from delaynode.store.types import I64, Bools, Pair, Records

PIECE_UNITS = 262_144  # of a slot, in memory at a time: 12 MB, about three times that while it is folded
KEPT_FROM = 16_384  # live messages: a smaller slot is read again as quickly
FEW_SLOTS = 4  # a lookup of more slots than that is not one of many small ones
MASK = (1 << 20) - 1

Words: TypeAlias = tuple[Records, Bools]
"""Rows (n,) of dtype UNIT sorted by (due, seq), one a message, and which are live."""


class Choice(Protocol):
    """The messages that a scan is about, when it is not about all of a range."""

    def units(self, rows: Records) -> Bools:
        """Units (n,) that may decide about one of them -> bools (n,)."""

    def words(self, rows: Records, live: Bools) -> Bools:
        """Last words (n,) that are to be answered -> bools (n,)."""

    def places(self, run: Run) -> I64:
        """Where in a fold's run they, and what may be dead of them, are: rows, ascending."""


@dataclass(frozen=True, slots=True)
class OfKey:
    """Live messages with this hash of their key. A DELETE has none, so it may be about any of them."""

    hash: int

    def units(self, rows: Records) -> Bools:
        hit: Bools = (rows["key"] == self.hash) | ((rows["magic"] & DELETE) != 0)
        return hit

    def words(self, rows: Records, live: Bools) -> Bools:
        hit: Bools = live & (rows["key"] == self.hash)
        return hit

    def places(self, run: Run) -> I64:
        return np.flatnonzero((run.key == self.hash) | (run.offset < 0))


class Named:
    """The messages (due, seq) i64[k]."""

    def __init__(self, due: I64, seq: I64) -> None:
        self._due, self._seq = due, seq
        self._seqs = np.unique(seq)
        self._maybe = np.zeros(MASK + 1, bool)  # by a seq's low bits: most units are out with one look
        self._maybe[self._seqs & MASK] = True

    def units(self, rows: Records) -> Bools:
        seq = rows["seq"]
        hit: Bools = self._maybe[seq & MASK]
        at = np.flatnonzero(hit)
        some = seq[at]
        near = np.minimum(np.searchsorted(self._seqs, some), len(self._seqs) - 1)
        hit[at] = self._seqs[near] == some
        return hit

    def words(self, rows: Records, live: Bools) -> Bools:
        return np.ones(len(rows), bool)

    def places(self, run: Run) -> I64:
        place = run.places(self._due, self._seq)
        return np.unique(place[place >= 0])


@dataclass(frozen=True, slots=True)
class Fold:
    """What a chain says of [low, high) up to its unit at TimerLog position `last`: one row a message, also the dead."""

    low: Pair
    high: Pair
    last: int
    run: Run

    def rows(self, at: I64 | slice) -> Words:
        """Those rows as units."""
        offset = self.run.offset[at]
        made = np.empty(len(offset), UNIT)
        for name in RUN_COLUMNS:
            made[name] = getattr(self.run, name)[at]
        live = offset >= 0
        made["magic"] = np.where(live, DEFAULT, np.where(offset == CANCELLED_AT, DELETE, DELETE_MOVED))
        return made, live


def fold_of(ordered: Records, low: Pair, high: Pair, last: int) -> Fold:
    """From units of [low, high) in TimerLog order."""
    rows, live = last_words(ordered)
    run = Run.of(rows)
    run.offset[~live] = np.where(rows["magic"][~live] & DELETE_MOVED == DELETE, CANCELLED_AT, MOVED_AT)
    return Fold(low, high, last, run)


class Folds:
    """Folded pieces of slots, of all shards of a node together at most `limit` rows. Safe to use from any thread.

    kept_from: live messages of a slot that is worth it. piece_units: of a slot, read at a time.
    """

    def __init__(
        self, limit: int = 2 * PIECE_UNITS, kept_from: int = KEPT_FROM, piece_units: int = PIECE_UNITS
    ) -> None:
        self.limit, self.kept_from, self.piece_units = limit, kept_from, piece_units
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[TimerLog, int, int, Pair], Fold] = OrderedDict()
        self._looked: deque[tuple[TimerLog, int, int]] = deque(maxlen=64)

    def __len__(self) -> int:
        return sum(len(fold.run) for fold in self._kept.values())

    def find(self, log: TimerLog, slot: SlotRef, low: Pair) -> Fold | None:
        """The piece that `low` lies in."""
        with self._lock:
            for key, fold in self._kept.items():
                if key[:3] == (log, slot.width_ms, slot.time) and fold.low <= low < fold.high:
                    self._kept.move_to_end(key)
                    return fold
        return None

    def keep(self, log: TimerLog, slot: SlotRef, fold: Fold) -> None:
        """In place of the least recently used ones."""
        if len(fold.run) > self.limit:
            return
        with self._lock:
            self._kept[log, slot.width_ms, slot.time, fold.low] = fold
            self._kept.move_to_end((log, slot.width_ms, slot.time, fold.low))
            while len(self) > self.limit:
                self._kept.popitem(last=False)

    def looked_at_before(self, log: TimerLog, slot: SlotRef) -> bool:
        """Whether this slot was asked for a short while ago: then it is worth to be kept."""
        key = (log, slot.width_ms, slot.time)
        with self._lock:
            again = key in self._looked
            if not again:
                self._looked.append(key)
        return again


class ScanJob:
    """Reads last words of [low, high), live and dead, in (due, seq) order.

    choice: of which messages; None: all. most: stop when so many live ones were found. known: last words (k,) of some
    of them, as of the capture, which need not be read.
    """

    def __init__(
        self,
        capture: Capture,
        low: Pair,
        high: Pair,
        choice: Choice | None,
        most: int | None,
        folds: Folds | None,
        known: Records | None = None,
    ) -> None:
        self.capture = capture
        self.low, self.high = low, high
        self.choice = choice
        self.most = most
        self._folds = folds if folds is not None else Folds(0)
        self._known = known
        self._found: list[Words] = []

    def run(self) -> None:
        count = 0
        for slot in self.capture.slots:
            low, high = max(self.low, Pair(slot.time, 0)), min(self.high, Pair(slot.time + slot.width_ms, 0))
            while low < high:
                wanted = None if self.most is None else self.most - count
                (rows, live), low = self._piece(slot, low, high, wanted)
                if self.choice is not None:
                    said = self.choice.words(rows, live)
                    rows, live = rows[said], live[said]
                at = np.flatnonzero(live)
                if wanted is not None and len(at) > wanted:
                    last = rows[at[wanted - 1]]
                    low = after(Pair(int(last["due"]), int(last["seq"])))
                    rows, live = rows[: at[wanted - 1] + 1], live[: at[wanted - 1] + 1]
                if len(rows):
                    self._found.append((rows, live))
                    count += int(np.count_nonzero(live))
                if self.most is not None and count >= self.most:
                    self.high = low
                    return

    def result(self) -> Words:
        """Last words as of now; `high` says how far they go."""
        rows = concatenated([rows for rows, _ in self._found])
        live = np.concatenate([live for _, live in self._found]) if self._found else np.empty(0, bool)
        if self._known is not None and len(self._known):
            rows, live = last_words(np.concatenate([self._known, rows]))
        choose = None if self.choice is None else self.choice.units
        later = self.capture.arrived(self.low, self.high, choose)
        if not later:
            return rows, live
        rows, live = overlaid(rows, concatenated(later))
        if self.choice is None:
            return rows, live
        said = self.choice.words(rows, live)
        return rows[said], live[said]

    def _piece(self, slot: SlotRef, low: Pair, high: Pair, wanted: int | None) -> tuple[Words, Pair]:
        """The next piece of a slot from `low` on, and where it ends."""
        fold = self._fold(slot, low)
        choose = None if self.choice is None else self.choice.units
        if fold is None:
            units, high = self._read(self.capture, slot, low, high)
            return last_words(units), high
        high = min(high, fold.high)
        begin, end = (fold.run.rows_through(before(pair)) for pair in (low, high))
        recent = self.capture.recent(low, high, choose)
        if self.choice is not None:
            places = self.choice.places(fold.run)
            words = fold.rows(places[(places >= begin) & (places < end)])
        else:
            if wanted is not None:
                at = np.flatnonzero(fold.run.offset[begin:end] >= 0)
                if len(at) > wanted:
                    end = begin + int(at[wanted])
                    high = Pair(int(fold.run.due[end]), int(fold.run.seq[end]))
                    recent = self.capture.recent(low, high)
            words = fold.rows(slice(begin, end))
        return (last_words(concatenated([words[0], recent])) if len(recent) else words), high

    def _fold(self, slot: SlotRef, low: Pair) -> Fold | None:
        """The chain's piece that `low` lies in, folded, where that is worth its memory; brought up to date."""
        log, folds = self.capture.log, self._folds
        if slot.num < folds.kept_from or not folds.limit:
            return None
        fold = folds.find(log, slot, low)
        if fold is not None and fold.last >= slot.last:
            return fold  # what it knows beyond the capture comes again, in order, in `unflushed` and `since`
        if fold is not None and fold.last < self.capture.start:
            fold = None  # what its chain has gained was cleaned: a DEFAULT after a DELETE is a ROLL now
        if fold is not None and slot.num > len(fold.run) + folds.piece_units:
            fold = None  # it has become another slot
        chain = Capture(log, [slot], [], start=self.capture.start)
        if fold is not None:
            units = concatenated([fold.rows(slice(None))[0], self._gained(slot, fold)])
            fold = fold_of(units, fold.low, fold.high, slot.last)
        elif self.choice is None:
            begin = Pair(slot.time, 0) if slot.num <= folds.piece_units else low
            units, high = self._read(chain, slot, begin, Pair(slot.time + slot.width_ms, 0), whole=True)
            if high <= low:  # the dead made it larger than it looked
                begin = low
                units, high = self._read(chain, slot, begin, Pair(slot.time + slot.width_ms, 0), whole=True)
            fold = fold_of(units, begin, high, slot.last)
        elif self._looked_at_again(slot):
            begin, end = Pair(slot.time, 0), Pair(slot.time + slot.width_ms, 0)
            units, high = self._read(chain, slot, begin, end, whole=True)
            if high < end:
                return None
            fold = fold_of(units, begin, end, slot.last)
        else:
            return None
        folds.keep(log, slot, fold)
        return fold

    def _looked_at_again(self, slot: SlotRef) -> bool:
        """One message after the other is looked up in this slot, as it seems."""
        few = len(self.capture.slots) <= FEW_SLOTS and slot.num <= self._folds.piece_units
        return few and self._folds.looked_at_before(self.capture.log, slot)

    def _gained(self, slot: SlotRef, fold: Fold) -> Records:
        """The units of a fold's range that its chain has gained since."""
        start = max(self.capture.start, fold.last + UNIT_BYTES)
        parts: list[Records] = []
        for block in self.capture.log.walk(slot.last, slot.time, slot.width_ms, start):
            parts.append(as_units(within(block, fold.low, fold.high)))
        parts.reverse()
        return concatenated(parts)

    def _read(
        self, capture: Capture, slot: SlotRef, low: Pair, high: Pair, *, whole: bool = False
    ) -> tuple[Records, Pair]:
        """Units of [low, high) in TimerLog order; where they are too many, of its first part, and where that ends."""
        choose = None if self.choice is None or whole else self.choice.units
        return capture.collect_some(self._folds.piece_units, slot, low, high, choose)


def overlaid(rows: Records, later: Records) -> Words:
    """Last words of messages whose last words were `rows`, by later units, in order.

    A ROLL of none of them, and with no DEFAULT before it, is of a message whose last word was left out: it is dead.
    """
    moved = (later["magic"] & ~SAME) == ROLL
    if moved.any():
        known = Run.of(concatenated([rows, later[~moved]]))
        moves = np.flatnonzero(moved)
        strange = known.places(later["due"][moves], later["seq"][moves]) < 0
        later = np.delete(later, moves[strange])
    return last_words(concatenated([rows, later]))
