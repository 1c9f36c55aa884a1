"""TimerLog: units of 52 bytes, appended in flushes and chained per slot through prevPos.

unit (RocketMQ's fields, the due absolute)
  0 record's check u32 | 4 prevPos i64 | 12 magic u16 | 14 own check u16, of the unit and its position | 16 due i64 ms
 24 offset i64 | 32 record size u32 | 36 key hash u32 | 40 tag hash u32 | 44 seq i64      (see checks.py)
a flush: one header unit, then its units: those of the minute level, then those of the hour level, each sorted by
due, so a slot's units lie side by side (prevPos == pos - 52) and a chain is read a run at a time
header unit: magic HEADER | prevPos = log offset before | due = log offset after | offset = count of all units
  record size = count of minute-level units | key hash = crc32 of uid, position, this unit (with 0 here) and the units
a checkpoint's units may be several flushes, its pieces: side by side in one segment, all with the same log range
a chain ends where it leads below `start`: the oldest files are cleaned (see timer/cleanup.py) and removed
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from delaynode.store.errors import Damaged
from delaynode.store.log.checks import first_difference, unit_checks
from delaynode.store.log.files import Files
from delaynode.store.log.segments import SegmentedFile
from delaynode.store.timer.units import COUNT, UNIT, change_of
from delaynode.store.timer.wheel import NOWHERE, TimerWheel
from delaynode.store.types import I64, Array, Bools, Records, raw

UNIT_BYTES = 52
HEADER = 0x4148  # "HA"

STORED = np.dtype(
    [
        ("check", "<u4"),
        ("prev", "<i8"),
        ("magic", "<u2"),
        ("own", "<u2"),
        ("due", "<i8"),
        ("offset", "<i8"),
        ("size", "<u4"),
        ("key", "<u4"),
        ("tag", "<u4"),
        ("seq", "<i8"),
    ]
)
assert STORED.itemsize == UNIT_BYTES

_PLACE = struct.Struct("<Qq")
OWN_WORD = 3  # of a unit's 32-bit words

FIRST_BLOCK, LARGEST_BLOCK = 256, 1 << 16  # units read at a time while walking a chain


def own_checks(stored: Records, positions: I64, uid: int) -> Array:
    """The own checks u16 (n,) that a shard's units at positions `positions` (n,) should have, whatever they say."""
    return unit_checks(stored, positions, OWN_WORD, 16, uid)


def flush_crc(position: int, uid: int) -> int:
    """What the crc32 of the flush at `position` goes on from: one of another place or shard has another."""
    return zlib.crc32(_PLACE.pack(uid, position))


def flush_is_sound(stored: Records, position: int, uid: int) -> bool:
    """Whether a flush (n + 1,), header first, has the crc32 that its header says."""
    header = stored[:1].copy()
    header["key"] = 0
    return zlib.crc32(raw(stored[1:]), zlib.crc32(raw(header), flush_crc(position, uid))) == int(stored[0]["key"])


RepairFlush: TypeAlias = Callable[[int, int, TimerWheel, TimerWheel], None]
"""What makes the bad flush at a position good again, see timer/repair.py. Raises Damaged."""

LogRange: TypeAlias = tuple[int, int]
"""The frames that a flush is of: log offsets [before, after)."""


@dataclass(frozen=True, slots=True)
class SlotRuns:
    """What one flush adds to one level: k slots with their first and last positions and change of live count."""

    times: I64
    first: I64
    last: I64
    more: I64

    def hang(self, wheel: TimerWheel) -> None:
        if len(self.times):
            wheel.extend(self.times, self.first, self.last, self.more)


def _runs(due: I64, change: I64, position: I64, wheel: TimerWheel) -> tuple[SlotRuns, I64]:
    """The slot runs of units sorted by due at `position`, and the row at which each run starts.

    change: what each unit adds to its slot's count.
    """
    slot = due - due % wheel.width_ms
    starts = np.flatnonzero(np.concatenate(([True], slot[1:] != slot[:-1]))) if len(due) else np.empty(0, np.int64)
    last = np.append(starts[1:], len(due)) - 1 if len(due) else starts
    more = np.add.reduceat(change, starts) if len(due) else np.empty(0, np.int64)
    return SlotRuns(slot[starts], position[starts], position[last], more), starts


@dataclass(frozen=True, slots=True)
class Flush:
    """A flush ready to be written: its bytes and what the wheels learn from it."""

    stored: Records
    minutes: SlotRuns
    hours: SlotRuns


