"""Replica: one shard's copy in this process, from opening it to giving it up. Its files are Holding's business, its
masters' frames Follower's, its own terms Reigning's; here is what they become of each other, one thing after another.

    opening -> slave <-> candidate -> master          a term that is over makes a slave of a master again
               slave -> fetching -> slave             its copy can't be continued: a whole one is fetched
               any   -> damaged -> fetching           once the registry no longer counts on the copy
               any   -> leaving                       once it counts on this node no longer: the directory goes
"""

from __future__ import annotations

import asyncio
import traceback
from collections import deque
from contextlib import suppress
from functools import partial

from delayregistry.model import ShardObject
from delayregistry.port import RegistryError

from delaynode.replica.context import ReplicaContext
from delaynode.replica.follower import ReplicaFollower
from delaynode.replica.host import CopyHost
from delaynode.replica.leadership import Leadership
from delaynode.replica.master import ShardHost
from delaynode.replica.role import ReplicaRole
from delaynode.replica.slave import SlaveHost
from delaynode.replica.storage import ReplicaStorage
from delaynode.replication.protocol import Message, SnapshotChunk
from delaynode.replication.term.leader import Leader
from delaynode.replication.transport.peers import Origin
from delaynode.store.errors import Damaged
from delaynode.store.maintenance.snapshot import IncomingCopy
from delaynode.store.shard import Shard

__all__ = ["Replica", "ReplicaContext", "ReplicaRole"]

RETRY_SECONDS = 1.0
REOPEN_MS = 3_000  # a master that failed for want of room, or of file handles, is not opened again before
NEVER_MS = 1 << 40


