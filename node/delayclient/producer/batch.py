"""A request's worth of messages for one shard, and who waits for its answer."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self

import numpy as np
from delayapi.codec import Buffer, EnqueueResponseView, decode_enqueue_request, encode_enqueue_request
from delayapi.wirefields import encode_varint
from numpy.typing import NDArray

from delayclient.errors import DelayError, DelayTooLong, WrongTopicType
from delayclient.producer.results import BatchPart, SendResult

MAX_RECORD_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class EnqueueColumns:
    """An EnqueueRequest's columns (delay.proto has shapes and units); empty buffers are left out."""

    time: Buffer
    relative: Buffer
    size: Buffer
    key_hash: Buffer
    tag_hash: Buffer
    records: Buffer
    message_id: Buffer = b""


@dataclass(slots=True, eq=False)
class ShardBatch(ABC):
    """Messages for one shard. `release` is called once when they are acknowledged or failed."""

    topic: str
    queue: int
    columns: EnqueueColumns | None
    """None once they are encoded."""
    count: int
    nbytes: int
    deadline_s: float
    release: Callable[[ShardBatch], None]
    _encoded: bytes = field(default=b"", init=False)
    _encoded_as: tuple[int, int] = field(default=(0, 0), init=False)

    def wire(self, producer_id: int, number: int) -> bytes:
        """The encoded EnqueueRequest."""
        columns = self.columns
        if columns is not None:
            self.columns = None  # the encoded request has it all
            self._encoded_as = (producer_id, number)
            self._encoded = encode_enqueue_request(
                self.topic,
                self.queue,
                self.count,
                columns.time,
                columns.size,
                columns.records,
                relative=columns.relative,
                key_hash=columns.key_hash,
                tag_hash=columns.tag_hash,
                producer_id=producer_id,
                number=number,
                message_id=columns.message_id,
            )
        if self._encoded_as == (producer_id, number):
            return self._encoded
        # Numbered anew: of a repeated field the last one counts.
        return self._encoded + b"\x51" + producer_id.to_bytes(8, "little") + b"\x58" + encode_varint(number)

    def succeed(self, answer: EnqueueResponseView) -> None:
        """Passes the answer on to who waits for it."""
        try:
            due = self._due(answer)
        except DelayError as error:
            self.fail(error)
            return
        self._resolve(answer, due)
        self.release(self)

    def fail(self, error: DelayError) -> None:
        """Passes the failure on to who waits for the answer."""
        self._reject(error)
        self.release(self)

    def split(self, error: DelayError) -> Sequence[Self]:
        """The parts to send instead of this refused batch; none here."""
        return ()

    @abstractmethod
    def _resolve(self, answer: EnqueueResponseView, due: NDArray[np.int64]) -> None:
        """Gives the answer to who waits for it."""

    @abstractmethod
    def _reject(self, error: DelayError) -> None:
        """Gives the failure to who waits for the answer."""

    def _due(self, answer: EnqueueResponseView) -> NDArray[np.int64]:
        if len(answer.due) == 8 * self.count:
            return np.frombuffer(answer.due, "<i8")
        request = decode_enqueue_request(self._encoded)
        if len(answer.due) or any(request.relative):
            message = f"the answer has {len(answer.due)} bytes of due times for {self.count} messages"
            raise DelayError(message, code="INTERNAL", reason="WRONG_ANSWER")
        return np.frombuffer(request.time, "<i8")


