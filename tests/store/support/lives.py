"""A short life that leaves something in every file of a shard, and looks at those files."""

from __future__ import annotations

import random

from delayapi.units import DAY_MS, HOUR_MS
from delaynode.store.log.commit_log import CommitLog
from delaynode.store.log.frames import Frame
from delaynode.store.maintenance import checkpoint as ck

from tests.store.support.consuming import World
from tests.store.support.memory_files import MemoryFiles
from tests.store.support.producing import Item
from tests.store.support.world import ROOT, SMALL, UID


def some_items(rng: random.Random, count: int) -> list[Item]:
    delays = (-1, 1, 50, 1000, 70_000, HOUR_MS, 30 * HOUR_MS, 38 * HOUR_MS, 5 * DAY_MS)
    return [Item(rng.choice(delays) + rng.randint(0, 3), size=rng.randint(1, 40)) for _ in range(count)]


def a_life(world: World, rng: random.Random, *, wheels: bool = True) -> None:
    """A bit of everything: two checkpoints, a copy of the wheels at the first, frames after the second."""
    for part in range(3):
        world.join("g", ("red",) if part == 1 else ())
        for _ in range(3):
            world.enqueue(some_items(rng, 4), producer=rng.randint(1, 2) * (part > 0), number=0)
            world.pump()
        world.advance(1500)
        world.settle()
        live = sorted(world.model.live)
        if len(live) > 2:  # a crash may have taken them
            world.cancel(live[0], live[-1])
            world.reschedule(live[1], Item(3000))
        offsets = world.deliver("g", 3)
        world.ack("g", [(offset, offset + 1) for offset in sorted(offsets)[:1]])
        world.nack("g", [(offset, 1) for offset in offsets[1:]], 5000)
        world.advance(6 * HOUR_MS)  # an hour or two comes down to minutes
        world.settle()
        if part < 2:
            world.checkpoint()
        if part == 0 and wheels:
            world.copy_wheels()
    world.pump()


def lived(seed: int, *, wheels: bool = True) -> World:
    world = World(seed, SMALL)
    a_life(world, random.Random(seed), wheels=wheels)
    return world


def frames_of(world: World, disk: MemoryFiles | None = None) -> list[Frame]:
    log = CommitLog.open(disk or world.disk.copy(), f"{ROOT}/log", UID, SMALL.log_segment_bytes)
    return list(log.scan(0))


def checkpoint_of(disk: MemoryFiles) -> ck.Checkpoint:
    read = ck.read(disk, f"{ROOT}/checkpoint")
    assert read is not None
    return read[0]


def files_in(disk: MemoryFiles, part: str) -> list[str]:
    return sorted(path for path in disk.files if path.startswith(f"{ROOT}/{part}"))


def pieces_of(disk: MemoryFiles, part: str) -> list[tuple[str, int]]:
    """(path, start offset) of a segmented file's segments."""
    return [(path, int(path.rsplit("/", 1)[1])) for path in files_in(disk, f"{part}/")]
