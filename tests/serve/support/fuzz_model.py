"""The right content of a node's shards, by its own answers: each accepted and not cancelled message, once."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delaynode.store.shard import MAX_AHEAD_MS
from google.protobuf.message import DecodeError

from tests.serve.support.client import METHODS, ints
from tests.serve.support.fuzz_inside import Inside

KEPT_HANDLES = 400
KEEPER = "keeper"  # a group that consumes nothing, so that nothing is freed

Row = tuple[int, int]
"""(due ms, seq)."""


class Model:
    """live: each live message's due, by queue and seq."""

    def __init__(self, queues: int) -> None:
        self.live: list[dict[int, int]] = [{} for _ in range(queues)]
        self.fetched = [0] * queues  # by queue: the offset up to which the released messages were fetched
        self.handles: list[tuple[int, int, int]] = [(0, 0, 0)]
        self.stored = 0
        self.fired = 0  # messages of schedules, as answered; beside those that have fired by the clock
        self._fired = 0  # the same, as released

    def _handle(self, queue: int, due: int, seq: int) -> None:
        self.handles.append((queue, due, seq))
        if len(self.handles) > KEPT_HANDLES:
            del self.handles[: KEPT_HANDLES // 2]

    def note(self, method: str, data: bytes, answer: bytes) -> None:
        """Record an answered request. The generated classes must read its bytes as the node did."""
        if method not in METHODS:
            return
        try:
            asked = METHODS[method][0].FromString(data)
        except DecodeError as error:
            raise AssertionError(f"{method} accepted what is no protobuf: {error}") from error
        answered = METHODS[method][1].FromString(answer)
        if method == "Enqueue":
            self.enqueued(asked, answered)
        elif method == "Cancel":
            self._cancelled(asked, answered)
        elif method == "Reschedule":
            self._rescheduled(asked, answered)
        elif method in ("TriggerSchedule", "BackfillSchedule"):
            assert [one.number for one in answered.firings] == list(
                range(answered.state.fired - len(answered.firings) + 1, answered.state.fired + 1)
            )
            self.fired += len(answered.firings)
        elif method == "ListPending":
            _check_page(asked, answered)
        elif method in ("Fetch", "Receive", "ListDeadLetters"):
            _check_batch(answered)

    def enqueued(self, asked: Any, answer: Any) -> None:
        assert answer.count == asked.count or answer.duplicate
        if answer.duplicate:
            return
        dues = ints(answer.due) or ints(asked.time)
        assert len(dues) == answer.count
        live = self.live[asked.queue]
        for seq, due in enumerate(dues, answer.first_seq):
            assert seq not in live
            live[seq] = due
        self.stored += len(dues)
        self._handle(asked.queue, dues[0], answer.first_seq)

    def _cancelled(self, asked: Any, answer: Any) -> None:
        due, seq = (answer.due, answer.seq) if asked.key else (asked.due, asked.seq)
        live = self.live[asked.queue]
        for due_ms, number, outcome in zip(ints(due), ints(seq), answer.outcome, strict=True):
            assert pb.CANCELLED <= outcome <= pb.NOT_FOUND
            if outcome == pb.CANCELLED:
                assert live.pop(number) == due_ms

    def _rescheduled(self, asked: Any, answer: Any) -> None:
        live = self.live[asked.queue]
        rows = zip(ints(asked.due), ints(asked.seq), answer.outcome, ints(answer.due), strict=True)
        for due_ms, number, outcome, new_ms in rows:
            assert pb.TOO_LATE <= outcome <= pb.MOVED
            assert (outcome == pb.MOVED) or new_ms == 0
            if outcome == pb.MOVED:
                assert live.pop(number) == due_ms
                live[number] = new_ms
                self._handle(asked.queue, new_ms, number)

    async def check(self, inside: Inside) -> None:
        """Each live message is pending or released, once, and nothing else is. No call may be under way."""
        for queue, live in enumerate(self.live):
            pending = await _pending(inside, queue)
            await asyncio.sleep(MAX_AHEAD_MS / 1000)  # what was released ahead is seen
            released = await self._released(inside, queue)
            assert len(set(pending)) == len(pending)
            assert len(set(released)) == len(released)
            found = set(pending) | set(released)
            wanted = {(due, seq) for seq, due in live.items()}
            assert found == wanted, f"queue {queue}: {len(found - wanted)} too many, {len(wanted - found)} missing"
            for _, seq in released:
                del live[seq]
        assert self._fired >= self.fired, f"{self.fired} firings were answered, {self._fired} are released"

    async def _released(self, inside: Inside, queue: int) -> list[Row]:
        """The messages released since the last call."""
        found: list[Row] = []
        while True:
            asked = pb.FetchRequest(topic="t", queue=queue, offset=self.fetched[queue], max_messages=65_536)
            answer = await inside.ask("Fetch", asked, pb.MessageBatch)
            _check_batch(answer)
            if not answer.count:
                return found
            assert ints(answer.offset)[0] == self.fetched[queue]
            self.fetched[queue] = answer.next_offset
            rows = list(zip(ints(answer.due), ints(answer.seq), strict=True))
            ends = np.cumsum(np.frombuffer(answer.size, "<u4"), dtype=np.int64).tolist()
            fired = [b"schedule-id" in answer.records[low:high] for low, high in zip([0, *ends], ends, strict=False)]
            self._fired += sum(fired)
            found += [row for row, of_schedule in zip(rows, fired, strict=True) if not of_schedule]


async def _pending(inside: Inside, queue: int) -> list[Row]:
    found: list[Row] = []
    more = True
    while more:
        due, seq = found[-1] if found else (0, 0)
        asked = pb.ListPendingRequest(topic="t", queue=queue, after_due=due, after_seq=seq, limit=10_000)
        page = await inside.ask("ListPending", asked, pb.PendingBatch)
        _check_page(asked, page)
        found += zip(ints(page.due), ints(page.seq), strict=True)
        more = page.more and bool(page.count)
    return found


def _check_page(asked: Any, page: Any) -> None:
    rows = list(zip(ints(page.due), ints(page.seq), strict=True))
    assert len(rows) == page.count <= (asked.limit or 1000)
    assert rows == sorted(rows)
    sizes = np.frombuffer(page.size, "<u4")
    assert len(sizes) == page.count
    assert not asked.with_records or len(page.records) == int(sizes.sum(dtype=np.int64))
    if rows:
        assert rows[0] > (asked.after_due, asked.after_seq)
        assert rows[0][0] >= asked.from_ms
        assert not asked.to_ms or rows[-1][0] < asked.to_ms


def _check_batch(batch: Any) -> None:
    columns = [ints(batch.offset), ints(batch.due), ints(batch.seq), np.frombuffer(batch.size, "<u4").tolist()]
    assert {len(column) for column in columns} == {batch.count}
    assert sum(columns[3]) == len(batch.records)
    assert len(batch.attempt) in (0, 4 * batch.count)
