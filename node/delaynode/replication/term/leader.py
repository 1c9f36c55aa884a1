"""Leader: one term of one shard on its master, from the epoch that is persisted to its end (docs/protocol.md 1-5).

    commit_rule.py     what is committed, and when it answers    in_sync_writer.py   the status in the registry
    in_sync_rule.py    who should be in the in-sync set          switchover.py       how it is handed over

It serves once nobody else can, and the registry names it. When it resigns, it serves no more before it says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from delayregistry.model import ShardStatus

from delaynode.replication.in_sync import InSync, ReplicaIds
from delaynode.replication.peer_replica import PeerReplica, Phase
from delaynode.replication.replica_lease import ReplicaLeases
from delaynode.replication.shipping import Shipping
from delaynode.replication.term.commit_rule import CommitRule
from delaynode.replication.term.in_sync_rule import InSyncRule
from delaynode.replication.term.in_sync_writer import RETRY_SECONDS, InSyncWriter, StatusStore, WriteResult
from delaynode.replication.term.state import Term, TermState
from delaynode.replication.term.switchover import POLL_SECONDS, SwitchoverDriver
from delaynode.replication.transport.until import wait_until
from delaynode.store.log.commit_log import CommitLog, WriteBatch
from delaynode.store.types import Buffer

CATCH_UP_GRACE_MS = 300  # a new master waits so long for the old in-sync set to follow it, once it may serve


class Leader:
    """Owned by the event loop. Made once the term's epoch is persisted; over at stop().

    on_ended(why): called once, when this term has ended by itself: a higher epoch is known, or it has resigned.
    """

    def __init__(
        self,
        term: Term,
        log: CommitLog,
        shipping: Shipping,
        replica_leases: ReplicaLeases,
        statuses: StatusStore,
        boot_ms: Callable[[], int],
        log_event: Callable[..., None],
    ) -> None:
        state = TermState()
        in_sync = InSync(frozenset((term.replica_id,)))
        self.term, self.state, self.shipping, self.in_sync = term, state, shipping, in_sync
        self.on_ended: Callable[[str], None] = lambda why: None
        self._log, self._replica_leases, self._boot_ms = log, replica_leases, boot_ms
        self.commit_rule = CommitRule(term, state, log, shipping, in_sync, replica_leases)
        self.in_sync_rule = InSyncRule(
            term, state, log, shipping, in_sync, replica_leases, self.commit_rule.own_durable, boot_ms, log_event
        )
        self.writer = InSyncWriter(
            term, state, shipping, in_sync, self.in_sync_rule, statuses,
            self._end, self.superseded, self.set_replicas, boot_ms, log_event,
        )  # fmt: skip
        self.switchover = SwitchoverDriver(
            term, state, log, shipping, in_sync, replica_leases, self.writer, boot_ms, log_event
        )
        shipping.on_changed = self._member_changed
        shipping.replaceable = self.in_sync_rule.replaceable
        shipping.on_superseded = self.superseded

    # ------------------------------------------------------------ what happens to it
    def set_replicas(self, nodes: Iterable[str], leaving: Iterable[str]) -> None:
        """Take the replicas as the registry has them. leaving: those that are to go."""
        others = tuple(node for node in nodes if node != self.term.node)
        if self.ended is None:
            self.in_sync_rule.leaving = frozenset(leaving)
            self.shipping.set_replicas(others)
            if self.state.handover is None and self.stepped_down is None:
                self._replica_leases.lead(self.term.uid, self.term.epoch, others)
            self.writer.update()

    def on_status(self, status: ShardStatus | None) -> None:
        """The registry's status, as it is watched."""
        self.writer.on_status(status)

    def _member_changed(self, member: PeerReplica) -> None:
        self.state.advance()
        self.writer.update()

    def poll(self) -> None:
        """A member may have fallen silent or behind, or a lease have come: to be called a few times a second."""
        self.in_sync_rule.remember_ends()
        self.writer.update()
        self.switchover.poll()
        self.shipping.end_stuck_transfers()

    def switch_to(self, node: str | None) -> None:
        """Hand over to this node's copy as soon as it is in sync; None: not any more."""
        self.switchover.switch_to(node)

    # ------------------------------------------------------------ as the host sees it
    @property
    def in_sync_size(self) -> int:
        """Copies that have every committed frame, this one included: those that join may lack the last of them."""
        return len(self.in_sync.written)

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

    def on_committed(self, offset: int) -> None:
        """The host has committed up to here."""
        self.shipping.on_committed(offset)

    def needed_from(self) -> int:
        return self.shipping.needed_from()

    def commit_limit(self) -> int:
        return self.commit_rule.commit_limit()

    def live(self) -> bool:
        return self.commit_rule.live()

    # ------------------------------------------------------------ the term's life
    async def begin(
        self,
        former: Iterable[str],
        replicas: Iterable[str],
        leaving: Iterable[str],
        *,
        previous_master_stopped: bool,
        missing: Callable[[], int] = lambda: 0,
    ) -> bool:
        """Wait out the leases that this node granted, find out who follows, write the status. False when another term
        has begun.

        former: the in-sync set so far. previous_master_stopped: by the registry, the master before serves no more, so
        there is nothing to wait out. missing: how many of the former set won't follow, since their processes have
        ended or are about to; one too many costs a copy its place in the first set, not its data. The log must be on
        disk as far as it goes. Once it is applied here, all of it is committed: every member of the new set has it.
        """
        self.set_replicas(replicas, leaving)
        others = frozenset(former) - {self.term.replica_id}
        if others and not previous_master_stopped:
            # without others only this node can have been serving: its former process is dead
            await self._wait_out_leases()
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
            first = frozenset((self.term.replica_id, *members))
            if await self.writer.publish_in_sync_set(first) is WriteResult.WRITTEN:
                self.shipping.first_commit = self._log.end
                self.state.serving = True
                return True
            await asyncio.sleep(RETRY_SECONDS)
        return False

    async def _wait_out_leases(self) -> None:
        """Until this node has no lease left that it granted to another master."""
        await wait_until(
            lambda: self.ended is not None or self._replica_leases.wait_ms(self.term.uid) == 0, POLL_SECONDS
        )

    def _following(self, replica_ids: ReplicaIds) -> ReplicaIds:
        """The ones of `replica_ids` that follow this term and have all of its log."""
        members = self.shipping.members.values()
        return replica_ids & {
            m.replica_id for m in members if m.phase is Phase.STREAMING and m.durable >= self._log.end
        }

    async def confirm_term(self) -> bool:
        """Whether the registry answers now, and names this term.

        To be asked before the shard is stopped to be given away. Without the registry nobody can take it over, and a
        write that got no answer may have given it away: it would stand still until the registry is back.
        """
        return await self.writer.confirm_term()

    async def step_down(self, why: str) -> None:
        """Serve no more in this epoch, and say so: the operator chooses another."""
        if self.ended is not None or self.stepped_down is not None:
            return
        self.state.stepped_down = why
        heartbeat = self._replica_leases.stop_requesting(self.term.uid)
        self.state.serving = False
        if not self.writer.has_written:  # who is chosen next takes this word for it that nobody else serves
            await self._wait_out_leases()
        while self.ended is None:
            if await self.writer.publish_handover(None, resigned=why) is WriteResult.WRITTEN:
                self.shipping.send_release(self.shipping.members, heartbeat)
                self._end(f"resigned: {why}")
                return
            await asyncio.sleep(RETRY_SECONDS)

    @property
    def stepped_down(self) -> str | None:
        """Why it serves no more in this epoch; the registry may not know yet."""
        return self.state.stepped_down

    @property
    def ended(self) -> str | None:
        return self.state.ended

    @property
    def blocked_reason(self) -> str | None:
        """Why its last write of the status was none; None: it was, or it wrote none."""
        return self.writer.blocked_reason

    def superseded(self, epoch: int) -> None:
        """A higher epoch is known."""
        self._end(f"epoch {epoch} has begun")

    def _end(self, why: str) -> None:
        if self.ended is None:
            self.state.ended = why
            self._replica_leases.stop_requesting(self.term.uid)
            self.on_ended(why)

    def stop(self) -> None:
        """Nothing more is sent, asked or written."""
        self._end("stopped")
        self.shipping.stop()
        self.writer.stop()
        self.switchover.stop()
