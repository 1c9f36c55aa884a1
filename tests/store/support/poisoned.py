"""Copies with a whole frame of each kind in their log that has no possible effect: what a faulty master would write."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from delayapi.units import DAY_MS
from delaynode.store.log.frames import (
    APPENDS,
    FIRED,
    FLAG_NEW_SEGMENT,
    NEVER,
    Cancel,
    Firings,
    FrameKind,
    GroupChange,
    GroupProgress,
    Relocate,
    Reschedule,
    ScheduleChange,
    Tick,
    Trim,
    append_ids_prefix,
    append_prefix,
    column_bytes,
)
from delaynode.store.log.incoming_batch import NO_IDS, BatchRun, IncomingBatch
from delaynode.store.types import Buffer

from tests.store.support.consuming import World
from tests.store.support.replicating import state_of
from tests.store.test_store_containment import ack, enqueue, flush, letters, pending_row, prepared, tick

Poison = Callable[[World], tuple[int, tuple[Buffer, ...]]]
"""A frame's count and payload."""

NONE = np.zeros(0, np.uint32)
FAR = 10**6  # a queue offset


def _progress(world: World) -> GroupProgress:
    at, none = np.array([FAR]), np.zeros(0, np.int64)
    return GroupProgress("g", at, at + 3, NONE, none)


def _with(progress: GroupProgress, *, visible: bool) -> tuple[int, tuple[Buffer, ...]]:
    attempt, at = np.ones(1, np.uint32), progress.start
    none = np.zeros(0, np.int64)
    return 1, GroupProgress("g", at, progress.end, attempt, at if visible else none).payload()


def _append(world: World) -> tuple[int, tuple[Buffer, ...]]:
    """An APPEND whose records are shorter than its sizes say."""
    columns = column_bytes(np.array([world.now + 3 * DAY_MS]), np.array([5], np.uint32), *[np.zeros(1, np.uint32)] * 2)
    return 1, (append_prefix([BatchRun(0, 0, 1)]), *columns, b"123")


def _append_runs(world: World) -> tuple[int, tuple[Buffer, ...]]:
    """An APPEND_RUNS whose runs have more messages than the frame."""
    columns = column_bytes(np.array([world.now + 3 * DAY_MS]), np.array([3], np.uint32), *[np.zeros(1, np.uint32)] * 2)
    return 1, (append_prefix([BatchRun(0, 0, 1)] * 2), *columns, b"123")


def _append_ids(world: World) -> tuple[int, tuple[Buffer, ...]]:
    """An APPEND_IDS with an id less than it has messages."""
    columns = column_bytes(np.array([world.now + 3 * DAY_MS]), np.array([3], np.uint32), *[np.zeros(1, np.uint32)] * 2)
    return 1, (append_ids_prefix(NO_IDS), *columns, b"123")


def _firings(*numbers: int) -> Firings:
    zeros, row = np.zeros(len(numbers), np.int64), np.ones(len(numbers), np.uint32)
    return Firings(np.array(numbers), zeros, zeros + NEVER, zeros + NEVER, row * FIRED, row * 0)


def _fire(world: World) -> tuple[int, tuple[Buffer, ...]]:
    """A FIRE of a schedule that was never put."""
    columns = column_bytes(np.array([world.now]), np.array([3], np.uint32), *[np.zeros(1, np.uint32)] * 2)
    return 1, (*_firings(7).payload(), *columns, b"123")


def _fire_again(world: World) -> tuple[int, tuple[Buffer, ...]]:
    """A FIRE_AGAIN of a schedule that was never put."""
    columns = column_bytes(np.full(2, world.now), np.full(2, 3, np.uint32), *[np.zeros(2, np.uint32)] * 2)
    return 2, (*_firings(7, 7).payload(), *columns, b"123456")


def _cancel(world: World) -> tuple[int, tuple[Buffer, ...]]:
    """A CANCEL of the last message that says its record lies where no segment is."""
    due, seq = max(world.model.live)
    return 1, Cancel(np.array([seq]), np.array([due]), np.array([-1]), np.array([50], np.uint32)).payload()


