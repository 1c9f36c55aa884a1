"""Enqueue and EnqueueStream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import Any, TypeAlias

from delayclient.wire import EnqueueRequestView, WireError, decode_enqueue_request, encode_enqueue_response

from delaynode.serve.dispatch import Body, Context, Dispatch
from delaynode.serve.forward import Passed
from delaynode.serve.host import ShardHost
from delaynode.serve.node import Elsewhere
from delaynode.serve.rpc import abort, as_error
from delaynode.store.errors import Refused
from delaynode.store.intake import Batch, columns_of
from delaynode.store.shard import Appended
from delaynode.store.types import I64

UNANSWERED_IN_STREAM = 16
CLOCK_WAIT_SECONDS = 1.0

Unanswered: TypeAlias = tuple[Coroutine[Any, Any, Body], int]
"""The answer to a stream's request, to be awaited, and the bytes that the request holds in flight until then."""


@dataclass(slots=True)
class InFlight:
    """Bytes of batches that wait for their commit, bounded for the node."""

    limit: int
    used: int = 0

    def take(self, size: int) -> None:
        """Raises Refused BUSY."""
        if self.used and self.used + size > self.limit:
            raise Refused(
                "BUSY", f"{self.used:,} bytes wait for the disk, the limit is {self.limit:,}", retry_after_ms=20
            )
        self.used += size

    def give(self, size: int) -> None:
        self.used -= size


class EnqueueCalls:
    """in_flight_bytes: of batches that wait for their commit, for the node."""

    def __init__(self, dispatch: Dispatch, in_flight_bytes: int) -> None:
        self._dispatch = dispatch
        self.in_flight = InFlight(in_flight_bytes)

    async def enqueue(self, data: Body, context: Context) -> Body:
        try:
            view = _view(data)
            place = self._dispatch.place(view.topic, view.queue, context)
            if isinstance(place, Elsewhere):
                return await self._dispatch.forwarder.call(place.endpoint, "Enqueue", data, context.time_remaining())
            batch = _batch(view)
            self._dispatch.node.disk.check()
            self.in_flight.take(len(data))
            try:
                started = time.monotonic()
                appended = await self._append(place, batch)
                return await self._stored(place, view, appended, started)
            finally:
                self.in_flight.give(len(data))
        except Refused as refused:
            await abort(context, refused)
        except Passed as passed:
            await passed.abort(context)

    async def _append(self, host: ShardHost, batch: Batch) -> Appended:
        """Append, waiting a little for a clock that is behind what was released."""
        deadline = time.monotonic() + CLOCK_WAIT_SECONDS
        await host.room()
        while True:
            try:
                return host.enqueue(batch)
            except Refused as refused:
                if refused.reason != "CLOCK_BEHIND" or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.02)

    async def _stored(self, host: ShardHost, view: EnqueueRequestView, appended: Appended, started: float) -> Body:
        """The answer, once it is true."""
        await host.committed(appended.log_end)
        due: I64 | bytes = b""
        if len(view.relative):
            due = appended.due if appended.due is not None else host.shard.first_due(appended.frame, appended.count)
        latency_ms = (time.monotonic() - started) * 1000
        self._dispatch.node.metrics.enqueue_latency[host.topic].add_one(latency_ms)
        return encode_enqueue_response(
            host.shard.identity.uid, appended.first_seq, appended.count, due, duplicate=appended.due is None
        )

    async def enqueue_stream(self, requests: AsyncIterator[Body], context: Context) -> AsyncIterator[Body]:
        answers: asyncio.Queue[Unanswered | None] = asyncio.Queue(UNANSWERED_IN_STREAM)
        reader = asyncio.create_task(self._read_stream(requests, context, answers))
        try:
            while (unanswered := await answers.get()) is not None:
                answer, size = unanswered
                try:
                    body = await answer
                finally:
                    self.in_flight.give(size)
                yield body
            await reader
        finally:
            reader.cancel()
            while not answers.empty():
                self._drop(answers.get_nowait())

    def _drop(self, unanswered: Unanswered | None) -> None:
        """The stream has broken off: nobody waits for this answer any more."""
        if unanswered is not None:
            answer, size = unanswered
            answer.close()
            self.in_flight.give(size)

    async def _read_stream(
        self, requests: AsyncIterator[Body], context: Context, answers: asyncio.Queue[Unanswered | None]
    ) -> None:
        try:
            async for data in requests:
                unanswered = await self._stream_one(data, context)
                try:
                    await answers.put(unanswered)
                except asyncio.CancelledError:
                    self._drop(unanswered)
                    raise
        except Exception:
            await answers.put(None)
            raise
        await answers.put(None)

    async def _stream_one(self, data: Body, context: Context) -> Unanswered:
        """Append one request of a stream now; its answer, or its error as an answer, can be awaited."""
        try:
            view = _view(data)
            place = self._dispatch.place(view.topic, view.queue, context)
            if isinstance(place, Elsewhere):  # one after the other: the order within a producer must stay
                return _ready(await self._dispatch.forwarder.call(place.endpoint, "Enqueue", data, 30.0)), 0
            batch = _batch(view)
            self._dispatch.node.disk.check()
            while True:
                try:
                    self.in_flight.take(len(data))
                    break
                except Refused:
                    await asyncio.sleep(0.002)  # a stream waits instead: that is its flow control
            started = time.monotonic()
            try:
                appended = await self._append(place, batch)
            except BaseException:
                self.in_flight.give(len(data))
                raise
            return self._stream_answer(place, view, appended, started), len(data)
        except Refused as refused:
            return _ready(encode_enqueue_response(0, 0, 0, error=as_error(refused))), 0
        except Passed as passed:
            return _ready(encode_enqueue_response(0, 0, 0, error=passed.as_error())), 0

    async def _stream_answer(
        self, host: ShardHost, view: EnqueueRequestView, appended: Appended, started: float
    ) -> Body:
        try:
            return await self._stored(host, view, appended, started)
        except Refused as refused:
            return encode_enqueue_response(0, 0, 0, error=as_error(refused))


def _view(data: Body) -> EnqueueRequestView:
    try:
        return decode_enqueue_request(data)
    except WireError as error:
        raise Refused("BAD_REQUEST", str(error)) from error


def _batch(view: EnqueueRequestView) -> Batch:
    return columns_of(
        view.count, view.time, view.relative, view.size, view.key_hash, view.tag_hash, view.records,
        view.producer_id, view.number,
    )  # fmt: skip


async def _ready(body: Body) -> Body:
    return body
