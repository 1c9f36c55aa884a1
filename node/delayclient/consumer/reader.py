"""Reads one queue by offset, from its master or from any copy in sync with it (RIP-19's phase 2).

A message that a copy gives is committed, however long ago the copy heard of its master; only that there is no more
may be old news. So what a stale copy gives is taken, and it is left for another one when it has nothing, or nothing
new. Offsets go on where they were, whichever copy answers: none comes twice, none is left out.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Final, Unpack

import numpy as np
from delayapi.codec import MessageBatchView, decode_message_batch
from delayapi.durations import duration_ms
from delayapi.proto.delay.v1 import delay_pb2
from delayapi.wirefields import WireError

from delayclient.consumer.received import NoAcks, ReceivedBatch, ReceivedMessage
from delayclient.errors import DelayError, NotFound, Unavailable
from delayclient.routing.access import Access
from delayclient.routing.routing import Cluster, ClusterUser, backoff_s

_ANSWER_S: Final = 2.0
"""Over the wait that was asked for: then the copy is frozen or cut off."""
_NO_ACKS: Final = NoAcks("a message that is read by offset cannot be acknowledged: receive it as a group's consumer")


class Reader(ClusterUser):
    """Reads one queue of a topic. An async context manager and async iterator; belongs to one event loop.

    It is not a consumer group: messages that all groups are done with may be gone before it is read here
    (OffsetTrimmed).
    """

    def __init__(
        self,
        endpoint: str | Iterable[str] | Cluster,
        topic: str,
        queue: int,
        *,
        offset: int = 0,
        from_slaves: bool = False,
        max_staleness: int | str | timedelta = "2s",
        follow: bool = True,
        timeout: int | str | timedelta = "30s",
        **access: Unpack[Access],
    ) -> None:
        """`offset`: of the first message. `follow`: at the queue's end the iteration waits for more, else it ends.

        `from_slaves`: read from any copy, slaves first, where the cluster delivers from slaves. `max_staleness`: how
        old a slave's knowledge of the queue's end may be. `timeout`: how long read() looks for a copy that answers.
        """
        super().__init__(endpoint, **access)
        self.topic = topic
        self.queue = queue
        self.offset = offset
        """Where read() goes on."""
        self.source = ""
        """The address that answered last."""
        self.behind_ms = 0
        """Since when the copy that answered last may know less than the master; 0: the master answered."""
        self._from_slaves = from_slaves
        self._max_behind_ms = duration_ms(max_staleness)
        self._follow = follow
        self._timeout_s = duration_ms(timeout) / 1000
        self._uid = 0
        self._excluded: set[str] = set()
        """Copies that failed, or were stale, since one was neither."""
        self._batch: ReceivedBatch | None = None
        self._row = 0

    def __aiter__(self) -> Reader:
        return self

    async def __anext__(self) -> ReceivedMessage:
        while self._batch is None or self._row >= len(self._batch):
            batch = await self.read(wait=1_000 if self._follow else 0)
            if not len(batch) and not self._follow:
                raise StopAsyncIteration
            self._batch, self._row = batch, 0
        self._row += 1
        return ReceivedMessage(self._batch, self._row - 1)

    async def read(self, most: int = 4096, wait: int | str | timedelta = "1s") -> ReceivedBatch:
        """The next messages, at most `most`; none when none came for `wait`, as a copy that is not stale says.

        Raises OffsetTrimmed: the next message is kept no longer (metadata `start`: the first one that is); NotFound;
        Unavailable: for `timeout` no copy has answered that is not stale.
        """
        wait_ms = duration_ms(wait)
        deadline_s = time.monotonic() + self._timeout_s
        failures = 0
        while True:
            source = ""
            try:
                source = await self._choose()
                view = await self._fetch(source, most, wait_ms)
                batch = self._checked(view)
                self.source, self.behind_ms = source, view.behind_ms
                if view.behind_ms <= self._max_behind_ms:
                    self._excluded.clear()
                    return batch
                self._excluded.add(source)
                self.cluster.route_table.refresh_soon(self.topic)
                if len(batch):
                    return batch
                raise Unavailable(
                    f"{source} has not heard from the master of {self.topic}-{self.queue} for {view.behind_ms} ms",
                    code="UNAVAILABLE",
                    reason="STALE",
                )
            except DelayError as error:
                if not error.retryable or time.monotonic() >= deadline_s:
                    raise
                failure = error
            self._excluded.add(source)
            if self._others():
                continue
            self._excluded.clear()
            if failure.reason == "STALE":
                await asyncio.sleep(backoff_s(failures))
            else:
                await self.cluster.after_failure(self.topic, self.queue, failure, failures, source)
            failures += 1

    def _others(self) -> list[str]:
        """Copies that may be asked, other than those that were of no use just now."""
        route = self.cluster.route_table.at(self.topic, self.queue)
        if not self._from_slaves or route is None:
            return []
        return [endpoint for endpoint in route.readable if endpoint not in self._excluded]

    async def _choose(self) -> str:
        if not self._from_slaves or not (await self.cluster.route(self.topic)).queues[self.queue : self.queue + 1]:
            return await self.cluster.address(self.topic, self.queue)
        others = self._others()
        if self.source in others and not self.cluster.reachability.is_unreachable(self.source):
            return self.source
        if not others:
            return await self.cluster.address(self.topic, self.queue)
        master = self.cluster.master(self.topic, self.queue)
        random.shuffle(others)
        return min(others, key=lambda endpoint: (self.cluster.reachability.is_suspect(endpoint), endpoint == master))

    async def _fetch(self, source: str, most: int, wait_ms: int) -> MessageBatchView:
        request = delay_pb2.FetchRequest(
            topic=self.topic, queue=self.queue, offset=self.offset, max_messages=most, wait_ms=wait_ms
        )
        try:
            return await self.cluster.call_at(
                source, "Fetch", request, decode_message_batch, wait_ms / 1000 + _ANSWER_S
            )
        except WireError as error:
            raise DelayError(f"{source} sent what is not a message batch: {error}", code="INTERNAL") from None

    def _checked(self, view: MessageBatchView) -> ReceivedBatch:
        """The answer, once it is certain that it is what was asked for; the reader has moved on then."""
        batch = ReceivedBatch(self.topic, self.queue, view, int(time.time() * 1000), _NO_ACKS)
        if self._uid and view.uid != self._uid:
            message = f"{self.topic}-{self.queue} was deleted and made again: its offsets are others"
            raise NotFound(message, code="NOT_FOUND", reason="UNKNOWN_QUEUE")
        expected = np.arange(self.offset, self.offset + len(batch))
        if not np.array_equal(batch.offset, expected):
            message = f"{self.topic}-{self.queue}: asked from offset {self.offset}, the answer has other offsets"
            raise DelayError(message, code="INTERNAL", reason="WRONG_ANSWER")
        self._uid = view.uid
        self.offset += len(batch)
        return batch
