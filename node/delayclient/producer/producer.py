"""Sends delayed messages: one at a time, gathered into batches by shard, or many at once as columns.

Each shard has one stream of numbered batches (queue_sender.py), so that a retry is never stored twice and a lost
answer loses nothing. Memory is bounded by `max_buffered_bytes` of unacknowledged records: at it send_batch() waits,
and what is sent one at a time waits in line. A loop that does not await each send() awaits room() instead, else the
line is as long as the loop.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Final, Unpack

import numpy as np
from delayapi.durations import duration_ms, instant_ms, level_ms
from delayapi.message_ids import hash_id
from numpy.typing import NDArray

from delayclient import tracing
from delayclient.errors import Closed, DelayError, SendTimeout
from delayclient.producer.batch import MAX_RECORD_BYTES, ExplicitBatch
from delayclient.producer.requests import Messages, Times, too_large, too_long
from delayclient.producer.results import BatchFailed, BatchPart, BatchResult, SendResult
from delayclient.producer.topic_sender import SendBudget, TopicSender
from delayclient.records import Bodies, record_head, record_tail
from delayclient.routing.access import Access
from delayclient.routing.routing import DEFAULT_ENDPOINT, Cluster, ClusterUser

_TICK_S: Final = 0.1


class Producer(ClusterUser):
    """Sends messages to be delivered later. An async context manager; belongs to one event loop."""

    def __init__(
        self,
        endpoint: str | Iterable[str] | Cluster = DEFAULT_ENDPOINT,
        *,
        timeout: int | str | timedelta = "30s",
        linger_ms: float = 2.0,
        max_buffered_bytes: int = 64 << 20,
        **access: Unpack[Access],
    ) -> None:
        """`timeout` bounds the way from the buffer to the acknowledgement, all retries included.

        `linger_ms`: how long messages for a shard with batches under way are gathered; an idle shard's go at once.
        """
        super().__init__(endpoint, **access)
        self._timeout_s = duration_ms(timeout) / 1000
        self._linger_s = linger_ms / 1000
        self._budget = SendBudget(max_buffered_bytes, self._drain_waiting)
        self._topics: dict[str, TopicSender] = {}
        self._with_ids: dict[str, TopicSender] = {}
        """Of messages with ids, in requests of their own: a shard that deduplicates does not look at their numbers."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._closed = False
        self._born_ms = 0
        self._tail = b""
        self._traced = False

    def send(
        self,
        topic: str,
        body: bytes | bytearray | memoryview | str,
        *,
        delay: int | str | timedelta | None = None,
        at: int | str | datetime | None = None,
        level: int | None = None,
        key: str | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        message_id: str | None = None,
    ) -> asyncio.Future[SendResult]:
        """Sends one message; the future is done once it is committed. Messages of one key keep their queue.

        `message_id`: your own, at most 256 bytes. Where the topic has `deduplicate`, one that was stored within a day
        is not stored again, whoever sends it: the result is that of the first, and `repeated`. Send it with the key of
        the first time, or none.

        When: `delay` (int ms, '30s', timedelta), counted by the master from the arrival; `at` (ms since 1970 UTC, ISO
        text, datetime); a RocketMQ `level` 1 .. 18; none of them: at once.
        Raises ValueError, TypeError, TooLarge and DelayTooLong at once; the future fails with a DelayError.
        """
        if type(delay) is int and at is None and level is None and delay >= 0:
            when, relative = delay, 1
        else:
            when, relative = _when(delay, at, level)
        if type(body) is not bytes:
            body = body.encode() if isinstance(body, str) else bytes(body)
        now_ms = int(time.time() * 1000)
        if now_ms != self._born_ms:
            self._born_ms = now_ms
            self._tail = record_tail(now_ms)
            self._traced = tracing.active()
        hashed_id = b"" if message_id is None else hash_id(message_id)
        topics = self._with_ids if hashed_id else self._topics
        sender = topics.get(topic) or self._open_topic(topic, topics)
        delay_ms = when if relative else when - now_ms
        if delay_ms > sender.max_delay_ms:
            raise too_long(topic, delay_ms, sender.max_delay_ms)
        span = tracing.start_send(topic, properties) if self._traced else None
        head = record_head(len(body), key, tag, properties if span is None else span.properties)
        size = len(head) + len(body) + len(self._tail)
        if size > MAX_RECORD_BYTES:
            error = too_large(size)
            if span is not None:
                span.failed(error)
            raise error
        key_hash = zlib.crc32(key.encode()) if key else 0
        tag_hash = zlib.crc32(tag.encode()) if tag else 0
        future: asyncio.Future[SendResult] = self._loop.create_future()  # type: ignore[union-attr]
        self._budget.unresolved += 1
        if span is not None:
            future.add_done_callback(partial(_end_span, span))
        sender.send((when, relative, size, key_hash, tag_hash, hashed_id, future), (head, body, self._tail))
        if self._ticker is None:
            self._arm()
        return future

    async def send_batch(
        self,
        topic: str,
        bodies: Bodies,
        *,
        due_ms: Times | None = None,
        delay_ms: Times | None = None,
        keys: Sequence[str] | None = None,
        tags: Sequence[str] | str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> BatchResult:
        """Sends n messages and waits until all are committed.

        `bodies`: list[bytes], or u8[n, size]. `due_ms` (since 1970 UTC) or `delay_ms`: i64[n] or one for all; neither:
        at once. `keys`: n texts; `tags`: n texts or one for all; `properties`: those of each message.
        Raises ValueError, TypeError, TooLarge or DelayTooLong before anything is sent, and BatchFailed, which says what
        was stored and what not.
        """
        with tracing.sending(topic, properties, len(bodies)) as properties:
            return await self._send_batch(topic, Messages.of(bodies, due_ms, delay_ms, keys, tags, properties))

    async def _send_batch(self, topic: str, messages: Messages) -> BatchResult:
        sender = await self._routed(topic)
        messages.check_limits(topic, sender.max_delay_ms)
        stored: list[BatchPart] = []
        failures: list[tuple[NDArray[np.int64], DelayError]] = []
        parts: set[ExplicitBatch] = set()

        def settled(part: ExplicitBatch, _: object) -> None:
            # At once: a part holds its whole request.
            parts.discard(part)
            if part.future.cancelled():
                return
            error = part.future.exception()
            if error is None:
                stored.append(part.future.result())
            elif isinstance(error, DelayError):
                failures.append((part.rows, error))

        for queue, rows in messages.rows_by_queue(len(sender.queue_senders)):
            await self.room()
            if self._closed:
                raise Closed("producer")
            part = sender.send_part(messages, queue, rows)
            self._arm()
            parts.add(part)
            part.future.add_done_callback(partial(settled, part))
        while parts:
            await asyncio.wait([part.future for part in parts])
        result = BatchResult(len(messages.bodies), stored)
        if failures:
            raise BatchFailed(result, failures)
        return result

    @property
    def full(self) -> bool:
        """There is no room now: what is sent waits in line."""
        return self._budget.full

    async def room(self) -> None:
        """Waits until there is room."""
        while self._budget.full and not self._closed:
            self._budget.progress.clear()
            await self._budget.progress.wait()

    async def flush(self) -> None:
        """Waits until everything sent so far, and meanwhile, is acknowledged or has failed."""
        for sender in self._senders():
            sender.seal_all()
        while self._budget.unresolved:
            self._budget.progress.clear()
            await self._budget.progress.wait()

    async def close(self) -> None:
        """Flushes, for `timeout` at most, and ends the streams; what is not acknowledged by then fails."""
        if self._closed:
            return
        try:
            await asyncio.wait_for(self.flush(), self._timeout_s)
        except TimeoutError:
            pass
        finally:
            self._closed = True
            if self._ticker is not None:
                self._ticker.cancel()
            for sender in self._senders():
                sender.fail_waiting(Closed("producer"))
            await asyncio.gather(*(sender.close() for sender in self._senders()))
            self._budget.progress.set()
            await super().close()

    def _senders(self) -> list[TopicSender]:
        return [*self._topics.values(), *self._with_ids.values()]

    def _open_topic(self, topic: str, topics: dict[str, TopicSender]) -> TopicSender:
        if self._closed:
            raise Closed("producer")
        self._loop = asyncio.get_running_loop()
        # Asked anew at the next send: the topic may have been made by then.
        forget = partial(_forget, topics)
        sender = topics[topic] = TopicSender(self.cluster, topic, self._budget, self._timeout_s, self._linger_s, forget)
        return sender

    async def _routed(self, topic: str) -> TopicSender:
        sender = self._topics.get(topic) or self._open_topic(topic, self._topics)
        if not sender.queue_senders:
            await asyncio.wait({sender.ready}, timeout=self._timeout_s)
        if not sender.queue_senders:
            raise sender.error or SendTimeout("not sent in time: no route", maybe_stored=False)
        return sender

    def _drain_waiting(self) -> None:
        for sender in self._senders():
            sender.drain_waiting()

    def _arm(self) -> None:
        if self._ticker is None and self._loop is not None:
            self._ticker = self._loop.call_later(_TICK_S, self._tick)

    def _tick(self) -> None:
        assert self._loop is not None
        self._ticker = None
        now_s = self._loop.time()
        active = [sender.tick(now_s) for sender in self._senders()]
        if any(active):
            self._arm()


def _forget(topics: dict[str, TopicSender], sender: TopicSender) -> None:
    topics.pop(sender.topic, None)


def _end_span(span: tracing.SendSpan, sent: asyncio.Future[SendResult]) -> None:
    if sent.cancelled():
        span.failed(asyncio.CancelledError("the sender gave up waiting"))
    elif (error := sent.exception()) is not None:
        span.failed(error)
    else:
        result = sent.result()
        span.stored(result.queue, result.handle, result.due_ms)


def _when(delay: int | str | timedelta | None, at: int | str | datetime | None, level: int | None) -> tuple[int, int]:
    """(ms, 1) of a delay or (ms since 1970 UTC, 0) of a time."""
    if sum(value is not None for value in (delay, at, level)) > 1:
        raise ValueError("give one of delay, at and level")
    if at is not None:
        return instant_ms(at), 0
    if level is not None:
        return level_ms(level), 1
    delay_ms = 0 if delay is None else duration_ms(delay)
    if delay_ms < 0:
        raise ValueError(f"a negative delay: {delay_ms} ms")
    return delay_ms, 1
