"""The SDK against real replicated nodes whose masters are killed and frozen: nothing lost, nothing early, no error."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from contextlib import suppress

import pytest
from delayapi.codec import decode_message_batch
from delayapi.proto.delay.v1 import delay_pb2
from delayclient.admin.admin import Admin
from delayclient.admin.views import Outcome
from delayclient.consumer.consumer import Consumer
from delayclient.consumer.reader import Reader
from delayclient.errors import Unavailable
from delayclient.producer.producer import Producer
from delayclient.routing.routing import Cluster
from delaylocal import LocalCluster
from delayregistry.model import Delivery, TopicSpec

QUEUES = 4
FROZEN_S = 8.0
LEASE_SECONDS = 6
"""Of a master that is frozen for a look at its slave: it leads for so long."""


class Traffic:
    """Messages sent, received, read by offset and cancelled, until stop() says how it was."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.acknowledged: set[int] = set()
        self.cancelled: list[Outcome] = []
        self.delivered: Counter[int] = Counter()
        self.early = 0
        self.read: list[list[int]] = [[] for _ in range(QUEUES)]
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        for queue in range(QUEUES):
            # A group that is done with nothing: what the other one has consumed stays for the readers.
            request = delay_pb2.ReceiveRequest(topic="t", queue=queue, group="keeper")
            await self.cluster.call("Receive", "t", queue, request, decode_message_batch)
        loops = [self._produce(), self._cancel(), self._consume(), *(self._read(queue) for queue in range(QUEUES))]
        self._tasks = [asyncio.create_task(loop) for loop in loops]

    async def _produce(self) -> None:
        async with Producer(self.cluster) as producer:
            sent: list[asyncio.Future[object]] = []
            while not self._stop.is_set():
                for _ in range(10):
                    number = len(sent)
                    future = producer.send("t", str(number), delay=200, key=str(number % 32))
                    future.add_done_callback(
                        lambda done, number=number: None if done.exception() else self.acknowledged.add(number)
                    )
                    sent.append(future)
                await asyncio.sleep(0.02)
            await asyncio.gather(*sent)

    async def _cancel(self) -> None:
        async with Producer(self.cluster) as producer, Admin(self.cluster) as admin:
            while not self._stop.is_set():
                handles = [(await producer.send("t", "never", delay="1h", key=str(i))).handle for i in range(4)]
                self.cancelled += await admin.cancel(handles)
                await asyncio.sleep(0.05)

    async def _consume(self) -> None:
        async with Consumer(self.cluster, "t", "g") as consumer:
            async for message in consumer:
                self.early += message.received_ms < message.due_ms
                self.delivered[int(message.body)] += 1
                message.ack()

    async def _read(self, queue: int) -> None:
        async with Reader(self.cluster, "t", queue, from_slaves=True) as reader:
            async for message in reader:
                self.read[queue].append(message.offset)

    def check_running(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()

    async def stop(self) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks[:2])
        for _ in range(600):
            self.check_running()
            if self.delivered.keys() >= self.acknowledged and self.read_count() >= len(self.acknowledged):
                break
            await asyncio.sleep(0.1)
        for task in self._tasks[2:]:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def read_count(self) -> int:
        return sum(len(offsets) for offsets in self.read)


async def busiest(cluster: Cluster) -> str:
    """The node that leads most shards."""
    return Counter(queue.node for queue in (await cluster.refresh("t")).queues).most_common(1)[0][0]


