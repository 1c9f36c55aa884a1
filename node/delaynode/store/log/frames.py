"""Frames: what the CommitLog consists of, and the payload of each kind.

header, 64 bytes, little-endian
  0 magic u32 | 4 crc32 u32 (of all that follows) | 8 length u32 (header and payload) | 12 kind u16 | 14 flags u16
 16 shard uid u64 | 24 epoch u32 | 28 count u32 | 32 first seq i64 | 40 master's wall clock i64 ms
 48 own log offset i64 | 56 synced i64 (the log offset known to be on disk when this frame was written)
payload: columns one after the other, then (APPEND, APPEND_RUNS, APPEND_IDS, FIRE, FIRE_AGAIN, RELOCATE) the records
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from delaynode.store.columns import is_few, total
from delaynode.store.errors import Damaged
from delaynode.store.log.incoming_batch import ID, NO_IDS, BatchRun
from delaynode.store.types import I64, U32, Array, Buffer, Ids, raw

MAGIC = 0x46594C44  # "DLYF"
HEADER = struct.Struct("<IIIHHQIIqqqq")
HEADER_BYTES = HEADER.size
MAX_FRAME_BYTES = 16 << 20

FLAG_DEAD_LETTERS = 1  # RETRY: of dead letters (a redrive); DEAD: drop them
FLAG_NEW_SEGMENT = 2  # this frame begins a CommitLog segment, on every replica
FLAGS = FLAG_DEAD_LETTERS | FLAG_NEW_SEGMENT

NEVER = 1 << 62  # ms: of a schedule that has no next firing
# of a row of FIRE: it has a message; somebody asked for it, now, or of a range; the last message is not done yet
FIRED, TRIGGERED, BACKFILLED, SKIPPED = 1, 2, 4, 8
BY_HAND = TRIGGERED | BACKFILLED


class FrameKind(IntEnum):
    APPEND = 1
    TICK = 2
    CANCEL = 3
    RESCHEDULE = 4
    GROUP = 5
    ACK = 6
    RETRY = 7
    DEAD = 8
    EPOCH = 9
    RELOCATE = 10
    TRIM = 11
    APPEND_RUNS = 12
    APPEND_IDS = 13
    SCHEDULE = 14
    FIRE = 15
    DEAD_REASON = 16
    FIRE_AGAIN = 17
    TICK_AHEAD = 18


KINDS = {int(kind): kind for kind in FrameKind}
# The format that brought each kind: a master writes a kind only once all nodes read that format. A payload never
# changes: a new layout is a new kind, since a program refuses a kind that it does not know as newer than itself.
SINCE_FORMAT = {
    **dict.fromkeys(FrameKind, 1), FrameKind.APPEND_RUNS: 2, FrameKind.APPEND_IDS: 3, FrameKind.SCHEDULE: 4,
    FrameKind.FIRE: 4, FrameKind.DEAD_REASON: 5, FrameKind.FIRE_AGAIN: 6, FrameKind.TICK_AHEAD: 7,
}  # fmt: skip
TICKS = frozenset((FrameKind.TICK, FrameKind.TICK_AHEAD))
FIRES = frozenset((FrameKind.FIRE, FrameKind.FIRE_AGAIN))
APPENDS = FIRES | {FrameKind.APPEND, FrameKind.APPEND_RUNS, FrameKind.APPEND_IDS}


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame as it stands in the log. `payload` is a view; copy what is kept."""

    kind: FrameKind
    flags: int
    epoch: int
    count: int
    first_seq: int
    wall_ms: int
    offset: int  # own log offset, bytes
    synced: int
    payload: memoryview

    @property
    def end(self) -> int:
        """The log offset just after this frame."""
        return self.offset + HEADER_BYTES + len(self.payload)


