"""What waits in the shards of a plan by hand is asked of their masters, over real gRPC."""

from __future__ import annotations

from concurrent import futures
from typing import Any

import grpc
from delayclient.proto.delay.v1 import delay_pb2 as pb
from delaynode.registry.model import NodeLease, ShardObject, ShardSpec, Version
from delayoperator.plan.rebalancing import Size
from delayoperator.sizes import sizes


def shard(name: str, master: str) -> ShardObject:
    topic, _, queue = name.rpartition("-")
    return ShardObject(name, Version("1"), ShardSpec(1, topic, int(queue), (master,), master, 1, "p"))


def lease(node: str, endpoint: str) -> NodeLease:
    return NodeLease(node, "p", endpoint, "")


def node(*shards: tuple[str, int, int, int]) -> tuple[grpc.Server, str]:
    """(topic, queue, pending, its bytes) of each shard that it serves."""

    def answer(request: pb.GetWheelRequest, _: Any) -> pb.GetWheelResponse:
        found = [pb.ShardWheel(topic=t, queue=q, pending=n, pending_bytes=b) for t, q, n, b in shards]
        return pb.GetWheelResponse(shards=found, now_ms=1)

    handler = grpc.unary_unary_rpc_method_handler(
        answer,
        request_deserializer=pb.GetWheelRequest.FromString,
        response_serializer=pb.GetWheelResponse.SerializeToString,
    )
    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("delay.v1.DelayService", {"GetWheel": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, f"127.0.0.1:{port}"


def test_masters_say_what_waits_and_whoever_is_silent_is_left_out() -> None:
    shards = {name: shard(name, master) for name, master in (("t-0", "n0"), ("t-1", "n1"), ("t-2", "n0"))}
    server, endpoint = node(("t", 0, 7, 700), ("t", 2, 9, 900))
    try:
        leases = [lease("n0", endpoint), lease("n1", "127.0.0.1:1")]
        assert sizes({"t-0", "t-1"}, shards, leases, timeout_s=5) == {"t-0": Size(700, 7)}
    finally:
        server.stop(None)


def test_nobody_is_asked_about_shards_that_are_not_there() -> None:
    assert sizes({"t-9"}, {}, [lease("n0", "127.0.0.1:1")]) == {}
