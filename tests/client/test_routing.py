from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import pytest
from delayapi.proto.delay.v1 import delay_pb2
from delayclient import errors
from delayclient.admin.admin import Admin
from delayclient.consumer.consumer import Consumer
from delayclient.producer.producer import Producer
from delayclient.routing.routing import Cluster, backoff_s, split_endpoints

from tests.client.support.fakegroup import Groups
from tests.client.support.fakes import FakeCluster, FakeNode, Refusal

NOBODY = "127.0.0.1:1"


def test_endpoints_are_read() -> None:
    assert split_endpoints("a:1, b:2 ,") == ("a:1", "b:2")
    assert split_endpoints(["[::1]:7070"]) == ("[::1]:7070",)
    for wrong in ("", ",", "host", "host:", ":70", "host:port", "host:0", "host:70000"):
        with pytest.raises(ValueError):
            split_endpoints(wrong)


def test_backoff_doubles_up_to_a_quarter_of_a_second_and_half_of_one_later() -> None:
    for failures in range(60):
        longest = min(0.25 if failures < 10 else 0.5, 0.02 * 2**failures)
        assert longest / 2 <= backoff_s(failures) <= longest


def test_master_that_cannot_be_reached_is_asked_through_the_given_endpoint() -> None:
    async def main() -> None:
        cluster = FakeCluster(queues=2)
        cluster.advertised = NOBODY
        async with FakeNode(cluster) as node:
            groups = Groups(node)
            groups.queues[1].release([b"x"])
            async with Producer(node.endpoint) as producer:
                await asyncio.gather(*[producer.send("t", str(i), delay=5, key=str(i)) for i in range(50)])
                async with Consumer(node.endpoint, "t", "g") as consumer:
                    message = await consumer.receive(5)
                    assert message is not None
                    message.ack()
                    await consumer.flush()
                assert groups.all_acked()

    asyncio.run(main())


def test_detour_is_left_when_the_master_can_be_reached() -> None:
    async def main() -> None:
        cluster = FakeCluster(queues=1)
        async with FakeNode(cluster) as detour, FakeNode(cluster) as master, Producer(detour.endpoint) as producer:
            detour.forwards = True
            used: list[str] = []

            def noting(name: str) -> Any:
                async def fault(_: object) -> str:
                    used.append(name)
                    return ""

                return fault

            detour.fault, master.fault = noting("detour"), noting("master")
            await producer.send("t", b"0", delay=5)
            await master.stop()
            await producer.send("t", b"1", delay=5)
            assert used == ["master", "detour"]
            await master.start()
            deadline = time.monotonic() + 10
            while used[-1] == "detour" and time.monotonic() < deadline:
                await producer.send("t", b"2", delay=5)
                await asyncio.sleep(0.02)
            assert used[-1] == "master"

    asyncio.run(main())


def test_route_is_asked_from_any_node_that_answers() -> None:
    async def main() -> None:
        async with FakeNode(FakeCluster()) as node, Cluster([NOBODY, node.endpoint]) as cluster:
            assert [queue.uid for queue in (await cluster.route("t")).queues] == [100]
            with pytest.raises(errors.NotFound):
                await cluster.route("nope")
            with pytest.raises(errors.NotFound, match="no queue 7"):
                await cluster.address("t", 7)
            node.cluster.masters = [None]
            await cluster.refresh("t")
            with pytest.raises(errors.Unavailable, match="no master"):
                await cluster.address("t", 0)
        async with Cluster(NOBODY) as cluster:
            with pytest.raises(errors.Unreachable, match=r"cannot reach the cluster: 127\.0\.0\.1:1"):
                await cluster.route("t")

    asyncio.run(main())


def test_cluster_that_cannot_be_reached_yet_is_waited_for() -> None:
    """kube-proxy refuses connections to a Service for up to a second after its first pod is ready."""

    async def main() -> None:
        async with FakeNode(FakeCluster()) as node:
            await node.stop()
            async with Cluster(node.endpoint) as cluster:
                asked = asyncio.create_task(cluster.route("t"))
                await asyncio.sleep(0.5)
                assert not asked.done()
                await node.start()
                assert [queue.uid for queue in (await asked).queues] == [100]
                await node.stop()
                with pytest.raises(errors.Unreachable):  # and one that was there before is not
                    await asyncio.wait_for(cluster.refresh("t"), 1.0)
                await node.start()

    asyncio.run(main())


def test_routes_asked_for_at_once_are_one_question() -> None:
    async def main() -> None:
        async with FakeNode(FakeCluster()) as node, Cluster(node.endpoint) as cluster:
            await asyncio.gather(*[cluster.refresh("t") for _ in range(100)])
            assert node.cluster.route_calls == 1

    asyncio.run(main())