@dataclass(slots=True)  # not frozen: one is made for each message, see docs/benchmarks.md
class Unsealed:
    """A frame that has its place in the log but no crc yet: the writing thread seals it."""

    kind: FrameKind
    flags: int
    uid: int
    epoch: int
    count: int
    first_seq: int
    wall_ms: int
    offset: int
    payload: tuple[Buffer, ...]
    length: int  # header and payload, bytes

    def seal(self, synced: int) -> bytes:
        """The header, with `synced` and the crc in it."""
        rest = HEADER.pack(
            MAGIC, 0, self.length, self.kind, self.flags, self.uid, self.epoch, self.count, self.first_seq,
            self.wall_ms, self.offset, synced,
        )  # fmt: skip
        crc = zlib.crc32(rest[8:])
        for part in self.payload:
            crc = zlib.crc32(part, crc)
        return rest[:4] + crc.to_bytes(4, "little") + rest[8:]


class BadFrame(Exception):
    """No valid frame starts here; says why."""


class UnknownKind(BadFrame):
    """All of the frame is as it was written, by a newer release: this program does not know what it means."""


def parse(data: memoryview, at: int, offset: int, uid: int) -> Frame:
    """The frame at data[at:], which should be at log offset `offset` of shard `uid`. Raises BadFrame.

    `BadFrame.args[1]` is the number of bytes the frame claims to need when `data` ends too early, else 0.
    """
    if len(data) - at < HEADER_BYTES:
        raise BadFrame("header cut short", HEADER_BYTES)
    magic, crc, length, kind, flags, owner, epoch, count, first_seq, wall_ms, own, synced = HEADER.unpack_from(data, at)
    if magic != MAGIC:
        raise BadFrame("no frame magic", 0)
    if not HEADER_BYTES <= length <= MAX_FRAME_BYTES:
        raise BadFrame(f"impossible length {length}", 0)
    if len(data) - at < length:
        raise BadFrame("payload cut short", length)
    if zlib.crc32(data[at + 8 : at + length]) != crc:
        raise BadFrame("crc32 differs", 0)
    if own != offset or owner != uid:
        raise BadFrame(f"frame of shard {owner:x} offset {own}, expected {uid:x} offset {offset}", 0)
    known = KINDS.get(kind)
    if known is None:
        raise UnknownKind(f"unknown kind {kind}, written by a newer release", 0)
    if flags & ~FLAGS:
        raise UnknownKind(f"unknown flags {flags & ~FLAGS:#x}, written by a newer release", 0)
    payload = data[at + HEADER_BYTES : at + length]
    return Frame(known, flags, epoch, count, first_seq, wall_ms, own, synced, payload)


# ---------------------------------------------------------------- payloads
_APPEND = struct.Struct("<QQ")
_RUNS = struct.Struct("<II")
_ZERO = struct.Struct("<Q")
_TICK = struct.Struct("<qqqq")
_U16 = struct.Struct("<H")
_PUT = struct.Struct("<Bqq")


def column_bytes(*columns: Array) -> tuple[Buffer, ...]:
    """The columns' bytes, little-endian and contiguous, without copying where that is how they are."""
    if is_few(len(columns[0])):
        return tuple(c.tobytes() for c in columns)
    return tuple(raw(np.ascontiguousarray(c)) if len(c) else b"" for c in columns)


class PayloadColumns:
    """Reads columns off a payload in order; Damaged when the payload is too short for them."""

    def __init__(self, payload: memoryview) -> None:
        self.payload = payload
        self.at = 0

    def read_column(self, dtype: str, count: int) -> Array:
        try:
            column = np.frombuffer(self.payload, dtype, count, self.at) if count else np.empty(0, dtype)
        except ValueError as error:
            raise Damaged(f"frame payload of {len(self.payload)} bytes is too short for its columns") from error
        self.at += column.nbytes
        return column

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        try:
            values = form.unpack_from(self.payload, self.at)
        except struct.error as error:
            raise Damaged(f"frame payload of {len(self.payload)} bytes is too short") from error
        self.at += form.size
        return values

    def text(self) -> str:
        (size,) = self.unpack(_U16)
        text = bytes(self.payload[self.at : self.at + size])
        self.at += size
        try:
            if len(text) == size:
                return text.decode()
        except UnicodeDecodeError:
            pass
        raise Damaged(f"frame payload of {len(self.payload)} bytes has a bad text before {self.at}")


def _text(value: str) -> bytes:
    encoded = value.encode()
    return _U16.pack(len(encoded)) + encoded


