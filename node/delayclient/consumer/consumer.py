"""Receives a topic's due messages as a member of a share group.

Each queue has a long poll under way; what arrives is held until it is asked for, one message at a time or in
batches of columns. Delivery is at least once: a message comes again until its acknowledgement has arrived.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from typing import Any, Final, Self, Unpack

from delayapi.codec import decode_message_batch
from delayapi.durations import duration_ms
from delayapi.proto.delay.v1 import delay_pb2
from delayapi.wirefields import WireError

from delayclient import tracing
from delayclient.consumer.acks import QueueAcks
from delayclient.consumer.leases import RenewingAcks
from delayclient.consumer.prefetch import Prefetch
from delayclient.consumer.received import POLL_BYTES, Acknowledger, ReceivedBatch, ReceivedMessage
from delayclient.errors import DelayError, Unavailable, unforeseen
from delayclient.routing.access import Access
from delayclient.routing.exchange import LAST_S, Exchange
from delayclient.routing.routing import Cluster, ClusterUser, TopicRoute, backoff_s

_log: Final = logging.getLogger("delayclient")

_WAIT_MS: Final = 5_000
_ANSWER_S: Final = 3.0
"""Over a poll's own wait: then the node is frozen or cut off."""
_REFRESH_S: Final = 60.0
_START_S: Final = 30.0
"""How long a consumer that begins looks for the cluster."""
_CLOSE_S: Final = 10.0
"""How long close() tries to deliver acknowledgements."""
_KEEP_SHARE: Final = 0.9
"""Of the invisible time: what was held for so long is handed on no more."""

Handler = Callable[[ReceivedMessage], Awaitable[Any] | Any]


