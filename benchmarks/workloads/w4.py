"""W4: kill -9 of a node with many messages pending: how long until it takes and delivers messages again.

Each queue gets two probes: one stored before the kill and due while the node is down, one sent after the kill and due
at once. Recovered is when the last of them is in the consumer's hands, by the clients that were connected before.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from dataclasses import dataclass
from itertools import count

from delayapi.proto.delay.v1 import delay_pb2
from delayclient.producer.producer import Producer
from delayclient.routing.routing import Cluster

from benchmarks.workloads import machine
from benchmarks.workloads.ledger import DeliveryRecord
from benchmarks.workloads.load import FILL_BATCH, LoadGenerator, Progress, fill, now_ms
from benchmarks.workloads.receive import receiving
from benchmarks.workloads.target import NODE, Target

PROBE_AHEAD_MS = 500  # after the last acknowledgement before the kill, and sooner than a process starts


@dataclass(frozen=True, slots=True)
class W4Settings:
    """settle_seconds: how long the node is left alone before the kill. 0 is the hardest: what the last checkpoint has
    not is read from the log."""

    messages: int
    body_bytes: int
    settle_seconds: float
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class W4Result:
    """Seconds from the kill. lost: stored, but neither pending nor released afterwards.

    accepting_seconds: every queue has acknowledged a new message. recovery_seconds: and delivered every probe.
    node_recovery_seconds: what the new process says it took to open its shards, of that.
    """

    pending: int
    recovery_seconds: float
    accepting_seconds: float
    node_recovery_seconds: float
    pending_after: int
    lost: int
    rss_bytes: int
    peak_rss_bytes: int


class NotRecovered(TimeoutError):
    """The node did not come back in time."""


async def run(settings: W4Settings, target: Target, done: Progress) -> W4Result:
    own = target.own
    if own is None:
        raise ValueError("w4 kills a node of its own")
    load = LoadGenerator(settings.body_bytes, FILL_BATCH)
    keys = _key_of_each_queue(target.queues)
    probes = DeliveryRecord()
    async with (
        Producer(target.endpoint, timeout=int(settings.timeout_seconds * 1000)) as producer,
        receiving(target, probes),
        Cluster(target.endpoint) as cluster,
    ):
        await fill(producer, target.topic, settings.messages, load, settings.settle_seconds, done)
        await asyncio.sleep(settings.settle_seconds)
        pending, _ = await _pending_and_released(cluster, target.endpoint)
        outage = await producer.send_batch(
            target.topic, load.bodies(len(keys)), due_ms=int(now_ms()) + PROBE_AHEAD_MS, keys=keys
        )
        probes.stored(outage)
        killed_s = time.monotonic()
        await asyncio.to_thread(own.cluster.kill, NODE)
        fresh = await producer.send_batch(target.topic, load.bodies(len(keys)), delay_ms=0, keys=keys)
        accepting_s = time.monotonic()
        probes.stored(fresh)
        while probes.missing:
            if time.monotonic() > killed_s + settings.timeout_seconds:
                raise NotRecovered(f"not recovered {settings.timeout_seconds:.0f} s after the kill")
            await asyncio.sleep(0.005)
        recovered_s = time.monotonic()
        pending_after, released = await _pending_and_released(cluster, target.endpoint)
    memory = machine.memory(own.pid)
    return W4Result(
        pending=pending,
        recovery_seconds=recovered_s - killed_s,
        accepting_seconds=accepting_s - killed_s,
        node_recovery_seconds=own.metric("delay_recovery_seconds"),
        pending_after=pending_after,
        lost=settings.messages + 2 * len(keys) - pending_after - released,
        rss_bytes=memory.rss_bytes,
        peak_rss_bytes=memory.peak_bytes,
    )


def _key_of_each_queue(queues: int) -> list[str]:
    """A key for each queue, in no order: its hash chooses that queue."""
    found: dict[int, str] = {}
    for number in count():
        key = f"probe-{number}"
        found.setdefault(zlib.crc32(key.encode()) % queues, key)
        if len(found) == queues:
            return list(found.values())
    raise AssertionError


async def _pending_and_released(cluster: Cluster, endpoint: str) -> tuple[int, int]:
    """The totals of all shards of a node."""
    answer = await cluster.call_at(
        endpoint, "GetWheel", delay_pb2.GetWheelRequest(), delay_pb2.GetWheelResponse.FromString, 10.0
    )
    return sum(shard.pending for shard in answer.shards), sum(shard.released for shard in answer.shards)
