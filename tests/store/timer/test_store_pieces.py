"""Units that wait for a flush are laid out in pieces, and read in blocks: memory does not depend on their number."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from delayapi.units import HOUR_MS, MINUTE_MS
from delaynode.store.maintenance import persist
from delaynode.store.timer import timer_log
from delaynode.store.timer.index import TimerIndex
from delaynode.store.timer.jobs import SORTED_FROM, TimerView
from delaynode.store.timer.timer_log import HEADER, STORED, TimerLog, own_checks
from delaynode.store.timer.units import DEFAULT, units
from delaynode.store.timer.wheel import TimerWheel
from delaynode.store.types import I64, MAX_SEQ, Array, Pair, Records

from tests.store.support.consuming import World
from tests.store.support.lives import files_in
from tests.store.support.memory_files import MemoryFiles
from tests.store.support.producing import Item
from tests.store.support.world import ROOT, SMALL

START_MS = 1_700_000_000_000 // HOUR_MS * HOUR_MS
MANY, PIECE = 200_000, 10_000


@contextmanager
def laid_out() -> Iterator[list[int]]:
    """Collects the number of units of each layout."""
    sizes: list[int] = []

    def counted(stored: Records, place: I64, uid: int) -> Array:
        sizes.append(len(stored))
        return own_checks(stored, place, uid)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(timer_log, "own_checks", counted)
        yield sizes


def an_index(chunk_units: int) -> TimerIndex:
    """An index with MANY arrivals, in batches, over both levels."""
    log = TimerLog(MemoryFiles(random.Random(1)), "timerlog", 64 << 20)
    watermark = Pair(START_MS, MAX_SEQ)
    index = TimerIndex(log, 40 * 24 * HOUR_MS, watermark, START_MS + 2 * HOUR_MS, chunk_units=chunk_units)
    dues = START_MS + MINUTE_MS + np.random.default_rng(1).integers(0, 4 * HOUR_MS, MANY)
    for at in range(0, MANY, PIECE // 4):
        due = dues[at : at + PIECE // 4]
        index.insert(units(due, np.arange(at, at + len(due)), 0, 10, 0, 0, DEFAULT))
    return index


def test_a_flush_of_ordinary_arrivals_lays_out_no_more_than_a_piece_at_a_time() -> None:
    world = World(1, SMALL)
    for _ in range(5):
        world.enqueue([Item(5 * HOUR_MS)] * 4)
    with laid_out() as sizes:
        world.checkpoint()
    assert sum(sizes) == 20
    assert max(sizes) <= SMALL.chunk_units, "3 of 20"
    for aftermath in (world.check_wheel, world.power_cut, world.check_wheel):
        aftermath()
    world.advance(5 * HOUR_MS)
    world.settle()
    assert len(world.model.queue) == 20


def test_a_flushs_memory_is_that_of_a_piece() -> None:
    """MANY units take 30 MB when they are laid out at once, beside the 9 MB in which they wait."""
    tracemalloc.start()
    try:
        index = an_index(PIECE)
        files = index.log.file.files
        assert isinstance(files, MemoryFiles)
        files.append = lambda path, buffers: None  # type: ignore[method-assign] # its pages are memory, too
        files.sync = lambda path: None  # type: ignore[method-assign]
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        job = index.begin_flush((0, 0))
        job.run()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    index.finish_flush(job)
    assert index.minute.slots["num"].sum() + index.hour.slots["num"].sum() == MANY
    assert peak - before < 6e6


def test_wheels_are_rebuilt_from_a_large_flush_block_by_block() -> None:
    """Such flushes are in the TimerLogs of older programs: 40 MB when they are read whole."""
    index = an_index(MANY)
    job = index.begin_flush((0, 0))
    job.run()
    index.finish_flush(job)
    minute, hour = (TimerWheel(wheel.width_ms, len(wheel.slots)) for wheel in (index.minute, index.hour))
    tracemalloc.start()
    try:
        assert index.log.rebuild(minute, hour, 0) == MANY
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20e6
    assert (minute.slots == index.minute.slots).all()
    assert (hour.slots == index.hour.slots).all()


def test_pieces_leave_the_wheels_as_one_flush_would() -> None:
    counts, chains = [], []
    for chunk_units in (PIECE, PIECE - 77, MANY):
        index = an_index(chunk_units)
        job = index.begin_flush((0, 0))
        job.run()
        index.finish_flush(job)
        counts.append((index.minute.slots["num"].tolist(), index.hour.slots["num"].tolist()))
        hour = int(index.hour.slots["time"].max())
        last = int(index.hour.last_positions(np.array([hour]))[0])
        chain = [run[["due", "seq"]] for run in index.log.walk(last, hour, HOUR_MS)]
        chains.append(np.sort(np.concatenate(chain)).tolist())
    assert counts[0] == counts[1] == counts[2]
    assert chains[0] == chains[1] == chains[2]


@pytest.mark.parametrize("calls", range(12))
def test_a_checkpoint_that_ends_between_two_pieces_loses_nothing(calls: int) -> None:
    """Whatever of them is on disk, a recovery cuts off what the checkpoint does not name."""
    world = World(calls, SMALL)
    world.enqueue([Item(5 * HOUR_MS + n) for n in range(6)])
    world.checkpoint()
    world.enqueue([Item(5 * HOUR_MS + n) for n in range(9)])
    live = sorted(world.model.live)
    world.cancel(live[0], live[8], live[14])
    world.pump()
    world.begin_checkpoint()
    world.disk.crash_after(calls)
    world.run_checkpoint()
    world.disk.crash_after(None)
    world.finish_checkpoint()
    world.power_cut()
    world.check_wheel()
    world.checkpoint()
    world.check_wheel()
    world.advance(5 * HOUR_MS + 100)
    world.settle()
    assert len(world.model.queue) == 12


def test_messages_that_are_released_before_their_flush_are_in_none_of_its_pieces() -> None:
    world = World(1, replace(SMALL, window_budget=10**6))
    for n in range(4):
        world.enqueue([Item(1), Item(5 * HOUR_MS), Item(2 + n)])
    world.advance(1000)
    world.settle()
    world.checkpoint()
    files = [np.frombuffer(bytes(world.disk.files[path].data), STORED) for path in files_in(world.disk, "timerlog")]
    headers = [int(units_["offset"][units_["magic"] == HEADER].sum()) for units_ in files]
    assert sum(headers) == 4
    assert max(int(count) for units_ in files for count in units_["offset"][units_["magic"] == HEADER]) == 3


# ---------------------------------------------------------------- applying a log in steps
def test_a_log_that_is_applied_in_light_steps_holds_a_bounded_number_of_units() -> None:
    """A chosen copy applies its log so. Above `max_unflushed` units it makes a checkpoint before it goes on."""
    config = replace(SMALL, flush_units=6)
    world = World(1, config)
    for _ in range(20):
        world.enqueue([Item(5 * HOUR_MS)] * 4)
    world.pump()
    world.disk.kill()
    shard, _ = persist.recover(world.disk, ROOT, config, replay=False)
    assert shard.applied < shard.log.end
    most = steps = 0
    while shard.applied < shard.log.end:
        persist.replay(shard, shard.log.end, light=True)
        most, steps = max(most, shard.index.unflushed), steps + 1
        if shard.applied < shard.log.end:
            persist.make_room(world.disk, ROOT, shard)
    assert most < config.max_unflushed + 4, "of 80"
    assert steps > 4
    world.kill()  # opens it again, from the last of those checkpoints, and compares everything
    world.check_wheel()
    world.advance(5 * HOUR_MS)
    world.settle()
    assert len(world.model.queue) == 80


def test_a_light_step_ends_before_an_hour_that_must_come_down() -> None:
    world = World(1, SMALL)
    world.enqueue([Item(30 * HOUR_MS + n) for n in range(8)])
    world.checkpoint()
    content = world.disk.copy()
    world.advance(31 * HOUR_MS)
    world.settle()
    assert len(world.model.queue) == 8
    for path in files_in(world.disk, "log/"):  # the log has the ticks, the rest is as of before
        content.replace(path, bytes(world.disk.files[path].data))
    shard, _ = persist.recover(content, ROOT, SMALL, replay=False)
    pieces = 0
    while shard.applied < shard.log.end:
        bound, cascade = shard.index.minute_bound_ms, shard.index.cascade
        persist.replay(shard, shard.log.end, light=True)
        assert (shard.index.minute_bound_ms, shard.index.cascade) == (bound, cascade)
        if shard.applied < shard.log.end:
            persist.make_room(content, ROOT, shard)
            pieces += 1
    assert pieces > 3
    assert shard.queue.end == 8


def waiting(sizes: list[int], dues: int) -> list[Records]:
    """Arrays of units with dues below `dues`, seqs in order of arrival."""
    rng, seq, parts = np.random.default_rng(2), 0, []
    for size in sizes:
        parts.append(units(rng.integers(0, dues, size), np.arange(seq, seq + size), 0, 10, 0, 0, DEFAULT))
        seq += size
    return parts


@pytest.mark.parametrize("bounds", [(Pair(0, 0), Pair(9, 0)), (Pair(2, 0), Pair(5, 0)), (Pair(2, 40), Pair(5, 70))])
def test_units_that_wait_are_found_alike_however_often_somebody_asks(bounds: tuple[Pair, Pair]) -> None:
    view = TimerView(an_index(PIECE).log, [], waiting([0, 50, 1, 0, 60, 3], dues=9))
    answers = [view.recent(*bounds).tolist() for _ in range(2 * SORTED_FROM)]
    assert len(answers[0]) > 20
    assert all(answer == answers[0] for answer in answers)
    even = view.recent(*bounds, lambda rows: rows["seq"] % 2 == 0)
    assert 0 < len(even) < len(answers[0])
    assert not (even["seq"] % 2).any()


def test_who_looks_among_many_units_that_wait_copies_none_of_them() -> None:
    """A copy in order of due would be 44 B a unit, twice that while it is made."""
    parts = waiting([MANY // 4] * 4, dues=HOUR_MS)
    view = TimerView(an_index(PIECE).log, [], parts)
    tracemalloc.start()
    try:
        for slot in range(2 * SORTED_FROM):
            view.recent(Pair(slot * MINUTE_MS, 0), Pair((slot + 1) * MINUTE_MS, 0))
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 14 * MANY, "12 B a unit"
    assert peak < 40 * MANY
