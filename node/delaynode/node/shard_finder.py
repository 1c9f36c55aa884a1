"""ShardFinder: which copy of this process answers for a shard, or which other node."""

from __future__ import annotations

from delayregistry.model import ConditionType, ShardObject

from delaynode.node.routes import RemoteMaster, Routes
from delaynode.replica.hosts.master import ShardHost
from delaynode.replica.hosts.slave import SlaveHost
from delaynode.replica.replicas import Replicas
from delaynode.store.errors import Refused

BLOCKED_MS = 60_000  # a shard whose Blocked condition is older is not waited for


class ShardFinder:
    """Owned by the event loop. node: this one's id in the registry."""

    def __init__(self, node: str, routes: Routes, replicas: Replicas) -> None:
        self._node, self._routes, self._replicas = node, routes, replicas

    def find(self, topic: str, queue: int) -> ShardHost | RemoteMaster:
        """The host of a shard served here, or where it is served. Raises Refused."""
        shard = self._routes.shard(topic, queue)
        replica = self._replicas.get(shard.spec.uid)
        ours = shard.spec.master == self._node
        if replica is not None and replica.master is not None:
            master = replica.master
            if ours or master.serving:
                master.check_serving()
                return master
        if replica is not None and ours and (why := replica.unusable_reason()) is not None:
            reason = "NOT_SERVING" if len(shard.spec.replicas) > 1 else "SHARD_DAMAGED"
            raise Refused(reason, f"shard {shard.name} can't be served: {why}")
        remote = self._routes.remote(shard)
        if remote is None or ours:
            raise Refused(
                "NOT_SERVING", f"shard {shard.name} has no serving master at the moment", epoch=shard.spec.epoch
            )
        return RemoteMaster(remote, shard.spec.epoch)

    def find_readable(self, topic: str, queue: int) -> ShardHost | SlaveHost | RemoteMaster:
        """The same as find(), for Fetch: with `MasterAndSlave` an in-sync slave here will do. Raises Refused."""
        if self._routes.slaves_deliver:
            replica = self._replicas.get(self._routes.shard(topic, queue).spec.uid)
            if replica is not None and replica.local.host is not None and replica.local.unreadable_reason() is None:
                return replica.local.host
        return self.find(topic, queue)

    def unserved(self, now_ms: int) -> list[str]:
        """The shards, by name, that are to be led here and are not served yet; without those that are blocked."""
        led = (shard for shard in self._routes.objects.values() if shard.spec.master == self._node)
        return sorted(one.name for one in led if not self._serves(one.spec.uid) and not _is_blocked(one, now_ms))

    def _serves(self, uid: int) -> bool:
        replica = self._replicas.get(uid)
        return replica is not None and replica.master is not None and replica.master.serving


def _is_blocked(shard: ShardObject, now_ms: int) -> bool:
    """Nobody may serve it, and hasn't for a while: that this node gets no traffic for the others helps nobody, and
    would stop a rolling restart and every drain of a machine."""
    since_ms = now_ms - BLOCKED_MS
    return any(it.type is ConditionType.BLOCKED and it.since_ms < since_ms for it in shard.conditions)
