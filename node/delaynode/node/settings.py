"""What a shard of this node may take of memory and disk, from the cluster's spec and the node's own settings."""

from __future__ import annotations

from dataclasses import replace

from delayapi.units import DAY_MS
from delayregistry.model import ClusterSpec

from delaynode.config import NodeConfig
from delaynode.store.config import ShardConfig
from delaynode.store.formats import written_format
from delaynode.store.maintenance.reclaim import KeepConfig
from delaynode.store.queue.message_ids import LIMIT

WHEEL_COPY_UNITS = 1_000_000  # units of all shards together that are flushed between copies of the wheels
FLUSH_UNITS = 1_000_000  # unflushed units of all shards together that call for checkpoints
PRODUCERS = 200_000  # that all shards together remember: 130 MB at most
MIN_PRODUCERS = 1_000
MESSAGE_IDS = 20_000_000  # that all shards of topics that deduplicate know together: 640 MB at most
MIN_MESSAGE_IDS = 100_000
MIN_SHARE = 65_536  # messages: of the window budget, or units before a flush


def shard_config(config: NodeConfig, cluster: ClusterSpec | None, topic_name: str, shards: int) -> ShardConfig:
    """The settings of one of `shards` shards on the node, which share alike."""
    topic = cluster.topic(topic_name) if cluster is not None else None
    base = ShardConfig(
        horizon_ms=(cluster.horizon_days if cluster is not None else 40) * DAY_MS,
        window_budget=max(MIN_SHARE, config.window_budget // shards),
        flush_units=max(MIN_SHARE, FLUSH_UNITS // shards),
        wheel_copy_units=max(MIN_SHARE, WHEEL_COPY_UNITS // shards),
        log_segment_bytes=config.log_segment_bytes,
        max_producers=min(ShardConfig().max_producers, max(MIN_PRODUCERS, PRODUCERS // shards)),
        format=written_format(cluster.nodes_version if cluster is not None else 0),
    )
    if topic is None or cluster is None:
        return base
    alone = cluster.replicas == 1  # nobody catches up from this log
    keep = KeepConfig(retention_ms=topic.retention_ms)
    if alone:
        keep = replace(keep, keep_log_bytes=0, keep_log_ms=0)
    return replace(
        base, max_attempts=topic.max_attempts, max_delay_ms=topic.max_delay_ms, keep=keep,
        dlq_retention_ms=topic.dlq_retention_ms, max_message_ids=_max_message_ids(cluster),
    )  # fmt: skip


def _max_message_ids(cluster: ClusterSpec) -> int:
    """Of a shard of a topic that deduplicates, when the nodes have as many copies of those each."""
    queues = sum(topic.queues for topic in cluster.topics if topic.deduplicate)
    copies = max(1, -(-queues * cluster.replicas // cluster.nodes))
    return min(LIMIT, max(MIN_MESSAGE_IDS, MESSAGE_IDS // copies))
