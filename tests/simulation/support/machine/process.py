"""A node's process: the real Replica, Leader, Follower, ShardHost, Syncer and Promises on a loop of virtual time."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from delaynode.clock import Trust
from delaynode.metrics import NodeMetrics
from delaynode.node.node import CLOCK_SECONDS, Node
from delaynode.node.node_clock import NodeClock
from delaynode.replica.context import ReplicaContext, TransferPermits
from delaynode.replica.hosts.host import NodeResources
from delaynode.replica.hosts.master import ShardHost
from delaynode.replica.hosts.sync_threads import Syncer
from delaynode.replica.replicas import Replicas
from delaynode.replication.clock_agreement import MIN_PEERS
from delaynode.replication.heartbeat_guard import HeartbeatGuard, NoKey, Unauthenticated
from delaynode.replication.protocol import BadMessage, HeartbeatReply
from delaynode.replication.replica_lease import ReplicaLeases
from delaynode.store import formats
from delaynode.store.config import ShardConfig
from delaynode.store.errors import Refused
from delaynode.store.maintenance import snapshot
from delayregistry.model import ClusterSpec, Durability, NodeLease, ShardObject, ShardSpec, ShardStatus, Version
from delayregistry.port import RegistryError

from tests.simulation.support.machine.clocks import MachineClocks
from tests.simulation.support.machine.disk import Disk, ProcessFiles
from tests.simulation.support.machine.loop import MICRO, MILLI, Job, Pool, ProcessLoop, in_job
from tests.simulation.support.machine.machineclock import MachineClock
from tests.simulation.support.machine.network import SOCKET_DATAGRAMS, SimPeers
from tests.simulation.support.registry import Access, Weather

if TYPE_CHECKING:
    from tests.simulation.support.world import World

DATA = "d"
WATCH_SECONDS = 0.1
RENEW_SECONDS = 0.7
LATELY_NS = 100 * MILLI  # longer than something may be released before it is due
REQUESTS = 32  # most requests to the registry at once, those of the lease and the watches aside


@dataclass
class Machine:
    """A machine, with everything that outlives a process."""

    name: str
    disk: Disk
    clocks: MachineClocks
    weather: Weather = field(default_factory=Weather)
    trust: Trust | None = None  # trust in the clock, as the processes of this boot keep it
    process: Process | None = None
    starts: int = 0
    wanted: bool = True  # the process is started again when it has ended
    lost: str | None = None  # the process that ran when its power was lost

    @property
    def up(self) -> bool:
        return self.process is not None


class _NoThread:
    """In place of the syncer's threads."""

    def __init__(self, **_: object) -> None:
        pass

    def start(self) -> None:
        pass

    def join(self) -> None:
        pass


class NoThreads:
    """In place of the module `threading` where code would start some."""

    Thread = _NoThread
    Lock = threading.Lock


class _Rounds:
    """The syncer's queue: each round is run by the syncer's own code, in a job of its own."""

    def __init__(self, process: Process, syncer: Syncer) -> None:
        self._process, self._syncer = process, syncer
        self._taken: list[Any] = []

    def put(self, batches: Any) -> None:
        if batches is not None:
            self._process.world.scheduler.after(self._process.rng.randint(20, 120) * MICRO, self._run, batches)

    def _run(self, batches: Any) -> None:
        loop = self._process.loop
        if loop.frozen:
            loop.once_thawed(lambda: self._run(batches))
        elif not loop.dead:
            self._taken = [batches]
            scheduler = self._process.world.scheduler
            _, error = in_job(scheduler, Job(scheduler.now_ns), self._syncer._run_thread)
            if error is not None:
                self._process.unhandled("sync lane", error)

    def get(self) -> Any:
        return self._taken.pop() if self._taken else None


