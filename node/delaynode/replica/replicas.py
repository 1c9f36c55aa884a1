"""Replicas: every copy in this process, and who among them is told what comes in from other nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from functools import partial

from delayregistry.model import ClusterSpec, ShardObject
from delayregistry.port import RegistryError

from delaynode.replica.context import ReplicaContext
from delaynode.replica.follower import refuse_unknown
from delaynode.replica.hosts.master import ShardHost
from delaynode.replica.replica import Replica
from delaynode.replica.role import ReplicaRole
from delaynode.replica.stored_copies import StoredCopies, is_outdated, is_wanted
from delaynode.replication.protocol import LeaseRelease, Message
from delaynode.replication.transport.peers import Origin
from delaynode.store.maintenance import persist
from delaynode.store.maintenance.stored_copy import StoredCopy

POLL_SECONDS = 0.25
LOOK_AGAIN_SECONDS = 1.0


class NotPurged(Exception):
    """The copy stays; says why."""


class Replicas:
    """Owned by the event loop. Implements replication.transport.peers.Handler."""

    def __init__(self, context: ReplicaContext) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._by_uid: dict[int, Replica] = {}
        self._linked: dict[str, None] = {}
        self.stored = StoredCopies(context)
        self._purging: dict[int, ShardObject | None] = {}  # by uid: an object that has come meanwhile
        self._poller: asyncio.Task[None] | None = None
        self._looker: asyncio.Task[None] | None = None
        self._returning: set[asyncio.Task[None]] = set()  # the disk space of copies that a later term does without
        self._objects: tuple[ShardObject, ...] = ()  # as of the last look
        self._linked_to: tuple[str, ...] | None = None
        self._cluster: ClusterSpec | None = None  # as of the last look
        # The registry has been read, and the disk looked through: each copy here is a Replica's, or in `stored`.
        self.listed = False
        context.replica_leases.on_silent = lambda node, silent: self._call(self._silent, node, silent)
        context.replica_leases.on_ahead = lambda uid: self._call(self._ahead, uid)
        context.replica_leases.on_higher = lambda uid, epoch: self._call(self._higher, uid, epoch)

    def _call(self, what: object, *args: object) -> None:
        """From the heartbeats' thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(what, *args)  # type: ignore[arg-type]

    # ------------------------------------------------------------ life
    def start(self) -> None:
        self._poller = self._loop.create_task(self._poll_loop())

    async def stop(self) -> None:
        """Stop serving and following; every copy is checkpointed."""
        for task in (self._poller, self._looker, *self._returning):
            if task is not None:
                task.cancel()
        results = await asyncio.gather(*(replica.stop() for replica in self), return_exceptions=True)
        for replica, result in zip(self, results, strict=True):
            if isinstance(result, BaseException):
                self._context.resources.log(
                    "stop-failed", shard=replica.name, reason=f"{type(result).__name__}: {result}"
                )

    def __iter__(self) -> Iterator[Replica]:
        return iter(list(self._by_uid.values()))

    def __len__(self) -> int:
        return len(self._by_uid)

    def get(self, uid: int) -> Replica | None:
        return self._by_uid.get(uid)

    def masters(self) -> list[ShardHost]:
        """The shards that are served here."""
        found = (replica.master for replica in self._by_uid.values())
        return [master for master in found if master is not None and master.serving]

    # ------------------------------------------------------------ the registry
    def refresh(self, objects: Iterable[ShardObject]) -> None:
        """What the registry has now: all shards, or all with a replica here."""
        self._objects = tuple(objects)
        self._take_up(self._objects)
        if self._looker is None:
            self._looker = self._loop.create_task(self._look())
        self._update_links()

    def _take_up(self, objects: Iterable[ShardObject]) -> None:
        node, cluster = self._context.node, self._context.cluster()
        same_spec, self._cluster = cluster is self._cluster or cluster == self._cluster, cluster
        for object_ in objects:
            if object_.spec.uid in self._purging:
                self._purging[object_.spec.uid] = object_  # it has its turn when the purge is over
                continue
            replica = self._by_uid.get(object_.spec.uid)
            if replica is not None and replica.local.object is object_ and same_spec and not replica.discarded:
                continue  # thousands are listed again with every change of one
            if replica is not None and replica.discarded:
                del self._by_uid[object_.spec.uid]
                replica = None
            if replica is not None:
                replica.refresh(object_)
            elif node in object_.spec.replicas:
                self.stored.forget(object_.spec.uid)
                self._by_uid[object_.spec.uid] = Replica(object_, self._context)
            elif (copy := self.stored.get(object_.spec.uid)) is not None and is_outdated(copy, node, object_):
                self._purging[copy.uid] = None
                task = self._loop.create_task(self._give_back(copy))
                self._returning.add(task)
                task.add_done_callback(self._returning.discard)

    async def _look(self) -> None:
        while True:
            try:
                await self.stored.look(self._by_uid)
            except OSError as error:
                self._context.resources.log("copies-not-listed", reason=str(error))
                await asyncio.sleep(LOOK_AGAIN_SECONDS)
            else:
                self.listed = True
                self._take_up(self._objects)  # of some that were found now a later term may do without
                return

    def _update_links(self) -> None:
        """Links to every node that is to have a copy of what is led here."""
        nodes = {
            node: None
            for replica in self._by_uid.values()
            if replica.local.object.spec.master == self._context.node or replica.leader is not None
            for node in replica.local.object.spec.replicas
            if node != self._context.node
        }
        if tuple(nodes) != self._linked_to:
            self._linked_to = tuple(nodes)
            self._context.peers.want(tuple(nodes))

    # ------------------------------------------------------------ copies that nobody wants
    async def purge(self, uid: int, pending: int) -> None:
        """Delete a copy on which no object counts. pending: as whoever wants it was told. Raises NotPurged."""
        if uid in self._purging:
            raise NotPurged(f"the copy with uid {uid:016x} is being deleted already")
        self._purging[uid] = None
        try:
            await self._purge(uid, pending)
        finally:
            self._end_purge(uid)

    def _end_purge(self, uid: int) -> None:
        if (object_ := self._purging.pop(uid)) is not None:
            self._take_up([object_])
            self._update_links()

    async def _purge(self, uid: int, pending: int) -> None:
        replica = self._by_uid.get(uid)
        if replica is not None and not replica.discarded:
            found = replica.shard.index.pending if replica.shard is not None else 0
            if await self._object(uid, replica.name) is not None:
                raise NotPurged(f"shard {replica.name} has this copy: it is no orphan")
            _check_pending(replica.name, found, pending)
            _check_readable(replica.name, replica.damaged(), newer_format=replica.local.storage.newer_format)
            await replica.stop()  # it may have served on without its object: what it has is counted again
            del self._by_uid[uid]
            await self.stored.add(replica.local.storage.directory)
        stored = self.stored.get(uid)
        if stored is None:
            raise NotPurged(f"there is no copy with uid {uid:016x} here")
        object_ = await self._object(uid, stored.shard)
        if object_ is not None and is_wanted(stored, self._context.node, object_):
            raise NotPurged(f"shard {stored.shard} has this copy: it is no orphan")
        _check_pending(stored.shard, stored.pending, pending)
        _check_readable(stored.shard, stored.damage, newer_format=stored.newer_format)
        await self._discard(stored)
        self._context.resources.log("copy-purged", shard=stored.shard, uid=f"{uid:016x}", pending=stored.pending)

    async def _object(self, uid: int, name: str) -> ShardObject | None:
        """The shard's, read just now; None: none of this uid. Raises NotPurged."""
        try:
            found = await self._context.registry.get_shard(name)
        except RegistryError as error:
            raise NotPurged(f"the registry can't be asked whether {name} is wanted: {error}") from error
        return found if found is not None and found.spec.uid == uid else None

    async def _discard(self, stored: StoredCopy) -> None:
        """Raises NotPurged."""
        resources = self._context.resources
        try:
            await self._loop.run_in_executor(
                resources.pool, partial(persist.discard, resources.files, stored.directory)
            )
        except OSError as error:
            raise NotPurged(f"{stored.directory}: {error}") from error
        self.stored.forget(stored.uid)

    async def _give_back(self, stored: StoredCopy) -> None:
        """The node was away when its copy was replaced. What fails is tried again with the registry's next news."""
        try:
            object_ = await self._object(stored.uid, stored.shard)
            if object_ is not None and is_outdated(stored, self._context.node, object_):
                await self._discard(stored)
                self._context.resources.log(
                    "copy-replaced", shard=stored.shard, uid=f"{stored.uid:016x}", epoch=stored.epoch,
                    now=object_.spec.epoch,
                )  # fmt: skip
        except NotPurged as error:
            self._context.resources.log("copy-not-discarded", shard=stored.shard, reason=str(error))
        finally:
            self._end_purge(stored.uid)

    # ------------------------------------------------------------ now and then
    async def _poll_loop(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            for replica in self:
                try:
                    self._poll(replica)
                except Exception as error:  # one shard's trouble must not keep the others from being looked at
                    self._context.resources.log(
                        "look-failed", shard=replica.name, reason=f"{type(error).__name__}: {error}"
                    )

    def _poll(self, replica: Replica) -> None:
        leader, master = replica.leader, replica.master
        if leader is None or leader.ended is not None:
            return
        leader.poll()
        replica.leadership.hand_over()
        if master is not None and leader.ships:
            busy_seconds = self._context.resources.syncer.busy_seconds(master)
            if busy_seconds * 1000 > leader.term.lag_ms:  # attack A3: slaves grant leases on, but nothing commits
                replica.leadership.step_down(f"its disk has not finished a write for {busy_seconds:.0f} s")

    def _silent(self, node: str, silent: bool) -> None:
        self._context.resources.log("peer-silent" if silent else "peer-heard", peer=node)
        if silent or node not in self._linked:
            self._context.peers.drop(node)  # TCP alone would take half a minute to see it, and as long to come back
        for replica in self:
            if replica.leader is not None and node in replica.leader.shipping.members:
                replica.leader.poll()

    def _higher(self, uid: int, epoch: int) -> None:
        replica = self._by_uid.get(uid)
        if replica is not None and replica.leader is not None and epoch > replica.leader.term.epoch:
            replica.leader.superseded(epoch)

    def _ahead(self, uid: int) -> None:
        replica = self._by_uid.get(uid)
        if replica is not None:
            replica.learn_epoch()

    # ------------------------------------------------------------ other nodes
    def link_up(self, node: str) -> None:
        self._linked[node] = None
        for replica in self:
            if replica.leader is not None:
                replica.leader.shipping.link_up(node)

    def link_down(self, node: str) -> None:
        self._linked.pop(node, None)
        for replica in self:
            if replica.leader is not None:
                replica.leader.shipping.link_down(node)

    def from_slave(self, node: str, message: Message) -> None:
        replica = self._by_uid.get(message.uid)
        if replica is not None:
            replica.from_slave(node, message)

    def from_master(self, origin: Origin, message: Message) -> None:
        if isinstance(message, LeaseRelease):  # not in line: a candidate is waiting for it
            number = int(origin.incarnation, 16)
            self._context.replica_leases.release(message.uid, origin.node, number, message.epoch, message.heartbeat)
            return
        replica = self._by_uid.get(message.uid)
        if replica is not None and not replica.discarded:
            replica.from_master(origin, message)
        else:
            refuse_unknown(origin, message)

    def origin_lost(self, origin: Origin) -> None:
        for replica in self:
            replica.origin_lost(origin)

    # ------------------------------------------------------------ views
    def heard_ms(self, uid: int) -> int | None:
        """How long ago the shard's master was heard; None: never."""
        return self._context.replica_leases.heard_ms(uid)

    def leading(self) -> list[Replica]:
        return [replica for replica in self if replica.role is ReplicaRole.MASTER]


def _check_pending(name: str, found: int, pending: int) -> None:
    """Raises NotPurged."""
    if found != pending:
        raise NotPurged(f"{found:,} messages are pending in the copy of {name}, not {pending:,}: look again")


def _check_readable(name: str, damage: str | None, *, newer_format: bool) -> None:
    """What a newer program wrote can't be counted here, and nothing is wrong with it. Raises NotPurged."""
    if newer_format:
        raise NotPurged(f"the copy of {name} is not damaged: {damage}; put the newer release back")
