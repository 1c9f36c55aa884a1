"""ShardConfig: a shard's limits and sizes."""

from __future__ import annotations

from dataclasses import dataclass, field

from delayapi.units import DAY_MS, MINUTE_MS

from delaynode.store import formats
from delaynode.store.maintenance.reclaim import KeepConfig
from delaynode.store.queue.consumers import GroupLimits
from delaynode.store.queue.message_ids import LIMIT
from delaynode.store.timer.cascade import CHUNK_UNITS
from delaynode.store.timer.index import GEOMETRY, Geometry

UNFLUSHED_FLUSHES = 2


@dataclass(frozen=True, slots=True)
class ShardConfig:
    """Limits and sizes. horizon_ms and geometry are fixed for a shard's life, a topic's limits may change while it is
    used (Shard.reconfigure), the others at a restart."""

    horizon_ms: int = 40 * DAY_MS
    max_delay_ms: int | None = None  # the topic's own limit, below the horizon
    max_attempts: int = 16
    max_unacked: int = 100_000  # queue offsets from a group's first open one
    max_dead_letters: int = 100_000  # of a group, those that were redriven included
    dlq_retention_ms: int = 7 * DAY_MS  # a dead letter is kept for so long after it died or was redriven
    max_tick: int = 131_072  # messages a tick releases at most
    idle_tick_ms: int = MINUTE_MS  # a shard that releases nothing ticks so often: its watermark moves
    window_budget: int = 4_000_000  # messages in the due window, about
    lookahead_ms: int = 2 * MINUTE_MS  # how far ahead the window is kept loaded
    max_producers: int = 10_000  # idempotent producers seen within a day
    max_message_ids: int = LIMIT  # ids of a deduplicating topic's messages that are known at once
    flush_units: int = 1_000_000  # unflushed units that call for a checkpoint
    wheel_copy_units: int = 5_000_000  # units flushed between two copies of the wheels
    chunk_units: int = CHUNK_UNITS  # of a slot, that a cascade or the emptying of a segment has in memory, about
    log_segment_bytes: int = 64 << 20
    timer_segment_bytes: int = 64 << 20
    queue_segment_bytes: int = 16 << 20
    keep: KeepConfig = field(default_factory=KeepConfig)
    geometry: Geometry = GEOMETRY  # of the wheels
    scrub_days: float = 7.0  # in which everything on disk is read again and checked
    format: int = formats.OLDEST  # in which files are written, unless the copy is of a newer one already

    @property
    def max_unflushed(self) -> int:
        """With so many unflushed units, which are memory, a shard takes in no more until a flush has ended."""
        return UNFLUSHED_FLUSHES * self.flush_units

    @property
    def group_limits(self) -> GroupLimits:
        return GroupLimits(self.max_unacked, self.max_attempts, self.max_dead_letters, self.dlq_retention_ms)
