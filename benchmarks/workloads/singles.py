"""W9 and W10: many clients, a message a request, as programs call a node that use no batches.

Each connection is a channel of its own, and each client waits for an answer before it asks again. Requests are encoded
beforehand and answers hardly decoded, so that of the client's processor time the most is gRPC's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

import grpc.aio
import numpy as np
from delayapi.codec import MessageBatchView, decode_enqueue_response, decode_message_batch, encode_enqueue_request
from delayapi.proto.delay.v1 import delay_pb2
from delayapi.units import MINUTE_MS
from delayclient.errors import DelayError, Unavailable, from_rpc, from_stream
from delayclient.producer.producer import Producer

from benchmarks.workloads.load import FILL_BATCH, LoadGenerator, Progress, batches, now_ms
from benchmarks.workloads.target import Target
from benchmarks.workloads.used import Used

SERVICE = "/delay.v1.DelayService/"
DELAY_MS = 10 * MINUTE_MS
TIMEOUT_S = 30.0
WAIT_MS = 20
QUIET_S = 10.0
"""A consumer that has seen nothing for so long stops."""

GROUP = "bench"

OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
"""Without it, gRPC lets all channels of a process to one address share a connection."""


@dataclass(frozen=True, slots=True)
class SinglesSettings:
    """`clients` callers share `connections`. window: requests that each keeps unanswered on a stream of its own; 0: it
    makes unary calls."""

    messages: int
    body_bytes: int
    clients: int
    connections: int
    window: int = 0


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds from a request to its answer; W10: from asking for a message until its ack is answered."""

    p50: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class SinglesResult:
    """cpu: processor time, of the client and of the own node. missing, duplicates: of W10."""

    seconds: float
    requests_per_second: float
    latency_ms: Latency
    client_cpu_us_per_request: float
    node_cpu_us_per_request: float | None
    missing: int = 0
    duplicates: int = 0


Client = Callable[[grpc.aio.Channel, int], Awaitable[None]]
"""One client's work until there is no more: its channel and its number."""


class _Requests:
    """EnqueueRequests of one message each, for one queue after the other."""

    def __init__(self, target: Target, body_bytes: int) -> None:
        record = delay_pb2.Message(body=LoadGenerator(body_bytes, 1).bodies(1).tobytes()).SerializeToString()
        delay, size = DELAY_MS.to_bytes(8, "little"), len(record).to_bytes(4, "little")
        self.encoded = [
            encode_enqueue_request(target.topic, queue, 1, delay, size, record, relative=b"\1")
            for queue in range(target.queues)
        ]

    def of(self, number: int) -> bytes:
        return self.encoded[number % len(self.encoded)]


async def store(settings: SinglesSettings, target: Target, done: Progress) -> SinglesResult:
    """W9: enqueue. Raises DelayError."""
    requests = _Requests(target, settings.body_bytes)
    numbers = iter(range(settings.messages))  # shared by all clients: each takes the next
    took_s: list[float] = []

    def stored(began_s: float) -> None:
        took_s.append(time.perf_counter() - began_s)
        done(1)

    async def unary(channel: grpc.aio.Channel, _: int) -> None:
        enqueue = channel.unary_unary(f"{SERVICE}Enqueue")
        for number in numbers:
            began_s = time.perf_counter()
            await enqueue(requests.of(number), timeout=TIMEOUT_S)
            stored(began_s)

    async def stream(channel: grpc.aio.Channel, client: int) -> None:
        call = channel.stream_stream(f"{SERVICE}EnqueueStream")()
        began: list[float] = []
        answered = 0
        while True:
            for _ in zip(range(settings.window - (len(began) - answered)), numbers, strict=False):
                began.append(time.perf_counter())
                await call.write(requests.of(client))
            if answered == len(began):
                await call.done_writing()
                return
            data = await call.read()
            if data is grpc.aio.EOF:
                raise Unavailable("the node ended the stream", code="UNAVAILABLE")
            if (error := decode_enqueue_response(data).error) is not None:
                raise from_stream(error)
            stored(began[answered])
            answered += 1

    return await _measured(settings, target, stream if settings.window else unary, took_s)


