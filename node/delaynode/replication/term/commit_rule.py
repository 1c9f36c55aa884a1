"""The commit rule of a term (docs/protocol.md 1-3; tests/replicate/test_commit_rule.py).

    committed     below the lowest durable log offset of this copy and of every counted member (replication/in_sync.py)
    answered      once committed, while a live lease of every counted member is held

ShardHost.advance() commits: when this copy or a slave has stored more, and when the counted members are others.
ShardHost.stored() holds the producer's answer back, by minInSync as well.
"""

from __future__ import annotations

from dataclasses import dataclass

from delaynode.replication.in_sync import InSync
from delaynode.replication.replica_lease import ReplicaLeases
from delaynode.replication.shipping import Shipping
from delaynode.replication.term.state import Term, TermState
from delaynode.store.log.commit_log import CommitLog


@dataclass(frozen=True, slots=True)
class CommitRule:
    """Owned by the event loop. Has no state of its own."""

    term: Term
    state: TermState
    log: CommitLog
    shipping: Shipping
    in_sync: InSync
    replica_leases: ReplicaLeases

    def own_durable(self) -> int:
        return self.log.synced if self.term.fsync else self.log.written

    def commit_limit(self) -> int:
        """Every frame before this log offset is stored by every counted member."""
        limit = self.own_durable()
        for replica_id in self.in_sync.counted():
            if replica_id != self.term.replica_id:
                member = self.shipping.member_of(replica_id)
                limit = min(limit, member.durable if member is not None else 0)
        return limit

    def live(self) -> bool:
        """Whether what is read here may be answered: no other process can be serving this shard now."""
        if not self.state.leads:
            return False
        others = self.in_sync.counted() - {self.term.replica_id}
        members = [self.shipping.member_of(replica_id) for replica_id in others]
        nodes = [member.node if member is not None else "" for member in members]  # nobody holds a lease of ""
        return not nodes or self.replica_leases.live(self.term.uid, nodes)
