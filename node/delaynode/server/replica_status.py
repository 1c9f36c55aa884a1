"""ReplicaStatus: what this process keeps of each shard, answered from memory."""

from __future__ import annotations

from typing import Any

import grpc
from delayapi.proto.delay.v1 import delay_pb2 as pb

from delaynode.node.node import Node
from delaynode.replica.replica import Replica
from delaynode.replica.role import ReplicaRole

REPLICATION_SERVICE = "delay.v1.ReplicationService"


def state_of(replica: Replica, heartbeat_age_ms: int | None) -> pb.ReplicaState:
    """One copy. Of an opening one nothing is known yet."""
    local, spec, shard = replica.local, replica.local.object.spec, replica.shard
    failure = replica.master.failure if replica.master is not None else replica.leadership.overdue_reason()
    state = pb.ReplicaState(
        topic=spec.topic, queue=spec.queue, uid=replica.uid, entry=local.storage.replica_id, role=local.role.name,
        damaged=replica.damaged() or failure or "", beacon_age_ms=-1 if heartbeat_age_ms is None else heartbeat_age_ms,
    )  # fmt: skip
    if shard is not None:
        state.epoch, state.log_epoch = shard.identity.epoch, shard.log.last_epoch
        state.log_end, state.committed = shard.log.end, shard.committed_offset
        state.kept_epoch = shard.known_status[0]
        state.kept_in_sync.extend(shard.known_status[1])
    if local.host is not None:
        state.committed = max(state.committed, min(local.host.known_committed, state.log_end))
    if replica.master is not None and replica.master.serving and replica.leader is not None:
        state.serving_epoch = replica.leader.term.epoch
    state.over_epoch, state.not_serving = replica.leadership.not_serving()
    if (fetching := local.storage.fetching) is not None:
        state.transfer_done, state.transfer_total = fetching.done_bytes, fetching.total_bytes
    return state


class ReplicationService:
    """The calls that the cluster's own processes make to a node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def handlers(self) -> grpc.GenericRpcHandler:
        call = grpc.unary_unary_rpc_method_handler(
            self._status,
            request_deserializer=pb.ReplicaStatusRequest.FromString,
            response_serializer=pb.ReplicaStatusResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(REPLICATION_SERVICE, {"ReplicaStatus": call})

    async def _status(self, request: pb.ReplicaStatusRequest, _: Any) -> pb.ReplicaStatusResponse:
        node = self._node
        uids = set(request.uid)
        answer = pb.ReplicaStatusResponse(
            node=node.config.node,
            incarnation=node.incarnation,
            listed=node.replicas.listed,
            unfit=node.ineligible() or "",
        )
        for replica in node.replicas:
            if (not uids or replica.uid in uids) and replica.role is not ReplicaRole.ABSENT:
                answer.copies.append(state_of(replica, node.replicas.heard_ms(replica.uid)))
        return answer
