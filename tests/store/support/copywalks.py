"""Random walks of a shard's copies: what may happen next to a master, to its slaves, and between them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

from delayapi.units import DAY_MS, HOUR_MS
from delaynode.store.config import ShardConfig
from delaynode.store.log import batches
from delaynode.store.maintenance import snapshot

from tests.store.support.replicating import Cluster, Copy, check_well
from tests.store.support.steps import CONSUMERS, JOBS, MESSAGES, TIDYING, TROUBLE, Draw, Step
from tests.store.support.walks import small_blocks
from tests.store.support.world import SMALL


def a_slave(cluster: Cluster, draw: Draw) -> Copy:
    slave = cluster.slaves[draw(0, len(cluster.slaves) - 1)]
    slave.now = cluster.master.now
    return slave


ClusterStep = Callable[[Cluster, Draw], object]
ClusterSteps = dict[str, tuple[int, ClusterStep]]


def of_master(step: Step) -> ClusterStep:
    return lambda cluster, draw: step(cluster.master, draw)


def of_slave(step: Callable[[Copy, Draw], object]) -> ClusterStep:
    return lambda cluster, draw: step(a_slave(cluster, draw), draw)


def promote(cluster: Cluster, draw: Draw) -> None:
    if cluster.in_sync:
        best = max(cluster.in_sync, key=lambda one: one.shard.log.end)
        best.now = cluster.master.now
        best.promote(draw)


def shrink(cluster: Cluster, draw: Draw) -> None:
    if cluster.in_sync:
        cluster.in_sync.pop(draw(0, len(cluster.in_sync) - 1))


NOT_OF_SLAVES = ("commit", "pump", "check wheel", "half an hour down")  # a slave stores nothing of its own accord
SLAVE_JOBS = {name: JOBS[name] for name in JOBS if name not in NOT_OF_SLAVES}
CLEANING = {name: TIDYING[name] for name in TIDYING if "clean" in name and name != "clean"}


def all_steps() -> ClusterSteps:
    """Each step by its name: its weight, and what it does."""
    made: ClusterSteps = {}
    for name, (weight, step) in (MESSAGES | JOBS | TIDYING | CONSUMERS | TROUBLE).items():
        made[name] = (weight, of_master(step))
    for name, (weight, step) in (SLAVE_JOBS | CLEANING | TROUBLE).items():
        if name != "stop":
            made[f"slave: {name}"] = (weight, of_slave(step))
    return made | {
        "slave: feed": (15, of_slave(lambda w, d: w.feed(d))),
        "slave: write": (8, of_slave(lambda w, d: w.write())),
        "slave: apply": (10, of_slave(lambda w, d: w.apply(d))),
        "slave: cut": (2, of_slave(lambda w, d: w.cut(d))),
        "slave: fetch": (1, of_slave(lambda w, d: w.fetch(w.cluster.master))),
        "slave: look": (1, of_slave(lambda w, d: check_well(w.disk.copy()))),
        "grow": (6, lambda c, d: c.grow(a_slave(c, d))),
        "shrink": (2, shrink),
        "promote": (3, promote),
        "catch up": (1, lambda c, d: c.catch_up(d)),
    }


def walk(
    seed: int, length: int, steps: dict[str, tuple[int, ClusterStep]], config: ShardConfig | None = None
) -> Cluster:
    """Take `length` steps, drawn from the seed by their weights; then the finale."""
    rng = random.Random(seed)
    names = [name for name, (weight, _) in steps.items() for _ in range(weight)]
    done: list[str] = []
    with (
        small_blocks(rng),
        patch.object(batches, "SYNCED_LIMIT_LAG_BYTES", rng.choice([0, 500, 16 << 20])),
        patch.object(snapshot, "CHUNK_BYTES", rng.choice([50, 1000, 512 << 10])),
    ):
        try:
            cluster = Cluster(seed, config or config_of(rng), slaves=rng.choice([1, 1, 2]))
            for _ in range(length):
                done.append(rng.choice(names))
                steps[done[-1]][1](cluster, rng.randint)
            done.append("finale")
            cluster.finale(rng.randint, to_the_end=seed % 4 == 0)
        except Exception as error:
            error.add_note(f"seed {seed}, length {length}, after: {', '.join(done)}")
            raise
    return cluster


def config_of(rng: random.Random) -> ShardConfig:
    return replace(
        SMALL,
        horizon_ms=rng.choice([DAY_MS // 4, DAY_MS, 40 * DAY_MS]),
        lookahead_ms=rng.choice([1000, 120_000]),
        window_budget=rng.choice([1, 8, 50, 10**6]),
        max_tick=rng.choice([1, 5, 1000]),
        max_attempts=rng.choice([1, 2, 3]),
        dlq_retention_ms=rng.choice([2000, HOUR_MS]),
        log_segment_bytes=rng.choice([200, 2000, 1 << 20]),
        timer_segment_bytes=rng.choice([52 * 3, 52 * 12, 1 << 20]),
        queue_segment_bytes=rng.choice([40, 40 * 7, 1 << 20]),
        keep=replace(
            SMALL.keep, retention_ms=rng.choice([1000, HOUR_MS]), keep_log_bytes=rng.choice([0, 3000, 1 << 20])
        ),
    )
