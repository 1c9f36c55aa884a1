"""Invariant 8: no copy is damaged, thrown away or fetched whole without a cause that lies outside of the code.

Causes are
- a disk without room: the write that failed changed nothing, and the copy is opened again when there is room;
- a copy that a schedule has damaged, and a history that parted: an unclean failover, or all machines lost with Async;
- a copy that is in no in-sync set and so far behind that the master keeps no log from its end on (KeepConfig);
- a node on which the registry wants no replica any more.

The death of a process and a power cut are not causes: fsynced bytes are there, and recovery copes with the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from delaynode.replication.epochs import common_end
from delaynode.replication.peer_replica import PeerReplica, Phase
from delaynode.replication.protocol import FollowerState
from delaynode.replication.shipping import Shipping
from delaynode.store.maintenance.reclaim import SpaceReclaimer
from delayregistry.model import copy_id_of

if TYPE_CHECKING:
    from tests.simulation.support.machine.process import Process
    from tests.simulation.support.world import World

NO_ROOM = "No space left on device"
UNWANTED = "no replica is wanted here"


class Copies:
    def __init__(self, world: World) -> None:
        self._world = world
        self._parted = world.cluster_spec.allow_unclean_failover
        self._harmed: set[str] = set()  # nodes on which a schedule has damaged a copy
        self._useless: set[str] = set()  # ids of copies that had a cause

    def harm(self, node: str) -> None:
        """A schedule damages a copy on that node, or its disk fails."""
        self._harmed.add(node)

    def part(self) -> None:
        """Committed frames are lost everywhere: from now on copies may differ in which of them they have."""
        self._parted = True

    # ------------------------------------------------------------ what processes log
    def told(self, process: Process, event: str, fields: dict[str, Any]) -> None:
        """A process logs an event."""
        if event in ("copy-damaged", "shard-damaged"):
            self._damaged(process, str(fields["shard"]), str(fields["reason"]))
        elif event == "impossible" and process.name not in self._harmed:
            self._fail(f"{fields['shard']}: {process.name} contradicts itself: {fields['reason']}")
        elif event == "copy-discarded":
            known = copy_id_of(fields["entry"]) in self._useless or process.name in self._harmed
            if fields["reason"] != UNWANTED and not known and not self._parted:
                self._fail(f"{fields['shard']}: {process.name} throws its copy away: {fields['reason']}")

    def _damaged(self, process: Process, shard: str, reason: str) -> None:
        replica = next((one for one in process.replicas if one.name == shard), None)
        if process.name not in self._harmed and NO_ROOM not in reason and not self._parted:
            self._fail(f"{shard}: {process.name}'s copy is called damaged: {reason}")
        if replica is not None:
            self._useless.add(copy_id_of(replica.local.storage.replica_id))

    # ------------------------------------------------------------ whole copies
    @contextmanager
    def watching(self) -> Iterator[None]:
        match = Shipping._match

        def watched(shipping: Shipping, member: PeerReplica, state: FollowerState) -> None:
            match(shipping, member, state)
            if state.replica_id and member.phase is not Phase.STREAMING:
                self._not_continued(shipping, member, state)

        trim = SpaceReclaimer.trim

        def trimmed(freeing: SpaceReclaimer, *args: Any, **named: Any) -> bool:
            before = len(freeing.pending_delete)
            more = trim(freeing, *args, **named)
            if len(freeing.pending_delete) > before:
                self._freed(freeing, max(freeing.pending_delete[before:]))
            return more

        with patch.object(Shipping, "_match", watched), patch.object(SpaceReclaimer, "trim", trimmed):
            yield

    def _not_continued(self, shipping: Shipping, member: PeerReplica, state: FollowerState) -> None:
        """The master does not continue the member's log, but sends it a whole copy."""
        log = shipping._log
        at = common_end(log.epochs, log.end, state.epochs, state.log_end)
        record = self._world.checker.record(shipping.uid)
        shard = self._world.truth.shard(record.name)
        self._useless.add(copy_id_of(state.replica_id))
        self._world.coverage.counts["far behind"] += 1
        if self._parted or member.node in self._harmed:
            return
        what = f"{record.name}: {member.node}'s copy, which ends at {state.log_end},"
        if at < state.committed:
            self._fail(f"{what} parts from its master's log at {at}, and {state.committed} are committed")
        elif shard is None or shard.status is None or shard.spec.uid in self._world.truth.restored:
            return  # it does not say any more who is in sync
        elif state.replica_id in shard.status.in_sync:
            self._fail(f"{what} is in sync, and its master has not all that follows {at}")

    def _freed(self, freeing: SpaceReclaimer, base: int) -> None:
        """A master's TRIM frees the log's segment at `base`. Members that stream or fetch must not need it."""
        for process in self._world.live():
            for replica in process.replicas:
                leader, shard = replica.leader, replica.shard
                if leader is None or shard is None or shard.space is not freeing:
                    continue
                for member in leader.shipping.members.values():
                    streams, held = member.phase is Phase.STREAMING, member.snapshot
                    needs = member.durable if streams else held.log_offset if held is not None else base + 1
                    if needs <= base:
                        self._fail(
                            f"{replica.name}: {process.name} frees the log at {base}, {member.node} is at {needs}"
                        )

    def _fail(self, what: str) -> None:
        self._world.fail(f"invariant 8: {what}")
