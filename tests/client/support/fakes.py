"""A cluster in the test's own event loop: real gRPC, the real producer rules, and faults on demand."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
import grpc.aio
import numpy as np
from delayapi import codec
from delayapi.errors import CODES
from delayapi.proto.delay.v1 import delay_pb2
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status


async def until(what: str, true: Callable[[], object], seconds: float = 10.0) -> None:
    """Returns once it is true; asks every few ms."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.005)


class Refusal(Exception):
    """An answer that is an error: reason and metadata."""

    def __init__(self, reason: str, **metadata: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.metadata = {key: str(value) for key, value in metadata.items()}

    def error(self) -> delay_pb2.Error:
        code = getattr(code_pb2, CODES[self.reason].name)
        return delay_pb2.Error(code=code, reason=self.reason, message=f"no: {self.reason}", metadata=self.metadata)

    def status(self) -> Any:
        info = error_details_pb2.ErrorInfo(reason=self.reason, domain="delaycluster.io", metadata=self.metadata)
        detail = any_pb2.Any()
        detail.Pack(info)
        code = getattr(code_pb2, CODES[self.reason].name)
        return rpc_status.to_status(status_pb2.Status(code=code, message=f"no: {self.reason}", details=[detail]))


@dataclass
class Stored:
    """A stored message; `record` is its delay.v1.Message."""

    seq: int
    due: int
    record: bytes
    key_hash: int
    tag_hash: int


@dataclass
class FakeShard:
    """One queue's state, kept over restarts of the node."""

    topic: str
    queue: int
    uid: int
    now_ms: int = 1_000_000
    max_delay_ms: int = 1 << 60
    stored: list[Stored] = field(default_factory=list)
    producers: dict[int, tuple[int, deque[tuple[int, bytes]]]] = field(default_factory=dict)
    requests: int = 0
    keep: bool = True

    def enqueue(self, request: codec.EnqueueRequestView) -> bytes:
        self.requests += 1
        last, answers = self.producers.get(request.producer_id, (-1, deque[tuple[int, bytes]](maxlen=16)))
        for number, answer in answers:
            if number == request.number:
                return answer + b"\x28\x01"  # duplicate = true
        if request.producer_id and request.number != last + 1:
            if last == -1:
                raise Refusal("UNKNOWN_PRODUCER")
            raise Refusal("OUT_OF_ORDER", expected=last + 1)
        due = np.frombuffer(request.time, "<i8").copy()
        relative = np.frombuffer(request.relative, np.uint8)
        if len(relative):
            due[relative == 1] += self.now_ms
        size = np.frombuffer(request.size, "<u4")
        assert len(due) == len(size) == request.count
        assert int(size.sum()) == len(request.records)
        if (due - self.now_ms).max() > self.max_delay_ms:
            raise Refusal("DELAY_TOO_LONG", max_delay_ms=self.max_delay_ms)
        first = len(self.stored)
        if self.keep:
            ends = np.cumsum(size).tolist()
            keys = np.frombuffer(request.key_hash, "<u4").tolist() or [0] * len(due)
            tags = np.frombuffer(request.tag_hash, "<u4").tolist() or [0] * len(due)
            for seq, d, start, end, k, t in zip(
                itertools.count(first), due.tolist(), [0, *ends], ends, keys, tags, strict=False
            ):
                self.stored.append(Stored(seq, d, bytes(request.records[start:end]), k, t))
        answer = codec.encode_enqueue_response(self.uid, first, request.count, due if len(relative) else b"")
        answers.append((request.number, answer))
        self.producers[request.producer_id] = (request.number, answers)
        return answer

    def lose(self, batches: int) -> None:
        """Forgets the newest batches of each producer, as a failover loses uncommitted frames."""
        for producer, (_, answers) in list(self.producers.items()):
            for _ in range(min(batches, len(answers))):
                _, answer = answers.pop()
                first = codec.decode_enqueue_response(answer).first_seq
                del self.stored[first:]
            self.producers[producer] = (answers[-1][0] if answers else -1, answers)
            if not answers:
                del self.producers[producer]

    def bodies(self) -> list[bytes]:
        return [delay_pb2.Message.FromString(stored.record).body for stored in self.stored]


class FakeCluster:
    """Topics and their shards; nodes come and go."""

    def __init__(self, queues: int = 1, topic: str = "t") -> None:
        self.topic = topic
        self.shards = [FakeShard(topic, queue, 100 + queue) for queue in range(queues)]
        self.masters: list[FakeNode | None] = [None] * queues
        self.epoch = 1
        self.readable: list[FakeNode] = []
        self.route_calls = 0
        self.max_delay_ms = 1 << 60
        self.advertised = ""
        """An address to name in routes instead of the masters' own."""

    def elect(self, master: FakeNode | None) -> None:
        """Give every shard a new master, in a new term; None: no master for now."""
        self.masters = [master] * len(self.shards)
        self.epoch += master is not None

    def route(self, topic: str) -> delay_pb2.QueryRouteResponse:
        self.route_calls += 1
        if topic not in ("", self.topic):
            raise Refusal("UNKNOWN_TOPIC")
        answer = delay_pb2.QueryRouteResponse()
        route = answer.topics.add(topic=self.topic, max_delay_ms=self.max_delay_ms, max_attempts=16)
        for shard, master in zip(self.shards, self.masters, strict=True):
            endpoint = (self.advertised or master.endpoint) if master is not None else ""
            readable = [node.endpoint for node in self.readable]
            route.queues.add(
                queue=shard.queue, uid=shard.uid, epoch=self.epoch, node="n0", endpoint=endpoint, readable=readable
            )
        return answer


Fault = Callable[[codec.EnqueueRequestView], Awaitable[str]]
"""Looks at a request before it is stored. Returns what to do: '' (store and answer), 'drop' (store, then break the
stream without an answer), 'break' (break before storing), 'hang' (never answer), 'mute' (store, say nothing, go on), or
a reason to refuse with."""


async def no_fault(request: codec.EnqueueRequestView) -> str:
    return ""


class FakeNode:
    """A gRPC server that serves the shards whose master it is."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.fault: Fault = no_fault
        self.forwards = False
        """Serve every shard, as a node does that forwards to the master."""
        self.unary: dict[str, Callable[[Any], Any]] = {}
        self.calls: list[tuple[str, Any]] = []
        self.came: Counter[str] = Counter()
        """Calls and batches that came in, also while the node was frozen."""
        self.answering = 0
        """Calls at work."""
        self.answers_late = False
        """A poll's answer is on its way until the client has left the poll."""
        self.cut_off: delay_pb2.QueryRouteResponse | None = None
        """The node's answer about routes while it hears nothing from the registry; None: it hears from the registry."""
        self.awake = asyncio.Event()
        """Cleared while the process is frozen; its connections stay."""
        self.awake.set()
        self.streams = 0
        """Number of streams opened so far."""
        self.call_streams = 0
        self.open_call_streams = 0
        self.streams_calls = True
        """False: a node of an older release, which has no CallStream."""
        self.credentials: grpc.ServerCredentials | None = None
        """Of a TLS listener; before start()."""
        self.tokens: set[str] | None = None
        """Those that the node takes; None: it asks for none."""
        self.expired = asyncio.Event()
        """Set: streams that are open end, as at their token's end."""
        self.came_with: list[str] = []
        """The authorization of each call and stream so far."""
        self._server: grpc.aio.Server | None = None
        self._port = 0

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self._port}"

    async def start(self, *, master: bool = True) -> FakeNode:
        self._server = grpc.aio.server(
            options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 64 << 20)]
        )
        self._server.add_generic_rpc_handlers((_Handlers(self),))
        address = f"127.0.0.1:{self._port}"
        if self.credentials is None:
            port = self._server.add_insecure_port(address)
        else:
            port = self._server.add_secure_port(address, self.credentials)
        assert port
        self._port = port
        await self._server.start()
        if master:
            self.cluster.masters = [self] * len(self.cluster.shards)
        return self

    async def stop(self) -> None:
        """Returns when its calls have ended too, which grpc.aio cancels a moment later: one that went on would take
        messages for nobody."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
            await until("its calls have ended", lambda: not self.answering)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def shard(self, queue: int) -> FakeShard:
        if self.cluster.masters[queue] is not self and not self.forwards:
            master = self.cluster.masters[queue]
            raise Refusal("NOT_MASTER", **({"endpoint": master.endpoint, "epoch": 2} if master else {}))
        return self.cluster.shards[queue]

    async def enqueue_stream(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        self.streams += 1
        async for data in requests:
            self.came["EnqueueStream"] += 1
            await self.awake.wait()
            request = codec.decode_enqueue_request(data)
            what = await self.fault(request)
            try:
                if what == "break":
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "broken")
                if what == "hang":
                    await asyncio.Event().wait()
                if what not in ("", "drop", "mute"):
                    raise Refusal(what, retry_after_ms=5)
                answer = self.shard(request.queue).enqueue(request)
                await self.awake.wait()
                if what == "mute":
                    continue
                if what == "drop":
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "dropped")
                yield answer
            except Refusal as refusal:
                yield codec.encode_enqueue_response(0, 0, 0, error=refusal.error())

    async def call_stream(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        self.call_streams += 1
        if not self.streams_calls:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        answers: asyncio.Queue[bytes | None] = asyncio.Queue()
        serving: set[asyncio.Task[None]] = set()

        async def serve(call: delay_pb2.Call) -> None:
            answer = delay_pb2.Answer(id=call.id)
            try:
                answer.response = await self.answer(call.method, call.request)
            except Refusal as refusal:
                answer.error.CopyFrom(refusal.error())
            await answers.put(delay_pb2.Answers(answer=[answer]).SerializeToString())

        async def read() -> None:
            async for data in requests:
                for call in delay_pb2.Calls.FromString(data).call:
                    serving.add(asyncio.create_task(serve(call)))
            await answers.put(None)

        reader = asyncio.create_task(read())
        self.open_call_streams += 1
        try:
            while (data := await answers.get()) is not None:
                yield data
        finally:
            self.open_call_streams -= 1
            for task in (reader, *serving):
                task.cancel()

    async def call(self, method: str, data: bytes, context: Any) -> bytes:
        try:
            return await self.answer(method, data)
        except Refusal as refusal:
            await context.abort_with_status(refusal.status())
            raise

    async def answer(self, method: str, data: bytes) -> bytes:
        """Raises Refusal."""
        self.came[method] += 1
        await self.awake.wait()
        if method == "Check":
            return b""
        request = getattr(delay_pb2, f"{method}Request").FromString(data)
        self.calls.append((method, request))
        if method == "QueryRoute":
            return (self.cut_off or self.cluster.route(request.topic)).SerializeToString()
        self.answering += 1
        try:
            answer = self.unary[method](request)
            if asyncio.iscoroutine(answer):
                answer = await answer
        finally:
            self.answering -= 1
        await self.awake.wait()
        data = answer if isinstance(answer, bytes) else answer.SerializeToString()
        return data


class _Handlers(grpc.GenericRpcHandler):
    def __init__(self, node: FakeNode) -> None:
        self.node = node

    def service(self, details: Any) -> Any:
        method = details.method.rsplit("/", 1)[1]
        shown = dict(details.invocation_metadata or ()).get("authorization", "")
        self.node.came_with.append(shown)
        if self.node.tokens is not None and shown.removeprefix("Bearer ") not in self.node.tokens:
            return _refusing("Stream" in method, "the token is not valid")
        if method == "EnqueueStream":
            return grpc.stream_stream_rpc_method_handler(self.until_expired(self.node.enqueue_stream))

        if method == "ReceiveStream":

            async def receive(requests: Any, context: Any) -> Any:
                ahead = asyncio.ensure_future(anext(requests, None))
                while data := await ahead:
                    ahead = asyncio.ensure_future(anext(requests, None))
                    answer = asyncio.ensure_future(self.node.call("Receive", data, context))
                    answer.add_done_callback(lambda done: done.cancelled() or done.exception())
                    try:
                        await asyncio.wait({ahead, answer}, return_when=asyncio.FIRST_COMPLETED)
                        if self.node.answers_late and answer.done():
                            await ahead
                        if not answer.done() and ahead.result() == b"":
                            return
                        yield await answer
                    finally:
                        answer.cancel()

            return grpc.stream_stream_rpc_method_handler(self.until_expired(receive))

        if method == "CallStream":
            return grpc.stream_stream_rpc_method_handler(self.until_expired(self.node.call_stream))

        async def unary(data: bytes, context: Any) -> bytes:
            return await self.node.call(method, data, context)

        return grpc.unary_unary_rpc_method_handler(unary)

    def until_expired(self, stream: Any) -> Any:
        """The stream, until its token has expired."""
        if self.node.tokens is None:
            return stream

        async def limited(requests: Any, context: Any) -> Any:
            answers = aiter(stream(requests, context))
            expired = asyncio.ensure_future(self.node.expired.wait())
            answer: asyncio.Future[bytes] = asyncio.Future()
            try:
                while True:
                    answer = asyncio.ensure_future(anext(answers))
                    answer.add_done_callback(lambda done: done.cancelled() or done.exception())
                    await asyncio.wait({answer, expired}, return_when=asyncio.FIRST_COMPLETED)
                    if expired.done():
                        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token has expired")
                    try:
                        yield await answer
                    except StopAsyncIteration:
                        return
            finally:
                expired.cancel()
                answer.cancel()

        return limited


def _refusing(streams: bool, why: str) -> Any:
    async def unary(request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, why)
        return b""

    async def stream(requests: Any, context: Any) -> AsyncIterator[bytes]:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, why)
        yield b""

    handler = grpc.stream_stream_rpc_method_handler if streams else grpc.unary_unary_rpc_method_handler
    return handler(stream if streams else unary)
