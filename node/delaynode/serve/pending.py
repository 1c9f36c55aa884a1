"""Cancel, Reschedule and ListPending: messages that are not released yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zlib import crc32

import numpy as np
from delayclient.proto.delay.v1 import delay_pb2 as pb
from google.protobuf.message import DecodeError

from delaynode.serve.dispatch import Dispatch
from delaynode.serve.host import ShardHost
from delaynode.serve.rpc import column, fitting
from delaynode.store.errors import Refused
from delaynode.store.intake import MAX_BATCH_MESSAGES
from delaynode.store.shard import Lookup
from delaynode.store.types import I64, Array, Bools, Pair, Records
from delaynode.store.window import after

MAX_PAGE = 10_000


class PendingCalls:
    """Each method serves one call for a shard that is here, and answers once its answer is committed."""

    def __init__(self, dispatch: Dispatch) -> None:
        self.node = dispatch.node

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
        by_key = bool(request.key)
        due, seq = await self._with_key(request, host) if by_key else self._handles(request, host)
        if not len(due):
            return pb.CancelResponse()
        shard = host.shard
        lookup = shard.begin_lookup(due, seq)
        try:
            await host.look_up(lookup)
            host.check_serving()
            outcomes = shard.cancel(lookup, self.node.clock.now_ms())
        finally:
            shard.end_lookup(lookup)
        host.changed()
        await host.committed(shard.log_end)
        self.node.metrics.cancelled[host.topic] += int(np.count_nonzero(outcomes.outcome == pb.CANCELLED))
        answer = pb.CancelResponse(outcome=outcomes.outcome.tobytes())
        if by_key:
            answer.due, answer.seq = due.tobytes(), seq.tobytes()
        return answer

    async def _with_key(self, request: pb.CancelRequest, host: ShardHost) -> tuple[I64, I64]:
        """Pending messages in the due range whose key is the request's: by hash first, then the key itself."""

        if request.from_ms >= request.to_ms:
            raise Refused("BAD_REQUEST", f"empty range: from_ms {request.from_ms} is not before to_ms {request.to_ms}")
        wanted = crc32(request.key.encode())

        def keep(rows: Records) -> Bools:
            hit: Bools = (rows["key"] == wanted) | (
                rows["magic"] != 1
            )  # a ROLL or DELETE decides about one with the key
            return hit

        rows, _ = await self._pending(host, Pair(request.from_ms, 0), Pair(request.to_ms, 0), keep, None)
        rows = rows[rows["key"] == wanted]
        same: list[bool] = []
        while len(same) < len(rows):  # a key may have any number of messages: a few MiB of them at a time
            part = rows[len(same) :]
            part = part[: fitting(part["size"])]
            records = await host.read_records(part)
            same += [_has_key(record, request.key) for record in _split(records, part["size"])]
        rows = rows[np.array(same, bool)]
        return np.ascontiguousarray(rows["due"]), np.ascontiguousarray(rows["seq"])

    async def _pending(
        self, host: ShardHost, low: Pair, high: Pair, keep: Callable[[Records], Bools] | None, most: int | None
    ) -> tuple[Records, bool]:
        """Live rows of a range above the watermark, committed, by (due, seq); and whether there may be more behind."""
        index = host.shard.index
        low = max(low, after(index.watermark))
        if low >= high:
            return index.window.find(np.empty(0, np.int64), np.empty(0, np.int64))[0], False
        job = index.begin_scan(low, high, keep, most)
        try:
            await host.off_loop(job.run)
            rows, live = job.result()
        finally:
            index.end_capture(job.capture)
        host.check_serving()
        await host.committed(host.shard.log_end)
        return rows[live], job.high < high

    async def reschedule(self, request: pb.RescheduleRequest, host: ShardHost) -> pb.RescheduleResponse:
        due, seq = self._handles(request, host)
        new = column("time", request.time, "<i8", len(due))
        relative = column("relative", request.relative, "u1", len(due)) if request.relative else np.empty(0, np.uint8)
        if int(new.min()) < 0 or (len(relative) and int(relative.max()) > 1):
            raise Refused("BAD_COLUMNS", "column time must not be negative, column relative must be 0 or 1")
        shard = host.shard
        lookup: Lookup = shard.begin_lookup(due, seq)
        try:
            await host.look_up(lookup)
            host.check_serving()
            outcomes = shard.reschedule(lookup, new, relative, self.node.clock.now_ms())
        finally:
            shard.end_lookup(lookup)
        moved = outcomes.due[outcomes.outcome == pb.MOVED]
        host.changed(int(moved.min()) if len(moved) else None)
        await host.committed(shard.log_end)
        return pb.RescheduleResponse(outcome=outcomes.outcome.tobytes(), due=outcomes.due.tobytes())

    async def list_pending(self, request: pb.ListPendingRequest, host: ShardHost) -> pb.PendingBatch:
        limit = min(request.limit or 1000, MAX_PAGE)
        low = max(Pair(request.from_ms, 0), after(Pair(request.after_due, request.after_seq)))
        high = Pair(request.to_ms or host.shard.index.last_due_ms() + 1, 0)
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
