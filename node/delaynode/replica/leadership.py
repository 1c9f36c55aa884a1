"""Leadership: one copy as its shard's master, from being named in the spec to the end of its term.

    chosen -> candidate -> master -> over         by a higher epoch, a resignation, damage, a node that stops

A master whose replica leases ran out answers nothing, and is still master: it serves on when slaves grant them again.

A term is (master, incarnation, epoch) in the shard's spec. This process takes up those that name its own incarnation
and whose epoch is above the one persisted in the copy's directory; so it never resumes one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from delayregistry.model import ShardObject, ShardSpec, ShardStatus, copy_id_of
from delayregistry.port import RegistryError

from delaynode.replica.context import ReplicaContext, ShardStatusAccess
from delaynode.replica.hosts.master import ShardHost
from delaynode.replica.local_copy import LocalCopy
from delaynode.replica.role import ReplicaRole
from delaynode.replication.peer_replica import SnapshotSource
from delaynode.replication.shipping import Shipping
from delaynode.replication.term.leader import Leader
from delaynode.replication.term.state import Term
from delaynode.store.errors import Damaged, Refused
from delaynode.store.maintenance.marker import is_permanent
from delaynode.store.shard import MAX_AHEAD_MS, Shard

RETRY_SECONDS = 1.0


class Leadership:
    """Owned by the replica's worker; a leader's traffic passes it by. wake: the worker has something to do.
    on_served: a new master takes up what the registry has.

    leader: from the start of a term to its end; master: while it serves, or did. ended: why the term has ended, for
    the worker to end the term.
    """

    def __init__(
        self, copy: LocalCopy, context: ReplicaContext, log_event: Callable[..., None],
        wake: Callable[[], None], on_served: Callable[[ShardObject], None],
    ) -> None:  # fmt: skip
        self.leader: Leader | None = None
        self.master: ShardHost | None = None
        self.refused_reason: str | None = None  # why the term in the spec is not taken up
        self.ended: str | None = None
        self._blocked_reason: str | None = None  # why it could not even be looked at
        self._last: tuple[int, str] = (0, "")  # the last term here that is over: its epoch, and why
        self._refused_by: tuple[ShardStatus | None, bool] = (None, False)  # the status, and whether unclean was allowed
        self._copy, self._context, self._log_event = copy, context, log_event
        self._wake, self._on_served = wake, on_served
        self._made_ms = context.boot_ms()
        self._candidate_ms: int | None = None  # since when it makes itself ready to lead
        self._stepping_down: asyncio.Task[None] | None = None

    def overdue_reason(self) -> str | None:
        """Why a chosen copy had better be passed over (attack A3): it has no term yet that it could resign."""
        since, cluster = self._candidate_ms, self._context.cluster()
        if since is None or cluster is None or self._context.boot_ms() - since < cluster.lag_seconds * 1000:
            return None
        return f"its disk has not taken the epoch up within {cluster.lag_seconds} s"

    def not_serving(self) -> tuple[int, str]:
        """The epoch of the last term here that is over or is being given up, and why. Or 0, and why the term in the
        spec is refused or can't be begun for the moment; empty: no reason is known."""
        leader = self.leader
        if leader is not None and leader.ended is None:
            if leader.stepped_down is not None:
                return leader.term.epoch, leader.stepped_down
            if self.master is None and leader.blocked_reason is not None:
                return 0, leader.blocked_reason
        elif reason := self.refused_reason or self._blocked_reason:
            return 0, reason
        return self._last

    # ------------------------------------------------------------ what the registry says
    def reset(self) -> None:
        """The spec has another term."""
        self.refused_reason = self._blocked_reason = self._candidate_ms = None

    def refresh(self) -> None:
        """The registry has news of the shard."""
        spec, leader = self._copy.object.spec, self.leader
        if leader is not None and leader.ended is None:
            if spec.epoch > leader.term.epoch:
                leader.superseded(spec.epoch)
            else:
                leader.set_replicas(spec.replicas, spec.leaving)
                leader.on_status(self._copy.object.status)
                self.hand_over()
        cluster = self._context.cluster()
        if self.refused_reason is not None and self._refused_by != (self._copy.object.status, self._unclean()):
            self.refused_reason = None  # what it was refused by has changed: the spec may come later than the choice
        if self.master is not None and cluster is not None:
            self.master.min_in_sync = cluster.min_in_sync
            self.master.set_release_rate(self._context.release_rate(self._copy.object))
            self.master.set_quotas(self._context.quotas(self._copy.object))
            self.master.set_topic_kept(cluster.topic(self._copy.object.spec.topic) is not None)

    def hand_over(self) -> None:
        """Try to, where the registry asks for it: to be called now and then, for a try may fail."""
        spec, leader = self._copy.object.spec, self.leader
        if leader is not None and spec.epoch == leader.term.epoch:  # a request may be withdrawn, too
            leader.switch_to(spec.switchover.to if spec.switchover is not None else None)

    # ------------------------------------------------------------ from chosen to serving
    def is_chosen(self) -> bool:
        copy, spec = self._copy, self._copy.object.spec
        ours = (spec.master, spec.incarnation) == (self._context.node, self._context.incarnation)
        if not ours or self.leader is not None or self.refused_reason is not None:
            return False
        if copy.shard is None:
            return copy.role is ReplicaRole.ABSENT and copy.object.status is None
        return copy.role is ReplicaRole.SLAVE and spec.epoch > copy.shard.identity.epoch

    async def begin_term(self) -> None:
        """Take up the term in the spec."""
        copy, storage, context = self._copy, self._copy.storage, self._context
        spec = copy.object.spec
        try:
            found = await context.registry.get_shard(copy.name)
        except RegistryError as error:
            self._log_event("registry-unreachable", reason=str(error))
            self._blocked_reason = f"the registry did not show it the shard: {error}"
            await asyncio.sleep(0.2)
            return
        if found is None or found.spec.uid != spec.uid:
            self._blocked_reason = "the registry has no such shard, by what this node is told"
            self._candidate_ms = None
            await asyncio.sleep(RETRY_SECONDS)  # it is gone, as the list will say
            return
        self._blocked_reason = None
        if found.spec.epoch != spec.epoch:
            self.reset()
        copy.object = found
        spec = found.spec
        if not self.is_chosen():
            return
        status = found.status
        if status is not None and not _is_in_sync(status, storage.replica_id) and not self._unclean():
            self._refused_by = status, False
            self.refused_reason = f"copy {storage.replica_id} is not in sync: {', '.join(status.in_sync)} are"
            self._log_event("term-refused", reason=self.refused_reason)
            return
        copy.become(ReplicaRole.CANDIDATE)
        if self._candidate_ms is None:
            self._candidate_ms = context.boot_ms()
        slave = copy.host
        try:
            await copy.end_following("it is to be master")
            if slave is not None and slave.failure is not None:
                # A write of its last batch has failed, as with a full disk: its log in memory is not what the disk has.
                self._candidate_ms = None
                copy.mark_damaged(slave.failure, lasting=slave.lasting)
                return
            shard = await self._candidate(spec)
        except (Damaged, OSError) as error:
            await self._begin_failed(spec.epoch, error)
            return
        self._candidate_ms = None
        await self._lead(shard, spec, status)

    async def _lead(self, shard: Shard, spec: ShardSpec, status: ShardStatus | None) -> None:
        """Lead, and serve as soon as the others of the former in-sync set follow or are left out."""
        copy, storage, context = self._copy, self._copy.storage, self._context
        leader = self._make_leader(shard, spec)
        former = status.in_sync if status is not None else ()
        cluster = context.cluster()
        try:
            # Until all that the log released is due (ShardHost.start). First, as clients come once the status is there.
            await asyncio.sleep(MAX_AHEAD_MS / 1000)
            previous_master_stopped = status is not None and _previous_master_stopped(status, spec)
            others = len(set(former) - {storage.replica_id})
            missing = partial(self._count_missing, spec, others, ended=int(previous_master_stopped and spec.vacant))
            if not await leader.begin(
                former, spec.replicas, spec.leaving, previous_master_stopped=previous_master_stopped, missing=missing
            ):
                await self.end_term(leader.ended or "another term has begun")
                return
            frames = await storage.apply_all()
            if leader.ended is not None:
                return  # nobody would tell the master that is made now: it would wait for its first frame for ever
            min_in_sync = cluster.min_in_sync if cluster is not None else 1
            master = ShardHost(shard, storage.directory, context.resources, leader, min_in_sync)
            leader.state.host = master
            master.on_failed = partial(self._master_failed, master)
            master.set_release_rate(context.release_rate(copy.object))
            master.set_quotas(context.quotas(copy.object))
            master.set_topic_kept(cluster is None or cluster.topic(copy.object.spec.topic) is not None)
            self.master = master
            await master.start(spec.epoch, context.node)
        except (Damaged, OSError, Refused) as error:
            if leader.ended is None:  # no other term has begun meanwhile: this copy is to blame
                storage.damage = f"epoch {spec.epoch} not begun: {error}"
                storage.lasting = isinstance(error, Refused) or is_permanent(error)
                await leader.step_down(storage.damage)
            return
        if leader.ended is not None:
            return  # the next step ends what is left of it
        copy.become(ReplicaRole.MASTER)
        self.refused_reason = None
        metrics = context.resources.metrics
        metrics.recovery_seconds = max(metrics.recovery_seconds, (context.boot_ms() - self._made_ms) / 1000)
        self._log_event("term-started", in_sync=sorted(leader.in_sync.written), frames=frames)
        self._on_served(copy.object)

    async def _begin_failed(self, epoch: int, error: Exception) -> None:
        """A disk without room, say, has harmed nothing: there may be room in a while, and maybe nobody else to lead."""
        why = f"epoch {epoch} not taken up: {error}"
        if self._copy.shard is not None and is_permanent(error):
            self._candidate_ms = None
            self._copy.mark_damaged(why)
            return
        self._log_event("epoch-not-taken-up", reason=str(error))
        if self._copy.shard is not None:
            self._copy.follow()
        else:
            self._copy.become(ReplicaRole.ABSENT)  # what is half made is no copy
        await asyncio.sleep(RETRY_SECONDS)

    def _count_missing(self, spec: ShardSpec, others: int, *, ended: int) -> int:
        """How many of the `others` of the former in-sync set certainly have no process, or one that is about to end,
        which follows nobody any more. Which copy is on which node is not known; some may not have been in that set."""
        context = self._context
        nodes = [node for node in spec.replicas if node != context.node]
        return max(ended, sum(map(context.stopping, nodes)) - max(0, len(nodes) - others))

    def _unclean(self) -> bool:
        cluster, spec = self._context.cluster(), self._copy.object.spec
        return spec.unclean_epoch == spec.epoch or (cluster is not None and cluster.allow_unclean_failover)

    async def _candidate(self, spec: ShardSpec) -> Shard:
        """The copy, on disk as far as it goes, with the epoch persisted. Raises OSError, Damaged."""
        shard, storage = self._copy.shard, self._copy.storage
        if shard is None:
            return await storage.create(spec)
        await storage.sync_log()
        await storage.accept_epoch(spec.epoch)  # last: when another call finds no file handle, this is tried again
        return shard

    def _make_leader(self, shard: Shard, spec: ShardSpec) -> Leader:
        copy, context, cluster = self._copy, self._context, self._context.cluster()
        lag_ms = (cluster.lag_seconds if cluster is not None else 10) * 1000
        term = Term(
            copy.uid, spec.epoch, context.node, context.incarnation, copy.storage.replica_id, lag_ms,
            context.resources.fsync,
        )  # fmt: skip
        shipping = Shipping(
            copy.uid, spec.epoch, shard.log, context.peers, context.resources.pool,
            context.boot_ms, self._snapshot, self._log_event, context.catching_up,
        )  # fmt: skip
        statuses = ShardStatusAccess(context.registry, copy.name)
        leader = Leader(term, shard.log, shipping, context.replica_leases, statuses, context.boot_ms, self._log_event)
        self.leader = leader
        leader.on_ended = self._on_term_ended
        return leader

    async def _snapshot(self) -> SnapshotSource:
        return await self._copy.storage.hold_snapshot(self.master)

    # ------------------------------------------------------------ the end of a term
    def _on_term_ended(self, why: str) -> None:
        self.ended = why
        if self.leader is not None:
            self._last = self.leader.term.epoch, why
        if self.master is not None:
            self.master.stop_serving(why)  # the worker itself may be waiting for its first frame's commit
        self._wake()

    def _master_failed(self, master: ShardHost) -> None:
        """The copy is damaged: another is to be chosen."""
        if self.leader is not None and self.master is master and self.leader.ended is None:
            self._copy.storage.damage = master.failure
            self._stepping_down = asyncio.get_running_loop().create_task(
                self.leader.step_down(f"damaged: {master.failure}")
            )

    def step_down(self, why: str) -> None:
        """Step down for good in this epoch, if the registry answers: to be called again while the reason lasts."""
        if self.leader is None or self.master is None or self.leader.stepped_down is not None:
            return
        if self._stepping_down is None or self._stepping_down.done():
            self._stepping_down = asyncio.get_running_loop().create_task(self._step_down(self.leader, self.master, why))

    async def _step_down(self, leader: Leader, master: ShardHost, why: str) -> None:
        if not await leader.confirm_term():
            await asyncio.sleep(RETRY_SECONDS)  # a shard of which nobody hears is better served than stopped
            return
        master.pause(why)
        await leader.step_down(why)

    async def end_term(self, why: str) -> None:
        """The term is over: follow."""
        leader, master, shard = self.leader, self.master, self._copy.shard
        self._log_event("term-over", reason=why)
        if leader is not None:
            leader.stop()
        if master is not None:
            await master.wind_down(why, stopping=self._context.stopping(self._context.node))
        self.leader = self.master = self.ended = None
        if self._copy.storage.damage is not None:
            self._copy.storage.shard = None
            failed = master is not None and master.failure is not None
            lasting = master.lasting if master is not None and failed else self._copy.storage.lasting
            self._copy.mark_damaged(self._copy.storage.damage, lasting=lasting)
            return
        if master is None and shard is not None and shard.applied <= shard.committed_offset:
            self._copy.follow()  # it has applied nothing that may have to be undone
        else:
            self._copy.become(ReplicaRole.OPENING)
            await self._copy.open()

    async def stop(self) -> None:
        """The node is stopping."""
        if self.master is not None:
            await self.master.stop()
        if self.leader is not None:
            self.leader.stop()


def _previous_master_stopped(status: ShardStatus, spec: ShardSpec) -> bool:
    """Whether the master of the epoch before has served and serves no more: by its own word, or its process has ended.

    It stops before it writes so. To go on it would have to write again, which a later epoch in the spec makes
    impossible; and when it began to serve, those before it had stopped.
    """
    epoch = spec.epoch - 1
    handed_over = status.handover is not None and status.handover.epoch == epoch
    return status.serving_epoch == epoch and (handed_over or status.resigned is not None or spec.vacant)


def _is_in_sync(status: ShardStatus, replica_id: str) -> bool:
    """Whether the in-sync set has the copy; with Async, also as it was before its machine booted.

    Whether such a copy may be chosen is the operator's to say (docs/protocol.md 4), and it has.
    """
    return copy_id_of(replica_id) in {copy_id_of(one) for one in status.in_sync}
