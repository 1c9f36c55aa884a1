"""The lost part of a cascade's piece is read again: from the hour's chain, else from the CommitLog, to the last bit."""

from __future__ import annotations

import random
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from delayapi.units import HOUR_MS, MINUTE_MS
from delaynode.store.errors import Damaged
from delaynode.store.maintenance import persist
from delaynode.store.timer import cascade_chunk as timer_pieces
from delaynode.store.timer import timer_log
from delaynode.store.timer.cascade import cascaded_units
from delaynode.store.timer.timer_log import STORED
from delaynode.store.types import Records

from tests.store.support.consuming import World
from tests.store.support.damaging import Content, content_of, disk_of
from tests.store.support.lives import checkpoint_of, files_in
from tests.store.support.producing import Item
from tests.store.support.world import ROOT, SMALL
from tests.store.timer.test_store_cascade import CASCADE, about_to_come_down
from tests.store.timer.test_store_repairing import Flush, flushes_of, timer_files, without_wheels


def pieces_in(world: World) -> list[Flush]:
    """The flushes that are of no frame, and all of the minute level."""
    found = []
    for flush in flushes_of(world.disk):
        head = np.frombuffer(bytes(world.disk.files[flush.path].data[flush.at : flush.at + STORED.itemsize]), STORED)[0]
        if head["prev"] == head["due"] and head["size"] == head["offset"] > 0:
            found.append(flush)
    return found


def a_cascade_of_three_passes() -> World:
    """Eight messages in three pieces, then what checkpoints between them have added, some of it after all others."""
    world, due = about_to_come_down()
    ahead = due - world.now
    later = {2: (5, 5, 40 * MINUTE_MS), 4: (4, 50 * MINUTE_MS)}
    for at in range(9):
        for step in CASCADE:
            getattr(world, step)()
        if at == 1:
            world.reschedule((due + 4, 4), Item(ahead + 500))
            world.reschedule((due + 3, 3), Item(ahead + 500))
        elif at in later:
            world.enqueue([Item(ahead + delay) for delay in later[at]])
        world.pump()
        world.checkpoint()
        if world.shard.index.minute_bound_ms > due:
            return world
    raise AssertionError("it has not come down")


def without_log(world: World, content: Content) -> Content:
    """No frame before the checkpoint's can be read."""
    end, made = checkpoint_of(world.disk).log_offset, dict(content)
    for path in files_in(world.disk, "log/"):
        base = int(path.rsplit("/", 1)[1])
        size = max(0, min(len(content[path]), end - base))
        made[path] = bytes(size) + content[path][size:]
    return made


def damaged(content: Content, flush: Flush, first: int, count: int) -> Content:
    data = bytearray(content[flush.path])
    block = flush.block(first, count)
    data[block] = random.Random(1).randbytes(block.stop - block.start)
    return content | {flush.path: bytes(data)}


def check_mended(world: World, flush: Flush, content: Content) -> None:
    disk = disk_of(content, 1)
    _, recovery = persist.recover(disk, ROOT, SMALL)
    assert recovery.repaired == [flush.position]
    assert timer_files(disk) == timer_files(world.disk)


def parts_of(flush: Flush) -> list[tuple[int, int]]:
    return [(first, count) for first in range(flush.count) for count in range(1, flush.count - first + 1)]


