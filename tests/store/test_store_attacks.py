"""The attacks on log, timer and checkpoint that an earlier wording of the design failed, one by one (B3 to B10)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from delayapi.units import DAY_MS, HOUR_MS, MINUTE_MS
from delaynode.store.errors import Damaged
from delaynode.store.log.frames import Frame, FrameKind, Tick
from delaynode.store.log.incoming_batch import IncomingBatch
from delaynode.store.lookup import ALREADY_CANCELLED, CANCELLED, MOVED_NOW, RESCHEDULED, TOO_LATE
from delaynode.store.maintenance import persist
from delaynode.store.timer.timer_log import UNIT_BYTES

from tests.store.support.consuming import World, tag_of
from tests.store.support.producing import Item
from tests.store.support.world import ROOT, SMALL

RED = tag_of("red")


def cut_to_what_is_committed(world: World) -> None:
    """Cut the log as a rejoin does: where the new master's log ended, here at the last committed frame."""
    end = world.shard.committed_offset
    if world.batch is not None:
        world.finish_write()
    for path in sorted(world.disk.files):
        if path.startswith(f"{ROOT}/log/"):
            base = int(path.rsplit("/", 1)[1])
            if base >= end:
                world.disk.remove(path)
            else:
                world.disk.truncate(path, min(end - base, world.disk.size(path)))
    world.disk.kill()
    world._recover(end)


# ---------------------------------------------------------------- B3, B4: what is not committed
def test_b3_a_cut_undoes_every_effect_of_an_uncommitted_tail() -> None:
    world = World(1, SMALL)
    world.join("g")
    world.enqueue([Item(0), Item(0), Item(1000), Item(5 * MINUTE_MS), Item(30 * HOUR_MS)])
    world.settle()
    world.deliver("g", 2)
    world.checkpoint()
    live = sorted(world.model.live)
    files = {path: bytes(f.data) for path, f in world.disk.files.items() if "/log/" not in path}

    world.enqueue([Item(0), Item(2000), Item(50 * HOUR_MS)], producer=7)
    world.cancel(live[1])
    world.reschedule(live[2], Item(0))
    world.ack("g", [(0, 1)])
    world.nack("g", [(1, 1)], 0)
    world.join("other")
    world.advance(1000)
    while world.tick() >= 0:
        pass
    world.begin_write()
    world.run_write()  # written, even synced, but never committed

    assert {path: bytes(f.data) for path, f in world.disk.files.items() if "/log/" not in path} == files
    cut_to_what_is_committed(world)  # compares everything with the model at the cut
    assert sorted(world.model.live) == live
    assert sorted(world.model.groups) == ["g"]
    assert world.deliver("g", 5) == [0, 1]
    world.settle()
    assert world.enqueue([Item(0)], producer=7) == 5


def test_b3_a_checkpoint_holds_only_committed_frames() -> None:
    """One that was begun before its frames were committed is not run; if the tail is cut it never existed."""
    world = World(1, SMALL)
    world.enqueue([Item(0), Item(5 * MINUTE_MS)])
    world.begin_checkpoint()
    world.run_checkpoint()
    assert "checkpoint" not in world.ran
    cut_to_what_is_committed(world)
    assert world.model.next_seq == 0


def test_b4_a_retrys_answer_waits_for_the_first_ones_frame() -> None:
    world = World(1, SMALL)
    first = world.enqueue([Item(5 * MINUTE_MS)], producer=9)
    assert first == 0
    zeros = np.zeros(1, np.uint32)
    retry = IncomingBatch(np.array([world.now + 5]), np.empty(0, np.uint8), zeros + 1, zeros, zeros, b"x", 9, 0)
    answer = world.shard.enqueue(retry, world.now)
    assert answer.duplicate
    assert answer.log_end == world.shard.log_end > world.shard.committed_offset  # so it must not leave yet
    cut_to_what_is_committed(world)
    assert world.enqueue([Item(5 * MINUTE_MS)], producer=9) == 0  # not a duplicate: stored, once
    assert len(world.model.live) == 1


def test_b4_an_outcome_that_rests_on_an_uncommitted_cancel_is_undone_with_it() -> None:
    world = World(1, SMALL)
    world.enqueue([Item(5 * MINUTE_MS)])
    world.pump()
    (key,) = world.model.live
    assert world.cancel(key) == [CANCELLED]
    assert world.cancel(key) == [ALREADY_CANCELLED]
    assert world.shard.log_end > world.shard.committed_offset
    cut_to_what_is_committed(world)
    assert world.cancel(key) == [CANCELLED]


# ---------------------------------------------------------------- B7: the watermark is a pair
def test_b7_a_herd_released_in_parts_survives_a_crash_between_any_two() -> None:
    world = World(1, replace(SMALL, max_tick=7))
    for _ in range(8):
        world.enqueue([Item(1000)] * 10)
    world.pump()
    world.advance(1000)
    world.begin_load()
    world.run_load()
    world.finish_load()
    turn = 0
    while world.model.live:
        world.tick()
        turn += 1
        (world.pump, world.power_cut, world.kill, world.checkpoint)[turn % 4]()
        world.begin_load()
        world.run_load()
        world.finish_load()
        assert turn < 200
    assert [q.seq for q in world.model.queue] == list(range(80))


