"""One wrong frame stays on the copy that made it: what a master could not apply is in no log (C2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from delayapi.units import DAY_MS
from delaynode.store.errors import Damaged, Impossible, Unappliable
from delaynode.store.log.frames import FIRED, SINCE_FORMAT, Firings, FrameKind, ScheduleChange, Unsealed
from delaynode.store.log.incoming_batch import ID, IncomingBatch
from delaynode.store.lookup import Lookup
from delaynode.store.maintenance import persist
from delaynode.store.maintenance.evacuation import _as_units
from delaynode.store.shard import MAX_AHEAD_MS, Shard
from delaynode.store.types import Records

from tests.store.support.consuming import World
from tests.store.support.freeable import FREE
from tests.store.support.producing import Item
from tests.store.support.tidying import read_log
from tests.store.support.world import ROOT

Operation = Callable[[World], object]

ONE = np.zeros(1, np.uint32)


def prepared() -> World:
    """Messages of every state: pending, released, handed out, dead letters whose queue entries are trimmed.

    Queue offsets 0 and 1 are trimmed dead letters of group g; 2 to 6 are released and kept.
    """
    world = World(3, replace(FREE, max_attempts=1))
    world.join("g")
    world.enqueue([Item(5_000, size=50)] * 2)
    world.enqueue([Item(40_000 + k, size=50) for k in range(3)] + [Item(3 * DAY_MS, size=50)])
    world.pump()
    world.advance(5_000)
    world.settle()
    world.nack("g", [(offset, 1) for offset in world.deliver("g", 10)], 0)
    world.pump()
    world.trim()
    world.pump()
    world.enqueue([Item(0, size=50)] * 5)
    world.pump()
    world.checkpoint()
    assert world.shard.queue.start == 2
    assert len(world.shard.consumers.trimmed_dead_letters()) == 2
    return world


def pending_row(world: World) -> tuple[int, int]:
    return min(key for key in world.model.live if key[0] > world.now)


def look_up(world: World) -> Lookup:
    due, seq = pending_row(world)
    lookup = world.shard.begin_lookup(np.array([due]), np.array([seq]))
    assert lookup.job is None
    return lookup


def enqueue(world: World) -> object:
    batch = IncomingBatch(np.array([world.now + 50_000]), ONE.astype(np.uint8)[:0], ONE + 5, ONE, ONE, b"12345")
    return world.shard.enqueue(batch, world.now)


def enqueue_two(world: World) -> object:
    batch = IncomingBatch(np.array([world.now + 50_000]), ONE.astype(np.uint8)[:0], ONE + 5, ONE, ONE, b"12345")
    world.shard.raise_format(SINCE_FORMAT[FrameKind.APPEND_RUNS])
    return world.shard.append_runs([replace(batch, producer=7), batch], world.now)


def enqueue_with_id(world: World) -> object:
    batch = IncomingBatch(np.array([world.now + 50_000]), ONE.astype(np.uint8)[:0], ONE + 5, ONE, ONE, b"12345")
    world.shard.raise_format(SINCE_FORMAT[FrameKind.APPEND_IDS])
    return world.shard.enqueue(replace(batch, ids=np.frombuffer(bytes(range(16)), ID)), world.now)


def put_schedule(world: World) -> object:
    world.shard.raise_format(SINCE_FORMAT[FrameKind.SCHEDULE])
    return world.shard.change_schedule(ScheduleChange("s", True, b"def", world.now, world.now), world.now)


def fire(world: World) -> object:
    found = world.shard.schedules.find("s")
    assert found is not None
    time, one = np.array([found.nominal]), np.ones(1, np.uint32)
    firings = Firings(np.array([found.number]), time, time + 50, time + 50, one * FIRED, one * 0)
    message = IncomingBatch(time, ONE.astype(np.uint8)[:0], ONE + 5, ONE, ONE, b"12345")
    return world.shard.fire(firings, message, world.now)


def fire_again(world: World) -> object:
    found = world.shard.schedules.find("s")
    assert found is not None
    world.shard.raise_format(SINCE_FORMAT[FrameKind.FIRE_AGAIN])
    time, two = found.nominal + np.arange(2), np.ones(2, np.uint32)
    firings = Firings(np.full(2, found.number), time, time + 1, time + 1, two * FIRED, two * 0)
    messages = IncomingBatch(time * 0 + world.now, two.astype(np.uint8)[:0], two * 5, two, two, b"1234567890")
    return world.shard.fire(firings, messages, world.now)


def tick(world: World) -> object:
    return world.shard.tick(world.now + 60_000)


def tick_ahead(world: World) -> object:
    world.shard.raise_format(SINCE_FORMAT[FrameKind.TICK_AHEAD])
    return world.shard.tick(world.now + 60_000 - MAX_AHEAD_MS, ahead_ms=MAX_AHEAD_MS)


def cancel(world: World) -> object:
    return world.shard.cancel(look_up(world), world.now)


def reschedule(world: World) -> object:
    none = np.empty(0, np.uint8)
    return world.shard.reschedule(look_up(world), np.array([world.now + 90_000]), none, world.now)


def join(world: World) -> object:
    return world.shard.consumers.join("h", (), from_end=False, now_ms=world.now)


def delete(world: World) -> object:
    return world.shard.consumers.delete("g", world.now)


def flush(world: World) -> None:
    """Write and commit what waits, without the model's knowledge."""
    batch = world.shard.next_batch(sync=True)
    assert batch is not None
    batch.run()
    world.shard.finish_writes(batch)
    world.shard.commit(world.shard.log.synced)


