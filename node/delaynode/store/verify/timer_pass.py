"""The TimerLog, flush by flush: every unit, every chain, the copy of the wheels, and which messages it has pending."""

from __future__ import annotations

import zlib
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from delayapi.units import HOUR_MS, MINUTE_MS

from delaynode.store.columns import at_or_below
from delaynode.store.errors import Damaged, Trimmed
from delaynode.store.timer.index import MINUTE_SLOTS, hour_slots
from delaynode.store.timer.timer_log import HEADER, STORED, UNIT_BYTES, TimerLog, _runs, flush_crc, own_checks
from delaynode.store.timer.units import COUNT, DEFAULT, DELETE, MOVED, ROLL, SAME, change_of, latest_units
from delaynode.store.timer.wheel import NOWHERE, TimerWheel
from delaynode.store.types import I64, Array, Bools, Pair, Records, raw
from delaynode.store.verify.findings import MAX_PER_KIND, Report
from delaynode.store.verify.log_pass import LogFacts
from delaynode.store.verify.table import Table

READ_UNITS = 1 << 16  # read at a time while looking for the next flush
COMPACT_UNITS = 1 << 20  # folded at a time, about

DELETED = (DELETE, DELETE | MOVED, DELETE | ROLL, DELETE | MOVED | ROLL)
MAGICS = np.array(
    [DEFAULT, ROLL, ROLL | SAME, COUNT, *DELETED, *(magic | SAME for magic in DELETED if magic & ROLL)], np.int64
)
"""What a unit may say."""
ELSEWHERE = "prevPos does not lead to the slot's unit before"

WORD = np.dtype([("due", "<i8"), ("seq", "<i8"), ("offset", "<i8"), ("size", "<u4"), ("magic", "<i4")])


@dataclass(slots=True)
class WheelCopy:
    """What the file `wheels` says: its slots, as of a TimerLog position."""

    path: str
    position: int
    minute_bound_ms: int
    minute: Records
    hour: Records


@dataclass(slots=True)
class TimerFacts:
    """Pending messages as of the checkpoint, one row each; not whole when flushes were unreadable."""

    pending: Table = field(default_factory=lambda: Table(due="<i8", seq="<i8", offset="<i8", size="<u4"))
    complete: bool = True


def wrong_records(rows: Records, named: Bools, facts: LogFacts) -> tuple[Bools, Bools]:
    """Which of the rows (n,) that name a record in the log name none, and which name another than they say.

    named: the rows to be looked at. Where frames are freed or damaged a record may be unknown rightly.
    """
    records = facts.records
    offset = np.ascontiguousarray(rows["offset"])
    at = np.minimum(np.searchsorted(records["offset"], offset), max(0, len(records) - 1))
    if not len(records):
        return named & facts.complete, np.zeros(len(rows), bool)
    found = named & (records["offset"][at] == offset)
    differs = np.zeros(len(rows), bool)
    for name in ("seq", "size", "tag", "check", "key"):
        if name in (rows.dtype.names or ()):
            differs |= found & (records[name][at] != rows[name])
    return named & ~found & facts.complete, differs


