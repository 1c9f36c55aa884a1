"""LocalCopy: a shard's copy in this process: its files, its role, and the host that follows a master with it.

become() is the only place where the role changes; the picture of the roles is in replica.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from delayregistry.model import ShardObject

from delaynode.replica.context import ReplicaContext
from delaynode.replica.hosts.slave import SlaveHost
from delaynode.replica.role import NEXT_ROLES, IllegalTransition, ReplicaRole
from delaynode.replica.storage import ReplicaStorage
from delaynode.store.errors import Damaged
from delaynode.store.maintenance.snapshot import IncomingCopy
from delaynode.store.shard import Shard

REOPEN_MS = 3_000  # a master that failed for want of room, or of file handles, is not opened again before


class LocalCopy:
    """Owned by the replica's worker. object: the shard as the registry has it. host: None while it does not follow.

    wake: the worker has something to do. on_following: told of each new host, before it starts. on_failed: told when
    the host has failed.
    """

    def __init__(
        self, object_: ShardObject, context: ReplicaContext, log_event: Callable[..., None], wake: Callable[[], None]
    ) -> None:
        self.uid, self.name = object_.spec.uid, object_.spec.name
        self.object = object_
        self.role = ReplicaRole.OPENING
        self.storage = ReplicaStorage(object_.spec, context, log_event)
        self.host: SlaveHost | None = None
        self.on_following: Callable[[SlaveHost], None] = lambda _: None
        self.on_failed: Callable[[], None] = lambda: None
        self._context, self._log_event, self._wake = context, log_event, wake
        self._reopen_ms: int | None = None  # from when on what failed here may be tried again; None: never

    def become(self, role: ReplicaRole) -> None:
        """Raises IllegalTransition."""
        if role not in NEXT_ROLES[self.role]:
            raise IllegalTransition(f"shard {self.name}: a copy that is {self.role} can't become {role}")
        self.role = role

    @property
    def shard(self) -> Shard | None:
        return self.storage.shard

    def cluster_name(self) -> str | None:
        """Whose copy it is; None: the spec has not been read."""
        cluster = self._context.cluster()
        return None if cluster is None else cluster.name

    def damaged(self) -> str | None:
        return self.storage.damage or (self.host.failure if self.host is not None else None)

    def unreadable_reason(self) -> str | None:
        """Why Fetch is not to be answered from this slave; None: it has all that was committed as of a moment ago."""
        status = self.object.status
        if self.host is None or self.host.failure is not None:
            return "there is no sound copy here"
        if status is None or self.storage.replica_id not in status.in_sync:
            return "this copy is not in sync"
        return None

    def keep_status(self) -> None:
        """The next checkpoint has it: a registry that is lost is made again from what the copies keep."""
        status = self.object.status
        if self.shard is not None and status is not None and status.serving_epoch >= self.shard.known_status[0]:
            self.shard.known_status = status.serving_epoch, status.in_sync

    # ------------------------------------------------------------ opened and followed
    async def open(self) -> None:
        """Open the directory, if there is one."""
        if await self.storage.open(self.object.spec):
            self.follow()
        elif self.storage.damage is not None:
            self.mark_damaged(self.storage.damage, lasting=self.storage.lasting)
        else:
            self.become(ReplicaRole.ABSENT)

    def follow(self) -> None:
        """The copy is there: follow any master that comes."""
        assert self.shard is not None
        self.keep_status()
        self.become(ReplicaRole.SLAVE)
        host = self.host = SlaveHost(self.shard, self.storage.directory, self._context.resources)
        host.unreadable_reason = self.unreadable_reason
        host.on_failed = partial(self._host_failed, host)
        self.on_following(host)
        host.start()

    async def end_following(self, why: str) -> None:
        """Nothing of a slave runs when this returns."""
        host, self.host = self.host, None
        if host is not None:
            await host.end(why)

    # ------------------------------------------------------------ damaged and discarded
    def mark_damaged(self, why: str, *, lasting: bool = True) -> None:
        """The copy is of no use. lasting: to no later process either."""
        self.storage.damage = why
        self.become(ReplicaRole.DAMAGED)
        self._reopen_ms = None if lasting else self._context.boot_ms() + REOPEN_MS
        self._log_event("copy-newer" if self.storage.newer_format else "copy-damaged", reason=why)
        self._wake()

    def _host_failed(self, host: SlaveHost) -> None:
        if self.host is host:
            self.storage.newer_format = host.newer_format
            self.mark_damaged(host.failure or "", lasting=host.lasting)
            self.on_failed()

    def may_reopen(self) -> bool:
        """Whether what failed here harmed nothing, as when there is no room, and may be over: then this is no worse
        than a new process that opens the copy, and like one it may lead in a new epoch only.
        """
        due = self._reopen_ms
        return due is not None and self._context.boot_ms() >= due and not self._context.resources.disk_full()

    async def discard(self, why: str) -> None:
        await self.end_following(why)
        await self.storage.discard(why)
        self.become(ReplicaRole.ABSENT)

    # ------------------------------------------------------------ fetched
    async def begin_fetch(self, manifest: bytes) -> IncomingCopy:
        """The copy that is here is of no use, as the master can't continue it; one that a newer program wrote stays.

        Raises OSError, ValueError, Damaged, Refused; then the copy that is here has not been thrown away.
        """
        if self.storage.newer_format:
            raise Damaged(f"not thrown away for another copy: {self.storage.damage}")
        incoming = await self.storage.begin_fetch(manifest)  # first: it may be refused
        if self.shard is not None or self.storage.damage is not None:
            await self.discard("a whole copy is fetched")
        self.become(ReplicaRole.FETCHING)
        self.storage.fetching = incoming
        return incoming

    async def end_fetch(self, epoch: int) -> None:
        """The files are complete: open the copy. Raises OSError, ValueError, Damaged."""
        await self.storage.end_fetch(self.object.spec, epoch)
        await self.open()
        if self.storage.damage is not None:
            raise Damaged(self.storage.damage)
