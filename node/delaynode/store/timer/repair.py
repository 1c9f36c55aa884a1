"""Mending the TimerLog: a flush that is not what it was is made again from the frames of its log range, a cascade's
piece from its hour's chain.

Each unit has a check of its own, so what is still sound stays. The others are looked for among what the frames of the
range say, and put where they were: a flush is sorted by due, units of one due in order of arrival. A checkpoint's units
may be in several flushes, its pieces: they have one log range, and divide what it says in order of arrival. The crc32
of the flush tells whether that is what was written; so a flush becomes what it was, to the last bit, or stays bad. It
stays so where the frames that say what is lost were freed, and of a cascade's piece the hour's chain too (see
timer/cascade_chunk.py), and where a cleaning's word is lost - unless all that happened is that one bit flipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from delaynode.store.columns import at_or_below
from delaynode.store.errors import Damaged
from delaynode.store.log.checks import record_checks
from delaynode.store.log.commit_log import CommitLog, frames_of
from delaynode.store.log.frames import (
    APPENDS,
    TICKS,
    Frame,
    FrameKind,
    parse_append,
    parse_cancel,
    parse_relocate,
    parse_reschedule,
    parse_tick,
)
from delaynode.store.timer.cascade_chunk import CascadeChunkReader, hours_of_chunk
from delaynode.store.timer.timer_log import (
    HEADER,
    STORED,
    UNIT_BYTES,
    LogRange,
    TimerLog,
    _runs,
    as_units,
    flush_is_sound,
    own_checks,
)
from delaynode.store.timer.units import DEFAULT, DELETE, DELETE_MOVED, ROLL, SAME, UNIT, concatenated, units
from delaynode.store.timer.wheel import TimerWheel
from delaynode.store.types import I64, MAX_SEQ, Pair, Records, raw


class FlushRepairer:
    """Repairs one stopped copy. repaired: the TimerLog positions of the flushes that it has made good."""

    def __init__(self, timer: TimerLog, log: CommitLog) -> None:
        self.timer, self.log = timer, log
        self.repaired: list[int] = []

    def repair(self, position: int, first: int, minute: TimerWheel, hour: TimerWheel) -> None:
        """Write the flush at `position` as it was in its place. Raises Damaged when that can't be.

        first: where the pieces begin that the flush before is of. The wheels are as of before this one.
        """
        room = (self.timer.end - position) // UNIT_BYTES
        header = _units_at(self.timer, position, 1)
        stored = None
        if header[0]["magic"] == HEADER and 0 <= int(header[0]["size"]) <= int(header[0]["offset"]) < room:
            stored = _units_at(self.timer, position, int(header[0]["offset"]) + 1)
            stored = self._body(stored, position, first, minute, hour)
        stored = self._header(header, position, room) if stored is None else stored
        if stored is None:
            raise Damaged(f"{self.timer.file.directory}: the flush at {position} is bad, and can't be made again")
        self._write(stored, position)
        self.repaired.append(position)

    def _sound(self, stored: Records, position: int) -> bool:
        return flush_is_sound(stored, position, self.timer.uid)

    def _header(self, header: Records, position: int, room: int) -> Records | None:
        """With one bit of the header turned back."""
        for tried in _one_bit_off(header):
            count = int(tried[0]["offset"])
            if tried[0]["magic"] == HEADER and 0 <= count < room:
                stored = np.concatenate([tried, _units_at(self.timer, position + UNIT_BYTES, count)])
                if self._sound(stored, position):
                    return stored
        return None

    def _body(self, stored: Records, position: int, first: int, minute: TimerWheel, hour: TimerWheel) -> Records | None:
        """With its bad units made again, by their log range or by turning back one bit."""
        body = stored[1:]
        place = position + UNIT_BYTES * np.arange(1, len(stored), dtype=np.int64)
        bad = np.flatnonzero(body["own"] != own_checks(body, place, self.timer.uid))
        if not len(bad):
            return None
        for lost in self._lost(stored, bad, position, first, minute, hour):
            if len(lost) == len(bad):
                made = stored.copy()
                self._fill_rows(made, lost, bad, place, minute, hour)
                if self._sound(made, position):
                    return made
        for tried in _one_bit_off(body[bad]) if len(bad) == 1 else ():
            if (tried["own"] == own_checks(tried, place[bad], self.timer.uid)).all():
                made = stored.copy()
                made[1:][bad] = tried
                if self._sound(made, position):
                    return made
        return None

    def _lost(
        self, stored: Records, bad: I64, position: int, first: int, minute: TimerWheel, hour: TimerWheel
    ) -> Iterator[Records]:
        """What the flush's rows `bad` (k,) may have said, in a flush's order."""
        head, body = stored[0], stored[1:]
        good, log_range = np.delete(body, bad), (int(head["prev"]), int(head["due"]))
        with suppress(Damaged):
            beside = self._sibling_flush_units(position, first, len(stored), log_range)
            lost = self._of_frames(log_range, np.concatenate([good, *beside]))[: len(bad)]
            yield lost[np.argsort(lost["due"], kind="stable")]  # what came after these is of later pieces
        if head["prev"] < head["due"] or head["size"] < head["offset"]:
            return  # not a cascade's piece: of no frame, and all of the minute level
        for time in hours_of_chunk(good, minute, hour):
            with suppress(Damaged):
                chunk = CascadeChunkReader(self.timer, position, len(body), time, minute, hour)
                with suppress(Damaged):
                    yield _missing_units(chunk.from_chain(), good)
                frames = self._frames(0, int(head["prev"]))
                yield chunk.from_frames((_units_of_frames(iter([frame]))[0] for frame in frames), body, bad)

    def _of_frames(self, log_range: LogRange, good: Records) -> Records:
        """What the frames of the range say and no `good` unit does, in order of arrival. Raises Damaged."""
        recorded, watermark = _units_of_frames(self._frames(*log_range))
        over = at_or_below(recorded["due"], recorded["seq"], watermark)
        ended = np.concatenate(
            [recorded["seq"][(recorded["magic"] & DELETE) != 0], good["seq"][(good["magic"] & DELETE) != 0]]
        )
        return _missing_units(recorded[~over | np.isin(recorded["seq"], ended)], good)  # as FlushJob has it

    def _sibling_flush_units(self, position: int, first: int, length: int, log_range: LogRange) -> Iterator[Records]:
        """The sound units of the other flushes of this log range; those before `position` are whole."""
        timer, at = self.timer, first
        with suppress(Damaged):  # no header: what lies beyond is not found
            while at < timer.end:
                count, _, of = timer.header(at) if at != position else (length - 1, 0, log_range)
                if of != log_range and at >= position:
                    return
                if of == log_range and at != position:
                    body = _units_at(timer, at + UNIT_BYTES, count)
                    place = at + UNIT_BYTES * np.arange(1, count + 1, dtype=np.int64)
                    yield body[body["own"] == own_checks(body, place, timer.uid)]
                at += (count + 1) * UNIT_BYTES

    def _frames(self, low: int, high: int) -> Iterator[Frame]:
        """The frames of [low, high) that were not freed; none where a header says nonsense. Raises Damaged."""
        if not 0 <= low <= high <= self.log.end:
            return
        for base, end in self.log.file.segments():
            yield from frames_of(self.log, max(base, low), min(end, high))

    def _fill_rows(
        self, stored: Records, lost: Records, bad: I64, place: I64, minute: TimerWheel, hour: TimerWheel
    ) -> None:
        """Lay the lost units (k,) out in rows `bad` (k,) of a flush's body."""
        body, split = stored[1:], int(stored[0]["size"])
        made = body[bad]
        for name in ("check", "magic", "due", "offset", "size", "key", "tag", "seq"):
            made[name] = lost[name]
        body[bad] = made
        due, prev = np.ascontiguousarray(body["due"]), place - UNIT_BYTES
        for wheel, low, high in ((minute, 0, split), (hour, split, len(body))):
            runs, starts = _runs(due[low:high], np.zeros(high - low, np.int64), place[low:high], wheel)
            prev[low + starts] = wheel.last_positions(runs.times)
        made["prev"] = prev[bad]
        made["own"] = own_checks(made, place[bad], self.timer.uid)
        body[bad] = made

    def _write(self, stored: Records, position: int) -> None:
        """Atomically, with the whole of its segment: a flush lies in one."""
        file = self.timer.file
        base = max(base for base in file.bases if base <= position)
        path, at = f"{file.directory}/{base:020d}", position - base
        data = bytearray(file.files.read(path, 0, file.files.size(path)))
        data[at : at + stored.nbytes] = raw(stored)
        file.files.replace(path, bytes(data))


