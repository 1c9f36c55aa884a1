"""One term of one shard: what is committed, who is in sync, when it serves, how it ends (docs/protocol.md 1-5).

    commit = the lowest durable log offset of this copy and of every counted member (see replication/in_sync.py)
    serves   only while it holds a live lease of every counted member

Order of writes: to go on without a member, the smaller set is in the registry first; to count on a new one, commits
wait for it first and the registry is told then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from delayregistry.model import Handover, ShardObject, ShardStatus, Version
from delayregistry.port import Conflict, RegistryError

from delaynode.replication.in_sync import InSync, ReplicaIds
from delaynode.replication.protocol import Release
from delaynode.replication.replica_lease import ReplicaLeases
from delaynode.replication.shipping import PeerReplica, Phase, Shipping
from delaynode.replication.transport.peers import Peers
from delaynode.replication.transport.until import wait_until
from delaynode.store.log.commit_log import CommitLog, WriteBatch
from delaynode.store.types import Buffer

COMMIT_NOTICE_SECONDS = 0.05  # an idle shard's slaves learn of a commit within this
RETRY_SECONDS = 0.2
CATCH_UP_GRACE_MS = 300  # a new master waits so long for the old in-sync set to follow it, once it may serve
OVERWRITTEN_MS = 1_000  # a watch may be so far behind this term's own writes
MISSING_AGAIN_MS = 10_000  # two reads that found no shard, further apart than this, are two incidents
HAND_OVER_MS = 2_000
SWITCH_AGAIN_MS = 10_000  # each try that nobody takes up stops the shard for HAND_OVER_MS
POLL_SECONDS = 0.02
QUICK_SECONDS = 0.002  # while clients wait
NEAR_BYTES = 4 << 20  # a member this close to the log's end may join the in-sync set,
CAUGHT_UP_MS = 5_000  # if it also has what was there a look ago, or has been so close for so long,
APPLIED_MS = 20_000  # and has applied what was committed then, or nearly, or has been so close for this long
APPLIED_BYTES = 1 << 20  # nearly: a moment's work


@dataclass(frozen=True, slots=True)
class Term:
    """What is fixed for a term. entry: this copy's name in the in-sync set."""

    uid: int
    epoch: int
    node: str
    incarnation: str
    replica_id: str
    lag_ms: int
    fsync: bool


class StatusStore(Protocol):
    """The shard's object in the registry. Raises RegistryError."""

    async def get(self) -> ShardObject | None:
        """A consistent read."""

    async def write(self, status: ShardStatus, version: Version) -> Version: ...


class Host(Protocol):
    """What serves the shard."""

    def advance(self) -> None:
        """commit_limit() may have moved."""

    def pause(self, why: str) -> None:
        """Append nothing and answer nothing until resume()."""

    def resume(self) -> None: ...


