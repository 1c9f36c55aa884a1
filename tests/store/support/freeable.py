"""Worlds in which much has died, so that disk can be freed, and what is done to them."""

from __future__ import annotations

from dataclasses import replace

from delayapi.units import DAY_MS, HOUR_MS

from tests.store.support.consuming import World
from tests.store.support.lives import files_in
from tests.store.support.producing import Item
from tests.store.support.world import SMALL

FREE = replace(
    SMALL, window_budget=10**6, max_unacked=1000, log_segment_bytes=1000, timer_segment_bytes=52 * 12,
    queue_segment_bytes=40 * 10, max_tick=1000,
)  # fmt: skip
FAR = Item(30 * DAY_MS, size=50)
NEAR = Item(10_000, size=50)


def mixed(batches: int = 6, far: int = 1, near: int = 9, *, trimmed: bool = True) -> World:
    """Batches of far and near messages; the near ones are released, consumed and kept no longer."""
    world = World(3, FREE)
    world.join("g")
    for _ in range(batches):
        world.enqueue([FAR] * far + [NEAR] * near)
        world.pump()
        consume_near(world)
    if trimmed:
        world.trim()
    world.checkpoint()
    return world


def consumed() -> World:
    """Batches of near messages, all released and consumed; nothing has been trimmed since, nor a checkpoint taken."""
    world = World(1, FREE)
    world.join("g")
    for _ in range(6):
        world.enqueue([NEAR] * 6)
        world.pump()
    consume_near(world)
    return world


def aged(cancels: int = 0, chunk_units: int = FREE.chunk_units) -> World:
    """Many flushes of short runs, some of them cancelled, the near ones released."""
    world = World(9, replace(FREE, chunk_units=chunk_units))
    for n in range(12):
        world.enqueue([Item(HOUR_MS * (25 + 3 * k) + n) for k in range(3)] + [Item(3000 + n)] * 3)
        if n == 5 and cancels:
            world.cancel(*sorted(world.model.live)[-cancels:])
        world.pump()
        world.checkpoint()
    world.advance(5000)
    world.settle()
    consume_all(world)
    world.trim()
    world.checkpoint()
    return world


def coming_down() -> World:
    """A cascade of an hour with four far messages to the minute level has read the hour, and is not finished."""
    world = World(5, FREE)
    for _ in range(4):
        world.enqueue([Item(26 * HOUR_MS, size=50), *[NEAR] * 9])
        world.pump()
    consume_near(world)
    world.trim()
    world.checkpoint()
    while world.cascading is None or not world.cascading.slot.num:
        world.finish_cascade()
        world.advance(HOUR_MS)
        world.begin_cascade()
        world.run_cascade()
        assert world.now < world.born + 26 * HOUR_MS
    return world


def spared(part: str) -> tuple[World, list[str]]:
    """The newest checkpoint does without some files of this part, which are kept for the one before it; and others are
    of use. Returns those that go with the next checkpoint."""
    world = aged() if part == "timerlog" else mixed()
    if part == "timerlog":
        world.clean()
    if part == "log":
        world = consumed()
        world.checkpoint()
        world.trim()
        world.trim()
        world.pump()
        world.checkpoint()
        world.enqueue([FAR] * 40)
        world.pump()
    later = world.twin(world.disk.copy(), world.shard.log.end)
    later.checkpoint()
    left = files_in(later.disk, f"{part}/")
    spare = [path for path in files_in(world.disk, f"{part}/") if path not in left]
    assert spare
    return world, spare


def come_down(world: World) -> None:
    """Finish that cascade, free disk, then release all messages and read every body."""
    world.finish_cascade()
    world.pump()
    free(world)
    world.power_cut()
    release_all(world)
    world.power_cut()  # reads every body


def consume_all(world: World, group: str = "g") -> None:
    world.join(group)
    world.pump()
    while offsets := world.deliver(group, 100):
        world.ack(group, [(offset, offset + 1) for offset in sorted(offsets)])
        world.pump()


def consume_near(world: World) -> None:
    """NEAR messages fall due and are consumed."""
    world.advance(11_000)
    world.settle()
    consume_all(world)


def emptying(world: World) -> None:
    """A segment is being emptied: what it still holds has been read."""
    world.begin_empty(0)
    world.run_empty()
    assert world.emptying is not None
    assert world.emptying.batches


def free(world: World) -> None:
    """TRIMs for all that can go, and checkpoints that do without it."""
    for _ in range(3):
        world.trim()
        world.checkpoint()


def release_all(world: World) -> None:
    """The last message falls due; every body is compared."""
    world.now = max(world.model.live)[0]
    world.settle()


def log_bytes(world: World) -> int:
    return sum(world.disk.size(path) for path in files_in(world.disk, "log/"))
