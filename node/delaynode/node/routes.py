"""Routes: the registry as this node has read it last, and where each shard is served by it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from delayregistry.model import ClusterSpec, Delivery, NodeLease, ShardObject, TopicQuotas, TopicType

from delaynode.listener_options import DIALS_TLS, INTERNAL, PLAIN
from delaynode.store.errors import Refused
from delaynode.store.queue import rate_limit


@dataclass(frozen=True, slots=True)
class RemoteNode:
    """endpoint: where this node passes calls on to it. by_tls: that is its listener for the cluster's own."""

    endpoint: str
    by_tls: bool


@dataclass(frozen=True, slots=True)
class RemoteMaster:
    """The shard's master is another node."""

    node: RemoteNode
    epoch: int


def endpoint_for(lease: NodeLease, listener: str) -> str:
    """Where a client goes on that has come by this listener. Empty: that node has none like it; one that does not say
    which it has, has one for everybody."""
    return lease.endpoint_of(listener) or (lease.endpoint if listener == PLAIN and not lease.listeners else "")


class Routes:
    """Owned by the event loop. peers: how nodes talk to each other, one of listener_options.PEERS."""

    def __init__(self, peers: str = "off") -> None:
        self._peers = peers
        self.cluster: ClusterSpec | None = None
        self.objects: dict[tuple[str, int], ShardObject] = {}
        self._queues: dict[str, list[ShardObject]] = {}  # by topic, in the order of their numbers
        self.leases: dict[str, NodeLease] = {}
        self.was_read = False  # the registry has answered once

    def update(self, cluster: ClusterSpec | None, shards: Iterable[ShardObject]) -> None:
        self.cluster = cluster
        self.objects = {(shard.spec.topic, shard.spec.queue): shard for shard in shards}
        self._queues = {}
        for _, shard in sorted(self.objects.items()):
            self._queues.setdefault(shard.spec.topic, []).append(shard)
        self.was_read = True

    def shard(self, topic: str, queue: int) -> ShardObject:
        """Raises Refused."""
        shard = self.objects.get((topic, queue))
        if shard is None:
            count = len(self.queues(topic))
            raise Refused("UNKNOWN_QUEUE", f"topic {topic!r} has queues 0 to {count - 1}, asked for {queue}")
        return shard

    def endpoint(self, shard: ShardObject, listener: str = PLAIN) -> str:
        """The address of that listener of the shard's serving master; empty while there is none."""
        lease = self._serving(shard)
        return "" if lease is None else endpoint_for(lease, listener)

    def remote(self, shard: ShardObject) -> RemoteNode | None:
        """The shard's serving master; None while there is none. Raises Refused."""
        lease = self._serving(shard)
        return None if lease is None else self.reach(lease)

    def reach(self, lease: NodeLease) -> RemoteNode:
        """How this node passes calls on to that one. Raises Refused."""
        internal = lease.endpoint_of(INTERNAL) if self._peers in DIALS_TLS else ""
        if not internal and self._peers == "required":
            raise Refused("NOT_SERVING", f"node {lease.node} has no listener for nodes, and this one asks for TLS")
        return RemoteNode(internal or lease.endpoint, bool(internal))

    def _serving(self, shard: ShardObject) -> NodeLease | None:
        """The lease of its serving master."""
        spec, status = shard.spec, shard.status
        lease = self.leases.get(spec.master) if spec.master else None
        if (
            lease is None
            or status is None
            or status.serving_epoch != spec.epoch
            or status.incarnation != lease.incarnation
        ):
            return None
        return lease

    def stopping(self, node: str) -> bool:
        """Whether that node has said that its process is about to end."""
        lease = self.leases.get(node)
        return lease is not None and lease.stopping

    def readable(self, shard: ShardObject, listener: str = PLAIN) -> list[str]:
        """The addresses of that listener where Fetch may be answered, the master's among them; none where only masters
        deliver."""
        if not self.slaves_deliver:
            return []
        leases = (self.leases.get(node) for node in shard.spec.replicas)
        found = (endpoint_for(lease, listener) for lease in leases if lease is not None)
        return [endpoint for endpoint in found if endpoint]

    def topics(self) -> list[str]:
        """The topics whose queues have all been made. Raises Refused as queues() does."""
        self._check_read()
        wanted = {spec.name: spec.queues for spec in self.cluster.topics} if self.cluster else {}
        return sorted(topic for topic, made in self._queues.items() if len(made) >= wanted.get(topic, 0))

    def queues(self, topic: str) -> list[ShardObject]:
        """All queues of a topic. Raises Refused UNKNOWN_TOPIC, or NOT_SERVING when that may only be so for now."""
        self._check_read()
        wanted = self.cluster.topic(topic) if self.cluster is not None else None
        made = self._queues.get(topic, [])
        if made and (wanted is None or len(made) >= wanted.queues):
            return made
        if wanted is not None:
            raise Refused("NOT_SERVING", f"the queues of topic {topic!r} are not all made yet")
        raise Refused("UNKNOWN_TOPIC", f"there is no topic {topic!r}")

    def _check_read(self) -> None:
        if not self.was_read:  # a node that has just started must not say that there is no such topic
            raise Refused("NOT_SERVING", "this node has not heard from the registry yet")

    def release_rate(self, shard: ShardObject) -> int | None:
        """The shard's part of its topic's maxReleasePerSecond."""
        topic = self.cluster.topic(shard.spec.topic) if self.cluster else None
        if topic is None or topic.max_release_per_second is None:
            return None
        return rate_limit.share(topic.max_release_per_second, topic.queues, shard.spec.queue)

    def quotas(self, shard: ShardObject) -> TopicQuotas | None:
        """The shard's part of its topic's quotas."""
        topic = self.cluster.topic(shard.spec.topic) if self.cluster else None
        if topic is None or topic.quotas is None:
            return None
        whole = (topic.quotas.pending_messages, topic.quotas.pending_bytes, topic.quotas.enqueue_per_second)
        share = partial(rate_limit.share, queues=topic.queues, queue=shard.spec.queue)
        return TopicQuotas(*(None if quota is None else share(quota) for quota in whole))

    def topic_type(self, topic: str) -> TopicType:
        """Which messages it takes; of a topic that nobody asks for any more: all."""
        spec = self.cluster.topic(topic) if self.cluster else None
        return TopicType.MIXED if spec is None else spec.type

    def deduplicates(self, topic: str) -> bool:
        """Whether a message whose sender has given it an id is stored once."""
        spec = self.cluster.topic(topic) if self.cluster else None
        return spec is not None and spec.deduplicate

    @property
    def slaves_deliver(self) -> bool:
        """RIP-19's phase 2: in-sync slaves answer Fetch."""
        return self.cluster is not None and self.cluster.delivery is Delivery.MASTER_AND_SLAVE

    @property
    def min_in_sync(self) -> int:
        return self.cluster.min_in_sync if self.cluster is not None else 1
