"""A bad flush of the TimerLog is made again from its log range, to the last bit, or the copy is refused."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
from delaynode.store.errors import Damaged
from delaynode.store.maintenance import persist
from delaynode.store.timer.timer_log import HEADER, STORED, UNIT_BYTES
from delaynode.store.verify.timer_log_repair import repair_timer_log

from tests.store.support.consuming import World
from tests.store.support.damaging import Content, content_of, disk_of, part_of
from tests.store.support.examining import Past, examine
from tests.store.support.histories import Life, a_long_life
from tests.store.support.lives import checkpoint_of, files_in, lived, pieces_of
from tests.store.support.memory_files import MemoryFiles
from tests.store.support.producing import Item
from tests.store.support.walks import times
from tests.store.support.world import ROOT, SMALL


def timer_files(disk: MemoryFiles) -> Content:
    return {path: bytes(disk.files[path].data) for path in files_in(disk, "timerlog")}


def without_wheels(content: Content) -> Content:
    """A recovery then reads all of the TimerLog."""
    return {path: data for path, data in content.items() if part_of(path) != "wheels"}


@dataclass(frozen=True, slots=True)
class Flush:
    """Where a flush lies."""

    path: str
    at: int  # byte in the file
    position: int
    count: int

    def block(self, first: int, count: int) -> slice:
        """The bytes of its units [first, first + count)."""
        return slice(self.at + UNIT_BYTES * (1 + first), self.at + UNIT_BYTES * (1 + first + count))


def flushes_of(disk: MemoryFiles) -> list[Flush]:
    found = []
    for path, base in pieces_of(disk, "timerlog"):
        units = np.frombuffer(bytes(disk.files[path].data), STORED)
        for at in np.flatnonzero(units["magic"] == HEADER).tolist():
            found.append(Flush(path, UNIT_BYTES * at, base + UNIT_BYTES * at, int(units[at]["offset"])))
    return found


def one_checkpoint(messages: int = 40, chunk_units: int = 1000) -> World:
    """A shard with one checkpoint's far messages, some cancelled, some moved: 45 units."""
    world = World(1, replace(SMALL, chunk_units=chunk_units, timer_segment_bytes=UNIT_BYTES * 20))
    for _ in range(messages // 5):
        world.enqueue([Item(3_600_000 + 60_000 * n, size=9) for n in range(5)])
    live = sorted(world.model.live)
    world.cancel(*live[3:6])
    world.reschedule(live[7], Item(7_200_000))
    world.pump()
    world.checkpoint()
    return world


@pytest.mark.parametrize("what", ["zeros", "garbage", "the body", "a unit of another place"])
def test_a_block_that_is_lost_is_made_again_from_the_log(what: str) -> None:
    world = one_checkpoint()
    before = timer_files(world.disk)
    (flush,) = flushes_of(world.disk)
    data = world.disk.files[flush.path].data
    block = flush.block(0, flush.count) if what == "the body" else flush.block(2, 7)
    if what == "zeros":
        data[block] = bytes(7 * UNIT_BYTES)
    elif what == "a unit of another place":
        data[flush.block(2, 1)] = data[flush.block(9, 1)]
    else:
        data[block] = random.Random(1).randbytes(block.stop - block.start)
    assert timer_files(world.disk) != before
    world.kill()  # opens it, and compares everything
    assert world.recovery.repaired == [flush.position]
    assert timer_files(world.disk) == before
    world.kill()
    assert world.recovery.repaired == []
    world.advance(8_000_000)
    world.settle()
    assert not world.model.live


def test_every_bit_of_a_timer_log_that_flips_is_turned_back() -> None:
    """Also in units that no frame says anything of: hours that came down to minutes."""
    world = lived(3)
    world.checkpoint()  # what is not in one is made anew
    content = without_wheels(content_of(world.disk))
    good = {path: data for path, data in content.items() if part_of(path) == "timerlog"}
    rng = random.Random(1)
    for case in range(times(200)):
        path = rng.choice(sorted(good))
        disk = disk_of(content, case)
        disk.flip(path, rng.randrange(8 * len(good[path])))
        _, recovery = persist.recover(disk, ROOT, SMALL)
        assert len(recovery.repaired) == 1
        assert timer_files(disk) == good


@pytest.mark.parametrize("bad", [[0], [3], [4], [0, 1, 2, 3, 4], [1, 3]])
def test_pieces_of_one_checkpoint_are_made_again_from_the_log_range_that_they_share(bad: list[int]) -> None:
    """Five of ten units, in order of arrival; of each bad one half its units are lost."""
    world = one_checkpoint(chunk_units=10)
    world.enqueue([Item(3_600_000, size=9)] * 5)
    world.checkpoint()  # of another log range
    before, flushes = timer_files(world.disk), flushes_of(world.disk)
    assert [flush.count for flush in flushes] == [10, 10, 10, 10, 5, 5]
    assert len({flush.path for flush in flushes[:5]}) == 1, "a cleaning takes all of them or none"
    for piece in bad:
        flush = flushes[piece]
        block = flush.block(0, flush.count // 2)
        world.disk.files[flush.path].data[block] = random.Random(1).randbytes(block.stop - block.start)
    world.kill()
    assert world.recovery.repaired == [flushes[piece].position for piece in bad]
    assert timer_files(world.disk) == before
    world.advance(8_000_000)
    world.settle()
    assert not world.model.live


def test_what_the_log_does_not_say_any_more_stays_refused() -> None:
    """Two units are lost, and the frames that they are from: nobody knows what they said."""
    world = one_checkpoint()
    (flush,) = flushes_of(world.disk)
    world.disk.files[flush.path].data[flush.block(2, 2)] = bytes(2 * UNIT_BYTES)
    content = content_of(world.disk)
    world.disk.files[files_in(world.disk, "log/")[0]].data[200:203] = b"bad"  # a frame of the range
    with pytest.raises(Damaged, match=f"the flush at {flush.position} is bad"):
        persist.recover(world.disk, ROOT, SMALL)
    assert persist.recover(disk_of(content, 1), ROOT, SMALL)[1].repaired == [flush.position]


def test_a_flush_of_whose_frames_some_are_freed_is_made_again_from_the_others() -> None:
    """A unit that is lost and whose frame is still there can be mended; one whose frame is freed can't."""
    config = replace(SMALL, chunk_units=100)
    world = World(1, config)
    for _ in range(8):
        world.enqueue([Item(3_600_000 + 60_000 * n, size=60) for n in range(5)])
        world.pump()
    world.checkpoint()
    kept = sorted(world.model.live)[-1]  # of the last frame
    world.cancel(*[key for key in world.model.live if key[1] < 20])
    world.pump()
    world.checkpoint()
    world.trim()
    world.pump()
    world.checkpoint()
    world.checkpoint()
    content = without_wheels(content_of(world.disk))
    flush = flushes_of(world.disk)[0]
    assert files_in(world.disk, "log/")[0] != f"{ROOT}/log/{0:020d}", "the first segment is freed"
    units = np.frombuffer(content[flush.path][flush.block(0, flush.count)], STORED)
    for seq, mended in ((kept[1], True), (0, False)):
        row = int(np.flatnonzero(units["seq"] == seq)[0])
        disk = disk_of(content, 1)
        disk.files[flush.path].data[flush.block(row, 1)] = bytes(UNIT_BYTES)
        if mended:
            assert persist.recover(disk, ROOT, config)[1].repaired == [flush.position]
            assert timer_files(disk) == timer_files(world.disk)
        else:
            with pytest.raises(Damaged, match=f"the flush at {flush.position} is bad"):
                persist.recover(disk, ROOT, config)


@pytest.fixture(scope="module")
def lives() -> list[Life]:
    """With pieces that are not so small that each damage is of a header, too."""
    return [a_long_life(7_300 + n, chunk_units=20) for n in range(12)]


def test_a_damaged_timer_log_becomes_what_it_was_or_is_refused_never_anything_else(lives: list[Life]) -> None:
    outcomes: Counter[str] = Counter()
    for case in range(times(300)):
        rng = random.Random(f"mending {case}")
        life = rng.choice(lives)
        content = without_wheels(life.past.content)
        good = {path: data for path, data in content.items() if part_of(path) == "timerlog"}
        paths = [path for path in sorted(good) if good[path]]
        if not paths:
            continue
        path = rng.choice(paths)
        at = rng.randrange(len(good[path]))
        size = rng.choice((1, 8, 52, 104, 400))
        data = bytearray(good[path])
        data[at : at + size] = rng.randbytes(min(size, len(data) - at))
        disk = disk_of(content | {path: bytes(data)}, case)
        try:
            _, recovery = persist.recover(disk, ROOT, life.past.config)
        except Damaged:
            outcomes["refused"] += 1
            continue
        start = checkpoint_of(disk).timer_start  # what lies before is not read any more
        kept = {path: data for path, data in timer_files(disk).items() if int(path[-20:]) + len(data) > start}
        assert kept == {path: good[path][: len(kept[path])] for path in kept}, f"case {case}: not what it was"
        outcomes["mended" if recovery.repaired else "not needed"] += 1
        if recovery.repaired and case % 10 == 0:
            examine(life.past, disk)
    assert outcomes["mended"] > outcomes.total() // 3, outcomes


def test_the_flushes_below_the_wheels_copy_are_mended_on_demand() -> None:
    """A recovery reads none of them; a chain that leads there would."""
    world = lived(3)
    disk, good = world.disk, timer_files(world.disk)
    path = min(good)
    assert checkpoint_of(disk).timer_end > len(good[path])
    disk.flip(path, 8 * 100)
    assert persist.recover(disk.copy(), ROOT, SMALL)[1].repaired == []
    assert repair_timer_log(disk, ROOT) == [flushes_of(disk)[0].position]
    assert timer_files(disk) == good
    assert repair_timer_log(disk, ROOT) == []
    examine(Past(world, content_of(disk)), disk)
