"""The node: one process with its copies (Replicas), its lease (Membership), its peers (Peering) and its clock."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Final

import delayregistry
from delayregistry.model import Durability, ListenerEndpoint, NodeLease, ShardObject, ShardSpec, VersionRange
from delayregistry.port import Registry, RegistryError
from delayregistry.security import SecurityObject

from delaynode.auth.identity import Authentication
from delaynode.auth.key_sources import ApiServer
from delaynode.auth.security import NodeSecurity
from delaynode.clock import MAX_CLOCK_SKEW_MS, boot_ms, wall_part_s
from delaynode.config import NodeConfig
from delaynode.limits.flow import Flow
from delaynode.metrics import NodeMetrics
from delaynode.node.clock_watch import ClockWatch, boot_id
from delaynode.node.conditions import ConditionLog, NotReady, conditions
from delaynode.node.data_lock import lock_data
from delaynode.node.disk import DiskSpace, needed_bytes
from delaynode.node.membership import Membership
from delaynode.node.node_clock import NodeClock
from delaynode.node.peering import Peering
from delaynode.node.routes import Routes
from delaynode.node.settings import shard_config
from delaynode.node.shard_finder import ShardFinder
from delaynode.node_certificates import NodeCertificates
from delaynode.replica.context import ReplicaContext, TransferPermits
from delaynode.replica.hosts.host import CopyHost, NodeResources
from delaynode.replica.hosts.master import ShardHost
from delaynode.replica.hosts.scrub import Scrubber
from delaynode.replica.hosts.sync_threads import DirectWrites, Syncer
from delaynode.replica.replicas import Replicas
from delaynode.replication.transport.connection import WIRE
from delaynode.store import formats
from delaynode.store.config import ShardConfig
from delaynode.store.errors import Refused
from delaynode.store.log.files import DiskFiles
from delaynode.store.maintenance import snapshot

CLOCK_SECONDS = 0.25
HAND_OVER_SECONDS = 15.0  # a stopping node waits so long for its masters to be taken over
UNCHANGED_SECONDS = 2.0  # of them without any being taken: nobody will
FORMATS = VersionRange(formats.OLDEST, formats.NEWEST)  # that this program reads
WRITE_THREADS: Final = 8  # a disk that hangs holds up so many shards' writes before it holds up all


class ReleaseTooOld(RuntimeError):
    """The cluster's nodes write files that this program does not read."""


