"""The node: its lease, the shards it has copies of, and the reigns it is given.

A reign is (master, incarnation, epoch) in a shard's spec. This process takes up those that name its own incarnation
and whose epoch is above the one persisted in the copy's directory: persist the epoch, write the status, serve.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from delaynode.clock import MAX_CLOCK_SKEW_MS
from delaynode.config import NodeConfig
from delaynode.metrics import NodeMetrics, TopicLoad
from delaynode.registry.model import ClusterSpec, Durability, NodeLease, ShardObject, ShardStatus, TopicSpec
from delaynode.registry.port import Conflict, Registry, RegistryError
from delaynode.serve.clockwatch import ClockWatch
from delaynode.serve.conditions import ConditionLog, conditions
from delaynode.serve.datalock import lock_data
from delaynode.serve.disk import DiskSpace, needed_bytes
from delaynode.serve.flow import Flow
from delaynode.serve.host import ShardHost, Workshop
from delaynode.serve.scrub import Scrubber
from delaynode.serve.syncer import Syncer
from delaynode.store import persist, ratelimit
from delaynode.store.errors import Damaged, Refused
from delaynode.store.files import DiskFiles
from delaynode.store.freeing import KeepConfig
from delaynode.store.shard import Shard, ShardConfig
from delaynode.store.timerindex import DAY_MS

WATCH_SECONDS = 0.05
RENEW_SECONDS = 1.0
RETRY_SECONDS = 0.2
CLOCK_SECONDS = 0.25
T = TypeVar("T")

WHEEL_COPY_UNITS = 1_000_000  # units of all shards together that are flushed between copies of the wheels
FLUSH_UNITS = 1_000_000  # unflushed units of all shards together that call for checkpoints
PRODUCERS = 200_000  # that all shards together remember: 130 MB at most
FEWEST_PRODUCERS = 1_000
SMALLEST_SHARE = 65_536  # messages: of the window budget, or units before a flush


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The shard's master is another node."""

    endpoint: str
    epoch: int


@dataclass(slots=True)
class Copy:
    """A shard's copy in this process: opening until `shard` is there, serving while `host` is."""

    directory: str
    shard: Shard | None = None
    host: ShardHost | None = None
    refused: str | None = None  # why it can't be used