def _reschedule(world: World) -> tuple[int, tuple[Buffer, ...]]:
    """A RESCHEDULE whose columns are cut short."""
    due, seq = max(world.model.live)
    one = np.zeros(1, np.uint32)
    change = Reschedule(np.array([seq]), np.array([due]), np.array([due + 1]), np.array([0]), one, one, one, one)
    return 1, change.payload()[:-2]


def _relocate(world: World) -> tuple[int, tuple[Buffer, ...]]:
    """A RELOCATE that names the same dead letters again and again (audit C1)."""
    rows, records = letters(world)
    rows = np.tile(rows, 20)
    names = ("seq", "due", "offset", "size", "key", "tag")
    seq, due, offset, size, key, tag = (np.ascontiguousarray(rows[name]) for name in names)
    return len(rows), Relocate(seq, due, offset, size, key, tag, records * 20, 0).payload()


def _tick(world: World) -> tuple[int, tuple[Buffer, ...]]:
    """A TICK that moves the watermark back."""
    shard = world.shard
    return 0, Tick(shard.index.watermark.due - 5, 0, 0, shard.queue.end).payload()


POISONS: dict[FrameKind, Poison] = {
    FrameKind.APPEND: _append,
    FrameKind.APPEND_RUNS: _append_runs,
    FrameKind.APPEND_IDS: _append_ids,
    FrameKind.SCHEDULE: lambda world: (1, ScheduleChange("s", False).payload()),
    FrameKind.FIRE: _fire,
    FrameKind.FIRE_AGAIN: _fire_again,
    FrameKind.TICK: _tick,
    FrameKind.TICK_AHEAD: _tick,
    FrameKind.CANCEL: _cancel,
    FrameKind.RESCHEDULE: _reschedule,
    FrameKind.GROUP: lambda world: (1, GroupChange("h", True, FAR, ()).payload()),
    FrameKind.ACK: lambda world: (1, _progress(world).payload()),
    FrameKind.RETRY: lambda world: _with(_progress(world), visible=True),
    FrameKind.DEAD: lambda world: _with(_progress(world), visible=False),
    FrameKind.RELOCATE: _relocate,
    FrameKind.TRIM: lambda world: (1, Trim(world.shard.queue.start, np.array([77], np.int64)).payload()),
}
"""A poison for each kind but EPOCH: an EPOCH frame takes effect by being there, which can't be impossible."""


@dataclass(frozen=True, slots=True)
class Poisoned:
    """at: the frame's log offset. before, after: the state without it, and with all frames but this one."""

    world: World
    at: int
    before: dict[str, object]
    after: dict[str, object]


def forge(world: World, kind: FrameKind, count: int, payload: tuple[Buffer, ...]) -> int:
    """Put a frame into the log without applying it here; returns its log offset."""
    shard = world.shard
    frame = shard.log.propose(kind, shard.epoch, count, shard.next_seq, world.now, payload)
    if frame.flags & FLAG_NEW_SEGMENT:
        shard.space.ledger.open(frame.offset, world.now)
    if kind in APPENDS:
        shard.next_seq += count
    shard.applied = shard.log.end
    return frame.offset


def due_now(world: World, count: int) -> None:
    zeros, five = np.zeros(count, np.uint32), np.full(count, 5, np.uint32)
    times = np.full(count, world.now - 1)
    world.shard.enqueue(IncomingBatch(times, np.zeros(0, np.uint8), five, zeros, zeros, bytes(5 * count)), world.now)


def poisoned(kind: FrameKind) -> Poisoned:
    """A copy that has ended, with such a frame on its disk, and others behind it: messages, an ACK, a TICK."""
    world = prepared()
    due_now(world, 1)
    flush(world)
    before = copy.deepcopy(state_of(world.shard))
    at = forge(world, kind, *POISONS[kind](world))
    enqueue(world)
    ack(world)
    tick(world)
    flush(world)
    after = copy.deepcopy(state_of(world.shard))
    world.disk.kill()
    return Poisoned(world, at, before, after)


__all__ = ["POISONS", "Poisoned", "due_now", "flush", "forge", "pending_row", "poisoned", "prepared"]
