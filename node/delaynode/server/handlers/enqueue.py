"""Enqueue and EnqueueStream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from delayapi.codec import EnqueueRequestView, decode_enqueue_request, encode_enqueue_response
from delayapi.wirefields import WireError
from delayregistry.model import TopicType
from numpy.typing import NDArray

from delaynode.auth.identity import Identity
from delaynode.limits.budget import Answers, Hold
from delaynode.node.routes import RemoteMaster
from delaynode.replica.hosts.master import ShardHost
from delaynode.server.dispatch import Dispatch
from delaynode.server.edge import Body, Call, Stream
from delaynode.server.forward import ForwardedError
from delaynode.server.rpc import as_error
from delaynode.store.errors import Refused
from delaynode.store.log.incoming_batch import ID_BYTES, NO_IDS, BatchRun, IncomingBatch, columns_of
from delaynode.store.shard import Appended

MAX_UNANSWERED = 16
FORWARD_SECONDS = 30.0
ID_ANSWER_BYTES = 17  # seq, due and whether it was stored before, of a message with an id

Unanswered: TypeAlias = tuple[asyncio.Future[Body], Answers]
"""The answer to a stream's request, to come, and what it holds until the client has it."""


@dataclass(frozen=True, slots=True)
class TakenBatch:
    """A batch that waits for its commit: what its answer needs, and nothing that refers to the request's bytes."""

    host: ShardHost
    answer: asyncio.Future[Appended]
    started: float  # time.monotonic()


class EnqueueCalls:
    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self._budget = dispatch.flow.coming_in
        self._answering: set[asyncio.Task[Body]] = set()

    async def enqueue(self, data: Body, call: Call, answers: Answers) -> Body:
        view = _view(data)
        found = self._dispatch.find_host("Enqueue", view, call)
        await answers.reserve(_answer_bytes(view))
        if isinstance(found, RemoteMaster):
            forwarder = self._dispatch.forwarder
            return await forwarder.call(found.node, "Enqueue", data, call.time_remaining(), call.identity())
        taken = await self._take(found, view, len(data), call.identity())
        del data, view  # a frame may have a copy; it is not to be in memory twice until it is committed
        return await self._answer_stored(taken)

    async def _take(self, host: ShardHost, view: EnqueueRequestView, size: int, caller: Identity) -> TakenBatch:
        """Take a request of `size` bytes, to be stored with the shard's next write."""
        node, quotas = self._dispatch.node, self._dispatch.quotas
        by_ids = len(view.message_id) > 0 and node.routes.deduplicates(host.topic)
        run = BatchRun(0, 0, view.count) if by_ids else BatchRun(view.producer_id, view.number, view.count)
        charge = quotas.charge(host, caller, run, len(view.records))
        try:
            batch = _batch(view, run, by_ids)
            check_type(host.topic, node.routes.topic_type(host.topic), batch, node.clock.now_ms())
            node.disk.check(size)
            started = time.monotonic()
            await host.maintenance.wait_room()
            if charge is not None:
                quotas.check_waiting(host, run, len(view.records))
            taken = TakenBatch(host, host.enqueue(batch), started)
        except BaseException:
            if charge is not None:
                charge.give_back(0, 1)
            raise
        if charge is not None:
            taken.answer.add_done_callback(charge.settle)
        return taken

    async def _answer_stored(self, taken: TakenBatch) -> Body:
        """The answer, once it is true."""
        host = taken.host
        stored = await host.stored(taken.answer)
        due = stored.due if stored.due is not None else b""
        latency_ms = (time.monotonic() - taken.started) * 1000
        self._dispatch.node.metrics.enqueue_latency[host.topic].add_one(latency_ms)
        uid = host.shard.identity.uid
        if stored.seq is None or stored.repeated is None:
            return encode_enqueue_response(uid, stored.first_seq, stored.count, due, duplicate=stored.duplicate)
        return encode_enqueue_response(
            uid,
            0,
            stored.count,
            due,
            duplicate=stored.duplicate,
            seq=stored.seq,
            repeated=stored.repeated.view(np.uint8),
        )

    async def enqueue_stream(self, stream: Stream) -> AsyncGenerator[Body, None]:
        unanswered: asyncio.Queue[Unanswered | None] = asyncio.Queue(MAX_UNANSWERED)
        reader = asyncio.create_task(self._read_stream(stream, unanswered))
        try:
            while (one := await unanswered.get()) is not None:
                answer, answers = one
                try:
                    yield await asyncio.shield(answer)  # a task that is cancelled before it begins gives nothing back
                finally:
                    answers.sent()
            await reader
        finally:
            reader.cancel()
            try:
                await asyncio.gather(reader, return_exceptions=True)  # it must not outlive the call
            finally:  # which may be cancelled now
                while not unanswered.empty():
                    if (one := unanswered.get_nowait()) is not None:
                        one[1].sent()

    async def _read_stream(self, stream: Stream, unanswered: asyncio.Queue[Unanswered | None]) -> None:
        """Take the stream's requests. Nothing here refers to a request that is done: the next one may be hours away."""
        try:
            while await self._read_one(stream, unanswered):
                pass
        except Exception:
            await unanswered.put(None)
            raise
        await unanswered.put(None)

    async def _read_one(self, stream: Stream, unanswered: asyncio.Queue[Unanswered | None]) -> bool:
        """One request of the stream; False when there are no more."""
        data = await stream.read()
        if data is None:
            return False
        answers = self._dispatch.flow.answers(stream)
        try:
            answer = await self._answer(data, stream, answers)
            del data
            await unanswered.put((answer, answers))
        except BaseException:
            answers.sent()
            raise
        return True

    async def _answer(self, data: Body, call: Call, answers: Answers) -> asyncio.Future[Body]:
        """Take one request of a stream now; its answer, or its error as an answer, comes."""
        try:
            view = _view(data)
            found = self._dispatch.find_host("EnqueueStream", view, call)
            await answers.reserve(_answer_bytes(view))
            hold = await self._budget.acquire(call.peer(), len(data))  # a stream waits: that is its flow control
            try:
                if isinstance(found, RemoteMaster):  # one after the other: the order within a producer must stay
                    forwarder = self._dispatch.forwarder
                    body = await forwarder.call(found.node, "Enqueue", data, FORWARD_SECONDS, call.identity())
                    self._budget.release(hold)
                    return _ready(body)
                taken = await self._take(found, view, len(data), call.identity())
            except BaseException:
                self._budget.release(hold)
                raise
        except Refused as refused:
            return _ready(encode_enqueue_response(0, 0, 0, error=as_error(refused)))
        except ForwardedError as passed:
            return _ready(encode_enqueue_response(0, 0, 0, error=passed.as_error()))
        answer = asyncio.create_task(self._stream_answer(taken, hold))
        self._answering.add(answer)
        answer.add_done_callback(self._answering.discard)
        return answer

    async def _stream_answer(self, taken: TakenBatch, hold: Hold) -> Body:
        """Runs by itself: a batch stops to count as soon as it is committed, whether or not its answer is read."""
        try:
            return await self._answer_stored(taken)
        except Refused as refused:
            return encode_enqueue_response(0, 0, 0, error=as_error(refused))
        finally:
            self._budget.release(hold)


