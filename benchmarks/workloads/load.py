"""The messages that the workloads send: bodies, due times, and a backlog of many pending."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeAlias

import numpy as np
from delayapi.units import MINUTE_MS
from delayclient.producer.producer import Producer
from numpy.typing import NDArray

SPREAD_MS = (1 * MINUTE_MS, 30 * MINUTE_MS)
BACKLOG_MS = 30 * MINUTE_MS
FILL_PER_S = 200_000  # messages stored: what we count on
FILL_BATCH = 65_536
FILL_IN_FLIGHT = 3

Progress: TypeAlias = Callable[[int], None]
"""Told how many more messages are done."""


class LoadGenerator:
    """Bodies u8[n, body_bytes] and random times. One block of bodies serves all batches: making more would be the
    client's work, and a log does not compress."""

    def __init__(self, body_bytes: int, batch: int, seed: int = 1) -> None:
        self._rng = np.random.default_rng(seed)
        self._bodies = self._rng.integers(0, 256, (batch, body_bytes), np.uint8)

    def bodies(self, n: int) -> NDArray[np.uint8]:
        """u8[n, body_bytes], n at most the batch."""
        return self._bodies[:n]

    def spread_ms(self, n: int, low_ms: int = SPREAD_MS[0], high_ms: int = SPREAD_MS[1]) -> NDArray[np.int64]:
        """i64[n] ms, uniform in [low_ms, high_ms)."""
        return self._rng.integers(low_ms, high_ms, n)


def now_ms() -> float:
    """Milliseconds since 1970 UTC, with their fractions."""
    return time.time_ns() / 1e6


def batches(messages: int, batch: int) -> Iterator[int]:
    """The sizes of the batches that make up `messages`."""
    for start in range(0, messages, batch):
        yield min(batch, messages - start)


async def in_flight(sizes: Iterator[int], send: Callable[[int], Awaitable[None]], at_once: int) -> None:
    """Sends a batch of each size, `at_once` of them at a time."""

    async def work() -> None:
        for n in sizes:  # shared by all workers: each takes the next
            await send(n)

    await asyncio.gather(*(work() for _ in range(at_once)))


async def fill(
    producer: Producer, topic: str, messages: int, load: LoadGenerator, idle_s: float, done: Progress
) -> None:
    """Stores a backlog, due over half an hour. Its first message becomes due a minute after the `idle_s` that the node
    is then left alone: so it stays pending as long as needed, and the coming minute is in the node's memory already."""
    first_ms = int(now_ms() + 1000 * (messages / FILL_PER_S + idle_s)) + MINUTE_MS

    async def send(n: int) -> None:
        due_ms = load.spread_ms(n, first_ms, first_ms + BACKLOG_MS)
        await producer.send_batch(topic, load.bodies(n), due_ms=due_ms)
        done(n)

    await in_flight(batches(messages, FILL_BATCH), send, FILL_IN_FLIGHT)
