"""The attacks on producers, groups and clocks that an earlier wording of the design failed, one by one (B11 to B13)."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from delayapi.units import DAY_MS, MINUTE_MS
from delaynode.store.errors import Refused
from delaynode.store.maintenance import reclaim

from tests.store.support.consuming import World, tag_of
from tests.store.support.producing import Item
from tests.store.support.world import SMALL

RED = tag_of("red")


# ---------------------------------------------------------------- B11: producers
def test_b11_a_refused_batch_leaves_a_gap_that_the_next_one_may_not_jump() -> None:
    world = World(1, SMALL)
    for number in range(7):
        assert world.enqueue([Item(MINUTE_MS)], producer=5, number=number) == number
    assert world.enqueue([Item(41 * DAY_MS)], producer=5, number=7) is None  # DELAY_TOO_LONG
    assert world.enqueue([Item(MINUTE_MS)], producer=5, number=8) is None  # OUT_OF_ORDER, nothing stored
    assert world.enqueue([Item(MINUTE_MS)], producer=5, number=7) == 7  # the retry of 7 is stored, not "a duplicate"
    assert world.enqueue([Item(MINUTE_MS)], producer=5, number=8) == 8


def test_b11_the_last_sixteen_get_their_first_answer_again_also_after_crashes() -> None:
    world = World(1, SMALL)
    for number in range(20):
        world.enqueue([Item(MINUTE_MS)] * 2, producer=5, number=number)
        world.pump()
        if number % 7 == 3:
            world.checkpoint()
    world.power_cut()
    for number in range(4, 20):
        assert world.enqueue([Item(0)], producer=5, number=number) == 2 * number
    for number in (3, 21):
        assert world.enqueue([Item(0)], producer=5, number=number) is None
    assert world.model.next_seq == 40


def test_b11_an_unknown_producer_starts_at_nought_and_an_unseen_one_is_forgotten_after_a_day() -> None:
    world = World(1, SMALL)
    assert world.enqueue([Item(MINUTE_MS)], producer=5, number=1) is None  # UNKNOWN_PRODUCER
    assert world.enqueue([Item(MINUTE_MS)], producer=5) == 0
    world.idle(DAY_MS - 1)
    world.enqueue([Item(MINUTE_MS)])
    world.checkpoint()
    assert world.enqueue([Item(MINUTE_MS)], producer=5, number=1) == 2
    world.idle(DAY_MS)
    world.enqueue([Item(MINUTE_MS)])
    world.checkpoint()
    assert len(world.shard.producers) == 0
    with pytest.raises(Refused):
        world.shard.producers.check(5, 2, world.now)
    assert world.enqueue([Item(MINUTE_MS)], producer=5) == 4


def test_b11_a_producer_that_began_again_is_not_given_its_former_answers_after_a_crash() -> None:
    """Recovery starts from a checkpoint that still knows the numbers from before the expiry."""
    world = World(1, SMALL)
    for number in range(3):
        world.enqueue([Item(MINUTE_MS)], producer=5, number=number)
    world.pump()
    world.checkpoint()
    world.idle(2 * DAY_MS)
    world.enqueue([Item(MINUTE_MS)])
    world.begin_checkpoint()  # forgets the producer, and never reaches the disk
    world.enqueue([Item(MINUTE_MS)], producer=5, number=0)
    world.enqueue([Item(MINUTE_MS)], producer=5, number=1)
    world.pump()
    world.kill()
    assert world.enqueue([Item(0)], producer=5, number=1) == 5


# ---------------------------------------------------------------- B12: groups
def test_b12a_without_a_group_nothing_is_consumed_and_the_first_one_gets_all_that_is_kept() -> None:
    world = World(1, replace(SMALL, max_unacked=100))
    world.enqueue([Item(0)] * 3)
    world.pump()
    assert world.shard.consumers.lowest_needed() == 0
    world.trim()
    assert world.shard.queue.start == 0
    world.advance(MINUTE_MS)
    world.settle()  # an idle tick: with no release to come, the last ones grow old too
    world.advance(world.config.keep.retention_ms)
    world.trim()  # the first three have outlived their retention: that alone may end their keeping
    world.enqueue([Item(0)] * 2)
    world.pump()
    assert world.shard.queue.start == world.shard.consumers.lowest_needed() == 3
    world.join("g")
    assert world.deliver("g", 9) == [3, 4]


def test_b12b_a_group_that_was_handed_something_holds_all_after_it_through_trim_and_failover() -> None:
    world = World(1, SMALL)
    world.enqueue([Item(0)] * 4)
    world.pump()
    world.join("g")
    world.join("quick")
    assert world.deliver("g", 1) == [0]
    world.ack("quick", [(0, 4)])
    world.trim()
    world.pump()
    world.power_cut()
    world.trim()
    assert world.deliver("g", 9) == [0, 1, 2, 3]


def test_b12b_a_groups_first_receive_is_a_frame_that_survives() -> None:
    world = World(1, SMALL)
    world.enqueue([Item(0)] * 3)
    world.pump()
    frames = len(world.entries)
    world.join("g")
    assert len(world.entries) == frames + 1
    world.pump()
    world.deliver("g", 2)
    world.power_cut()
    assert world.deliver("g", 5) == [0, 1, 2]


def test_b12c_a_groups_filter_is_its_own() -> None:
    world = World(1, SMALL)
    world.enqueue([Item(0, tag=RED), Item(0)])
    world.pump()
    world.join("g", ("red",))
    for tags in ((), ("blue",), ("red", "blue")):
        with pytest.raises(Refused):
            world.shard.consumers.join("g", tags, from_end=False, now_ms=world.now)
    before = world.shard.log_end
    world.shard.consumers.join("g", ("red", "red"), from_end=False, now_ms=world.now)
    assert world.shard.log_end == before, "it is the same one"
    assert world.deliver("g", 5) == [0]
    world.ack("g", [(0, 1)])
    assert world.model.floor("g", 2) == 2  # the other one does not hold it back


def test_b12d_a_dead_letter_is_redriven_with_its_body() -> None:
    world = World(1, replace(SMALL, max_attempts=1))
    world.enqueue([Item(0, size=50)])
    world.pump()
    world.join("g")
    world.deliver("g", 1)
    world.nack("g", [(0, 1)], 0)
    world.stop()
    world.check_groups()
    world.resolve("g", None, redrive=True)
    world.pump()
    world.power_cut()
    assert world.deliver("g", 1) == [0]  # the body is compared


def test_b12d_a_dead_letter_outlives_the_queue_around_it_and_the_segment_its_body_was_in() -> None:
    world = World(1, replace(SMALL, max_attempts=1, log_segment_bytes=200))
    for _ in range(8):
        world.enqueue([Item(0, size=50)])
        world.pump()
    world.join("g")
    world.deliver("g", 9)
    world.nack("g", [(3, 1)], 0)
    world.ack("g", [(0, 3), (4, 8)])
    before = int(world.shard.consumers.dead_letters("g", -1, 1).rows["offset"][0])
    world.checkpoint()
    world.trim()
    world.checkpoint()
    world.empty_all()  # RELOCATE writes the body again, and its old segment goes
    assert world.shard.queue.start == 8
    row = world.shard.consumers.dead_letters("g", -1, 1).rows
    assert int(row["offset"][0]) != before
    assert world.shard.log.file.start > before
    world.power_cut()
    world.check_groups()  # the body is compared
    world.resolve("g", None, redrive=True)
    world.pump()
    world.power_cut()
    assert world.deliver("g", 9) == [3]
    world.ack("g", [(3, 4)])
    world.check_ledger()


def test_b12e_messages_that_die_without_end_are_bounded_and_none_is_lost() -> None:
    world = World(1, replace(SMALL, max_unacked=10, max_attempts=1, max_dead_letters=4))
    world.enqueue([Item(0)] * 40)
    world.pump()
    world.join("g")
    for _ in range(30):
        world.nack("g", [(o, world._state(world.model.groups["g"], o).attempt) for o in world.deliver("g", 100)], 0)
        world.advance(300_000)
    group = world.shard.consumers.group("g")
    assert (len(group.dead_letters), group.window_end - group.first_unacked) == (4, 10)
    world.resolve("g", None, redrive=True)
    got = world.deliver("g", 100)
    while got:  # what is not acknowledged is still there: all of it comes once there is room again
        world.ack("g", [(offset, offset + 1) for offset in sorted(got)])
        got = world.deliver("g", 100)
    assert world.model.groups["g"].done == set(range(40))


def test_b12e_acks_and_nacks_above_a_stuck_floor_are_bounded() -> None:
    world = World(1, replace(SMALL, max_unacked=10, max_attempts=99))
    world.enqueue([Item(0)] * 40)
    world.pump()
    world.join("g")
    got = world.deliver("g", 100)
    assert got == list(range(10))
    world.ack("g", [(1, 10)])
    assert world.deliver("g", 100) == []  # the first is still out
    with pytest.raises(Refused):
        world.shard.consumers.acknowledge("g", np.array([30]), np.array([31]), world.now)
    world.nack("g", [(offset, 1) for offset in range(10, 40)], 0)  # ignored
    assert world.shard.consumers.group("g").window_end <= 10


def test_b12f_a_stuck_group_holds_messages_for_their_retention_and_no_longer() -> None:
    world = World(1, replace(SMALL, max_unacked=100, max_attempts=9))
    world.enqueue([Item(0, tag=tag) for tag in (RED, 0, RED, 0, RED, 0)])
    world.pump()
    world.join("g")
    world.join("red", ("red",))
    assert world.deliver("g", 3) == [0, 1, 2]
    world.advance(MINUTE_MS)
    world.settle()
    world.advance(world.config.keep.retention_ms - 1)
    world.ack("g", [(1, 2), (4, 5)])
    world.enqueue([Item(0)])
    world.pump()
    world.trim()
    assert world.shard.queue.start == 0
    world.advance(1)
    with patch.object(reclaim, "TRIM_ROWS", 4):
        world.trim()
    assert world.shard.queue.start == 4
    assert world.shard.space.expired == 3 + 2  # g: 0, 2, 3; red: 0, 2
    assert [world.shard.consumers.group(name).first_unacked for name in ("g", "red")] == [5, 4]  # 4 is acknowledged
    assert world.shard.consumers.acknowledge("g", np.array([0]), np.array([3]), world.now) == 0  # too late: nothing
    counts = world.shard.consumers.nack("g", np.array([2, 3]), np.array([1, 1], np.uint32), 0, world.now)
    assert (counts.retried, counts.dead, counts.ignored) == (0, 0, 2)
    assert world.shard.consumers.deliver("g", world.now, 1000, 9, 1 << 20).offset.tolist() == [5, 6]


# ---------------------------------------------------------------- B13: clocks
def test_b13_a_master_with_a_clock_behind_stores_nothing_between_its_clock_and_the_watermark() -> None:
    world = World(1, SMALL)
    world.enqueue([Item(1000), Item(5 * MINUTE_MS)])
    world.settle()
    world.advance(1000)
    world.settle()
    world.now -= 500  # the next master's clock
    world.power_cut()
    later = max(world.model.live)
    assert world.enqueue([Item(300)]) is None
    assert world.reschedule(later, Item(300)) is None
    assert world.enqueue([Item(500)]) is None  # just at the watermark
    assert world.enqueue([Item(0), Item(501)]) == 2
    assert world.tick() == -1
    world.advance(501)
    world.settle()
    assert [q.seq for q in world.model.queue] == [0, 2, 3]


def test_b13_a_backward_step_pauses_the_watermark_and_nothing_is_early() -> None:
    world = World(1, SMALL)
    world.enqueue([Item(delay) for delay in (10, 20, 30, 40)])
    world.settle()
    world.advance(20)
    world.settle()
    world.advance(-15)
    assert world.tick() == -1
    world.advance(24)  # one short of the third
    assert world.tick() <= 0
    world.advance(1)
    assert world.tick() == 1