@pytest.mark.parametrize("block", [1, timer_log.FIRST_BLOCK])
def test_what_a_piece_of_any_pass_has_lost_is_read_again_from_the_hours_chain(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a run is read in several blocks, and the highest message of a pass is not in the last one."""
    monkeypatch.setattr(timer_log, "FIRST_BLOCK", block)
    monkeypatch.setattr(timer_log, "LARGEST_BLOCK", block)
    world = a_cascade_of_three_passes()
    pieces = pieces_in(world)
    assert len(pieces) >= 6, "of three passes"
    content = without_log(world, without_wheels(content_of(world.disk)))
    for flush in pieces:
        for first, count in parts_of(flush):
            check_mended(world, flush, damaged(content, flush, first, count))


def test_two_pieces_that_have_lost_all_are_read_again_one_after_the_other() -> None:
    world = a_cascade_of_three_passes()
    pieces = pieces_in(world)
    content = without_log(world, without_wheels(content_of(world.disk)))
    for flush in pieces:
        content = damaged(content, flush, 0, flush.count)
    disk = disk_of(content, 1)
    assert persist.recover(disk, ROOT, SMALL)[1].repaired == [flush.position for flush in pieces]
    assert timer_files(disk) == timer_files(world.disk)


def an_hour_whose_chain_is_freed() -> World:
    """Its pieces are in the TimerLog's last file, a cleaning has taken the others."""
    world, due = about_to_come_down()
    while world.shard.index.minute_bound_ms <= due:
        for step in CASCADE:
            getattr(world, step)()
    world.clean()
    return world


def test_a_piece_whose_chain_is_freed_is_read_again_from_the_frames() -> None:
    world = an_hour_whose_chain_is_freed()
    content = without_wheels(content_of(world.disk))
    first, *others = pieces_in(world)
    assert len(others) == 2
    assert first.position == checkpoint_of(world.disk).timer_start, "nothing says any more which hour came down here"
    for flush in (first, *others):
        for part in parts_of(flush):
            if (flush, part) != (first, (0, first.count)):
                check_mended(world, flush, damaged(content, flush, *part))


def test_a_piece_that_is_the_first_left_of_its_hour_is_read_again_up_to_its_first_sound_unit() -> None:
    """The pieces before it are freed too: where it begins, its number of units says."""
    world = World(1, replace(SMALL, timer_segment_bytes=52 * 8))
    first = 30 * HOUR_MS
    world.enqueue([Item(first + at * MINUTE_MS) for at in range(9)])
    world.checkpoint()
    due = world.now + first
    while world.shard.index.minute_bound_ms + HOUR_MS <= due:
        world.advance(10 * MINUTE_MS)
        world.settle()
    world.advance(HOUR_MS)
    while world.shard.index.minute_bound_ms <= due:
        for step in CASCADE:
            getattr(world, step)()
    world.clean()
    world.checkpoint()  # the files before it were kept for the one before
    flush = pieces_in(world)[0]
    assert flush.position == checkpoint_of(world.disk).timer_start
    content = without_wheels(content_of(world.disk))
    units = np.frombuffer(content[flush.path][flush.block(0, flush.count)], STORED)
    assert units["seq"].tolist() == [6, 7, 8]
    check_mended(world, flush, damaged(content, flush, 0, 2))


def test_what_neither_the_chain_nor_the_log_has_any_more_stays_refused() -> None:
    world = an_hour_whose_chain_is_freed()
    content = without_wheels(content_of(world.disk))
    first, *others = pieces_in(world)
    bad = [damaged(content, first, 0, first.count)]
    bad += [damaged(without_log(world, content), flush, *part) for flush in others for part in parts_of(flush)]
    for files in bad:
        disk = disk_of(files, 1)
        with pytest.raises(Damaged, match="can't be made again"):
            persist.recover(disk, ROOT, SMALL)
        assert timer_files(disk) == timer_files(disk_of(files, 1)), "left as it was"


def test_a_piece_that_has_lost_its_end_does_not_take_the_rest_of_the_hour_into_memory() -> None:
    """How far it went is not known: all that frames say of the rest of the hour may be its own."""
    world = an_hour_whose_chain_is_freed()
    flush, *_ = pieces_in(world)
    most = 6
    folded: list[int] = []

    def counted(units: Records) -> Records:
        folded.append(len(units))
        return cascaded_units(units)

    with patch.object(timer_pieces, "MAX_UNITS", most), patch.object(timer_pieces, "cascaded_units", counted):
        check_mended(world, flush, damaged(without_wheels(content_of(world.disk)), flush, 1, 2))
    assert max(folded) <= most, "of seven messages that come after the one that is sound"


def test_a_shard_whose_half_done_hour_was_mended_goes_on_as_if_nothing_had_happened() -> None:
    for piece in range(2):
        world, due = about_to_come_down()
        for _ in range(2):
            for step in CASCADE:
                getattr(world, step)()
        world.checkpoint()
        assert world.shard.index.cascade is not None
        flush = pieces_in(world)[piece]
        world.disk.files[flush.path].data[flush.block(0, flush.count)] = bytes(STORED.itemsize * flush.count)
        world.kill()  # opens it, and compares everything
        assert world.recovery.repaired == [flush.position]
        world.check_wheel()
        world.now = due + 500
        world.settle()
        assert not world.model.live