@dataclass(slots=True)  # not frozen: one is made for each message, see docs/benchmarks.md
class Append:
    """n messages. due i64[n] ms, size/key/tag u32[n]; the records, one after the other, begin at `records_at`.

    runs: whose they are, in order; APPEND has one, APPEND_RUNS (runs u32 | 0 u32 | producer u64[r], number u64[r],
    messages u32[r], then as APPEND) one for each request. ids: S16[n] of an APPEND_IDS (0 u64 | id S16[n], then the
    columns and records as APPEND has them), whose messages are of no producer; of others empty.
    """

    runs: Sequence[BatchRun]
    due: I64
    size: U32
    key: U32
    tag: U32
    records: Buffer
    records_at: int
    ids: Ids = field(default_factory=lambda: NO_IDS)


def append_ids_prefix(ids: Ids) -> bytes:
    return _ZERO.pack(0) + ids.tobytes()


def append_prefix(runs: Sequence[BatchRun]) -> bytes:
    if len(runs) == 1:
        return _APPEND.pack(runs[0].producer, runs[0].number)
    producers, numbers, messages = zip(*runs, strict=True)
    return _RUNS.pack(len(runs), 0) + struct.pack(f"<{2 * len(runs)}Q{len(runs)}I", *producers, *numbers, *messages)


def parse_append_runs(frame: Frame) -> Sequence[BatchRun]:
    """Whose messages they are. Raises Damaged."""
    return _runs(PayloadColumns(frame.payload), frame)


def count_runs(frame: Frame) -> int:
    """How many requests an APPEND_RUNS says that it has; of any other frame 0."""
    if frame.kind is not FrameKind.APPEND_RUNS or len(frame.payload) < _RUNS.size:
        return 0
    return int(_RUNS.unpack_from(frame.payload)[0])


def _ids(columns: PayloadColumns, frame: Frame) -> Ids:
    (zero,) = columns.unpack(_ZERO)
    if zero:
        raise Damaged(f"frame at {frame.offset}: its message ids follow {zero}, not 0")
    return columns.read_column(ID, frame.count)


def _runs(columns: PayloadColumns, frame: Frame) -> Sequence[BatchRun]:
    if frame.kind is FrameKind.APPEND_IDS:
        return (BatchRun(0, 0, frame.count),)
    if frame.kind in FIRES:
        _read_firings(columns)
        return (BatchRun(0, 0, frame.count),)
    if frame.kind is FrameKind.APPEND:
        producer, number = columns.unpack(_APPEND)
        return (BatchRun(producer, number, frame.count),)
    count, zero = columns.unpack(_RUNS)
    if zero:
        raise Damaged(f"frame at {frame.offset}: its runs are followed by {zero}, not 0")
    producers, numbers = columns.read_column("<u8", count), columns.read_column("<u8", count)
    messages = columns.read_column("<u4", count).tolist()
    if sum(messages) != frame.count or 0 in messages:
        raise Damaged(f"frame at {frame.offset}: its runs have {sum(messages)} messages, the frame {frame.count}")
    return [*map(BatchRun, producers.tolist(), numbers.tolist(), messages)]


def parse_append(frame: Frame) -> Append:
    """Of a frame of one of the kinds APPENDS. Raises Damaged."""
    columns = PayloadColumns(frame.payload)
    runs = _runs(columns, frame)
    ids = _ids(columns, frame) if frame.kind is FrameKind.APPEND_IDS else NO_IDS
    n = frame.count
    due, size = columns.read_column("<i8", n), columns.read_column("<u4", n)
    key, tag = columns.read_column("<u4", n), columns.read_column("<u4", n)
    if not (n or frame.kind in FIRES) or total(size) != len(frame.payload) - columns.at:
        raise Damaged(f"frame at {frame.offset}: its records are not as long as its column of sizes says")
    records_at = frame.offset + HEADER_BYTES + columns.at
    return Append(runs, due, size, key, tag, frame.payload[columns.at :], records_at, ids)


@dataclass(frozen=True, slots=True)
class ScheduleChange:
    """Put a schedule, new or in the place of the one with its id, or delete it (`put` False).

    definition: what its owner has said, encoded; the store does not read it. nominal, due: the firing that comes next,
    ms; NEVER: none.
    """

    id: str
    put: bool
    definition: bytes = b""
    nominal: int = NEVER
    due: int = NEVER

    def payload(self) -> tuple[Buffer, ...]:
        return (_text(self.id) + _PUT.pack(self.put, self.nominal, self.due), self.definition)