def test_newer_master_is_learned_from_an_answer() -> None:
    async def main() -> None:
        async with FakeNode(FakeCluster(queues=2)) as node, Cluster(node.endpoint) as cluster:
            await cluster.route("t")

            def not_master(**metadata: str) -> errors.NotMaster:
                error = errors.make_error("FAILED_PRECONDITION", "NOT_MASTER", "", metadata)
                assert isinstance(error, errors.NotMaster)
                return error

            assert cluster.route_table.learn("t", 1, not_master(endpoint="10.0.0.1:70", epoch="5"))
            assert await cluster.address("t", 1) == "10.0.0.1:70"
            assert await cluster.address("t", 0) == node.endpoint
            assert not cluster.route_table.learn("t", 1, not_master(endpoint="10.0.0.2:70", epoch="4"))
            assert not cluster.route_table.learn("t", 1, not_master())
            assert not cluster.route_table.learn("t", 9, not_master(endpoint="10.0.0.2:70", epoch="9"))

    asyncio.run(main())


def test_call_is_tried_again_while_the_error_says_so() -> None:
    async def main() -> None:
        answers = [Refusal("NOT_SERVING"), Refusal("BUSY", retry_after_ms=1), Refusal("NOT_MASTER")]

        def cancel(_: object) -> Any:
            if answers:
                raise answers.pop(0)
            return delay_pb2.CancelResponse()

        async with FakeNode(FakeCluster()) as node, Admin(node.endpoint, timeout="2s") as admin:
            node.unary["Cancel"] = cancel
            assert [row.outcome.name for row in await admin.cancel_by_key("t", "k")] == []
            assert not answers
            answers += [Refusal("BAD_GROUP")]
            with pytest.raises(errors.InvalidRequest) as failure:
                await admin.cancel_by_key("t", "k")
            assert (failure.value.reason, failure.value.code) == ("BAD_GROUP", "INVALID_ARGUMENT")
            answers += [Refusal("NOT_SERVING")] * 1000
            with pytest.raises(errors.Unavailable):
                await admin.cancel_by_key("t", "k")

    asyncio.run(main())


def test_closed_connection_says_so() -> None:
    async def main() -> None:
        async with FakeNode(FakeCluster()) as node:
            cluster = Cluster(node.endpoint)
            await cluster.route("t")
            await cluster.close()
            with pytest.raises(errors.Closed):
                await cluster.refresh("t")

    asyncio.run(main())


def test_every_reason_of_the_protocol_has_its_type() -> None:
    retryable = {
        "NOT_MASTER",
        "NOT_SERVING",
        "NOT_ENOUGH_REPLICAS",
        "WHEEL_BEHIND",
        "CLOCK_BEHIND",
        "DISK_FULL",
        "BUSY",
    }
    final = {"DELAY_TOO_LONG", "MESSAGE_TOO_LARGE", "BATCH_TOO_LARGE", "BAD_COLUMNS", "BAD_REQUEST", "FOREIGN_HANDLE"}
    final |= {"WRONG_TOPIC_TYPE"}
    final |= {"BAD_GROUP", "GROUP_MISMATCH", "OUT_OF_ORDER", "UNKNOWN_PRODUCER", "UNKNOWN_TOPIC", "UNKNOWN_QUEUE"}
    for reason in retryable | {"SHARD_DAMAGED"}:
        assert errors.make_error("UNKNOWN", reason, "").retryable, reason
    for reason in final | {"UNKNOWN_GROUP"}:
        error = errors.make_error("UNKNOWN", reason, "")
        assert not error.retryable, reason
        assert type(error) is not errors.DelayError
    busy = errors.make_error("RESOURCE_EXHAUSTED", "BUSY", "", {"retry_after_ms": "17"})
    assert isinstance(busy, errors.Busy)
    assert busy.retry_after_ms == 17
    order = errors.make_error("FAILED_PRECONDITION", "OUT_OF_ORDER", "", {"expected": "4"})
    assert isinstance(order, errors.OutOfOrder)
    assert order.expected == 4
    stream = errors.from_stream(delay_pb2.Error(code=999, reason="", message="odd"))
    assert (type(stream), stream.code, str(stream)) == (errors.Unavailable, "UNKNOWN", "odd (UNKNOWN)")


def test_rubbish_in_the_status_details_is_passed_over() -> None:
    class Failed(grpc.RpcError):
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.NOT_FOUND

        def details(self) -> str:
            return "gone"

        def trailing_metadata(self) -> Any:
            return (("grpc-status-details-bin", b"\xff\xff\xff"), ("other", "x"))

    error = errors.from_rpc(Failed())
    assert (type(error), str(error)) == (errors.NotFound, "gone (NOT_FOUND)")
