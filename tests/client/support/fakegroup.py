"""A share group of a fake node: delivery, invisible time, attempts, acks and nacks, as docs/protocol.md says."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from delayapi import codec
from delayapi.proto.delay.v1 import delay_pb2

from tests.client.support.fakes import FakeNode, FakeShard, Refusal


@dataclass
class FakeGroup:
    """One queue's messages and what one group has done with them."""

    queue: int
    records: list[bytes] = field(default_factory=list)
    acked: set[int] = field(default_factory=set)
    visible_at: dict[int, float] = field(default_factory=dict)
    dead: set[int] = field(default_factory=set)
    given_back: set[int] = field(default_factory=set)
    attempts: dict[int, int] = field(default_factory=dict)
    max_messages: int = 1 << 20
    handed_out: list[tuple[int, int]] = field(default_factory=list)

    def release(self, bodies: list[bytes]) -> None:
        for body in bodies:
            self.records.append(delay_pb2.Message(body=body, key=f"k{len(self.records)}").SerializeToString())

    def release_stored(self, shard: FakeShard) -> None:
        """What producers have sent."""
        self.records += [bytes(stored.record) for stored in shard.stored]

    def take(self, most: int, invisible_ms: int) -> bytes:
        now = time.monotonic()
        rows = [
            offset
            for offset in range(len(self.records))
            if offset not in self.acked | self.dead and self.visible_at.get(offset, 0.0) <= now
        ][: min(most, self.max_messages)]
        for offset in rows:
            self.visible_at[offset] = now + invisible_ms / 1000
            if offset not in self.given_back:
                self.attempts[offset] = self.attempts.get(offset, 0) + 1
            self.given_back.discard(offset)
            self.handed_out.append((offset, self.attempts[offset]))
        offsets = np.array(rows, "<i8")
        records = [self.records[offset] for offset in rows]
        return codec.encode_message_batch(
            100 + self.queue,
            len(rows),
            offsets,
            offsets + 1000,
            offsets * 2,
            np.array([len(record) for record in records], "<u4"),
            np.array([self.attempts[offset] for offset in rows], "<u4"),
            records,
            len(self.records),
            0,
        )

    def nack(self, offset: int, attempt: int, backoff_ms: int, dead: bool) -> bool:
        if not self.holds(offset, attempt):
            return False
        self.visible_at[offset] = time.monotonic() + max(0, backoff_ms) / 1000
        if dead:
            self.dead.add(offset)
        return True

    def extend(self, offset: int, attempt: int, invisible_ms: int) -> bool:
        if not self.holds(offset, attempt):
            return False
        self.visible_at[offset] = time.monotonic() + invisible_ms / 1000
        if not invisible_ms:
            self.given_back.add(offset)
        return True

    def holds(self, offset: int, attempt: int) -> bool:
        """Whether this attempt is not over."""
        is_out = offset not in self.acked | self.dead and self.visible_at.get(offset, 0.0) > time.monotonic()
        return is_out and self.attempts.get(offset) == attempt


class Groups:
    """The groups of a node's queues, answering its calls."""

    def __init__(self, node: FakeNode) -> None:
        self.queues = [FakeGroup(shard.queue) for shard in node.cluster.shards]
        self.refuse: list[Refusal] = []
        """Answers for the next calls."""
        self.lose_ack_answers = 0
        self.waiting: Counter[int] = Counter()
        """Polls that wait for messages, by queue."""
        self.serve_at(node)

    def serve_at(self, node: FakeNode) -> None:
        """Let the node answer for these groups, but not while it is frozen, and not for earlier calls."""
        node.unary.update(Receive=partial(self.receive, node), Ack=self.ack, Nack=self.nack, Extend=self.extend)

    def all_acked(self) -> bool:
        return all(len(queue.acked) == len(queue.records) for queue in self.queues)

    def _maybe_refuse(self) -> None:
        if self.refuse:
            raise self.refuse.pop(0)

    async def receive(self, node: FakeNode, request: Any) -> bytes:
        self._maybe_refuse()
        queue = self.queues[request.queue]
        deadline = time.monotonic() + request.wait_ms / 1000
        while True:
            await node.awake.wait()
            data = queue.take(request.max_messages, request.invisible_ms)
            if codec.decode_message_batch(data).count or time.monotonic() > deadline:
                return data
            self.waiting[queue.queue] += 1
            try:
                await asyncio.sleep(0.01)
            finally:
                self.waiting[queue.queue] -= 1

    def ack(self, request: Any) -> Any:
        self._maybe_refuse()
        queue = self.queues[request.queue]
        before = len(queue.acked)
        ranges = zip(np.frombuffer(request.start, "<i8"), np.frombuffer(request.end, "<i8"), strict=True)
        for start, end in ranges:
            assert 0 <= start < end <= len(queue.records)
            queue.acked.update(range(start, end))
        if self.lose_ack_answers:
            self.lose_ack_answers -= 1
            raise Refusal("NOT_SERVING")
        return delay_pb2.AckResponse(acknowledged=len(queue.acked) - before)

    def nack(self, request: Any) -> Any:
        self._maybe_refuse()
        queue = self.queues[request.queue]
        done = [queue.nack(*row, request.backoff_ms, request.dead) for row in rows_of(request)]
        return delay_pb2.NackResponse(retried=sum(done), ignored=len(done) - sum(done), settlement=settlement(done))

    def extend(self, request: Any) -> Any:
        self._maybe_refuse()
        queue = self.queues[request.queue]
        done = [queue.extend(*row, request.invisible_ms) for row in rows_of(request)]
        return delay_pb2.ExtendResponse(settlement=settlement(done))


def rows_of(request: Any) -> list[tuple[int, int]]:
    """The (offset, attempt) rows of a request."""
    offsets, attempts = np.frombuffer(request.offset, "<i8"), np.frombuffer(request.attempt, "<u4")
    return list(zip(offsets.tolist(), attempts.tolist(), strict=True))


def settlement(done: list[bool]) -> bytes:
    return bytes(delay_pb2.SETTLED if one else delay_pb2.ATTEMPT_OVER for one in done)
