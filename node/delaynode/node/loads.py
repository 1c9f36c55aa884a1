"""What the wheels of this process have coming, and what its groups have to do, for the metrics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from delaynode.metrics import GroupLoad, TopicLoad
from delaynode.replica.hosts.master import ShardHost
from delaynode.store.shard import Shard


async def topic_loads(hosts: Iterable[ShardHost], now_ms: int) -> dict[str, TopicLoad]:
    """Per topic: what is pending and due soon, from the wheels of these shards, and what its groups have to do."""
    found: dict[str, list[int]] = {}
    dead: dict[str, tuple[int, bool]] = {}
    groups: dict[str, dict[str, GroupLoad]] = defaultdict(lambda: defaultdict(GroupLoad))
    for host in hosts:
        start, width, count = await host.off_loop(host.shard.index.begin_count())
        sums = found.setdefault(host.topic, [0, 0, 0, 0])
        sums[0] += host.shard.index.pending
        kept, full = host.shard.consumers.dead_letter_usage()
        before, was_full = dead.get(host.topic, (0, False))
        dead[host.topic] = before + kept, was_full or full
        for at, seconds in enumerate((60, 300, 3600)):
            part = ((now_ms + seconds * 1000 - start) / width).clip(0.0, 1.0)  # slots are taken to be even
            sums[at + 1] += int((part * count).sum())
        for name in host.shard.consumers.groups:
            groups[host.topic][name] += group_load(host.shard, name, now_ms)
    return {topic: TopicLoad(s[0], (s[1], s[2], s[3]), *dead[topic], dict(groups[topic])) for topic, s in found.items()}


def group_load(shard: Shard, name: str, now_ms: int) -> GroupLoad:
    group = shard.consumers.groups[name]
    counts, oldest = group.counts(shard.queue, now_ms), group.oldest(shard.queue)
    age_ms = 0 if oldest is None else now_ms - shard.space.released_ms(oldest)
    return GroupLoad(counts.available, counts.in_flight, counts.waiting_retry, max(0, age_ms) / 1000)