def _view(data: Body) -> EnqueueRequestView:
    try:
        return decode_enqueue_request(data)
    except WireError as error:
        raise Refused("BAD_REQUEST", str(error)) from error


def check_type(topic: str, kind: TopicType, batch: IncomingBatch, now_ms: int) -> None:
    """Raises Refused WRONG_TOPIC_TYPE for a batch with a message that the topic does not take, so that a delay that was
    forgotten, or a wrong topic, is noticed.

    Delay: what has neither delay nor due (time 0). A due that has passed meanwhile is one still, so a late retry is
    taken as it was the first time. Normal: what is not due at once.
    """
    if kind is TopicType.MIXED:
        return
    if kind is TopicType.DELAY:
        _refuse_wrong(batch.time == 0, f"has neither delay nor due time, and topic {topic!r} is of type Delay")
    else:
        relative = batch.relative == 1 if len(batch.relative) else np.zeros(len(batch.time), np.bool_)
        _refuse_wrong(batch.time > np.where(relative, 0, now_ms), f"is delayed, and topic {topic!r} is of type Normal")


def _refuse_wrong(wrong: NDArray[np.bool_], why: str) -> None:
    if wrong.any():
        raise Refused("WRONG_TOPIC_TYPE", f"message {int(np.argmax(wrong))} {why}")


def _batch(view: EnqueueRequestView, run: BatchRun, by_ids: bool) -> IncomingBatch:
    """by_ids: the topic deduplicates, and the messages have ids; elsewhere ids mean nothing."""
    batch = columns_of(
        view.count, view.time, view.relative, view.size, view.key_hash, view.tag_hash, view.records,
        run.producer, run.number, ids=view.message_id,
    )  # fmt: skip
    return batch if by_ids else replace(batch, ids=NO_IDS)


def _answer_bytes(view: EnqueueRequestView) -> int:
    """Of the columns in the answer: dues where a time is relative, and what is said of each message with an id."""
    return ID_ANSWER_BYTES * (len(view.message_id) // ID_BYTES) or (len(view.time) if len(view.relative) else 0)


def _ready(body: Body) -> asyncio.Future[Body]:
    future: asyncio.Future[Body] = asyncio.get_running_loop().create_future()
    future.set_result(body)
    return future