def build_flush(
    units: Records,
    bound_ms: int,
    position: int,
    minute: TimerWheel,
    hour: TimerWheel,
    log_range: tuple[int, int],
    uid: int = 0,
) -> Flush:
    """Lay out units (n,) of dtype UNIT, in arrival order, as a flush at TimerLog `position` of shard `uid`.

    Units due before `bound_ms` go to the minute level, others to the hour level. One sort by due, arrival order
    kept among equals, sorts both levels by slot.
    """
    n = len(units)
    due = units["due"]
    if n and int(due.max() - due.min()) < 1 << 42 and n < 1 << 20:
        # one plain sort of (due, row) packed in a word is several times faster than a stable argsort
        packed = np.sort(((due - due.min()) << 20) | np.arange(n))
        order = packed & ((1 << 20) - 1)
    else:
        order = np.argsort(due, kind="stable")
    stored = np.empty(n + 1, STORED)
    body = stored[1:]
    for name in ("check", "magic", "due", "offset", "size", "key", "tag", "seq"):
        body[name] = units[name][order]
    positions = position + UNIT_BYTES * np.arange(1, n + 1, dtype=np.int64)
    body["prev"] = positions - UNIT_BYTES
    sorted_due = np.ascontiguousarray(body["due"])
    split = int(np.searchsorted(sorted_due, bound_ms, "left"))
    levels = []
    for wheel, low, high in ((minute, 0, split), (hour, split, n)):
        runs, starts = _runs(sorted_due[low:high], change_of(body["magic"][low:high]), positions[low:high], wheel)
        body["prev"][low + starts] = wheel.last_positions(runs.times) if len(starts) else NOWHERE
        levels.append(runs)
    body["own"] = own_checks(body, positions, uid)
    stored[0] = (0, log_range[0], HEADER, 0, log_range[1], n, split, 0, 0, 0)
    stored[0]["key"] = zlib.crc32(raw(stored), flush_crc(position, uid))
    return Flush(stored, *levels)