def ack(world: World) -> object:
    return world.shard.consumers.acknowledge("g", np.array([2]), np.array([4]), world.now)


def nack(world: World) -> object:
    """The only attempt fails: DEAD."""
    delivery = world.shard.consumers.deliver("g", world.now, 1000, 1, 1 << 30)
    return world.shard.consumers.nack("g", delivery.offset, delivery.attempt, 0, world.now)


def nack_with_a_reason(world: World) -> object:
    world.shard.raise_format(SINCE_FORMAT[FrameKind.DEAD_REASON])
    delivery = world.shard.consumers.deliver("g", world.now, 1000, 1, 1 << 30)
    return world.shard.consumers.nack("g", delivery.offset, delivery.attempt, 0, world.now, reason="status 503")


def drop(world: World) -> object:
    return world.shard.consumers.resolve("g", None, redrive=False, now_ms=world.now)


def redrive(world: World) -> object:
    return world.shard.consumers.resolve("g", None, redrive=True, now_ms=world.now)


def ack_redriven(world: World) -> object:
    return world.shard.consumers.acknowledge("g", np.array([0]), np.array([2]), world.now)


def letters(world: World) -> tuple[Records, bytes]:
    """The trimmed dead letters as units, and their records."""
    rows = _as_units(world.shard.consumers.trimmed_dead_letters())
    return rows, b"".join(world.shard.read_records(rows))


def relocate(world: World) -> object:
    return world.shard.space.relocate(*letters(world), world.now)


def trim(world: World) -> object:
    return world.shard.space.trim(world.now, world.shard.log_end, small=True)


def begin_term(world: World) -> object:
    return world.shard.begin_term(world.shard.epoch + 1, "n1", world.now)


def begin_segment(world: World) -> object:
    return world.shard.log.begin_segment()


BEFORE: dict[Operation, Operation] = {
    trim: ack, ack_redriven: redrive, begin_term: begin_segment, fire: put_schedule, fire_again: put_schedule,
}  # fmt: skip
"""A step that makes an operation possible."""


def ready_for(operation: Operation) -> World:
    world = prepared()
    if operation in BEFORE:
        BEFORE[operation](world)
        if world.shard.log.pending:
            flush(world)
    return world


class Fault(Exception):
    """A planted error of this program."""


def broken(*args: object, **kwargs: object) -> None:
    raise Fault


