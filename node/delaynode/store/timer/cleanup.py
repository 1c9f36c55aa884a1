"""Cleaning the TimerLog: its closed files go once what they say of unreleased messages is said again at the end.

A cycle goes over the slots once, in time order and in steps. Of each slot's chain it takes the last words that lie
before `end` (where the open file began when the cycle did) and that no later unit speaks of, and appends them as units
of ROLL and SAME: live, or dead and why. When all slots are done the chains end at `end`. This also joins the short runs
that flushes leave behind. A copying collector; the step keeps its memory bounded, the threshold its cost.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from delaynode.store.timer.due_window import Run, before
from delaynode.store.timer.jobs import Capture, SlotRef, part_that_fits
from delaynode.store.timer.timer_log import UNIT_BYTES, as_units
from delaynode.store.timer.units import COUNT, ROLL, SAME, change_of, concatenated, last_words, units
from delaynode.store.types import Bools, Pair, Records, at_or_below

STEP_UNITS = 262_144  # units that one step may read of one slot, and about as many it appends


@dataclass(slots=True)
class Cycle:
    """A cleaning under way."""

    end: int  # TimerLog position: what lies before is to go
    low: Pair | None  # all below is said again; None: all is, the next flush ends the cycle
    counts: list[Records] = field(default_factory=list)  # COUNT units of the slots that are done
    told: int = 0  # dead messages said again


class CleanJob:
    """One step of a cycle: from `low` on, until about `budget` units are to be appended again."""

    def __init__(self, capture: Capture, end: int, low: Pair, budget: int, watermark: Pair) -> None:
        self.capture = capture
        self.end = end
        self.low = low
        self.budget = budget
        self.watermark = watermark
        self.next: Pair | None = None  # where the next step begins; None: all is done
        self._words: list[Records] = []
        self._counts: list[tuple[SlotRef, int]] = []  # what the files that are to go had added to a slot's count

    def run(self) -> None:
        room = self.budget
        for slot in self.capture.slots:
            low, high = max(self.low, Pair(slot.time, 0)), Pair(slot.time + slot.width_ms, 0)
            if room <= 0:
                self.next = low
                return
            cut = high
            if self._units_of(slot) > self.budget:
                cut = part_that_fits(self.capture, slot, low, high, self.budget)
            words, change = self._last_words(slot, low, cut)
            self._words.append(words)
            if change:
                self._counts.append((slot, change))
            room -= len(words)
            if cut < high:
                self.next = cut
                return

    def _units_of(self, slot: SlotRef) -> int:
        """Units in the slot's chain; more than `budget` are not counted to the end."""
        total = 0
        for _, run in self.capture.log.runs(slot.last, slot.time, slot.width_ms, self.capture.start):
            total += len(run)
            if total > self.budget:
                break
        return total

    def _last_words(self, slot: SlotRef, low: Pair, high: Pair) -> tuple[Records, int]:
        """What is only said before `end`, of the slot's part [low, high), and what all that is there counts."""
        old: list[Records] = []
        new: list[Records] = []
        change = 0
        for position, run in self.capture.log.runs(slot.last, slot.time, slot.width_ms, self.capture.start):
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
        said = concatenated(old)
        if not len(said):
            return said, change
        change += int(change_of(said["magic"]).sum())
        rows, live = last_words(said)
        rows = rows.copy()
        rows["magic"] = np.where(live, ROLL | SAME, rows["magic"] | ROLL | SAME)
        rows = rows[~(live & at_or_below(rows["due"], rows["seq"], self.watermark))]  # released
        new.extend(part[_inside(part, low, high)] for part in self.capture.unflushed)
        return unspoken(rows, new), change

    def result(self) -> tuple[Records, Records]:
        """Units to be appended, and COUNT units for the end of the cycle."""
        words = unspoken(concatenated(self._words), self.capture.since)
        times = np.array([slot.time for slot, _ in self._counts], np.int64)
        changes = np.array([change for _, change in self._counts], np.int64)
        widths = np.array([slot.width_ms for slot, _ in self._counts], np.uint32)
        return words, units(times, changes, 0, widths, 0, 0, COUNT, 0)


def _inside(rows: Records, low: Pair, high: Pair) -> Bools:
    return at_or_below(rows["due"], rows["seq"], before(high)) & ~at_or_below(rows["due"], rows["seq"], before(low))


def unspoken(words: Records, later: list[Records]) -> Records:
    """The words (n,), one per (due, seq), that no later unit speaks of."""
    said = concatenated([part for part in later if len(part)])
    if not len(said) or not len(words):
        return words
    run = Run.of(last_words(said)[0])
    at = run.places(words["due"], words["seq"])
    return words[at < 0]
