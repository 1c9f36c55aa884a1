"""What the event loop pays for messages that travel one by one: `python -m benchmarks.looptime [--directory DIR]`.

With --parts also for what, by the functions of PARTS, each without those that it calls.

    store    a request at a time, for one of eight shards after the other, from the edge's hand to the answer
    late     1,000 messages a second, due 30 ms after they are sent: stored, released, received and acknowledged

Microseconds of processor time of the loop's thread a message: of so many chunks of 100 messages the fifth that took
least, which other work on the machine changes little, and the median. The edge and its clients are left out; writes and
syncs are the compiled ones, on a real disk.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from delayedge import Writes
from delaynode.auth.identity import ANONYMOUS
from delaynode.auth.rights import Rights
from delaynode.loop import ExactSelector, new_loop
from delaynode.metrics import NodeMetrics
from delaynode.node.node import WRITE_THREADS
from delaynode.replica.hosts.host import CopyHost, NodeResources
from delaynode.replica.hosts.maintenance import Maintenance
from delaynode.replica.hosts.master import ShardHost
from delaynode.replica.hosts.sync_threads import Syncer
from delaynode.replication.transport.until import wait_until
from delaynode.server.handlers.rows import RowCalls, RowGroup
from delaynode.server.quotas import EnqueueQuotas
from delaynode.store import formats
from delaynode.store.config import ShardConfig
from delaynode.store.log.files import DiskFiles
from delaynode.store.log.incoming_batch import BatchRun
from delaynode.store.maintenance import persist
from delaynode.store.queue.consume_queue import ConsumeQueue
from delaynode.store.queue.consumers import Consumers
from delaynode.store.shard import Appended, Shard
from delayregistry.model import TopicType

SHARDS, CHUNK = 8, 100
RECORD = bytes(259)
HOUR_MS, SOON_MS = 3_600_000, 30
RATE = 1_000
ACK_SECONDS = 0.05  # between two Acks of a shard, as of DelayCluster's own client
GROUP = "g"


class Clock:
    """The wall clock as it is."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def part_of_ms(self) -> float:
        return time.time_ns() % 1_000_000 / 1e9


class Edge:
    """Hands requests over as the compiled edge does: by a descriptor, and in a turn."""

    def __init__(self, rows: RowCalls, clock: Clock, answered: Callable[[], None]) -> None:
        self._rows, self._clock, self._answered = rows, clock, answered
        self._number = itertools.count()
        self._signal = os.eventfd(0, os.EFD_NONBLOCK)
        self._waiting: list[tuple[int, int]] = []  # queue, due
        asyncio.get_running_loop().add_reader(self._signal, self._look)

    def put(self, delay_ms: int) -> None:
        """A request of one message comes."""
        self._waiting.append((next(self._number) % SHARDS, self._clock.now_ms() + delay_ms))
        os.eventfd_write(self._signal, 1)

    def _look(self) -> None:
        os.eventfd_read(self._signal)
        waiting, self._waiting = self._waiting, []
        with self._rows.turn():
            for queue, due in waiting:
                time_, size = np.array([due], "<i8").tobytes(), np.array([len(RECORD)], "<u4").tobytes()
                never, run = np.array([-1], "<i8"), BatchRun(0, 0, 1)
                self._rows.take(
                    RowGroup("t", queue, ANONYMOUS, False, time_, b"", size, b"", b"", RECORD, [run], never, self)
                )

    def stored(self, first: int, end: int, uid: int, appended: Appended) -> None:
        self._answered()

    def refused(self, first: int, end: int, error: Exception) -> None:
        raise error


class Bench:
    """Eight shards of a node in this process."""

    def __init__(self, directory: Path, pool: ThreadPoolExecutor) -> None:
        self.directory, self.clock, self.files = directory, Clock(), DiskFiles()
        self.syncer = Syncer(direct=Writes(WRITE_THREADS))
        self.resources = NodeResources(
            self.files, self.clock, self.syncer, pool, NodeMetrics(), asyncio.Semaphore(1), fsync=True,  # type: ignore[arg-type]
            log=lambda *_, **__: None, disk_tight=lambda: False, part_of_ms=self.clock.part_of_ms,
        )  # fmt: skip
        self.hosts: list[ShardHost] = []
        node = SimpleNamespace(
            disk=SimpleNamespace(check=lambda _: None), routes=SimpleNamespace(topic_type=lambda _: TopicType.MIXED),
            clock=self.clock, metrics=self.resources.metrics, turn=self.syncer.turn,
        )  # fmt: skip
        quotas = EnqueueQuotas(Rights(closed=False), self.resources.metrics)
        dispatch: Any = SimpleNamespace(
            node=node, quotas=quotas, find_host=lambda _, request, __: self.hosts[request.queue]
        )
        self.edge = Edge(RowCalls(dispatch), self.clock, self._on_answer)
        self._again: Callable[[], None] = lambda: None
        self._left = self.received = 0
        self._done: asyncio.Future[None]

    async def start(self) -> None:
        for queue in range(SHARDS):
            path, now = str(self.directory / str(queue)), self.clock.now_ms() - 1
            shard = persist.create(self.files, path, queue + 1, "t", queue, ShardConfig(format=formats.NEWEST), now)
            persist.accept_epoch(self.files, path, shard, 1)
            self.hosts.append(ShardHost(shard, path, self.resources))
            await self.hosts[-1].start(1, "n0")

    async def stop(self) -> None:
        await asyncio.gather(*(host.stop() for host in self.hosts))
        await self.syncer.close()
        self.files.close()

    def _on_answer(self) -> None:
        self._left -= 1
        if self._left:
            self._again()
        else:
            self._done.set_result(None)

    async def store(self) -> None:
        """A chunk of requests, each once the one before it is answered."""
        self._left, self._done = CHUNK, asyncio.get_running_loop().create_future()
        self._again = lambda: self.edge.put(HOUR_MS)
        self._again()
        await self._done

    async def late(self) -> None:
        """A chunk of messages at RATE, and until as many have been received."""
        self._left, self._done = CHUNK, asyncio.get_running_loop().create_future()
        self._again = lambda: None
        began_s, wanted = time.monotonic(), self.received + CHUNK
        for number in range(CHUNK):
            await asyncio.sleep(began_s + number / RATE - time.monotonic())
            self.edge.put(SOON_MS)
        await wait_until(lambda: self.received >= wanted, 0.005)

    async def consume(self, host: ShardHost) -> None:
        """Receive, and acknowledge now and then."""
        waiting: list[int] = []
        acknowledged_s = time.monotonic()
        while True:
            delivery = await host.receive(GROUP, (), 32, 1 << 20, 5_000, 30_000, False)
            await host.read_records(delivery.rows)
            self.received += len(delivery.offset)
            waiting += delivery.offset.tolist()
            if time.monotonic() - acknowledged_s >= ACK_SECONDS:
                offset = np.array(waiting, np.int64)
                host.shard.consumers.acknowledge(GROUP, offset, offset + 1, self.clock.now_ms())
                host.on_proposed()
                waiting, acknowledged_s = [], time.monotonic()