@dataclass(slots=True, eq=False)
class ExplicitBatch(ShardBatch):
    """A part of a send_batch(): `rows` i64[n] says which of its messages."""

    rows: NDArray[np.int64]
    future: asyncio.Future[BatchPart]

    def _resolve(self, answer: EnqueueResponseView, due: NDArray[np.int64]) -> None:
        if not self.future.done():
            part = BatchPart(self.topic, self.queue, answer.uid, answer.first_seq, self.rows, due)
            self.future.set_result(part)

    def _reject(self, error: DelayError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


@dataclass(slots=True, eq=False)
class PendingBatch(ShardBatch):
    """Messages that were sent one at a time, each with its own future."""

    futures: Sequence[asyncio.Future[SendResult]]

    def _resolve(self, answer: EnqueueResponseView, due: NDArray[np.int64]) -> None:
        topic, queue, uid, seq = self.topic, self.queue, answer.uid, answer.first_seq
        if len(answer.seq):
            self._resolve_each(answer, due)
            return
        for future, due_ms in zip(self.futures, due.tolist(), strict=True):
            if not future.done():
                future.set_result(SendResult(topic, queue, uid, due_ms, seq))
            seq += 1

    def _resolve_each(self, answer: EnqueueResponseView, due: NDArray[np.int64]) -> None:
        """Of messages that may have been stored before, by their ids."""
        if (len(answer.seq), len(answer.repeated)) != (8 * self.count, self.count):
            message = f"the answer has {len(answer.seq)} bytes of seqs for {self.count} messages"
            self._reject(DelayError(message, code="INTERNAL", reason="WRONG_ANSWER"))
            return
        rows = zip(self.futures, due.tolist(), np.frombuffer(answer.seq, "<i8").tolist(), answer.repeated, strict=True)
        for future, due_ms, seq, repeated in rows:
            if not future.done():
                future.set_result(SendResult(self.topic, self.queue, answer.uid, due_ms, seq, bool(repeated)))

    def _reject(self, error: DelayError) -> None:
        for future in self.futures:
            if not future.done():
                future.set_exception(error)

    def split(self, error: DelayError) -> Sequence[Self]:
        """Halves, when one message's time made the shard refuse all: its neighbours belong to other callers."""
        if not isinstance(error, DelayTooLong | WrongTopicType) or self.count == 1:
            return ()
        middle = self.count // 2
        return (self._cut(0, middle), self._cut(middle, self.count))

    def _cut(self, start: int, stop: int) -> Self:
        request = decode_enqueue_request(self._encoded)
        ends = np.concatenate(([0], np.cumsum(np.frombuffer(request.size, "<u4"), dtype=np.int64)))
        first, last = int(ends[start]), int(ends[stop])
        columns = EnqueueColumns(
            request.time[8 * start : 8 * stop],
            request.relative[start:stop],
            request.size[4 * start : 4 * stop],
            request.key_hash[4 * start : 4 * stop],
            request.tag_hash[4 * start : 4 * stop],
            request.records[first:last],
            request.message_id[16 * start : 16 * stop],
        )
        return replace(self, columns=columns, count=stop - start, nbytes=last - first, futures=self.futures[start:stop])


class Collector:
    """Gathers single messages for one shard until they are sent as a batch."""

    __slots__ = ("deadline_s", "held", "messages", "nbytes", "records")

    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.held = False
        """Its time to gather is over, and it waits for its lane."""
        self.nbytes = 0
        self.messages: list[tuple[int, int, int, int, int, bytes, asyncio.Future[SendResult]]] = []
        """Rows of time ms, relative, record bytes, key hash, tag hash, message id or empty, future."""
        self.records: list[bytes] = []

    def seal(self, topic: str, queue: int, release: Callable[[ShardBatch], None]) -> PendingBatch:
        """The batch of all that was gathered."""
        time, relative, size, key_hash, tag_hash, message_id, futures = zip(*self.messages, strict=True)
        columns = EnqueueColumns(
            np.array(time, "<i8"),
            bytes(relative) if any(relative) else b"",
            np.array(size, "<u4"),
            np.array(key_hash, "<u4") if any(key_hash) else b"",
            np.array(tag_hash, "<u4") if any(tag_hash) else b"",
            b"".join(self.records),
            b"".join(message_id),
        )
        return PendingBatch(topic, queue, columns, len(futures), self.nbytes, self.deadline_s, release, futures)