def _units_at(timer: TimerLog, position: int, count: int) -> Records:
    return np.frombuffer(timer.file.read(position, count * UNIT_BYTES), STORED)


def _units_of_frames(frames: Iterator[Frame]) -> tuple[Records, Pair]:
    """The units (n,) of dtype UNIT that frames add to the index, in order of arrival, and the watermark after them."""
    recorded: list[Records] = []
    # a dead letter's due is 0; what else comes lies above the true one, see _check_wheel()
    watermark = Pair(0, MAX_SEQ)
    for frame in frames:
        if frame.kind in TICKS:
            tick = parse_tick(frame)
            watermark = Pair(tick.due, tick.seq)
        elif frame.kind in APPENDS:
            a = parse_append(frame)
            seq = np.arange(frame.first_seq, frame.first_seq + len(a.due), dtype=np.int64)
            check = record_checks(a.records, a.records_at, a.size, seq)
            offset = np.cumsum(a.size, dtype=np.int64) - a.size + a.records_at
            rows = units(a.due, seq, offset, a.size, a.key, a.tag, DEFAULT, check)
            recorded.append(rows[~((a.due <= frame.wall_ms) | at_or_below(a.due, seq, watermark))])
        elif frame.kind is FrameKind.CANCEL:
            c = parse_cancel(frame)
            recorded.append(units(c.due, c.seq, 0, c.size, 0, 0, DELETE))
        elif frame.kind is FrameKind.RESCHEDULE:
            r = parse_reschedule(frame)
            recorded.append(units(r.old_due, r.seq, 0, r.size, 0, 0, DELETE_MOVED))
            rows = units(r.new_due, r.seq, r.offset, r.size, r.key, r.tag, DEFAULT, r.check)
            recorded.append(rows[~((r.new_due <= frame.wall_ms) | at_or_below(r.new_due, r.seq, watermark))])
        elif frame.kind is FrameKind.RELOCATE:
            m = parse_relocate(frame)
            check = record_checks(m.records, m.records_at, m.size, m.seq)
            offset = np.cumsum(m.size, dtype=np.int64) - m.size + m.records_at
            rows = units(m.due, m.seq, offset, m.size, m.key, m.tag, ROLL | SAME, check)
            recorded.append(rows[~at_or_below(m.due, m.seq, watermark)])
    return concatenated(recorded), watermark


def _missing_units(recorded: Records, good: Records) -> Records:
    """The units of `recorded` that none of `good` repeats."""
    present = Counter(_unit_contents(as_units(good)))
    lost = np.zeros(len(recorded), bool)
    for row, word in enumerate(_unit_contents(recorded)):
        lost[row] = not present[word]
        present[word] -= not lost[row]
    return recorded[lost]


def _unit_contents(rows: Records) -> list[bytes]:
    """What each unit says, as bytes."""
    latest: list[bytes] = np.ascontiguousarray(rows).view(f"V{UNIT.itemsize}").tolist()
    return latest


def _one_bit_off(unit: Records) -> Iterator[Records]:
    """A stored unit (1,) with each of its bits turned, one after the other."""
    for bit in range(8 * UNIT_BYTES):
        data = bytearray(raw(unit))
        data[bit // 8] ^= 1 << (bit % 8)
        yield np.frombuffer(data, STORED)
