"""Small calls share a stream, and while a queue's master is away one of them looks for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from delayapi.proto.delay.v1 import delay_pb2
from delayclient import errors
from delayclient.routing.calls import CallMultiplexer
from delayclient.routing.routing import Cluster

from tests.client.support.fakes import FakeCluster, FakeNode, Refusal, until

DECODE = delay_pb2.AckResponse.FromString


def ack(cluster: Cluster, queue: int = 0, **options: Any) -> Any:
    request = delay_pb2.AckRequest(topic="t", queue=queue, group="g")
    return cluster.call("Ack", "t", queue, request, DECODE, **options)


async def one_that_hangs(node: FakeNode, cluster: Cluster) -> asyncio.Task[Any]:
    """An Ack that the node has, and does not answer."""
    came = asyncio.Event()

    async def never(request: Any) -> Any:
        came.set()
        await asyncio.Event().wait()

    node.unary["Ack"] = never
    call = asyncio.create_task(ack(cluster))
    await came.wait()
    return call


def acks(node: FakeNode) -> int:
    return sum(method == "Ack" for method, _ in node.calls)


def test_calls_of_all_queues_go_over_one_stream() -> None:
    async def main() -> None:
        async with FakeNode(FakeCluster(queues=4)) as node, Cluster(node.endpoint) as cluster:
            node.unary["Ack"] = lambda request: delay_pb2.AckResponse(acknowledged=request.queue)
            found = await asyncio.gather(*(ack(cluster, at % 4) for at in range(200)))
            assert [one.acknowledged for one in found] == [at % 4 for at in range(200)]
            assert node.call_streams == 1

    asyncio.run(main())


def test_error_in_an_answer_is_the_calls_own() -> None:
    async def main() -> None:
        async with FakeNode(FakeCluster(queues=2)) as node, Cluster(node.endpoint) as cluster:

            def one(request: Any) -> delay_pb2.AckResponse:
                if request.queue:
                    raise Refusal("UNKNOWN_GROUP")
                return delay_pb2.AckResponse(acknowledged=1)

            node.unary["Ack"] = one
            well, wrong = await asyncio.gather(ack(cluster, 0), ack(cluster, 1), return_exceptions=True)
            assert well.acknowledged == 1
            assert isinstance(wrong, errors.NotFound)
            assert wrong.reason == "UNKNOWN_GROUP"

    asyncio.run(main())


def test_node_of_an_older_release_is_asked_in_calls_of_their_own() -> None:
    async def main() -> None:
        async with FakeNode(FakeCluster()) as node, Cluster(node.endpoint) as cluster:
            node.streams_calls = False
            node.unary["Ack"] = lambda request: delay_pb2.AckResponse(acknowledged=3)
            assert [(await ack(cluster)).acknowledged for _ in range(3)] == [3, 3, 3]
            assert node.call_streams == 1, "asked once"

    asyncio.run(main())


def test_call_goes_on_at_the_node_that_is_back() -> None:
    async def main() -> None:
        async with FakeNode(FakeCluster()) as node, Cluster(node.endpoint) as cluster:
            call = await one_that_hangs(node, cluster)
            await node.stop()
            node.unary["Ack"] = lambda request: delay_pb2.AckResponse(acknowledged=1)
            await node.start()
            assert (await call).acknowledged == 1

    asyncio.run(main())


def test_closing_the_connection_ends_its_calls() -> None:
    async def main() -> None:
        async with FakeNode(FakeCluster()) as node:
            cluster = Cluster(node.endpoint)
            call = await one_that_hangs(node, cluster)
            await cluster.close()
            with pytest.raises(errors.Closed):
                await call

    asyncio.run(main())


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that waits for another's retry does so for longer than any of these tests takes, not for a second."""
    monkeypatch.setattr("delayclient.routing.routing._RETRY_WAIT_S", 30.0)


