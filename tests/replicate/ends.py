"""Nodes with Links over real sockets, and unidentified senders who speak to them byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from typing import Any

from delaynode.replication.protocol import Message
from delaynode.replication.transport.connection import WIRE, Hello
from delaynode.replication.transport.links import Address, Links, LinkTimes, PeerOrigin
from delaynode.replication.transport.peers import Origin
from delayregistry.model import VersionRange

# Time enough to greet on a machine with other work.
QUICK = LinkTimes(first_retry=0.01, longest_retry=0.1, connect=5.0, hello=5.0, address_check=0.05)
IMPATIENT = replace(QUICK, hello=0.3)


class Recorder:
    """A Handler that records its calls."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []
        self.origins: list[Origin] = []
        self.on_master: Callable[[Origin, Message], None] = lambda origin, message: None
        self.on_slave: Callable[[str, Message], None] = lambda node, message: None
        self.on_up: Callable[[str], None] = lambda node: None

    def link_up(self, node: str) -> None:
        self.heard.append(("up", node))
        self.on_up(node)

    def link_down(self, node: str) -> None:
        self.heard.append(("down", node))

    def from_slave(self, node: str, message: Message) -> None:
        self.heard.append(("slave", node, message))
        self.on_slave(node, message)

    def from_master(self, origin: Origin, message: Message) -> None:
        if origin not in self.origins:
            self.origins.append(origin)
        self.heard.append(("master", origin.node, message))
        self.on_master(origin, message)

    def origin_lost(self, origin: Origin) -> None:
        self.heard.append(("lost", origin.node))

    def messages(self, side: str) -> list[Message]:
        return [entry[2] for entry in self.heard if entry[0] == side]

    def count(self, *entry: str) -> int:
        return self.heard.count(entry)


class Ring:
    """Nodes of one cluster, by name; each knows where the others listen, as a registry would tell it."""

    def __init__(self) -> None:
        self.addresses: dict[str, Address] = {}
        self.links: dict[str, Links] = {}
        self.handlers: dict[str, Recorder] = {}
        self.logged: list[tuple[str, dict[str, Any]]] = []

    def log(self, event: str, **fields: Any) -> None:
        self.logged.append((event, fields))

    def events(self, name: str) -> list[dict[str, Any]]:
        return [fields for event, fields in self.logged if event == name]

    async def add(
        self, node: str, incarnation: str = "", cluster: str = "c", times: LinkTimes = QUICK, port: int = 0,
        wire: VersionRange = WIRE,
    ) -> tuple[Links, Recorder]:  # fmt: skip
        """A new process of the node."""
        incarnation = incarnation or f"{node}-first"
        handler = self.handlers[node] = Recorder()
        links = Links(cluster, node, incarnation, self.addresses.get, handler, self.log, times, wire)
        self.links[node] = links
        self.addresses[node] = Address("127.0.0.1", await links.start("127.0.0.1", port), incarnation, wire)
        return links, handler

    def origin(self, node: str, of: str) -> PeerOrigin:
        return next(origin for (name, _), origin in self.links[node].origins.items() if name == of)


@contextlib.asynccontextmanager
async def ring(*nodes: str) -> AsyncIterator[Ring]:
    made = Ring()
    loop = asyncio.get_running_loop()
    unhandled: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda loop, context: unhandled.append(context))
    for node in nodes:
        await made.add(node)
    try:
        yield made
    finally:
        for links in made.links.values():
            await links.close()
        assert unhandled == [], "the loop was hit by an exception"


@contextlib.asynccontextmanager
async def pair() -> AsyncIterator[Ring]:
    """n0 with a link to n1."""
    async with ring("n0", "n1") as made:
        made.links["n0"].want(["n1"])
        await until("the link is up", lambda: made.handlers["n0"].count("up", "n1") == 1)
        yield made


async def until(what: str, true: Callable[[], bool], seconds: float = 10.0) -> None:
    try:
        async with asyncio.timeout(seconds):
            while not true():  # noqa: ASYNC110
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"not within {seconds} s: {what}") from None


def running(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make an ordinary test from a coroutine."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


async def stranger(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(address[0], address[1])


async def all_read(reader: asyncio.StreamReader) -> bytes:
    """Read everything until the other side closes."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while more := await asyncio.wait_for(reader.read(65536), 10):
            data += more
    return data


def hello_to(address: Address, node: str = "n1", cluster: str = "c", own: str = "stranger") -> bytes:
    return Hello(cluster, own, f"{own}-first", node, address[2]).encode()
