"""A node in this process, asked through its service's own handlers: what gRPC hands them, without the network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import grpc
from delaynode import config as configuration
from delaynode.node.node import Node
from delaynode.server.grpc_edge import GrpcCallers, handlers
from delaynode.server.operations import SERVICE as NAME
from delaynode.server.service import DelayService
from delaynode.store import formats
from delayregistry.model import (
    ClusterObject,
    ClusterSpec,
    NodeLease,
    ShardObject,
    ShardSpec,
    ShardStatus,
    TopicSpec,
    Version,
)
from google.rpc import error_details_pb2, status_pb2

from tests.serve.support.listening import anybody, plain

SERVICE = f"/{NAME}/"
ANSWER_SECONDS = 30.0  # no call of these tests takes so long, unless the node hangs


class Aborted(Exception):
    """How a handler refuses: gRPC code, message and ErrorInfo."""

    def __init__(self, code: grpc.StatusCode, message: str, trailing: Any = ()) -> None:
        self.code, self.message = code, message
        self.reason = ""
        for key, value in trailing:
            if key == "grpc-status-details-bin":
                for detail in status_pb2.Status.FromString(value).details:
                    info = error_details_pb2.ErrorInfo()
                    if detail.Unpack(info):
                        self.reason = info.reason
        super().__init__(f"{code.name} {self.reason}: {message[:200]}")


class FakeContext:
    """A call's context: its requests, what a stream has written, and how it ends."""

    def __init__(self, requests: list[bytes], peer: str = "ipv4:127.0.0.1:1") -> None:
        self._requests = requests
        self._peer = peer
        self.written: list[bytes] = []
        self._callbacks: list[Callable[[Any], None]] = []

    async def read(self) -> Any:
        return self._requests.pop(0) if self._requests else grpc.aio.EOF

    async def write(self, message: bytes) -> None:
        self.written.append(message)

    def peer(self) -> str:
        return self._peer

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def time_remaining(self) -> float:
        return ANSWER_SECONDS

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        raise Aborted(code, details, trailing_metadata)

    def done(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


class OneNode:
    """A Registry for one node that is the master of every shard."""

    def __init__(self, topics: tuple[TopicSpec, ...]) -> None:
        self.spec = ClusterSpec("fuzz", 1, topics, nodes_version=formats.NEWEST)
        self.lease: NodeLease | None = None
        self._epoch = 0
        self._changes = 0
        self._shards: dict[str, ShardObject] = {}

    def version(self) -> int:
        return self._changes

    def read_cluster(self) -> ClusterObject:
        return ClusterObject(Version("1"), self.spec)

    def list_shards(self, node: str | None = None) -> tuple[ShardObject, ...]:
        return tuple(self._shards.values())

    def get_shard(self, name: str) -> ShardObject | None:
        return self._shards.get(name)

    def write_status(self, name: str, status: ShardStatus, version: Version) -> Version:
        self._changes += 1
        self._shards[name] = replace(self._shards[name], status=status)
        return version

    def renew_lease(self, lease: NodeLease) -> None:
        if self.lease is None or self.lease.incarnation != lease.incarnation:
            self._epoch += 1
            self._changes += 1
            for topic in self.spec.topics:
                for queue in range(topic.queues):
                    uid = 1000 + len(self._shards) if self._epoch == 1 else 0
                    spec = ShardSpec(uid, topic.name, queue, (lease.node,), lease.node, self._epoch, lease.incarnation)
                    old = self._shards.get(spec.name)
                    if old is not None:
                        spec = replace(spec, uid=old.spec.uid)
                    status = None if old is None else old.status
                    self._shards[spec.name] = ShardObject(spec.name, Version("1"), spec, status)
        self.lease = lease

    def list_leases(self) -> tuple[NodeLease, ...]:
        return (self.lease,) if self.lease is not None else ()

    def probe(self) -> None:
        pass

    def close(self) -> None:
        pass


class Inside:
    """A running node. `log`: its events."""

    def __init__(self, node: Node, log: list[tuple[str, dict[str, object]]]) -> None:
        self.node = node
        self.log = log
        self._service = DelayService(node)
        self._handlers = handlers(NAME, self._service.methods(), node.flow, GrpcCallers(plain(), anybody()))

    @classmethod
    async def start(cls, directory: Path, registry: OneNode) -> Inside:
        args = ["--node-id", "n0", "--data", str(directory), "--registry", "sqlite:none", "--durability", "async"]
        log: list[tuple[str, dict[str, object]]] = []
        config = configuration.parse([*args, "--listen", "127.0.0.1:1", "--http", "127.0.0.1:2"])
        node = Node(config, registry, lambda event, **fields: log.append((event, fields)))  # type: ignore[arg-type]
        await node.read_cluster()
        await node.prepare()
        await node.start()
        for _ in range(1000):
            if node.not_ready() is None and node.hosts():
                return cls(node, log)
            await asyncio.sleep(0.01)
        raise TimeoutError(f"the node does not serve: {node.not_ready()}; {log[-3:]}")

    async def stop(self) -> None:
        await self.node.stop()
        self.node._lock.close()  # else it is held until the process ends
        await self._service.dispatch.forwarder.close()

    def handler(self, method: str) -> Any:
        found = self._handlers.service(SimpleNamespace(method=SERVICE + method, invocation_metadata=()))
        assert found is not None, f"no handler for {method}"
        assert found.request_deserializer is None
        assert found.response_serializer is None
        return found

    async def call(self, method: str, data: bytes, *, leave_after_s: float | None = None) -> bytes | Aborted | None:
        """The answer or the refusal; None: the client left first. Raises TimeoutError, and errors of the node's own."""
        context = FakeContext([data])
        handler = self.handler(method)
        behavior = handler.unary_unary or handler.stream_unary
        first = data if handler.unary_unary else None
        task = asyncio.ensure_future(behavior(first, context))
        try:
            if leave_after_s is not None:
                await asyncio.wait([task], timeout=leave_after_s)
                if not task.done():
                    task.cancel()
                    await asyncio.wait([task], timeout=ANSWER_SECONDS)
                    assert task.done(), f"{method} goes on after its client has left"
                    if task.cancelled():
                        return None
            answer = await asyncio.wait_for(task, ANSWER_SECONDS)
            assert type(answer) is bytes
            return answer
        except Aborted as aborted:
            return aborted
        finally:
            context.done()

    async def stream(self, method: str, requests: list[bytes]) -> tuple[list[bytes], Aborted | None]:
        """The answers, and how the call was ended if it was refused."""
        context = FakeContext(list(requests))

        async def iterate() -> AsyncIterator[bytes]:
            while (data := await context.read()) is not grpc.aio.EOF:
                yield data

        try:
            await asyncio.wait_for(self.handler(method).stream_stream(iterate(), context), ANSWER_SECONDS)
        except Aborted as aborted:
            return context.written, aborted
        finally:
            context.done()
        return context.written, None

    async def ask(self, method: str, request: Any, answered: Any) -> Any:
        """Send a request that the node must not refuse; returns its answer."""
        answer = await self.call(method, request.SerializeToString())
        if isinstance(answer, Aborted):
            raise answer
        assert answer is not None
        return answered.FromString(answer)
