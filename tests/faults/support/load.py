"""Traffic that goes on through every outage: producers, cancellers and a group of consumers against a local cluster.

The wire contract alone: a producer sends a batch with its number until it is answered, a stream is opened again and
sends what was not answered; a cancel is asked again until it has an answer; consumers acknowledge most of what they
get, give some back and forget some.
"""

from __future__ import annotations

import asyncio
import random
import struct
import threading
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from delayapi.proto.delay.v1 import delay_pb2 as pb
from google.rpc import error_details_pb2, status_pb2

from tests.faults.support.checker import Delivery, Ledger, Place
from tests.serve.support.client import SERVICE, i64, ints, now_ms, u32

OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 300),
)
CALL_SECONDS = 8.0
RETRY_SECONDS = 0.05
CHANGE_SECONDS = 1.0  # a cancel or a reschedule comes so long after the message, at most
WINDOW = 16  # batches that a stream may have unanswered: as many as the node remembers
RETRYABLE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
WRITE_FAILED = "Internal error from Core"  # grpc.aio's own word for a request that met a closed connection
ID = struct.Struct("<Q")
ELSEWHERE = ("BUSY", "NOT_MASTER")  # reasons to ask again, there or elsewhere


class Broken(Exception):
    """An answer that no caller should get; the task that got it stops."""


@dataclass(frozen=True)
class Traffic:
    """How much traffic of each kind. Dues lie `nearest_ms` to `farthest_ms` ahead."""

    topic: str = "t"
    queues: int = 4
    producers: int = 3
    streams: int = 2
    batch: int = 20
    pause_s: float = 0.03  # between two batches of one producer
    nearest_ms: int = 200
    farthest_ms: int = 5_000
    body_bytes: int = 100
    cancelled_share: float = 0.1
    moved_share: float = 0.05
    far_share: float = 0.0  # share of the batches whose dues lie up to `far_ms` ahead
    far_ms: int = 0


@dataclass
class Batch:
    """n messages of one producer for one queue."""

    ids: list[int]
    request: bytes
    due_ms: list[int] | None  # None: delays
    queue: int


