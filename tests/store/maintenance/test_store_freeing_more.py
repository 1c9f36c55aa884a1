"""Freeing disk, histories that single steps of a walk seldom meet."""

from __future__ import annotations

from dataclasses import replace

import pytest
from delayapi.units import DAY_MS, HOUR_MS
from delaynode.store.lookup import CANCELLED
from delaynode.store.maintenance.reclaim import KeepConfig

from tests.store.support.consuming import World
from tests.store.support.freeable import FAR, FREE, NEAR, aged, come_down, coming_down, log_bytes, mixed, release_all
from tests.store.support.model import Key
from tests.store.support.producing import Item


def there_and_back(world: World, key: Key) -> None:
    world.reschedule(key, Item(20 * DAY_MS))
    world.reschedule((world.now + 20 * DAY_MS, key[1]), Item(key[0] - world.now))


def test_a_message_that_came_back_to_its_due_can_be_moved_again_and_again() -> None:
    """A DELETE, the DEFAULT that brought it back, and a ROLL that names the place: the ROLL's segment has it."""
    world = mixed()
    there_and_back(world, min(world.model.live))
    world.pump()
    world.checkpoint()
    for _ in range(3):
        before = log_bytes(world)
        world.empty_all()
        assert log_bytes(world) <= before, "a segment was written again, and could not go"
        held = world.shard.space.ledger.segments["count"]
        assert held[held > 0].tolist() == [6]


def test_an_hour_that_comes_down_names_the_place_of_a_message_that_was_moved_while_it_was_away() -> None:
    world = coming_down()
    key = min(world.model.live)
    world.reschedule(key, Item(20 * DAY_MS))
    world.pump()
    for choice in range(9):
        world.begin_empty(choice)
        world.run_empty()
        world.finish_empty()
    world.reschedule((world.now + 20 * DAY_MS, key[1]), Item(key[0] - world.now))
    come_down(world)


@pytest.mark.parametrize(("size", "share"), [(5, 0.25), (60, 0.75)])
def test_what_was_just_written_again_is_not_mostly_dead_however_small_its_records(size: int, share: float) -> None:
    """Else it would be written again, and again: for ever, while the disk is nearly full."""
    world = World(2, replace(FREE, log_segment_bytes=4000))
    world.enqueue([Item(30 * DAY_MS, size=size)] * 40)
    world.enqueue([NEAR] * 40)
    world.pump()
    world.cancel(*[key for key in world.model.live if key[0] < world.now + DAY_MS])
    world.pump()
    world.checkpoint()
    world.empty_all()
    world.enqueue([NEAR])
    world.pump()
    world.checkpoint()
    assert 40 in world.shard.space.ledger.segments["count"]
    found = world.shard.space.mostly_dead(world.shard.checkpointed, world.now, share=share)
    assert 40 not in found["count"]


def test_what_is_kept_for_replicas_is_not_written_again_even_when_the_disk_is_nearly_full() -> None:
    """It could not go: there would be two of it."""
    config = replace(FREE, keep=KeepConfig(retention_ms=HOUR_MS, keep_log_bytes=1 << 20, keep_log_ms=60_000))
    world = World(1, config)
    for _ in range(6):
        world.enqueue([FAR] * 5)
        world.pump()
    world.checkpoint()

    def found() -> int:
        return len(world.shard.space.mostly_dead(world.shard.checkpointed, world.now, share=9.0))

    assert found() == 0
    world.advance(61_000)
    assert found() > 0