def test_b7_cancel_and_late_arrival_within_a_part_released_millisecond() -> None:
    world = World(1, replace(SMALL, max_tick=4))
    world.enqueue([Item(1000)] * 10)
    world.settle()
    world.advance(1000)
    due = world.now
    assert world.tick() == 4
    assert world.shard.index.watermark == (due, 3)
    assert world.cancel((due, 3), (due, 4)) == [TOO_LATE, CANCELLED]
    assert world.reschedule((due, 5), Item(0)) == MOVED_NOW  # due: released at once
    world.enqueue([Item(0)])
    world.settle()
    assert sorted(q.seq for q in world.model.queue) == [0, 1, 2, 3, 5, 6, 7, 8, 9, 10]


def test_b7_after_three_days_each_tick_is_bounded_and_stays_within_what_is_loaded() -> None:
    world = World(1, replace(SMALL, max_tick=5, window_budget=8))
    for hour in range(72):
        world.enqueue([Item(hour * HOUR_MS + 1, size=1)] * 3)
    world.stop()
    world.advance(3 * DAY_MS)
    for _ in range(2000):
        assert world.tick() <= 5
        assert len(world.shard.index.window) <= 30
        for step in (
            world.pump, world.begin_cascade, world.run_cascade, world.finish_cascade, world.begin_load, world.run_load,
            world.finish_load,
        ):  # fmt: skip
            step()
        if not world.model.live:
            break
    assert len(world.model.queue) == 216


@pytest.mark.parametrize(("released", "queue_end"), [(0, 3), (1, 3), (2, 2), (2, 4)])
def test_b7_a_copy_whose_queue_end_differs_from_the_ticks_stops(released: int, queue_end: int) -> None:
    world = World(1, SMALL)
    world.enqueue([Item(0), Item(1000), Item(1000)])
    world.pump()
    payload = b"".join(Tick(world.now + 1000, 2**63 - 1, released, queue_end).payload())
    frame = Frame(FrameKind.TICK, 0, 1, 2, 0, world.now + 1000, world.shard.log_end, 0, memoryview(payload))
    with pytest.raises(Damaged):
        world.shard.apply(frame)


def test_b7_a_watermark_never_goes_back() -> None:
    world = World(1, SMALL)
    payload = b"".join(Tick(world.now - 1, 0, 0, 0).payload())
    with pytest.raises(Damaged):
        world.shard.apply(Frame(FrameKind.TICK, 0, 1, 0, 0, world.now, world.shard.log_end, 0, memoryview(payload)))


# ---------------------------------------------------------------- B8: the order within a slot
@pytest.mark.parametrize("first", [1000, 10 * MINUTE_MS, 25 * HOUR_MS, 5 * DAY_MS])
@pytest.mark.parametrize("second", [2000, 10 * MINUTE_MS + 1, 26 * HOUR_MS, 6 * DAY_MS])
@pytest.mark.parametrize("flushes", range(8))
def test_b8_there_and_back_again_is_released_once(first: int, second: int, flushes: int) -> None:
    """D1 -> D2 -> D1, with a flush (or none) after each step."""
    world = World(1, SMALL)
    home = world.now + first
    world.enqueue([Item(first)])
    if flushes & 1:
        world.checkpoint()
    assert world.reschedule((home, 0), Item(second)) == MOVED_NOW
    if flushes & 2:
        world.checkpoint()
    assert world.reschedule((world.now + second, 0), Item(first)) == MOVED_NOW
    assert world.cancel((world.now + second, 0)) == [RESCHEDULED]
    if flushes & 4:
        world.stop()
    world.check_wheel()
    world.now = home - 1
    world.settle()
    assert not world.model.queue
    world.advance(1)
    world.settle()
    assert len(world.model.queue) == 1
    world.now = max(world.now, world.born + second)
    world.settle()
    assert len(world.model.queue) == 1


def test_b8_a_unit_that_is_in_chain_window_and_arrivals_is_one_message() -> None:
    world = World(1, replace(SMALL, window_budget=4))
    world.enqueue([Item(5 * MINUTE_MS)] * 6)
    world.checkpoint()  # in the chain
    world.enqueue([Item(5 * MINUTE_MS)] * 6)  # in the arrivals
    world.advance(4 * MINUTE_MS)
    for _ in range(3):  # the slot is loaded a part at a time, and flushed while it is
        world.begin_load()
        world.enqueue([Item(MINUTE_MS)])
        world.run_load()
        world.begin_checkpoint()
        world.finish_load()
        world.pump()
        world.run_checkpoint()
        world.finish_checkpoint()
    world.advance(MINUTE_MS)
    world.settle()
    assert len(world.model.queue) == 15


