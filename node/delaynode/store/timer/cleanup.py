"""Cleaning the TimerLog: its closed files go once what they say of unreleased messages is said again at the end.

A cycle goes over the slots once, in time order and in steps. From each slot's chain it takes the latest units that lie
before `end` (where the open file began when the cycle did) and that no later unit speaks of, and appends them as units
of ROLL and SAME: live, or dead and why. When all slots are done the chains end at `end`. This also joins the short runs
that flushes leave behind. A copying collector; the step keeps its memory bounded, the threshold its cost.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from delaynode.store.columns import at_or_below
from delaynode.store.timer.due_window import SortedRun, before
from delaynode.store.timer.jobs import SlotRef, TimerView, part_that_fits
from delaynode.store.timer.timer_log import UNIT_BYTES, as_units
from delaynode.store.timer.units import COUNT, ROLL, SAME, change_of, concatenated, latest_units, units
from delaynode.store.types import Bools, Pair, Records

STEP_UNITS = 262_144  # units that one step may read of one slot, and about as many it appends


@dataclass(slots=True)
class CleanupCycle:
    """A cleaning under way."""

    end: int  # TimerLog position: what lies before is to go
    low: Pair | None  # all below is said again; None: all is, the next flush ends the cycle
    counts: list[Records] = field(default_factory=list)  # COUNT units of the slots that are done
    dead_units: int = 0  # dead messages said again


class CleanupJob:
    """One step of a cycle: from `low` on, until about `budget` units are to be appended again."""

    def __init__(self, view: TimerView, end: int, low: Pair, budget: int, watermark: Pair) -> None:
        self.view = view
        self.end = end
        self.low = low
        self.budget = budget
        self.watermark = watermark
        self.next: Pair | None = None  # where the next step begins; None: all is done
        self._latest: list[Records] = []
        self._counts: list[tuple[SlotRef, int]] = []  # what the files that are to go had added to a slot's count

    def run(self) -> None:
        room = self.budget
        for slot in self.view.slots:
            low, high = max(self.low, Pair(slot.time, 0)), Pair(slot.time + slot.width_ms, 0)
            if room <= 0:
                self.next = low
                return
            cut = high
            if self._units_of(slot) > self.budget:
                cut = part_that_fits(self.view, slot, low, high, self.budget)
            latest, change = self._latest_before_end(slot, low, cut)
            self._latest.append(latest)
            if change:
                self._counts.append((slot, change))
            room -= len(latest)
            if cut < high:
                self.next = cut
                return

    def _units_of(self, slot: SlotRef) -> int:
        """Units in the slot's chain; more than `budget` are not counted to the end."""
        total = 0
        for _, run in self.view.log.runs(slot.last, slot.time, slot.width_ms, self.view.start):
            total += len(run)
            if total > self.budget:
                break
        return total

    def _latest_before_end(self, slot: SlotRef, low: Pair, high: Pair) -> tuple[Records, int]:
        """What is only said before `end`, of the slot's part [low, high), and what all that is there counts."""
        old: list[Records] = []
        new: list[Records] = []
        change = 0
        for position, run in self.view.log.runs(slot.last, slot.time, slot.width_ms, self.view.start):
            split = min(max((self.end - position) // UNIT_BYTES, 0), len(run))
            counts = (run["magic"][:split] & COUNT) != 0
            if counts.any() and low == Pair(slot.time, 0):
                change += int(run["seq"][:split][counts].sum())
            rows = as_units(run)
            inside = _inside(rows, low, high)
            inside &= (rows["magic"] & COUNT) == 0
            old.append(rows[:split][inside[:split]])
            new.append(rows[split:][inside[split:]])
        old.reverse()
        recorded = concatenated(old)
        if not len(recorded):
            return recorded, change
        change += int(change_of(recorded["magic"]).sum())
        rows, live = latest_units(recorded)
        rows = rows.copy()
        rows["magic"] = np.where(live, ROLL | SAME, rows["magic"] | ROLL | SAME)
        rows = rows[~(live & at_or_below(rows["due"], rows["seq"], self.watermark))]  # released
        new.extend(part[_inside(part, low, high)] for part in self.view.unflushed)
        return not_superseded(rows, new), change

    def result(self) -> tuple[Records, Records]:
        """Units to be appended, and COUNT units for the end of the cycle."""
        latest = not_superseded(concatenated(self._latest), self.view.since)
        times = np.array([slot.time for slot, _ in self._counts], np.int64)
        changes = np.array([change for _, change in self._counts], np.int64)
        widths = np.array([slot.width_ms for slot, _ in self._counts], np.uint32)
        return latest, units(times, changes, 0, widths, 0, 0, COUNT, 0)


def _inside(rows: Records, low: Pair, high: Pair) -> Bools:
    return at_or_below(rows["due"], rows["seq"], before(high)) & ~at_or_below(rows["due"], rows["seq"], before(low))


def not_superseded(latest: Records, later: list[Records]) -> Records:
    """The words (n,), one per (due, seq), that no later unit speaks of."""
    recorded = concatenated([part for part in later if len(part)])
    if not len(recorded) or not len(latest):
        return latest
    run = SortedRun.of(latest_units(recorded)[0])
    at = run.places(latest["due"], latest["seq"])
    return latest[at < 0]