class Process:
    """A node's process from its start to its end; its memory ends with it."""

    def __init__(self, world: World, machine: Machine) -> None:
        self.world, self.machine = world, machine
        self.name = machine.name
        machine.starts += 1
        self.rng = world.random(f"{self.name}/{machine.starts}")
        self.incarnation = f"{int(self.name[1:]) + 1:04x}{machine.starts:012x}"
        self.loop = ProcessLoop(world.scheduler, self.unhandled)  # type: ignore[abstract]
        self.files = ProcessFiles(machine.disk)
        self.registry = Access(world.truth, machine.weather, self.rng, self.trace)
        self.stopping = False
        self.cluster: ClusterSpec | None = None
        self.leases: dict[str, NodeLease] = {}
        self.calls = 0
        self._datagrams: list[bytes] = []
        self._ring = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self._renewals = 0
        scheduler = world.scheduler
        self.pool = Pool(scheduler, self.loop, 4, lambda: self.rng.randint(10, 150) * MICRO)
        self.registry_pool, self.lease_pool, self.watch_pool = (self._to_registry(at) for at in (REQUESTS, 1, 1))
        with self.loop.running():
            self._build()
        world.network.listen(self)
        self._heartbeat_ns = max(50, world.cluster_spec.lease_seconds * 100) * MILLI
        scheduler.after(self.rng.randint(1, 250) * MILLI, self._heartbeats, self._ring)

    def _to_registry(self, threads: int) -> Pool:
        """Threads that ask the registry, as Membership has them."""
        rng, weather = self.rng, self.machine.weather
        return Pool(
            self.world.scheduler, self.loop, threads, lambda: rng.randint(200, weather.latency_ns // MICRO) * MICRO,
            outlives=lambda: rng.random() < 0.5,
        )  # fmt: skip

    def trace(self, event: str, **fields: object) -> None:
        self.world.trace.add(self.name, event, **fields)

    def unhandled(self, what: str, error: BaseException | None) -> None:
        self.world.fail(f"{self.name}: nobody handles {error!r} ({what})", error)

    # ------------------------------------------------------------ the stack
    def _build(self) -> None:
        machine, world = self.machine, self.world
        clocks = machine.clocks
        self._clock = NodeClock(
            MachineClock(machine, self.log), self.pool, self.log,  # type: ignore[arg-type]
            woken=lambda: Node._on_clock_jump(self), clock_skewed=lambda why: Node._clock_skewed(self, why),  # type: ignore[arg-type]
            boot=clocks.boot_ms,
        )  # fmt: skip
        self.clock = self._clock.clock
        self.latest_ms = 0  # the latest time that the clock has shown
        self._latest_ns = 0  # true time then
        self._shown_lately: deque[tuple[int, int]] = deque()  # true time ns, by how much the clock was ahead of it, ns
        self.unjudged_ms = 0  # the same while fewer peers were heard than could tell that it is wrong (docs/limits.md)
        now_ms = self.clock.now_ms
        self.clock.now_ms = lambda: self._shown(now_ms())  # type: ignore[method-assign]
        syncer = Syncer()
        syncer._work = _Rounds(self, syncer)  # type: ignore[assignment]
        self.syncer = syncer
        spec = world.cluster_spec
        resources = NodeResources(
            files=self.files, clock=self.clock, syncer=syncer, pool=self.pool, metrics=NodeMetrics(),  # type: ignore[arg-type]
            checkpoints=asyncio.Semaphore(1), fsync=spec.durability is Durability.FSYNC, log=self.log,
            disk_tight=lambda: False, intervals=world.sizes.intervals, may_tick=lambda: self._clock.may_tick,
        )  # fmt: skip
        self.replica_leases = ReplicaLeases(
            self.name, int(self.incarnation, 16), lease_ms=spec.lease_seconds * 1000, boot_ms=clocks.boot_ms,
            wall_ms=clocks.wall_ms,
        )  # fmt: skip
        self.replica_leases.on_request = self._nudge
        self.replica_leases.on_heard = self._heard
        others = [node for node in world.machines if node != self.name]
        self.replica_leases.set_clock_peers(others)
        self._clock.expect(others)
        sealed = world.network.sealed
        self.guard = HeartbeatGuard(
            self.name, self.incarnation, clocks.boot_ms, self.replica_leases.lease_ms // 2, lambda _: sealed,
            required=sealed,
        )  # fmt: skip
        self.guard.on_key = self._nudge
        self.peers = SimPeers(world.network, self, others if sealed else ())
        self.context = ReplicaContext(
            node=self.name, incarnation=self.incarnation, data=DATA, boot_id=clocks.boot_id, resources=resources,
            registry=self,
            peers=self.peers, replica_leases=self.replica_leases, transfers=TransferPermits(), boot_ms=clocks.boot_ms,
            cluster=lambda: self.cluster, shard_config=self._shard_config, release_rate=lambda _: None,
            quotas=lambda _: None, stopping=self._says_it_stops,
        )  # fmt: skip
        self.handler = self.replicas = Replicas(self.context)
        self.peers.want(())  # those that it has links to whoever wants them
        self.replicas.start()
        self._loops = [self.loop.create_task(one()) for one in (self._renew_loop, self._watch_loop, self._clock_loop)]

    def _heard(self, *what: Any) -> None:
        """Take in a peer's clock, on the heartbeats' thread."""
        self.loop.call_soon(self._clock.heard, *what)

    def _shown(self, now_ms: int) -> int:
        time_ns = self.world.scheduler.time_ns()
        if now_ms > self.latest_ms:
            self.latest_ms, self._latest_ns = now_ms, time_ns
        self._shown_lately.append((time_ns, now_ms * MILLI - time_ns))
        while self._shown_lately[0][0] < time_ns - LATELY_NS:
            self._shown_lately.popleft()
        if now_ms > self.unjudged_ms and len(self._clock._agreement._heard) < MIN_PEERS:
            self.unjudged_ms = now_ms
        return now_ms

    def would_show_ms(self) -> int:
        """What the clock would show now if it had gone on from its latest time, rounded up."""
        return self.latest_ms + -(-(self.world.scheduler.time_ns() - self._latest_ns) // MILLI)

    def would_have_shown_ms(self) -> int:
        """The same if it had not been set back lately."""
        ahead_ns = max((ahead for _, ahead in self._shown_lately), default=0)
        return max(self.would_show_ms(), -(-(self.world.scheduler.time_ns() + ahead_ns) // MILLI))

    def log(self, event: str, **fields: object) -> None:
        self.trace(event, **fields)
        self.world.copies.told(self, event, fields)
        if event == "internal-error":
            self.unhandled(event, None)

    def _shard_config(self, spec: ShardSpec) -> ShardConfig:
        written = formats.OLDEST if self.cluster is None else formats.written_format(self.cluster.nodes_version)
        return replace(self.world.sizes.shard, format=written)

    # ------------------------------------------------------------ what Node does
    def _says_it_stops(self, node: str) -> bool:
        return node in self.leases and self.leases[node].stopping

    async def _ask(self, call: Callable[[], Any], pool: Pool | None = None) -> Any:
        return await self.loop.run_in_executor(pool or self.registry_pool, call)

    async def get_shard(self, name: str) -> ShardObject | None:
        found: ShardObject | None = await self._ask(lambda: self.registry.get_shard(name))
        return found

    async def write_status(self, name: str, status: ShardStatus, version: Version) -> Version:
        written: Version = await self._ask(lambda: self.registry.write_status(name, status, version))
        return written

    @property
    def membership(self) -> Process:
        """The part of Node's Membership that renews the lease: a Process does that itself."""
        return self

    async def renew(self) -> None:
        lease = NodeLease(
            self.name, self.incarnation, f"{self.name}:1", f"{self.name}:2", self._renewals, f"{self.name}:3",
            self.stopping,
        )  # fmt: skip
        self._renewals += 1
        await self._ask(lambda: self.registry.renew_lease(lease), self.lease_pool)

    async def _renew_loop(self) -> None:
        while True:
            try:
                await self.renew()
            except RegistryError:
                self.trace("lease-not-renewed")
            await asyncio.sleep(RENEW_SECONDS)

    async def _watch_loop(self) -> None:
        seen, ask = -1, partial(self._ask, pool=self.watch_pool)
        await self.loop.run_in_executor(self.pool, lambda: snapshot.remove_leftovers(self.files, f"{DATA}/shards"))
        while True:
            try:
                version = await ask(self.registry.version)
                if version != seen:
                    self.leases = {lease.node: lease for lease in await ask(self.registry.list_leases)}
                    cluster = await ask(self.registry.read_cluster)
                    shards = await ask(self.registry.list_shards)
                    self.cluster = cluster.spec if cluster is not None else None
                    seen = version
                    if self.cluster is not None:
                        self.replicas.refresh(shards)
            except RegistryError as error:
                self.trace("registry-unreachable", reason=error)
            await asyncio.sleep(WATCH_SECONDS)

    async def _clock_loop(self) -> None:
        while True:
            await self._clock.poll()
            await asyncio.sleep(CLOCK_SECONDS)

    # ------------------------------------------------------------ heartbeats: a thread of their own
    def _heartbeats(self, ring: int) -> None:
        """Run a round of the thread, when it is due or was asked for; a round of an earlier ring comes too late."""
        if self.loop.dead or ring != self._ring:
            return
        if self.loop.frozen:
            self.loop.once_thawed(lambda: self._heartbeats(ring))
            return
        self._ring += 1
        self._drain()
        for node, heartbeat in self.replica_leases.heartbeats():
            with suppress(NoKey):
                self.world.network.send_datagram(self.name, node, self.guard.seal(node, heartbeat))
        self.replica_leases.check_silence()
        self.world.scheduler.after(self._heartbeat_ns, self._heartbeats, self._ring)

    def _nudge(self) -> None:
        self.world.scheduler.after(self.rng.randint(20, 200) * MICRO, self._heartbeats, self._ring)

    def datagram(self, data: bytes) -> None:
        if len(self._datagrams) < SOCKET_DATAGRAMS:
            self._datagrams.append(data)
        if not self.loop.frozen:
            self._drain()
        elif len(self._datagrams) == 1:
            self.loop.once_thawed(self._drain)

    def _drain(self) -> None:
        waiting, self._datagrams = self._datagrams, []
        for data in waiting:
            try:
                opened = self.guard.open(data)
            except (BadMessage, Unauthenticated):  # an attacker's
                continue
            message = opened.message
            if isinstance(message, HeartbeatReply):
                self.replica_leases.on_reply(message)
                if opened.again:
                    self._nudge()
            else:
                reply = self.replica_leases.answer(message if opened.fresh else replace(message, shards=()))
                self.world.network.send_datagram(self.name, message.node, self.guard.seal_reply(opened, reply))

    # ------------------------------------------------------------ clients
    def unfit(self) -> str:
        """The reason why no master should be chosen on this node; empty: none."""
        return Node.ineligible(self) or ""  # type: ignore[arg-type]

    def hosts(self) -> list[ShardHost]:
        return self.replicas.masters()

    def call(self, work: Callable[[Process], Coroutine[Any, Any, Any]], reply: Callable[[Any], None]) -> None:
        """Serve a client's request. Calls reply(result or exception) on this process's loop."""

        async def serve() -> None:
            try:
                answer = await work(self)
            except Refused as refused:
                answer = refused
            except Exception as error:
                self.unhandled("a client's call", error)
                return
            reply(answer)

        self.loop.call_soon(lambda: self.keep(self.loop.create_task(serve())))

    def keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.append(task)
        if len(self._tasks) > 64:
            self._tasks = [one for one in self._tasks if not one.done()]

    # ------------------------------------------------------------ its end
    def freeze(self) -> None:
        self.frozen_ns = self.world.scheduler.now_ns
        self.loop.freeze()

    def thaw(self) -> None:
        self.loop.thaw()

    def die(self) -> None:
        """From here on nothing that this process does has an effect."""
        self.loop.kill()
        self.files.dead = True  # a request to the registry that is on its way still gets there
        if self.machine.process is self:
            self.machine.process = None

    def _remaining(self) -> tuple[int, int]:
        return Node._remaining(self)  # type: ignore[arg-type]

    async def stop(self) -> None:
        """Handle SIGTERM as Node does, by Node's own code where a Process has what that code needs."""
        await Node.leave(self)  # type: ignore[arg-type]
        for task in self._loops:
            task.cancel()
        await self.replicas.stop()
        await self.syncer.close()
