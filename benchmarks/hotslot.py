"""Five million messages due in one millisecond, in one shard: `python benchmarks/hotslot.py --ahead 20`.

They are stored at a node of its own through gRPC, all with one due, `--ahead` seconds after the last of them is
expected to be stored: with a small value they arrive inside the minutes that the node keeps in memory, with 240 they
come out of the TimerLog. One consumer group receives them as they come and checks that each queue offset has the next
(due, seq), none twice, missing or early. Another asks for its first message when all are released: how long does that
take. The node's memory is sampled every 50 ms. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from delayapi.proto.delay.v1 import delay_pb2
from delayclient.consumer.consumer import Consumer
from delayclient.consumer.received import ReceivedBatch
from delayclient.producer.producer import Producer
from delayclient.routing.routing import Cluster

from benchmarks.workloads import machine
from benchmarks.workloads.load import FILL_BATCH, LoadGenerator, batches, in_flight, now_ms
from benchmarks.workloads.machine import MemoryWatch
from benchmarks.workloads.target import Target, own_node

STORED_PER_S = 200_000  # what is counted on while the herd is gathered
MIB = 1 << 20
LATE = "late"


@dataclass
class Order:
    """The consumer's check: offsets, dues and seqs follow each other."""

    due_ms: int
    next_offset: int = -1
    last_seq: int = -1
    count: int = 0
    early: int = 0
    first_ms: float = 0.0
    last_ms: float = 0.0
    faults: list[str] = field(default_factory=list)

    def see(self, batch: ReceivedBatch) -> None:
        came_ms = now_ms()
        self.first_ms = self.first_ms or came_ms
        self.last_ms = came_ms
        self.early += len(batch) if came_ms < self.due_ms else 0
        expected = np.arange(len(batch)) + (self.next_offset if self.next_offset >= 0 else int(batch.offset[0]))
        seqs = np.concatenate(([self.last_seq], batch.seq))
        if (batch.offset != expected).any():
            self.faults.append(f"offset {int(batch.offset[0])} after {self.next_offset - 1}")
        if (np.diff(seqs) <= 0).any() or (batch.due_ms != self.due_ms).any():
            self.faults.append(f"out of order at offset {int(batch.offset[0])}")
        self.next_offset = int(batch.offset[-1]) + 1
        self.last_seq = int(batch.seq[-1])
        self.count += len(batch)


@dataclass(frozen=True)
class Result:
    """Seconds; memory in MiB, of which anon is what is no file's pages; hwm: the kernel's own peak."""

    messages: int
    ahead_s: float
    stored_s: float
    first_after_due_s: float
    last_after_due_s: float
    messages_per_second: float
    early: int
    missing: int
    faults: list[str]
    second_group_first_s: float
    rss_before: float
    rss_peak_storing: float
    anon_peak_storing: float
    rss_peak_waiting: float
    anon_peak_waiting: float
    rss_peak_releasing: float
    anon_peak_releasing: float
    hwm: float


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def in_mib(memory: machine.Memory) -> tuple[float, float]:
    return memory.rss_bytes / MIB, memory.anon_bytes / MIB


async def receive(consumer: Consumer, order: Order) -> None:
    while (batch := await consumer.receive_batch()) is not None:
        order.see(batch)
        await batch.ack()


async def begin_group(target: Target, group: str) -> None:
    """Its messages are kept from now on."""
    async with Cluster(target.endpoint) as cluster:
        request = delay_pb2.ReceiveRequest(topic=target.topic, group=group)
        await cluster.call("Receive", target.topic, 0, request, bytes)


async def first_of(target: Target, group: str) -> float:
    began = time.perf_counter()
    async with Consumer(target.endpoint, target.topic, group) as consumer:
        assert await consumer.receive_batch() is not None
    return time.perf_counter() - began


async def run(options: argparse.Namespace, target: Target) -> Result:
    own = target.own
    assert own is not None
    load = LoadGenerator(options.body_bytes, FILL_BATCH)
    before = machine.memory(own.pid)
    await begin_group(target, LATE)
    with MemoryWatch(own.pid) as watch:
        async with Producer(target.endpoint) as producer:
            began = time.perf_counter()
            due_ms = int(now_ms() + 1000 * (options.messages / options.stored_per_s + options.ahead))

            async def send(n: int) -> None:
                await producer.send_batch(target.topic, load.bodies(n), due_ms=due_ms)

            async with Consumer(target.endpoint, target.topic, "herd", from_end=True) as consumer:
                order = Order(due_ms)
                receiving = asyncio.create_task(receive(consumer, order))
                await in_flight(batches(options.messages, FILL_BATCH), send, 2)
                stored_s = time.perf_counter() - began
                storing = in_mib(watch.peak())
                left_s = (due_ms - now_ms()) / 1000
                say(f"stored in {stored_s:.1f} s, due in {left_s:.1f} s, peak RSS {storing[0]:.0f} MiB")
                await asyncio.sleep(max(0.0, (due_ms - now_ms()) / 1000 - 0.1))
                waiting = in_mib(watch.peak())
                say(f"due; peak RSS {waiting[0]:.0f} MiB")
                idle_since = time.monotonic()
                count = 0
                while order.count < options.messages and time.monotonic() < idle_since + options.patience:
                    await asyncio.sleep(0.1)
                    if order.count != count:
                        count, idle_since = order.count, time.monotonic()
                await asyncio.sleep(1.0)
                receiving.cancel()
        releasing = in_mib(watch.peak())
        second_s = await first_of(target, LATE)
    took = max(order.last_ms - due_ms, 1.0) / 1000
    return Result(
        options.messages, options.ahead, stored_s, (order.first_ms - due_ms) / 1000, took, order.count / took,
        order.early, options.messages - order.count, order.faults[:5], second_s, before.rss_bytes / MIB,
        *storing, *waiting, *releasing, machine.memory(own.pid).peak_bytes / MIB,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=5_000_000, help="of the herd (default: 5 million)")
    parser.add_argument("--ahead", type=float, action="append", help="seconds; default: 20, then 240")
    parser.add_argument("--body-bytes", type=int, default=256, help="(default: 256)")
    parser.add_argument("--stored-per-s", type=int, default=STORED_PER_S, help=f"(default: {STORED_PER_S:,})")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds without a message (default: 60)")
    parser.add_argument("--directory", type=Path, help="where the node keeps its files; default: the temporary one")
    options = parser.parse_args()
    results: list[Result] = []
    for ahead in options.ahead or (20.0, 240.0):
        options.ahead = ahead
        with own_node(1, options.directory) as target:
            results.append(asyncio.run(run(options, target)))
            for name, value in asdict(results[-1]).items():
                say(f"  {name:22} {value if not isinstance(value, float) else round(value, 2)}")
    print(json.dumps([asdict(result) for result in results]))
    if any(result.missing or result.early or result.faults for result in results):
        sys.exit(1)


if __name__ == "__main__":
    main()