class Consumer(ClusterUser):
    """One consumer of a group. An async context manager and async iterator; belongs to one event loop."""

    def __init__(
        self,
        endpoint: str | Iterable[str] | Cluster,
        topic: str,
        group: str,
        *,
        tags: Iterable[str] = (),
        invisible: int | str | timedelta = "30s",
        auto_ack: bool = False,
        from_end: bool = False,
        prefetch: int = 65_536,
        max_lease: int | str | timedelta | None = None,
        **access: Unpack[Access],
    ) -> None:
        """`tags`: the group's filter, the same for all its consumers. `invisible`: how long a message stays this one's.

        `auto_ack`: a message is acknowledged when the next one is asked for. `from_end`: a new group starts with what
        is released from now on. `prefetch`: how many messages are held at most; a slow consumer holds fewer by itself.
        `max_lease`: how long the application may take for a message: until then its invisible time is extended again
        and again, while this process lives and its event loop turns. None: it is not extended.
        """
        super().__init__(endpoint, **access)
        self.topic = topic
        self.group = group
        self._invisible_ms = duration_ms(invisible)
        self._auto_ack = auto_ack
        self._request = delay_pb2.ReceiveRequest(
            topic=topic,
            group=group,
            max_bytes=POLL_BYTES,
            invisible_ms=self._invisible_ms,
            tags=tags,
            from_end=from_end,
        )
        self._prefetch = Prefetch(prefetch, self._invisible_ms / 1000)
        self._max_lease_ms = None if max_lease is None else duration_ms(max_lease)
        self._acks: list[QueueAcks] = []
        self._polls: list[asyncio.Task[None]] = []
        self._streams: dict[int, Exchange] = {}  # by queue
        self._starter: asyncio.Task[None] | None = None
        self._unlisten: Callable[[], None] = lambda: None
        self._ready: deque[ReceivedBatch] = deque()
        self._returning: asyncio.TimerHandle | None = None
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._current: ReceivedBatch | None = None
        self._row = 0
        self._rows = 0
        self._taken_s = 0.0
        self._taken_count = 0
        self._last: ReceivedMessage | None = None
        self._error: DelayError | None = None
        self._stopped = False
        self._runners: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        """Starts to receive; the first use does it too."""
        if self._starter is None and not self._stopped:
            self._unlisten = self.cluster.route_table.listen(self.topic, self._moved)
            self._starter = asyncio.create_task(self._poll_all())

    # ----------------------------------------------------------------------------------------- receive

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> ReceivedMessage:
        message = await self._next_acking()
        if message is None:
            raise StopAsyncIteration
        return message

    async def receive(self, timeout_s: float | None = None) -> ReceivedMessage | None:
        """The next message; None when none came in time, or the consumer was stopped. Raises DelayError."""
        if timeout_s is None or self._row < self._rows:
            return await self._next_acking()
        try:
            return await asyncio.wait_for(self._next_acking(), timeout_s)
        except TimeoutError:
            return None

    async def receive_batch(self, timeout_s: float | None = None) -> ReceivedBatch | None:
        """The next batch, of one queue; None when none came in time, or the consumer was stopped. Raises DelayError.

        `auto_ack` does not acknowledge it: batch.ack() does.
        """
        try:
            return await asyncio.wait_for(self._next_batch(), timeout_s)
        except TimeoutError:
            return None

    async def _next_batch(self) -> ReceivedBatch | None:
        while True:
            if self._ready:
                if time.monotonic() < self._ready[0].expires_s:
                    batch = self._pop_ready()
                    self._take(batch, slice(None))
                    return batch
                self._return_old()
            elif not await self._wait():
                return None

    async def _next_acking(self) -> ReceivedMessage | None:
        if self._last is not None:
            self._last.ack()
            self._last = None
        message = await self._next()
        if self._auto_ack:
            self._last = message
        return message

    async def _next(self) -> ReceivedMessage | None:
        while True:
            row = self._row
            if row < self._rows and self._current is not None:
                if time.monotonic() < self._current.expires_s:
                    self._row = row + 1
                    self._take(self._current, slice(row, row + 1))
                    return ReceivedMessage(self._current, row)
                self._return_old()
            elif self._ready:
                self._current = self._pop_ready()
                self._row, self._rows = 0, len(self._current)
            elif not await self._wait():
                return None

    async def _wait(self) -> bool:
        """Waits until something is there, for whoever comes first; false: the consumer is stopped. Raises what ended
        the polls.
        """
        self.start()
        self._measure()
        while not self._ready and self._row >= self._rows:
            if self._error is not None:
                raise self._error
            if self._stopped:
                return False
            self._arrived.clear()
            await self._arrived.wait()
        return True

    def _take(self, batch: ReceivedBatch, rows: slice) -> None:
        """The application gets these rows."""
        if self._max_lease_ms is None:
            return
        acks = self._acks[batch.queue]
        if isinstance(acks, RenewingAcks):
            acks.taken(batch, rows, batch.expires_s - _KEEP_SHARE * self._invisible_ms / 1000)

    def _return_old(self) -> None:
        """Gives back what has been held for too long: at the end of its invisible time it would lose an attempt."""
        now = time.monotonic()
        if self._row < self._rows and self._current is not None and self._current.expires_s <= now:
            self._current.give_back(slice(self._row, self._rows))
            self._row = self._rows
            self._prefetch.expired()
        while self._ready and self._ready[0].expires_s <= now:
            batch = self._ready.popleft()
            batch.give_back()
            self._prefetch.taken(len(batch))
            self._prefetch.expired()
            self._room.set()
        self._return_later()

    def _return_later(self) -> None:
        """Looks again when what is held now will have been held for too long."""
        if self._returning is not None:
            self._returning.cancel()
            self._returning = None
        held = [self._current] if self._current is not None and self._row < self._rows else []
        times = [batch.expires_s for batch in (*held, *list(self._ready)[:1])]
        if times and not self._stopped:
            delay_s = max(0.0, min(times) - time.monotonic())
            self._returning = asyncio.get_running_loop().call_later(delay_s, self._return_old)

    def _pop_ready(self) -> ReceivedBatch:
        self._measure()
        batch = self._ready.popleft()
        self._taken_s, self._taken_count = time.monotonic(), len(batch)
        self._prefetch.taken(len(batch))
        self._room.set()
        if not self._runners and tracing.active():  # a handler's messages have a span each
            tracing.received(batch, self.group)
        return batch

    def _measure(self) -> None:
        """The batch taken last is worked through: the next one was asked for."""
        if self._taken_count:
            self._prefetch.measured(self._taken_count, time.monotonic() - self._taken_s)
            self._taken_count = 0

    # -------------------------------------------------------------------------------------------- poll

    async def _poll_all(self) -> None:
        """Starts a poll for each queue, and for those that the topic gets later."""
        try:
            route = await self._route()
            while True:
                for queue in range(len(self._polls), len(route.queues)):
                    self._acks.append(self._make_acks(queue))
                    self._polls.append(asyncio.create_task(self._poll(queue)))
                await asyncio.sleep(_REFRESH_S)
                route = await self._route()
        except DelayError as error:
            self._fail(error)
        except Exception as error:
            self._fail(unforeseen(f"routes of topic {self.topic}", error))

    def _make_acks(self, queue: int) -> QueueAcks:
        where = (self.cluster, self.topic, queue, self.group, self._invisible_ms)
        return QueueAcks(*where) if self._max_lease_ms is None else RenewingAcks(*where, self._max_lease_ms)

    def _acks_for_messages(self, queue: int) -> Acknowledger:
        return self._acks[queue]

    async def _route(self) -> TopicRoute:
        failures, deadline_s = 0, time.monotonic() + _START_S
        while True:
            try:
                return await self.cluster.refresh(self.topic)
            except DelayError as error:
                if not error.retryable or (time.monotonic() > deadline_s and not self._polls):
                    raise
            await asyncio.sleep(backoff_s(failures))
            failures += 1

    async def _poll(self, queue: int) -> None:
        failures = 0
        try:
            while not self._stopped and self._error is None:
                wanted = self._prefetch.request_size(len(self._polls))
                if not wanted:
                    self._room.clear()
                    await self._room.wait()
                    continue
                endpoint = ""
                try:
                    endpoint = await self.cluster.address(self.topic, queue)
                    await self._receive(queue, wanted, endpoint)
                    failures = 0
                except DelayError as error:
                    if self._stopped:
                        return  # the stream has ended, as was asked
                    await self.cluster.after_failure(self.topic, queue, error, failures, endpoint)
                    failures += 1
        except DelayError as error:
            self._fail(error)
        except Exception as error:
            self._fail(unforeseen(f"receiving from {self.topic}-{queue}", error))

    async def _receive(self, queue: int, wanted: int, endpoint: str) -> None:
        request = delay_pb2.ReceiveRequest()
        request.CopyFrom(self._request)
        request.queue, request.max_messages, request.wait_ms = queue, wanted, _WAIT_MS
        stream = self._streams.get(queue)
        if stream is None or stream.endpoint != endpoint:
            if stream is not None:
                stream.close()
            route = self.cluster.route_table.at(self.topic, queue)
            stream = self._streams[queue] = Exchange(self.cluster, endpoint, "ReceiveStream", route)
        try:
            view = decode_message_batch(await stream.send(request.SerializeToString(), _WAIT_MS / 1000 + _ANSWER_S))
        except WireError as error:
            raise DelayError(f"{endpoint} sent what is not a message batch: {error}", code="INTERNAL") from None
        finally:
            if stream.closed:
                self._streams.pop(queue, None)
        if view.count:
            expires_s = time.monotonic() + _KEEP_SHARE * self._invisible_ms / 1000
            acks = self._acks_for_messages(queue)
            batch = ReceivedBatch(self.topic, queue, view, int(time.time() * 1000), acks, expires_s)
            if self._stopped:
                batch.give_back()
                return
            self._prefetch.arrived(view.count)
            self._ready.append(batch)
            if self._returning is None:
                self._return_later()
            self._arrived.set()

    def _moved(self, queues: list[int]) -> None:
        """A former master, should it still hold a poll, has nothing more to give. A node that was to pass the poll on
        and is the master now may have handed messages out, which would lose an attempt and come after their lease."""
        for queue in queues:
            stream = self._streams.get(queue)
            if stream is None or not self.cluster.master_changed(self.topic, queue, stream.route):
                continue
            error = Unavailable(f"{self.topic}-{queue} has another master now", code="ABORTED", reason="NOT_SERVING")
            if stream.endpoint == self.cluster.master(self.topic, queue):
                stream.leave(error)
            else:
                stream.abandon(error)

    def _fail(self, error: DelayError) -> None:
        """Raised once what has come is taken: no queue is polled again, or the others would put it off for ever."""
        self._error = error
        self._arrived.set()

    # --------------------------------------------------------------------------------------------- run

    async def run(self, handler: Handler, concurrency: int = 16, backoff: int | str | timedelta | None = None) -> None:
        """Calls `handler` with each message, up to `concurrency` at a time, until stop(): success is an ack, an
        exception a nack with `backoff` (None: the group's). A handler is a function or a coroutine function.
        """
        backoff_ms = -1 if backoff is None else duration_ms(backoff)
        workers = [asyncio.create_task(self._work(handler, backoff_ms)) for _ in range(concurrency)]
        self._runners.update(workers)
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            self._runners.difference_update(workers)

    async def _work(self, handler: Handler, backoff_ms: int) -> None:
        while (message := await self._next()) is not None:
            try:
                with tracing.processing(message, self.group):
                    result = handler(message)
                    if inspect.isawaitable(result):
                        await result
            except Exception:
                _log.exception("a handler failed; %r comes again", message)
                message.nack(backoff_ms)
            else:
                message.ack()

    # ------------------------------------------------------------------------------------------- close

    @property
    def lost_acks(self) -> int:
        """Acknowledgements that could not be delivered: their messages come again."""
        return sum(acks.lost for acks in self._acks)

    async def flush(self) -> None:
        """Waits until the acknowledgements given so far have arrived. Raises DelayError when some never did."""
        before = self.lost_acks
        await asyncio.gather(*(acks.flush() for acks in self._acks))
        if self.lost_acks > before:
            raise DelayError(f"{self.lost_acks - before} acknowledgements were not delivered", reason="ACKS_LOST")

    def stop(self) -> None:
        """Ends the iteration and run(), once the message in hand is done."""
        self._stopped = True
        self._unlisten()
        self._unlisten = lambda: None
        self._give_back()
        if self._starter is not None:
            self._starter.cancel()
        for queue, poll in enumerate(self._polls):
            stream = self._streams.get(queue)
            # What a node has handed out when a poll is cancelled would wait for its lease, and lose an attempt.
            if stream is None or not stream.finish():
                poll.cancel()
        self._arrived.set()

    async def close(self) -> None:
        """Stops, waits for handlers and acknowledgements, and gives back what was held."""
        self.stop()
        others = self._runners - {asyncio.current_task()}
        if others:
            await asyncio.wait(others)
        tasks = [task for task in (self._starter, *self._polls) if task is not None]
        if self._polls:
            await asyncio.wait(self._polls, timeout=LAST_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for stream in self._streams.values():
            stream.close()
        self._give_back()
        await asyncio.gather(*(acks.close(_CLOSE_S) for acks in self._acks))
        await super().close()

    def _give_back(self) -> None:
        """Gives back the messages that the application never got: another consumer gets them now, not after their
        invisible time."""
        if self._current is not None and self._row < self._rows:
            self._current.give_back(slice(self._row, self._rows))
        self._row = self._rows = 0
        while self._ready:
            self._ready.popleft().give_back()
        self._return_later()
