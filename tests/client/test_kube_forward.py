"""The SDK through port-forward: to pods that are reached no other way, under the addresses that routes name."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from delayclient.errors import Unreachable
from delayclient.producer.producer import Producer
from delayclient.routing.routing import Cluster, TopicRoute
from delayctl.targets.port_forward import Forwards

from tests.client.support.fakepods import PORT, FakeAccess, FakeKubelet, PodNode
from tests.client.support.fakes import FakeCluster

FIRST, SECOND, THIRD = "198.18.0.1", "198.18.0.2", "198.18.0.3"


class World:
    """Two node pods, and the way to them."""

    def __init__(self, kubelet: FakeKubelet, access: FakeAccess, forwards: Forwards, nodes: list[PodNode]) -> None:
        self.kubelet = kubelet
        self.access = access
        self.forwards = forwards
        self.first, self.second = nodes
        self.cluster = self.first.cluster
        self.later: list[PodNode] = []

    def way(self) -> Cluster:
        return Cluster([self.first.endpoint, self.second.endpoint], dial=self.forwards.dial)

    async def replaced(self, address: str) -> PodNode:
        """The first pod is gone; another one of its name has come up elsewhere."""
        await self.first.stop()
        node = PodNode(self.cluster, address)
        self.later.append(node)
        await node.start(master=False)
        self.kubelet.pods["orders-0"] = node.port
        self.access.listed["orders-0"] = address
        return node


@asynccontextmanager
async def world(queues: int = 2) -> AsyncIterator[World]:
    cluster = FakeCluster(queues=queues)
    async with FakeKubelet() as kubelet, PodNode(cluster, FIRST) as first, PodNode(cluster, SECOND) as second:
        cluster.elect(first)
        access = FakeAccess(kubelet.url, {"orders-0": FIRST, "orders-1": SECOND})
        kubelet.pods.update({"orders-0": first.port, "orders-1": second.port})
        forwards = Forwards(access, access.pods())
        it = World(kubelet, access, forwards, [first, second])
        try:
            yield it
        finally:
            await asyncio.to_thread(forwards.close)
            for node in it.later:
                await node.stop()


async def send(producer: Producer, first: int, count: int) -> None:
    await asyncio.gather(*[producer.send("t", str(first + i), delay=5, key=str(i)) for i in range(count)])


def stored(cluster: FakeCluster) -> list[int]:
    return sorted(int(body) for shard in cluster.shards for body in shard.bodies())


def test_calls_go_to_the_master_that_the_route_names_through_its_own_pod() -> None:
    async def main() -> None:
        async with world() as it, it.way() as cluster, Producer(cluster) as producer:
            await send(producer, 0, 50)
            assert stored(it.cluster) == [*range(50)]
            assert ("orders-0", PORT) in it.kubelet.opened
            assert it.second.streams == 0, "nothing was forwarded"
            assert it.kubelet.authorized == {"Bearer token-of-today"}

    asyncio.run(main())


def test_a_master_that_moves_to_another_pod_is_followed_there() -> None:
    async def main() -> None:
        async with world() as it, it.way() as cluster, Producer(cluster) as producer:
            await send(producer, 0, 20)
            it.cluster.elect(it.second)
            await send(producer, 20, 20)
            assert stored(it.cluster) == [*range(40)]
            assert it.second.streams > 0

    asyncio.run(main())


def test_a_replaced_pod_is_found_under_its_new_address() -> None:
    async def main() -> None:
        async with world() as it, it.way() as cluster, Producer(cluster, timeout="20s") as producer:
            await send(producer, 0, 20)
            new = await it.replaced(THIRD)
            it.cluster.elect(new)
            await send(producer, 20, 20)
            assert stored(it.cluster) == [*range(40)]
            assert new.streams > 0

    asyncio.run(main())


def test_the_address_of_a_replaced_pod_leads_to_its_successor() -> None:
    """The endpoints that a command began with: all of them may have been replaced since."""

    async def main() -> None:
        async with world() as it:
            it.forwards.dial(f"{FIRST}:{PORT}")
            new = await it.replaced(THIRD)
            it.cluster.elect(new)
            await listed_anew(it)
            async with Cluster(f"{FIRST}:{PORT}", dial=it.forwards.dial) as cluster:
                route = await reached(cluster)
                assert route.queues[0].endpoint == f"{THIRD}:{PORT}", "routes speak of the pod's address"

    asyncio.run(main())


def test_one_listener_serves_all_addresses_that_a_pod_has_had() -> None:
    async def main() -> None:
        async with world() as it:
            before = it.forwards.dial(f"{FIRST}:{PORT}")
            assert it.forwards.dial(f"{FIRST}:{PORT}") == before
            assert it.forwards.dial(f"{SECOND}:{PORT}") != before
            await it.replaced(THIRD)
            await listed_anew(it)
            assert it.forwards.dial(f"{THIRD}:{PORT}") == before

    asyncio.run(main())


def test_an_address_that_another_pod_has_now_leads_there() -> None:
    """Addresses are given to others when a pod is gone."""

    async def main() -> None:
        async with world() as it:
            local = tuple_of(it.forwards.dial(f"{FIRST}:{PORT}"))
            del it.kubelet.pods["orders-0"]
            del it.access.listed["orders-0"]
            it.access.listed["orders-1"] = FIRST
            assert await asyncio.to_thread(read_one, local) == b"", "the pod that it led to is gone"
            await asyncio.sleep(0.6)
            async with Cluster(f"{FIRST}:{PORT}", dial=it.forwards.dial) as cluster:
                await reached(cluster)
            assert it.kubelet.opened[-1] == ("orders-1", PORT)

    asyncio.run(main())


def test_connections_that_the_api_server_ends_are_made_again() -> None:
    async def main() -> None:
        async with world() as it, it.way() as cluster, Producer(cluster) as producer:
            await send(producer, 0, 20)
            before = len(it.kubelet.opened)
            await it.kubelet.cut()
            await send(producer, 20, 20)
            assert stored(it.cluster) == [*range(40)]
            assert len(it.kubelet.opened) > before

    asyncio.run(main())


@pytest.mark.parametrize(
    ("status", "words"),
    [(403, "pods/portforward in namespace 'shop' needs the verbs get and create"), (500, "the API server answers 500")],
)
def test_what_the_api_server_refuses_is_told(status: int, words: str) -> None:
    async def main() -> None:
        async with world() as it, it.way() as cluster:
            it.kubelet.refuse = status
            with pytest.raises(Unreachable, match=r"198\.18\.0\.1:7070"):
                await cluster.route("t")
            assert words in it.forwards.trouble
            assert it.forwards.trouble.startswith("pod orders-")

    asyncio.run(main())


def test_a_port_where_nobody_listens_is_told() -> None:
    async def main() -> None:
        async with world() as it, it.way() as cluster:
            await it.first.stop()
            await it.second.stop()
            with pytest.raises(Unreachable):
                await cluster.route("t")
            assert "connection refused" in it.forwards.trouble

    asyncio.run(main())


def test_a_pod_that_is_gone_fails_at_once_and_is_not_asked_for_all_the_time() -> None:
    async def main() -> None:
        async with world() as it:
            it.access.listed.clear()
            it.kubelet.pods.clear()
            local = tuple_of(it.forwards.dial(f"{FIRST}:{PORT}"))
            before, began_s = it.access.lists, time.monotonic()
            for _ in range(20):
                assert await asyncio.wait_for(asyncio.to_thread(read_one, local), 5) == b""
            passed_s = time.monotonic() - began_s
            assert it.access.lists - before <= 1 + passed_s / 0.5, "after a failure nobody asks for half a second"
            assert "pod orders-0" in it.forwards.trouble

    asyncio.run(main())


def test_an_api_server_that_is_away_is_told_and_asked_again() -> None:
    async def main() -> None:
        async with world() as it:
            it.access.down = True
            local = tuple_of(it.forwards.dial("198.18.0.9:7070"))
            assert await asyncio.to_thread(read_one, local) == b""
            assert it.forwards.trouble == "pod 198.18.0.9: the API server gives no answer"
            it.access.down = False
            it.access.listed["orders-2"] = "198.18.0.9"
            it.kubelet.pods["orders-2"] = it.second.port
            async with Cluster("198.18.0.9:7070", dial=it.forwards.dial) as cluster:
                await reached(cluster)

    asyncio.run(main())


def test_much_data_passes_whole_and_a_reader_that_stops_holds_it_up() -> None:
    """A megabyte is echoed back in order; 64 MiB that nobody takes do not come to lie in our memory."""

    async def main() -> None:
        taken = 0

        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal taken
            kind = await reader.readexactly(1)
            while kind == b"e" and (data := await reader.read(65_536)):
                writer.write(data)
                await writer.drain()
            while kind == b"s" and taken < 64 << 20:
                writer.write(bytes(65_536))
                await writer.drain()
                taken += 65_536
            writer.close()

        async with FakeKubelet() as kubelet:
            server = await asyncio.start_server(echo, "127.0.0.1", 0)
            kubelet.pods["orders-0"] = server.sockets[0].getsockname()[1]
            access = FakeAccess(kubelet.url, {"orders-0": FIRST})
            forwards = Forwards(access, access.pods())
            host, port = tuple_of(forwards.dial(f"{FIRST}:{PORT}"))
            reader, writer = await asyncio.open_connection(host, port)
            sent = bytes(range(256)) * 4096
            writer.write(b"e" + sent)
            assert await asyncio.wait_for(reader.readexactly(len(sent)), 20) == sent
            writer.close()
            sink = socket.create_connection((host, port))
            sink.sendall(b"s")
            for _ in range(100):
                before = taken
                await asyncio.sleep(0.1)
                if taken and taken == before:
                    break
            assert 0 < taken < 48 << 20
            sink.close()
            await asyncio.to_thread(forwards.close)
            server.close()

    asyncio.run(main())


def test_close_ends_connections_and_listeners() -> None:
    async def main() -> None:
        async with world() as it:
            local = tuple_of(it.forwards.dial(f"{FIRST}:{PORT}"))
            with socket.create_connection(local) as open_:
                await eventually(lambda: bool(it.kubelet.opened))
                await asyncio.to_thread(it.forwards.close)
                open_.settimeout(5)
                assert await asyncio.to_thread(all_of, open_) is not None
            with pytest.raises(OSError):
                socket.create_connection(local, timeout=1).close()

    asyncio.run(main())


def tuple_of(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def read_one(local: tuple[str, int]) -> bytes:
    with socket.create_connection(local, timeout=5) as it:
        return it.recv(1)


def all_of(it: socket.socket) -> bytes:
    data = b""
    while piece := it.recv(65_536):
        data += piece
    return data


async def eventually(true: Callable[[], bool]) -> None:
    for _ in range(100):
        if true():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it never came")


async def reached(cluster: Cluster) -> TopicRoute:
    """The topic's route, once the cluster answers."""
    for _ in range(50):
        try:
            return await cluster.refresh("t")
        except Unreachable:
            await asyncio.sleep(0.1)
    raise AssertionError("never reached")


async def listed_anew(it: World) -> None:
    """Dial an unknown address: the forwarder then lists the pods again."""
    before = it.access.lists
    with socket.create_connection(tuple_of(it.forwards.dial("198.18.0.9:7070"))):
        await eventually(lambda: it.access.lists > before)
        await eventually(lambda: it.forwards._pods == it.access.listed)
