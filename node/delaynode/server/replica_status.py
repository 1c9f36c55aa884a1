"""ReplicaStatus: what this process keeps of each shard, and what else is on its disk, answered from memory."""

from __future__ import annotations

from collections.abc import Container

import grpc
from delayapi.proto.delay.v1 import delay_pb2 as pb

from delaynode.limits.budget import Answers
from delaynode.replica.replica import Replica
from delaynode.replica.replicas import NotPurged, Replicas
from delaynode.replica.role import ReplicaRole
from delaynode.server.dispatch import Dispatch, parse
from delaynode.server.edge import Body, Call, Methods
from delaynode.server.rpc import EndedError
from delaynode.store.maintenance.stored_copy import StoredCopy


def state_of(replica: Replica, heartbeat_age_ms: int | None) -> pb.ReplicaState:
    """One copy. Of an opening one nothing is known yet."""
    local, spec, shard = replica.local, replica.local.object.spec, replica.shard
    failure = replica.master.failure if replica.master is not None else replica.leadership.overdue_reason()
    state = pb.ReplicaState(
        topic=spec.topic, queue=spec.queue, uid=replica.uid, entry=local.storage.replica_id, role=local.role.name,
        damaged=replica.damaged() or failure or "", newer_format=local.storage.newer_format,
        beacon_age_ms=-1 if heartbeat_age_ms is None else heartbeat_age_ms,
    )  # fmt: skip
    if (cluster := local.cluster_name()) is not None:
        state.cluster = cluster
    if shard is not None:
        state.pending = shard.index.pending
        state.epoch, state.log_epoch = shard.identity.epoch, shard.log.last_epoch
        state.log_end, state.committed = shard.log.end, shard.committed_offset
        state.kept_epoch = shard.known_status[0]
        state.kept_in_sync.extend(shard.known_status[1])
    if local.host is not None:
        state.committed = max(state.committed, min(local.host.known_committed, state.log_end))
        state.unsynced = local.host.unsynced
    if replica.master is not None and replica.master.serving and replica.leader is not None:
        state.serving_epoch = replica.leader.term.epoch
    state.over_epoch, state.not_serving = replica.leadership.not_serving()
    if (fetching := local.storage.fetching) is not None:
        state.transfer_done, state.transfer_total = fetching.done_bytes, fetching.total_bytes
    return state


def _stored_state(copy: StoredCopy) -> pb.ReplicaState:
    return pb.ReplicaState(
        topic=copy.topic, queue=copy.queue, uid=copy.uid, entry=copy.copy_id, role=pb.ReplicaState.STORED,
        damaged=copy.damage or "", beacon_age_ms=-1, epoch=copy.epoch, log_epoch=copy.log_epoch, log_end=copy.log_end,
        kept_epoch=copy.kept_epoch, kept_in_sync=copy.kept_in_sync, pending=copy.pending, cluster=copy.cluster,
        disk_bytes=copy.disk_bytes, newer_format=copy.newer_format,
    )  # fmt: skip


def answer_of(
    replicas: Replicas, node: str, incarnation: str, ineligible: str, uids: Container[int] = ()
) -> pb.ReplicaStatusResponse:
    """What the node's process has, opened or on disk only. uids: of these shards alone; empty: of all."""
    answer = pb.ReplicaStatusResponse(node=node, incarnation=incarnation, listed=replicas.listed, unfit=ineligible)
    for replica in replicas:
        if (not uids or replica.uid in uids) and replica.role is not ReplicaRole.ABSENT:
            answer.copies.append(state_of(replica, replicas.heard_ms(replica.uid)))
    answer.copies.extend(_stored_state(copy) for copy in replicas.stored if not uids or copy.uid in uids)
    return answer


class ReplicationService:
    """The calls that the cluster's own processes make to a node."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch, self._node = dispatch, dispatch.node

    def methods(self) -> Methods:
        return Methods(internal={"ReplicaStatus": self._status, "PurgeCopy": self._purge})

    async def _status(self, data: Body, call: Call, _: Answers) -> Body:
        self._dispatch.check("ReplicaStatus", call)
        node, request = self._node, parse(pb.ReplicaStatusRequest, data)
        return answer_of(
            node.replicas, node.config.node, node.incarnation, node.ineligible() or "", set(request.uid)
        ).SerializeToString()

    async def _purge(self, data: Body, call: Call, _: Answers) -> Body:
        self._dispatch.check("PurgeCopy", call)
        request = parse(pb.PurgeCopyRequest, data)
        try:
            await self._node.replicas.purge(request.uid, request.pending)
        except NotPurged as error:
            message = f"{self._node.config.node}: {error}"
            raise EndedError(grpc.StatusCode.FAILED_PRECONDITION, message) from error
        return pb.PurgeCopyResponse().SerializeToString()