def test_b8_a_message_named_twice_in_one_request_is_changed_once() -> None:
    world = World(1, SMALL)
    world.enqueue([Item(5 * MINUTE_MS), Item(26 * HOUR_MS)])
    world.checkpoint()
    near, far = sorted(world.model.live)
    assert world.cancel(far, near, far) == [CANCELLED, CANCELLED, ALREADY_CANCELLED]
    assert (world.shard.index.pending, world.shard.index.pending_bytes) == (0, 0)


# ---------------------------------------------------------------- B9: laps
def test_b9_nothing_is_lost_when_a_due_maps_onto_a_slot_that_is_not_yet_released() -> None:
    """Down for longer than the wheel's margin: new messages are accepted once their slots are free, not before."""
    world = World(1, replace(SMALL, horizon_ms=DAY_MS, max_tick=2))
    for hour in range(24):
        world.enqueue([Item(hour * HOUR_MS + 5)] * 3)
    world.stop()
    world.advance(9 * DAY_MS)
    accepted = 0
    for _ in range(3000):
        if world.enqueue([Item(hour * HOUR_MS + 7) for hour in range(24)]) is not None:
            accepted += 1
        for step in (
            world.tick, world.pump, world.begin_cascade, world.run_cascade, world.finish_cascade, world.begin_load,
            world.run_load, world.finish_load,
        ):  # fmt: skip
            step()
        if accepted == 2:
            break
    assert accepted == 2
    world.stop()
    world.advance(DAY_MS)
    world.settle()
    assert len(world.model.queue) == 72 + 48


# ---------------------------------------------------------------- B10: the checkpoint
def test_b10_a_checkpoint_alone_brings_everything_back() -> None:
    world = World(1, SMALL)
    world.join("g", ("red",))
    world.enqueue([Item(0, tag=RED)] * 4, producer=3)
    world.enqueue([Item(5 * MINUTE_MS), Item(3 * DAY_MS), Item(4 * DAY_MS)], producer=3, number=1)
    world.pump()
    world.deliver("g", 3)
    world.nack("g", [(0, 1), (1, 1)], 60_000)
    world.pump()
    world.kill()
    for attempt in (1, 2):
        world.nack("g", [(2, attempt)], 0)
    cancelled, moved = sorted(world.model.live)[1:]
    world.cancel(cancelled)
    world.reschedule(moved, Item(2 * DAY_MS))
    world.pump()
    world.checkpoint()
    world.disk.kill()
    shard, recovery = persist.recover(world.disk, ROOT, SMALL)
    assert recovery.frames == 0
    assert [epoch for epoch, _ in shard.epochs] == [1, 2]
    assert shard.epochs == world.shard.epochs
    world.kill()
    assert world.model.groups["g"].dead == {2: 2}
    assert world.deliver("g", 4) == [3]
    assert world.enqueue([Item(0)], producer=3, number=1) == 4  # the first answer
    assert world.cancel(cancelled, moved) == [ALREADY_CANCELLED, RESCHEDULED]
    world.advance(60_000)
    assert world.deliver("g", 4) == [0, 1]
    world.check_groups()


def test_b10_files_are_on_disk_before_a_checkpoint_names_their_ends() -> None:
    world = World(1, SMALL)
    world.join("g")
    world.enqueue([Item(0), Item(5 * MINUTE_MS), Item(3 * DAY_MS)])
    world.pump()
    named = 0
    replace_file = world.disk.replace

    def check(path: str, data: bytes) -> None:
        nonlocal named
        if path.endswith("/checkpoint"):
            named += 1
            unsynced = [p for p, f in world.disk.files.items() if f.synced < len(f.data) or not f.named]
            assert not unsynced
        replace_file(path, data)

    world.disk.replace = check  # type: ignore[method-assign]
    world.checkpoint()
    assert named == 1


def test_b10_with_async_durability_a_checkpoint_syncs_the_log_that_it_names() -> None:
    world = World(2, SMALL, fsync=False)
    world.enqueue([Item(0), Item(5 * MINUTE_MS)])
    batch = world.shard.next_batch(sync=False)
    assert batch is not None
    batch.run()
    world.shard.finish_writes(batch)
    world.commit()
    world.checkpoint()
    end = world.shard.log_end
    world.disk.crash()
    world._recover(end)
    assert world.model.next_seq == 2


def test_b10_a_wrong_unit_in_the_timer_log_is_noticed_and_never_silently_lost() -> None:
    world = World(1, SMALL)
    world.enqueue([Item(5 * MINUTE_MS)] * 3)
    world.checkpoint()
    path, log = f"{ROOT}/timerlog/{0:020d}", f"{ROOT}/log/{0:020d}"
    good = bytes(world.disk.files[path].data)
    for byte in range(0, len(good), 3):
        disk = world.disk.copy()
        disk.flip(path, 8 * byte)
        disk.flip(path, 8 * byte + 1)
        whole = disk.copy()
        disk.flip(log, 8 * 200)  # nothing is left to make it again from
        with pytest.raises(Damaged):
            persist.recover(disk, ROOT, SMALL)
        if byte >= UNIT_BYTES:  # its header says which frames it is from
            assert persist.recover(whole, ROOT, SMALL)[1].repaired == [0]
            assert whole.files[path].data == good
