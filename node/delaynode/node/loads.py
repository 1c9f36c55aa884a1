"""What the wheels of this process have coming, and what its groups have to do, for the metrics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Iterable

import numpy as np

from delaynode.metrics import DUE_WITHIN_SECONDS, GroupLoad, TopicLoad
from delaynode.replica.hosts.master import ShardHost
from delaynode.store.shard import Shard
from delaynode.store.timer.forecast import begin_forecast
from delaynode.store.types import I64

DUE_WITHIN_MS = np.array(DUE_WITHIN_SECONDS, np.int64) * 1000


async def topic_loads(hosts: Iterable[ShardHost], now_ms: int) -> dict[str, TopicLoad]:
    """Per topic: what is pending and due soon, from the wheels of these shards, and what its groups have to do."""
    found: dict[str, I64] = {}
    dead: dict[str, tuple[int, bool]] = {}
    groups: dict[str, dict[str, GroupLoad]] = defaultdict(lambda: defaultdict(GroupLoad))
    for host in hosts:
        pending, firings = await arrivals(host, now_ms + DUE_WITHIN_MS)
        sums = found.setdefault(host.topic, np.zeros(1 + len(DUE_WITHIN_MS), np.int64))
        sums[0] += host.shard.index.pending
        kept, full = host.shard.consumers.dead_letter_usage()
        before, was_full = dead.get(host.topic, (0, False))
        dead[host.topic] = before + kept, was_full or full
        sums[1:] += pending + firings
        for name in host.shard.consumers.groups:
            groups[host.topic][name] += group_load(host.shard, name, now_ms)
    return {
        topic: TopicLoad(pending, tuple(due_within), *dead[topic], dict(groups[topic]))
        for topic, (pending, *due_within) in ((topic, sums.tolist()) for topic, sums in found.items())
    }


def arrivals(host: ShardHost, edges: I64) -> Awaitable[tuple[I64, I64]]:
    """How many messages of the shard are due before each of these times, ascending ms (k,) -> (k,), (k,): pending ones,
    and those of schedules that will fire.
    """
    pending, firings = begin_forecast(host.shard.index), host.schedules.begin_forecast(int(edges[-1]))
    return host.off_loop(lambda: (pending(edges), firings().searchsorted(edges).astype(np.int64)))


def group_load(shard: Shard, name: str, now_ms: int) -> GroupLoad:
    group = shard.consumers.groups[name]
    counts, oldest = group.counts(shard.queue, now_ms), group.oldest(shard.queue)
    age_ms = 0 if oldest is None else now_ms - shard.space.released_ms(oldest)
    return GroupLoad(counts.available, counts.in_flight, counts.waiting_retry, max(0, age_ms) / 1000)