@pytest.mark.usefixtures("patient")
def test_one_looks_for_a_queues_master_and_the_others_wait() -> None:
    async def main() -> None:
        async with FakeNode(FakeCluster(queues=2)) as node, Cluster(node.endpoint) as cluster:
            away = True

            def one(request: Any) -> delay_pb2.AckResponse:
                if away and not request.queue:
                    raise Refusal("NOT_SERVING")
                return delay_pb2.AckResponse(acknowledged=1)

            node.unary["Ack"] = one
            calls = [asyncio.create_task(ack(cluster)) for _ in range(100)]
            await until("each was tried once, and one of them again", lambda: acks(node) > 100)
            await asyncio.sleep(0.6)
            assert acks(node) < 140, "the others wait, and that one has its backoff"
            assert (await ack(cluster, 1)).acknowledged == 1, "other queues have nothing to do with it"
            late = asyncio.create_task(ack(cluster))
            await asyncio.sleep(0.1)
            assert not late.done()
            away = False
            found = await asyncio.wait_for(asyncio.gather(*calls, late), 5)
            assert {one.acknowledged for one in found} == {1}

    asyncio.run(main())


@pytest.mark.usefixtures("patient")
def test_calls_that_a_master_refuses_for_themselves_keep_no_others_waiting() -> None:
    async def main() -> None:
        async with FakeNode(FakeCluster()) as node, Cluster(node.endpoint) as cluster:
            node.unary["Ack"] = lambda request: delay_pb2.AckResponse(acknowledged=1)
            for reason in ("BUSY", "NOT_ENOUGH_REPLICAS"):

                def refused(request: Any, reason: str = reason) -> Any:
                    raise Refusal(reason)

                node.unary["Nack"] = refused
                request = delay_pb2.NackRequest(topic="t", group="g")
                nack = asyncio.create_task(cluster.call("Nack", "t", 0, request, delay_pb2.NackResponse.FromString))
                before = node.came["Nack"]
                await until("it is refused and tried again", lambda: node.came["Nack"] > before + 1)  # noqa: B023
                await asyncio.wait_for(asyncio.gather(*(ack(cluster) for _ in range(50))), 5)
                assert not nack.done()
                nack.cancel()

    asyncio.run(main())


def test_others_take_over_from_one_that_gives_up() -> None:
    async def main() -> None:
        async with FakeNode(FakeCluster()) as node, Cluster(node.endpoint) as cluster:
            away = True

            def one(request: Any) -> delay_pb2.AckResponse:
                if away:
                    raise Refusal("NOT_SERVING")
                return delay_pb2.AckResponse(acknowledged=1)

            node.unary["Ack"] = one
            first = asyncio.create_task(ack(cluster, timeout_s=0.5))
            await until("it was refused, and looks for the master", lambda: acks(node) > 1)
            cancelled, other, short = (asyncio.create_task(ack(cluster, timeout_s=each)) for each in (9.0, 10.0, 0.2))
            with pytest.raises(errors.Unavailable):
                await short
            with pytest.raises(errors.Unavailable):
                await first
            cancelled.cancel()
            away = False
            assert (await asyncio.wait_for(other, 5)).acknowledged == 1

    asyncio.run(main())


def test_idle_stream_ends_and_the_next_call_opens_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delayclient.routing.calls._IDLE_S", 0.05)

    async def main() -> None:
        async with FakeNode(FakeCluster()) as node, Cluster(node.endpoint) as cluster:
            node.unary["Ack"] = lambda request: delay_pb2.AckResponse(acknowledged=1)
            await ack(cluster)
            await until("the stream has ended", lambda: node.call_streams == 1 and not node.open_call_streams)
            assert (await ack(cluster)).acknowledged == 1
            assert node.call_streams == 2

    asyncio.run(main())


def test_no_call_is_sent_that_nobody_waits_for() -> None:
    async def main() -> None:
        sent: list[bytes] = []
        writing, go = asyncio.Event(), asyncio.Event()

        class Silent:
            """A stream that is slow to take what is written, and says nothing."""

            async def write(self, data: bytes) -> None:
                writing.set()
                await go.wait()
                sent.append(data)

            async def read(self) -> Any:
                await asyncio.Event().wait()

            def cancel(self) -> None:
                pass

        line = CallMultiplexer("n0", Silent)
        calls = [asyncio.create_task(line.call("Ack", b"%d" % at, 0.1 if at else 5.0)) for at in range(3)]
        await writing.wait()
        calls.append(asyncio.create_task(line.call("Ack", b"late", 0.05)))
        await asyncio.wait(calls[1:])  # all but the first are given up
        go.set()
        await until("the first message is sent", lambda: sent)
        await asyncio.sleep(0.05)
        assert [one.request for data in sent for one in delay_pb2.Calls.FromString(data).call] == [b"0", b"1", b"2"]
        line.close()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(one) for one in results] == [errors.Closed, *[errors.Unavailable] * 3]

    asyncio.run(main())