EFFECTS: dict[FrameKind, tuple[Operation, Callable[[Shard], object], str]] = {
    FrameKind.APPEND: (enqueue, lambda shard: shard.index, "_arrive"),
    FrameKind.APPEND_RUNS: (enqueue_two, lambda shard: shard.producers, "store"),
    FrameKind.APPEND_IDS: (enqueue_with_id, lambda shard: shard.message_ids, "add"),
    FrameKind.SCHEDULE: (put_schedule, lambda shard: shard.schedules, "apply"),
    FrameKind.FIRE: (fire, lambda shard: shard.schedules, "fire"),
    FrameKind.FIRE_AGAIN: (fire_again, lambda shard: shard.schedules, "fire"),
    FrameKind.TICK: (tick, lambda shard: shard.space, "on_release"),
    FrameKind.TICK_AHEAD: (tick_ahead, lambda shard: shard.space, "on_release"),
    FrameKind.CANCEL: (cancel, lambda shard: shard.index, "delete"),
    FrameKind.RESCHEDULE: (reschedule, lambda shard: shard.index, "reinsert"),
    FrameKind.GROUP: (join, lambda shard: shard.consumers, "_add"),
    FrameKind.ACK: (ack, lambda shard: shard.consumers.groups["g"], "_advance_first_unacked"),
    FrameKind.RETRY: (redrive, lambda shard: shard.consumers.groups["g"].dead_letters, "redrive"),
    FrameKind.DEAD: (nack, lambda shard: shard.consumers.groups["g"].dead_letters, "add"),
    FrameKind.DEAD_REASON: (nack_with_a_reason, lambda shard: shard.consumers.groups["g"].dead_letters, "add"),
    FrameKind.RELOCATE: (relocate, lambda shard: shard.consumers, "relocate"),
    FrameKind.TRIM: (trim, lambda shard: shard.consumers, "forget_below"),
    FrameKind.EPOCH: (begin_term, lambda shard: shard.space.ledger, "open"),
}
"""For each kind: an operation that proposes it, and a part of its effect that is made to fail."""


@pytest.mark.parametrize("kind", FrameKind, ids=lambda kind: kind.name)
def test_a_frame_whose_effect_failed_on_its_master_is_never_written(
    kind: FrameKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed among the log's pending frames and went out with the next batch, to the disk and to every slave."""
    operation, owner, part = EFFECTS[kind]
    world = ready_for(operation)
    told: list[str] = []
    world.shard.on_failed = lambda why, error: told.append(why)
    with monkeypatch.context() as patch:
        patch.setattr(owner(world.shard), part, broken)
        with pytest.raises(Fault):
            operation(world)
    assert kind not in [frame.kind for frame in world.shard.log.pending if isinstance(frame, Unsealed)]
    assert world.shard.next_batch(sync=True) is None
    assert told == [world.shard.damaged]
    assert kind.name in told[0]
    frames = [(frame.offset, frame.kind) for frame in read_log(world)]
    world.disk.kill()
    shard, recovery = persist.recover(world.disk, ROOT, world.config)
    assert not recovery.dropped_bytes
    assert [(frame.offset, frame.kind) for frame in read_log(world)] == frames
    assert shard.applied == shard.log.end


@pytest.mark.parametrize(
    "operation", [cancel, delete, drop, ack_redriven, relocate, trim], ids=lambda one: one.__name__
)
def test_what_the_ledger_can_not_count_off_is_refused_and_changes_nothing(operation: Operation) -> None:
    """The ledger of this copy is wrong. A frame that is proposed all the same damages every copy that applies it."""
    world = ready_for(operation)
    ledger = world.shard.space.ledger
    held, before = ledger.segments["count"].copy(), world.shard.log_end
    ledger.segments["count"] = 0
    with pytest.raises(Impossible, match="more messages have gone than it held"):
        operation(world)
    assert world.shard.log_end == before
    assert world.shard.damaged is None
    assert not ledger.segments["count"].any()
    ledger.segments["count"] = held
    enqueue(world)  # the shard goes on
    flush(world)


def test_a_relocation_that_names_a_message_twice_is_refused_before_it_has_a_place_in_the_log() -> None:
    """C1's frame: counted off twice, the segment of another message that is needed is freed, or every copy damaged."""
    world = prepared()
    rows, records = letters(world)
    before = world.shard.log_end
    with pytest.raises(Impossible, match="twice"):
        world.shard.space.relocate(np.concatenate((rows, rows)), records * 2, world.now)
    assert world.shard.log_end == before
    world.check_ledger()


def test_a_frame_that_can_not_be_applied_is_named_by_the_recovery() -> None:
    """Whatever error its effect ends with: an operator, and `delaynode repair`, must learn which frame it is."""
    world = prepared()
    at = world.shard.log.propose(
        FrameKind.TRIM, world.shard.epoch, 1, 0, world.now, (np.array([2, 77], "<i8").tobytes(),)
    ).offset
    flush(world)
    world.disk.kill()
    with pytest.raises(Unappliable, match=rf"frame at {at}, TRIM of epoch 1: can't free .*\[77\]") as told:
        persist.recover(world.disk, ROOT, world.config)
    assert told.value.offset == at
    assert isinstance(told.value, Damaged)
