"""The switchover: a term is handed over to the copy that the operator asks for (docs/protocol.md 5).

    pause -> the member has the whole log, all committed -> ask for no lease -> write the handover -> release the leases

The handover is written only once this copy appends and answers nothing more: who is chosen next need not wait for its
leases. When nobody takes the shard over in time, the handover is taken back before the shard is served again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from delayregistry.model import Handover

from delaynode.replication.in_sync import InSync
from delaynode.replication.peer_replica import PeerReplica
from delaynode.replication.replica_lease import ReplicaLeases
from delaynode.replication.shipping import Shipping
from delaynode.replication.term.in_sync_writer import RETRY_SECONDS, InSyncWriter, WriteResult
from delaynode.replication.term.state import Term, TermState
from delaynode.replication.transport.until import wait_until
from delaynode.store.log.commit_log import CommitLog

HAND_OVER_MS = 2_000
SWITCH_AGAIN_MS = 10_000  # each try that nobody takes up stops the shard for HAND_OVER_MS
POLL_SECONDS = 0.02
QUICK_SECONDS = 0.002  # while clients wait


class SwitchoverDriver:
    """Owned by the event loop."""

    def __init__(
        self,
        term: Term,
        state: TermState,
        log: CommitLog,
        shipping: Shipping,
        in_sync: InSync,
        replica_leases: ReplicaLeases,
        writer: InSyncWriter,
        boot_ms: Callable[[], int],
        log_event: Callable[..., None],
    ) -> None:
        self._term, self._state, self._log, self._shipping, self._in_sync = term, state, log, shipping, in_sync
        self._replica_leases, self._writer = replica_leases, writer
        self._boot_ms, self._log_event = boot_ms, log_event
        self._loop = asyncio.get_running_loop()
        self._switching: asyncio.Task[None] | None = None
        self._successor: str | None = None  # node that the operator wants to lead
        self._next_switch_ms = 0  # a switchover that nobody took is not tried before

    def switch_to(self, node: str | None) -> None:
        """Hand over to this node's copy as soon as it is in sync; None: not any more."""
        self._successor = node
        self.poll()

    def poll(self) -> None:
        """Begin to hand over, if that is asked for and can be done now."""
        member = self._shipping.members.get(self._successor) if self._successor is not None else None
        state = self._state
        ready = state.serving and state.ended is None and self._switching is None and state.began
        if (
            not ready
            or self._boot_ms() < self._next_switch_ms
            or member is None
            or member.damaged
            or member.replica_id not in self._in_sync.written
        ):
            return
        self._switching = self._loop.create_task(self._hand_over(member))

    def stop(self) -> None:
        if self._switching is not None:
            self._switching.cancel()

    async def _hand_over(self, member: PeerReplica) -> None:
        state, host = self._state, self._state.host
        assert host is not None
        answered = await self._writer.confirm_term()
        desired = self._successor == member.node and member.replica_id in self._in_sync.written
        if not answered or not state.serving or not desired:
            self._switching, self._next_switch_ms = None, self._boot_ms() + HAND_OVER_MS
            return
        deadline = self._boot_ms() + HAND_OVER_MS
        host.pause(f"being handed over to {member.node}")
        try:
            end = self._log.end
            await wait_until(
                lambda: (
                    self._has_all(member, end)
                    or self._boot_ms() > deadline
                    or member.damaged  # it is about to end, say
                    or state.ended is not None
                ),
                QUICK_SECONDS,
            )
            if state.ended is None and not member.damaged and self._has_all(member, end):
                await self._offer(member, end, deadline)
                await self._revoke_handover(member)
        finally:
            self._switching = None
            self._next_switch_ms = self._boot_ms() + SWITCH_AGAIN_MS
            if state.ended is None:
                host.resume()
                self._writer.update()

    def _has_all(self, member: PeerReplica, end: int) -> bool:
        """The member has the log to its end, and all of it is committed."""
        return min(member.durable, self._shipping.committed_offset) >= end

    async def _offer(self, member: PeerReplica, end: int, deadline: int) -> None:
        """Write the handover, and wait until the deadline or until another term has begun."""
        heartbeat = self._replica_leases.stop_requesting(self._term.uid)
        self._state.handover = Handover(self._term.epoch, end)
        self._shipping.send_commit()
        written = False
        while self._state.ended is None and self._boot_ms() < deadline:
            if not written:
                written = await self._writer.publish_handover(self._state.handover) is WriteResult.WRITTEN
                if written:
                    self._shipping.send_release((member.node,), heartbeat)
                    self._log_event("handed-over", to=member.node, log_end=end)
            await asyncio.sleep(POLL_SECONDS)

    async def _revoke_handover(self, member: PeerReplica) -> None:
        """Serve again: no other copy took the shard over, unless the term has ended."""
        while self._state.ended is None:
            if await self._writer.publish_handover(None) is WriteResult.WRITTEN:
                self._state.handover = None
                self._replica_leases.lead(self._term.uid, self._term.epoch, tuple(self._shipping.members))
                self._log_event("handover-taken-back", to=member.node)
                return
            await asyncio.sleep(RETRY_SECONDS)
