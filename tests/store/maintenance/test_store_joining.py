"""Freeing disk, what is small: segments of a few messages each, and the open one of a shard that has come to rest."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pytest
from delaynode.store.maintenance import evacuation
from delaynode.store.queue.ledger import SEGMENT, SegmentLedger
from delaynode.store.types import Records

from tests.store.support import model as m
from tests.store.support.consuming import World
from tests.store.support.freeable import FAR, FREE, NEAR, consume_near, free, log_bytes, release_all
from tests.store.support.producing import Item

LARGE = replace(FREE, log_segment_bytes=64_000, keep=replace(FREE.keep, relocate_after_ms=60_000))
SMALL = 100


def ledger(*sizes: int, count: int = 1) -> SegmentLedger:
    """Closed segments of these sizes with a message each, and an open one."""
    end = np.cumsum(sizes).tolist()
    rows = [(to - size, to, count, 1, 0) for to, size in zip(end, sizes, strict=True)]
    return SegmentLedger(np.array([*rows, (end[-1], 0, 0, 0, 0)], SEGMENT))


@pytest.mark.parametrize(
    ("sizes", "joined"),
    [
        ([10] * 7, []),  # too few to be worth it
        ([10] * 8, [10] * 8),
        ([10] * 20, [10] * 16),
        ([100, *[10] * 8], [10] * 8),  # it would be moved for little
        ([100, *[20] * 8], [20] * 8 + [100]),
        ([100, *[1] * 7, 50], []),
        ([101] * 20, []),
        ([10] * 8 + [101], [10] * 8),
    ],
)
def test_small_segments_are_joined_when_they_are_many_and_much_alike(sizes: list[int], joined: list[int]) -> None:
    found = ledger(*sizes).joinable(10**6, 0, SMALL, [])
    assert (found["end"] - found["base"]).tolist() == joined


@pytest.mark.parametrize(
    ("limit", "before_ms", "without", "count"), [(80, 0, [0], 1), (79, 0, [], 1), (80, -1, [], 1), (80, 0, [], 0)]
)
def test_a_segment_is_not_joined_that_is_left_alone_or_unsynced_or_young_or_empty(
    limit: int, before_ms: int, without: Collection[int], count: int
) -> None:
    assert len(ledger(*[10] * 8).joinable(80, 0, SMALL, [])) == 8
    assert not len(ledger(*[10] * 8, count=count).joinable(limit, before_ms, SMALL, without))


def test_a_small_segment_is_moved_a_few_times_at_most_before_it_is_part_of_a_large_one() -> None:
    """Ten thousand segments come, one after the other, each joined as soon as it may be."""
    sizes: list[int] = []
    moved, largest = 0, 1_000
    for size in [10] * 10_000:
        sizes.append(size)
        found = ledger(*sizes).joinable(10**9, 0, largest, [])
        if len(found):
            joined = (found["end"] - found["base"]).tolist()
            moved += sum(joined)
            for one in joined:
                sizes.remove(one)
            sizes.append(sum(joined))
    assert len(sizes) < 10_000 * 10 / largest + 8 * np.log2(largest / 10)
    assert moved < 10_000 * 10 * np.log2(largest / 10)


def joinable(world: World, without: Collection[int] = ()) -> Records:
    return world.shard.space.joinable(world.shard.checkpointed, world.now, without)


def test_segments_of_a_few_messages_each_are_written_again_as_one() -> None:
    world = World(4, LARGE)
    for _ in range(12):
        world.enqueue([FAR])
        world.pump()
        world.shard.log.begin_segment()
    world.enqueue([FAR])
    world.pump()
    world.checkpoint()
    assert not len(joinable(world)), "they are young"
    world.advance(60_000)
    found = joinable(world)
    assert len(found) == 12
    job = evacuation.begin_evacuation(world.shard, found)
    job.run()
    with world.recording() as events:
        events += [m.Relocate()] * evacuation.relocate(world.shard, job, world.now)
    evacuation.end_evacuation(world.shard, job)
    world.check_ledger()
    world.pump()
    free(world)
    held = world.shard.space.ledger.segments["count"]
    assert held[held > 0].tolist() == [1, 12]
    world.power_cut()
    release_all(world)
    world.power_cut()  # reads every body


# ---------------------------------------------------------------- the open segment
def rested(segment_bytes: int = 64_000, far: int = 0) -> World:
    """A shard that was busy: some 15 kB in the open segment, of which only the far messages are needed."""
    world = World(4, replace(LARGE, log_segment_bytes=segment_bytes))
    for _ in range(20):
        world.enqueue([NEAR] * 8)
    if far:
        world.enqueue([FAR] * far)
    world.pump()
    consume_near(world)
    world.trim()
    world.checkpoint()
    return world


def test_a_shard_that_has_come_to_rest_does_not_keep_its_dead_open_segment() -> None:
    world = rested(far=2)
    before = log_bytes(world)
    freeing = world.shard.space
    assert not freeing.begin_segment_if_dead(world.now, None), "much of it may die by itself"
    world.advance(59_999)
    assert not freeing.begin_segment_if_dead(world.now, None)
    world.advance(1)
    assert freeing.begin_segment_if_dead(world.now, None)
    world.tick()  # an idle one
    world.pump()
    world.checkpoint()
    assert not freeing.begin_segment_if_dead(world.now, None), "the new one is small"
    world.advance(60_000)
    world.empty_all()
    assert log_bytes(world) < before / 8
    world.power_cut()
    release_all(world)


@pytest.mark.parametrize(("segment_bytes", "far"), [(64_000, 200), (200_000, 0)])
def test_an_open_segment_is_left_open_that_is_needed_or_small_for_a_segment(segment_bytes: int, far: int) -> None:
    world = rested(segment_bytes, far)
    world.shard.space.begin_segment_if_dead(world.now, None)
    world.advance(60_000)
    assert not world.shard.space.begin_segment_if_dead(world.now, None)


def test_an_open_segment_is_closed_at_once_when_the_disk_is_nearly_full() -> None:
    assert rested().shard.space.begin_segment_if_dead(0, 0.75)


def test_the_age_of_an_open_segment_begins_anew_with_the_next_one() -> None:
    world = rested()
    world.shard.space.begin_segment_if_dead(world.now, None)
    world.advance(60_000)
    world.shard.log.begin_segment()
    for _ in range(20):
        world.enqueue([Item(-1, size=50)] * 8)
    world.pump()
    consume_near(world)
    world.trim()
    assert not world.shard.space.begin_segment_if_dead(world.now, None)
