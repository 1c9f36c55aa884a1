"""Cancels and reschedules of messages that may not be in the due window: what they need is a scan of slots in the
TimerLog, which many requests share.

While a scan waits for its turn, requests of the same kind for the same shard join it; what they change is one frame.
After a failover thousands of cancels come late: one by one, each with a scan of its own, they would take minutes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np

from delaynode.replica.hosts.host import WallClock
from delaynode.replica.hosts.master import ShardHost
from delaynode.store.log.incoming_batch import MAX_BATCH_MESSAGES
from delaynode.store.lookup import MOVED_NOW, Lookup, Outcomes
from delaynode.store.timer.scan import SlotSnapshotCache
from delaynode.store.types import I64

ABSOLUTE = np.empty(0, np.uint8)  # no time is a delay


@dataclass(frozen=True, slots=True, eq=False)
class LookupRequest:
    """A request: its messages, by (due, seq), and the new due of each, or None: they are cancelled."""

    due: I64
    seq: I64
    time: I64 | None
    done: asyncio.Future[Outcomes]


@dataclass(slots=True, eq=False)
class LookupBatch:
    """Requests that wait for the same scan."""

    requests: list[LookupRequest] = field(default_factory=list)
    count: int = 0  # messages


class Lookups:
    """Owned by the event loop; one for a node. scans: how many may run at once."""

    def __init__(self, scans: asyncio.Semaphore, slot_cache: SlotSnapshotCache, clock: WallClock) -> None:
        self._scans, self._slot_cache, self._clock = scans, slot_cache, clock
        self._batches: dict[tuple[ShardHost, bool], LookupBatch] = {}
        self._running: set[asyncio.Task[None]] = set()

    async def change(self, host: ShardHost, due: I64, seq: I64, time: I64 | None) -> Outcomes:
        """Cancel messages (n,), or give them new dues `time` (n,); what became of each, not committed yet. At most
        MAX_BATCH_MESSAGES. Raises Refused, Damaged, OSError."""
        await host.maintenance.wait_room()
        host.check_serving()
        if host.shard.in_window(due, seq):
            return self._apply(host, Lookup(due, seq, None), time)
        request = LookupRequest(due, seq, time, asyncio.get_running_loop().create_future())
        self._join(host, request)
        return await request.done

    def _apply(self, host: ShardHost, lookup: Lookup, time: I64 | None) -> Outcomes:
        shard, now = host.shard, self._clock.now_ms()
        if time is None:
            outcomes = shard.cancel(lookup, now)
            host.on_proposed()
        else:
            host.check_not_passed(time, now)
            outcomes = shard.reschedule(lookup, time, ABSOLUTE, now)
            moved = outcomes.due[outcomes.outcome == MOVED_NOW]
            host.on_proposed(int(moved.min()) if len(moved) else None)
        return outcomes

    def _join(self, host: ShardHost, request: LookupRequest) -> None:
        key = host, request.time is None
        batch = self._batches.get(key)
        if batch is None or batch.count + len(request.due) > MAX_BATCH_MESSAGES:
            batch = self._batches[key] = LookupBatch()
            task = asyncio.create_task(self._scan(key, batch))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        batch.requests.append(request)
        batch.count += len(request.due)

    async def _scan(self, key: tuple[ShardHost, bool], batch: LookupBatch) -> None:
        async with self._scans:
            if self._batches.get(key) is batch:
                del self._batches[key]
            requests = [one for one in batch.requests if not one.done.done()]  # of some the client has left
            if not requests:
                return
            try:
                outcomes = await self._change_all(key[0], requests)
            except Exception as error:
                for one in requests:
                    if not one.done.done():
                        one.done.set_exception(error)
                        one.done.exception()  # who asked may go before it is looked at
                return
            bounds = pairwise(accumulate((len(one.due) for one in requests), initial=0))
            for one, (low, high) in zip(requests, bounds, strict=True):
                if not one.done.done():
                    one.done.set_result(Outcomes(outcomes.outcome[low:high], outcomes.due[low:high]))

    async def _change_all(self, host: ShardHost, requests: Sequence[LookupRequest]) -> Outcomes:
        due, seq = (np.concatenate(parts) for parts in zip(*((one.due, one.seq) for one in requests), strict=True))
        times = [one.time for one in requests if one.time is not None]
        host.check_serving()
        lookup = host.shard.begin_lookup(due, seq, self._slot_cache)
        try:
            if lookup.job is not None:
                await host.off_loop(lookup.job.run)
                host.check_serving()
            return self._apply(host, lookup, np.concatenate(times) if times else None)
        finally:
            host.shard.end_lookup(lookup)
