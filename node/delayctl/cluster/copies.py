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
    """A copy of `node`. role: master, slave, candidate, opening, fetching, damaged, leaving."""

    node: str
    state: delay_pb2.ReplicaState

    @property
    def role(self) -> str:
        return delay_pb2.ReplicaState.Role.Name(self.state.role).lower()

    @property
    def heartbeat_age_ms(self) -> int | None:
        return None if self.state.beacon_age_ms < 0 else self.state.beacon_age_ms


@dataclass(frozen=True, slots=True)
class ShardCopies:
    """A shard's copies. master: the one that serves, in the highest epoch. in_sync: node ids; None: no node says."""

    copies: tuple[ReplicaRow, ...] = ()

    @property
    def master(self) -> ReplicaRow | None:
        serving = (copy for copy in self.copies if copy.role == "master" and copy.state.serving_epoch)
        return max(serving, key=lambda copy: copy.state.serving_epoch, default=None)

    @property
    def in_sync(self) -> tuple[str, ...] | None:
        kept = () if self.master is None else self.master.state.kept_in_sync
        return tuple(it.node for it in self.copies if it.state.entry and it.state.entry in kept) if kept else None

    def lag_bytes(self, copy: ReplicaRow) -> int | None:
        return None if self.master is None else max(0, self.master.state.log_end - copy.state.log_end)


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
            found.setdefault(state.uid, []).append(ReplicaRow(node, state))
    return {uid: ShardCopies(tuple(copies)) for uid, copies in found.items()}


async def _ask(cluster: Cluster, endpoint: str, seconds: float) -> delay_pb2.ReplicaStatusResponse | None:
    try:
        request = delay_pb2.ReplicaStatusRequest().SerializeToString()
        return delay_pb2.ReplicaStatusResponse.FromString(await cluster.unary(endpoint, METHOD, request, seconds))
    except grpc.RpcError:
        return None


def remark(copy: ReplicaRow) -> str:
    """What is unusual about it; "" of a sound one."""
    state = copy.state
    if state.damaged:
        return f"{copy.node} is damaged: {state.damaged}"
    if copy.role == "fetching":
        share = f" {state.transfer_done * 100 // state.transfer_total} %" if state.transfer_total else ""
        return f"{copy.node} is fetching{share}"
    return "" if copy.role in ("master", "slave") else f"{copy.node} is {copy.role}"