class TimerLog:
    """Appended to by flushes, one at a time; read from any thread."""

    def __init__(self, files: Files, directory: str, segment_bytes: int, uid: int = 0) -> None:
        self.uid = uid
        self.file = SegmentedFile(files, directory, segment_bytes)

        self.start = self.file.start  # position of the first flush that is still of use: below it all chains end

    @property
    def end(self) -> int:
        return self.file.end

    def write(self, flush: Flush) -> None:
        """Append and sync."""
        self.append(flush)
        self.sync()

    def append(self, flush: Flush, *, new_segment: bool | None = None) -> None:
        """new_segment: whether it begins a segment; None: when the open one would grow too large."""
        self.file.append([raw(flush.stored)], flush.stored.nbytes, new_segment=new_segment)

    def sync(self) -> None:
        self.file.sync()

    def _read(self, position: int, count: int) -> Records:
        data = self.file.read(position, count * UNIT_BYTES)
        return np.frombuffer(data, STORED)

    def walk(self, last_position: int, slot_time: int, width_ms: int, start: int = 0) -> Iterator[Records]:
        """A slot's stored units from position `start` on, newest run first (in file order within a block).

        Raises Damaged.
        """
        for _, run in self.runs(last_position, slot_time, width_ms, start):
            counts = (run["magic"] & COUNT) != 0
            yield run[~counts] if counts.any() else run

    def runs(self, last_position: int, slot_time: int, width_ms: int, start: int) -> Iterator[tuple[int, Records]]:
        """The same as walk(), COUNT units too, each run with the position of its first unit."""
        position, block = last_position, FIRST_BLOCK
        while position != NOWHERE and not 0 <= position < start:
            if not 0 < position < self.end or position % UNIT_BYTES:
                raise Damaged(f"{self.file.directory}: the chain of slot {slot_time} leads to {position}")
            low = max(start, position - (block - 1) * UNIT_BYTES)
            stored = self._read(low, (position - low) // UNIT_BYTES + 1)
            positions = low + UNIT_BYTES * np.arange(len(stored), dtype=np.int64)
            breaks = np.flatnonzero(stored["prev"] != positions - UNIT_BYTES)
            first = int(breaks[-1]) if len(breaks) else 0
            run = stored[first:]
            bad = first_difference(run["own"], own_checks(run, positions[first:], self.uid))
            if bad >= 0:
                raise Damaged(f"{self.file.directory}: the check of the unit at {int(positions[first + bad])} differs")
            due = run["due"]
            if bool(((due < slot_time) | (due >= slot_time + width_ms)).any()):
                raise Damaged(f"{self.file.directory}: a chain of slot {slot_time} holds a unit that is not its own")
            yield low + first * UNIT_BYTES, run
            previous = int(run["prev"][0])
            if previous >= low + first * UNIT_BYTES:
                raise Damaged(f"{self.file.directory}: the chain of slot {slot_time} does not go back at {previous}")
            position = previous
            block = min(block * 4, LARGEST_BLOCK) if first == 0 else block

    def read_parts(self, position: I64, count: I64) -> Records:
        """Parts of runs (k,) that a walk has found, as stored but for `prev`, which is each unit's own position.

        Without COUNT units. Raises Damaged.
        """
        spans = zip(position.tolist(), (UNIT_BYTES * count).tolist(), strict=True)
        stored = np.frombuffer(bytearray().join([self.file.read(at, size) for at, size in spans]), STORED)
        first = np.cumsum(count) - count
        positions = np.repeat(position - UNIT_BYTES * first, count) + UNIT_BYTES * np.arange(
            len(stored), dtype=np.int64
        )
        bad = first_difference(stored["own"], own_checks(stored, positions, self.uid))
        if bad >= 0:
            raise Damaged(f"{self.file.directory}: the check of the unit at {int(positions[bad])} differs")
        stored["prev"] = positions
        counts = (stored["magic"] & COUNT) != 0
        return stored[~counts] if counts.any() else stored

    def header(self, position: int) -> tuple[int, int, LogRange]:
        """The count of units of the flush at `position`, of its minute level, and its log range. Raises Damaged."""
        header = self._read(position, 1)[0]
        count, split = int(header["offset"]), int(header["size"])
        if header["magic"] != HEADER or not 0 <= split <= count or position + (count + 1) * UNIT_BYTES > self.end:
            raise Damaged(f"{self.file.directory}: no flush header at {position}")
        return count, split, (int(header["prev"]), int(header["due"]))

    def _runs_of(self, position: int, minute: TimerWheel, hour: TimerWheel) -> list[tuple[SlotRuns, TimerWheel]]:
        """Slot runs that the flush at `position` adds to the wheels, in order. Raises Damaged if its crc32 differs.

        Read block by block: an older program's flush may have millions of units.
        """
        count, split, _ = self.header(position)
        found = []
        for first, body in self._blocks(position, count):
            at = (first - position) // UNIT_BYTES - 1
            positions = first + UNIT_BYTES * np.arange(len(body), dtype=np.int64)
            part = min(max(split - at, 0), len(body))
            for wheel, low, high in ((minute, 0, part), (hour, part, len(body))):
                due = np.ascontiguousarray(body["due"][low:high])
                magic = body["magic"][low:high]
                change = change_of(magic) + np.where((magic & COUNT) != 0, body["seq"][low:high], 0)
                found.append((_runs(due, change, positions[low:high], wheel)[0], wheel))
        return found

    def _blocks(self, position: int, count: int) -> Iterator[tuple[int, Records]]:
        """The units of the flush at `position`, block by block, each with the position of its first unit.

        Raises Damaged at the end, if the flush's crc32 differs: what came before is not to be believed either.
        """
        header = self._read(position, 1).copy()
        expected, header["key"] = int(header[0]["key"]), 0
        crc = zlib.crc32(raw(header), flush_crc(position, self.uid))
        for at in range(0, count, LARGEST_BLOCK):
            first = position + (1 + at) * UNIT_BYTES
            body = self._read(first, min(LARGEST_BLOCK, count - at))
            crc = zlib.crc32(raw(body), crc)
            yield first, body
        if crc != expected:
            raise Damaged(f"{self.file.directory}: crc32 of the flush at {position} differs")

    def dues(self, position: int, through: int, keep: Callable[[Records], Bools]) -> I64:
        """Of the units that `keep` accepts, in the flushes from the one at `position` to the one that holds the unit at
        `through`, of chains that still count or not.

        One pass over all, not chain by chain: where slots are many and small, a hundred times as fast. Raises Damaged.
        """
        found = [np.empty(0, np.int64)]
        while position <= through:
            count, _, _ = self.header(position)
            found += [body["due"][keep(body)] for _, body in self._blocks(position, count)]
            position += (count + 1) * UNIT_BYTES
        return np.concatenate(found)

    def rebuild(self, minute: TimerWheel, hour: TimerWheel, position: int, repair: RepairFlush | None = None) -> int:
        """Hang every flush from `position` on onto the wheels; returns the number of units. Raises Damaged.

        One vectorised pass over each flush; how a wheel is made after an unclean stop or a change of owner.
        """
        total, first, reach = 0, position, (-1, -1)
        while position < self.end:
            try:
                found = self._runs_of(position, minute, hour)
            except Damaged:
                if repair is None:
                    raise
                repair(position, first, minute, hour)
                found = self._runs_of(position, minute, hour)
            for runs, wheel in found:
                runs.hang(wheel)
            count, _, log_range = self.header(position)
            if log_range != reach:
                first, reach = position, log_range
            total += count
            position += (count + 1) * UNIT_BYTES
        return total


def as_units(stored: Records) -> Records:
    """Stored units as units in memory."""
    made = np.empty(len(stored), UNIT)
    for name in UNIT.names or ():
        made[name] = stored[name]
    return made
