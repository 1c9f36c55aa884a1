"""W5: the footprint of pending messages: bytes on disk a message, memory of the node."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from delayclient.producer.producer import Producer

from benchmarks.workloads import machine
from benchmarks.workloads.load import FILL_BATCH, FILL_PER_S, LoadGenerator, Progress, fill
from benchmarks.workloads.target import OwnNode, Target

POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class W5Settings:
    """messages: how many pending to measure at, ascending. settle_seconds: how long the node is left alone first; its
    checkpoint comes every 30 s."""

    messages: tuple[int, ...]
    body_bytes: int
    settle_seconds: float


@dataclass(frozen=True, slots=True)
class W5Step:
    """With `pending` messages. peak: while they came and until now. overhead: what is not body."""

    pending: int
    disk_bytes_per_message: float
    disk_overhead_bytes_per_message: float
    rss_bytes: int
    rss_anon_bytes: int
    peak_rss_bytes: int


@dataclass(frozen=True, slots=True)
class W5Result:
    """idle: the node before the first message."""

    idle_rss_bytes: int
    steps: tuple[W5Step, ...]


async def run(settings: W5Settings, target: Target, done: Progress) -> W5Result:
    own = target.own
    if own is None:
        raise ValueError("w5 measures a node of its own")
    load = LoadGenerator(settings.body_bytes, FILL_BATCH)
    idle = machine.memory(own.pid).rss_bytes
    steps: list[W5Step] = []
    async with Producer(target.endpoint) as producer:
        stored = 0
        last = settings.messages[-1]
        for number, messages in enumerate(settings.messages):
            steps_left = len(settings.messages) - number
            idle_s = (last - messages) / FILL_PER_S + steps_left * settings.settle_seconds  # until the last step's end
            await fill(producer, target.topic, messages - stored, load, idle_s, done)
            stored = messages
            await _settle(own, settings.settle_seconds)
            steps.append(await asyncio.to_thread(_measure, own, settings.body_bytes))
    return W5Result(idle, tuple(steps))


async def _settle(own: OwnNode, seconds: float) -> None:
    """Waits that long, and until the disk use has not changed for a look."""
    deadline_s = time.monotonic() + seconds
    before = -1
    while True:
        now = await asyncio.to_thread(machine.disk_bytes, own.directory)
        if time.monotonic() >= deadline_s and now == before:
            return
        before = now
        await asyncio.sleep(POLL_S)


def _measure(own: OwnNode, body_bytes: int) -> W5Step:
    pending = int(own.metric("delay_messages_pending"))
    memory = machine.memory(own.pid)
    disk = machine.disk_bytes(own.directory) / pending
    return W5Step(pending, disk, disk - body_bytes, memory.rss_bytes, memory.anon_bytes, memory.peak_bytes)
