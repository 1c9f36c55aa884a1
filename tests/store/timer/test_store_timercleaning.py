"""Cleaning the TimerLog: its oldest files go, and every message stays (attack B15)."""

from __future__ import annotations

import pytest
from delayapi.units import HOUR_MS
from delaynode.store.lookup import ALREADY_CANCELLED, MOVED_NOW

from tests.store.support.freeable import aged, consume_all, free, release_all
from tests.store.support.lives import files_in
from tests.store.support.producing import Item
from tests.store.support.world import ROOT


@pytest.mark.parametrize("cancels", [0, 4])
def test_b15_the_oldest_timer_files_go_and_every_message_stays(cancels: int) -> None:
    world = aged(cancels)
    before = files_in(world.disk, "timerlog/")
    cancelled = [key for key, fate in world.model.gone.items() if fate == "CANCELLED"]
    world.clean()
    world.checkpoint()
    after = files_in(world.disk, "timerlog/")
    assert after[0] > before[0]
    assert len(after) < len(before)
    world.check_wheel()
    for key in cancelled:
        assert world.cancel(key) == [ALREADY_CANCELLED], "the truth outlives the file that told it"
    world.power_cut()
    world.check_wheel()


def test_a_message_cancelled_while_the_timer_log_is_cleaned_stays_cancelled() -> None:
    world = aged()
    world.begin_clean()
    world.run_clean()
    keys = sorted(world.model.live)[:5]
    world.cancel(*keys)
    world.finish_clean()
    world.pump()
    world.clean()
    world.check_wheel()
    release_all(world)
    assert not {(q.due, q.seq) for q in world.model.queue} & set(keys)


def test_a_record_relocated_while_the_timer_log_is_cleaned_is_found() -> None:
    world = aged()
    world.begin_clean()
    world.run_clean()
    for choice in range(5):
        world.begin_empty(choice)
        world.run_empty()
        world.finish_empty()
    world.finish_clean()
    world.pump()
    world.clean()
    free(world)
    release_all(world)
    consume_all(world)


def test_a_message_rescheduled_after_its_file_was_closed_is_released_at_its_new_due_only() -> None:
    world = aged()
    old = sorted(world.model.live)[:5]
    for key in old:
        assert world.reschedule(key, Item(50 * HOUR_MS)) == MOVED_NOW
    world.clean()
    world.check_wheel()
    release_all(world)
    assert not {(q.due, q.seq) for q in world.model.queue} & set(old)


def test_cleaning_joins_short_runs() -> None:
    world = aged(chunk_units=1000)  # a piece is no short run

    def runs() -> int:
        index = world.shard.index
        slots = index.hour.slots[index.hour.slots["num"] > 0]
        chains = [(int(slot["last"]), int(slot["time"])) for slot in slots]
        return sum(len(list(index.log.runs(last, time, HOUR_MS, index.log.start))) for last, time in chains)

    before = runs()
    world.clean()
    assert runs() < before / 3


def test_counts_are_rebuilt_from_a_cleaned_timer_log_without_the_copy_of_the_wheels() -> None:
    world = aged(3)
    world.clean()
    world.disk.remove(f"{ROOT}/wheels")
    world.power_cut()
    world.check_wheel()
    world.clean()  # what was cleaned can be cleaned again
    world.disk.remove(f"{ROOT}/wheels")
    world.power_cut()
    world.check_wheel()


def test_a_copy_of_the_wheels_from_before_a_cleaning_is_not_used() -> None:
    world = aged(3)
    world.copy_wheels()
    world.clean()
    world.power_cut()
    world.check_wheel()


def test_a_crash_between_the_steps_of_a_cleaning_loses_and_doubles_nothing() -> None:
    for step in range(8):
        world = aged(2)
        for n in range(step):
            (world.begin_clean, world.run_clean, world.finish_clean, world.checkpoint)[n % 4]()
        world.power_cut()
        world.check_wheel()
        world.clean()
        world.check_wheel()
        release_all(world)
        assert not world.model.live
