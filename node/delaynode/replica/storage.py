"""ReplicaStorage: a shard's copy in its directory: opened, made, fetched from another node, sent to one, thrown away.

<data>/shards/<shard>-<uid>/    the copy; see persist.py and, for transfers, snapshot.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from delayregistry.model import ShardSpec, in_sync_replica_id

from delaynode.replica.context import ReplicaContext
from delaynode.replica.hosts.host import CopyHost
from delaynode.replication.peer_replica import SnapshotSource
from delaynode.replication.protocol import SnapshotChunk
from delaynode.store.errors import Damaged, NewerFormat
from delaynode.store.maintenance import persist, snapshot
from delaynode.store.maintenance.marker import is_permanent
from delaynode.store.maintenance.stored_copy import disk_bytes, write_cluster
from delaynode.store.shard import Shard

T = TypeVar("T")


class _CountedSnapshot:
    """A snapshot that counts among the transfers under way."""

    def __init__(self, source: SnapshotSource, transfers: asyncio.Semaphore, loop: asyncio.AbstractEventLoop) -> None:
        self._source, self._transfers, self._loop = source, transfers, loop
        self.manifest, self.log_offset = source.manifest, source.log_offset
        self.read = source.read

    def release(self) -> None:
        try:
            self._source.release()
        finally:
            self._loop.call_soon_threadsafe(self._transfers.release)


class ReplicaStorage:
    """Owned by the replica's worker: one call at a time. `shard` is None while there is no sound copy here.

    replica_id: its name in the in-sync set; "" when there is none, or it can't be read. damage: why it is of no use.
    """

    def __init__(self, spec: ShardSpec, context: ReplicaContext, log_event: Callable[..., None]) -> None:
        self.context = context
        self.directory = f"{context.data}/shards/{spec.name}-{spec.uid:016x}"
        self.shard: Shard | None = None
        self.replica_id = ""
        self.damage: str | None = None
        self.lasting = False  # the damage that open() found would be found again
        self.persisted_epoch = 0  # of a copy that can't be opened
        self.newer_format = False  # it is not damaged: a newer program wrote it, and will open it again
        self.fetching: snapshot.IncomingCopy | None = None
        self._files = context.resources.files
        self._log_event = log_event

    def off_loop(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self.context.resources.pool, work)

    def _replica_id_of(self, copy_id: str) -> str:
        lasting = self.context.resources.fsync  # of what this process does, whatever is wished by now
        return in_sync_replica_id(copy_id, None if lasting else self.context.boot_id)

    # ------------------------------------------------------------ the directory
    async def open(self, spec: ShardSpec) -> bool:
        """Open it as of its checkpoint, its log's tail not applied; False when there is none, or it is damaged."""
        context, files, directory = self.context, self._files, self.directory
        self.shard = self.damage = None
        self.newer_format = False
        self.replica_id = ""
        started = context.boot_ms()
        try:
            if not await self.off_loop(partial(persist.exists, files, directory)):
                return False
            work = partial(persist.recover, files, directory, context.shard_config(spec), replay=False)
            shard, recovery = await self.off_loop(work)
        except (Damaged, NewerFormat, OSError) as error:
            copy_id, self.persisted_epoch = await self.off_loop(partial(persist.read_copy_id, files, directory))
            if copy_id:
                self.replica_id = self._replica_id_of(copy_id)
            self.newer_format = isinstance(error, NewerFormat)
            self.damage, self.lasting = str(error), self.newer_format or is_permanent(error)
            return False
        self._set_shard(shard)
        await self._write_cluster()
        self._log_event(
            "copy-opened", epoch=shard.identity.epoch, pending=shard.index.pending, units=recovery.units,
            log_end=shard.log.end, applied=shard.applied, dropped_bytes=recovery.dropped_bytes,
            mended=recovery.repaired, origin=recovery.origin, damage=recovery.damage,
            seconds=round((context.boot_ms() - started) / 1000, 3),
        )  # fmt: skip
        return True

    def _set_shard(self, shard: Shard) -> None:
        self.shard, self.replica_id = shard, self._replica_id_of(shard.identity.copy_id)
        self.context.replica_leases.raise_min_epoch(shard.identity.uid, shard.identity.epoch)

    async def create(self, spec: ShardSpec) -> Shard:
        """The shard's first copy. Raises OSError, Damaged."""
        config, now = self.context.shard_config(spec), self.context.resources.clock.now_ms()
        identity = spec.uid, spec.topic, spec.queue
        make = partial(persist.create, self._files, self.directory, *identity, config, now, spec.epoch)
        shard = await self.off_loop(make)
        self._set_shard(shard)
        await self._write_cluster()
        return shard

    async def _write_cluster(self) -> None:
        """Whose copy this is: should all objects be lost, its cluster takes it up again by itself."""
        cluster = self.context.cluster()
        if cluster is None:
            return
        try:
            await self.off_loop(partial(write_cluster, self._files, self.directory, cluster.name))
        except OSError as error:  # a full disk, say: at the next opening
            self._log_event("cluster-not-noted", reason=str(error))

    async def accept_epoch(self, epoch: int) -> None:
        """Persist it, where it is higher than what was. Raises OSError, Damaged."""
        shard = self.shard
        if shard is not None and epoch > shard.identity.epoch:
            await self.off_loop(partial(persist.accept_epoch, self._files, self.directory, shard, epoch))

    async def sync_log(self) -> None:
        """What the log has is on disk, what was only taken in is forgotten; no host writes it. Raises OSError."""
        assert self.shard is not None
        log = self.shard.log
        log.forget_pending()
        await self.off_loop(lambda: log.cut(log.end))

    async def apply_all(self) -> int:
        """The whole log is committed: apply what is not yet. Returns the number of frames. Raises OSError, Damaged.

        Like maintenance it flushes units before they are too many, and brings hours down, one shard of the node at a
        time.
        """
        shard, resources = self.shard, self.context.resources
        assert shard is not None
        frames = 0
        while True:
            frames += await self.off_loop(partial(persist.replay, shard, shard.log.end, light=True))
            if shard.applied >= shard.log.end:
                return frames
            async with resources.checkpoints:
                await self.off_loop(partial(persist.make_room, self._files, self.directory, shard))

    async def discard(self, why: str) -> None:
        """Throw the copy away, and what has come of another. Nothing may use it any more."""
        self.shard = None
        await self.abort_fetch()
        await self.off_loop(partial(persist.discard, self._files, self.directory))
        self._log_event("copy-discarded", entry=self.replica_id, reason=why)
        self.replica_id, self.damage, self.newer_format = "", None, False

    # ------------------------------------------------------------ transfers
    async def begin_fetch(self, manifest: bytes) -> snapshot.IncomingCopy:
        """Raises ValueError, OSError, NewerFormat, and Refused where the disk has no room for it."""
        await self.abort_fetch()
        incoming = await self.off_loop(lambda: snapshot.IncomingCopy(self._files, self.directory, manifest))
        here = await self.off_loop(partial(disk_bytes, self._files, self.directory))
        self.context.resources.check_copy(incoming.total_bytes, here)
        self._log_event("fetching", total_bytes=incoming.total_bytes)
        return incoming

    async def write_chunk(self, incoming: snapshot.IncomingCopy, chunk: SnapshotChunk) -> None:
        """Raises ValueError, OSError."""
        await self.off_loop(lambda: incoming.write(chunk.file, chunk.offset, chunk.data))

    async def end_fetch(self, spec: ShardSpec, epoch: int) -> None:
        """All pieces are here: the copy takes its place. Raises ValueError, OSError, Damaged."""
        incoming = self.fetching
        if incoming is None:
            raise ValueError("nothing is being fetched")
        cluster = self.context.cluster()
        name = "" if cluster is None else cluster.name
        await self.off_loop(lambda: incoming.finish(spec.uid, spec.topic, spec.queue, epoch, name))
        self.fetching = None

    async def abort_fetch(self) -> None:
        """Nothing more comes of the copy that is being fetched: its room is given back."""
        incoming, self.fetching = self.fetching, None
        if incoming is None:
            return
        try:
            await self.off_loop(incoming.abort)
        except OSError as error:  # the next transfer tries again
            self._log_event("copy-not-discarded", reason=str(error))

    async def hold_snapshot(self, master: CopyHost | None) -> SnapshotSource:
        """The copy's files for a transfer; a few at once. Raises OSError, Damaged."""
        transfers = self.context.transfers.permit(self.shard.log_end if self.shard is not None else 0)
        await transfers.acquire()
        try:
            hold = partial(snapshot.hold_checkpoint, self._files, self.directory, f"{self.context.boot_ms()}")
            async with self.context.resources.checkpoints:  # files come and go with checkpoints
                held = master.off_loop(hold) if master is not None else self.off_loop(hold)
                try:
                    source = await asyncio.shield(held)
                except asyncio.CancelledError:  # the term is over; the thread goes on
                    held.add_done_callback(self._release_unused)
                    raise
        except BaseException:
            transfers.release()
            raise
        return _CountedSnapshot(source, transfers, asyncio.get_running_loop())

    def _release_unused(self, held: asyncio.Future[snapshot.CheckpointSnapshot]) -> None:
        if not held.cancelled() and held.exception() is None:
            self.off_loop(held.result().release)
