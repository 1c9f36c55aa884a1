"""Replica: one shard's copy in this process, from opening it to giving it up: who it follows, when it leads.

    opening -> slave <-> candidate -> master          a reign that is over makes a slave of a master again
               slave -> fetching -> slave             its copy can't be continued: a whole one is fetched
               any   -> damaged -> fetching           once the registry no longer counts on the copy
               any   -> leaving                       once it counts on this node no longer: the directory goes

A reign is (master, incarnation, epoch) in the shard's spec. This process takes up those that name its own incarnation
and whose epoch is above the one persisted in the copy's directory; so it never resumes one.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import deque
from contextlib import suppress
from enum import StrEnum
from functools import partial

from delaynode.registry.model import ShardObject, ShardSpec, ShardStatus, copy_id_of
from delaynode.registry.port import RegistryError
from delaynode.replicate.leader import Leader, Reign
from delaynode.replicate.messages import Message, Piece
from delaynode.replicate.peers import Origin
from delaynode.replicate.shipping import Shipping, Snapshot
from delaynode.serve.copyhost import CopyHost
from delaynode.serve.follower import Follower
from delaynode.serve.holding import Holding
from delaynode.serve.host import ShardHost
from delaynode.serve.slave import SlaveHost
from delaynode.serve.yard import Statuses, Yard
from delaynode.store.errors import Damaged, Refused
from delaynode.store.marker import outlasts_a_restart
from delaynode.store.shard import Shard
from delaynode.store.snapshot import Incoming

__all__ = ["Replica", "Role", "Yard"]

RETRY_SECONDS = 1.0
NEVER_MS = 1 << 40


class Role(StrEnum):
    OPENING = "opening"
    ABSENT = "absent"  # there is no copy here
    SLAVE = "slave"
    FETCHING = "fetching"
    CANDIDATE = "candidate"
    MASTER = "master"
    DAMAGED = "damaged"


class Replica:
    """Owned by the event loop. One worker does one thing after the other; a leader's traffic passes it by."""

    def __init__(self, object_: ShardObject, yard: Yard) -> None:
        spec = object_.spec
        self.uid, self.name = spec.uid, spec.name
        self.object = object_
        self.yard = yard
        self.role = Role.OPENING
        self.holding = Holding(spec, yard, self.note)
        self.master: ShardHost | None = None
        self.host: SlaveHost | None = None
        self.leader: Leader | None = None
        self.refused: str | None = None  # why the reign in the spec is not taken up
        self.gone = False  # the copy was given up
        self._made_ms = yard.boot_ms()
        self._over: str | None = None
        self._told_ms: int | None = None  # when the master was heard last while it streamed, as far as was looked
        self._inbox: deque[tuple[Origin, Message]] = deque()
        self._news = asyncio.Event()
        self._resigning: asyncio.Task[None] | None = None
        self._follower = Follower(self, yard.promises, self.note)
        self._stopping = False
        self._withdrawn = False
        self._candidate_ms: int | None = None  # since when it makes itself ready to lead
        self._worker = asyncio.get_running_loop().create_task(self._run())
        yard.promises.raise_floor(self.uid, spec.epoch)

    @property
    def copy(self) -> CopyHost | None:
        """Whatever holds the shard at the moment."""
        return self.master or self.host

    def why_not(self) -> str | None:
        """Why this copy can't be used; None when it can, or there is none."""
        return self.damaged() or self.refused

    def late(self) -> str | None:
        """Why a chosen copy had better be passed over (attack A3): it has no reign yet that it could resign."""
        since, cluster = self._candidate_ms, self.yard.cluster()
        if since is None or cluster is None or self.yard.boot_ms() - since < cluster.lag_seconds * 1000:
            return None
        return f"its disk has not taken the epoch up within {cluster.lag_seconds} s"

    def unreadable(self) -> str | None:
        """Why Fetch is not to be answered from this slave; None: it has all that was committed as of a moment ago."""
        status = self.object.status
        if self.host is None or self.host.failure is not None:
            return "there is no sound copy here"
        if status is None or self.holding.entry not in status.in_sync:
            return "this copy is not in sync"
        return None

    @property
    def streaming(self) -> bool:
        """It follows a master: frames come in as they are written."""
        return self._follower.streaming

    def unheard_ms(self) -> int:
        """Since the master, which streams to this slave, was heard; or since it was, before the stream ended."""
        now, heard = self.yard.boot_ms(), self.yard.promises.heard_ms(self.uid)
        if heard is not None and self.streaming:
            self._told_ms = now - heard
        return now - self._told_ms if self._told_ms is not None else NEVER_MS

    def note(self, event: str, **fields: object) -> None:
        epoch = self.leader.reign.epoch if self.leader is not None else self.object.spec.epoch
        self.yard.shop.log(event, shard=self.name, **{"epoch": epoch, **fields})

    # ------------------------------------------------------------ what comes in
    def look(self, object_: ShardObject) -> None:
        """The registry has news of the shard."""
        spec = object_.spec
        if spec.epoch != self.object.spec.epoch:
            self.refused = self._candidate_ms = None  # of another reign
        self.object = object_
        self.yard.promises.raise_floor(self.uid, spec.epoch)
        self._keep_status()
        leader = self.leader
        if leader is not None and leader.ended is None:
            if spec.epoch > leader.reign.epoch:
                leader.deposed(spec.epoch)
            else:
                leader.set_replicas(spec.replicas, spec.leaving)
                self.hand_over()
        cluster = self.yard.cluster()
        if cluster is not None and cluster.topic(spec.topic) is not None and self.shard is not None:
            self.shard.reconfigure(self.yard.shard_config(spec))
        if self.master is not None and cluster is not None:
            self.master.min_in_sync = cluster.min_in_sync
            self.master.set_release_rate(self.yard.release_rate(object_))
        self._news.set()

    def hand_over(self) -> None:
        """Try to, where the registry asks for it: to be called now and then, for a try may fail."""
        spec, leader = self.object.spec, self.leader
        if leader is not None and spec.epoch == leader.reign.epoch:  # a wish may be withdrawn, too
            leader.switch_to(spec.switchover.to if spec.switchover is not None else None)

    def _keep_status(self) -> None:
        """The next checkpoint has it: a registry that is lost is made again from what the copies keep."""
        status = self.object.status
        if self.shard is not None and status is not None and status.serving_epoch >= self.shard.kept[0]:
            self.shard.kept = status.serving_epoch, status.in_sync

    def from_master(self, origin: Origin, message: Message) -> None:
        leader = self.leader
        if leader is not None and leader.ended is None and message.epoch > leader.reign.epoch:
            self.yard.promises.raise_floor(self.uid, message.epoch)
            leader.deposed(message.epoch)
        self._inbox.append((origin, message))
        self._news.set()

    def origin_lost(self, origin: Origin) -> None:
        self.unheard_ms()
        self._follower.lost(origin)

    def from_slave(self, node: str, message: Message) -> None:
        if self.leader is not None:
            self.leader.shipping.received(node, message)

    # ------------------------------------------------------------ the copy, as the follower sees it
    @property
    def shard(self) -> Shard | None:
        return self.holding.shard

    @property
    def fetching(self) -> Incoming | None:
        return self.holding.fetching

    def entry(self) -> str:
        return self.holding.entry

    def damaged(self) -> str | None:
        failure = self.copy.failure if self.copy is not None else None
        return self.holding.damage or failure

    async def accept_epoch(self, epoch: int) -> None:
        await self.holding.accept_epoch(epoch)

    async def begin_fetch(self, manifest: bytes) -> Incoming:
        """Whatever is here is of no use: the master can't continue it."""
        if self.shard is not None or self.holding.damage is not None:
            await self._discard("a whole copy is fetched")
        self.role = Role.FETCHING
        return await self.holding.begin_fetch(manifest)

    async def write_piece(self, incoming: Incoming, piece: Piece) -> None:
        await self.holding.write_piece(incoming, piece)

    async def end_fetch(self, epoch: int) -> None:
        await self.holding.end_fetch(self.object.spec, epoch)
        await self._open()
        if self.holding.damage is not None:
            raise Damaged(self.holding.damage)

    # ------------------------------------------------------------ the worker
    async def _run(self) -> None:
        try:
            await self._open()
            while not self._stopping and not self.gone:
                await self._step()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # no one else would learn of it
            self.holding.damage = f"{type(error).__name__}: {error}"
            self.role = Role.DAMAGED
            self.note("internal-error", reason=self.holding.damage, where=traceback.format_exc(limit=-5))
            self._follower.refuse_damaged()
            if self.leader is not None:  # else the shard would stand still: its lease goes on, and so do its promises
                await self.leader.resign(self.holding.damage)

    async def _step(self) -> None:
        self._news.clear()
        if self._over is not None:
            await self._depose(self._over)
        elif self._chosen():
            await self._lead()
        elif self._inbox and self.leader is None:
            await self._follower.handle(*self._inbox.popleft())
            await asyncio.sleep(0)  # many may wait, and others too
        elif self._unwanted() or self.role is Role.DAMAGED:
            try:
                if self._unwanted():
                    await self._leave()
                elif await self._given_up():
                    await self._discard("damaged, and no longer counted on")
            except OSError as error:
                self.note("copy-not-discarded", reason=str(error))
            await self._wait(RETRY_SECONDS)
        else:
            await self._wait(None)

    async def _wait(self, seconds: float | None) -> None:
        """For news."""
        if not self.gone:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._news.wait()

    def _unwanted(self) -> bool:
        """The registry seems to want no replica here."""
        return self.yard.node not in self.object.spec.replicas and self.leader is None

    async def _open(self) -> None:
        """Open the directory, if there is one."""
        if await self.holding.open(self.object.spec):
            self._follow()
        elif self.holding.damage is not None:
            self._broken(self.holding.damage)
        else:
            self.role = Role.ABSENT

    def _follow(self) -> None:
        """The copy is there: follow whoever comes."""
        assert self.shard is not None
        self._keep_status()
        self.role, self._told_ms = Role.SLAVE, None  # a copy that is opened again knows less than it did
        host = self.host = SlaveHost(self.shard, self.holding.directory, self.yard.shop)
        host.stored = self._follower.acknowledge
        host.readable, host.unheard_ms = self.unreadable, self.unheard_ms
        host.failed = partial(self._slave_failed, host)
        host.start()

    def _broken(self, why: str) -> None:
        self.holding.damage, self.role = why, Role.DAMAGED
        self.note("copy-damaged", reason=why)
        self._news.set()

    def _slave_failed(self, host: SlaveHost) -> None:
        if self.host is host:
            self._broken(host.failure or "")
            self._follower.refuse_damaged()

    # ------------------------------------------------------------ leading
    def _chosen(self) -> bool:
        spec = self.object.spec
        if (spec.master, spec.incarnation) != (self.yard.node, self.yard.incarnation) or self.leader is not None:
            return False
        if self.shard is None:
            return self.role is Role.ABSENT and self.object.status is None and self.refused is None
        return self.role is Role.SLAVE and spec.epoch > self.shard.identity.epoch and self.refused is None

    async def _lead(self) -> None:
        """Take up the reign in the spec."""
        spec, yard = self.object.spec, self.yard
        self._follower.stop()
        try:
            found = await yard.registry.get_shard(self.name)
        except RegistryError as error:
            self.note("registry-unreachable", reason=str(error))
            await asyncio.sleep(0.2)
            return
        if found is None or found.spec.uid != spec.uid:
            await asyncio.sleep(RETRY_SECONDS)  # it is gone, as the list will say
            return
        self.object = found
        spec = found.spec
        if not self._chosen():
            return
        status = found.status
        if status is not None and not _names(status, self.holding.entry) and not self._unclean():
            self.refused = f"copy {self.holding.entry} is not in sync: {', '.join(status.in_sync)} are"
            self.note("reign-refused", reason=self.refused)
            return
        self.role = Role.CANDIDATE
        if self._candidate_ms is None:
            self._candidate_ms = yard.boot_ms()
        try:
            shard = await self._candidate(spec)
        except (Damaged, OSError) as error:
            await self._not_taken_up(spec.epoch, error)
            return
        self._candidate_ms = None
        leader = self._make_leader(shard, spec)
        former = status.in_sync if status is not None else ()
        cluster, frames = yard.cluster(), 0
        try:
            if not set(former) - {self.holding.entry}:  # nobody else can have anything else
                frames = await self.holding.apply_all()
            vacated = status is not None and _vacated(status, spec)
            if not await leader.begin(
                former, spec.replicas, spec.leaving, vacated=vacated, missing=int(vacated and spec.vacant)
            ):
                await self._depose(leader.ended or "another reign has begun")
                return
            frames += await self.holding.apply_all()
            if leader.ended is not None:
                return  # nobody would tell the master that is made now: it would wait for its first frame for ever
            master = ShardHost(
                shard, self.holding.directory, yard.shop, leader, cluster.min_in_sync if cluster is not None else 1
            )
            leader.host = master
            master.failed = partial(self._master_failed, master)
            master.set_release_rate(yard.release_rate(self.object))
            self.master = master
            await master.start(spec.epoch, yard.node)
        except (Damaged, OSError, Refused) as error:
            if leader.ended is None:  # no other reign has begun meanwhile: this copy is to blame
                self.holding.damage = f"epoch {spec.epoch} not begun: {error}"
                await leader.resign(self.holding.damage)
            return
        if leader.ended is not None:
            return  # the next step ends what is left of it
        self.role, self.refused = Role.MASTER, None
        metrics = yard.shop.metrics
        metrics.recovery_seconds = max(metrics.recovery_seconds, (yard.boot_ms() - self._made_ms) / 1000)
        self.note("reign-started", in_sync=sorted(leader.in_sync.written), frames=frames)
        self.look(self.object)

    async def _not_taken_up(self, epoch: int, error: Exception) -> None:
        """A disk without room, say, has harmed nothing: there may be room in a while, and maybe nobody else to lead."""
        why = f"epoch {epoch} not taken up: {error}"
        if self.shard is not None and (outlasts_a_restart(error) or self.shard.identity.epoch >= epoch):
            self._candidate_ms = None
            self._broken(why)
            return
        self.note("epoch-not-taken-up", reason=str(error))
        if self.shard is not None:
            self._follow()
        else:
            self.role = Role.ABSENT  # what is half made is no copy
        await asyncio.sleep(RETRY_SECONDS)

    def _unclean(self) -> bool:
        cluster = self.yard.cluster()
        return cluster is not None and cluster.allow_unclean_failover

    async def _candidate(self, spec: ShardSpec) -> Shard:
        """The copy, at rest and on disk as far as it goes, with the epoch persisted. Raises OSError, Damaged."""
        host, self.host = self.host, None
        if host is not None:
            await host.end("it is to be master")
        shard = self.shard or await self.holding.create(spec)
        await self.holding.accept_epoch(spec.epoch)
        await self.holding.settle()
        return shard

    def _make_leader(self, shard: Shard, spec: ShardSpec) -> Leader:
        yard, cluster = self.yard, self.yard.cluster()
        lag_ms = (cluster.lag_seconds if cluster is not None else 10) * 1000
        reign = Reign(self.uid, spec.epoch, yard.node, yard.incarnation, self.holding.entry, lag_ms, yard.shop.fsync)
        shipping = Shipping(
            self.uid, spec.epoch, shard.log, yard.peers, yard.shop.pool, yard.boot_ms, self._snapshot, self.note
        )
        statuses = Statuses(yard.registry, self.name)
        leader = Leader(reign, shard.log, shipping, yard.peers, yard.promises, statuses, yard.boot_ms, self.note)
        self.leader = leader
        leader.over = self._reign_over
        return leader

    async def _snapshot(self) -> Snapshot:
        return await self.holding.hold_snapshot(self.master)

    def _reign_over(self, why: str) -> None:
        self._over = why
        if self.master is not None:
            self.master.over(why)  # the worker itself may be waiting for its first frame's commit
        self._news.set()

    def _master_failed(self, master: ShardHost) -> None:
        """The copy is damaged: another is to be chosen."""
        if self.leader is not None and self.master is master and self.leader.ended is None:
            self.holding.damage = master.failure
            self._resigning = asyncio.get_running_loop().create_task(self.leader.resign(f"damaged: {master.failure}"))

    def resign(self, why: str) -> None:
        """Step down for good in this epoch, as soon as the registry takes it."""
        if self.leader is not None and self.master is not None and not self.leader.resigning:
            self.master.pause(why)
            self._resigning = asyncio.get_running_loop().create_task(self.leader.resign(why))

    async def _depose(self, why: str) -> None:
        """The reign is over: follow."""
        leader, master, shard = self.leader, self.master, self.shard
        self.note("reign-over", reason=why)
        if leader is not None:
            leader.stop()
        if master is not None:
            await master.depose(why)
        self.leader = self.master = self._over = None
        if self.holding.damage is not None:
            self.holding.shard = None
            self._broken(self.holding.damage)
            return
        if master is None and shard is not None and shard.applied <= shard.committed:
            self._follow()  # it has applied nothing that may have to be undone
        else:
            self.role = Role.OPENING
            await self._open()

    # ------------------------------------------------------------ giving up
    async def _given_up(self) -> bool:
        """Whether a serving master does without this copy, so that it may go. A sole copy stays what it is.

        What the registry says is not enough: the master may have named the copy in a write that is still under way.
        """
        spec, status, follower = self.object.spec, self.object.status, self._follower
        if status is None or spec.master == self.yard.node or follower.origin is None:
            return False
        if not follower.spared or follower.epoch != spec.epoch:
            return False
        if status.serving_epoch != spec.epoch or self.holding.entry in status.in_sync or not self.holding.entry:
            return False
        found = await self._read()
        return found is not None and found.status is not None and self.holding.entry not in found.status.in_sync

    async def _read(self) -> ShardObject | None:
        try:
            found = await self.yard.registry.get_shard(self.name)
        except RegistryError:
            return None
        return found if found is not None and found.spec.uid == self.uid else None

    async def _leave(self) -> None:
        """This node is to have no replica any more: the directory goes, once nothing counts on it."""
        found = await self._read()
        if found is None or self.yard.node in found.spec.replicas:
            return
        if self.holding.entry and found.status is not None and self.holding.entry in found.status.in_sync:
            return
        self._follower.stop()
        await self._discard("no replica is wanted here")
        self.gone = True

    async def _discard(self, why: str) -> None:
        host, self.host = self.host, None
        if host is not None:
            await host.end(why)
        await self.holding.discard(why)
        self.role = Role.ABSENT

    def withdraw(self) -> bool:
        """The node is stopping: ask the master to go on without this slave copy. True when nobody waits for it."""
        status = self.object.status
        if self.leader is not None or self.host is None or status is None:
            return True
        if self.entry() not in status.in_sync or len(status.in_sync) == 1:
            return True
        if not self._withdrawn:
            self._withdrawn = True
            self._follower.leave("its node is stopping")
        return False

    async def stop(self) -> None:
        """The node is stopping: a checkpoint makes the next start quick."""
        self._stopping = True
        self._news.set()
        self._worker.cancel()
        await asyncio.gather(self._worker, return_exceptions=True)
        if self.master is not None:
            await self.master.stop()
        if self.leader is not None:
            self.leader.stop()
        if self.host is not None:
            await self.host.stop()


def _vacated(status: ShardStatus, spec: ShardSpec) -> bool:
    """Whether the master of the epoch before has served and serves no more: by its own word, or its process has ended.

    It stops before it writes so. To go on it would have to write again, which a later epoch in the spec makes
    impossible; and when it began to serve, those before it had stopped.
    """
    epoch = spec.epoch - 1
    handed_over = status.handover is not None and status.handover.epoch == epoch
    return status.serving_epoch == epoch and (handed_over or status.resigned is not None or spec.vacant)


def _names(status: ShardStatus, entry: str) -> bool:
    """Whether the in-sync set has the copy; with Async, also as it was before its machine booted.

    Whether such a copy may be chosen is the operator's to say (DESIGN 5.5), and it has.
    """
    return copy_id_of(entry) in {copy_id_of(one) for one in status.in_sync}
