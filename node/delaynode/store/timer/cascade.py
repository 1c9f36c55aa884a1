"""Cascading: what an hour slot's chain says is written again to the minute level, a piece at a time.

    hour slot's chain  --first pass: folded, as ROLL-->          minute slots ahead of the bound
    what checkpoints   --later passes: as it is, in order-->     minute slots ahead of the bound
    hung on meanwhile                                            then the bound moves past the hour

**The invariant: until the bound has moved past the hour, the hour slot alone says what is true of it.** Its minute
slots are a copy in the making, which no job reads: captures and counts stop at the bound. So it does not matter which
messages have been copied yet when one is cancelled, moved or listed; its unit goes to the hour, and a later pass
brings it down. In a minute slot the units of one message are therefore in the order in which they came: first the fold
of the hour as of the first pass, then what the hour was told meanwhile, then what comes after the bound has moved.

A checkpoint says how far a cascade is (Checkpoint.cascade). A recovery cuts the TimerLog to that checkpoint's end, so
the pieces that are there are the ones that it names, and goes on. While an hour is half done the TimerLog's start does
not move, so that what a pass is to read is there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from delaynode.store.columns import at_or_below
from delaynode.store.timer.due_window import before
from delaynode.store.timer.jobs import SlotRef, TimerView, first_of, within
from delaynode.store.timer.timer_log import UNIT_BYTES, Flush, TimerLog, as_units
from delaynode.store.timer.units import ROLL, UNIT, latest_units
from delaynode.store.types import Bools, Pair, Records

CHUNK_UNITS = 262_144  # of a slot, in memory at a time: 12 MB, about five times that while they are folded
PART_UNITS = 8_192  # of a run, which lie side by side and are read together

PART = np.dtype(
    [("position", "<i8"), ("count", "<i8"), ("low", "<i8"), ("low_seq", "<i8"), ("high", "<i8"), ("high_seq", "<i8")]
)
"""Some units of a run: all lie between (low, low_seq) and (high, high_seq)."""


class ChainReader:
    """Reads a slot's chain in pieces, in order of (due, seq), without reading all of it for each.

    A run of the chain is sorted by due. Where the slot is larger than a piece, one walk notes which parts of its runs
    hold which messages; a piece then reads the parts that have some of its own. A herd of one due is told apart by seq,
    because its units lie in the order in which they came.
    """

    def __init__(self, log: TimerLog, slot: SlotRef, start: int) -> None:
        self.log, self.slot = log, slot
        self._chain = TimerView(log, [slot], [], start=start)
        self._parts: Records | None = None  # sorted by their low end

    def read(
        self, limit: int, low: Pair, high: Pair, keep: Callable[[Records], Bools] | None = None
    ) -> tuple[Records, Pair]:
        """The same as Capture.collect_some(). Raises Damaged."""
        if self._parts is None:
            if low <= Pair(self.slot.time, 0) and self.slot.num <= limit:
                return self._chain.collect_some(limit, self.slot, low, high, keep)
            self._parts = self._index_parts()
        parts = self._parts[~at_or_below(self._parts["high"], self._parts["high_seq"], before(low))]
        reach = np.cumsum(parts["count"])
        found: list[Records] = []  # as stored, with their positions in `prev`
        total, max_count, end, at = 0, limit + limit // 2, high, 0
        while at < len(parts):
            if total > max_count:
                found, end = first_of(found, limit)
                total = sum(map(len, found))
                max_count = max(limit, total) + limit // 2
            if Pair(int(parts["low"][at]), int(parts["low_seq"][at])) >= end:
                break
            read = int(reach[at - 1]) if at else 0
            until = max(at + 1, int(np.searchsorted(reach, read + PART_UNITS, "right")))  # small ones many at a time
            units = self.log.read_parts(parts["position"][at:until], parts["count"][at:until])
            found.append(within(units, low, end, keep))
            total += len(found[-1])
            at = until
        if total > limit:
            found, cut = first_of(found, limit)
            end = min(end, cut) if sum(map(len, found)) < total else end
        if not found:
            return np.empty(0, UNIT), end
        rows = np.concatenate(found)
        return as_units(rows[np.argsort(rows["prev"])]), end

    def _index_parts(self) -> Records:
        slot, parts = self.slot, []
        for position, run in self.log.runs(slot.last, slot.time, slot.width_ms, self._chain.start):
            for at in range(0, len(run), PART_UNITS):
                part = run[at : at + PART_UNITS]
                due, seq = part["due"], part["seq"]
                ends = (int(due[0]), int(seq.min()), int(due[-1]), int(seq.max()))
                parts.append((position + at * UNIT_BYTES, len(part), *ends))
        made = np.array(parts, PART)
        return made[np.lexsort((made["low_seq"], made["low"]))]


@dataclass(frozen=True, slots=True)
class Cascade:
    """How much of the hour at the bound is at the minute level.

    A pass takes what the hour's chain says between the TimerLog positions `start` and `last`.
    """

    first: bool  # the first pass folds, later ones take units as they are
    start: int
    last: int  # the chain's head when the pass began
    cut: Pair  # the pass has taken the messages below

    def saved(self) -> list[int]:
        return [int(self.first), self.start, self.last, *self.cut]

    @classmethod
    def of(cls, saved: list[int]) -> Cascade:
        first, start, last, due, seq = saved
        return cls(bool(first), start, last, Pair(due, seq))


class CascadeJob:
    """Writes the next piece of an hour to the minute level. Appends to the TimerLog: nothing else may meanwhile."""

    def __init__(self, reader: ChainReader, cascade: Cascade, limit: int, build: Callable[[Records], Flush]) -> None:
        self.slot = reader.slot
        self.cut = Pair(self.slot.time + self.slot.width_ms, 0)  # where the piece ends, once it has run
        self.flush: Flush | None = None
        self._reader = reader
        self._cascade = cascade
        self._limit = limit
        self._build = build

    def run(self) -> None:
        """Raises OSError, Damaged."""
        units, self.cut = self._reader.read(self._limit, self._cascade.cut, self.cut)
        if self._cascade.first:
            units = cascaded_units(units)
        if len(units):
            self.flush = self._build(units)
            self._reader.log.write(self.flush)


def cascaded_units(ordered: Records) -> Records:
    """The latest units of units given in TimerLog order as ROLL units: live, or dead and why."""
    rows, live = latest_units(ordered)
    rows = rows.copy()
    rows["magic"] = np.where(live, ROLL, rows["magic"] | ROLL)
    return rows
