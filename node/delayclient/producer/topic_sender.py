"""A topic's way out of a producer: a lane for each queue, the batches being gathered, and the messages that wait.

A message waits while its topic's route is unknown or the producer has no room, in the order in which it was sent.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from delayclient.errors import DelayError, SendTimeout
from delayclient.producer.batch import Collector, ExplicitBatch, ShardBatch
from delayclient.producer.queue_sender import QueueSender
from delayclient.producer.requests import Messages
from delayclient.producer.results import BatchPart, SendResult
from delayclient.routing.routing import Cluster, TopicRoute, backoff_s

BATCH_MESSAGES: Final = 4096
BATCH_BYTES: Final = 1 << 20
UNLIMITED_MS: Final = 1 << 62
_REFRESH_S: Final = 60.0


Message: TypeAlias = tuple[int, int, int, int, int, bytes, asyncio.Future[SendResult]]
"""One message's row: time ms, relative 0 or 1, record bytes, key hash (0: no key), tag hash, message id, future."""

Record: TypeAlias = tuple[bytes, bytes, bytes]
"""A record in three pieces, head, body and tail, so that the body is copied once."""


@dataclass(slots=True)
class SendBudget:
    """The messages that a producer holds, over all topics."""

    max_bytes: int
    on_room: Callable[[], None]
    """Called when records were acknowledged while messages wait."""
    buffered_bytes: int = 0
    """Records sent or gathered, not acknowledged."""
    unresolved: int = 0
    """Messages not acknowledged, those that wait included."""
    waiting: int = 0
    progress: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at each change for the better."""

    @property
    def full(self) -> bool:
        return self.buffered_bytes >= self.max_bytes or self.waiting > 0


class TopicSender:
    """The lanes of one topic."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        budget: SendBudget,
        timeout_s: float,
        linger_s: float,
        on_failure: Callable[[TopicSender], None],
    ) -> None:
        """`on_failure` is called when the topic turns out not to exist, before its messages fail."""
        self.topic = topic
        self.max_delay_ms = UNLIMITED_MS
        self.queue_senders: list[QueueSender] = []
        self.waiting: deque[tuple[float, Message, Record]] = deque()
        """(deadline by the loop's clock, message, record)."""
        self.error: DelayError | None = None
        """Why the topic has no lanes; set once it is final."""
        self._cluster = cluster
        self._budget = budget
        self._timeout_s = timeout_s
        self._linger_s = linger_s
        self._on_failure = on_failure
        self._open: list[Collector | None] = []
        self._sticky = 0
        self._loop = asyncio.get_running_loop()
        self._refresh_at_s = 0.0
        self.ready = self._loop.create_task(self._open_queue_senders())

    # ------------------------------------------------------------------------------------------- lanes

    async def _open_queue_senders(self) -> None:
        """Asks for the route until it is there, or until no message waits for it any more."""
        failures = 0
        deadline_s = self._loop.time() + self._timeout_s
        while True:
            try:
                self._add_queue_senders(await self._cluster.route(self.topic))
                break
            except DelayError as error:
                if not error.retryable or (self._loop.time() >= deadline_s and not self.waiting):
                    self.error = error
                    self._on_failure(self)
                    self.fail_waiting(error)
                    return
            await asyncio.sleep(backoff_s(failures))
            failures += 1
        self.drain_waiting()

    def _add_queue_senders(self, route: TopicRoute) -> None:
        self.max_delay_ms = route.max_delay_ms or UNLIMITED_MS
        if not self.queue_senders and route.queues:  # else those who send once and go would all take the first
            self._sticky = random.randrange(len(route.queues))
        for queue in range(len(self.queue_senders), len(route.queues)):
            self.queue_senders.append(QueueSender(self._cluster, self.topic, queue, self._drained))
            self._open.append(None)
        self._refresh_at_s = self._loop.time() + _REFRESH_S

    async def _refresh(self) -> None:
        try:
            self._add_queue_senders(await self._cluster.refresh(self.topic))
        except DelayError:
            # The lanes hear of what matters themselves; this only looks for new queues.
            self._refresh_at_s = self._loop.time() + _REFRESH_S

    def tick(self, now_s: float) -> bool:
        """Gives up what is overdue; to be called a few times a second while it returns true."""
        for queue_sender in self.queue_senders:
            queue_sender.check(now_s)
        self.fail_waiting(SendTimeout("not sent in time: no route or no room", maybe_stored=False), now_s)
        if self.queue_senders and now_s >= self._refresh_at_s:
            self._refresh_at_s = float("inf")
            self.ready = self._loop.create_task(self._refresh())
        return bool(self.waiting) or any(queue_sender.active for queue_sender in self.queue_senders)

    # ----------------------------------------------------------------------------------------- gather

    def send(self, message: Message, record: Record) -> None:
        """Takes a message; its future is done when it is acknowledged."""
        budget = self._budget
        if self.waiting or not self.queue_senders or budget.buffered_bytes >= budget.max_bytes:
            self.waiting.append((self._loop.time() + self._timeout_s, message, record))
            budget.waiting += 1
        else:
            self._collect(message, record)

    def _collect(self, message: Message, record: Record) -> None:
        size, key_hash = message[2], message[3]
        index = key_hash % len(self.queue_senders) if key_hash else self._sticky
        if message[5] and not key_hash:  # an id is known to its own shard
            index = int.from_bytes(message[5][:4], "little") % len(self.queue_senders)
        collector = self._open[index] or self._open_collector(index)
        collector.messages.append(message)
        collector.records += record
        collector.nbytes += size
        self._budget.buffered_bytes += size
        if collector.nbytes >= BATCH_BYTES or len(collector.messages) >= BATCH_MESSAGES:
            self._seal(index, collector)

    def _open_collector(self, index: int) -> Collector:
        collector = self._open[index] = Collector(self._loop.time() + self._timeout_s)
        if self.queue_senders[index].window.empty:
            # Nothing to wait behind: what is sent in this turn of the loop goes together, at once.
            self._loop.call_soon(self._seal, index, collector)
        else:
            self._loop.call_later(self._linger_s, self._lingered, index, collector)
        return collector

    def _lingered(self, index: int, collector: Collector) -> None:
        """A batch that would only wait behind others goes on gathering: after a failover few large ones are sent."""
        if not self.queue_senders[index].window.backed_up:
            self._seal(index, collector)
        elif self._open[index] is collector:
            collector.held = True
            if index == self._sticky:
                self._sticky = self._next_queue(index)

    def _drained(self, queue: int) -> None:
        collector = self._open[queue]
        if collector is not None and collector.held:
            self._seal(queue, collector)

    def _seal(self, index: int, collector: Collector) -> None:
        if self._open[index] is not collector:
            return  # it was full and went before its linger was over
        self._open[index] = None
        self.queue_senders[index].add(collector.seal(self.topic, index, self._release))
        if index == self._sticky:
            self._sticky = self._next_queue(index)

    def seal_all(self) -> None:
        """Sends what is gathered without waiting for more."""
        for index, collector in enumerate(self._open):
            if collector is not None:
                self._seal(index, collector)

    def _next_queue(self, queue: int) -> int:
        """The next queue in turn whose shard answers; the next one when none does."""
        n = len(self.queue_senders)
        for step in range(1, n + 1):
            if self.queue_senders[(queue + step) % n].responsive:
                return (queue + step) % n
        return (queue + 1) % n

    # ------------------------------------------------------------------------------------------- parts

    def send_part(self, messages: Messages, queue: int | None, rows: NDArray[np.int64]) -> ExplicitBatch:
        """Sends some rows of many messages in one request; to the next queue in turn when `queue` is None."""
        if queue is None:
            self._sticky = queue = self._next_queue(self._sticky)
        columns, nbytes = messages.columns(rows, int(time.time() * 1000))
        deadline_s = self._loop.time() + self._timeout_s
        future: asyncio.Future[BatchPart] = self._loop.create_future()
        part = ExplicitBatch(
            self.topic, queue, columns, len(rows), nbytes, deadline_s, self._release, rows=rows, future=future
        )
        self._budget.buffered_bytes += nbytes
        self._budget.unresolved += part.count
        self.queue_senders[queue].add(part)
        return part

    # ----------------------------------------------------------------------------------------- waiting

    def drain_waiting(self) -> None:
        """Sends those that wait, as far as there is room."""
        budget = self._budget
        while self.waiting and self.queue_senders and budget.buffered_bytes < budget.max_bytes:
            _, message, record = self.waiting.popleft()
            budget.waiting -= 1
            if message[-1].done():
                budget.unresolved -= 1  # cancelled by its sender
            else:
                self._collect(message, record)
        budget.progress.set()

    def fail_waiting(self, error: DelayError, due_s: float = float("inf")) -> None:
        """Fails those whose deadline is not after `due_s`."""
        while self.waiting and self.waiting[0][0] <= due_s:
            future = self.waiting.popleft()[1][-1]
            self._budget.waiting -= 1
            self._budget.unresolved -= 1
            if not future.done():
                future.set_exception(error)
            self._budget.progress.set()

    def _release(self, batch: ShardBatch) -> None:
        self._budget.buffered_bytes -= batch.nbytes
        self._budget.unresolved -= batch.count
        if self._budget.waiting:
            self._budget.on_room()
        self._budget.progress.set()

    async def close(self) -> None:
        """Ends the lanes; what is not acknowledged fails."""
        self.seal_all()
        self.ready.cancel()
        await asyncio.gather(*(queue_sender.stop() for queue_sender in self.queue_senders))
