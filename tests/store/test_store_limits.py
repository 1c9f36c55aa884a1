"""The edges of time and size: laps, clocks that jump, herds, shards that were down for days."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from delayapi.units import DAY_MS, HOUR_MS, MINUTE_MS
from delaynode.store import formats
from delaynode.store.errors import Damaged, Refused
from delaynode.store.log.frames import SINCE_FORMAT, Frame, FrameKind, Tick
from delaynode.store.log.incoming_batch import IncomingBatch
from delaynode.store.lookup import ALREADY_CANCELLED, CANCELLED, RESCHEDULED, TOO_LATE
from delaynode.store.queue.consume_queue import ReleasedRows
from delaynode.store.shard import MAX_AHEAD_MS
from delaynode.store.types import MAX_SEQ

from tests.store.support.consuming import World
from tests.store.support.producing import Item
from tests.store.support.world import SMALL


def refused(world: World, dues: list[int]) -> str:
    n = len(dues)
    zeros = np.zeros(n, np.uint32)
    batch = IncomingBatch(np.array(dues), np.empty(0, np.uint8), zeros + 1, zeros, zeros, bytes(n))
    before = world.shard.log_end
    with pytest.raises(Refused) as caught:
        world.shard.enqueue(batch, world.now)
    assert world.shard.log_end == before
    return caught.value.reason


def test_a_due_beyond_the_horizon_or_the_topics_limit_is_refused_with_its_whole_batch() -> None:
    world = World(1, SMALL)
    assert refused(world, [world.now + 5, world.now + 40 * DAY_MS + 1]) == "DELAY_TOO_LONG"
    assert world.enqueue([Item(40 * DAY_MS), Item(40 * DAY_MS, relative=True)]) == 0
    world = World(1, replace(SMALL, max_delay_ms=1000))
    assert refused(world, [world.now + 1001]) == "DELAY_TOO_LONG"
    assert world.enqueue([Item(1000), Item(1000, relative=True), Item(-5000)]) == 0


def test_a_hundred_days_ahead_is_delivered_to_the_millisecond() -> None:
    world = World(1, replace(SMALL, horizon_ms=100 * DAY_MS))
    world.enqueue([Item(100 * DAY_MS), Item(100 * DAY_MS - 1)])
    world.stop()
    for expected, ahead in ((0, 2), (1, 1), (2, 0)):
        world.now = world.born + 100 * DAY_MS - ahead
        world.settle()
        assert len(world.model.queue) == expected


def test_ten_years_ahead_is_kept_listed_and_cancelled() -> None:
    world = World(1, replace(SMALL, horizon_ms=3650 * DAY_MS))
    world.enqueue([Item(3650 * DAY_MS), Item(3650 * DAY_MS - 1)])
    world.stop()
    world.advance(3 * DAY_MS)
    world.settle()
    last, first = sorted(world.model.live, reverse=True)
    world.begin_scan(first, (last[0] + 1, 0))
    world.run_scan()
    world.finish_scan()
    assert world.cancel(first, last) == [CANCELLED, CANCELLED]
    world.stop()
    assert world.cancel(first) == [ALREADY_CANCELLED]


def test_a_due_that_would_lap_an_unreleased_slot_is_refused_until_the_shard_has_caught_up() -> None:
    world = World(1, replace(SMALL, horizon_ms=DAY_MS))
    world.enqueue([Item(5 * MINUTE_MS), Item(23 * HOUR_MS)])
    world.stop()
    world.advance(8 * DAY_MS)  # down for longer than the wheel's margin of a week
    assert refused(world, [world.now + HOUR_MS, world.now + 20 * HOUR_MS]) == "WHEEL_BEHIND"
    assert world.enqueue([Item(0)]) == 2  # at once: needs no slot
    world.settle()
    assert len(world.model.queue) == 3
    assert world.enqueue([Item(HOUR_MS), Item(DAY_MS)]) == 3
    world.stop()
    world.advance(DAY_MS)
    world.settle()
    assert len(world.model.queue) == 5


def test_an_idle_shard_ticks_once_a_minute_so_that_its_wheel_never_falls_behind() -> None:
    world = World(1, replace(SMALL, horizon_ms=DAY_MS))
    world.settle()
    world.advance(MINUTE_MS - 1)
    assert world.tick() == -1
    world.advance(1)
    assert world.tick() == 0
    for _ in range(30):
        world.advance(DAY_MS)
        world.settle()
        assert world.enqueue([Item(DAY_MS)]) is not None


def stored(world: World, dues: list[int]) -> None:
    zeros = np.zeros(len(dues), np.uint32)
    world.shard.enqueue(
        IncomingBatch(np.array(dues), np.empty(0, np.uint8), zeros + 1, zeros, zeros, bytes(len(dues))), world.now
    )


def shown(released: list[ReleasedRows]) -> list[int]:
    return [due for one in released for due in one.rows["due"].tolist()]


def test_a_tick_ahead_releases_what_is_due_soon_and_it_is_seen_at_its_due() -> None:
    world = World(1, replace(SMALL, format=formats.NEWEST))
    world.settle()
    shard, now = world.shard, world.now
    stored(world, [now + 14, now + 15, now + 9])
    assert shard.tick(now, ahead_ms=5) == -1, "nothing is due so soon"
    assert shard.tick(now, ahead_ms=14) == 2
    assert [frame.kind for frame in shard.log.pending][-1:] == [FrameKind.TICK_AHEAD]
    stored(world, [now + 12, now])  # both are released on arrival: the watermark is at 14
    world.begin_write()
    world.run_write()
    world.finish_write()
    assert shard.commit(shard.log.synced, now + 8) == []
    assert shard.queue.committed == 4
    assert shown(shard.show(now + 9)) == [now + 9]
    assert shown(shard.show(now + 13)) == [], "nobody overtakes in a queue"
    assert shown(shard.show(now + 14)) == [now + 14, now + 12, now]
    assert shard.index.pending == 1


@pytest.mark.parametrize(("kind", "most_ms"), [(FrameKind.TICK, 0), (FrameKind.TICK_AHEAD, MAX_AHEAD_MS)])
def test_a_tick_that_is_further_ahead_than_its_kind_may_be_is_damage(kind: FrameKind, most_ms: int) -> None:
    world = World(1, SMALL)
    for ahead_ms in (most_ms + 1, most_ms):
        payload = b"".join(Tick(world.now + ahead_ms, MAX_SEQ, 0, 0).payload())
        frame = Frame(kind, 0, 1, 0, 0, world.now, world.shard.log_end, 0, memoryview(payload))
        if ahead_ms > most_ms:
            with pytest.raises(Damaged, match="is after its own time"):
                world.shard.apply(frame)
        else:
            world.shard.apply(frame)


def test_no_tick_is_ahead_before_all_nodes_can_read_it() -> None:
    shard = World(1, replace(SMALL, format=SINCE_FORMAT[FrameKind.TICK_AHEAD] - 1)).shard
    assert shard.max_ahead_ms == 0
    shard.raise_format(SINCE_FORMAT[FrameKind.TICK_AHEAD])
    assert shard.max_ahead_ms == MAX_AHEAD_MS


def test_a_clock_behind_the_watermark_stores_nothing_that_would_be_released_early() -> None:
    world = World(1, SMALL)
    world.enqueue([Item(1000)])
    world.advance(1000)
    world.settle()
    watermark = world.shard.index.watermark.due
    world.advance(-500)
    assert refused(world, [world.now + 300]) == "CLOCK_BEHIND"
    assert refused(world, [world.now, watermark]) == "CLOCK_BEHIND"
    assert world.enqueue([Item(0), Item(501)]) == 1  # due now: at once; due after the watermark: indexed
    assert [q.seq for q in world.model.queue] == [0, 1]
    key = min(world.model.live)
    assert world.reschedule(key, Item(200)) is None  # refused as well
    assert world.tick() == -1  # the watermark waits for the clock
    world.advance(501)
    world.settle()
    assert not world.model.live


@pytest.mark.parametrize("budget", [1, 3, 8, 1000])
@pytest.mark.parametrize("max_tick", [1, 5, 1000])
def test_a_herd_larger_than_the_budget_is_released_once_and_in_order(budget: int, max_tick: int) -> None:
    world = World(1, replace(SMALL, window_budget=budget, max_tick=max_tick))
    for _ in range(6):
        world.enqueue([Item(5 * MINUTE_MS)] * 7 + [Item(5 * MINUTE_MS + 1)])
    world.stop()  # from the TimerLog, not from arrivals
    world.advance(5 * MINUTE_MS)
    world.settle()
    assert [q.seq for q in world.model.queue] == [s for s in range(48) if s % 8 != 7]
    world.advance(1)
    world.settle()
    assert len(world.model.queue) == 48


@pytest.mark.parametrize("budget", [1, 4, 9])
def test_p5_arrivals_do_not_fill_the_window_beyond_its_budget_and_nothing_of_them_is_lost(budget: int) -> None:
    world = World(1, replace(SMALL, window_budget=budget))
    load(world)
    soon = world.shard.index.window.bound.due - world.now - 1
    for at in range(30):
        world.enqueue([Item(soon - at % 3)])
        assert len(world.shard.index.window) <= budget
    world.advance(soon)
    world.settle()
    assert [q.due - world.now for q in world.model.queue] == [-2] * 10 + [-1] * 10 + [0] * 10


def test_p5_what_was_loaded_beyond_a_gap_is_not_taken_for_all_there_is() -> None:
    """The window sheds its far end while the part behind that is being read."""
    world = World(1, replace(SMALL, window_budget=8))
    load(world)
    world.enqueue([Item(5 * MINUTE_MS)] * 3)
    index = world.shard.index
    world.loading = index.begin_load(index.window.bound.due + 5 * MINUTE_MS, 8)
    assert world.loading is not None
    soon = index.window.bound.due - world.now - 1
    world.enqueue([Item(soon)] * 20)
    world.run_load()
    bound = index.window.bound
    assert bound < world.loading.low
    world.finish_load()
    assert index.window.bound == bound
    world.advance(5 * MINUTE_MS)
    world.settle()
    assert not world.model.live


def load(world: World) -> None:
    world.begin_load()
    world.run_load()
    world.finish_load()


def test_a_herd_can_be_cancelled_and_joined_while_it_is_released() -> None:
    world = World(1, replace(SMALL, window_budget=4, max_tick=3))
    world.enqueue([Item(5 * MINUTE_MS)] * 20)
    world.stop()
    world.advance(5 * MINUTE_MS)
    due = world.now
    for begin, run, finish in [(world.begin_load, world.run_load, world.finish_load)] * 2:
        begin()
        run()
        finish()
    assert world.tick() == 3
    assert world.cancel((due, 2), (due, 3), (due, 19)) == [TOO_LATE, CANCELLED, CANCELLED]
    world.enqueue([Item(0)])
    world.pump()
    world.power_cut()
    assert world.cancel((due, 3), (due, 18)) == [ALREADY_CANCELLED, CANCELLED]
    world.settle()
    assert not world.model.live


@pytest.mark.parametrize("days", [3, 30])
@pytest.mark.parametrize("end", ["stop", "power_cut"])
def test_a_shard_that_was_down_for_days_releases_all_that_came_due_in_order(days: int, end: str) -> None:
    world = World(1, SMALL)
    delays = [1, MINUTE_MS, HOUR_MS, 20 * HOUR_MS, 26 * HOUR_MS, 49 * HOUR_MS, 71 * HOUR_MS, 6 * DAY_MS, 29 * DAY_MS]
    for delay in delays:
        world.enqueue([Item(delay)] * 6 + [Item(delay + 1)])
    world.settle()
    world.pump()
    getattr(world, end)()
    world.advance(days * DAY_MS)
    world.settle()
    assert len(world.model.queue) == 7 * sum(delay < days * DAY_MS for delay in delays)
    order = [(q.due, q.seq) for q in world.model.queue]
    assert order == sorted(order)
    world.advance(40 * DAY_MS)
    world.settle()
    assert len(world.model.queue) == 7 * len(delays)


def test_a_cancelled_message_answers_so_until_long_after_its_due() -> None:
    world = World(1, SMALL)
    world.enqueue([Item(30 * HOUR_MS)])
    (key,) = world.model.live
    world.checkpoint()
    assert world.cancel(key) == [CANCELLED]
    for _ in range(12):
        assert world.cancel(key) == [ALREADY_CANCELLED]
        world.advance(4 * HOUR_MS)  # the hour comes down, the due passes
        world.settle()
        world.stop()


def test_there_and_back_again_and_then_released_is_too_late_not_moved() -> None:
    for flushed in (False, True):
        world = World(1, SMALL)
        world.enqueue([Item(1000)])
        (key,) = world.model.live
        if flushed:
            world.checkpoint()
        world.reschedule(key, Item(2000))
        if flushed:
            world.checkpoint()
        world.reschedule((world.now + 2000, 0), Item(1000))
        assert world.cancel((world.now + 2000, 0)) == [RESCHEDULED]
        world.advance(1000)
        world.settle()
        assert world.cancel(key) == [TOO_LATE]
        world.stop()
        assert world.cancel(key) == [TOO_LATE]


def test_two_jobs_that_captured_the_same_end_each_their_own() -> None:
    world = World(1, SMALL)
    world.enqueue([Item(5 * MINUTE_MS)])
    world.checkpoint()
    (key,) = world.model.live
    world.begin_lookup([key])
    world.begin_lookup([key])
    world.run_lookup(1)
    assert world.finish_cancel() == [CANCELLED]  # ends the second; the first must still be told
    world.run_lookup(0)
    assert world.finish_cancel() == [ALREADY_CANCELLED]


def test_a_lookup_is_told_of_what_happens_while_it_runs() -> None:
    """One message in the window, one not; both are cancelled by another request and passed by the watermark."""
    world = World(1, SMALL)
    world.enqueue([Item(10), Item(20), Item(10 * MINUTE_MS)])
    world.checkpoint()
    world.settle()
    near, also, far = sorted(world.model.live)
    assert world.cancel(also) == [CANCELLED]
    world.begin_lookup([near, also, far])
    world.run_lookup()
    assert world.cancel(near, far) == [CANCELLED, CANCELLED]
    world.advance(20 * MINUTE_MS)
    world.settle()
    assert world.finish_cancel() == [ALREADY_CANCELLED] * 3


def test_the_clock_going_back_does_not_make_a_released_message_unknown() -> None:
    world = World(1, SMALL)
    world.advance(2000)  # the watermark does not follow: nothing ticks
    world.enqueue([Item(-5)])
    (key,) = world.model.gone
    world.advance(-1000)
    assert world.cancel(key) == [TOO_LATE]


@pytest.mark.parametrize("due", [-(2**62), -1, 0, 2**62, 2**63 - 1])
def test_a_forged_due_finds_nothing(due: int) -> None:
    world = World(1, SMALL)
    world.enqueue([Item(5 * MINUTE_MS), Item(10 * DAY_MS)])
    world.cancel((due, 0), (due, 5), (due, -1), (due, 2**63 - 1))
    assert len(world.model.live) == 2
