"""W1: enqueue, due uniformly in 1 .. 30 minutes, one node through gRPC: messages a second, and the disk's own rate."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from delayclient.producer.producer import Producer
from delayclient.producer.results import SendResult

from benchmarks.workloads import machine
from benchmarks.workloads.load import LoadGenerator, Progress, batches, in_flight, now_ms
from benchmarks.workloads.target import Target
from benchmarks.workloads.used import Used

WARM_UP_SHARE = 20  # one in so many, before the clock starts: connections, first segments, caches
YIELD_EVERY = 256  # messages sent one at a time between two turns of the event loop
DISK_BYTES = (16 << 20, 1 << 30)  # of a measurement of the disk, at least and at most: less says nothing
BATCH = 65_536


@dataclass(frozen=True, slots=True)
class W1Settings:
    """batch: messages a send_batch(), `at_once` of them unanswered; 0: one Producer.send() a message."""

    messages: int
    body_bytes: int
    batch: int
    at_once: int


@dataclass(frozen=True, slots=True)
class W1Result:
    """Rates of acknowledged messages; bytes are those of the bodies. None: not this machine's disk, or not our node.

    node_written_bytes_per_second: what the node's process wrote to the disk, its indexes included. cpu: processor time
    used, which other programs on the machine change less than the rates.
    """

    seconds: float
    messages_per_second: float
    bytes_per_second: float
    disk_sequential_bytes_per_second: float | None
    disk_share: float | None
    node_written_bytes_per_second: float | None
    client_cpu_us_per_message: float
    node_cpu_us_per_message: float | None


def at_once(batch: int) -> int:
    """How many calls of `batch` messages to keep unanswered: a few large ones, at most 256 small ones."""
    return max(4, min(256, 4 * BATCH // batch))


async def run(settings: W1Settings, target: Target, done: Progress) -> W1Result:
    load = LoadGenerator(settings.body_bytes, settings.batch or BATCH)
    disk = _Disk(target, settings.messages * settings.body_bytes)
    await disk.measure()
    async with Producer(target.endpoint, **target.access) as producer:
        send = _send_batches if settings.batch else _send_each
        warm_up = max(1, settings.messages // WARM_UP_SHARE)
        await send(producer, target.topic, warm_up, settings, load, lambda _: None)
        before = Used.by(target.own)
        await send(producer, target.topic, settings.messages, settings, load, done)
        used = Used.by(target.own) - before
    await disk.measure()
    rate = settings.messages / used.seconds
    body_rate = rate * settings.body_bytes
    return W1Result(
        seconds=used.seconds,
        messages_per_second=rate,
        bytes_per_second=body_rate,
        disk_sequential_bytes_per_second=disk.rate,
        disk_share=None if disk.rate is None else body_rate / disk.rate,
        node_written_bytes_per_second=None if target.own is None else used.node_written_bytes / used.seconds,
        client_cpu_us_per_message=used.client_cpu_s / settings.messages * 1e6,
        node_cpu_us_per_message=None if target.own is None else used.node_cpu_s / settings.messages * 1e6,
    )


async def _send_batches(
    producer: Producer, topic: str, messages: int, settings: W1Settings, load: LoadGenerator, done: Progress
) -> None:
    async def send(n: int) -> None:
        await producer.send_batch(topic, load.bodies(n), due_ms=int(now_ms()) + load.spread_ms(n))
        done(n)

    await in_flight(batches(messages, settings.batch), send, settings.at_once)


async def _send_each(
    producer: Producer, topic: str, messages: int, settings: W1Settings, load: LoadGenerator, done: Progress
) -> None:
    bodies = list(map(bytes, load.bodies(BATCH)))
    unanswered: deque[asyncio.Future[SendResult]] = deque()
    for n in batches(messages, BATCH):
        for number, (body, delay_ms) in enumerate(zip(bodies, load.spread_ms(n).tolist(), strict=False)):
            if producer.full:
                await producer.room()
            unanswered.append(producer.send(topic, body, delay=delay_ms))
            if not number % YIELD_EVERY:
                await asyncio.sleep(0)
                while unanswered and unanswered[0].done():
                    unanswered.popleft().result()
        done(n)
    await producer.flush()
    for future in unanswered:
        future.result()


class _Disk:
    """The disk's sequential rate, bytes/s: about as much as the workload writes, before it and after it."""

    def __init__(self, target: Target, size: int) -> None:
        self._directory = target.directory
        self._size = max(DISK_BYTES[0], min(size, DISK_BYTES[1]))
        self._rates: list[float] = []

    async def measure(self) -> None:
        if self._directory is not None:
            self._rates.append(await asyncio.to_thread(machine.sequential_write, self._directory, self._size))

    @property
    def rate(self) -> float | None:
        """The mean of the measurements by time, since they wrote the same."""
        return len(self._rates) / sum(1 / rate for rate in self._rates) if self._rates else None
