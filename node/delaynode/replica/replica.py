"""Replica: one shard's copy in this process, from opening it to giving it up. ReplicaStorage has its files, LocalCopy
its role, ReplicaFollower its masters' frames, Leadership its own terms; here they get their turns, one at a time.

    OPENING --> SLAVE --> CANDIDATE --> MASTER --> OPENING
                  |
                  +-----> ABSENT --> FETCHING --> SLAVE

    OPENING   -> SLAVE, ABSENT       by what the directory has
    ABSENT    -> FETCHING            a master sends a whole copy
              -> CANDIDATE           the shard's first master makes the first copy
    SLAVE     -> CANDIDATE           chosen: the spec names this process in a higher epoch
              -> ABSENT, FETCHING    the master can't continue the copy, and sends a whole one
    FETCHING  -> SLAVE               everything is here
    CANDIDATE -> MASTER              it serves
              -> SLAVE, OPENING      the term is over before it serves, or the disk does not take the epoch up
              -> ABSENT              the same, and there is no copy yet
    MASTER    -> OPENING             the term is over: the copy is opened again without what was not committed
    DAMAGED   -> ABSENT, FETCHING    the registry no longer counts on the copy
              -> SLAVE               opened again, where the failure harmed nothing
    any       -> DAMAGED             a check does not hold, the disk failed, or an internal error

role.py lists the steps that are allowed, and LocalCopy.become() refuses all others. When the registry no longer counts
on this node, the directory goes and the replica is `discarded`.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import deque

from delayregistry.model import ShardObject, ShardSpec, ShardStatus
from delayregistry.port import RegistryError

from delaynode.replica.context import ReplicaContext
from delaynode.replica.follower import ReplicaFollower, refuse_unknown
from delaynode.replica.hosts.host import CopyHost
from delaynode.replica.hosts.master import ShardHost
from delaynode.replica.leadership import Leadership
from delaynode.replica.local_copy import LocalCopy
from delaynode.replica.role import ReplicaRole
from delaynode.replication.protocol import Message
from delaynode.replication.term.leader import Leader
from delaynode.replication.transport.peers import Origin
from delaynode.replication.transport.until import wait_event
from delaynode.store.shard import Shard

RETRY_SECONDS = 1.0


class Replica:
    """Owned by the event loop. One worker does one thing after the other; a leader's traffic passes it by."""

    def __init__(self, object_: ShardObject, context: ReplicaContext) -> None:
        self.uid, self.name = object_.spec.uid, object_.spec.name
        self.context = context
        self.local = LocalCopy(object_, context, self.log_event, self._wake)
        self.leadership = Leadership(self.local, context, self.log_event, self._wake, self.refresh)
        self.discarded = False  # the copy was given up
        self._inbox: deque[tuple[Origin, Message]] = deque()
        self._wakeup = asyncio.Event()
        self._follower = ReplicaFollower(self.local, context, self.log_event)
        self._stopping = False
        self._withdrawn = False
        self._newest_status = 0, 0  # ShardStatus.sequence of the newest that this process has seen
        self._kept_because = ""  # why a copy stays that the registry does not want here
        self._learning: asyncio.Task[None] | None = None
        self._worker = asyncio.get_running_loop().create_task(self._run())
        context.replica_leases.raise_min_epoch(self.uid, object_.spec.epoch)
        self._remember_status(object_)

    @property
    def role(self) -> ReplicaRole:
        return self.local.role

    @property
    def shard(self) -> Shard | None:
        return self.local.shard

    @property
    def copy(self) -> CopyHost | None:
        """The host that has the shard at the moment."""
        return self.master or self.local.host

    def damaged(self) -> str | None:
        return self.local.damaged() or (self.master.failure if self.master is not None else None)

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

    def log_event(self, event: str, **fields: object) -> None:
        epoch = self.leader.term.epoch if self.leader is not None else self.local.object.spec.epoch
        self.context.resources.log(event, shard=self.name, **{"epoch": epoch, **fields})

    # ------------------------------------------------------------ what comes in
    def refresh(self, object_: ShardObject) -> None:
        """The registry has news of the shard."""
        spec = object_.spec
        if spec.epoch != self.local.object.spec.epoch:
            self.leadership.reset()
        self.local.object = object_
        self._remember_status(object_)
        self.context.replica_leases.raise_min_epoch(self.uid, spec.epoch)
        self.local.keep_status()
        self.leadership.refresh()
        cluster = self.context.cluster()
        if cluster is not None and self.shard is not None:
            config = self.context.shard_config(spec)
            self.shard.raise_format(config.format)
            if cluster.topic(spec.topic) is not None:
                self.shard.reconfigure(config)
        self._wake()

    def _remember_status(self, object_: ShardObject) -> None:
        status = object_.status
        if status is not None and status.serving_epoch <= object_.spec.epoch:  # no other one is a master's word
            self._newest_status = max(self._newest_status, status.sequence)

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
        self._follower.on_origin_lost(origin)
        if self.local.storage.fetching is not None:
            self._wake()

    def from_slave(self, node: str, message: Message) -> None:
        if self.leader is not None:
            self.leader.shipping.received(node, message)

    # ------------------------------------------------------------ the worker
    async def _run(self) -> None:
        try:
            await self.local.open()
            while not self._stopping and not self.discarded:
                await self._step()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # no one else would learn of it
            damage = self.local.storage.damage = f"{type(error).__name__}: {error}"
            self.local.become(ReplicaRole.DAMAGED)
            self.log_event("internal-error", reason=damage, where=traceback.format_exc(limit=-5))
            self._follower.refuse_damaged()
            # else the shard would stand still: its lease goes on, and so do the leases that it grants
            if self.leader is not None:
                await self.leader.step_down(damage)

    async def _step(self) -> None:
        self._wakeup.clear()
        if self.leadership.ended is not None:
            await self.leadership.end_term(self.leadership.ended)
        elif self.leadership.is_chosen():
            self._follower.stop()
            await self.leadership.begin_term()
        elif self.local.storage.fetching is not None and self._follower.origin is None:
            await self.local.storage.abort_fetch()  # its master is gone; a new one sends all of its own copy
        elif self._inbox and self.leader is None:
            await self._follower.handle(*self._inbox.popleft())
            await asyncio.sleep(0)  # many may wait, and others too
        elif self._is_removed() or self.role is ReplicaRole.DAMAGED:
            try:
                if self._is_removed():
                    await self._leave()
                elif not self.local.storage.newer_format and await self._is_discardable():
                    await self.local.discard("damaged, and no longer counted on")
                elif self.local.may_reopen():
                    await self.local.end_following("it is opened again")
                    self.log_event("copy-opened-again", reason=self.local.storage.damage)
                    await self.local.open()
            except OSError as error:
                self.log_event("copy-not-discarded", reason=str(error))
            if not self.discarded:
                await wait_event(self._wakeup, RETRY_SECONDS)
        else:
            await wait_event(self._wakeup, None)

    def _is_removed(self) -> bool:
        """The registry seems to want no replica here."""
        return self.context.node not in self.local.object.spec.replicas and self.leader is None

    # ------------------------------------------------------------ giving up
    async def _is_discardable(self) -> bool:
        """Whether a serving master does without this copy, so that it may go. A sole copy stays what it is.

        What the registry says is not enough: the master may have named the copy in a write that is still under way.
        """
        spec, status, follower = self.local.object.spec, self.local.object.status, self._follower
        if status is None or spec.master == self.context.node or follower.origin is None:
            return False
        if not follower.discardable or follower.epoch != spec.epoch:
            return False
        if status.serving_epoch != spec.epoch or self.local.storage.replica_id in status.in_sync:
            return False  # where the copy's id can't be read, the master knows that all it names are others
        found = await self._read()
        replica_id = self.local.storage.replica_id
        return found is not None and found.status is not None and replica_id not in found.status.in_sync

    async def _read(self) -> ShardObject | None:
        try:
            found = await self.context.registry.get_shard(self.name)
        except RegistryError:
            return None
        return found if found is not None and found.spec.uid == self.uid else None

    async def _leave(self) -> None:
        """This node is to have no replica any more: the directory goes, once nothing counts on it. One that a newer
        program wrote stays: what it has can't be told."""
        if self.local.storage.newer_format or not self._may_leave(self.local.object):
            return
        found = await self._read()
        if found is None or not self._may_leave(found):
            return
        self._follower.stop()
        await self.local.discard("no replica is wanted here")
        self.discarded = self.context.node not in self.local.object.spec.replicas  # by now one may be wanted again
        while self.discarded and self._inbox:
            refuse_unknown(*self._inbox.popleft())

    def _may_leave(self, object_: ShardObject) -> bool:
        spec, status, replica_id = object_.spec, object_.status, self.local.storage.replica_id
        if self.context.node in spec.replicas:
            return False
        if status is None or status.serving_epoch != spec.epoch:
            return False  # restored, say: nothing proves that another copy has what this one has
        if replica_id in status.in_sync:
            return False
        reason = self._older_than_known(spec, status)
        if not reason and len(status.in_sync) < len(spec.replicas):
            reason = f"{len(status.in_sync)} of the {len(spec.replicas)} copies that are wanted are in sync"
        if reason and reason != self._kept_because:
            self.log_event("copy-kept", reason=reason)
        self._kept_because = reason
        return not reason

    def _older_than_known(self, spec: ShardSpec, status: ShardStatus) -> str:
        """Why the object is from before what is known here, as of a registry that was restored: this copy may have
        what no other one has. Empty: nothing shows that it is older."""
        if (epoch := self._known_epoch()) > spec.epoch:
            return f"it knows epoch {epoch}, the registry only {spec.epoch}"
        if self._newest_status > status.sequence:
            epoch, revision = self._newest_status
            return f"it has seen revision {revision} of epoch {epoch}'s status, the registry has {status.revision}"
        return ""

    def _known_epoch(self) -> int:
        """The highest that this copy, or this process, has heard of."""
        shard = self.shard
        persisted = shard.identity.epoch if shard is not None else self.local.storage.persisted_epoch
        return max(persisted, self.context.replica_leases.min_epoch(self.uid))

    def withdraw(self) -> bool:
        """The node is stopping: follow nobody any more, so that the shard goes on without this copy, also once another
        leads what is led here. True when no master waits for it.
        """
        if not self._withdrawn:
            self._withdrawn = True
            self._follower.leave("its node is stopping")
        status = self.local.object.status
        if self.leader is not None or self.local.host is None or status is None:
            return True
        return self.local.storage.replica_id not in status.in_sync or len(status.in_sync) == 1

    async def stop(self) -> None:
        """The node is stopping: a checkpoint makes the next start quick."""
        self._stopping = True
        self._wakeup.set()
        tasks = [self._worker, *([self._learning] if self._learning is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.leadership.stop()
        if self.local.host is not None:
            await self.local.host.stop()