def parse_schedule(frame: Frame) -> ScheduleChange:
    columns = PayloadColumns(frame.payload)
    id_ = columns.text()
    put, nominal, due = columns.unpack(_PUT)
    return ScheduleChange(id_, bool(put), bytes(frame.payload[columns.at :]), nominal, due)


@dataclass(frozen=True, slots=True)
class Firings:
    """What happens to schedules, in n rows; of FIRE a schedule has one, of FIRE_AGAIN and those by hand any number, in
    order. Their messages are the frame's, those of FIRED rows in order.

    number i64[n]: which schedule. time i64[n] ms: the nominal time that is over. nominal, due i64[n] ms: the firing
    that comes next, NEVER: none; of a row BY_HAND as before. flags u32[n]: none of FIRED and SKIPPED where times were
    only missed. missed u32[n]: nominal times that were passed over without a message.
    """

    number: I64
    time: I64
    nominal: I64
    due: I64
    flags: U32
    missed: U32

    @property
    def repeat_by_clock(self) -> bool:
        """Whether a schedule has several rows that nobody asked for: a FIRE has none."""
        number = self.number[(self.flags & BY_HAND) == 0]
        return len(np.unique(number)) < len(number)

    def payload(self) -> tuple[Buffer, ...]:
        return (_RUNS.pack(len(self.number), 0), *column_bytes(*(getattr(self, name) for name in self.__slots__)))


def _read_firings(columns: PayloadColumns) -> Firings:
    n, zero = columns.unpack(_RUNS)
    if zero:
        raise Damaged(f"the firings of a FIRE follow {zero}, not 0")
    number, time, nominal, due = (columns.read_column("<i8", n) for _ in range(4))
    return Firings(number, time, nominal, due, columns.read_column("<u4", n), columns.read_column("<u4", n))


def parse_firings(frame: Frame) -> Firings:
    """Of a frame of one of the kinds FIRES, whose messages parse_append() has. Raises Damaged."""
    firings = _read_firings(PayloadColumns(frame.payload))
    fired = int(np.count_nonzero(firings.flags & FIRED))
    if fired != frame.count:
        raise Damaged(f"frame at {frame.offset}: {fired} of its schedules have fired, it has {frame.count} messages")
    return firings


@dataclass(slots=True)  # not frozen: one is made for each message, see docs/benchmarks.md
class Tick:
    """Everything at or below (due, seq) is released; `released` messages, which end the queue at `queue_end`."""

    due: int
    seq: int
    released: int
    queue_end: int

    def payload(self) -> tuple[Buffer, ...]:
        return (_TICK.pack(self.due, self.seq, self.released, self.queue_end),)


def parse_tick(frame: Frame) -> Tick:
    due, seq, released, queue_end = PayloadColumns(frame.payload).unpack(_TICK)
    return Tick(due, seq, released, queue_end)


@dataclass(frozen=True, slots=True)
class Cancel:
    """n live messages: seq, due i64[n]; offset i64[n] and size u32[n] of their records keep the counts exact."""

    seq: I64
    due: I64
    offset: I64
    size: U32

    def payload(self) -> tuple[Buffer, ...]:
        return column_bytes(self.seq, self.due, self.offset, self.size)


def parse_cancel(frame: Frame) -> Cancel:
    columns, n = PayloadColumns(frame.payload), frame.count
    eights = [columns.read_column("<i8", n) for _ in range(3)]
    return Cancel(eights[0], eights[1], eights[2], columns.read_column("<u4", n))


@dataclass(frozen=True, slots=True)
class Reschedule:
    """n live messages get a new due. Carries their index columns, so that a replica looks nothing up."""

    seq: I64
    old_due: I64
    new_due: I64
    offset: I64
    size: U32
    key: U32
    tag: U32
    check: U32

    def payload(self) -> tuple[Buffer, ...]:
        return column_bytes(
            self.seq, self.old_due, self.new_due, self.offset, self.size, self.key, self.tag, self.check
        )


