"""Long lives of a shard, and the files that they left: for tests of what happens when those are damaged."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from unittest.mock import patch

from delayapi.units import HOUR_MS
from delaynode.store import formats

from tests.store.support import world as worlds
from tests.store.support.consuming import World
from tests.store.support.damaging import Content, content_of
from tests.store.support.examining import Past
from tests.store.support.producing import Item
from tests.store.support.steps import CONSUMERS, JOBS, MESSAGES, TIDYING
from tests.store.support.world import SMALL

EVERYTHING = MESSAGES | JOBS | CONSUMERS | TIDYING
STEPS = {name: step for name, step in EVERYTHING.items() if name not in ("advance", "check wheel")}
DELAYS_MS = (-5, 0, 10, 10, 1_500, 50_000, HOUR_MS, 5 * HOUR_MS, 20 * HOUR_MS, 26 * HOUR_MS, 29 * HOUR_MS)


@dataclass(frozen=True, slots=True)
class Life:
    past: Past
    earlier: tuple[Content, ...]


def a_long_life(seed: int, uid: int = worlds.UID, *, chunk_units: int = SMALL.chunk_units) -> Life:
    """Appends, cancels, moves, ticks, groups, acks, nacks, dead letters, checkpoints, copies of the wheels; files are
    trimmed, emptied and cleaned.
    """
    rng = random.Random(f"life {seed}")
    config = replace(
        SMALL, horizon_ms=30 * HOUR_MS, log_segment_bytes=rng.choice((300, 1500, 6000)),
        timer_segment_bytes=rng.choice((200, 700, 4000)), queue_segment_bytes=rng.choice((100, 300, 2000)),
        chunk_units=chunk_units, format=random.Random(f"{seed}/ids").choice((formats.OLDEST, formats.NEWEST)),
    )  # fmt: skip
    with patch.object(worlds, "UID", uid):
        world = World(seed, config)
    names = [name for name, (weight, _) in STEPS.items() for _ in range(weight)]
    earlier = []
    parts = rng.choice((2, 3, 4))
    for part in range(parts):
        world.join("a")
        for n in range(3):
            due = [Item(rng.choice(DELAYS_MS), size=rng.randint(1, 50)) for _ in range(rng.randint(3, 8))]
            world.enqueue(due, producer=n, number=part if n else 0)
        live = sorted(world.model.live)
        world.cancel(*rng.sample(live, min(3, len(live))))
        for key in rng.sample(live, min(2, len(live))):
            world.reschedule(key, Item(rng.choice(DELAYS_MS)))
        for _ in range(rng.choice((5, 15, 40))):
            STEPS[rng.choice(names)][1](world, rng.randint)
        world.advance(rng.choice((1000, 60_000, HOUR_MS, 5 * HOUR_MS)))
        world.settle()
        for _ in range(2):
            world.nack("a", [(offset, attempt) for offset in world.deliver("a", 2) for attempt in (1, 2)], 0)
        world.pump()
        if rng.random() < 0.6:
            visible = world.visible
            world.ack("a", [(visible // 2, visible)] if visible > 1 else [])
            world.trim()
        if rng.random() < 0.4:
            world.clean()
            world.empty_all()
        world.pump()
        if rng.random() < 0.4:
            world.kill()  # the next term has a higher epoch
            world.pump()
        earlier.append(content_of(world.disk))
        if part < parts - 1 or rng.random() < 0.3:
            world.checkpoint()
            if rng.random() < 0.6:
                world.copy_wheels()
            earlier.append(content_of(world.disk))
    for _ in range(rng.choice((0, 3, 10))):
        STEPS[rng.choice(names)][1](world, rng.randint)
    world.pump()
    return Life(Past(world, content_of(world.disk)), tuple(earlier))
