"""Holding: a shard's copy in its directory: opened, made, fetched from another node, sent to one, thrown away.

<data>/shards/<shard>-<uid>/    the copy; see persist.py and, for transfers, snapshot.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from delayregistry.model import ShardSpec, in_sync_replica_id

from delaynode.replica.context import Yard
from delaynode.replica.host import CopyHost
from delaynode.replication.protocol import SnapshotChunk
from delaynode.replication.shipping import SnapshotSource
from delaynode.store.errors import Damaged, NewerFormat
from delaynode.store.maintenance import persist, snapshot
from delaynode.store.maintenance.marker import is_permanent
from delaynode.store.shard import Shard

T = TypeVar("T")


class _Held:
    """A snapshot that counts among the transfers under way."""

    def __init__(self, taken: SnapshotSource, transfers: asyncio.Semaphore, loop: asyncio.AbstractEventLoop) -> None:
        self._taken, self._transfers, self._loop = taken, transfers, loop
        self.manifest, self.log_offset = taken.manifest, taken.log_offset
        self.read = taken.read

    def release(self) -> None:
        try:
            self._taken.release()
        finally:
            self._loop.call_soon_threadsafe(self._transfers.release)


class Holding:
    """Owned by the replica's worker: one call at a time. `shard` is None while there is no sound copy here.

    entry: its name in the in-sync set; "" when there is none, or it can't be read. damage: why it is of no use.
    """

    def __init__(self, spec: ShardSpec, yard: Yard, note: Callable[..., None]) -> None:
        self.yard = yard
        self.directory = f"{yard.data}/shards/{spec.name}-{spec.uid:016x}"
        self.shard: Shard | None = None
        self.entry = ""
        self.damage: str | None = None
        self.lasting = False  # the damage that open() found would be found again
        self.newer = False  # it is not damaged: a newer program wrote it, and will open it again
        self.fetching: snapshot.IncomingCopy | None = None
        self._files = yard.shop.files
        self._note = note

    def off_loop(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self.yard.shop.pool, work)

    def _named(self, copy_id: str) -> str:
        lasting = self.yard.shop.fsync  # of what this process does, whatever is wished by now
        return in_sync_replica_id(copy_id, None if lasting else self.yard.boot_id)

    # ------------------------------------------------------------ the directory
    async def open(self, spec: ShardSpec) -> bool:
        """Open it as of its checkpoint, its log's tail not applied; False when there is none, or it is damaged."""
        yard, files, directory = self.yard, self._files, self.directory
        self.shard = self.damage = None
        self.newer = False
        self.entry = ""
        started = yard.boot_ms()
        try:
            if not await self.off_loop(partial(persist.exists, files, directory)):
                return False
            work = partial(persist.recover, files, directory, yard.shard_config(spec), replay=False)
            shard, recovery = await self.off_loop(work)
        except (Damaged, NewerFormat, OSError) as error:
            if copy_id := await self.off_loop(partial(persist.read_copy_id, files, directory)):
                self.entry = self._named(copy_id)
            self.newer = isinstance(error, NewerFormat)
            self.damage, self.lasting = str(error), self.newer or is_permanent(error)
            return False
        self._have(shard)
        self._note(
            "copy-opened", epoch=shard.identity.epoch, pending=shard.index.pending, units=recovery.units,
            log_end=shard.log.end, applied=shard.applied, dropped_bytes=recovery.dropped_bytes,
            mended=recovery.repaired, seconds=round((yard.boot_ms() - started) / 1000, 3),
        )  # fmt: skip
        return True

    def _have(self, shard: Shard) -> None:
        self.shard, self.entry = shard, self._named(shard.identity.copy_id)
        self.yard.promises.raise_floor(shard.identity.uid, shard.identity.epoch)

    async def create(self, spec: ShardSpec) -> Shard:
        """The shard's first copy. Raises OSError, Damaged."""
        config, now = self.yard.shard_config(spec), self.yard.shop.clock.now_ms()
        identity = spec.uid, spec.topic, spec.queue
        make = partial(persist.create, self._files, self.directory, *identity, config, now, spec.epoch)
        shard = await self.off_loop(make)
        self._have(shard)
        return shard

    async def accept_epoch(self, epoch: int) -> None:
        """Persist it, where it is higher than what was. Raises OSError, Damaged."""
        shard = self.shard
        if shard is not None and epoch > shard.identity.epoch:
            await self.off_loop(partial(persist.accept_epoch, self._files, self.directory, shard, epoch))

    async def settle(self) -> None:
        """What the log has is on disk, what was only taken in is forgotten; no host writes it. Raises OSError."""
        assert self.shard is not None
        log = self.shard.log
        log.forget_pending()
        await self.off_loop(lambda: log.cut(log.end))

    async def apply_all(self) -> int:
        """The whole log is committed: apply what is not yet. Returns the number of frames. Raises OSError, Damaged.

        Like upkeep it flushes units before they are too many, and brings hours down, one shard of the node at a time.
        """
        shard, shop = self.shard, self.yard.shop
        assert shard is not None
        frames = 0
        while True:
            frames += await self.off_loop(partial(persist.replay, shard, shard.log.end, light=True))
            if shard.applied >= shard.log.end:
                return frames
            async with shop.checkpoints:
                await self.off_loop(partial(persist.make_room, self._files, self.directory, shard))

    async def discard(self, why: str) -> None:
        """Throw the copy away. Nothing may use it any more."""
        self.shard = None
        await self.off_loop(partial(persist.discard, self._files, self.directory))
        self._note("copy-discarded", entry=self.entry, reason=why)
        self.entry, self.damage, self.newer = "", None, False

    # ------------------------------------------------------------ transfers
    async def begin_fetch(self, manifest: bytes) -> snapshot.IncomingCopy:
        """Raises ValueError, OSError."""
        incoming = await self.off_loop(lambda: snapshot.IncomingCopy(self._files, self.directory, manifest))
        self._note("fetching", total_bytes=incoming.total_bytes)
        return incoming

    async def write_piece(self, incoming: snapshot.IncomingCopy, piece: SnapshotChunk) -> None:
        """Raises ValueError, OSError."""
        await self.off_loop(lambda: incoming.write(piece.file, piece.offset, piece.data))

    async def end_fetch(self, spec: ShardSpec, epoch: int) -> None:
        """All pieces are here: the copy takes its place. Raises ValueError, OSError, Damaged."""
        incoming, self.fetching = self.fetching, None
        if incoming is None:
            raise ValueError("nothing is being fetched")
        await self.off_loop(lambda: incoming.finish(spec.uid, spec.topic, spec.queue, epoch))

    async def hold_snapshot(self, master: CopyHost | None) -> SnapshotSource:
        """The copy's files for a transfer; a few at once. Raises OSError, Damaged."""
        transfers = self.yard.transfers.place(self.shard.log_end if self.shard is not None else 0)
        await transfers.acquire()
        try:
            take = partial(snapshot.hold_checkpoint, self._files, self.directory, f"{self.yard.boot_ms()}")
            async with self.yard.shop.checkpoints:  # files come and go with checkpoints
                taken: SnapshotSource = await (master.off_loop(take) if master is not None else self.off_loop(take))
        except BaseException:
            transfers.release()
            raise
        return _Held(taken, transfers, asyncio.get_running_loop())
