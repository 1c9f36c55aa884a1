"""The operator asks nodes over real gRPC how much waits in a plan's shards, and how much falls due on each node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager
from typing import Any, TypeAlias

import grpc
import numpy as np
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayoperator.control_loop.node_access import OperatorAccess
from delayoperator.kube.rebalance.shard_sizes import SLOT_MS, SLOTS, ShardSizes, weigh
from delayoperator.rebalance_plan import Size
from delayregistry.model import NodeLease, ShardObject, ShardSpec, Version

NOW_MS = 1_800_000_123_456
PLAIN = OperatorAccess()


Firings: TypeAlias = Mapping[str, tuple[int, int]]


def shard(name: str, master: str) -> ShardObject:
    topic, _, queue = name.rpartition("-")
    return ShardObject(name, Version("1"), ShardSpec(1, topic, int(queue), (master,), master, 1, "p"))


def lease(node: str, endpoint: str) -> NodeLease:
    return NodeLease(node, "p", endpoint, "")


def wheel(topic: str, queue: int, pending: int, size: int, *slots: tuple[int, int, int]) -> pb.ShardWheel:
    """slots: (start, width, messages)."""
    start, width, messages = (np.array(it, "<i8").tobytes() for it in zip(*slots, strict=True)) if slots else (b"",) * 3
    return pb.ShardWheel(
        topic=topic, queue=queue, pending=pending, pending_bytes=size,
        slot_start=start, slot_width=width, messages=messages,
    )  # fmt: skip


@contextmanager
def node(
    *wheels: pb.ShardWheel, too_large: bool = False, now_ms: int = 0, firings: Firings | None = None
) -> Iterator[str]:
    """Its address. too_large: it tells the sums, and no slots. firings: of schedules, (when, how many) by topic."""

    def answer(request: pb.GetWheelRequest, context: Any) -> pb.GetWheelResponse:
        if too_large and request.to_ms - request.from_ms > 1:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too large")
        return pb.GetWheelResponse(shards=wheels, now_ms=1)

    def forecast(request: pb.ForecastRequest, context: Any) -> pb.ForecastResponse:
        assert request.own
        edges = now_ms + request.bucket_ms * np.arange(1, request.buckets + 1)
        topics: dict[str, pb.TopicForecast] = {}
        for it in wheels:
            start, messages = (np.frombuffer(raw, "<i8") for raw in (it.slot_start, it.messages))
            due = (messages[:, None] * (start[:, None] < edges)).sum(0) if len(start) else np.zeros(len(edges), "<i8")
            if it.topic not in topics:
                at, count = (firings or {}).get(it.topic, (0, 0))
                topics[it.topic] = pb.TopicForecast(topic=it.topic, arrivals=(count * (at < edges)).tobytes())
            found = topics[it.topic]
            found.arrivals = (np.frombuffer(found.arrivals, "<i8") + due).tobytes()
            found.queues.append(it.queue)
        return pb.ForecastResponse(now_ms=now_ms, topics=topics.values())

    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            said, request_deserializer=asked.FromString, response_serializer=answered.SerializeToString
        )
        for name, said, asked, answered in (
            ("GetWheel", answer, pb.GetWheelRequest, pb.GetWheelResponse),
            ("Forecast", forecast, pb.ForecastRequest, pb.ForecastResponse),
        )
    }
    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("delay.v1.DelayService", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None)


def test_masters_say_what_waits_and_whoever_is_silent_is_left_out() -> None:
    shards = {name: shard(name, master) for name, master in (("t-0", "n0"), ("t-1", "n1"), ("t-2", "n0"))}
    with node(wheel("t", 0, 7, 700), wheel("t", 2, 9, 900)) as endpoint:
        leases = [lease("n0", endpoint), lease("n1", "127.0.0.1:1")]
        found = weigh({"t-0", "t-1"}, shards, leases, PLAIN, NOW_MS, timeout_s=5)
    assert found.sizes == {"t-0": Size(700, 7)}
    assert found.coming is not None
    assert not found.coming.whole, "n1 has not answered"
    assert list(found.coming.shards) == ["t-0"]


def test_the_load_to_come_is_of_all_nodes_in_slots_of_five_minutes_for_a_day() -> None:
    shards = {name: shard(name, master) for name, master in (("t-0", "n0"), ("t-1", "n1"), ("t-2", "n0"))}
    minute, hour = 60_000, 3_600_000
    start = NOW_MS // SLOT_MS * SLOT_MS
    moved = wheel("t", 0, 7, 700, (start - minute, minute, 50), (start, minute, 4), (start + hour, hour, 24))
    beside = wheel("t", 2, 9, 900, (start + 7 * minute, minute, 3), (start + 24 * hour, hour, 99))
    with node(moved, beside) as one, node(wheel("t", 1, 1, 1, (start - hour // 2, hour, 12))) as other:
        found = weigh({"t-0"}, shards, [lease("n0", one), lease("n1", other)], PLAIN, NOW_MS, timeout_s=5).coming
    assert found is not None
    assert (found.start_ms, found.slot_ms, found.nodes, found.whole) == (start, SLOT_MS, ("n0", "n1"), True)
    assert found.shards["t-0"].tolist() == [4] + [0] * 11 + [2] * 12 + [0] * (SLOTS - 24)
    assert found.loads[0].tolist() == [4, 3] + [0] * 10 + [2] * 12 + [0] * (SLOTS - 24)
    assert found.loads[1].tolist() == [1] * 6 + [0] * (SLOTS - 6)


def test_of_a_node_with_too_many_slots_for_an_answer_the_sizes_are_known() -> None:
    with node(wheel("t", 0, 7, 700), too_large=True) as endpoint:
        found = weigh({"t-0"}, {"t-0": shard("t-0", "n0")}, [lease("n0", endpoint)], PLAIN, NOW_MS, timeout_s=5)
    assert (found.sizes, found.coming) == ({"t-0": Size(700, 7)}, None)


def test_what_is_hot_is_not_known_while_a_master_has_no_lease() -> None:
    shards = {"t-0": shard("t-0", "n0"), "t-1": shard("t-1", "n1")}
    with node(wheel("t", 0, 7, 700)) as endpoint:
        found = weigh({"t-0"}, shards, [lease("n0", endpoint)], PLAIN, NOW_MS, timeout_s=5).coming
    assert found is not None
    assert not found.whole


def test_nobody_is_asked_about_shards_that_are_not_there() -> None:
    assert weigh({"t-9"}, {}, [lease("n0", "127.0.0.1:1")], PLAIN, NOW_MS) == ShardSizes()
