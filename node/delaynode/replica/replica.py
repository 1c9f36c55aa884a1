"""Replica: one shard's copy in this process, from opening it to giving it up. Its files are Holding's business, its
masters' frames Follower's, its own reigns Reigning's; here is what they become of each other, one thing after another.

    opening -> slave <-> candidate -> master          a reign that is over makes a slave of a master again
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

from delaynode.replica.context import Yard
from delaynode.replica.following import ReplicaFollower
from delaynode.replica.host import CopyHost
from delaynode.replica.leadership import Reigning
from delaynode.replica.master import ShardHost
from delaynode.replica.role import ReplicaRole
from delaynode.replica.slave import SlaveHost
from delaynode.replica.storage import Holding
from delaynode.replication.leader import Leader
from delaynode.replication.protocol import Message, SnapshotChunk
from delaynode.replication.transport.peers import Origin
from delaynode.store.errors import Damaged
from delaynode.store.maintenance.snapshot import IncomingCopy
from delaynode.store.shard import Shard

__all__ = ["Replica", "ReplicaRole", "Yard"]

RETRY_SECONDS = 1.0
REOPEN_MS = 3_000  # a master that failed for want of room, or of file handles, is not opened again before
NEVER_MS = 1 << 40


class Replica:
    """Owned by the event loop. One worker does one thing after the other; a leader's traffic passes it by."""

    def __init__(self, object_: ShardObject, yard: Yard) -> None:
        spec = object_.spec
        self.uid, self.name = spec.uid, spec.name
        self.object = object_
        self.yard = yard
        self.role = ReplicaRole.OPENING
        self.holding = Holding(spec, yard, self.note)
        self.host: SlaveHost | None = None
        self.reigning = Reigning(self, yard, self.note, self._wake)
        self.gone = False  # the copy was given up
        self._told_ms: int | None = None  # when the master was heard last while it streamed, as far as was looked
        self._inbox: deque[tuple[Origin, Message]] = deque()
        self._news = asyncio.Event()
        self._follower = ReplicaFollower(self, yard.promises, self.note)
        self._stopping = False
        self._withdrawn = False
        self._learning: asyncio.Task[None] | None = None
        self._reopen_ms: int | None = None  # from when on what failed here may be tried again; None: never
        self._worker = asyncio.get_running_loop().create_task(self._run())
        yard.promises.raise_floor(self.uid, spec.epoch)

    @property
    def copy(self) -> CopyHost | None:
        """Whatever holds the shard at the moment."""
        return self.master or self.host

    def why_not(self) -> str | None:
        """Why this copy can't be used; None when it can, or there is none."""
        return self.damaged() or self.reigning.refused

    @property
    def leader(self) -> Leader | None:
        """From the start of a reign of this copy to its end."""
        return self.reigning.leader

    @property
    def master(self) -> ShardHost | None:
        """While it serves."""
        return self.reigning.master

    def late(self) -> str | None:
        """Why a chosen copy had better be passed over."""
        return self.reigning.late()

    def resign(self, why: str) -> None:
        """Step down for good in this epoch, as soon as the registry takes it."""
        self.reigning.resign(why)

    def hand_over(self) -> None:
        """Try to, where the registry asks for it: to be called now and then, for a try may fail."""
        self.reigning.hand_over()

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
            self.reigning.forget()
        self.object = object_
        self.yard.promises.raise_floor(self.uid, spec.epoch)
        self._keep_status()
        self.reigning.look()
        cluster = self.yard.cluster()
        if cluster is not None and cluster.topic(spec.topic) is not None and self.shard is not None:
            self.shard.reconfigure(self.yard.shard_config(spec))
        self._wake()

    def learn_epoch(self) -> None:
        """Somebody speaks in a higher epoch than is known here: see what the registry says, without its watch."""
        if self._learning is None or self._learning.done():
            self._learning = asyncio.get_running_loop().create_task(self._learn_epoch())

    async def _learn_epoch(self) -> None:
        found = await self._read()
        if found is not None:
            self.yard.promises.raise_floor(self.uid, found.spec.epoch)

    def _wake(self) -> None:
        self._news.set()

    def _keep_status(self) -> None:
        """The next checkpoint has it: a registry that is lost is made again from what the copies keep."""
        status = self.object.status
        if self.shard is not None and status is not None and status.serving_epoch >= self.shard.known_status[0]:
            self.shard.known_status = status.serving_epoch, status.in_sync

    def from_master(self, origin: Origin, message: Message) -> None:
        leader = self.leader
        if leader is not None and leader.ended is None and message.epoch > leader.reign.epoch:
            self.yard.promises.raise_floor(self.uid, message.epoch)
            leader.deposed(message.epoch)
        if self._worker.done():
            return  # after an internal error nobody takes them out again
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
    def fetching(self) -> IncomingCopy | None:
        return self.holding.fetching

    def entry(self) -> str:
        return self.holding.entry

    def damaged(self) -> str | None:
        failure = self.copy.failure if self.copy is not None else None
        return self.holding.damage or failure

    async def accept_epoch(self, epoch: int) -> None:
        await self.holding.accept_epoch(epoch)

    async def begin_fetch(self, manifest: bytes) -> IncomingCopy:
        """Whatever is here is of no use, as the master can't continue it: but for a copy that a newer program wrote."""
        if self.holding.newer:
            raise Damaged(f"not thrown away for another copy: {self.holding.damage}")
        incoming = await self.holding.begin_fetch(manifest)  # first: a newer master's manifest may be refused
        if self.shard is not None or self.holding.damage is not None:
            await self._discard("a whole copy is fetched")
        self.role, self.holding.fetching = ReplicaRole.FETCHING, incoming
        return incoming

    async def write_piece(self, incoming: IncomingCopy, piece: SnapshotChunk) -> None:
        await self.holding.write_piece(incoming, piece)

    async def end_fetch(self, epoch: int) -> None:
        await self.holding.end_fetch(self.object.spec, epoch)
        await self.open()
        if self.holding.damage is not None:
            raise Damaged(self.holding.damage)

    # ------------------------------------------------------------ the worker
    async def _run(self) -> None:
        try:
            await self.open()
            while not self._stopping and not self.gone:
                await self._step()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # no one else would learn of it
            self.holding.damage = f"{type(error).__name__}: {error}"
            self.role = ReplicaRole.DAMAGED
            self.note("internal-error", reason=self.holding.damage, where=traceback.format_exc(limit=-5))
            self._follower.refuse_damaged()
            if self.leader is not None:  # else the shard would stand still: its lease goes on, and so do its promises
                await self.leader.resign(self.holding.damage)

    async def _step(self) -> None:
        self._news.clear()
        if self.reigning.over is not None:
            await self.reigning.depose(self.reigning.over)
        elif self.reigning.chosen():
            self._follower.stop()
            await self.reigning.take_up()
        elif self._inbox and self.leader is None:
            await self._follower.handle(*self._inbox.popleft())
            await asyncio.sleep(0)  # many may wait, and others too
        elif self._unwanted() or self.role is ReplicaRole.DAMAGED:
            try:
                if self._unwanted():
                    await self._leave()
                elif not self.holding.newer and await self._given_up():
                    await self._discard("damaged, and no longer counted on")
                elif self._passing():
                    await self.end_following("it is opened again")
                    self.note("copy-opened-again", reason=self.holding.damage)
                    await self.open()
            except OSError as error:
                self.note("copy-not-discarded", reason=str(error))
            await self._wait(RETRY_SECONDS)
        else:
            await self._wait(None)

    async def _wait(self, seconds: float | None) -> None:
        """For news."""
        if self.gone:
            return
        if seconds is None:
            await self._news.wait()
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._news.wait()

    def _unwanted(self) -> bool:
        """The registry seems to want no replica here."""
        return self.yard.node not in self.object.spec.replicas and self.leader is None

    async def open(self) -> None:
        """Open the directory, if there is one."""
        if await self.holding.open(self.object.spec):
            self.follow()
        elif self.holding.damage is not None:
            self.broken(self.holding.damage, lasting=self.holding.lasting)
        else:
            self.role = ReplicaRole.ABSENT

    def follow(self) -> None:
        """The copy is there: follow whoever comes."""
        assert self.shard is not None
        self._keep_status()
        self.role, self._told_ms = ReplicaRole.SLAVE, None  # a copy that is opened again knows less than it did
        host = self.host = SlaveHost(self.shard, self.holding.directory, self.yard.shop)
        host.stored = self._follower.acknowledge
        host.readable, host.unheard_ms = self.unreadable, self.unheard_ms
        host.failed = partial(self._slave_failed, host)
        host.start()

    def _passing(self) -> bool:
        """Whether what failed here harmed nothing, as when there is no room, and may be over: then this is no worse
        than a new process that opens the copy, and like one it may lead in a new epoch only.
        """
        due = self._reopen_ms
        return due is not None and self.yard.boot_ms() >= due and not self.yard.shop.disk_full()

    def broken(self, why: str, *, lasting: bool = True) -> None:
        """The copy is of no use. lasting: to no later process either."""
        self.holding.damage, self.role = why, ReplicaRole.DAMAGED
        self._reopen_ms = None if lasting else self.yard.boot_ms() + REOPEN_MS
        self.note("copy-newer" if self.holding.newer else "copy-damaged", reason=why)
        self._news.set()

    def _slave_failed(self, host: SlaveHost) -> None:
        if self.host is host:
            self.broken(host.failure or "", lasting=host.lasting)
            self._follower.refuse_damaged()

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
        if status.serving_epoch != spec.epoch or self.holding.entry in status.in_sync:
            return False  # where the copy's id can't be read, the master knows that all it names are others
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

    async def end_following(self, why: str) -> None:
        """Nothing of a slave runs when this returns."""
        host, self.host = self.host, None
        if host is not None:
            await host.end(why)

    async def _discard(self, why: str) -> None:
        await self.end_following(why)
        await self.holding.discard(why)
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
        return self.entry() not in status.in_sync or len(status.in_sync) == 1

    async def stop(self) -> None:
        """The node is stopping: a checkpoint makes the next start quick."""
        self._stopping = True
        self._news.set()
        tasks = [self._worker, *([self._learning] if self._learning is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.reigning.stop()
        if self.host is not None:
            await self.host.stop()
