"""The in-sync rule of a term: who should be in the in-sync set (docs/protocol.md 3).

    to go on without a member   the smaller set is in the registry first, and commits wait for the member until then
    to count on a new one       commits wait for it first, and for its lease; the registry is told then

in_sync_writer.py tells the registry.
"""

from __future__ import annotations

from collections.abc import Callable

from delaynode.replication.in_sync import InSync, ReplicaIds
from delaynode.replication.peer_replica import PeerReplica, Phase
from delaynode.replication.replica_lease import ReplicaLeases
from delaynode.replication.shipping import Shipping
from delaynode.replication.term.state import Term, TermState
from delaynode.store.log.commit_log import CommitLog

NEAR_BYTES = 4 << 20  # a member this close to the log's end may join the in-sync set,
CAUGHT_UP_MS = 5_000  # if it also has what was there a look ago, or has been so close for so long,
APPLIED_MS = 20_000  # and has applied what was committed then, or nearly, or has been so close for this long
APPLIED_BYTES = 1 << 20  # nearly: a moment's work


class InSyncRule:
    """Owned by the event loop."""

    def __init__(
        self,
        term: Term,
        state: TermState,
        log: CommitLog,
        shipping: Shipping,
        in_sync: InSync,
        replica_leases: ReplicaLeases,
        own_durable: Callable[[], int],
        boot_ms: Callable[[], int],
        log_event: Callable[..., None],
    ) -> None:
        self.leaving: frozenset[str] = frozenset()  # nodes whose copies are to go, as the spec has them
        self._term, self._state, self._log, self._shipping, self._in_sync = term, state, log, shipping, in_sync
        self._replica_leases, self._own_durable = replica_leases, own_durable
        self._boot_ms, self._log_event = boot_ms, log_event
        self._ends = log.end, log.end  # of the log at the last two looks, the earlier one first
        self._commits = log.committed_offset, log.committed_offset  # the commit offset, likewise

    def remember_ends(self) -> None:
        """Remember where the log and its commits end, to be compared with what members have a look later."""
        self._ends = self._ends[1], self._log.end
        self._commits = self._commits[1], self._log.committed_offset

    def desired(self) -> ReplicaIds:
        """The set that should be in the registry."""
        good = {self._term.replica_id}
        for replica_id in self._in_sync.counted() - good:
            member = self._shipping.member_of(replica_id)
            if member is None or not self._is_eligible(member):
                continue
            coming = replica_id in self._in_sync.joining and replica_id not in self._in_sync.written
            if not coming or member.durable >= self._shipping.needed_to_join:
                good.add(replica_id)
        return frozenset(good)

    def join(self) -> None:
        """Members that have nearly caught up: from now on commits wait for them, and for their lease.

        The registry is told once they have all that is committed: no later commit is without them then.
        """
        counted = self._in_sync.counted()
        for member in self._shipping.members.values():
            if member.phase is not Phase.STREAMING or member.replica_id in counted or not self._is_caught_up(member):
                continue
            if self._is_eligible(member) and self._replica_leases.live(self._term.uid, (member.node,)):
                self._in_sync.join(member.replica_id)
                self._log_event("replica-joins", peer=member.node, entry=member.replica_id)

    def forget_lost(self) -> None:
        """Members that fell away before a write could name them."""
        for replica_id in list(self._in_sync.joining):
            member = self._shipping.member_of(replica_id)
            if member is None or not self._is_eligible(member):
                self._in_sync.drop(replica_id)
                self._state.advance()

    def replaceable(self, replica_id: str) -> bool:
        """Whether a copy may be thrown away for a new one: no failover can choose it.

        replica_id: empty where the copy's id can't be read. Then all that are named must be known to be other copies.
        """
        counted, settled = self._in_sync.counted(), self._state.began and self._state.serving
        if not replica_id:
            own = self._term.replica_id
            others = all(one == own or self._shipping.member_of(one) is not None for one in counted)
            return settled and self._in_sync.is_resolved and others
        return settled and replica_id not in counted

    def _is_eligible(self, member: PeerReplica) -> bool:
        if member.damaged or member.node in self.leaving or self._replica_leases.silent(member.node):
            return False
        behind = member.durable < max(member.next, self._own_durable())
        return not (behind and self._boot_ms() - member.progress_ms > self._term.lag_ms)

    def _is_caught_up(self, member: PeerReplica) -> bool:
        """Whether commits may wait for it: they would for as long as it is behind, and one that has much to apply,
        as after a start, is slow to store what comes."""
        now = self._boot_ms()
        if not member.acked or self._log.end - member.durable > NEAR_BYTES:
            member.near_end_ms = None
            return False
        if member.near_end_ms is None:
            member.near_end_ms = now
        near_ms = now - member.near_end_ms
        stores = member.durable >= self._ends[0] or near_ms > CAUGHT_UP_MS
        committed = min(self._commits[0], member.durable, self._log.committed_offset - APPLIED_BYTES)
        applied = member.applied >= committed  # of what it has stored
        return stores and (applied or near_ms > APPLIED_MS)