def parse_reschedule(frame: Frame) -> Reschedule:
    columns, n = PayloadColumns(frame.payload), frame.count
    eights = [columns.read_column("<i8", n) for _ in range(4)]
    fours = [columns.read_column("<u4", n) for _ in range(4)]
    return Reschedule(*eights, *fours)


@dataclass(frozen=True, slots=True)
class GroupChange:
    """Create a group that starts at queue offset `start` and takes `tags` (all when empty), or delete it."""

    group: str
    create: bool
    start: int
    tags: tuple[str, ...]

    def payload(self) -> tuple[Buffer, ...]:
        head = _text(self.group) + struct.pack("<Bq", self.create, self.start) + _U16.pack(len(self.tags))
        return (head + b"".join(map(_text, self.tags)),)


def parse_group(frame: Frame) -> GroupChange:
    columns = PayloadColumns(frame.payload)
    group = columns.text()
    create, start = columns.unpack(struct.Struct("<Bq"))
    (count,) = columns.unpack(_U16)
    return GroupChange(group, bool(create), start, tuple(columns.text() for _ in range(count)))


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """ACK, RETRY, DEAD or DEAD_REASON: k ranges [start, end) of queue offsets of one group.

    attempt u32[k]: the attempt that ends (but for ACK). visible i64[k] ms: visible again at (RETRY). reason: why they
    die (DEAD_REASON).
    """

    group: str
    start: I64
    end: I64
    attempt: U32
    visible: I64
    reason: str = ""

    def payload(self) -> tuple[Buffer, ...]:
        head = _text(self.group) + (_text(self.reason) if self.reason else b"")
        return (head, *column_bytes(self.start, self.end, self.attempt, self.visible))


def parse_progress(frame: Frame) -> GroupProgress:
    columns, k = PayloadColumns(frame.payload), frame.count
    group = columns.text()
    reason = columns.text() if frame.kind is FrameKind.DEAD_REASON else ""
    start, end = columns.read_column("<i8", k), columns.read_column("<i8", k)
    if frame.kind is FrameKind.ACK:
        return GroupProgress(group, start, end, np.empty(0, np.uint32), np.empty(0, np.int64))
    attempt = columns.read_column("<u4", k)
    visible = columns.read_column("<i8", k) if frame.kind is FrameKind.RETRY else np.empty(0, np.int64)
    return GroupProgress(group, start, end, attempt, visible, reason)


@dataclass(frozen=True, slots=True)
class Relocate:
    """n messages whose records are written again, so that an old segment can go.

    seq, due, old_offset i64[n], size, key, tag u32[n]; `records`, one after the other, from log offset `records_at`.
    Pending ones get a new place in the index; those at or below the watermark are dead letters.
    """

    seq: I64
    due: I64
    old_offset: I64
    size: U32
    key: U32
    tag: U32
    records: Buffer
    records_at: int

    def payload(self) -> tuple[Buffer, ...]:
        return (*column_bytes(self.seq, self.due, self.old_offset, self.size, self.key, self.tag), self.records)


def parse_relocate(frame: Frame) -> Relocate:
    columns, n = PayloadColumns(frame.payload), frame.count
    seq, due, old_offset = (columns.read_column("<i8", n) for _ in range(3))
    size, key, tag = (columns.read_column("<u4", n) for _ in range(3))
    if total(size) != len(frame.payload) - columns.at:
        raise Damaged(f"frame at {frame.offset}: its records are not as long as its column of sizes says")
    records_at = frame.offset + HEADER_BYTES + columns.at
    return Relocate(seq, due, old_offset, size, key, tag, frame.payload[columns.at :], records_at)


@dataclass(frozen=True, slots=True)
class Trim:
    """Released messages below queue offset `queue_start` are kept no longer; segments at `bases` i64[n] go."""

    queue_start: int
    bases: I64

    def payload(self) -> tuple[Buffer, ...]:
        return (struct.pack("<q", self.queue_start), *column_bytes(self.bases))


def parse_trim(frame: Frame) -> Trim:
    columns = PayloadColumns(frame.payload)
    (queue_start,) = columns.unpack(struct.Struct("<q"))
    return Trim(queue_start, columns.read_column("<i8", frame.count))