class TimerPass:
    """[start, end): what the checkpoint says is of use. watermark, minute_bound_ms: what it says of them."""

    def __init__(
        self,
        log: TimerLog,
        start: int,
        end: int,
        horizon_ms: int,
        watermark: Pair,
        minute_bound_ms: int | None,
        copy: WheelCopy | None,
        facts: LogFacts,
        report: Report,
    ) -> None:
        self.log, self.file = log, log.file
        self.start, self.end = start, end
        self.watermark = watermark
        self.minute_bound_ms = minute_bound_ms
        self.copy = copy
        self.facts = facts
        self.report = report
        self.found = TimerFacts()
        self.minute = TimerWheel(MINUTE_MS, MINUTE_SLOTS)
        self.hour = TimerWheel(HOUR_MS, hour_slots(horizon_ms))
        self._words: list[Records] = []
        self._log_reached = 0  # log offset up to which the last flush reached

    def run(self) -> TimerFacts:
        position = self.start
        self._compare_copy(position)
        while position < self.end:
            try:
                position = self._flush(position)
            except (Damaged, Trimmed) as error:
                self._report(position, str(error))
                self.found.complete = False
                position = self._next_flush(position)
            self._compare_copy(position)
        if self.copy is not None and self.found.complete:
            what = "the copy's TimerLog position is not the end of a flush"
            if self.start <= self.copy.position <= self.end:
                self.report.add(self.copy.path, -1, what, found=self.copy.position)
        self._fold()
        return self.found

    def _report(self, position: int, what: str, *, expected: object = "", found: object = "") -> None:
        base = max((base for base in self.file.bases if base <= position), default=position)
        self.report.add(
            f"{self.file.directory}/{base:020d}", position - base, what, where=f"TimerLog position {position}",
            expected=expected, found=found,
        )  # fmt: skip

    def _more(self, position: int, what: str, count: int) -> None:
        if count > 0:
            base = max((base for base in self.file.bases if base <= position), default=position)
            self.report.more(f"{self.file.directory}/{base:020d}", what, count)

    # ------------------------------------------------------------ flushes
    def _read(self, position: int, count: int) -> Records:
        data = self.file.read(position, count * UNIT_BYTES)
        self.report.read(len(data))
        return np.frombuffer(data, STORED)

    def _flush(self, position: int) -> int:
        """Look at the flush at `position`; returns where it ends. Raises Damaged when it can't be read."""
        header = self._read(position, 1).copy()
        head = header[0].copy()
        header["key"] = 0
        count, split = int(head["offset"]), int(head["size"])
        after = position + (count + 1) * UNIT_BYTES
        if head["magic"] != HEADER or count < 0 or split > count or after > self.end:
            raise Damaged("no flush header here")
        body = self._read(position + UNIT_BYTES, count)
        if zlib.crc32(raw(body), zlib.crc32(raw(header), flush_crc(position, self.log.uid))) != int(head["key"]):
            raise Damaged(f"the crc32 of the flush of {count:,} units differs")
        self.report.summary.units += count
        if int(head["due"]) < self._log_reached:
            self._report(position, "log range goes back", expected=self._log_reached, found=int(head["due"]))
        self._log_reached = max(self._log_reached, int(head["due"]))
        positions = position + UNIT_BYTES * np.arange(1, count + 1, dtype=np.int64)
        self._units(body, positions, split)
        due = np.ascontiguousarray(body["due"])
        if count and bool((due[1:] < due[:-1]).any()):
            at = int(np.argmax(due[1:] < due[:-1])) + 1
            self._report(int(positions[at]), "the flush is not sorted by due")
            self.found.complete = False
            return after
        magic = body["magic"].astype(np.int64)
        change = change_of(magic) + np.where((magic & COUNT) != 0, body["seq"], 0)
        for wheel, low, high in ((self.minute, 0, split), (self.hour, split, count)):
            runs, starts = _runs(due[low:high], change[low:high], positions[low:high], wheel)
            if len(starts):
                self._chains(body["prev"][low:high], positions[low:high], starts, wheel.last_positions(runs.times))
            runs.hang(wheel)
        return after

    def _chains(self, prev: I64, positions: I64, starts: I64, heads: I64) -> None:
        """prev (n,) of one level's units: inside a run the unit before, at its start the chain's head so far."""
        expected = positions - UNIT_BYTES
        expected[starts] = heads
        if self.found.complete:
            bad = prev != expected
            outside = starts[heads == NOWHERE]  # what lies below the start is cleaned: a chain may end there anyhow
            bad[outside] &= prev[outside] >= self.start
        else:
            bad = prev >= positions
        rows = np.flatnonzero(bad)
        for at in rows[:MAX_PER_KIND].tolist():
            self._report(int(positions[at]), ELSEWHERE, expected=int(expected[at]), found=int(prev[at]))
        self._more(int(positions[0]), ELSEWHERE, len(rows) - MAX_PER_KIND)

    def _units(self, body: Records, positions: I64, split: int) -> None:
        magic = body["magic"].astype(np.int64)
        self._each(body["own"] != own_checks(body, positions, self.log.uid), positions, "the unit's own check differs")
        self._each(~np.isin(magic, MAGICS), positions, "no unit says this", magic)
        counts = (magic & COUNT) != 0
        dead = (magic & DELETE) != 0
        missing, other = wrong_records(body, ~counts & ~dead, self.facts)
        self._each(missing, positions, "no record begins where the unit says", body["offset"])
        self._each(other, positions, "the unit is not of the record that it names", body["seq"])
        ahead = ~counts & ~at_or_below(body["due"], body["seq"], self.watermark)
        if self.minute_bound_ms is not None:  # an hour that is half cascaded: the hour slot says what is true of it
            ahead[:split] &= body["due"][:split] < self.minute_bound_ms
        latest = np.empty(int(np.count_nonzero(ahead)), WORD)
        for name in WORD.names or ():
            latest[name] = body[name][ahead]
        self._words.append(latest)

    def _each(self, bad: Bools, positions: I64, what: str, found: Array | None = None) -> None:
        rows = np.flatnonzero(bad)
        for at in rows[:MAX_PER_KIND].tolist():
            self._report(int(positions[at]), what, found="" if found is None else int(found[at]))
        self._more(int(positions[rows[0]]) if len(rows) else 0, what, len(rows) - MAX_PER_KIND)

    def _next_flush(self, bad: int) -> int:
        """Where to go on after the flush at `bad`: where it says that it ends, if another begins there; else at the
        next place that looks like a flush with a right crc; else at the end.
        """
        with suppress(Damaged, Trimmed):
            header = self._read(bad, 1)[0]
            after = bad + (int(header["offset"]) + 1) * UNIT_BYTES
            known = header["magic"] == HEADER and bad < after <= self.end
            if known and (after == self.end or self._read(after, 1)["magic"][0] == HEADER):
                return after
        position = bad + UNIT_BYTES
        while position < self.end:
            base = max((base for base in self.file.bases if base <= position), default=None)
            data = (
                b""
                if base is None
                else self.file.read_some(position, min(READ_UNITS * UNIT_BYTES, self.end - position))
            )
            rows = np.frombuffer(data, STORED, len(data) // UNIT_BYTES)
            for at in np.flatnonzero(rows["magic"] == HEADER).tolist():
                if self._is_flush(position + at * UNIT_BYTES):
                    return position + at * UNIT_BYTES
            if len(rows):
                position += len(rows) * UNIT_BYTES
            else:
                position = min((base for base in self.file.bases if base > position), default=self.end)
        return self.end

    def _is_flush(self, position: int) -> bool:
        try:
            header = self._read(position, 1).copy()
            count, crc = int(header["offset"][0]), int(header["key"][0])
            header["key"] = 0
            if count < 0 or position + (count + 1) * UNIT_BYTES > self.end:
                return False
            return (
                zlib.crc32(
                    raw(self._read(position + UNIT_BYTES, count)),
                    zlib.crc32(raw(header), flush_crc(position, self.log.uid)),
                )
                == crc
            )
        except (Damaged, Trimmed):
            return False

    # ------------------------------------------------------------ the copy of the wheels
    def _compare_copy(self, position: int) -> None:
        """Every slot of the copy, when its position is reached."""
        copy = self.copy
        if copy is None or copy.position != position or not self.found.complete:
            return
        self.copy = None
        for wheel, slots, name in ((self.minute, copy.minute, "minute"), (self.hour, copy.hour, "hour")):
            self.report.summary.slots += len(slots)
            if len(slots) != len(wheel.slots):
                self.report.add(copy.path, -1, f"{name} wheel", expected=f"{len(wheel.slots)} slots", found=len(slots))
                continue
            mine, theirs = wheel.slots.copy(), slots
            if wheel is self.hour:  # hours that were cascaded are empty
                mine[(mine["time"] < copy.minute_bound_ms)] = TimerWheel(HOUR_MS, 1).slots[0]
            if self.start:  # what lies below the start is cleaned, and is not counted here
                same = (mine["time"] == theirs["time"]) & (mine["last"] == theirs["last"])
                same |= (theirs["last"] < self.start) & (mine["last"] == NOWHERE)
            else:
                same = mine == theirs
            for at in np.flatnonzero(~same).tolist():
                self.report.add(
                    copy.path,
                    -1,
                    f"slot {at} of the {name} wheel",
                    expected=mine[at].tolist(),
                    found=theirs[at].tolist(),
                )

    # ------------------------------------------------------------ what is pending
    def _fold(self) -> None:
        """The latest units above the watermark, a due range at a time; those that are live go to `pending`."""
        total = sum(map(len, self._words))
        if not total:
            return
        parts = -(-total // COMPACT_UNITS)
        sample = np.sort(np.concatenate([part["due"][:: max(1, total // 100_000)] for part in self._words]))
        cuts = np.unique(sample[(np.arange(1, parts) * len(sample)) // parts]).tolist()
        for low, high in zip([None, *cuts], [*cuts, None], strict=True):
            chosen = []
            for part in self._words:
                inside = np.ones(len(part), bool)
                if low is not None:
                    inside &= part["due"] >= low
                if high is not None:
                    inside &= part["due"] < high
                chosen.append(part[inside])
            rows, live = latest_units(np.concatenate(chosen))
            rows = rows[live]
            self.found.pending.add(len(rows), **{name: rows[name] for name in ("due", "seq", "offset", "size")})
        self._words.clear()