async def consume(settings: SinglesSettings, target: Target, done: Progress) -> SinglesResult:
    """W10: receive a message, acknowledge it, ask again. Raises DelayError."""
    load = LoadGenerator(settings.body_bytes, FILL_BATCH)
    async with Producer(target.endpoint) as producer:
        for n in batches(settings.messages, min(FILL_BATCH, -(-settings.messages // target.queues))):  # to each queue
            await producer.send_batch(target.topic, load.bodies(n), due_ms=int(now_ms()))
    took_s: list[float] = []
    seen: dict[tuple[int, int], int] = {}  # queue, seq: how often

    async def consumer(channel: grpc.aio.Channel, client: int) -> None:
        receive = channel.unary_unary(f"{SERVICE}Receive")
        acknowledge = channel.unary_unary(f"{SERVICE}Ack")
        heard_s = time.perf_counter()
        for queue in _turns(client, target.queues):
            began_s = time.perf_counter()
            if len(seen) == settings.messages or began_s - heard_s > QUIET_S:
                return
            batch = decode_message_batch(await receive(_receive_one(target.topic, queue), timeout=TIMEOUT_S))
            if batch.count:
                await acknowledge(_ack(target.topic, queue, batch), timeout=TIMEOUT_S)
                heard_s = time.perf_counter()
                took_s.append(heard_s - began_s)
                (seq,) = batch.seq.cast("q")
                seen[queue, seq] = seen.get((queue, seq), 0) + 1
                done(1)

    result = await _measured(settings, target, consumer, took_s)
    return replace(result, missing=settings.messages - len(seen), duplicates=sum(seen.values()) - len(seen))


def _receive_one(topic: str, queue: int) -> bytes:
    return delay_pb2.ReceiveRequest(
        topic=topic, queue=queue, group=GROUP, max_messages=1, invisible_ms=MINUTE_MS, wait_ms=WAIT_MS
    ).SerializeToString()


def _ack(topic: str, queue: int, batch: MessageBatchView) -> bytes:
    (offset,) = batch.offset.cast("q")
    start, end = (one.to_bytes(8, "little") for one in (offset, offset + 1))
    return delay_pb2.AckRequest(topic=topic, queue=queue, group=GROUP, start=start, end=end).SerializeToString()


async def _measured(settings: SinglesSettings, target: Target, client: Client, took_s: list[float]) -> SinglesResult:
    """All clients at work at once, until the last of them is done."""
    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(target.endpoint, OWN_CONNECTION))
            for _ in range(settings.connections)
        ]
        await asyncio.gather(*(channel.channel_ready() for channel in channels))
        before = Used.by(target.own)
        try:
            async with asyncio.TaskGroup() as clients:
                for number in range(settings.clients):
                    clients.create_task(client(channels[number % len(channels)], number))
        except* (grpc.aio.AioRpcError, DelayError) as failed:
            first = failed.exceptions[0]
            raise (first if isinstance(first, DelayError) else from_rpc(first)) from None
        used = Used.by(target.own) - before
    count = max(1, len(took_s))
    p50, p99, longest = (np.quantile(took_s or [0.0], [0.5, 0.99, 1]) * 1000).tolist()
    return SinglesResult(
        seconds=used.seconds,
        requests_per_second=len(took_s) / used.seconds,
        latency_ms=Latency(p50, p99, longest),
        client_cpu_us_per_request=used.client_cpu_s / count * 1e6,
        node_cpu_us_per_request=None if target.own is None else used.node_cpu_s / count * 1e6,
    )


def _turns(client: int, queues: int) -> Iterator[int]:
    """The queues, from the client's own on, again and again."""
    at = client
    while True:
        yield at % queues
        at += 1
