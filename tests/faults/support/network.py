"""A network between the nodes of a local cluster that can be cut, each direction of each pair for itself.

    n0 --peer R0  <---  P0 --advertise-peer of n0  <---  the other nodes

Every node is reached through a port of this proxy, which passes on its TCP connections and datagrams. A connection
says in its first bytes which node makes it (transport/connection.py), a datagram by the port that it comes from. In a
direction that is cut, datagrams are lost; a connection's bytes wait where they are, as TCP would send them again.
Clients, the registry and the control loop's questions are not affected: for that, see netns.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Sequence
from itertools import permutations
from typing import cast

from delaylocal import ports
from delaynode.replication.transport.connection import GREETING_BYTES, Hello, greeting_bytes

PIECE = 64 << 10
POLL_SECONDS = 0.02

Way = tuple[str, str]  # from node, to node


class Network:
    """`with Network(nodes) as network: FaultCluster(..., options=network.options)`."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self.nodes = tuple(nodes)
        chosen = ports.choose(0, len(nodes))
        self._real = dict(zip(nodes, chosen.grpc, strict=True))
        self._shown = dict(zip(nodes, chosen.http, strict=True))
        self._cut: set[Way] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="network", daemon=True)
        self._up = threading.Event()
        self._end: asyncio.Event
        self._datagrams: dict[str, _Shown] = {}

    def __enter__(self) -> Network:
        self._thread.start()
        assert self._up.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def options(self, number: int, node: str) -> tuple[str, ...]:
        """Options of a node's command line."""
        return (
            "--peer", f"{ports.HOST}:{self._real[node]}",
            "--advertise-peer", f"{ports.HOST}:{self._shown[node]}",
        )  # fmt: skip

    # ------------------------------------------------------------ cuts; from any thread
    def cut(self, *ways: Way) -> None:
        """Let nothing pass from the first node of each pair to the second."""
        self._cut |= set(ways)

    def part(self, node: str, others: Sequence[str] | None = None) -> None:
        """Cut a node off from the others, both ways."""
        for other in others or [one for one in self.nodes if one != node]:
            self.cut((node, other), (other, node))

    def heal(self) -> None:
        self._cut = set()

    def open(self, way: Way) -> bool:
        return way not in self._cut

    # ------------------------------------------------------------ the thread
    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._end = asyncio.Event()
        servers = []
        for node in self.nodes:
            accept = self._accepting(node)
            servers.append(await asyncio.start_server(accept, ports.HOST, self._shown[node], limit=PIECE))
            shown = _Shown(self, node)
            self._datagrams[node] = shown
            await self._loop.create_datagram_endpoint(lambda: shown, (ports.HOST, self._shown[node]))  # noqa: B023
        for sender, receiver in permutations(self.nodes, 2):
            relay = _Relay(self, sender, receiver)
            remote = (ports.HOST, self._real[receiver])
            await self._loop.create_datagram_endpoint(lambda: relay, remote_addr=remote)  # noqa: B023
            self._datagrams[receiver].relays[sender] = relay
        self._up.set()
        await self._end.wait()
        for server in servers:
            server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _accepting(self, node: str) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                start = await reader.readexactly(GREETING_BYTES)
                hello = start + await reader.readexactly(greeting_bytes(memoryview(start)) - GREETING_BYTES)
                await self._connect(Hello.decode(hello).node, node, hello, reader, writer)
            writer.transport.abort()

        return accept

    async def _connect(
        self, sender: str, receiver: str, hello: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Pass bytes on, both ways, until one side ends."""
        await self._passes((sender, receiver))
        inner_reader, inner_writer = await asyncio.open_connection(ports.HOST, self._real[receiver], limit=PIECE)
        try:
            inner_writer.write(hello)
            there = asyncio.create_task(self._pass((sender, receiver), reader, inner_writer))
            back = asyncio.create_task(self._pass((receiver, sender), inner_reader, writer))
            await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
            there.cancel()
            back.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
        finally:
            inner_writer.transport.abort()

    async def _pass(self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(PIECE):
            await self._passes(way)
            writer.write(data)
            await writer.drain()
        await self._passes(way)  # the end of a connection does not arrive either

    async def _passes(self, way: Way) -> None:
        while not self.open(way):  # noqa: ASYNC110 - it is cut and healed by another thread
            await asyncio.sleep(POLL_SECONDS)


class _Shown(asyncio.DatagramProtocol):
    """The port at which other nodes see a node."""

    def __init__(self, network: Network, node: str) -> None:
        self._network, self._node = network, node
        self._senders = {port: name for name, port in network._real.items()}
        self.relays: dict[str, _Relay] = {}  # by sender
        self.transport: asyncio.DatagramTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        sender = self._senders.get(address[1])
        if sender is not None and self._network.open((sender, self._node)):
            self.relays[sender].transport.sendto(data)

    def answer(self, data: bytes, to: str) -> None:
        self.transport.sendto(data, (ports.HOST, self._network._real[to]))


class _Relay(asyncio.DatagramProtocol):
    """Stands for `sender` at `receiver`: the receiver's answers come back here."""

    def __init__(self, network: Network, sender: str, receiver: str) -> None:
        self._network, self._sender, self._receiver = network, sender, receiver
        self.transport: asyncio.DatagramTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        if self._network.open((self._receiver, self._sender)):
            self._network._datagrams[self._receiver].answer(data, self._sender)

    def error_received(self, error: Exception) -> None:
        pass  # no process listens at the moment: the datagram is lost
