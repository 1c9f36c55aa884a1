"""Sizes and maintenance intervals of a cluster: drawn from the seed, so small that a short run has all maintenance.

With a node's own sizes a run of 25 virtual seconds empties no segment, cascades no hour, uses no slot twice and hardly
checkpoints; and with 16 attempts no message dies.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from delayapi.units import DAY_MS, HOUR_MS
from delaynode.replica.hosts.maintenance import Intervals
from delaynode.store.config import ShardConfig
from delaynode.store.maintenance.reclaim import KeepConfig
from delaynode.store.queue.consume_queue import QUEUED_BYTES
from delaynode.store.timer.index import Geometry
from delaynode.store.timer.timer_log import UNIT_BYTES

SHARD = ShardConfig(
    horizon_ms=3 * DAY_MS,
    window_budget=20_000,
    flush_units=64,
    wheel_copy_units=256,
    chunk_units=10,
    log_segment_bytes=16 << 10,
    timer_segment_bytes=16 << 10,
    queue_segment_bytes=8 << 10,
    max_attempts=16,
    keep=KeepConfig(keep_log_bytes=32 << 10, keep_log_ms=1_000),
)


@dataclass(frozen=True)
class Sizes:
    """Sizes and intervals of one cluster. The schedules run with the default.

    far: (share, low, high) of the messages are due between low and high ms from now, the others sooner.
    latency_ms: longest way of a request to the registry. apart_ms: a node's watch of the shards and its watch of the
    cluster's spec is at most this far apart. groups: number of groups that consume. failing: share of the deliveries
    that their consumer does not acknowledge. invisible_ms: how long a delivery waits for its acknowledgement.
    """

    shard: ShardConfig = SHARD
    intervals: Intervals = field(default_factory=Intervals)
    far: tuple[float, int, int] = (0.05, 2 * HOUR_MS, 2 * HOUR_MS + 1_000)
    latency_ms: int = 2
    apart_ms: int = 0
    groups: int = 1
    failing: float = 0.2
    invisible_ms: int = 1_500


SIZES = Sizes()


def sizes_of(seed: int) -> Sizes:
    """The sizes that the seed stands for."""
    rng = random.Random(f"{seed}/sizes")
    shard = _shard(rng, random.Random(f"{seed}/pieces").choice((3, 10, 10, 100)))  # its own stream
    return Sizes(
        shard=shard,
        intervals=Intervals(
            maintain=rng.choice((0.05, 0.1, 0.25)),
            check=rng.choice((0.1, 0.5, 2.0)),
            quiet=rng.choice((0.25, 1.0, 4.0)),
            checkpoint=rng.choice((0.3, 0.6, 1.0, 2.0)),
            busy_checkpoint=rng.choice((0.3, 1.0)),
            idle_checkpoint=rng.choice((0.5, 2.0, 20.0)),
            free=rng.choice((0.1, 0.3, 1.0)),
            trim=rng.choice((0.1, 0.5, 2.0)),
            empty_again=rng.choice((0.2, 1.0, 5.0)),
        ),
        far=(0.2, 2_500, shard.horizon_ms * 9 // 10),
        latency_ms=rng.choice((2, 2, 2, 5, 10, 20, 50)) if rng.random() < 0.96 else 300,
        apart_ms=rng.choice((0, 100, 500, 2_000)),
        groups=rng.choice((1, 1, 2)),
        failing=rng.choice((0.3, 0.4, 0.6)),
        invisible_ms=rng.choice((300, 600, 1_500)),
    )


def _shard(rng: random.Random, chunk_units: int) -> ShardConfig:
    geometry, max_unacked = _geometry(rng), rng.choice((20, 200, 100_000))
    horizon_ms = rng.choice((8_000, 8_000, 12_000, 20_000, 60_000))
    return ShardConfig(
        horizon_ms=horizon_ms,
        max_attempts=rng.choice((1, 1, 1, 2, 2, 3)) if rng.random() < 0.97 else 16,
        max_unacked=max_unacked,
        # With a smaller max_unacked, five dead letters would block the group.
        max_dead_letters=5 if max_unacked == 100_000 and rng.random() < 0.3 else 100_000,
        dlq_retention_ms=rng.choice((300, 1_000, 7 * DAY_MS)),
        # With a shorter tick the copies are never the same at one instant. With a much longer one the hours that are
        # cascaded already would end before the next idle tick, and the watermark and the minute level would wait for
        # each other.
        idle_tick_ms=min(rng.choice((400, 2_000)), geometry.hour_ms),
        window_budget=rng.choice((20, 200, 20_000)),
        lookahead_ms=min(20_000, geometry.minute_ms * rng.choice((1, 2, 2, 5))),
        flush_units=rng.choice((16, 64, 64, 256)),
        wheel_copy_units=rng.choice((16, 256)),
        chunk_units=chunk_units,
        log_segment_bytes=rng.choice((1 << 10, 1 << 10, 2 << 10, 2 << 10, 4 << 10)),
        timer_segment_bytes=UNIT_BYTES * rng.choice((20, 20, 40, 100)),
        queue_segment_bytes=QUEUED_BYTES * rng.choice((10, 20, 200)),
        geometry=geometry,
        keep=KeepConfig(
            retention_ms=rng.choice((2_500, 6_000)) if rng.random() < 0.15 else 3 * DAY_MS,
            mark_ms=rng.choice((100, 1_000)),
            keep_log_bytes=rng.choice((0, 4 << 10, 8 << 10)),
            keep_log_ms=rng.choice((0, 0, 1_000, 3_000)),
            relocate_after_ms=rng.choice((0, 0, 300, 2_000)),
            relocate_share=rng.choice((0.5, 0.8, 1.0)),
        ),
    )


def _geometry(rng: random.Random) -> Geometry:
    """Hours of about a second: some twenty cascade in a run, and the wheels go round.

    In one of fourteen seeds they are long: messages that are released, die and are trimmed within one minute need other
    code.
    """
    hour_ms = rng.choice((300, 400, 500, 800)) if rng.random() < 0.93 else rng.choice((20_000, 100_000))
    minute_ms = hour_ms // rng.choice((2, 5, 10))
    ahead, spare = rng.choice((1, 1, 1, 2)), rng.choice((1, 1, 1, 2))
    slots = (ahead + spare + 3) * hour_ms // minute_ms  # what is ahead, the margin and what is more
    return Geometry(
        minute_ms=minute_ms, hour_ms=hour_ms, minute_slots=slots, margin_ms=2 * hour_ms, ahead_ms=ahead * hour_ms,
        spare_ms=rng.choice((1, 1, 4, 20)) * hour_ms, cancelled_retention_ms=hour_ms,
    )  # fmt: skip