class Load:
    """Producers and consumers in a thread of their own: start(), then finish()."""

    def __init__(self, endpoints: Sequence[str], traffic: Traffic, seed: int = 1) -> None:
        self.ledger = Ledger()
        self.traffic = traffic
        self.endpoints = list(endpoints)
        self.choose = random.Random(seed)
        self.last_due_ms = now_ms()
        self._producing = True
        self._consuming = True
        self._tasks: list[asyncio.Task[None]] = []
        self._changes: set[asyncio.Task[None]] = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="load", daemon=True)

    # ------------------------------------------------------------ from the test's thread
    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(10)

    def finish(self, seconds: float = 60.0) -> None:
        """Ends producing, waits for every message to come (or `seconds`), then ends consuming."""
        self._producing = False
        self._thread.join(seconds)
        self._consuming = False
        self._thread.join(20)
        assert not self._thread.is_alive(), f"the load does not end: a call hangs; faults: {self.ledger.faults}"

    # ------------------------------------------------------------ the event loop
    async def _main(self) -> None:
        self._channels = [grpc.aio.insecure_channel(endpoint, options=OPTIONS) for endpoint in self.endpoints]
        traffic = self.traffic
        producers = [
            *(self._produce(number) for number in range(traffic.producers)),
            *(self._stream(traffic.producers + number) for number in range(traffic.streams)),
        ]
        producing = [asyncio.create_task(self._noting(work)) for work in producers]
        consuming = [asyncio.create_task(self._noting(self._consume(queue))) for queue in range(traffic.queues)]
        self._ready.set()
        await asyncio.gather(*producing)
        await asyncio.gather(*self._changes)
        await asyncio.sleep((self.last_due_ms + 300 - now_ms()) / 1_000)  # a cancelled message would come by then
        for _ in iter(lambda: self._consuming and bool(self.ledger.missing) and not self.ledger.faults, False):
            await asyncio.sleep(0.1)
        self._consuming = False
        await asyncio.gather(*consuming)
        for channel in self._channels:
            await channel.close()

    async def _noting(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # a task that dies silently would leave a test without load
            self.ledger.faults.append(error)

    async def _call(self, method: str, data: bytes, seconds: float = CALL_SECONDS) -> bytes | None:
        """The answer; None when none came, or when the cluster can't serve it now. Raises Broken on anything else."""
        channel = self.choose.choice(self._channels)
        try:
            answer: bytes = await channel.unary_unary(SERVICE + method)(data, timeout=seconds)
            return answer
        except grpc.aio.AioRpcError as error:
            if error.code() not in RETRYABLE and reason_of(error) not in ELSEWHERE:
                raise Broken(f"{method}: {error.code().name} {reason_of(error)} {error.details()}") from error
            return None

    async def _until_answered(self, method: str, data: bytes) -> tuple[bytes, bool]:
        """The answer, and whether an earlier try may have been done."""
        tries = 0
        while (answer := await self._call(method, data)) is None:
            tries += 1
            # hundreds may wait for the same node: they must not take the time of those that it answers
            await asyncio.sleep(min(RETRY_SECONDS * tries, 0.5) * (0.5 + self.choose.random()))
        return answer, tries > 0

    # ------------------------------------------------------------ producers
    def _batch(self, producer: int, first: int, queue: int, number: int) -> Batch:
        traffic, choose = self.traffic, self.choose
        ids = [producer << 32 | first + n for n in range(traffic.batch)]
        filler = bytes(traffic.body_bytes - ID.size)
        records = [pb.Message(key=str(id_), body=ID.pack(id_) + filler).SerializeToString() for id_ in ids]
        farthest_ms = traffic.far_ms if choose.random() < traffic.far_share else traffic.farthest_ms
        delays = [choose.randrange(traffic.nearest_ms, farthest_ms) for _ in ids]
        relative = choose.random() < 0.5
        times = delays if relative else [now_ms() + delay for delay in delays]
        request = pb.EnqueueRequest(
            topic=traffic.topic, queue=queue, count=len(ids), time=i64(*times), relative=bytes([relative] * len(ids)),
            size=u32(*map(len, records)), records=b"".join(records), producer_id=producer + 1, number=number,
        ).SerializeToString()  # fmt: skip
        self.ledger.sent.update(ids)
        return Batch(ids, request, None if relative else times, queue)

    def _stored(self, batch: Batch, answer: pb.EnqueueResponse) -> None:
        due = ints(answer.due)
        if len(due) != len(batch.ids) or answer.count != len(batch.ids) or due != (batch.due_ms or due):
            self.ledger.faults.append(f"answer of {answer.count} rows, dues {due[:3]} for {batch.due_ms}")
            return
        self.ledger.retried_batches += answer.duplicate
        for at, id_ in enumerate(batch.ids):
            self.ledger.acknowledged[id_] = Place(batch.queue, answer.first_seq + at, due[at])
            self.last_due_ms = max(self.last_due_ms, due[at])
        self._change_some(batch, answer)

    async def _produce(self, producer: int) -> None:
        """Send one batch at a time, over all queues."""
        numbers = [0] * self.traffic.queues
        sent = 0
        while self._producing:
            queue = self.choose.randrange(self.traffic.queues)
            batch = self._batch(producer, sent, queue, numbers[queue])
            sent += len(batch.ids)
            numbers[queue] += 1
            answer, _ = await self._until_answered("Enqueue", batch.request)
            self._stored(batch, pb.EnqueueResponse.FromString(answer))
            await asyncio.sleep(self.traffic.pause_s)

    async def _stream(self, producer: int) -> None:
        """Send batches of one queue, up to WINDOW unanswered; after a break send the unanswered again, in order."""
        queue, sent, number = producer % self.traffic.queues, 0, 0
        unanswered: deque[Batch] = deque()

        async def requests(again: list[Batch], broken: asyncio.Event) -> AsyncIterator[bytes]:
            nonlocal sent, number
            for batch in again:
                yield batch.request
            while self._producing and not broken.is_set():
                if len(unanswered) < WINDOW:
                    batch = self._batch(producer, sent, queue, number)
                    sent, number = sent + len(batch.ids), number + 1
                    unanswered.append(batch)
                    yield batch.request
                await asyncio.sleep(self.traffic.pause_s)

        while self._producing or unanswered:
            broken = asyncio.Event()
            channel = self.choose.choice(self._channels)
            call = channel.stream_stream(SERVICE + "EnqueueStream")(requests(list(unanswered), broken))
            try:
                async for data in call:
                    answer = pb.EnqueueResponse.FromString(data)
                    if answer.HasField("error"):
                        if grpc_code(answer.error.code) not in RETRYABLE and answer.error.reason not in ELSEWHERE:
                            raise Broken(f"stream: {answer.error}")
                        break  # those behind it in the stream are refused too: begin again with it
                    self._stored(unanswered.popleft(), answer)
            except grpc.aio.AioRpcError as error:
                if error.code() not in RETRYABLE and error.details() != WRITE_FAILED:
                    raise Broken(f"stream: {error.code().name} {error.details()}") from error
            finally:
                broken.set()
                call.cancel()
            await asyncio.sleep(RETRY_SECONDS)

    # ------------------------------------------------------------ cancels and reschedules
    def _change_some(self, batch: Batch, answer: pb.EnqueueResponse) -> None:
        for work, share in ((self._cancel, self.traffic.cancelled_share), (self._move, self.traffic.moved_share)):
            chosen = [id_ for id_ in batch.ids if self.choose.random() < share]
            batch = Batch([id_ for id_ in batch.ids if id_ not in chosen], b"", None, batch.queue)
            if chosen:
                task = asyncio.create_task(self._noting(work(answer.uid, chosen)))
                self._changes.add(task)
                task.add_done_callback(self._changes.discard)

    def _handles(self, uid: int, ids: list[int]) -> dict[str, Any]:
        places = [self.ledger.acknowledged[id_] for id_ in ids]
        return {
            "topic": self.traffic.topic, "queue": places[0].queue, "uid": uid,
            "due": i64(*(place.due_ms for place in places)), "seq": i64(*(place.seq for place in places)),
        }  # fmt: skip

    async def _cancel(self, uid: int, ids: list[int]) -> None:
        await asyncio.sleep(self.choose.random() * CHANGE_SECONDS)
        asked = pb.CancelRequest(**self._handles(uid, ids))
        answer, again = await self._until_answered("Cancel", asked.SerializeToString())
        for id_, outcome in zip(ids, pb.CancelResponse.FromString(answer).outcome, strict=True):
            if outcome == pb.CANCELLED or (again and outcome == pb.ALREADY_CANCELLED):
                self.ledger.cancelled.add(id_)
            elif outcome != pb.TOO_LATE:
                self.ledger.faults.append(f"cancel of {id_}: {pb.Outcome.Name(outcome)}")

    async def _move(self, uid: int, ids: list[int]) -> None:
        await asyncio.sleep(self.choose.random() * CHANGE_SECONDS)
        new = [now_ms() + self.choose.randrange(0, self.traffic.farthest_ms) for _ in ids]
        asked = pb.RescheduleRequest(**self._handles(uid, ids), time=i64(*new))
        self.ledger.maybe_moved.update(zip(ids, new, strict=True))
        answer, again = await self._until_answered("Reschedule", asked.SerializeToString())
        for id_, outcome, due in zip(ids, pb.RescheduleResponse.FromString(answer).outcome, new, strict=True):
            if outcome == pb.MOVED or (again and outcome == pb.RESCHEDULED):
                self.ledger.moved[id_] = due
                self.last_due_ms = max(self.last_due_ms, due)
            elif outcome != pb.TOO_LATE:
                self.ledger.faults.append(f"reschedule of {id_}: {pb.Outcome.Name(outcome)}")

    # ------------------------------------------------------------ consumers
    async def _consume(self, queue: int) -> None:
        traffic = self.traffic
        place: dict[str, Any] = {"topic": traffic.topic, "queue": queue, "group": "g"}
        receive = pb.ReceiveRequest(**place, max_messages=500, wait_ms=500, invisible_ms=1_500).SerializeToString()
        exchange = self._receive_stream(receive) if queue % 2 else self._receive(receive)
        async for asked_ms, answer in exchange:
            batch = pb.MessageBatch.FromString(answer)
            self._note(queue, batch, asked_ms, now_ms())
            offsets, attempts = np.frombuffer(batch.offset, "<i8"), np.frombuffer(batch.attempt, "<u4")
            if not len(offsets):
                continue
            lot = np.array([self.choose.random() for _ in range(len(offsets))])
            done = np.sort(offsets[lot < 0.93])
            ack = pb.AckRequest(**place, start=done.tobytes(), end=(done + 1).tobytes())
            if await self._call("Ack", ack.SerializeToString()) is not None:
                self.ledger.ack(queue, done.tolist(), now_ms())
            back = (lot >= 0.93) & (lot < 0.98)  # the consumer forgets the others: their invisible time ends
            if back.any():
                attempts = attempts if len(attempts) else np.ones(len(offsets), "<u4")
                nack = pb.NackRequest(
                    **place, offset=offsets[back].tobytes(), attempt=attempts[back].tobytes(), backoff_ms=50
                )
                await self._call("Nack", nack.SerializeToString())

    async def _receive(self, request: bytes) -> AsyncIterator[tuple[int, bytes]]:
        """Yields (time of the request, answer), each by a call of its own."""
        while self._consuming:
            asked_ms = now_ms()
            answer = await self._call("Receive", request)
            if answer is None:
                await asyncio.sleep(RETRY_SECONDS)
            else:
                yield asked_ms, answer

    async def _receive_stream(self, request: bytes) -> AsyncIterator[tuple[int, bytes]]:
        """Yields the same over streams, with a new stream after each break."""
        while self._consuming:
            call = self.choose.choice(self._channels).stream_stream(SERVICE + "ReceiveStream")()
            try:
                while self._consuming:
                    asked_ms = now_ms()
                    await call.write(request)
                    answer = await asyncio.wait_for(call.read(), CALL_SECONDS)
                    if answer is grpc.aio.EOF:
                        break
                    yield asked_ms, answer
            except grpc.aio.AioRpcError as error:
                if error.code() not in RETRYABLE and error.details() != WRITE_FAILED:
                    raise Broken(f"receive stream: {error.code().name} {error.details()}") from error
            except (asyncio.InvalidStateError, TimeoutError):
                pass  # the call was over when the request was written, or the node is frozen
            finally:
                call.cancel()
            await asyncio.sleep(RETRY_SECONDS)

    def _note(self, queue: int, batch: pb.MessageBatch, asked_ms: int, received_ms: int) -> None:
        ends = np.cumsum(np.frombuffer(batch.size, "<u4"), dtype=np.int64).tolist()
        begin = 0
        for offset, seq, due, end in zip(ints(batch.offset), ints(batch.seq), ints(batch.due), ends, strict=True):
            body = pb.Message.FromString(batch.records[begin:end]).body
            begin = end
            self.ledger.deliver(Delivery(ID.unpack_from(body)[0], queue, offset, seq, due, asked_ms, received_ms))


def reason_of(error: grpc.aio.AioRpcError) -> str:
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in status_pb2.Status.FromString(value).details:
                info = error_details_pb2.ErrorInfo()
                if detail.Unpack(info):
                    return str(info.reason)
    return ""


def grpc_code(number: int) -> grpc.StatusCode:
    return next(code for code in grpc.StatusCode if code.value[0] == number)
