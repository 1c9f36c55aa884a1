"""Cancel, Reschedule and ListPending: messages that are not released yet."""

from __future__ import annotations

import asyncio
from typing import Any
from zlib import crc32

import numpy as np
from delayapi.durations import format_instant
from delayapi.proto.delay.v1 import delay_pb2 as pb
from google.protobuf.message import DecodeError

from delaynode.limits.budget import Answers
from delaynode.node.disk import RESCHEDULE_BYTES
from delaynode.replica.hosts.master import ShardHost
from delaynode.server.dispatch import Dispatch
from delaynode.server.edge import Call
from delaynode.server.handlers.lookups import Lookups
from delaynode.server.rpc import column, fitting
from delaynode.store.columns import at_or_below
from delaynode.store.errors import Refused
from delaynode.store.log.incoming_batch import MAX_BATCH_MESSAGES
from delaynode.store.timer.due_window import after
from delaynode.store.timer.scan import KeyFilter, MessageFilter, SlotSnapshotCache
from delaynode.store.timer.units import UNIT
from delaynode.store.types import I64, U8, Array, Pair, Records

MAX_PAGE = 10_000
MAX_OF_KEY = 1_000_000  # messages that one cancel by key looks at
MAX_SCANS = 2  # of the node: each needs memory, and a thread that loads and flushes wait for, too


