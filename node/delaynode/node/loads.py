"""What the wheels of this process have coming, for the metrics."""

from __future__ import annotations

from collections.abc import Iterable

from delaynode.metrics import TopicLoad
from delaynode.replica.hosts.master import ShardHost


async def topic_loads(hosts: Iterable[ShardHost], now_ms: int) -> dict[str, TopicLoad]:
    """Per topic: what is pending and due soon, from the wheels of these shards."""
    found: dict[str, list[int]] = {}
    dead: dict[str, tuple[int, bool]] = {}
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
    return {topic: TopicLoad(s[0], (s[1], s[2], s[3]), *dead[topic]) for topic, s in found.items()}