async def settled(local: LocalCluster) -> None:
    """Every shard has a master and both its copies."""
    for _ in range(600):
        shards = await asyncio.to_thread(local.registry.list_shards)
        if all(shard.status is not None and len(shard.status.in_sync) == 2 for shard in shards):
            return
        await asyncio.sleep(0.1)
    raise AssertionError("the copies did not get back in sync")


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_failover_is_latency_and_nothing_else(how: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    async def main(local: LocalCluster) -> None:
        await settled(local)
        async with Cluster(local.endpoints) as cluster:
            traffic = Traffic(cluster)
            await traffic.start()
            for _ in range(2):
                await asyncio.sleep(1.5)
                node = await busiest(cluster)
                if how == "killed":
                    local.kill(node)
                else:
                    local.kill(node, signal.SIGSTOP)
                    await asyncio.sleep(FROZEN_S)
                    local.kill(node, signal.SIGCONT)
                await asyncio.sleep(1.0)
                await settled(local)
                traffic.check_running()
            await traffic.stop()
            async with Admin(cluster) as admin:
                released = [wheel.released for wheel in await admin.wheel("t")]
        assert len(traffic.acknowledged) > 500
        assert not traffic.acknowledged - traffic.delivered.keys(), "acknowledged and lost"
        assert traffic.early == 0
        assert sum(released) == len(traffic.acknowledged), "stored once each, and what was cancelled is silent"
        assert set(traffic.cancelled) == {Outcome.CANCELLED}
        assert sorted(len(offsets) for offsets in traffic.read) == sorted(released)
        for offsets in traffic.read:
            assert offsets == [*range(len(offsets))], "read in order, none twice, none left out"

    with LocalCluster(
        tmp_path_factory.mktemp("failover"),
        nodes=3,
        topics=[TopicSpec("t", QUEUES)],
        replicas=2,
        delivery=Delivery.MASTER_AND_SLAVE,
    ) as local:
        local.wait_ready()
        asyncio.run(main(local))


def test_slave_delivers_without_its_master_and_says_how_old_its_knowledge_is(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    async def main(local: LocalCluster) -> None:
        await settled(local)
        async with Cluster(local.endpoints) as cluster, Producer(cluster) as producer:
            for i in range(50):
                producer.send("t", str(i))
            await producer.flush()
            queue = (await cluster.refresh("t")).queues[0]
            assert set(queue.readable) == set(local.endpoints)
            slave = next(endpoint for endpoint in queue.readable if endpoint != queue.endpoint)

            async def fetch(endpoint: str, offset: int) -> tuple[int, int]:
                request = delay_pb2.FetchRequest(topic="t", queue=0, offset=offset, max_messages=100)
                view = await cluster.call_at(endpoint, "Fetch", request, decode_message_batch, 5.0)
                return view.count, view.behind_ms

            assert await fetch(queue.endpoint, 0) == (50, 0)
            count = behind_ms = 0
            for _ in range(100):
                with suppress(Unavailable):  # it has not read yet what the registry has: that it is in sync, who leads
                    count, behind_ms = await fetch(slave, 0)
                if count == 50 and 0 < behind_ms < 2_000:  # its own answer, not one of the master's that it passed on
                    break
                await asyncio.sleep(0.05)
            assert count == 50
            assert 0 < behind_ms < 2_000
            local.kill(queue.node, signal.SIGSTOP)
            try:
                deadline_s = time.monotonic() + LEASE_SECONDS - 1  # about when the slave is the master
                behind_ms = 0
                while behind_ms <= 1_000:
                    assert time.monotonic() < deadline_s, f"behind by {behind_ms} ms at most"
                    await asyncio.sleep(0.1)
                    count, behind_ms = await fetch(slave, 0)
                    assert count == 50, "what is committed, with or without a master"
                async with Reader(cluster, "t", 0, from_slaves=True, max_staleness="500ms", follow=False) as reader:
                    # Whether there is more is not known before the slave is the master.
                    assert [int(message.body) async for message in reader] == [*range(50)]
                    assert reader.behind_ms <= 500
            finally:
                local.kill(queue.node, signal.SIGCONT)

    with LocalCluster(
        tmp_path_factory.mktemp("slaves"),
        nodes=2,
        lease_seconds=LEASE_SECONDS,
        topics=[TopicSpec("t", 1)],
        replicas=2,
        delivery=Delivery.MASTER_AND_SLAVE,
    ) as local:
        local.wait_ready()
        asyncio.run(main(local))