class Leader:
    """Owned by the event loop. Made once the term's epoch is persisted; over at stop().

    over(why): called once, when this term has ended by itself: a higher epoch is known, or it has resigned.
    """

    def __init__(
        self,
        term: Term,
        log: CommitLog,
        shipping: Shipping,
        peers: Peers,
        replica_leases: ReplicaLeases,
        statuses: StatusStore,
        boot_ms: Callable[[], int],
        log_event: Callable[..., None],
    ) -> None:
        self.term = term
        self.shipping = shipping
        self.in_sync = InSync(term.replica_id, frozenset((term.replica_id,)))
        self.leaving: frozenset[str] = frozenset()  # nodes whose copy is to go
        self.on_ended: Callable[[str], None] = lambda why: None
        self.host: Host | None = None
        self.ended: str | None = None
        self.handover: Handover | None = None
        self.blocked_reason: str | None = (
            None  # why its last write of the status was none; None: it was, or it wrote none
        )
        self._log, self._peers, self._replica_leases, self._statuses = log, peers, replica_leases, statuses
        self._boot_ms, self._log_event = boot_ms, log_event
        self._loop = asyncio.get_running_loop()
        self._version: Version | None = None
        self._missing_ms: tuple[int, int] | None = None  # first and last of the reads in a row that found no shard
        self._status_written = False  # this term has written one
        self._former: ReplicaIds = frozenset(
            (term.replica_id,)
        )  # the in-sync set that the term before left in the registry
        self._last_status: ShardStatus | None = None  # what this term wrote last
        self._overwritten_ms: int | None = None  # since when the registry shows another status
        self._staying: frozenset[str] = frozenset()  # as of that version: the replicas that are not to leave
        self._serving = False  # the registry names this term
        self._stepped_down: str | None = None
        self._ends = log.end, log.end  # of the log at the last two looks, the earlier one first
        self._commits = shipping.committed_offset, shipping.committed_offset  # the commit offset, likewise
        self._commit_timer: asyncio.TimerHandle | None = None
        self._updating_in_sync: asyncio.Task[None] | None = None
        self._switching: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._successor: str | None = None  # node that the operator wants to lead
        self._next_switch_ms = 0  # a switchover that nobody took is not tried before
        shipping.on_changed = self._member_changed
        shipping.replaceable = self._replaceable
        shipping.on_superseded = self.superseded

    # ------------------------------------------------------------ members
    def set_replicas(self, nodes: Iterable[str], leaving: Iterable[str]) -> None:
        """As the registry has them."""
        others = tuple(node for node in nodes if node != self.term.node)
        if self.ended is None:
            self.leaving = frozenset(leaving)
            self.shipping.set_replicas(others)
            if self.handover is None and self._stepped_down is None:
                self._replica_leases.lead(self.term.uid, self.term.epoch, others)
            self._update_in_sync()

    def member_of(self, replica_id: str) -> PeerReplica | None:
        for member in self.shipping.members.values():
            if member.replica_id == replica_id:
                return member
        return None

    def _counted_nodes(self) -> list[str]:
        """Nodes of the counted members; "" for an entry nobody is known to have."""
        found = (
            self.member_of(replica_id) for replica_id in self.in_sync.counted() if replica_id != self.term.replica_id
        )
        return [member.node if member is not None else "" for member in found]

    @property
    def in_sync_size(self) -> int:
        """Copies that have every committed frame, this one included: those that join may lack the last of them."""
        return len(self.in_sync.written)

    # ------------------------------------------------------------ shipping, as the host sees it
    @property
    def ships(self) -> bool:
        """There are others to send to."""
        return bool(self.shipping.members)

    def sealed(self, batch: WriteBatch, parts: list[Buffer]) -> None:
        """On the thread that writes."""
        self.shipping.sealed(batch, parts)

    def on_written(self) -> None:
        """This copy has stored more of its log."""
        self.shipping.on_written()

    def needed_from(self) -> int:
        return self.shipping.needed_from()

    # ------------------------------------------------------------ commit
    def own_durable(self) -> int:
        return self._log.synced if self.term.fsync else self._log.written

    def commit_limit(self) -> int:
        """Every frame before this log offset is stored by every counted member."""
        limit = self.own_durable()
        for replica_id in self.in_sync.counted():
            if replica_id != self.term.replica_id:
                member = self.member_of(replica_id)
                limit = min(limit, member.durable if member is not None else 0)
        return limit

    def on_committed(self, offset: int) -> None:
        """The host has committed up to here."""
        self.shipping.committed_offset = max(self.shipping.committed_offset, offset)
        if self._commit_timer is None and self.shipping.members:
            self._commit_timer = self._loop.call_later(COMMIT_NOTICE_SECONDS, self._send_commit)

    def _send_commit(self) -> None:
        self._commit_timer = None
        self.shipping.send_commit()

    def live(self) -> bool:
        """Whether what is read here may be answered: no other process can be serving this shard now."""
        if not self._serving or self.ended is not None or self.handover is not None:
            return False
        nodes = self._counted_nodes()
        return not nodes or self._replica_leases.live(self.term.uid, nodes)

    def _member_changed(self, member: PeerReplica) -> None:
        if self.host is not None:
            self.host.advance()
        self._update_in_sync()

    # ------------------------------------------------------------ the in-sync set
    def _desired_in_sync(self) -> ReplicaIds:
        """The set that should be in the registry."""
        good = {self.term.replica_id}
        for replica_id in self.in_sync.counted() - good:
            member = self.member_of(replica_id)
            if member is None or not self._is_eligible(member):
                continue
            coming = replica_id in self.in_sync.joining and replica_id not in self.in_sync.written
            if not coming or member.durable >= self.shipping.committed_offset:
                good.add(replica_id)
        return frozenset(good)

    def _is_eligible(self, member: PeerReplica) -> bool:
        if member.damaged or member.node in self.leaving or self._replica_leases.silent(member.node):
            return False
        behind = member.durable < max(member.next, self.own_durable())
        return not (behind and self._boot_ms() - member.progress_ms > self.term.lag_ms)

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
        committed = min(self._commits[0], member.durable, self.shipping.committed_offset - APPLIED_BYTES)
        applied = member.applied >= committed  # of what it has stored
        return stores and (applied or near_ms > APPLIED_MS)

    def _join(self) -> None:
        """Members that have nearly caught up: from now on commits wait for them, and for their lease.

        The registry is told once they have all that is committed: no later commit is without them then.
        """
        counted = self.in_sync.counted()
        for member in self.shipping.members.values():
            if member.phase is not Phase.STREAMING or member.replica_id in counted or not self._is_caught_up(member):
                continue
            if self._is_eligible(member) and self._replica_leases.live(self.term.uid, (member.node,)):
                self.in_sync.join(member.replica_id)
                self._log_event("replica-joins", peer=member.node, entry=member.replica_id)

    def _replaceable(self, replica_id: str) -> bool:
        """Whether a copy may be thrown away for a new one: no failover can choose it.

        entry: empty where the copy's id can't be read. Then all that are named must be known to be other copies.
        """
        counted = self.in_sync.counted()
        if not replica_id:
            others = all(one == self.term.replica_id or self.member_of(one) is not None for one in counted)
            return self._began and self._serving and self.in_sync.is_resolved and others
        return self._began and self._serving and replica_id not in counted

    @property
    def _began(self) -> bool:
        """The log is applied, so this term may commit frames.

        A term that ends before, as its copy can't apply its log, has committed nothing that the copies of the former
        in-sync set lack. So it leaves that set as it was, and until then no copy is thrown away.
        """
        return self.host is not None

    def on_status(self, status: ShardStatus | None) -> None:
        """The registry's status, as it is watched.

        Only this term may write it, but a person, a backup tool or a registry restored from an older state may have.
        It is written again: a failover would choose by it.
        """
        if status == self._last_status:
            self._overwritten_ms = None
        elif self._overwritten_ms is None:
            self._overwritten_ms = self._boot_ms()

    def _overwritten(self) -> bool:
        since = self._overwritten_ms
        return since is not None and self._boot_ms() - since > OVERWRITTEN_MS

    def poll(self) -> None:
        """A member may have fallen silent or behind, or a lease have come: to be called a few times a second."""
        self._ends = self._ends[1], self._log.end
        self._commits = self._commits[1], self.shipping.committed_offset
        self._update_in_sync()
        self._switch()

    def _update_in_sync(self) -> None:
        """See to it that the registry names who is in sync."""
        if not self._serving or self.ended is not None or self.handover is not None:
            return
        self._join()
        differs = self._desired_in_sync() != self.in_sync.written or not self.in_sync.is_resolved
        if self._updating_in_sync is None and (differs or self._overwritten()):
            self._updating_in_sync = self._loop.create_task(self._write_sets())

    async def _write_sets(self) -> None:
        try:
            while self.ended is None and self.handover is None:
                desired = self._desired_in_sync()
                if desired == self.in_sync.written and not self.in_sync.tried and not self._overwritten():
                    self._forget_lost()
                    return
                if not await self._write(desired, None):
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._updating_in_sync = None

    def _forget_lost(self) -> None:
        """Members that fell away before a write could name them."""
        for replica_id in list(self.in_sync.joining):
            member = self.member_of(replica_id)
            if member is None or not self._is_eligible(member):
                self.in_sync.drop(replica_id)
                if self.host is not None:
                    self.host.advance()

    async def _write(self, desired: ReplicaIds | None, handover: Handover | None, resigned: str | None = None) -> bool:
        """Write the status; False when that did not (or may not) have happened. Ends the term at a higher epoch.

        desired: None for the set that is recorded by then: another write may be under way, and who was taken out by it
        must not be put in again.
        """
        async with self._writing:
            if self.ended is not None:
                return False
            if self._version is None and not await self._read():
                return False
            version = self._version
            if version is None:
                return False
            if desired is None:
                desired = self.in_sync.written if self._began else self._former
            elif self.handover is not None:
                return False  # it has begun meanwhile, and must not be wiped out
            else:
                named = self._as_replicas(desired)
                if self._serving and named != desired and named == self.in_sync.written:
                    self._version = None  # to see what becomes of the others
                    return False
                desired = named
            term = self.term
            status = ShardStatus(term.epoch, term.incarnation, tuple(sorted(desired)), handover, resigned)
            self.in_sync.trying(desired)
            self._version = None  # unless this succeeds it must be read again
            try:
                self._version = await self._statuses.write(status, version)
            except Conflict as error:
                self.in_sync.refused(desired)  # somebody changed another field, or a new term has begun: read again
                self.blocked_reason = f"the registry refused its status: {error}"
                await self._read()
                return False
            except RegistryError as error:
                self._log_event("status-not-written", epoch=term.epoch, reason=str(error))
                self.blocked_reason = f"the registry did not take its status: {error}"
                return False
            if self._overwritten():
                self._log_event("status-written-again", epoch=term.epoch)
            self._last_status, self._overwritten_ms, self.blocked_reason = status, None, None
            before, self._status_written = self.in_sync.written, True
            self.in_sync.succeeded(desired)
            if before != desired:
                self._log_event("in-sync", epoch=term.epoch, entries=sorted(desired))
        if self.host is not None:
            self.host.advance()
        return True

    async def _read(self) -> bool:
        """Learn the object's version; False when it can't be had or names a later term."""
        try:
            found = await self._statuses.get()
        except RegistryError as error:
            self._log_event("registry-unreachable", reason=str(error))
            self.blocked_reason = f"the registry did not show it the shard: {error}"
            return False
        if found is None:
            self.blocked_reason = "the registry has no such shard, by what this node is told"
            self._not_found()
            return False
        self._missing_ms = None
        if found.spec.uid != self.term.uid:
            self._end("the registry has another shard of this name")
            return False
        if found.spec.epoch > self.term.epoch:
            self.superseded(found.spec.epoch)
            return False
        if found.spec.epoch < self.term.epoch:
            self._log_event("registry-behind", epoch=self.term.epoch, registry_epoch=found.spec.epoch)
            self.blocked_reason = f"the registry knows of epoch {found.spec.epoch} only"
            return False
        self._version = found.version
        if found.status is not None and found.status.serving_epoch < self.term.epoch:
            self._former = frozenset(found.status.in_sync)
        self._staying = frozenset(found.spec.replicas) - frozenset(found.spec.leaving)
        self.set_replicas(found.spec.replicas, found.spec.leaving)  # what is watched may be older
        return True

    def _not_found(self) -> None:
        """A read found no such shard. The term ends once that has stayed so for lag_ms: the object may be about to
        be put back, by a backup tool or `kubectl replace --force`."""
        now = self._boot_ms()
        before = self._missing_ms
        if before is None or now - before[1] > MISSING_AGAIN_MS:
            self._log_event("shard-not-found", epoch=self.term.epoch)
            before = now, now
        self._missing_ms = before[0], now
        if now - before[0] >= self.term.lag_ms:
            self._end("the shard is gone from the registry")

    def _as_replicas(self, replica_ids: ReplicaIds) -> ReplicaIds:
        """Those whose nodes are to have a copy in the version that is about to be written over: one that may go has
        perhaps thrown its copy away (attack A10)."""
        members = [member for member in self.shipping.members.values() if member.node in self._staying]
        return replica_ids & {self.term.replica_id, *(member.replica_id for member in members)}

    # ------------------------------------------------------------ the term's life
    async def begin(
        self,
        former: Iterable[str],
        replicas: Iterable[str],
        leaving: Iterable[str],
        *,
        previous_master_exited: bool,
        missing: Callable[[], int] = lambda: 0,
    ) -> bool:
        """Wait out the leases that this node granted, find out who follows, write the status. False when another term
        has begun.

        former: the in-sync set so far. previous_master_exited: the registry says that the master before serves no more,
        so there is nothing to wait out. missing: how many of the former set won't follow, since their processes have
        ended or are about to; one too many costs a copy its place in the first set, not its data. The log must be on
        disk as far as it goes. From here on all of it is committed: every member of the new set has it.
        """
        self.set_replicas(replicas, leaving)
        others = frozenset(former) - {self.term.replica_id}
        if (
            others and not previous_master_exited
        ):  # without others only this node can have been serving: its former process is dead
            await wait_until(
                lambda: self.ended is not None or self._replica_leases.wait_ms(self.term.uid) == 0, POLL_SECONDS
            )
        deadline = self._boot_ms() + CATCH_UP_GRACE_MS
        await wait_until(
            lambda: (
                self.ended is not None
                or self._boot_ms() >= deadline
                or len(self._following(others)) >= len(others) - missing()
            ),
            POLL_SECONDS,
        )
        self._replica_leases.request_now()
        while self.ended is None:
            members = self._following(others)
            for replica_id in members:
                self.in_sync.join(replica_id)
            if await self._write(frozenset((self.term.replica_id, *members)), None):
                self.shipping.committed_offset = max(
                    self.shipping.committed_offset, self._log.end
                )  # whoever has less may not join
                self._serving = True
                return True
            await asyncio.sleep(RETRY_SECONDS)
        return False

    def _following(self, replica_ids: ReplicaIds) -> ReplicaIds:
        """Those that follow this term and have all of its log."""
        members = self.shipping.members.values()
        return replica_ids & {
            m.replica_id for m in members if m.phase is Phase.STREAMING and m.durable >= self._log.end
        }

    def superseded(self, epoch: int) -> None:
        """A higher epoch is known."""
        self._end(f"epoch {epoch} has begun")

    def _end(self, why: str) -> None:
        if self.ended is None:
            self.ended = why
            self._replica_leases.stop_requesting(self.term.uid)
            self.on_ended(why)

    def stop(self) -> None:
        """Nothing more is sent, asked or written."""
        self._end("stopped")
        self.shipping.stop()
        if self._commit_timer is not None:
            self._commit_timer.cancel()
        for task in (self._updating_in_sync, self._switching):
            if task is not None:
                task.cancel()

    # ------------------------------------------------------------ giving it away
    @property
    def stepped_down(self) -> str | None:
        """Why it serves no more in this epoch; the registry may not know yet."""
        return self._stepped_down

    async def confirm_term(self) -> bool:
        """Whether the registry answers now, and names this term.

        To be asked before the shard is stopped to be given away. Without the registry nobody can take it over, and a
        write that got no answer may have given it away: it would stand still until the registry is back.
        """
        async with self._writing:
            return self.ended is None and await self._read()

    async def step_down(self, why: str) -> None:
        """Serve no more in this epoch, and say so: the operator chooses another."""
        if self.ended is not None or self._stepped_down is not None:
            return
        self._stepped_down = why
        heartbeat = self._replica_leases.stop_requesting(self.term.uid)
        self._serving = False
        if not self._status_written:  # who is chosen next takes this word for it that nobody else serves
            await wait_until(
                lambda: self.ended is not None or self._replica_leases.wait_ms(self.term.uid) == 0, POLL_SECONDS
            )
        while self.ended is None:
            if await self._write(None, None, why):
                self._release(self.shipping.members, heartbeat)
                self._end(f"resigned: {why}")
                return
            await asyncio.sleep(RETRY_SECONDS)

    def _release(self, nodes: Iterable[str], heartbeat: int) -> None:
        for node in nodes:
            self._peers.send(node, Release(self.term.uid, self.term.epoch, heartbeat))

    def switch_to(self, node: str | None) -> None:
        """Hand over to this node's copy as soon as it is in sync; None: not any more."""
        self._successor = node
        self._switch()

    def _switch(self) -> None:
        member = self.shipping.members.get(self._successor) if self._successor is not None else None
        ready = self._serving and self.ended is None and self._switching is None and self.host is not None
        if (
            not ready
            or self._boot_ms() < self._next_switch_ms
            or member is None
            or member.damaged
            or member.replica_id not in self.in_sync.written
        ):
            return
        self._switching = self._loop.create_task(self._hand_over(member))

    async def _hand_over(self, member: PeerReplica) -> None:
        assert self.host is not None
        answered = await self.confirm_term()
        desired = self._successor == member.node and member.replica_id in self.in_sync.written
        if not answered or not self._serving or not desired:
            self._switching, self._next_switch_ms = None, self._boot_ms() + HAND_OVER_MS
            return
        host, deadline = self.host, self._boot_ms() + HAND_OVER_MS
        host.pause(f"being handed over to {member.node}")
        try:
            end = self._log.end
            await wait_until(
                lambda: (
                    min(member.durable, self.shipping.committed_offset) >= end
                    or self._boot_ms() > deadline
                    or member.damaged  # it is about to end, say
                    or self.ended is not None
                ),
                QUICK_SECONDS,
            )
            if self.ended is not None or member.damaged or min(member.durable, self.shipping.committed_offset) < end:
                return
            heartbeat = self._replica_leases.stop_requesting(self.term.uid)
            self.handover = Handover(self.term.epoch, end)
            self.shipping.send_commit()
            written = False
            while self.ended is None and self._boot_ms() < deadline:
                if not written:
                    written = await self._write(None, self.handover)
                    if written:
                        self._release((member.node,), heartbeat)
                        self._log_event("handed-over", to=member.node, log_end=end)
                await asyncio.sleep(POLL_SECONDS)
            while self.ended is None:  # nobody took it: take it back
                if await self._write(None, None):
                    self.handover = None
                    self._replica_leases.lead(self.term.uid, self.term.epoch, tuple(self.shipping.members))
                    self._log_event("handover-taken-back", to=member.node)
                    return
                await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._switching = None
            self._next_switch_ms = self._boot_ms() + SWITCH_AGAIN_MS
            if self.ended is None:
                host.resume()
                self._update_in_sync()
