"""What a link receives of topics: no more at a time than it has room for, and each message its own until it says what
becomes of it.

A consumer that works on a message for an hour must not hold others meanwhile, nor lose the one it has. So there is no
prefetching beyond the room, what a poll brings too much is given back at the same attempt, and leases are extended for
as long as the program lives.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from delayapi.codec import decode_message_batch
from delayapi.proto.delay.v1 import delay_pb2
from delayapi.reasons import shortened
from delayapi.wirefields import WireError

from delayclient import tracing
from delayclient.consumer.acks import QueueAcks
from delayclient.consumer.received import POLL_BYTES, NoAcks, ReceivedBatch
from delayclient.errors import DelayError, unforeseen
from delayclient.routing.exchange import LAST_S, Exchange
from delayclient.routing.routing import Cluster

_log: Final = logging.getLogger("delayclient")
_WAIT_MS: Final = 5_000
_ANSWER_S: Final = 3.0
"""Over a poll's own wait."""
_UNLIMITED: Final = 1_000
"""The room of a link that sets none."""
_CLOSE_S: Final = 10.0
_NO_ACKS: Final = NoAcks("deliveries are settled by their tags")


@dataclass(slots=True)
class HeldDelivery:
    queue: Queue
    offset: int
    attempt: int
    over: bool = False
    """Its lease has ended, and another consumer may have it: said once."""


def failure(error: DelayError) -> dict[str, Any]:
    """The header that tells of it."""
    told = {"message": str(error), "code": error.code, "reason": error.reason, "retryable": error.retryable}
    return {"error": told}


class Subscription:
    """Of one link."""

    def __init__(self, cluster: Cluster, write: Callable[[dict[str, Any], bytes], None]) -> None:
        self.cluster = cluster
        self.deliveries: dict[int, HeldDelivery] = {}
        """Not settled, by tag."""
        self._write = write
        self._tags = itertools.count(1)
        self._limit = _UNLIMITED
        self._room = asyncio.Event()
        self._queues: dict[str, list[Queue]] = {}  # by topic
        self._stopped: list[Queue] = []
        self._leases: list[asyncio.Task[None]] = []
        self.ops: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {"consume": self._consume, "close": self._close}

    # -------------------------------------------------------------------------------- what the link says

    def tell(self, op: str, header: dict[str, Any]) -> bool:
        """What has no answer; false: it is something else."""
        match op:
            case "room":
                self._limit = header["messages"] or _UNLIMITED
            case "ack" | "retry" | "dead" | "give_back":
                for delivery in filter(None, (self.deliveries.pop(tag, None) for tag in header["tags"])):
                    delivery.queue.settle(op, delivery, header.get("reason", ""))
            case "leave":
                self._stop(header["topic"])
            case _:
                return False
        if self.room > 0:
            self._room.set()
        return True

    async def _consume(self, topic: str, group: str, lease_ms: int) -> dict[str, Any]:
        """Raises DelayError, such as NotFound."""
        route = await self.cluster.refresh(topic)
        if topic not in self._queues:
            turn = asyncio.Lock()
            self._queues[topic] = [
                Queue(self, topic, queue, group, lease_ms, len(route.queues), turn)
                for queue in range(len(route.queues))
            ]
            extending = self.watched(f"extending leases of topic {topic}", self._extend(topic, lease_ms))
            self._leases.append(asyncio.create_task(extending))
        return {}

    async def _close(self) -> dict[str, Any]:
        """The program ends in order: what it did not work on is given back, and no attempt is lost by it."""
        await self._end("give_back")
        return {}

    async def close(self) -> None:
        """The link is gone. If its program did not say so before, it has crashed, perhaps by one of these messages."""
        await self._end("retry", "its worker was gone before it had settled this")

    async def _end(self, op: str, reason: str = "") -> None:
        for topic in list(self._queues):
            self._stop(topic)
        for lease in self._leases:
            lease.cancel()
        for delivery in self.deliveries.values():
            delivery.queue.settle(op, delivery, reason)
        self.deliveries.clear()
        await asyncio.gather(*(queue.flush() for queue in self._stopped))

    def _stop(self, topic: str) -> None:
        """No further messages of a topic; those that are here stay this link's."""
        for queue in self._queues.pop(topic, ()):
            queue.stop()
            self._stopped.append(queue)

    # ------------------------------------------------------------------------------------- what it gets

    @property
    def room(self) -> int:
        return self._limit - len(self.deliveries)

    async def wait_room(self) -> int:
        while self.room <= 0:
            self._room.clear()
            await self._room.wait()
        return self.room

    def deliver(self, queue: Queue, batch: ReceivedBatch) -> None:
        """As many as there is room for; the others are given back, as are those of a queue that has stopped."""
        taken = 0 if queue.stopped else min(len(batch), max(0, self.room))
        for row in range(taken):
            message, tag = batch[row], next(self._tags)
            self.deliveries[tag] = HeldDelivery(queue, message.offset, message.attempt)
            header: dict[str, Any] = {"tag": tag, "topic": queue.topic, "queue": queue.queue}
            header |= {"attempt": message.attempt, "due_ms": message.due_ms, "handle": message.handle}
            try:
                found = message.properties
                context = {name: found[name] for name in tracing.CONTEXT if name in found}
                self._write({**header, "key": message.key, "properties": context}, message.body)
            except WireError:
                _log.warning("%r is not a message that an SDK has sent: it is a dead letter now", message)
                self.tell("dead", {"tags": [tag], "reason": "not a message that an SDK has sent"})
        for row in range(taken, len(batch)):
            queue.settle("give_back", HeldDelivery(queue, batch[row].offset, batch[row].attempt))

    def fail(self, error: DelayError) -> None:
        """A poll has ended for good."""
        self._write({"tag": 0, **failure(error)}, b"")

    async def watched(self, what: str, work: Awaitable[None]) -> None:
        """Work that nobody awaits: where it ends by a fault of our own, the link is told."""
        try:
            await work
        except Exception as error:
            self.fail(unforeseen(what, error))

    async def _extend(self, topic: str, lease_ms: int) -> None:
        """Extends the leases of a topic's deliveries, three times in each lease."""
        while True:
            await asyncio.sleep(lease_ms / 3000)
            held: dict[Queue, list[HeldDelivery]] = defaultdict(list)
            for delivery in self.deliveries.values():
                if delivery.queue.topic == topic and not delivery.over:
                    held[delivery.queue].append(delivery)
            await asyncio.gather(*(queue.extend(deliveries, lease_ms) for queue, deliveries in held.items()))


