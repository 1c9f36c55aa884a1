"""A node in this process that asks its callers who they are, called without an edge: who calls is said to be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from delaynode import config as configuration
from delaynode.auth.identity import Identity
from delaynode.listener_options import ListenerConfig
from delaynode.node.node import Node
from delaynode.server.doors.doors import Doors
from delaynode.server.edge import Methods, bodies_of
from delaynode.server.handlers.rows import RowCalls
from delaynode.server.operations import REPLICATION_SERVICE, SERVICE
from delaynode.server.replica_status import ReplicationService
from delaynode.server.service import DelayService
from delayregistry.model import TopicSpec, Version
from delayregistry.security import SecurityObject, SecuritySpec, write_document

from tests.serve.support.fuzz_inside import OneNode

LISTENER = ListenerConfig("tokens", "127.0.0.1:1", "127.0.0.1:1", True, "token")


class SecuredRegistry(OneNode):
    """With a security document."""

    def __init__(self, topics: tuple[TopicSpec, ...]) -> None:
        super().__init__(topics)
        self._document: SecurityObject | None = None

    def put(self, document: SecuritySpec | str | None) -> None:
        self._changes += 1
        text = write_document(document) if isinstance(document, SecuritySpec) else document
        self._document = None if text is None else SecurityObject(Version(str(self._changes)), text)

    def read_security(self) -> SecurityObject | None:
        return self._document


class GivenCall:
    """A call, or a stream of `messages`, of that caller."""

    def __init__(self, who: Identity, *messages: bytes) -> None:
        self._who, self._messages = who, list(messages)

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def listener(self) -> str:
        return LISTENER.name

    def forwarded(self) -> bool:
        return False

    def identity(self) -> Identity:
        return self._who

    def metadata(self, name: str) -> str | None:
        return "a-client" if name == "x-mq-client-id" else None

    def time_remaining(self) -> float:
        return 10.0

    def on_done(self, done: Callable[[], None]) -> None:
        pass

    async def read(self) -> bytes | None:
        return self._messages.pop(0) if self._messages else None

    def on_next(self, told: Callable[[bytes], None]) -> None:
        pass


class SecuredNode:
    """events, audit: what was logged."""

    def __init__(self, directory: Path, registry: SecuredRegistry) -> None:
        args = ["--node-id", "n0", "--data", str(directory), "--registry", "sqlite:none", "--durability", "async"]
        config = configuration.parse([*args, "--listen", "127.0.0.1:1", "--http", "127.0.0.1:2"])
        self.registry = registry
        self.events: list[dict[str, Any]] = []
        self.audit: list[dict[str, Any]] = []
        self.node = Node(
            replace(config, listeners=(LISTENER,)),
            registry,  # type: ignore[arg-type]
            lambda event, **fields: self.events.append({"event": event, **fields}),
            lambda event, **fields: self.audit.append({"event": event, **fields}),
        )
        self._service = DelayService(self.node)
        self._methods: dict[str, Methods] = {
            SERVICE: self._service.methods(),
            REPLICATION_SERVICE: ReplicationService(self._service.dispatch).methods(),
        }
        self._rows = RowCalls(self._service.dispatch)
        self._doors = Doors(self._service, self._rows)
        self._methods |= self._doors.services()

    async def start(self, *, ready: bool = True) -> None:
        await self.node.read_cluster()
        await self.node.prepare()
        await self.node.start()
        await until(lambda: bool(self.node.hosts()) and (not ready or self.node.not_ready() is None))

    async def stop(self) -> None:
        await self.node.stop()
        await self._doors.close()
        await self._rows.close()
        self.node._lock.close()
        await self._service.dispatch.forwarder.close()

    def methods(self, service: str) -> Methods:
        return self._methods[service]

    async def call(self, method: str, request: Any, who: Identity, service: str = SERVICE) -> bytes:
        """Raises what the node raises."""
        methods, call = self.methods(service), GivenCall(who)
        serve = {**methods.unary, **methods.batches, **methods.internal}[method]
        answers = self.node.flow.answers(call)
        try:
            return await serve(request.SerializeToString(), call, answers)
        finally:
            answers.dropped()

    async def stream(self, method: str, who: Identity, *requests: Any, service: str = SERVICE) -> list[bytes]:
        call = GivenCall(who, *(one.SerializeToString() for one in requests))
        stream = self.methods(service).streams[method](call)
        return [body async for yielded in stream for body in bodies_of(yielded)]


async def until(holds: Callable[[], bool], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110  # what it looks at tells nobody
            await asyncio.sleep(0.01)


@asynccontextmanager
async def secured(
    directory: Path, document: SecuritySpec, topics: tuple[str, ...] = ("orders",)
) -> AsyncIterator[SecuredNode]:
    registry = SecuredRegistry(tuple(TopicSpec(name, 1) for name in topics))
    registry.put(document)
    node = SecuredNode(directory, registry)
    await node.start()
    try:
        yield node
    finally:
        await node.stop()
