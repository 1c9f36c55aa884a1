"""The copies on this node's disk that no object of the registry has given to this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterator
from functools import partial
from typing import TypeVar

from delayregistry.model import ShardObject, copy_id_of

from delaynode.replica.context import ReplicaContext
from delaynode.store.log.files import Files
from delaynode.store.maintenance import stored_copy
from delaynode.store.maintenance.stored_copy import StoredCopy

T = TypeVar("T")


class StoredCopies:
    """Owned by the event loop. A shard's directory is in here, or a Replica has it, never both."""

    def __init__(self, context: ReplicaContext) -> None:
        self._context = context
        self._by_uid: dict[int, StoredCopy] = {}

    def __iter__(self) -> Iterator[StoredCopy]:
        return iter(list(self._by_uid.values()))

    def get(self, uid: int) -> StoredCopy | None:
        return self._by_uid.get(uid)

    def __len__(self) -> int:
        return len(self._by_uid)

    def forget(self, uid: int) -> None:
        """A Replica has the directory from now on, or it is gone."""
        self._by_uid.pop(uid, None)

    async def add(self, directory: str) -> None:
        """Nobody has the directory open any more. It never seems gone: until it is read its name alone is known."""
        unread = stored_copy.unreadable(directory, "it is being read")
        self._by_uid[unread.uid] = unread
        found = await self._off_loop(partial(_read, self._context.resources.files, directory))
        self._by_uid[found.uid] = found

    def _off_loop(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._context.resources.pool, work)

    async def look(self, opened: Container[int]) -> None:
        """Look through the data directory, one copy after the other. opened: uids that replicas have, at any moment.

        Raises OSError where the directory can't be listed; a copy that can't be read counts as damaged.
        """
        resources, root = self._context.resources, f"{self._context.data}/shards"
        for uid, directory in await self._off_loop(lambda: list(stored_copy.directories(resources.files, root))):
            if uid in opened:
                continue
            found = await self._off_loop(partial(_read, resources.files, directory))
            if uid not in opened:
                self._by_uid[uid] = found
                resources.log(
                    "copy-found", shard=found.shard, uid=f"{uid:016x}", cluster=found.cluster,
                    epoch=found.epoch, log_end=found.log_end, pending=found.pending, damaged=found.damage,
                )  # fmt: skip


def is_wanted(copy: StoredCopy, node: str, object_: ShardObject) -> bool:
    """Whether the object counts on the copy, or is about to, or does not say on which ones it counts."""
    spec, status = object_.spec, object_.status
    if spec.uid != copy.uid:
        return False
    if node in (*spec.replicas, *(spec.target or ())) or status is None or status.serving_epoch != spec.epoch:
        return True
    return copy.copy_id in map(copy_id_of, status.in_sync)


def is_outdated(copy: StoredCopy, node: str, object_: ShardObject) -> bool:
    """Whether a later term serves the shard without this copy, so that nobody will ask for it.

    In the copy's own epoch that can't be told: the object may be an older state that was restored. Nor of a damaged
    copy, which may have had more.
    """
    later = object_.spec.uid == copy.uid and object_.spec.epoch > copy.epoch > 0
    return later and copy.damage is None and not is_wanted(copy, node, object_)


def _read(files: Files, directory: str) -> StoredCopy:
    try:
        return stored_copy.read_stored_copy(files, directory)
    except OSError as error:
        return stored_copy.unreadable(directory, str(error))
