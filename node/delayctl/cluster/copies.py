"""The copies that each node says it keeps: ReplicaStatus of all nodes, side by side by shard."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
from delayapi.proto.delay.v1 import delay_pb2
from delayclient.errors import DelayError

if TYPE_CHECKING:
    from delayclient.admin.admin import Admin
    from delayclient.routing.routing import Cluster

METHOD = "/delay.v1.ReplicationService/ReplicaStatus"


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    node: str
    role: str  # master, slave, candidate, opening, fetching, damaged, leaving
    replica_id: str
    epoch: int
    serving_epoch: int
    log_end: int
    committed_offset: int
    damaged: str
    heartbeat_age_ms: int | None
    transfer_done: int
    transfer_total: int
    kept_in_sync: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShardCopies:
    """A shard's copies. master: the one that serves, in the highest epoch. in_sync: node ids; None: no node says."""

    copies: tuple[ReplicaRow, ...] = ()

    @property
    def master(self) -> ReplicaRow | None:
        serving = (copy for copy in self.copies if copy.role == "master" and copy.serving_epoch)
        return max(serving, key=lambda copy: copy.serving_epoch, default=None)

    @property
    def in_sync(self) -> tuple[str, ...] | None:
        if self.master is None or not self.master.kept_in_sync:
            return None
        return tuple(
            copy.node for copy in self.copies if copy.replica_id and copy.replica_id in self.master.kept_in_sync
        )

    def lag_bytes(self, copy: ReplicaRow) -> int | None:
        return None if self.master is None else max(0, self.master.log_end - copy.log_end)


async def all_copies(admin: Admin, seconds: float) -> Mapping[int, ShardCopies]:
    """By the shards' uids. Nodes that do not answer in time have none; never raises."""
    try:
        endpoints = {node.node: node.endpoint for node in await admin.nodes() if node.endpoint}
    except DelayError:
        return {}
    answers = await asyncio.gather(*(_ask(admin.cluster, endpoint, seconds) for endpoint in endpoints.values()))
    found: dict[int, list[ReplicaRow]] = {}
    for node, answer in zip(endpoints, answers, strict=True):
        for state in answer.copies if answer is not None else ():
            found.setdefault(state.uid, []).append(_copy(node, state))
    return {uid: ShardCopies(tuple(copies)) for uid, copies in found.items()}


async def _ask(cluster: Cluster, endpoint: str, seconds: float) -> delay_pb2.ReplicaStatusResponse | None:
    try:
        request = delay_pb2.ReplicaStatusRequest().SerializeToString()
        return delay_pb2.ReplicaStatusResponse.FromString(await cluster.unary(endpoint, METHOD, request, seconds))
    except grpc.RpcError:
        return None


def _copy(node: str, state: delay_pb2.ReplicaState) -> ReplicaRow:
    return ReplicaRow(
        node=node,
        role=delay_pb2.ReplicaState.Role.Name(state.role).lower(),
        replica_id=state.entry,
        epoch=state.epoch,
        serving_epoch=state.serving_epoch,
        log_end=state.log_end,
        committed_offset=state.committed,
        damaged=state.damaged,
        heartbeat_age_ms=None if state.beacon_age_ms < 0 else state.beacon_age_ms,
        transfer_done=state.transfer_done,
        transfer_total=state.transfer_total,
        kept_in_sync=tuple(state.kept_in_sync),
    )
