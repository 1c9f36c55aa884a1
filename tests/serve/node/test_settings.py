"""What a shard may take of a node."""

from __future__ import annotations

from delaynode.config import parse
from delaynode.node.settings import shard_config
from delayregistry.model import ClusterSpec, TopicSpec


def ids_of_a_shard(queues: int, *, nodes: int = 3, replicas: int = 2, others: int = 1) -> int:
    topics = [TopicSpec("once", queues, deduplicate=True), TopicSpec("other", others)]
    cluster = ClusterSpec("c", nodes, tuple(topics), replicas=replicas)
    config = parse(["--node-id", "n0", "--data", "d", "--registry", "sqlite:x"])
    return shard_config(config, cluster, "once", 1 + others).max_message_ids


def test_shards_of_deduplicating_topics_share_what_a_node_remembers_of_ids() -> None:
    assert ids_of_a_shard(1) == 10_000_000
    assert ids_of_a_shard(3) == 10_000_000, "two copies a node"
    assert ids_of_a_shard(12) == 20_000_000 // 8
    assert ids_of_a_shard(12, others=500) == 20_000_000 // 8, "other topics' shards remember none"
    assert ids_of_a_shard(12, replicas=1) == 20_000_000 // 4
    assert ids_of_a_shard(10_000) == 100_000