class Node:
    """Owned by the event loop."""

    def __init__(self, config: NodeConfig, registry: Registry, log: Callable[..., None]) -> None:
        self.config = config
        self.registry = registry
        self.log = log
        self.incarnation = secrets.token_hex(8)
        self.metrics = NodeMetrics()
        self.flow = Flow(config, log)
        self._lock = lock_data(config.data)
        self._clock_watch = ClockWatch(config.data, log, accept=config.accept_clock_step)
        self.clock = self._clock_watch.clock
        self._conditions = ConditionLog(log)
        self.disk = DiskSpace(config.data, self._disk_reserve)
        self.objects: dict[tuple[str, int], ShardObject] = {}
        self.leases: dict[str, NodeLease] = {}
        self.cluster: ClusterSpec | None = None
        self.copies: dict[str, Copy] = {}
        self.registry_seen = 0.0  # time.monotonic() of its last answer
        self._started = time.monotonic()
        self._files = DiskFiles()
        self._registry_pool = ThreadPoolExecutor(3, thread_name_prefix="registry")
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="work")
        self._syncer = Syncer()
        self._checkpoints = asyncio.Semaphore(1)
        self._tasks: list[asyncio.Task[None]] = []
        self._opening: set[asyncio.Task[None]] = set()
        self._stopping = False

    # ------------------------------------------------------------ life
    async def start(self) -> None:
        """Register and begin to follow the registry."""
        await self._renew(0)
        scrubber = Scrubber(self.hosts, self.metrics, self.log)
        loops = (self._renew_loop, self._watch_loop, self._clock_loop, self.flow.receiving.watch, scrubber.run)
        self._tasks = [asyncio.create_task(loop()) for loop in loops]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Stop serving; every copy is checkpointed."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._opening, return_exceptions=True)
        hosts = [copy.host for copy in self.copies.values() if copy.host is not None]
        results = await asyncio.gather(*(host.stop() for host in hosts), return_exceptions=True)
        for host, result in zip(hosts, results, strict=True):
            if isinstance(result, BaseException):
                self.log("stop-failed", shard=host.name, reason=f"{type(result).__name__}: {result}")
        await self._syncer.close()
        self._pool.shutdown()
        self._registry_pool.shutdown()
        self.registry.close()
        self._files.close()

    def oldest_write_seconds(self) -> float:
        """How long the oldest write to a log takes already."""
        return self._syncer.oldest_seconds()

    def _disk_reserve(self) -> int:
        """Bytes of the disk that new messages leave free."""
        shards = (host.shard for host in self.hosts())
        return max(self.config.reserve_bytes, needed_bytes(shards, self.config.in_flight_bytes))

    # ------------------------------------------------------------ the clock
    async def _clock_loop(self) -> None:
        while True:
            await self._look_at_clock()
            await asyncio.sleep(CLOCK_SECONDS)

    async def _look_at_clock(self) -> None:
        watch = self._clock_watch
        self._conditions.look(conditions(self))
        if watch.look():
            for host in self.hosts():  # they sleep until their next due
                host.woken()
        if watch.changed:
            await asyncio.get_running_loop().run_in_executor(self._pool, watch.keep)

    async def accept_clock(self, seen_ms: int) -> int:
        """Believe the wall clock; returns by how many ms time moves ahead. `seen_ms`: what whoever accepts it saw.

        Raises Refused CLOCK_CHANGED when it is another step by now.
        """
        self.clock.now_ms()
        ahead_ms = self.clock.disbelieved_ms
        if abs(ahead_ms - seen_ms) > MAX_CLOCK_SKEW_MS:
            raise Refused("CLOCK_CHANGED", f"the clock is {ahead_ms} ms ahead of what is believed, not {seen_ms}")
        moved_ms = self._clock_watch.accept()
        await self._look_at_clock()
        return moved_ms

    # ------------------------------------------------------------ the registry
    async def _renew(self, renewals: int) -> None:
        lease = NodeLease(self.config.node, self.incarnation, self.config.advertise, self.config.http, renewals)
        await self._ask(lambda: self.registry.renew_lease(lease))

    async def _renew_loop(self) -> None:
        renewals = 1
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                await self._renew(renewals)
                renewals += 1
            except RegistryError as error:
                self.log("lease-not-renewed", reason=str(error))

    async def _watch_loop(self) -> None:
        seen, leases_read = -1, 0.0
        while True:
            try:
                version = await self._ask(self.registry.version)
                if version != seen or time.monotonic() - leases_read > 1.0:
                    leases = await self._ask(self.registry.list_leases)
                    self.leases = {lease.node: lease for lease in leases}
                    leases_read = time.monotonic()
                if version != seen:
                    cluster = await self._ask(self.registry.read_cluster)
                    shards = await self._ask(self.registry.list_shards)
                    self.cluster = cluster.spec if cluster is not None else None
                    self.objects = {(shard.spec.topic, shard.spec.queue): shard for shard in shards}
                    seen = version
                    self._follow()
                self.registry_seen = time.monotonic()
            except RegistryError as error:
                self.log("registry-unreachable", reason=str(error))
            await asyncio.sleep(WATCH_SECONDS)

    async def _ask(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._registry_pool, call)

    def _follow(self) -> None:
        """Open copies that are new here, and take up reigns."""
        mine = [shard for shard in self.objects.values() if self.config.node in shard.spec.replicas]
        for shard in mine:
            copy = self.copies.get(shard.name)
            if copy is None:
                directory = os.path.join(self.config.data, "shards", f"{shard.name}-{shard.spec.uid:016x}")
                copy = self.copies[shard.name] = Copy(directory)
                self._spawn(self._open(shard, copy, len(mine)))
            elif copy.shard is not None and copy.host is None and copy.refused is None:
                self._spawn(self._reign(shard, copy))
            elif copy.host is not None:
                copy.host.set_release_rate(self._release_rate(shard))

    def _release_rate(self, shard: ShardObject) -> int | None:
        """The shard's part of its topic's maxReleasePerSecond."""
        topic = self.cluster.topic(shard.spec.topic) if self.cluster else None
        if topic is None or topic.max_release_per_second is None:
            return None
        return ratelimit.share(topic.max_release_per_second, topic.queues, shard.spec.queue)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.log("internal-error", reason=f"{type(error).__name__}: {error}")

    # ------------------------------------------------------------ copies and reigns
    def _shard_config(self, topic: TopicSpec | None, shards: int) -> ShardConfig:
        horizon_ms = (self.cluster.horizon_days if self.cluster else 40) * DAY_MS
        base = ShardConfig(
            horizon_ms=horizon_ms,
            window_budget=max(SMALLEST_SHARE, self.config.window_budget // shards),
            flush_units=max(SMALLEST_SHARE, FLUSH_UNITS // shards),
            wheel_copy_units=max(SMALLEST_SHARE, WHEEL_COPY_UNITS // shards),
            log_segment_bytes=self.config.log_segment_bytes,
            max_producers=min(ShardConfig().max_producers, max(FEWEST_PRODUCERS, PRODUCERS // shards)),
        )
        if topic is None:
            return base
        alone = self.cluster is None or self.cluster.replicas == 1  # nobody catches up from this log
        keep = KeepConfig(retention_ms=topic.retention_ms)
        if alone:
            keep = replace(keep, keep_log_bytes=0, keep_log_ms=0)
        return replace(
            base, max_attempts=topic.max_attempts, max_delay_ms=topic.max_delay_ms, keep=keep,
            dlq_retention_ms=topic.dlq_retention_ms,
        )  # fmt: skip

    def _durability(self) -> Durability:
        return self.config.durability or (self.cluster.durability if self.cluster else Durability.FSYNC)

    async def _open(self, shard: ShardObject, copy: Copy, shards: int) -> None:
        spec = shard.spec
        topic = self.cluster.topic(spec.topic) if self.cluster else None
        config = self._shard_config(topic, shards)
        started = time.monotonic()

        def work() -> tuple[Shard, persist.Recovery]:
            if persist.exists(self._files, copy.directory):
                return persist.recover(self._files, copy.directory, config)
            now = self.clock.now_ms()
            made = persist.create(self._files, copy.directory, spec.uid, spec.topic, spec.queue, config, now)
            return made, persist.Recovery(0, 0, 0)

        try:
            opened, recovery = await asyncio.get_running_loop().run_in_executor(self._pool, work)
        except (Damaged, OSError) as error:
            copy.refused = str(error)
            self.log("copy-damaged", shard=shard.name, reason=str(error))
            return
        copy.shard = opened
        self.metrics.recovery_seconds = max(self.metrics.recovery_seconds, time.monotonic() - self._started)
        self.log(
            "copy-opened", shard=shard.name, epoch=opened.identity.epoch, pending=opened.index.pending,
            units=recovery.units, frames=recovery.frames, dropped_bytes=recovery.dropped_bytes,
            seconds=round(time.monotonic() - started, 3),
        )  # fmt: skip
        await self._reign(self.objects.get((spec.topic, spec.queue), shard), copy)

    async def _reign(self, shard: ShardObject, copy: Copy) -> None:
        """Take up the reign in the shard's spec, if it is this process's and new."""
        spec, opened = shard.spec, copy.shard
        if opened is None or copy.host is not None or self._stopping:
            return
        if (spec.master, spec.incarnation) != (
            self.config.node,
            self.incarnation,
        ) or spec.epoch <= opened.identity.epoch:
            return
        if shard.status is not None and opened.identity.copy_id not in shard.status.in_sync:
            copy.refused = f"copy {opened.identity.copy_id} is not in sync: {', '.join(shard.status.in_sync)} are"
            self.log("reign-refused", shard=shard.name, epoch=spec.epoch, reason=copy.refused)
            return
        shop = Workshop(
            self._files, self.clock, self._syncer, self._pool, self.metrics, self._checkpoints,
            fsync=self._durability() is Durability.FSYNC, log=self.log, disk_tight=self.disk.tight,
        )  # fmt: skip
        host = copy.host = ShardHost(opened, copy.directory, shop)
        host.set_release_rate(self._release_rate(shard))
        loop = asyncio.get_running_loop()
        try:
            accept = persist.accept_epoch
            await loop.run_in_executor(self._pool, accept, self._files, copy.directory, opened, spec.epoch)
            if not await self._write_status(shard, spec.epoch, opened.identity.copy_id):
                copy.host = None
                return
            await host.start(spec.epoch, self.config.node)
        except (Damaged, OSError, Refused) as error:
            copy.refused = str(error)
            copy.host = None
            self.log("reign-failed", shard=shard.name, epoch=spec.epoch, reason=str(error))
            return
        self.log("reign-started", shard=shard.name, epoch=spec.epoch)

    async def _write_status(self, shard: ShardObject, epoch: int, copy_id: str) -> bool:
        """Write the status that opens the reign; False when a higher epoch is there already."""
        status = ShardStatus(serving_epoch=epoch, incarnation=self.incarnation, in_sync=(copy_id,))
        current: ShardObject | None = shard
        while not self._stopping:
            if current is None or current.spec.epoch > epoch:
                return False
            try:
                await self._ask(partial(self.registry.write_status, shard.name, status, current.version))
                return True
            except Conflict:
                pass  # the object has moved on: read it again, that is all
            except RegistryError as error:  # outcome unknown: the next write of one's own settles it
                self.log("status-not-written", shard=shard.name, epoch=epoch, reason=str(error))
                await asyncio.sleep(RETRY_SECONDS)
            try:
                current = await self._ask(partial(self.registry.get_shard, shard.name))
            except RegistryError as error:
                self.log("registry-unreachable", reason=str(error))
                await asyncio.sleep(RETRY_SECONDS)
        return False

    # ------------------------------------------------------------ who serves what
    def find(self, topic: str, queue: int) -> ShardHost | Elsewhere:
        """The host of a shard served here, or where it is served. Raises Refused."""
        shard = self.objects.get((topic, queue))
        if shard is None:
            count = len(self.queues(topic))
            raise Refused("UNKNOWN_QUEUE", f"topic {topic!r} has queues 0 to {count - 1}, asked for {queue}")
        copy = self.copies.get(shard.name)
        if copy is not None and copy.host is not None and shard.spec.master == self.config.node:
            copy.host.check_serving()
            return copy.host
        if copy is not None and copy.refused is not None and shard.spec.master == self.config.node:
            raise Refused("SHARD_DAMAGED", f"shard {shard.name} can't be served: {copy.refused}")
        endpoint = self.endpoint(shard)
        if not endpoint or shard.spec.master == self.config.node:
            raise Refused(
                "NOT_SERVING", f"shard {shard.name} has no serving master at the moment", epoch=shard.spec.epoch
            )
        return Elsewhere(endpoint, shard.spec.epoch)

    def endpoint(self, shard: ShardObject) -> str:
        """The gRPC address of the shard's serving master; empty while there is none."""
        spec, status = shard.spec, shard.status
        lease = self.leases.get(spec.master) if spec.master else None
        if (
            lease is None
            or status is None
            or status.serving_epoch != spec.epoch
            or status.incarnation != lease.incarnation
        ):
            return ""
        return lease.endpoint

    def topics(self) -> list[str]:
        """The topics whose queues have all been made. Raises Refused as queues() does."""
        if self.registry_seen == 0.0:  # a node that has just started must not say that there is no such topic
            raise Refused("NOT_SERVING", "this node has not heard from the registry yet")
        made = Counter(topic for topic, _ in self.objects)
        wanted = {spec.name: spec.queues for spec in self.cluster.topics} if self.cluster else {}
        return sorted(topic for topic, count in made.items() if count >= wanted.get(topic, 0))

    def queues(self, topic: str) -> list[ShardObject]:
        """All queues of a topic. Raises Refused UNKNOWN_TOPIC, or NOT_SERVING when that may only be so for now."""
        if topic not in self.topics():
            if self.cluster is not None and self.cluster.topic(topic) is not None:
                raise Refused("NOT_SERVING", f"the queues of topic {topic!r} are not all made yet")
            raise Refused("UNKNOWN_TOPIC", f"there is no topic {topic!r}")
        return sorted((s for s in self.objects.values() if s.spec.topic == topic), key=lambda s: s.spec.queue)

    def hosts(self) -> list[ShardHost]:
        """The shards that are served here."""
        return [copy.host for copy in self.copies.values() if copy.host is not None and copy.host.serving]

    def not_ready(self) -> str | None:
        """Why this node should get no traffic; None when it should."""
        if self.registry_seen == 0.0:
            return "the registry has not answered yet"
        waiting = [
            shard.name
            for shard in self.objects.values()
            if shard.spec.master == self.config.node
            and ((copy := self.copies.get(shard.name)) is None or copy.host is None or not copy.host.serving)
        ]
        return f"{len(waiting)} shards are not served yet: {', '.join(sorted(waiting)[:5])}" if waiting else None

    async def loads(self) -> dict[str, TopicLoad]:
        """Per topic: what is pending and due soon, from the wheels of the shards served here."""
        found: dict[str, list[int]] = {}
        dead: dict[str, tuple[int, bool]] = {}
        now = self.clock.now_ms()
        for host in self.hosts():
            start, width, count = await host.off_loop(host.shard.index.begin_count())
            sums = found.setdefault(host.topic, [0, 0, 0, 0])
            sums[0] += host.shard.index.pending
            kept, full = host.shard.consumers.letters()
            before, was_full = dead.get(host.topic, (0, False))
            dead[host.topic] = before + kept, was_full or full
            for at, seconds in enumerate((60, 300, 3600)):
                part = ((now + seconds * 1000 - start) / width).clip(0.0, 1.0)  # slots are taken to be even
                sums[at + 1] += int((part * count).sum())
        return {topic: TopicLoad(s[0], (s[1], s[2], s[3]), *dead[topic]) for topic, s in found.items()}


def open_registry(name: str) -> Registry:
    """The registry that `sqlite:PATH` names. Raises RegistryError."""
    from delaynode.registry.sqlite import SqliteRegistry

    kind, _, place = name.partition(":")
    if kind != "sqlite" or not place:
        raise RegistryError(f"registry {name!r}: expected sqlite:PATH")
    return SqliteRegistry(Path(place))
