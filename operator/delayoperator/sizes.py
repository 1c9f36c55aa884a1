"""What waits in shards, as their masters say it: for a rebalance by hand, whose moves nobody has weighed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc
from delayclient.proto.delay.v1 import delay_pb2
from delaynode.registry.model import NodeLease, ShardObject, shard_name

from delayoperator.plan.rebalancing import Size

METHOD = "/delay.v1.DelayService/GetWheel"
TIMEOUT_S = 2.0
AT_ONCE = 16


def sizes(
    names: Collection[str], shards: Mapping[str, ShardObject], leases: Sequence[NodeLease], timeout_s: float = TIMEOUT_S
) -> dict[str, Size]:
    """By shard name; those whose master does not answer in time are missing. Asks all masters at once."""
    masters = {shard.spec.master for name in names if (shard := shards.get(name)) is not None}
    endpoints = [lease.endpoint for lease in leases if lease.node in masters]
    if not endpoints:
        return {}
    with ThreadPoolExecutor(min(AT_ONCE, len(endpoints))) as pool:
        answers = pool.map(lambda endpoint: _of_node(endpoint, timeout_s), endpoints)
    return {name: size for answer in answers for name, size in answer.items() if name in names}


def _of_node(endpoint: str, timeout_s: float) -> dict[str, Size]:
    """Of all shards that a node leads; empty when it does not answer: then their sizes are not known."""
    with grpc.insecure_channel(endpoint, options=[("grpc.enable_http_proxy", 0)]) as channel:
        call = channel.unary_unary(
            METHOD,
            request_serializer=delay_pb2.GetWheelRequest.SerializeToString,
            response_deserializer=delay_pb2.GetWheelResponse.FromString,
        )
        try:
            answer = call(delay_pb2.GetWheelRequest(from_ms=1, to_ms=2), timeout=timeout_s)  # no slots, only the sums
        except grpc.RpcError:
            return {}
    return {shard_name(it.topic, it.queue): Size(it.pending_bytes, it.pending) for it in answer.shards}
