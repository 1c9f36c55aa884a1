"""A shard's right behaviour, said as plainly as possible: dictionaries, lists and loops over events.

An event is what one frame means. The state is the fold of the events whose frames are in the log, so after a crash
the model is folded again up to the log's new end.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from delayapi.units import DAY_MS, HOUR_MS

Key = tuple[int, int]  # (due ms, seq)


class Msg(NamedTuple):
    body: bytes
    tag: int


class Queued(NamedTuple):
    due: int
    seq: int
    msg: Msg


# ---------------------------------------------------------------- events, one a frame
class Epoch(NamedTuple):
    epoch: int


class Append(NamedTuple):
    producer: int
    number: int
    first_seq: int
    dues: tuple[int, ...]
    messages: tuple[Msg, ...]
    wall: int
    ids: tuple[bytes, ...] = ()
    time: int = 0  # with ids: the frame time


class Scheduled(NamedTuple):
    id: str
    definition: bytes | None  # None: it is deleted
    nominal: int
    due: int
    number: int
    wall: int


class Fire(NamedTuple):
    """rows: id, time, nominal, due, flags, missed, several of one schedule too; the messages are those of the rows that
    have fired, in order."""

    rows: tuple[tuple[str, int, int, int, int, int], ...]
    first_seq: int
    dues: tuple[int, ...]
    messages: tuple[Msg, ...]
    wall: int


class Tick(NamedTuple):
    mark: Key


class Cancel(NamedTuple):
    keys: tuple[Key, ...]


class Reschedule(NamedTuple):
    moves: tuple[tuple[Key, int], ...]  # (old, new due)
    wall: int


class GroupMade(NamedTuple):
    name: str
    start: int
    tags: frozenset[int]


class GroupGone(NamedTuple):
    name: str


class Ack(NamedTuple):
    name: str
    offsets: frozenset[int]


class Retry(NamedTuple):
    name: str
    rows: tuple[tuple[int, int, int], ...]  # (offset, the attempt that ends, visible ms)


class Dead(NamedTuple):
    name: str
    rows: tuple[tuple[int, int], ...]  # (offset, attempts it had)
    wall: int
    reason: str = ""


class Redrive(NamedTuple):
    name: str
    offsets: frozenset[int]
    wall: int


class Drop(NamedTuple):
    name: str
    offsets: frozenset[int]


class Trim(NamedTuple):
    start: int  # queue offset


class Relocate(NamedTuple):
    """Bodies lie elsewhere; nothing else changes."""


Event = (
    Epoch
    | Append
    | Scheduled
    | Fire
    | Tick
    | Cancel
    | Reschedule
    | GroupMade
    | GroupGone
    | Ack
    | Retry
    | Dead
    | Redrive
    | Drop
    | Trim
    | Relocate
)


@dataclass
class Open:
    """A message of which a group has had an attempt, or may have one now."""

    attempt: int = 1
    visible: int = 0
    until: int | None = None  # end of its invisible time, which only the master's memory knows


@dataclass
class ModelGroup:
    start: int
    tags: frozenset[int]
    done: set[int] = field(default_factory=set)
    open: dict[int, Open] = field(default_factory=dict)  # messages that a frame or a delivery of the group has named
    dead: dict[int, int] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)  # of those that are dead; may be left of others
    redriven: dict[int, Open] = field(default_factory=dict)
    since: dict[int, int] = field(default_factory=dict)  # when a dead letter died or was redriven, ms

    def forget_below(self, start: int) -> None:
        """Drop the messages below `start` that the group had not finished; its dead letters stay."""
        if start > self.start:
            self.done.update(range(self.start, start))
            self.open = {offset: state for offset, state in self.open.items() if offset >= start}

    def takes(self, queued: Queued) -> bool:
        return not self.tags or queued.msg.tag in self.tags


@dataclass
class ModelSchedule:
    number: int
    created_ms: int
    definition: bytes = b""
    version: int = 0
    changed_ms: int = 0
    nominal: int = 0
    due: int = 0
    last: int = 0
    fired: int = 0
    skipped: int = 0
    missed: int = 0
    queue_offset: int = -1
    recent: list[list[int]] = field(default_factory=list)


@dataclass
class ModelProducer:
    answers: deque[Append] = field(default_factory=lambda: deque(maxlen=16))
    seen: int = 0


class StoredId(NamedTuple):
    seq: int
    due: int
    until: int  # frame time: it is known before that


class Model:
    """State after a prefix of the log."""

    def __init__(self, watermark: Key) -> None:
        self.live: dict[Key, Msg] = {}
        self.gone: dict[Key, str] = {}  # CANCELLED, MOVED, RELEASED, or the last two
        self.queue: list[Queued] = []
        self.start = 0  # queue offset: messages below it are kept no longer
        self.watermark = watermark
        self.next_seq = 0
        self.wall = 0
        self.producers: dict[int, ModelProducer] = {}
        self.ids: dict[bytes, StoredId] = {}
        self.schedules: dict[str, ModelSchedule] = {}
        self.groups: dict[str, ModelGroup] = {}
        self.epoch = 0

    def known_ids(self, time: int) -> dict[bytes, StoredId]:
        """Those that are known at this frame time."""
        return {one: stored for one, stored in self.ids.items() if time < stored.until}

    def release(self, due: int, seq: int, msg: Msg) -> None:
        self.queue.append(Queued(due, seq, msg))
        self.gone[due, seq] = "RELEASED"

    def arrive(self, rows: list[tuple[int, int, Msg]], wall: int) -> None:
        for due, seq, msg in rows:
            before = self.gone.pop((due, seq), None)
            if due <= wall or (due, seq) <= self.watermark:
                self.release(due, seq, msg)
                if before == "MOVED":
                    # moved away, back to the same due when that was past, and so released at once: both are true
                    self.gone[due, seq] = "MOVED, RELEASED"
            else:
                self.live[due, seq] = msg

    def apply(self, event: Event) -> None:
        match event:
            case Epoch(epoch):
                self.epoch = epoch
            case Append():
                self.wall = max(self.wall, event.wall)
                seqs = range(event.first_seq, event.first_seq + len(event.dues))
                self.arrive(list(zip(event.dues, seqs, event.messages, strict=True)), event.wall)
                self.next_seq = event.first_seq + len(event.dues)
                until = (event.time // HOUR_MS + 1) * HOUR_MS + DAY_MS
                stored = zip(event.ids, seqs, event.dues, strict=False)
                self.ids |= {one: StoredId(seq, due, until) for one, seq, due in stored}
                if event.producer:
                    if event.number == 0:
                        self.producers[event.producer] = ModelProducer()
                    producer = self.producers[event.producer]
                    producer.answers.append(event)
                    producer.seen = event.wall
            case Scheduled() if event.definition is None:
                del self.schedules[event.id]
            case Scheduled():
                one = self.schedules.setdefault(event.id, ModelSchedule(event.number, event.wall))
                one.definition, one.nominal, one.due = event.definition, event.nominal, event.due
                one.version, one.changed_ms = one.version + 1, event.wall
            case Fire():
                self.fire(event)
            case Tick(mark):
                for key in sorted(key for key in self.live if key <= mark):
                    self.release(*key, self.live.pop(key))
                self.watermark = mark
            case Cancel(keys):
                for key in keys:
                    del self.live[key]
                    self.gone[key] = "CANCELLED"
            case Reschedule(moves, wall):
                self.wall = max(self.wall, wall)
                rows = [(due, key[1], self.live.pop(key)) for key, due in moves]
                for key, _ in moves:
                    self.gone[key] = "MOVED"
                self.arrive(sorted(rows), wall)
            case GroupMade(name, start, tags):
                self.groups[name] = ModelGroup(start, tags)
            case GroupGone(name):
                del self.groups[name]
            case Trim(start):
                self.start = start
                for group in self.groups.values():
                    group.forget_below(start)
            case Relocate():
                pass
            case _:
                self.progress(event)

    def fire(self, event: Fire) -> None:
        due = dict(zip(range(len(event.dues)), event.dues, strict=True))
        fired = 0
        for id_, time, nominal, next_due, flags, missed in event.rows:
            one = self.schedules[id_]
            one.nominal, one.due, one.missed = nominal, next_due, one.missed + missed
            if not flags & (2 | 4):
                one.last = time
            if flags & 1:
                one.fired, one.queue_offset = one.fired + 1, len(self.queue) + fired
                one.recent.insert(0, [one.fired, time, due[fired], event.wall, flags])
                fired += 1
            if flags & 8:
                one.skipped += 1
                one.recent.insert(0, [0, time, time, event.wall, flags])
            del one.recent[10:]
        self.apply(Append(0, 0, event.first_seq, event.dues, event.messages, event.wall))

    def progress(self, event: Ack | Retry | Dead | Redrive | Drop) -> None:
        group = self.groups[event.name]
        match event:
            case Ack(_, offsets):
                group.done |= offsets
                for offset in offsets:
                    group.open.pop(offset, None)
                    group.redriven.pop(offset, None)
            case Retry(_, rows):
                for offset, attempt, visible in rows:
                    where = group.redriven if offset in group.redriven else group.open
                    where[offset] = Open(attempt + 1, visible)
            case Dead(_, dead, wall, reason):
                for offset, attempts in dead:
                    group.reasons[offset] = reason
                    group.since[offset] = wall
                    group.redriven.pop(offset, None)
                    group.open.pop(offset, None)
                    group.done.add(offset)
                    group.dead[offset] = attempts
            case Redrive(_, offsets, wall):
                for offset in offsets:
                    group.since[offset] = wall
                    del group.dead[offset]
                    group.redriven[offset] = Open()
            case Drop(_, offsets):
                for offset in offsets:
                    del (group.dead if offset in group.dead else group.redriven)[offset]

    # ------------------------------------------------------------ what the group would hand out
    def floor(self, name: str, visible: int) -> int:
        group = self.groups[name]
        for offset in range(group.start, visible):
            if group.takes(self.queue[offset]) and offset not in group.done:
                return offset
        return max(group.start, visible)

    def ready(self, name: str, now: int, visible: int, max_unacked: int) -> dict[int, Open]:
        """Offset -> state of what a Receive may get now; `visible` is the queue's committed end."""
        group = self.groups[name]
        low = self.floor(name, visible)
        found = {
            offset: state
            for offset in range(low, min(visible, low + max_unacked))
            if group.takes(self.queue[offset]) and offset not in group.done
            for state in [group.open.get(offset, Open())]
            if state.until is None and state.visible <= now
        }
        found |= {o: s for o, s in group.redriven.items() if s.until is None and s.visible <= now}
        return found
