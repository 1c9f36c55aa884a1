"""Two ShardHosts in this process that share the resources of one node, and a record of the answers to their callers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from delaynode.clock import GuardedClock, boot_ms, wall_ms
from delaynode.metrics import NodeMetrics
from delaynode.replica.hosts.host import NodeResources
from delaynode.replica.hosts.maintenance import Intervals
from delaynode.replica.hosts.master import ShardHost
from delaynode.replica.hosts.sync_threads import Syncer
from delaynode.store.config import ShardConfig
from delaynode.store.log.files import DiskFiles
from delaynode.store.log.incoming_batch import IncomingBatch
from delaynode.store.maintenance import persist
from delaynode.store.shard import Appended

Key = tuple[int, int]

CONFIG = ShardConfig(flush_units=1, wheel_copy_units=1)  # a checkpoint and a copy of the wheels after each write
INTERVALS = Intervals()


@dataclass
class Node:
    """By host, (due, seq) of messages. acknowledged: certainly stored. offered: perhaps stored."""

    directory: Path
    off_ms: int = 0  # the wall clock's error
    may_tick: bool = True  # no other nodes' clocks say that it is wrong
    hosts: dict[str, ShardHost] = field(default_factory=dict)
    acknowledged: dict[str, set[Key]] = field(default_factory=dict)
    offered: dict[str, set[Key]] = field(default_factory=dict)
    events: list[dict[str, object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = GuardedClock(lambda: wall_ms() + self.off_ms, boot_ms)

    def log(self, event: str, **fields: object) -> None:
        self.events.append({"event": event, **fields})

    def path(self, name: str) -> str:
        return str(self.directory / name)

    async def send(self, name: str, dues: list[int], *, relative: bool = False) -> list[Key]:
        """Raises Refused where the node would refuse the call. relative: `dues` are delays."""
        n, zeros = len(dues), np.zeros(len(dues), np.uint32)
        flags = np.full(n * relative, 1, np.uint8)
        host = self.hosts[name]
        batch = IncomingBatch(np.array(dues), flags, zeros + 10, zeros, zeros, bytes(10 * n))
        appended = await host.stored(host.enqueue(batch))
        if relative:
            assert appended.due is not None
            dues = appended.due.tolist()
        keys = list(zip(dues, range(appended.first_seq, appended.first_seq + n), strict=True))
        self.acknowledged.setdefault(name, set()).update(keys)
        return keys

    def _record_offers(self, name: str, host: ShardHost) -> None:
        append = host.append

        def recorded(batches: list[IncomingBatch]) -> list[Appended | Exception]:
            answers = append(batches)
            for one in answers:
                if isinstance(one, Appended) and one.due is not None:
                    seqs = range(one.first_seq, one.first_seq + one.count)
                    self.offered.setdefault(name, set()).update(zip(one.due.tolist(), seqs, strict=True))
            return answers

        host.append = recorded  # type: ignore[method-assign]

    async def mixed(self, name: str) -> None:
        """Send some messages that are due at once, some soon, and some in hours."""
        now = self.clock.now_ms()
        await self.send(name, [now - 1, now - 1, now + 20, now + 30, now + 60_000, now + 5 * 3_600_000])

    def released(self, name: str) -> list[Key]:
        rows = self.hosts[name].shard.queue.read(0, self.hosts[name].shard.queue.visible)
        return list(zip(rows["due"].tolist(), rows["seq"].tolist(), strict=True))

    async def until_released(self, name: str, count: int, seconds: float = 10.0) -> float:
        """Wait until so many messages are released; returns time.monotonic() then."""
        deadline = time.monotonic() + seconds
        while len(self.released(name)) < count:
            assert time.monotonic() < deadline, f"{len(self.released(name))} of {count} released"
            await asyncio.sleep(0.002)
        return time.monotonic()


@asynccontextmanager
async def node(
    directory: Path, intervals: Intervals | None = None, config: ShardConfig | None = None
) -> AsyncIterator[Node]:
    made = Node(directory)
    files = DiskFiles()
    with ThreadPoolExecutor(4) as pool:
        syncer = Syncer()
        resources = NodeResources(
            files, made.clock, syncer, pool, NodeMetrics(), asyncio.Semaphore(1), fsync=True, log=made.log,
            disk_tight=lambda: False, may_tick=lambda: made.may_tick, intervals=intervals or INTERVALS,
        )  # fmt: skip
        for queue, name in enumerate(("a", "b")):
            now = made.clock.now_ms() - 1
            shard = persist.create(files, made.path(name), queue + 1, "t", queue, config or CONFIG, now)
            persist.accept_epoch(files, made.path(name), shard, 1)
            made.hosts[name] = ShardHost(shard, made.path(name), resources)
            made._record_offers(name, made.hosts[name])
            await made.hosts[name].start(1, "n0")
        try:
            yield made
        finally:
            await asyncio.gather(*(host.stop() for host in made.hosts.values()))
            await syncer.close()
            files.close()
