"""Where messages stand that are not in the due window: a scan of slots in the TimerLog, which many requests share.

While a scan waits for its turn, requests for messages of the same shard join it. After a failover thousands of cancels
come late: one by one, each with a scan of its own, they would take minutes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np

from delaynode.serve.host import ShardHost
from delaynode.store.intake import MAX_BATCH_MESSAGES
from delaynode.store.shard import Lookup
from delaynode.store.timerscan import Folds
from delaynode.store.types import I64


@dataclass(slots=True, eq=False)
class Shared:
    """A scan, and the requests that it is for."""

    due: list[I64] = field(default_factory=list)
    seq: list[I64] = field(default_factory=list)
    count: int = 0  # messages
    users: int = 0  # requests that are not done with it
    done: asyncio.Future[Lookup] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Lookups:
    """Owned by the event loop; one for a node. scans: how many may run at once."""

    def __init__(self, scans: asyncio.Semaphore, folds: Folds) -> None:
        self._scans, self._folds = scans, folds
        self._joinable: dict[ShardHost, Shared] = {}
        self._running: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def find(self, host: ShardHost, due: I64, seq: I64) -> AsyncIterator[Lookup]:
        """Where messages stand that are asked for by (due, seq): for cancel() or reschedule(), at once. Raises Refused,
        Damaged, OSError."""
        if host.shard.in_window(due, seq):
            yield host.shard.begin_lookup(due, seq)
            return
        shared = self._join(host, due, seq)
        try:
            found = await asyncio.shield(shared.done)
            host.check_serving()
            yield Lookup(due, seq, found.job)
        finally:
            shared.users -= 1
            if not shared.users and shared.done.done() and not shared.done.cancelled() and not shared.done.exception():
                host.shard.end_lookup(shared.done.result())

    def _join(self, host: ShardHost, due: I64, seq: I64) -> Shared:
        shared = self._joinable.get(host)
        if shared is None or shared.count + len(due) > MAX_BATCH_MESSAGES:
            shared = self._joinable[host] = Shared()
            task = asyncio.create_task(self._scan(host, shared))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        shared.due.append(due)
        shared.seq.append(seq)
        shared.count += len(due)
        shared.users += 1
        return shared

    async def _scan(self, host: ShardHost, shared: Shared) -> None:
        async with self._scans:
            if self._joinable.get(host) is shared:
                del self._joinable[host]
            if not shared.users:
                return
            try:
                host.check_serving()
                lookup = host.shard.begin_lookup(np.concatenate(shared.due), np.concatenate(shared.seq), self._folds)
                try:
                    if lookup.job is not None:
                        await host.off_loop(lookup.job.run)
                except BaseException:
                    host.shard.end_lookup(lookup)
                    raise
            except Exception as error:
                shared.done.set_exception(error)
                shared.done.exception()  # who asked may have gone
                return
            if shared.users:
                shared.done.set_result(lookup)
            else:
                host.shard.end_lookup(lookup)
