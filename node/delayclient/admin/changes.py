"""Cancels and reschedules messages by handle, through failovers.

A call whose answer was lost is made again, and then what it did the first time looks as if another caller had done it.
So where an attempt of the same call is in doubt, ALREADY_CANCELLED counts as CANCELLED, and RESCHEDULED as MOVED if
the message is found pending at exactly the time that was asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import numpy as np
from delayapi.handle import Handle
from delayapi.proto.delay.v1 import delay_pb2
from numpy.typing import NDArray

from delayclient.admin.views import Outcome, Rescheduled, column
from delayclient.routing.routing import Cluster

_CHUNK: Final = 50_000
_PARALLEL: Final = 16

Shard = tuple[str, int, int]
"""Topic, queue, uid."""
T = TypeVar("T")


class HandleChanges:
    """Changes to the messages that some handles name; `timeout_s` bounds each call, its retries included."""

    def __init__(self, cluster: Cluster, handles: Sequence[str | Handle], timeout_s: float) -> None:
        """Raises BadHandle."""
        self._cluster = cluster
        self._handles = [handle if isinstance(handle, Handle) else Handle.decode(handle) for handle in handles]
        self._timeout_s = timeout_s

    async def cancel(self) -> list[Outcome]:
        """The outcomes, in the handles' order."""
        outcomes = np.zeros(len(self._handles), np.uint8)

        async def one(shard: Shard, rows: NDArray[np.int64]) -> None:
            topic, queue, uid = shard
            due, seq = self._due_seq(rows)
            request = delay_pb2.CancelRequest(topic=topic, queue=queue, uid=uid, due=due.tobytes(), seq=seq.tobytes())
            answer, doubted = await self._call("Cancel", request, delay_pb2.CancelResponse.FromString)
            found = column(answer.outcome, "u1", len(rows))
            if doubted:
                found = np.where(found == Outcome.ALREADY_CANCELLED, np.uint8(Outcome.CANCELLED), found)
            outcomes[rows] = found

        await together(one(*part) for part in self._by_shard())
        return [Outcome(outcome) for outcome in outcomes.tolist()]

    async def reschedule(self, time_ms: int, *, relative: bool) -> list[Rescheduled]:
        """The outcomes and new handles, in the handles' order."""
        results: list[Rescheduled | None] = [None] * len(self._handles)

        async def one(shard: Shard, rows: NDArray[np.int64]) -> None:
            topic, queue, uid = shard
            due, seq = self._due_seq(rows)
            request = delay_pb2.RescheduleRequest(
                topic=topic,
                queue=queue,
                uid=uid,
                due=due.tobytes(),
                seq=seq.tobytes(),
                time=np.full(len(rows), time_ms, "<i8").tobytes(),
                relative=b"\x01" * len(rows) if relative else b"",
            )
            answer, doubted = await self._call("Reschedule", request, delay_pb2.RescheduleResponse.FromString)
            new_due = column(answer.due, "<i8", len(rows)).tolist()
            outcomes = column(answer.outcome, "u1", len(rows)).tolist()
            for row, outcome, due_ms in zip(rows.tolist(), outcomes, new_due, strict=True):
                number = self._handles[row].seq
                if doubted and not relative and outcome == Outcome.RESCHEDULED:
                    due_ms = time_ms
                    outcome = Outcome.MOVED if await self._pending(shard, time_ms, number) else outcome
                moved = outcome == Outcome.MOVED
                handle = Handle(topic, queue, uid, due_ms, number).encode() if moved else ""
                results[row] = Rescheduled(Outcome(outcome), handle)

        await together(one(*part) for part in self._by_shard())
        return [result for result in results if result is not None]

    async def _pending(self, shard: Shard, due_ms: int, seq: int) -> bool:
        """The message is pending with this due."""
        topic, queue, uid = shard
        request = delay_pb2.ListPendingRequest(
            topic=topic, queue=queue, from_ms=due_ms, to_ms=due_ms + 1, after_due=due_ms, after_seq=seq - 1, limit=1
        )
        batch, _ = await self._call("ListPending", request, delay_pb2.PendingBatch.FromString)
        return batch.uid == uid and batch.count == 1 and int(column(batch.seq, "<i8", 1)[0]) == seq

    async def _call(self, method: str, request: Any, decode: Any) -> tuple[Any, bool]:
        """The answer; whether an attempt before it may have done the same."""
        doubts: list[None] = []
        topic, queue, timeout_s = request.topic, request.queue, self._timeout_s
        answer = await self._cluster.call(
            method, topic, queue, request, decode, timeout_s=timeout_s, on_doubt=lambda: doubts.append(None)
        )
        return answer, bool(doubts)

    def _by_shard(self) -> Iterator[tuple[Shard, NDArray[np.int64]]]:
        """(shard, rows i64[k]) of each request."""
        rows: dict[Shard, list[int]] = {}
        for row, handle in enumerate(self._handles):
            rows.setdefault((handle.topic, handle.queue, handle.uid), []).append(row)
        for shard, mine in rows.items():
            for start in range(0, len(mine), _CHUNK):
                yield shard, np.array(mine[start : start + _CHUNK], np.int64)

    def _due_seq(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        mine = [self._handles[row] for row in rows.tolist()]
        return np.array([h.due_ms for h in mine], "<i8"), np.array([h.seq for h in mine], "<i8")


async def together(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all calls, a few at a time."""
    slots = asyncio.Semaphore(_PARALLEL)

    async def one(call: Coroutine[Any, Any, T]) -> T:
        async with slots:
            return await call

    return await asyncio.gather(*map(one, calls))