class Node:
    """Owned by the event loop."""

    def __init__(
        self,
        config: NodeConfig,
        registry: Registry,
        log: Callable[..., None],
        audit: Callable[..., None] | None = None,
        api: ApiServer | None = None,
    ) -> None:
        """audit: where the audit log goes; None: to `log`. api: of Kubernetes, where ServiceAccounts' keys are."""
        self.config = config
        self.log = log
        self.incarnation = secrets.token_hex(8)
        self.metrics = NodeMetrics()
        self.flow = Flow(config, log)
        self.certificates = NodeCertificates(config.security)
        clients = (*config.listeners, *config.http_listeners)
        authentication = {one.name: Authentication(one.authentication) for one in clients}
        metrics = config.metrics_listener
        of_metrics = {} if metrics is None else {metrics.name: Authentication(metrics.authentication)}
        self.security = NodeSecurity(
            config.data,
            self.metrics,
            log,
            audit or log,
            authentication,
            self.certificates.cluster_uri,
            api,
            of_metrics,
            lambda: self.clock.now_ms(),  # which comes later
            lambda: self.skew,
        )
        self._lock = lock_data(config.data)
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="work")
        watch = ClockWatch(config.data, log, accept=config.accept_clock_step)
        self._clock = NodeClock(watch, self._pool, log, woken=self._on_clock_jump, clock_skewed=self._clock_skewed)
        self.clock = self._clock.clock
        self._conditions = ConditionLog(log)
        self.disk = DiskSpace(config.data, self._disk_reserve, self._unwritten_bytes)
        self.routes = Routes(config.security.peers)
        one = len(config.listeners) == 1  # at the lease's `endpoint`
        self._listeners = () if one else tuple(ListenerEndpoint(it.name, it.advertise) for it in config.listeners)
        followed = self._take_security if self.security.followed else None
        self.membership = Membership(registry, self.routes, self, log, followed)
        self.stopping = False
        self._files = DiskFiles()
        self._syncer = Syncer(direct=_direct_writes(config))
        self._checkpoints = asyncio.Semaphore(1)
        self._tasks: list[asyncio.Task[None]] = []
        self._vital: list[asyncio.Task[None]] = []  # of them: without these the process is a node no more
        self._replicas: Replicas | None = None  # until prepare()
        self.finder: ShardFinder  # from prepare() on
        self._peering: Peering | None = None  # likewise

    @property
    def replicas(self) -> Replicas:
        """From prepare() on."""
        assert self._replicas is not None, "prepare() first"
        return self._replicas

    @property
    def peering(self) -> Peering:
        """From prepare() on."""
        assert self._peering is not None, "prepare() first"
        return self._peering

    # ------------------------------------------------------------ life
    async def read_cluster(self) -> None:
        """Learn the cluster's spec, which leases and durability depend on. May take for ever, and be cancelled.

        Raises ReleaseTooOld.
        """
        cluster = self.routes.cluster = await self.membership.read_cluster_spec()
        if cluster is not None and cluster.nodes_version > formats.NEWEST:
            found = f"all nodes of cluster {cluster.name} write format {cluster.nodes_version} (status.nodesVersion)"
            read = f"this release reads up to {formats.NEWEST}"
            raise ReleaseTooOld(f"{found}, and {read}: the upgrade is final, put the newer release back")

    async def prepare(self) -> None:
        """Listen for the other nodes. To be called before anything else asks for `replicas`."""
        call = self.membership.call
        peering = self._peering = await call(
            lambda: Peering(
                self.config, self.incarnation, self.routes.cluster, self.routes, self._files, self.log,
                self.certificates,
            )
        )  # fmt: skip
        resources = NodeResources(
            self._files, self.clock, self._syncer, self._pool, self.metrics, self._checkpoints,
            fsync=self._durability() is Durability.FSYNC, log=self.log, disk_tight=self.disk.tight,
            disk_full=self.disk.full, check_copy=self.disk.check_copy, part_of_ms=wall_part_s,
            may_tick=lambda: self._clock.may_tick,
        )  # fmt: skip
        context = ReplicaContext(
            node=self.config.node, incarnation=self.incarnation, data=self.config.data, boot_id=boot_id(),
            resources=resources, registry=self.membership, peers=peering.links,
            replica_leases=peering.replica_leases, transfers=TransferPermits(),
            boot_ms=boot_ms, cluster=lambda: self.routes.cluster, shard_config=self._shard_config,
            release_rate=self.routes.release_rate, quotas=self.routes.quotas, stopping=self.routes.stopping,
        )  # fmt: skip
        replicas = self._replicas = Replicas(context)
        self.finder = ShardFinder(self.config.node, self.routes, replicas)
        await call(lambda: self.security.load(self._files))
        await call(lambda: snapshot.remove_leftovers(self._files, f"{self.config.data}/shards"))
        await peering.listen(replicas, self._clock.heard)

    async def start(self) -> None:
        """Register, which may take for ever and be cancelled, and begin to follow the registry."""
        await self.membership.join()
        self.replicas.start()
        scrubber = Scrubber(self.copies, self.metrics, self.log)
        vital = (self.membership.renew_loop, self.membership.watch_loop, self._clock_loop)
        self._vital = [asyncio.create_task(loop(), name=loop.__name__.strip("_")) for loop in vital]
        self._tasks = [*self._vital, asyncio.create_task(scrubber.run())]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    async def leave(self) -> None:
        """Ask for somebody else to lead what is led here, and the masters of what is not to do without; wait until
        that is so, or nobody can.
        """
        self.stopping = True
        leads = any(replica.leader is not None and replica.leader.ships for replica in self.replicas)
        awaited = [replica for replica in self.replicas if not replica.withdraw()]
        if not leads and not awaited:
            return
        if leads:
            try:
                await self.membership.renew()
            except RegistryError as error:
                self.log("lease-not-renewed", reason=str(error))
        started = changed = time.monotonic()
        left = self._remaining()
        while any(left) and time.monotonic() < started + HAND_OVER_SECONDS:
            await asyncio.sleep(0.02)
            now_left = self._remaining()
            if now_left != left:
                left, changed = now_left, time.monotonic()
            if time.monotonic() > changed + UNCHANGED_SECONDS:
                break
        self.log("left", masters=left[0], slaves=left[1], seconds=round(time.monotonic() - started, 3))

    def _remaining(self) -> tuple[int, int]:
        """Shards that are led here still, and copies here that a master waits for still.

        A term that is over is not counted though its copy is being put away: others serve the shard.
        """
        leaders = [replica.leader for replica in self.replicas.leading()]
        leads = sum(leader is not None and leader.ended is None for leader in leaders)
        return leads, sum(not replica.withdraw() for replica in self.replicas)

    async def stop(self) -> None:
        """Stop serving; every copy is checkpointed."""
        self.stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._replicas is not None:
            await self._replicas.stop()
        if self._peering is not None:
            await self._peering.close()
        await self._syncer.close()
        self._pool.shutdown()
        self.membership.close()
        self.security.close()
        self._files.close()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.log("internal-error", reason=f"{type(error).__name__}: {error}")

    def fatal_error(self) -> str | None:
        """Why only another process can help: the event loop goes on, and a loop on it that a node lives by has ended.

        None while all is well, however little the registry or the disk answers.
        """
        ended = [task for task in self._vital if task.done() and not task.cancelled()]
        return f"{ended[0].get_name()} has ended: {ended[0].exception()!r}" if ended else None

    def turn(self) -> AbstractContextManager[None]:
        """See Syncer.turn()."""
        return self._syncer.turn()

    def oldest_write_seconds(self) -> float:
        """How long the oldest write to a log takes already."""
        return self._syncer.oldest_seconds()

    def _disk_reserve(self) -> int:
        """Bytes of the disk that new messages leave free."""
        shards = [copy.shard for copy in self.copies()]
        return max(self.config.reserve_bytes, needed_bytes(shards, self.config.in_flight_bytes))

    def _unwritten_bytes(self) -> int:
        """Bytes that were let in and are on their way to the files: of logs, and of whole copies."""
        logs = [copy.shard.log for copy in self.copies()]
        fetching = [replica.local.storage.fetching for replica in self._replicas or ()]
        to_come = sum(copy.total_bytes - copy.done_bytes for copy in fetching if copy is not None)
        return to_come + sum(log.end - log.written for log in logs)

    # ------------------------------------------------------------ the clock
    async def _clock_loop(self) -> None:
        while True:
            await self._poll_clock()
            await asyncio.sleep(CLOCK_SECONDS)

    async def _poll_clock(self) -> None:
        await self._clock.poll()
        if (lower := self.peering.lease_to_lower()) is not None:
            await self.membership.call(lower)
        self._conditions.update(conditions(self))

    def _on_clock_jump(self) -> None:
        for host in self.hosts():  # they sleep until their next due
            host.on_visible()

    def _clock_skewed(self, reason: str) -> None:
        for replica in self.replicas.leading():
            if replica.leader is not None and replica.leader.in_sync_size > 1:
                replica.leadership.step_down(f"its node's clock differs: {reason}")

    @property
    def skew(self) -> str | None:
        """What most peers' clocks say of this node's, where they differ."""
        return self._clock.skew

    @property
    def clock_differs_ms(self) -> int:
        """By how much; 0 where they don't."""
        return self._clock.differs_ms

    async def accept_clock(self, seen_ms: int) -> int:
        """Believe the wall clock; returns by how many ms time moves ahead. `seen_ms`: what whoever accepts it saw.

        Raises Refused CLOCK_CHANGED when it is another step by now.
        """
        self.clock.now_ms()
        ahead_ms = self.clock.disbelieved_ms
        if abs(ahead_ms - seen_ms) > MAX_CLOCK_SKEW_MS:
            raise Refused("CLOCK_CHANGED", f"the clock is {ahead_ms} ms ahead of what is believed, not {seen_ms}")
        moved_ms = self._clock.accept()
        await self._poll_clock()
        return moved_ms

    # ------------------------------------------------------------ the registry
    def lease(self, renewals: int) -> NodeLease:
        config = self.config
        return NodeLease(
            config.node, self.incarnation, config.advertise, config.advertise_http, renewals,
            peer=self.peering.address, stopping=self.stopping, zone=config.zone, formats=FORMATS, wire=WIRE,
            listeners=self._listeners, peer_tls=self.peering.offers_tls, trust=self.certificates.trust(),
            certificate_problem="; ".join(f"{use}: {why}" for use, why in self.certificates.problems().items())[:500],
        )  # fmt: skip

    def leases_read(self) -> None:
        self.peering.leases_read()
        self._clock.expect(self.peering.neighbours())

    async def _take_security(self, found: SecurityObject | None) -> None:
        await self.security.take(found, self._files, self.membership.call)

    def shards_read(self, shards: Iterable[ShardObject]) -> None:
        if self.routes.cluster is not None:
            self.peering.links.cluster = self.routes.cluster.name
        self.replicas.refresh(shards)

    # ------------------------------------------------------------ settings
    def _shard_config(self, spec: ShardSpec) -> ShardConfig:
        return shard_config(self.config, self.routes.cluster, spec.topic, max(1, len(self.replicas)))

    def _durability(self) -> Durability:
        cluster = self.routes.cluster
        return self.config.durability or (cluster.durability if cluster is not None else Durability.FSYNC)

    # ------------------------------------------------------------ who serves what
    def ineligible(self) -> str | None:
        """Why no master should be chosen here; None when one may be."""
        if (clock := self._clock.ineligible()) is not None:
            return clock
        return "it is stopping" if self.stopping else None

    def hosts(self) -> list[ShardHost]:
        """The shards that are served here."""
        return [] if self._replicas is None else self._replicas.masters()

    def copies(self) -> list[CopyHost]:
        """Every open copy here."""
        found = (replica.copy for replica in self._replicas or ())
        return [copy for copy in found if copy is not None]

    def orphans(self) -> tuple[int, int]:
        """Copies on the disk that no shard of the registry has: their number, and their bytes."""
        stored = () if self._replicas is None else self._replicas.stored
        return len(stored), sum(copy.disk_bytes for copy in stored)

    def unusable(self) -> dict[str, str]:
        """The copies here that can't be used, and why, by shard."""
        why = {replica.name: replica.unusable_reason() for replica in self._replicas or ()}
        return {name: reason for name, reason in sorted(why.items()) if reason}

    def not_ready(self) -> str | None:
        """Why this node should get no traffic; None when it should."""
        found = self.readiness()
        return None if found is None else found.text

    def readiness(self) -> NotReady | None:
        """Likewise, with a word for it."""
        if self.stopping:
            return NotReady("stopping", "the node is stopping")
        if self.membership.waiting_for is not None:
            return NotReady("waiting-for-registry", f"waiting for the registry: {self.membership.waiting_for}")
        if not self.routes.was_read:
            return NotReady("waiting-for-registry", "the registry has not answered yet")
        if (closed := self.security.not_ready()) is not None:
            return NotReady("waiting-for-security-document", closed)
        if waiting := self.finder.unserved(self.clock.now_ms()):
            text = f"{len(waiting)} shards are not served yet: {', '.join(waiting[:5])}"
            return NotReady("shards-not-served", text)
        return None


def _direct_writes(config: NodeConfig) -> DirectWrites | None:
    """Compiled code for small writes, where the node has the compiled edge."""
    if config.edge != "compiled":
        return None
    from delayedge import Writes  # a distribution of its own, which need not be there

    return Writes(WRITE_THREADS)


def open_registry(name: str) -> Registry:
    """The registry that `--registry` names. Raises RegistryError."""
    try:
        return delayregistry.open_registry(name)
    except ValueError as error:
        raise RegistryError(str(error)) from error
