"""The node: its lease, its clock, and the registry it follows; the copies themselves are Replicas' business."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TypeVar

from delaynode import registry
from delaynode.clock import MAX_CLOCK_SKEW_MS, boot_ms, wall_ms
from delaynode.config import NodeConfig
from delaynode.metrics import NodeMetrics, TopicLoad
from delaynode.registry.model import Durability, NodeLease, ShardObject, ShardSpec, ShardStatus, Version
from delaynode.registry.port import Registry, RegistryError
from delaynode.replicate.agree import ClockAgreement
from delaynode.replicate.beacons import BeaconThread
from delaynode.replicate.links import Address, Links
from delaynode.replicate.messages import Message
from delaynode.replicate.peers import Origin
from delaynode.replicate.promises import Promises
from delaynode.serve import leasefile
from delaynode.serve.clockwatch import ClockWatch, boot_id
from delaynode.serve.conditions import ConditionLog, conditions
from delaynode.serve.datalock import lock_data
from delaynode.serve.disk import DiskSpace, needed_bytes
from delaynode.serve.flow import Flow
from delaynode.serve.host import ShardHost, Workshop
from delaynode.serve.replica import Replica
from delaynode.serve.replicas import Replicas
from delaynode.serve.routes import Elsewhere, Routes
from delaynode.serve.scrub import Scrubber
from delaynode.serve.slave import SlaveHost
from delaynode.serve.syncer import Syncer
from delaynode.serve.yard import Transfers, Yard
from delaynode.store import snapshot
from delaynode.store.errors import Refused
from delaynode.store.files import DiskFiles
from delaynode.store.freeing import KeepConfig
from delaynode.store.shard import ShardConfig
from delaynode.store.timerindex import DAY_MS

__all__ = ["Elsewhere", "Node", "open_registry"]

WATCH_SECONDS = 0.05
RENEW_SECONDS = 1.0
CLOCK_SECONDS = 0.25
HAND_OVER_SECONDS = 15.0  # a stopping node waits so long for its masters to be taken over
SETTLED_SECONDS = 2.0  # of them without any being taken: nobody will
T = TypeVar("T")

WHEEL_COPY_UNITS = 1_000_000  # units of all shards together that are flushed between copies of the wheels
FLUSH_UNITS = 1_000_000  # unflushed units of all shards together that call for checkpoints
PRODUCERS = 200_000  # that all shards together remember: 130 MB at most
FEWEST_PRODUCERS = 1_000
SMALLEST_SHARE = 65_536  # messages: of the window budget, or units before a flush
NEIGHBOURS = 4  # whose clocks are compared with this node's
SKEW_SECONDS = 2.0  # out-voted for so long, a master gives its shards away


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
        self.routes = Routes()
        self.registry_seen = 0.0  # time.monotonic() of its last answer
        self.stopping = False
        self._files = DiskFiles()
        self._registry_pool = ThreadPoolExecutor(4, thread_name_prefix="registry")
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="work")
        self._syncer = Syncer()
        self._checkpoints = asyncio.Semaphore(1)
        self._tasks: list[asyncio.Task[None]] = []
        self._vital: list[asyncio.Task[None]] = []  # of them: without these the process is a node no more
        self._agreement = ClockAgreement()
        self.skew: str | None = None  # what most peers' clocks say of this node's, where they differ
        self._skewed_since = 0.0
        self._lease_ms = 0  # of this process: as the cluster wished when it started
        self._lower_lease_at_ms: int | None = None  # when an earlier process's longer one is over, CLOCK_BOOTTIME
        self._renewals = 0
        self._peer = ""  # where the other nodes reach this one
        self.replicas: Replicas  # from prepare() on
        self._links: Links
        self._beacons: BeaconThread

    # ------------------------------------------------------------ life
    async def prepare(self) -> None:
        """Listen for the other nodes. To be called before anything else asks for `replicas`."""
        cluster = await self._ask(self.registry.read_cluster)
        self.routes.cluster = cluster.spec if cluster is not None else None
        await self._start_peers()

    async def start(self) -> None:
        """Register and begin to follow the registry."""
        await self._renew()
        self.replicas.start()
        scrubber = Scrubber(self.copies, self.metrics, self.log)
        vital = (self._renew_loop, self._watch_loop, self._clock_loop)
        self._vital = [asyncio.create_task(loop(), name=loop.__name__.strip("_")) for loop in vital]
        self._tasks = [
            *self._vital,
            *(asyncio.create_task(loop()) for loop in (self.flow.receiving.watch, scrubber.run)),
        ]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    async def _start_peers(self) -> None:
        cluster = self.routes.cluster
        lease_ms = (cluster.lease_seconds if cluster is not None else 3) * 1000
        former_ms = await self._ask(lambda: leasefile.take_up(self._files, self.config.data, lease_ms))
        self._lease_ms, self._lower_lease_at_ms = lease_ms, boot_ms() + former_ms if former_ms > lease_ms else None
        promises = Promises(
            self.config.node, int(self.incarnation, 16), lease_ms=lease_ms, former_lease_ms=former_ms, boot_ms=boot_ms,
            wall_ms=wall_ms,
        )  # fmt: skip
        relay = _Relay()
        name = cluster.name if cluster is not None else ""
        self._links = Links(name, self.config.node, self.incarnation, self._peer_address, relay, self.log)
        shop = Workshop(
            self._files, self.clock, self._syncer, self._pool, self.metrics, self._checkpoints,
            fsync=self._durability() is Durability.FSYNC, log=self.log, disk_tight=self.disk.tight,
            may_tick=lambda: self.skew is None,
        )  # fmt: skip
        yard = Yard(
            node=self.config.node, incarnation=self.incarnation, data=self.config.data, boot_id=boot_id(), shop=shop,
            registry=self, peers=self._links, promises=promises, transfers=Transfers(),
            boot_ms=boot_ms, cluster=lambda: self.routes.cluster, shard_config=self._shard_config,
            release_rate=self.routes.release_rate,
        )  # fmt: skip
        self.replicas = relay.handler = Replicas(yard)
        await self._ask(lambda: snapshot.sweep(self._files, f"{self.config.data}/shards"))
        host, port = self.config.peer.rsplit(":", 1)
        bound = await self._links.start(host, int(port))
        self._peer = self.config.advertise_peer or f"{host}:{bound}"
        self._beacons = BeaconThread(promises, self._beacon_address, self.log, interval_ms=max(50, lease_ms // 10))
        self._beacons.bind(host, bound)
        promises.on_lead = self._beacons.nudge
        loop = asyncio.get_running_loop()
        promises.on_heard = lambda *heard: _soon(loop, self._agreement.heard, *heard)
        self._promises = promises
        self._beacons.start()

    def _peer_address(self, node: str) -> Address | None:
        lease = self.routes.leases.get(node)
        if lease is None or not lease.peer:
            return None
        host, _, port = lease.peer.rpartition(":")
        if not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
            return None  # another's mistake; Links says that there is no address
        return host, int(port), lease.incarnation

    def _beacon_address(self, node: str) -> tuple[str, int] | None:
        found = self._peer_address(node)
        return None if found is None else found[:2]

    async def leave(self) -> None:
        """Ask for somebody else to lead what is led here, and the masters of what is not to do without; wait until
        that is so, or nobody can.
        """
        self.stopping = True
        leads = any(replica.leader is not None and replica.leader.ships for replica in self.replicas)
        if not leads and all(replica.withdraw() for replica in self.replicas):
            return
        if leads:
            try:
                await self._renew()
            except RegistryError as error:
                self.log("lease-not-renewed", reason=str(error))
        started = changed = time.monotonic()
        left = self._held()
        while any(left) and time.monotonic() < started + HAND_OVER_SECONDS:
            await asyncio.sleep(0.02)
            now_left = self._held()
            if now_left != left:
                left, changed = now_left, time.monotonic()
            if time.monotonic() > changed + SETTLED_SECONDS:
                break
        self.log("left", masters=left[0], slaves=left[1], seconds=round(time.monotonic() - started, 3))

    def _held(self) -> tuple[int, int]:
        """Shards that are led here still, and copies here that a master waits for still."""
        return len(self.replicas.leading()), sum(not replica.withdraw() for replica in self.replicas)

    async def stop(self) -> None:
        """Stop serving; every copy is checkpointed."""
        self.stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.replicas.stop()
        self._beacons.stop()
        await self._links.close()
        await self._syncer.close()
        self._pool.shutdown()
        self._registry_pool.shutdown()
        self.registry.close()
        self._files.close()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.log("internal-error", reason=f"{type(error).__name__}: {error}")

    def broken(self) -> str | None:
        """Why only another process can help: the event loop goes on, and a loop on it that a node lives by has ended.

        None while all is well, however little the registry or the disk answers.
        """
        ended = [task for task in self._vital if task.done() and not task.cancelled()]
        return f"{ended[0].get_name()} has ended: {ended[0].exception()!r}" if ended else None

    def oldest_write_seconds(self) -> float:
        """How long the oldest write to a log takes already."""
        return self._syncer.oldest_seconds()

    def _disk_reserve(self) -> int:
        """Bytes of the disk that new messages leave free."""
        shards = [copy.shard for copy in self.copies()]
        return max(self.config.reserve_bytes, needed_bytes(shards, self.config.in_flight_bytes))

    # ------------------------------------------------------------ the clock
    async def _clock_loop(self) -> None:
        while True:
            await self._look_at_clock()
            await asyncio.sleep(CLOCK_SECONDS)

    async def _look_at_clock(self) -> None:
        watch = self._clock_watch
        await self._compare_clocks()
        if self._lower_lease_at_ms is not None and boot_ms() > self._lower_lease_at_ms:
            await self._lower_lease()
        self._conditions.look(conditions(self))
        if watch.look():
            for host in self.hosts():  # they sleep until their next due
                host.woken()
        if watch.changed:
            await asyncio.get_running_loop().run_in_executor(self._pool, watch.keep)

    async def _lower_lease(self) -> None:
        try:
            await self._ask(partial(leasefile.lower, self._files, self.config.data, self._lease_ms))
        except OSError as error:  # the longer one harms nobody but who waits for it after a restart
            self.log("lease-not-lowered", reason=str(error))
        self._lower_lease_at_ms = None

    async def _compare_clocks(self) -> None:
        """Most peers' clocks are right: believe a step that they have made too, stop releasing where they differ."""
        found = self._agreement.judge(self.clock.now_ms(), boot_ms(), self.clock.disbelieved_ms)
        if found.may_accept:
            self.log("clock-agreed", reason=found.reason)
            self._clock_watch.accept()
        if not found.out_voted:
            self.skew = None
            return
        now = time.monotonic()
        if self.skew is None:
            self._skewed_since = now
            self.log("clock-out-voted", reason=found.reason)
        self.skew = found.reason
        if now - self._skewed_since > SKEW_SECONDS:
            for replica in self.replicas.leading():
                if replica.leader is not None and replica.leader.in_sync_size > 1:
                    replica.resign(f"its node's clock differs: {found.reason}")

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
    async def _renew(self) -> None:
        config = self.config
        lease = NodeLease(
            config.node, self.incarnation, config.advertise, config.advertise_http, self._renewals, peer=self._peer,
            stopping=self.stopping,
        )  # fmt: skip
        self._renewals += 1
        await self._ask(lambda: self.registry.renew_lease(lease))

    async def _renew_loop(self) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                await self._renew()
            except RegistryError as error:
                self.log("lease-not-renewed", reason=str(error))

    async def _watch_loop(self) -> None:
        seen, leases_read = -1, 0.0
        while True:
            try:
                version = await self._ask(self.registry.version)
                if version != seen or time.monotonic() - leases_read > 1.0:
                    leases = await self._ask(self.registry.list_leases)
                    self.routes.leases = {lease.node: lease for lease in leases}
                    self._links.addresses_changed()
                    self._promises.acquaint(self._neighbours())
                    leases_read = time.monotonic()
                if version != seen:
                    cluster = await self._ask(self.registry.read_cluster)
                    shards = await self._ask(self.registry.list_shards)
                    self.routes.take(cluster.spec if cluster is not None else None, shards)
                    if cluster is not None:
                        self._links.cluster = cluster.spec.name
                    seen = version
                    self.replicas.look(shards)
                self.registry_seen = time.monotonic()
            except RegistryError as error:
                self.log("registry-unreachable", reason=str(error))
            except Exception as error:  # to renew the lease and hear of nothing would be worse than to be dead
                self.log("internal-error", reason=f"{type(error).__name__}: {error}")
                await asyncio.sleep(RENEW_SECONDS)
            await asyncio.sleep(WATCH_SECONDS)

    def _neighbours(self) -> list[str]:
        """A few other nodes, the same whoever restarts: those that follow this one in a ring."""
        names = sorted({*self.routes.leases, self.config.node})
        at = names.index(self.config.node)
        return (names[at + 1 :] + names[:at])[:NEIGHBOURS]

    async def _ask(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._registry_pool, call)

    async def get_shard(self, name: str) -> ShardObject | None:
        """A consistent read. Raises RegistryError."""
        return await self._ask(partial(self.registry.get_shard, name))

    async def write_status(self, name: str, status: ShardStatus, version: Version) -> Version:
        """Raises RegistryError."""
        return await self._ask(partial(self.registry.write_status, name, status, version))

    # ------------------------------------------------------------ settings
    def _shard_config(self, spec: ShardSpec) -> ShardConfig:
        cluster = self.routes.cluster
        topic = cluster.topic(spec.topic) if cluster is not None else None
        shards = max(1, len(self.replicas))
        base = ShardConfig(
            horizon_ms=(cluster.horizon_days if cluster is not None else 40) * DAY_MS,
            window_budget=max(SMALLEST_SHARE, self.config.window_budget // shards),
            flush_units=max(SMALLEST_SHARE, FLUSH_UNITS // shards),
            wheel_copy_units=max(SMALLEST_SHARE, WHEEL_COPY_UNITS // shards),
            log_segment_bytes=self.config.log_segment_bytes,
            max_producers=min(ShardConfig().max_producers, max(FEWEST_PRODUCERS, PRODUCERS // shards)),
        )
        if topic is None:
            return base
        alone = cluster is None or cluster.replicas == 1  # nobody catches up from this log
        keep = KeepConfig(retention_ms=topic.retention_ms)
        if alone:
            keep = replace(keep, keep_log_bytes=0, keep_log_ms=0)
        return replace(
            base, max_attempts=topic.max_attempts, max_delay_ms=topic.max_delay_ms, keep=keep,
            dlq_retention_ms=topic.dlq_retention_ms,
        )  # fmt: skip

    def _durability(self) -> Durability:
        cluster = self.routes.cluster
        return self.config.durability or (cluster.durability if cluster is not None else Durability.FSYNC)

    # ------------------------------------------------------------ who serves what
    def find(self, topic: str, queue: int) -> ShardHost | Elsewhere:
        """The host of a shard served here, or where it is served. Raises Refused."""
        shard = self.routes.shard(topic, queue)
        replica = self.replicas.get(shard.spec.uid)
        ours = shard.spec.master == self.config.node
        if replica is not None and replica.master is not None:
            master = replica.master
            if ours or master.serving:
                master.check_serving()
                return master
        if replica is not None and ours and (why := replica.why_not()) is not None:
            reason = "NOT_SERVING" if len(shard.spec.replicas) > 1 else "SHARD_DAMAGED"
            raise Refused(reason, f"shard {shard.name} can't be served: {why}")
        endpoint = self.routes.endpoint(shard)
        if not endpoint or ours:
            raise Refused(
                "NOT_SERVING", f"shard {shard.name} has no serving master at the moment", epoch=shard.spec.epoch
            )
        return Elsewhere(endpoint, shard.spec.epoch)

    def find_readable(self, topic: str, queue: int) -> ShardHost | SlaveHost | Elsewhere:
        """As find(), for Fetch: with `MasterAndSlave` an in-sync slave here will do. Raises Refused."""
        if self.routes.slaves_deliver:
            replica = self.replicas.get(self.routes.shard(topic, queue).spec.uid)
            if replica is not None and replica.host is not None and replica.unreadable() is None:
                return replica.host
        return self.find(topic, queue)

    def unfit(self) -> str | None:
        """Why no master should be chosen here; None when one may be."""
        if self.skew is not None:
            return f"its clock differs: {self.skew}"
        if (ahead_ms := self.clock.disbelieved_ms) > MAX_CLOCK_SKEW_MS:
            # Whole seconds: it is told to people in a condition, which is not to be written again with each look.
            return f"its clock is more than {ahead_ms // 1000} s ahead of what is believed"
        return "it is stopping" if self.stopping else None

    def hosts(self) -> list[ShardHost]:
        """The shards that are served here."""
        return self.replicas.masters()

    def copies(self) -> list[ShardHost | SlaveHost]:
        """Every open copy here."""
        found = (replica.master or replica.host for replica in self.replicas)
        return [copy for copy in found if copy is not None]

    def stopped(self) -> dict[str, str]:
        """The copies here that can't be used, and why, by shard."""
        why = {replica.name: replica.why_not() for replica in self.replicas}
        return {name: reason for name, reason in sorted(why.items()) if reason}

    def not_ready(self) -> str | None:
        """Why this node should get no traffic; None when it should."""
        if self.stopping:
            return "the node is stopping"
        if not self.routes.heard:
            return "the registry has not answered yet"
        waiting = [
            shard.name
            for shard in self.routes.objects.values()
            if shard.spec.master == self.config.node and not self._serves(shard.spec.uid)
        ]
        return f"{len(waiting)} shards are not served yet: {', '.join(sorted(waiting)[:5])}" if waiting else None

    def _serves(self, uid: int) -> bool:
        replica: Replica | None = self.replicas.get(uid)
        return replica is not None and replica.master is not None and replica.master.serving

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


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *args: object) -> None:
    """From another thread; the loop may be gone."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(call, *args)


class _Relay:
    """Stands for the Replicas that links are made before."""

    handler: Replicas

    def link_up(self, node: str) -> None:
        self.handler.link_up(node)

    def link_down(self, node: str) -> None:
        self.handler.link_down(node)

    def from_slave(self, node: str, message: Message) -> None:
        self.handler.from_slave(node, message)

    def from_master(self, origin: Origin, message: Message) -> None:
        self.handler.from_master(origin, message)

    def origin_lost(self, origin: Origin) -> None:
        self.handler.origin_lost(origin)


def open_registry(name: str) -> Registry:
    """The registry that `--registry` names. Raises RegistryError."""
    try:
        return registry.open_registry(name)
    except ValueError as error:
        raise RegistryError(str(error)) from error
