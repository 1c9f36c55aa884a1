"""The ConsumeQueue, unit by unit: its own check, the record it names, and the order of what was released together."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from delaynode.store.errors import Damaged, Trimmed
from delaynode.store.queue.consume_queue import QUEUED, QUEUED_BYTES, ConsumeQueue, own_checks
from delaynode.store.types import Array, Bools, Records
from delaynode.store.verify.findings import MAX_PER_KIND, Report
from delaynode.store.verify.log_pass import LogFacts
from delaynode.store.verify.table import Table
from delaynode.store.verify.timer_pass import wrong_records

READ_ROWS = 1 << 17


@dataclass(slots=True)
class QueueFacts:
    """The released messages that are kept; not whole when some were unreadable."""

    rows: Table = field(default_factory=lambda: Table(due="<i8", seq="<i8", offset="<i8", size="<u4"))
    complete: bool = True


class QueuePass:
    """[start, end): queue offsets that the checkpoint says are there and kept."""

    def __init__(self, queue: ConsumeQueue, start: int, end: int, facts: LogFacts, report: Report) -> None:
        self.file, self.uid = queue.file, queue.uid
        self.start, self.end = start, end
        self.facts = facts
        self.report = report
        self.found = QueueFacts()
        order = np.argsort(facts.runs["start"], kind="stable")
        self._runs = {name: facts.runs[name][order] for name in ("start", "tick")}
        self._runs |= {n: facts.runs[n][order] for n in ("low_due", "low_seq", "high_due", "high_seq")}

    def run(self) -> QueueFacts:
        at, before = self.start, np.empty(0, QUEUED)
        while at < self.end:
            count = min(READ_ROWS, self.end - at)
            try:
                data = self.file.read(at * QUEUED_BYTES, count * QUEUED_BYTES)
            except (Damaged, Trimmed) as error:
                self.found.complete = False
                data = self.file.read_some(at * QUEUED_BYTES, count * QUEUED_BYTES)
                data = data[: len(data) // QUEUED_BYTES * QUEUED_BYTES]  # as many as can be read
                if not data:
                    self._report(at, f"the unit can't be read: {error}")
                    at, before = self._next_segment(at), np.empty(0, QUEUED)
                    continue
            rows = np.frombuffer(data, QUEUED)
            self.report.read(len(data))
            self._units(rows, at)
            self._order(np.concatenate((before, rows)), at - len(before))
            at, before = at + len(rows), rows[-1:]
        return self.found

    def _next_segment(self, at: int) -> int:
        """The queue offset at which the next segment begins, the end when there is none."""
        low = at * QUEUED_BYTES
        return min((-(-base // QUEUED_BYTES) for base in self.file.bases if base > low), default=self.end)

    def _base(self, place: int) -> int:
        """Where the segment of byte `place` starts."""
        return max((base for base in self.file.bases if base <= place), default=place)

    def _report(self, at: int, what: str, found: object = "") -> None:
        place = at * QUEUED_BYTES
        base = self._base(place)
        self.report.add(
            f"{self.file.directory}/{base:020d}", place - base, what, where=f"queue offset {at}", found=found
        )

    def _each(self, bad: Bools, first: int, what: str, found: Array | None = None) -> None:
        rows = np.flatnonzero(bad)
        for at in rows[:MAX_PER_KIND].tolist():
            self._report(first + at, what, "" if found is None else found[at])
        if len(rows) > MAX_PER_KIND:
            base = self._base((first + int(rows[0])) * QUEUED_BYTES)
            self.report.more(f"{self.file.directory}/{base:020d}", what, len(rows) - MAX_PER_KIND)

    def _units(self, rows: Records, first: int) -> None:
        self.report.summary.entries += len(rows)
        self._each(rows["own"] != own_checks(rows, first, self.uid), first, "the unit's own check differs")
        missing, other = wrong_records(rows, np.ones(len(rows), bool), self.facts)
        self._each(missing, first, "no record begins where the unit says", rows["offset"])
        self._each(other, first, "the unit is not of the record that it names", rows["seq"])
        self.found.rows.add(len(rows), **{name: rows[name] for name in ("due", "seq", "offset", "size")})

    def _order(self, rows: Records, first: int) -> None:
        """Within what one frame released: ascending; within a tick also between its marks."""
        runs = self._runs
        if not len(runs["start"]) or not len(rows):
            return
        place = np.arange(first, first + len(rows))
        run = np.searchsorted(runs["start"], place, "right") - 1
        known = run >= 0
        run = np.maximum(run, 0)
        due, seq, tick = rows["due"], rows["seq"], known & runs["tick"][run]
        below = (due < runs["low_due"][run]) | ((due == runs["low_due"][run]) & (seq <= runs["low_seq"][run]))
        above = (due > runs["high_due"][run]) | ((due == runs["high_due"][run]) & (seq > runs["high_seq"][run]))
        self._each(tick & (below | above), first, "released by a tick that does not cover it", due)
        backwards = (due[1:] < due[:-1]) | ((due[1:] == due[:-1]) & (seq[1:] <= seq[:-1]))
        backwards &= (run[1:] == run[:-1]) & tick[1:]
        self._each(np.concatenate(([False], backwards)), first, "not in (due, seq) order within its tick", due)