PARTS: dict[str, Sequence[tuple[type, str]]] = {
    "looks for events, and sleeps": [(ExactSelector, "select")],
    "a request's way to its shard": [(RowCalls, "take"), (ShardHost, "enqueue_many")],
    "APPEND: frame and effect": [(ShardHost, "append")],
    "its answer": [(RowCalls, "_answer")],
    "TICK: frame and effect": [(ShardHost, "_tick")],
    "when to tick, and upkeep": [
        (ShardHost, "_next_wakeup"), (ShardHost, "_fire"), (Consumers, "expire"), (Maintenance, "check"),
        (Maintenance, "check_units"),
    ],
    "frames sealed and handed to the threads that write": [(Syncer, "_start_directs")],
    "ends of writes, commits": [(Syncer, "_look")],
    "the ConsumeQueue's file": [(ConsumeQueue, "commit")],
    "what becomes visible, and who waits for it": [(CopyHost, "_show"), (CopyHost, "on_visible_rows")],
    "a delivery: which messages": [(Consumers, "deliver"), (Consumers, "join")],
    "their records, read and checked": [(Shard, "read_cached")],
    "ACK: frame and effect": [(Consumers, "acknowledge")],
}  # fmt: skip
REST = "the rest: the event loop, its tasks and timers, and this benchmark"


class Parts:
    """How long the loop's thread is in which part, ns of processor time."""

    def __init__(self) -> None:
        self.spent_ns = dict.fromkeys((*PARTS, REST), 0)
        self._open: list[str] = [REST]
        self._since_ns = 0
        for part, functions in PARTS.items():
            for owner, name in functions:
                setattr(owner, name, self._timed(part, getattr(owner, name)))

    def start(self) -> None:
        self.spent_ns = dict.fromkeys(self.spent_ns, 0)
        self._since_ns = time.thread_time_ns()

    def _enter(self, part: str) -> None:
        self._pass()
        self._open.append(part)

    def _leave(self) -> None:
        self._pass()
        self._open.pop()

    def _pass(self) -> None:
        now_ns = time.thread_time_ns()
        self.spent_ns[self._open[-1]] += now_ns - self._since_ns
        self._since_ns = now_ns

    def _timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._enter(part)
            try:
                return function(*args, **kwargs)
            finally:
                self._leave()

        return timed

    def table(self, messages: int) -> str:
        self._pass()
        return "\n".join(f"  {spent / messages / 1e3:6.1f}  {part}" for part, spent in self.spent_ns.items() if spent)


async def measure(name: str, work: Callable[[], Awaitable[None]], chunks: int, parts: Parts | None) -> None:
    spent = []
    for number in range(chunks + 2):  # two to warm up
        if number == 2 and parts is not None:
            parts.start()
        began_ns = time.thread_time_ns()
        await work()
        spent.append((time.thread_time_ns() - began_ns) / CHUNK / 1e3)
    spent = sorted(spent[2:])
    print(f"{name}: {spent[chunks // 5]:.0f} us a message, median {spent[chunks // 2]:.0f}", flush=True)
    if parts is not None:
        print(parts.table(chunks * CHUNK), flush=True)


async def run(directory: Path, chunks: int, parts: Parts | None) -> None:
    with ThreadPoolExecutor(4) as pool:
        bench = Bench(directory, pool)
        await bench.start()
        await measure("store", bench.store, chunks, parts)
        consumers = [asyncio.create_task(bench.consume(host)) for host in bench.hosts]
        await measure("late", bench.late, chunks, parts)
        for consumer in consumers:
            consumer.cancel()
            with suppress(asyncio.CancelledError):
                await consumer
        await bench.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", help="where the shards' files go: on the disk that is meant")
    parser.add_argument("--chunks", type=int, default=30)
    parser.add_argument("--parts", action="store_true", help="also what it goes to: costs about a tenth more")
    options = parser.parse_args()
    parts = Parts() if options.parts else None
    with (
        tempfile.TemporaryDirectory(dir=options.directory) as directory,
        asyncio.Runner(loop_factory=new_loop) as runner,
    ):
        runner.run(run(Path(directory), max(5, options.chunks), parts))


if __name__ == "__main__":
    main()