def test_a_list_finds_what_came_back_to_its_due_before_the_timer_log_was_cleaned() -> None:
    """The slot's cached fold says that the message left, and cleaning removes the unit that brought it back."""
    world = aged()
    key, due = max(world.model.live), max(world.model.live)[0]

    def list_slot() -> None:
        world.begin_scan((due - due % HOUR_MS, 0), (due - due % HOUR_MS + HOUR_MS, 0))
        world.run_scan()
        world.finish_scan()  # compares

    world.reschedule(key, Item(20 * DAY_MS))
    world.pump()
    world.checkpoint()
    list_slot()  # folds the slot
    assert len(world.slot_cache)
    world.reschedule((world.now + 20 * DAY_MS, key[1]), Item(due - world.now))
    world.pump()
    world.checkpoint()
    for _ in range(4):  # until the file with that is closed
        world.enqueue([Item(10 * DAY_MS)] * 4)
        world.pump()
        world.checkpoint()
    world.clean()
    list_slot()
    assert world.cancel(key) == [CANCELLED]


def test_a_timer_log_that_has_emptied_is_cleaned_however_much_it_once_held() -> None:
    world = aged()
    world.enqueue([Item(25 * HOUR_MS)] * 200)
    world.pump()
    world.checkpoint()
    world.clean()
    world.clean()
    release_all(world)
    world.checkpoint()
    index = world.shard.index
    size = index.log.end - index.log.start
    assert size > 100 * 52
    assert index.clean_due()


def test_a_dead_letter_above_the_watermark_is_moved_as_a_letter_and_not_revived() -> None:
    """A message that is due on arrival is released at once, ahead of the watermark, which may be a minute behind."""
    world = World(1, FREE)
    world.join("g")
    world.advance(5000)
    world.enqueue([Item(0, size=50)] + [NEAR] * 5)
    world.pump()
    for attempt in (1, 2):
        assert world.deliver("g", 1) == [0]
        world.nack("g", [(0, attempt)], 0)
        world.pump()
    assert world.model.groups["g"].dead
    world.cancel(*world.model.live)
    world.enqueue([FAR] * 12)
    world.pump()
    world.checkpoint()
    world.trim()
    assert world.shard.queue.start == 1
    assert world.shard.index.watermark.due < world.now, "the dead letter lies above it"
    world.checkpoint()
    world.empty_all()
    assert 0 not in world.shard.log.file.bases, "the dead letter's segment went"
    world.resolve("g", None, redrive=True)
    world.pump()
    assert world.deliver("g", 1) == [0]  # compares the body
    world.advance(61_000)
    world.settle()
    assert len(world.model.queue) == 1, "released again"


def dead_in_the_minute_that_is_released(pending: int) -> World:
    """A segment is being emptied that holds a trimmed dead letter and `pending` messages due in the same minute."""
    world = World(3, replace(FREE, max_attempts=1))
    world.join("g")
    world.enqueue([Item(5_000, size=50), *[Item(30_000, size=50)] * pending])
    for _ in range(3):  # these close the segment
        world.enqueue([Item(30 * HOUR_MS, size=100)] * 5)
    world.pump()
    world.checkpoint()
    world.advance(5_000)
    world.settle()
    world.nack("g", [(offset, 1) for offset in world.deliver("g", 10)], 0)
    world.pump()
    world.trim()
    world.pump()
    world.checkpoint()
    world.begin_empty(0)
    world.run_empty()
    return world


@pytest.mark.parametrize("pending", [1, 2])
@pytest.mark.parametrize("released_meanwhile", [False, True])
def test_a_letter_of_the_present_minute_is_relocated_once(pending: int, released_meanwhile: bool) -> None:
    """Named twice, it was counted off its segment twice: damage on all copies, or a needed segment freed."""
    world = dead_in_the_minute_that_is_released(pending)
    assert world.emptying is not None
    named = [seq for rows, _ in world.emptying.batches for seq in rows["seq"].tolist()]
    assert sorted(named) == list(range(1 + pending))
    if released_meanwhile:
        world.advance(25_000)
        world.settle()
    world.finish_empty()
    world.pump()
    world.resolve("g", None, redrive=True)
    world.pump()
    world.checkpoint()
    world.trim()
    world.checkpoint()
    world.power_cut()
    assert 0 in world.deliver("g", 10)  # reads its body
    release_all(world)