class Queue:
    """One queue of a topic: its poll, and what is said of its messages."""

    def __init__(
        self,
        subscription: Subscription,
        topic: str,
        queue: int,
        group: str,
        lease_ms: int,
        queues: int,
        turn: asyncio.Lock,
    ) -> None:
        """turn: held while messages are asked for that are there already: room is promised to one queue only."""
        self.topic, self.queue, self.group = topic, queue, group
        self._subscription = subscription
        self._cluster = subscription.cluster
        self._lease_ms, self._queues, self._turn = lease_ms, queues, turn
        self._stream: Exchange | None = None
        self._acks = QueueAcks(self._cluster, topic, queue, group)
        self._calls: set[asyncio.Task[None]] = set()
        self.stopped = False
        self._poll = asyncio.create_task(subscription.watched(f"receiving from {topic}-{queue}", self._run()))

    async def _run(self) -> None:
        """While messages are there they are asked for as there is room, and the queues take turns. Else each queue has
        a poll that waits; of those that answer at once, some may bring too much.
        """
        busy, failures = False, 0
        while not self.stopped:
            await self._subscription.wait_room()
            endpoint = ""
            try:
                endpoint = await self._cluster.address(self.topic, self.queue)
                if busy:
                    async with self._turn:
                        count = await self._ask(endpoint, await self._subscription.wait_room(), 0)
                else:
                    count = await self._ask(endpoint, max(1, self._subscription.room // self._queues), _WAIT_MS)
                busy, failures = count > 0, 0
            except DelayError as error:
                if self.stopped:
                    return
                try:
                    await self._cluster.after_failure(self.topic, self.queue, error, failures, endpoint)
                except DelayError as final:
                    self._subscription.fail(final)
                    return
                busy, failures = False, failures + 1

    async def _ask(self, endpoint: str, messages: int, wait_ms: int) -> int:
        if self._stream is None or self._stream.closed or self._stream.endpoint != endpoint:
            if self._stream is not None:
                self._stream.close()
            route = self._cluster.route_table.at(self.topic, self.queue)
            self._stream = Exchange(self._cluster, endpoint, "ReceiveStream", route)
        request = delay_pb2.ReceiveRequest(
            topic=self.topic,
            queue=self.queue,
            group=self.group,
            max_messages=messages,
            max_bytes=POLL_BYTES,
            invisible_ms=self._lease_ms,
            wait_ms=wait_ms,
        )
        try:
            answer = await self._stream.send(request.SerializeToString(), wait_ms / 1000 + _ANSWER_S)
            view = decode_message_batch(answer)
        except WireError as error:
            raise DelayError(f"{endpoint} sent what is not a message batch: {error}", code="INTERNAL") from None
        if view.count:
            batch = ReceivedBatch(self.topic, self.queue, view, int(time.time() * 1000), _NO_ACKS)
            self._subscription.deliver(self, batch)
        return int(view.count)

    # ------------------------------------------------------------------------------------- settle, extend

    def settle(self, op: str, delivery: HeldDelivery, reason: str = "") -> None:
        """ack: done. retry: comes again after the group's backoff, an attempt later. dead: a dead letter. give_back:
        comes again at once, the same attempt. reason: kept with what becomes a dead letter by this.
        """
        reason = shortened(reason)
        offset, attempt = np.array([delivery.offset], np.int64), np.array([delivery.attempt], np.uint32)
        if op == "ack":
            self._acks.ack(delivery.offset)
        elif op == "retry":
            self._acks.nack(offset, attempt, -1, reason=reason)
        else:
            if op == "dead":
                nack = delay_pb2.NackRequest(
                    topic=self.topic, queue=self.queue, group=self.group, dead=True, reason=reason
                )
                nack.offset, nack.attempt = offset.tobytes(), attempt.tobytes()
                call = self._call("Nack", nack, delay_pb2.NackResponse.FromString)
            else:
                call = self._call("Extend", self._extension([delivery], 0), delay_pb2.ExtendResponse.FromString)
            task = asyncio.create_task(self._told(call))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)

    async def extend(self, deliveries: list[HeldDelivery], lease_ms: int) -> None:
        try:
            request = self._extension(deliveries, lease_ms)
            answer = await self._call("Extend", request, delay_pb2.ExtendResponse.FromString)
        except DelayError as error:
            _log.warning("leases of group %s on %s-%d: %s", self.group, self.topic, self.queue, error)
            return
        for delivery, settlement in zip(deliveries, answer.settlement, strict=True):
            if settlement != delay_pb2.SETTLED:
                delivery.over = True
                _log.warning(
                    "group %s lost its lease of %s-%d offset %d (attempt %d): it is delivered again",
                    self.group, self.topic, self.queue, delivery.offset, delivery.attempt,
                )  # fmt: skip

    def _extension(self, deliveries: list[HeldDelivery], lease_ms: int) -> delay_pb2.ExtendRequest:
        return delay_pb2.ExtendRequest(
            topic=self.topic,
            queue=self.queue,
            group=self.group,
            offset=np.array([delivery.offset for delivery in deliveries], np.int64).tobytes(),
            attempt=np.array([delivery.attempt for delivery in deliveries], np.uint32).tobytes(),
            invisible_ms=lease_ms,
        )

    async def _told(self, call: Awaitable[Any]) -> None:
        try:
            await call
        except DelayError as error:  # it comes again all the same, when its lease is over
            _log.warning("group %s on %s-%d: %s", self.group, self.topic, self.queue, error)

    def _call(self, method: str, request: Any, decode: Any) -> Awaitable[Any]:
        return self._cluster.call(method, self.topic, self.queue, request, decode, timeout_s=self._lease_ms / 1000)

    def stop(self) -> None:
        """No further messages. What the node has handed out already is given back."""
        self.stopped = True
        if self._stream is None or not self._stream.finish():
            self._poll.cancel()

    async def flush(self) -> None:
        """Until the shard knows what was said of its messages, or it was given up."""
        await asyncio.wait([self._poll], timeout=LAST_S)
        self._poll.cancel()
        if self._stream is not None:
            self._stream.close()
        if self._calls:
            await asyncio.wait(self._calls, timeout=_CLOSE_S)
        await self._acks.close(_CLOSE_S)
