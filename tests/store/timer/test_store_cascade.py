"""An hour comes down to minutes in pieces: what happens between two of them loses, doubles and revives nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from delayapi.units import HOUR_MS, MINUTE_MS
from delaynode.store.lookup import ALREADY_CANCELLED, CANCELLED, MOVED_NOW, RESCHEDULED
from delaynode.store.maintenance.evacuation import EvacuationJob
from delaynode.store.timer.wheel import NOWHERE, TimerWheel
from delaynode.store.types import Records
from delaynode.store.verify import Finding, verify_shard

from tests.store.support.consuming import World
from tests.store.support.freeable import FREE, consume_all
from tests.store.support.producing import Item
from tests.store.support.world import ROOT, SMALL


def all_changes(world: World, due: int) -> None:
    """Every kind of change to an hour with messages at due, due + 1 ..."""
    ahead = due - world.now
    assert world.cancel((due + 2, 2)) == [CANCELLED]
    assert world.reschedule((due + 3, 3), Item(ahead + 500)) == MOVED_NOW
    assert world.reschedule((due + 4, 4), Item(ahead + 6 * HOUR_MS)) == MOVED_NOW
    assert world.reschedule((due + 6 * HOUR_MS, 4), Item(ahead + 4)) == MOVED_NOW
    world.enqueue([Item(ahead + 5)])
    world.pump()


def about_to_come_down(seed: int = 1) -> tuple[World, int]:
    """A world where the hour of eight messages, at the due that is returned and the next ms, is to be cascaded."""
    world = World(seed, SMALL)
    first = 30 * HOUR_MS
    world.enqueue([Item(first + at) for at in range(8)])
    world.checkpoint()  # the units of this hour are in the TimerLog
    due = world.now + first
    world.cancel((due, 0))
    world.reschedule((due + 1, 1), Item(1000))
    while world.shard.index.minute_bound_ms + HOUR_MS <= due:
        world.advance(10 * MINUTE_MS)
        world.settle()
    world.advance(HOUR_MS)
    return world, due


CASCADE = ("begin_cascade", "run_cascade", "finish_cascade")
EXPECTED = [ALREADY_CANCELLED, RESCHEDULED, ALREADY_CANCELLED, RESCHEDULED]


def check_changed(world: World, due: int) -> None:
    world.check_wheel()
    assert world.cancel(*[(due + at, at) for at in range(4)]) == EXPECTED
    assert world.cancel((due + 6 * HOUR_MS, 4)) == [RESCHEDULED]
    world.begin_scan((due, 0), (due + HOUR_MS, 0))
    world.run_scan()
    world.finish_scan()


@pytest.mark.parametrize("piece", [0, 1, 2])
@pytest.mark.parametrize("when", CASCADE)
def test_an_hour_comes_down_to_minutes_while_its_messages_are_cancelled_and_moved(when: str, piece: int) -> None:
    """Every kind of change, after each step of each piece; then the hour is released."""
    world, due = about_to_come_down()
    for at in range(9):
        for step in CASCADE:
            getattr(world, step)()
            if (at, step) == (piece, when):
                all_changes(world, due)
        if world.shard.index.minute_bound_ms > due:
            break
        assert at or world.shard.index.cascade is not None, "three of eight messages a piece"
    assert world.shard.index.minute_bound_ms > due
    for aftermath in (world.pump, world.checkpoint, world.power_cut):
        aftermath()
        check_changed(world, due)
    world.now = due + 500
    world.settle()
    assert not world.model.live


@pytest.mark.parametrize("again", ["power_cut", "kill", "stop", "checkpoint"])
@pytest.mark.parametrize("piece", [0, 1, 2])
def test_an_hour_half_done_is_a_state_that_recovery_knows(piece: int, again: str) -> None:
    """Changes before and after, checkpoints between the pieces or none, and a process that ends there."""
    for flushed in (False, True):
        world, due = about_to_come_down()
        for at in range(20):  # without a checkpoint, hours that were empty come again
            if at == piece:
                all_changes(world, due)
                if flushed:
                    world.checkpoint()
                check_changed(world, due)
                getattr(world, again)()
                check_changed(world, due)
                if flushed and piece:
                    assert world.shard.index.cascade is not None, "not begun anew"
            for step in CASCADE:
                getattr(world, step)()
        assert world.shard.index.minute_bound_ms > due
        check_changed(world, due)
        world.stop()
        check_changed(world, due)
        world.now = due + 500
        world.settle()
        assert not world.model.live


def test_a_message_that_comes_back_to_its_due_while_the_hour_is_half_done_is_released() -> None:
    """Its piece says that it is dead: the first pass is of the hour as it was."""
    for flush_between in (False, True):
        world, due = about_to_come_down()
        assert world.reschedule((due + 7, 7), Item(due + 7 - world.now + 6 * HOUR_MS)) == MOVED_NOW
        world.checkpoint()
        for step in CASCADE:
            getattr(world, step)()
        assert world.reschedule((due + 7 + 6 * HOUR_MS, 7), Item(due - world.now + 7)) == MOVED_NOW
        if flush_between:
            world.checkpoint()
        while world.shard.index.minute_bound_ms <= due:
            for step in CASCADE:
                getattr(world, step)()
        world.stop()
        world.check_wheel()
        world.now = due + 500
        world.settle()
        assert (due + 7, 7) in [(q.due, q.seq) for q in world.model.queue]
        assert not world.model.live


def test_a_herd_of_one_millisecond_comes_down_in_pieces() -> None:
    world = World(1, SMALL)
    first = 30 * HOUR_MS
    for _ in range(4):  # runs of several flushes
        world.enqueue([Item(first)] * 10)
        world.checkpoint()
    keys = sorted(world.model.live)
    pieces = 0
    world.advance(7 * HOUR_MS)
    while world.shard.index.minute_bound_ms <= keys[0][0]:
        pieces += world.shard.index.cascade is not None
        for step in CASCADE:
            getattr(world, step)()
        if pieces == 5:
            world.cancel(keys[0], keys[20], keys[39])
        if pieces % 4 == 0:
            world.checkpoint()
    assert pieces >= 13
    world.power_cut()
    world.check_wheel()
    world.now = keys[0][0]
    world.settle()
    assert not world.model.live


def test_a_shard_that_was_down_for_days_loses_nothing_when_its_minutes_come_round_again() -> None:
    """Two days apart, the same slot of the minute level: the later minute waits until the earlier is released."""
    world = World(3, replace(SMALL, window_budget=10**6, max_tick=10**6))
    world.enqueue([Item(30 * MINUTE_MS + k) for k in range(3)])
    world.checkpoint()  # at the minute level
    world.enqueue([Item(30 * MINUTE_MS + 48 * HOUR_MS + k) for k in range(3)])
    world.checkpoint()  # at the hour level
    world.advance(72 * HOUR_MS)
    world.kill()
    while world.shard.index.cascade_due(world.now):
        for step in CASCADE:
            getattr(world, step)()
    world.checkpoint()
    world.settle()
    assert len(world.model.queue) == 6


def test_a_late_unit_does_not_take_the_slot_of_a_minute_two_days_later() -> None:
    """A cancelled message's units are flushed when the watermark is hours past its due, after its slot's next lap."""
    world = World(1, replace(SMALL, chunk_units=100))
    late = 40 * MINUTE_MS
    world.enqueue([Item(late + 48 * HOUR_MS)])
    world.checkpoint()
    world.enqueue([Item(late)])
    world.cancel((world.now + late, 1))  # not flushed before all that follows
    world.advance(30 * HOUR_MS)
    world.settle()  # the hour two days later has come down
    assert world.shard.index.minute_bound_ms > world.born + late + 48 * HOUR_MS
    for aftermath in (world.checkpoint, world.power_cut):
        aftermath()
        world.check_wheel()
    world.advance(20 * HOUR_MS)
    world.settle()
    assert len(world.model.queue) == 1


def test_of_two_laps_of_a_slot_the_later_keeps_it() -> None:
    """In one flush, and in one after the other, whichever comes first."""
    earlier, later = 40 * MINUTE_MS, 40 * MINUTE_MS + 48 * HOUR_MS
    for flushes in ([[earlier, later]], [[later], [earlier]], [[earlier], [later]]):
        wheel = TimerWheel(MINUTE_MS, 48 * 60)
        for times in flushes:
            at = np.array(times, np.int64)
            wheel.extend(at, at + 1, at + 2, np.full(len(at), 3))
        assert wheel.last_positions(np.array([earlier, later])).tolist() == [NOWHERE, later + 2]
        assert wheel.counts(0, 2**62)[1].tolist() == [3]


def test_a_cleaning_of_the_timer_log_does_not_end_while_an_hour_is_half_done() -> None:
    """It would take away the files that the rest of the hour is to be read from."""
    for crash in (False, True):
        world, due = about_to_come_down()
        for n in range(8):
            world.enqueue([Item(20 * HOUR_MS + n)] * 3)
            world.checkpoint()
        while True:  # all has been said again, and waits for a flush
            world.begin_clean()
            if world.cleaning is None:
                break
            world.run_clean()
            world.finish_clean()
        start = world.shard.index.log.start
        for step in CASCADE:
            getattr(world, step)()
        assert world.shard.index.cascade is not None
        world.checkpoint()
        if crash:
            world.power_cut()
        assert world.shard.index.log.start == start
        while world.shard.index.minute_bound_ms <= due:
            for step in CASCADE:
                getattr(world, step)()
        world.clean()
        assert world.shard.index.log.start > start
        world.power_cut()
        world.check_wheel()
        world.now = due + 500
        world.settle()
        assert not world.model.live


def test_a_copy_of_the_wheels_never_knows_pieces_that_a_recovery_cuts_off() -> None:
    """Other units come to lie where they lay, and the next checkpoint reaches further than the copy."""
    world, due = about_to_come_down()
    world.checkpoint()
    for step in CASCADE:
        getattr(world, step)()
    world.copy_wheels()
    world.power_cut()
    world.enqueue([Item(20 * HOUR_MS)] * 20)
    world.checkpoint()
    world.power_cut()
    world.check_wheel()
    world.now = due + 500
    world.settle()
    assert not world.model.live


def test_only_a_checkpoint_with_an_hour_half_done_is_of_a_newer_format() -> None:
    """A program that does not know how far the hour is must not read the rest: it would cascade it twice."""
    world, _ = about_to_come_down()
    world.checkpoint()
    path = f"{ROOT}/checkpoint"
    assert b'"cascade"' not in world.disk.read(path, 0, world.disk.size(path))
    for step in CASCADE:
        getattr(world, step)()
    world.checkpoint()
    assert b'"cascade"' in world.disk.read(path, 0, world.disk.size(path))


def test_verify_finds_no_damage_in_an_hour_half_done() -> None:
    """A message that was dead when the hour was begun has come back to it: the piece says that it is dead."""
    world, due = about_to_come_down()
    assert world.reschedule((due + 7, 7), Item(due + 7 - world.now + 6 * HOUR_MS)) == MOVED_NOW
    world.checkpoint()
    world.begin_cascade()
    assert world.reschedule((due + 7 + 6 * HOUR_MS, 7), Item(due - world.now + 7)) == MOVED_NOW
    world.run_cascade()
    world.finish_cascade()
    while world.shard.index.minute_bound_ms <= due:
        world.checkpoint()
        found: list[Finding] = []
        verify_shard(world.disk, ROOT, found.append)
        assert not [finding for finding in found if not finding.note]
        for step in CASCADE:
            getattr(world, step)()


def test_emptying_a_segment_holds_no_more_than_a_piece_of_a_slot() -> None:
    """All of a herd's units are ROLLs once the hour has come down, and each may say where a record lies."""
    world = World(1, FREE)
    for _ in range(6):
        world.enqueue([Item(30 * HOUR_MS, size=50)] * 10)
        world.enqueue([Item(1)] * 10)
        world.checkpoint()
    world.advance(10)
    world.settle()
    consume_all(world)
    world.trim()
    world.checkpoint()
    world.advance(7 * HOUR_MS)
    world.settle()
    most = 0
    live = EvacuationJob._live

    def looked_at(job: EvacuationJob, units: Records) -> Records:
        nonlocal most
        most = max(most, len(units))
        return live(job, units)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(EvacuationJob, "_live", looked_at)
        world.begin_empty(0)
        world.run_empty()
    assert world.emptying is not None
    assert sum(len(rows) for rows, _ in world.emptying.batches)
    assert most <= 2 * FREE.chunk_units + 1, "of 60 in the slot"
    world.finish_empty()
    world.now = world.born + 31 * HOUR_MS
    world.settle()
    world.power_cut()  # reads every body