class PendingCalls:
    """Each method serves one call for a shard that is here, and answers once its answer is committed."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch, self.node = dispatch, dispatch.node
        self._slot_cache = SlotSnapshotCache()
        self._scans = asyncio.Semaphore(MAX_SCANS)
        self._lookups = Lookups(self._scans, self._slot_cache, self.node.clock)

    def _handles(self, request: pb.CancelRequest | pb.RescheduleRequest, host: ShardHost) -> tuple[I64, I64]:
        due = column("due", request.due, "<i8")
        seq = column("seq", request.seq, "<i8", len(due))
        if request.uid != host.shard.identity.uid:
            raise Refused(
                "FOREIGN_HANDLE", f"the handles are of shard {request.uid:x}, this is {host.shard.identity.uid:x}"
            )
        if not 0 < len(due) <= MAX_BATCH_MESSAGES:
            raise Refused(
                "BATCH_TOO_LARGE", f"a request names 1 to {MAX_BATCH_MESSAGES:,} messages, this one {len(due):,}"
            )
        return due, seq

    async def cancel(self, request: pb.CancelRequest, host: ShardHost) -> pb.CancelResponse:
        if not request.key:
            due, seq = self._handles(request, host)
            return pb.CancelResponse(outcome=(await self._cancel(due, seq, host)).tobytes())
        due, seq = await self._with_key(request, host)
        outcomes = [
            await self._cancel(due[low : low + MAX_BATCH_MESSAGES], seq[low : low + MAX_BATCH_MESSAGES], host)
            for low in range(0, len(due), MAX_BATCH_MESSAGES)
        ]
        return pb.CancelResponse(outcome=b"".join(map(bytes, outcomes)), due=due.tobytes(), seq=seq.tobytes())

    async def _cancel(self, due: I64, seq: I64, host: ShardHost) -> U8:
        """At most MAX_BATCH_MESSAGES; the outcome of each, committed."""
        outcomes = await self._lookups.change(host, due, seq, None)
        await host.wait_replicated(host.shard.log_end)
        self.node.metrics.cancelled[host.topic] += int(np.count_nonzero(outcomes.outcome == pb.CANCELLED))
        return outcomes.outcome

    async def _with_key(self, request: pb.CancelRequest, host: ShardHost) -> tuple[I64, I64]:
        """Pending messages in the due range whose key is the request's: by hash first, then the key itself."""
        if request.from_ms >= request.to_ms:
            first, end = format_instant(request.from_ms), format_instant(request.to_ms)
            raise Refused("BAD_REQUEST", f"empty range: from_ms ({first}) is not before to_ms ({end})")
        low, high = Pair(request.from_ms, 0), Pair(request.to_ms, 0)
        rows, _ = await self._pending(host, low, high, KeyFilter(crc32(request.key.encode())), MAX_OF_KEY + 1)
        if len(rows) > MAX_OF_KEY:
            raise Refused(
                "BATCH_TOO_LARGE",
                f"more than {MAX_OF_KEY:,} pending messages of the range have this key: cancel a part of it at a time",
            )
        rows = await self._same_key(host, rows, request.key)
        return np.ascontiguousarray(rows["due"]), np.ascontiguousarray(rows["seq"])

    async def _same_key(self, host: ShardHost, rows: Records, key: str) -> Records:
        """Those that have the key itself, of some that have its hash."""
        same: list[bool] = []
        while len(same) < len(rows):  # a few MiB of them at a time
            part = rows[len(same) :]
            part = part[: fitting(part["size"])]
            records = await host.read_records(part)
            same += [_has_key(record, key) for record in _split(records, part["size"])]
        found: Records = rows[np.array(same, bool)]
        return found

    async def _page_with_key(
        self, host: ShardHost, low: Pair, high: Pair, key: str, max_count: int
    ) -> tuple[Records, bool]:
        """As _pending(). No rows, only where there are none: a page that other keys' messages fill would end a list."""
        while True:
            hashed, more = await self._pending(host, low, high, KeyFilter(crc32(key.encode())), max_count)
            rows = await self._same_key(host, hashed, key)
            if len(rows) or not len(hashed) or not more:
                return rows, more
            low = after(Pair(int(hashed["due"][-1]), int(hashed["seq"][-1])))

    async def _pending(
        self, host: ShardHost, low: Pair, high: Pair, choice: MessageFilter | None, max_count: int | None
    ) -> tuple[Records, bool]:
        """Live rows of a range above the watermark, committed, by (due, seq); and whether there may be more behind."""
        index = host.shard.index
        low = max(low, after(index.watermark))
        if low >= high:
            return np.empty(0, UNIT), False
        async with self._scans:
            host.check_serving()
            job = index.begin_scan(low, high, choice, max_count, self._slot_cache)
            try:
                await host.off_loop(job.run)
                rows, live = job.result()
            finally:
                index.close_view(job.view)
        host.check_serving()
        await host.wait_committed(host.shard.log_end)
        pending = live & ~at_or_below(rows["due"], rows["seq"], index.watermark)
        return rows[pending], job.high < high

    async def reschedule(
        self, request: pb.RescheduleRequest, host: ShardHost, _: Answers, call: Call
    ) -> pb.RescheduleResponse:
        due, seq = self._handles(request, host)
        new = column("time", request.time, "<i8", len(due))
        relative = column("relative", request.relative, "u1", len(due)) if request.relative else np.empty(0, np.uint8)
        if int(new.min()) < 0 or (len(relative) and int(relative.max()) > 1):
            raise Refused("BAD_COLUMNS", "column time must not be negative, column relative must be 0 or 1")
        size = len(due) * RESCHEDULE_BYTES  # a message may be moved any number of times
        self.node.disk.check(size)
        self._dispatch.quotas.charge_rate(host, call.identity(), len(due), size)
        now = self.node.clock.now_ms()
        new = host.shard.new_due(new, relative, now)
        host.check_not_passed(new, now)
        outcomes = await self._lookups.change(host, due, seq, new)
        await host.wait_replicated(host.shard.log_end)
        return pb.RescheduleResponse(outcome=outcomes.outcome.tobytes(), due=outcomes.due.tobytes())

    async def list_pending(self, request: pb.ListPendingRequest, host: ShardHost, answers: Answers) -> pb.PendingBatch:
        limit = min(request.limit or 1000, MAX_PAGE)
        low = max(Pair(request.from_ms, 0), after(Pair(request.after_due, request.after_seq)))
        high = Pair(request.to_ms or host.shard.index.last_due_ms() + 1, 0)
        if request.key:
            rows, more = await self._page_with_key(host, low, high, request.key, limit + 1)
        else:
            rows, more = await self._pending(host, low, high, None, limit + 1)
        if request.with_records:
            limit = min(limit, fitting(rows["size"]))
        more = more or len(rows) > limit
        rows = rows[:limit]
        answer = pb.PendingBatch(
            uid=host.shard.identity.uid, count=len(rows), due=rows["due"].tobytes(), seq=rows["seq"].tobytes(),
            size=rows["size"].tobytes(), more=more,
        )  # fmt: skip
        if request.with_records:
            await answers.reserve(int(rows["size"].sum(dtype=np.int64)))
            answer.records = b"".join(await host.read_records(rows))
        return answer


def _has_key(record: bytes, key: str) -> bool:
    try:
        return bool(pb.Message.FromString(record).key == key)
    except DecodeError:  # the node stores any bytes; these only have a hash like the key's
        return False


def _split(records: Any, size: Array) -> list[bytes]:
    joined = b"".join(records)
    size = size.astype(np.int64)
    ends = np.cumsum(size)
    return [joined[low:high] for low, high in zip((ends - size).tolist(), ends.tolist(), strict=True)]