class Replica:
    """Owned by the event loop. One worker does one thing after the other; a leader's traffic passes it by."""

    def __init__(self, object_: ShardObject, context: ReplicaContext) -> None:
        spec = object_.spec
        self.uid, self.name = spec.uid, spec.name
        self.object = object_
        self.context = context
        self.role = ReplicaRole.OPENING
        self.storage = ReplicaStorage(spec, context, self.log_event)
        self.host: SlaveHost | None = None
        self.leadership = Leadership(self, context, self.log_event, self._wake)
        self.discarded = False  # the copy was given up
        self._last_heard_ms: int | None = None  # when the master was heard last while it streamed, as far as was looked
        self._inbox: deque[tuple[Origin, Message]] = deque()
        self._wakeup = asyncio.Event()
        self._follower = ReplicaFollower(self, context.replica_leases, self.log_event)
        self._stopping = False
        self._withdrawn = False
        self._learning: asyncio.Task[None] | None = None
        self._reopen_ms: int | None = None  # from when on what failed here may be tried again; None: never
        self._worker = asyncio.get_running_loop().create_task(self._run())
        context.replica_leases.raise_min_epoch(self.uid, spec.epoch)

    @property
    def copy(self) -> CopyHost | None:
        """Whatever holds the shard at the moment."""
        return self.master or self.host

    def unusable_reason(self) -> str | None:
        """Why this copy can't be used; None when it can, or there is none."""
        return self.damaged() or self.leadership.refused_reason

    @property
    def leader(self) -> Leader | None:
        """From the start of a term of this copy to its end."""
        return self.leadership.leader

    @property
    def master(self) -> ShardHost | None:
        """While it serves."""
        return self.leadership.master

    def overdue_reason(self) -> str | None:
        """Why a chosen copy had better be passed over."""
        return self.leadership.overdue_reason()

    def step_down(self, why: str) -> None:
        """Step down for good in this epoch, as soon as the registry takes it."""
        self.leadership.step_down(why)

    def hand_over(self) -> None:
        """Try to, where the registry asks for it: to be called now and then, for a try may fail."""
        self.leadership.hand_over()

    def unreadable_reason(self) -> str | None:
        """Why Fetch is not to be answered from this slave; None: it has all that was committed as of a moment ago."""
        status = self.object.status
        if self.host is None or self.host.failure is not None:
            return "there is no sound copy here"
        if status is None or self.storage.replica_id not in status.in_sync:
            return "this copy is not in sync"
        return None

    @property
    def streaming(self) -> bool:
        """It follows a master: frames come in as they are written."""
        return self._follower.streaming

    def unheard_ms(self) -> int:
        """Since the master, which streams to this slave, was heard; or since it was, before the stream ended."""
        now, heard = self.context.boot_ms(), self.context.replica_leases.heard_ms(self.uid)
        if heard is not None and self.streaming:
            self._last_heard_ms = now - heard
        return now - self._last_heard_ms if self._last_heard_ms is not None else NEVER_MS

    def log_event(self, event: str, **fields: object) -> None:
        epoch = self.leader.term.epoch if self.leader is not None else self.object.spec.epoch
        self.context.resources.log(event, shard=self.name, **{"epoch": epoch, **fields})

    # ------------------------------------------------------------ what comes in
    def refresh(self, object_: ShardObject) -> None:
        """The registry has news of the shard."""
        spec = object_.spec
        if spec.epoch != self.object.spec.epoch:
            self.leadership.reset()
        self.object = object_
        self.context.replica_leases.raise_min_epoch(self.uid, spec.epoch)
        self._keep_status()
        self.leadership.refresh()
        cluster = self.context.cluster()
        if cluster is not None and cluster.topic(spec.topic) is not None and self.shard is not None:
            self.shard.reconfigure(self.context.shard_config(spec))
        self._wake()

    def learn_epoch(self) -> None:
        """Somebody speaks in a higher epoch than is known here: see what the registry says, without its watch."""
        if self._learning is None or self._learning.done():
            self._learning = asyncio.get_running_loop().create_task(self._learn_epoch())

    async def _learn_epoch(self) -> None:
        found = await self._read()
        if found is not None:
            self.context.replica_leases.raise_min_epoch(self.uid, found.spec.epoch)

    def _wake(self) -> None:
        self._wakeup.set()

    def _keep_status(self) -> None:
        """The next checkpoint has it: a registry that is lost is made again from what the copies keep."""
        status = self.object.status
        if self.shard is not None and status is not None and status.serving_epoch >= self.shard.known_status[0]:
            self.shard.known_status = status.serving_epoch, status.in_sync

    def from_master(self, origin: Origin, message: Message) -> None:
        leader = self.leader
        if leader is not None and leader.ended is None and message.epoch > leader.term.epoch:
            self.context.replica_leases.raise_min_epoch(self.uid, message.epoch)
            leader.superseded(message.epoch)
        if self._worker.done():
            return  # after an internal error nobody takes them out again
        self._inbox.append((origin, message))
        self._wakeup.set()

    def origin_lost(self, origin: Origin) -> None:
        self.unheard_ms()
        self._follower.on_origin_lost(origin)

    def from_slave(self, node: str, message: Message) -> None:
        if self.leader is not None:
            self.leader.shipping.received(node, message)

    # ------------------------------------------------------------ the copy, as the follower sees it
    @property
    def shard(self) -> Shard | None:
        return self.storage.shard

    @property
    def fetching(self) -> IncomingCopy | None:
        return self.storage.fetching

    def replica_id(self) -> str:
        return self.storage.replica_id

    def damaged(self) -> str | None:
        failure = self.copy.failure if self.copy is not None else None
        return self.storage.damage or failure

    async def accept_epoch(self, epoch: int) -> None:
        await self.storage.accept_epoch(epoch)

    async def begin_fetch(self, manifest: bytes) -> IncomingCopy:
        """Whatever is here is of no use, as the master can't continue it: but for a copy that a newer program wrote."""
        if self.storage.newer_format:
            raise Damaged(f"not thrown away for another copy: {self.storage.damage}")
        incoming = await self.storage.begin_fetch(manifest)  # first: a newer master's manifest may be refused
        if self.shard is not None or self.storage.damage is not None:
            await self._discard("a whole copy is fetched")
        self.role, self.storage.fetching = ReplicaRole.FETCHING, incoming
        return incoming

    async def write_chunk(self, incoming: IncomingCopy, chunk: SnapshotChunk) -> None:
        await self.storage.write_chunk(incoming, chunk)

    async def end_fetch(self, epoch: int) -> None:
        await self.storage.end_fetch(self.object.spec, epoch)
        await self.open()
        if self.storage.damage is not None:
            raise Damaged(self.storage.damage)

    # ------------------------------------------------------------ the worker
    async def _run(self) -> None:
        try:
            await self.open()
            while not self._stopping and not self.discarded:
                await self._step()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # no one else would learn of it
            self.storage.damage = f"{type(error).__name__}: {error}"
            self.role = ReplicaRole.DAMAGED
            self.log_event("internal-error", reason=self.storage.damage, where=traceback.format_exc(limit=-5))
            self._follower.refuse_damaged()
            # else the shard would stand still: its lease goes on, and so do the leases that it grants
            if self.leader is not None:
                await self.leader.step_down(self.storage.damage)

    async def _step(self) -> None:
        self._wakeup.clear()
        if self.leadership.ended is not None:
            await self.leadership.end_term(self.leadership.ended)
        elif self.leadership.is_chosen():
            self._follower.stop()
            await self.leadership.begin_term()
        elif self._inbox and self.leader is None:
            await self._follower.handle(*self._inbox.popleft())
            await asyncio.sleep(0)  # many may wait, and others too
        elif self._is_removed() or self.role is ReplicaRole.DAMAGED:
            try:
                if self._is_removed():
                    await self._leave()
                elif not self.storage.newer_format and await self._is_discardable():
                    await self._discard("damaged, and no longer counted on")
                elif self._may_reopen():
                    await self.end_following("it is opened again")
                    self.log_event("copy-opened-again", reason=self.storage.damage)
                    await self.open()
            except OSError as error:
                self.log_event("copy-not-discarded", reason=str(error))
            await self._wait(RETRY_SECONDS)
        else:
            await self._wait(None)

    async def _wait(self, seconds: float | None) -> None:
        """For news."""
        if self.discarded:
            return
        if seconds is None:
            await self._wakeup.wait()
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wakeup.wait()

    def _is_removed(self) -> bool:
        """The registry seems to want no replica here."""
        return self.context.node not in self.object.spec.replicas and self.leader is None

    async def open(self) -> None:
        """Open the directory, if there is one."""
        if await self.storage.open(self.object.spec):
            self.follow()
        elif self.storage.damage is not None:
            self.mark_damaged(self.storage.damage, lasting=self.storage.lasting)
        else:
            self.role = ReplicaRole.ABSENT

    def follow(self) -> None:
        """The copy is there: follow whoever comes."""
        assert self.shard is not None
        self._keep_status()
        self.role, self._last_heard_ms = ReplicaRole.SLAVE, None  # a copy that is opened again knows less than it did
        host = self.host = SlaveHost(self.shard, self.storage.directory, self.context.resources)
        host.on_stored = self._follower.acknowledge
        host.unreadable_reason, host.unheard_ms = self.unreadable_reason, self.unheard_ms
        host.on_failed = partial(self._slave_failed, host)
        host.start()

    def _may_reopen(self) -> bool:
        """Whether what failed here harmed nothing, as when there is no room, and may be over: then this is no worse
        than a new process that opens the copy, and like one it may lead in a new epoch only.
        """
        due = self._reopen_ms
        return due is not None and self.context.boot_ms() >= due and not self.context.resources.disk_full()

    def mark_damaged(self, why: str, *, lasting: bool = True) -> None:
        """The copy is of no use. lasting: to no later process either."""
        self.storage.damage, self.role = why, ReplicaRole.DAMAGED
        self._reopen_ms = None if lasting else self.context.boot_ms() + REOPEN_MS
        self.log_event("copy-newer" if self.storage.newer_format else "copy-damaged", reason=why)
        self._wakeup.set()

    def _slave_failed(self, host: SlaveHost) -> None:
        if self.host is host:
            self.mark_damaged(host.failure or "", lasting=host.lasting)
            self._follower.refuse_damaged()

    # ------------------------------------------------------------ giving up
    async def _is_discardable(self) -> bool:
        """Whether a serving master does without this copy, so that it may go. A sole copy stays what it is.

        What the registry says is not enough: the master may have named the copy in a write that is still under way.
        """
        spec, status, follower = self.object.spec, self.object.status, self._follower
        if status is None or spec.master == self.context.node or follower.origin is None:
            return False
        if not follower.discardable or follower.epoch != spec.epoch:
            return False
        if status.serving_epoch != spec.epoch or self.storage.replica_id in status.in_sync:
            return False  # where the copy's id can't be read, the master knows that all it names are others
        found = await self._read()
        return found is not None and found.status is not None and self.storage.replica_id not in found.status.in_sync

    async def _read(self) -> ShardObject | None:
        try:
            found = await self.context.registry.get_shard(self.name)
        except RegistryError:
            return None
        return found if found is not None and found.spec.uid == self.uid else None

    async def _leave(self) -> None:
        """This node is to have no replica any more: the directory goes, once nothing counts on it."""
        found = await self._read()
        if found is None or self.context.node in found.spec.replicas:
            return
        if self.storage.replica_id and found.status is not None and self.storage.replica_id in found.status.in_sync:
            return
        self._follower.stop()
        await self._discard("no replica is wanted here")
        self.discarded = True

    async def end_following(self, why: str) -> None:
        """Nothing of a slave runs when this returns."""
        host, self.host = self.host, None
        if host is not None:
            await host.end(why)

    async def _discard(self, why: str) -> None:
        await self.end_following(why)
        await self.storage.discard(why)
        self.role = ReplicaRole.ABSENT

    def withdraw(self) -> bool:
        """The node is stopping: follow nobody any more, so that the shard goes on without this copy, also once another
        leads what is led here. True when no master waits for it.
        """
        if not self._withdrawn:
            self._withdrawn = True
            self._follower.leave("its node is stopping")
        status = self.object.status
        if self.leader is not None or self.host is None or status is None:
            return True
        return self.replica_id() not in status.in_sync or len(status.in_sync) == 1

    async def stop(self) -> None:
        """The node is stopping: a checkpoint makes the next start quick."""
        self._stopping = True
        self._wakeup.set()
        tasks = [self._worker, *([self._learning] if self._learning is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.leadership.stop()
        if self.host is not None:
            await self.host.stop()
