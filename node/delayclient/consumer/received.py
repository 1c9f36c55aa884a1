"""Received messages: a batch in columns, and a message as a view of one row that decodes its record when asked."""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Iterator, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any, Final, Protocol

import numpy as np
from delayapi.codec import MessageBatchView
from delayapi.durations import duration_ms
from delayapi.handle import Handle, encode_handles
from delayapi.proto.delay.v1 import delay_pb2
from delayapi.reasons import cut_reasons
from numpy.typing import NDArray

from delayclient.errors import DelayError
from delayclient.records import decode_record, shown_record

POLL_BYTES: Final = 900 << 10
"""Of records in one answer. With the columns of records of 200 B and more it is less than 1 MiB: what is larger takes
memory anew in the node each time (delaynode/memory.py), at two thirds of the speed in all."""


class Acknowledger(Protocol):
    """Takes what is done with messages of one queue and tells the shard, soon."""

    invisible_ms: int

    def ack(self, offset: int) -> None: ...
    def ack_many(self, offsets: NDArray[np.int64]) -> None: ...
    def nack(
        self, offsets: NDArray[np.int64], attempts: NDArray[np.uint32], backoff_ms: int, *, dead: bool = False,
        reason: str = "",
    ) -> None: ...  # fmt: skip
    def give_back(self, offsets: NDArray[np.int64], attempts: NDArray[np.uint32]) -> None: ...
    def give_back_later(self, offsets: NDArray[np.int64], attempts: NDArray[np.uint32], after_s: float) -> None: ...
    async def extend(
        self, offsets: NDArray[np.int64], attempts: NDArray[np.uint32], invisible_ms: int
    ) -> NDArray[np.bool_]: ...


class NoAcks:
    """For messages that cannot be acknowledged."""

    invisible_ms = 0

    def __init__(self, why: str) -> None:
        self._why = why

    def ack(self, *_: object, **__: object) -> Any:
        raise TypeError(self._why)

    ack_many = nack = give_back = give_back_later = extend = ack


class _Done:
    """An awaitable that is done."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


DONE: Final[Awaitable[None]] = _Done()


class ReceivedBatch:
    """n messages of one queue, in columns; iterating gives them one by one."""

    def __init__(
        self,
        topic: str,
        queue: int,
        view: MessageBatchView,
        received_ms: int,
        acks: Acknowledger,
        expires_s: float = float("inf"),
    ) -> None:
        """`expires_s`: the time, by the loop's clock, until which no other consumer gets these messages. Raises
        DelayError.
        """
        n = view.count
        self.topic = topic
        self.queue = queue
        self.uid = view.uid
        self.offset: NDArray[np.int64] = _column("offset", view.offset, "<i8", n)
        """Queue offset, i64[n]."""
        self.due_ms: NDArray[np.int64] = _column("due", view.due, "<i8", n)
        """i64[n] ms since 1970 UTC."""
        self.seq: NDArray[np.int64] = _column("seq", view.seq, "<i8", n)
        """i64[n]."""
        self.size: NDArray[np.uint32] = _column("size", view.size, "<u4", n)
        """Bytes of each record, u32[n]."""
        self.attempt: NDArray[np.uint32] = (
            _column("attempt", view.attempt, "<u4", n) if len(view.attempt) else np.ones(n, np.uint32)
        )
        """u32[n], 1 at the first delivery."""
        self.dead_reason: Sequence[str] = ()
        """Of dead letters, n of them: what the nack said that made each one. Empty: none of them has any."""
        if len(view.reason_size):
            try:
                self.dead_reason = cut_reasons(np.frombuffer(view.reason_size, "<u2"), bytes(view.reasons), n)
            except ValueError as error:
                raise DelayError(f"{topic}-{queue}: {error}", code="INTERNAL", reason="BAD_COLUMNS") from None
        self.records = view.records
        """n encoded delay.v1.Message, one after the other."""
        self.received_ms = received_ms
        self.expires_s = expires_s
        self._acks = acks
        self._ends: list[int] | None = None
        self._offsets: list[int] = []
        self._due: list[int] = []
        self._seqs: list[int] = []
        if int(self.size.sum(dtype=np.int64)) != len(self.records):
            raise DelayError(
                f"{topic}-{queue}: the records' sizes do not add up to {len(self.records)}", code="INTERNAL"
            )

    def __len__(self) -> int:
        return len(self.offset)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return (ReceivedMessage(self, row) for row in range(len(self)))

    def __getitem__(self, row: int) -> ReceivedMessage:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return ReceivedMessage(self, row)

    def ack(self) -> Awaitable[None]:
        """Acknowledges all of them; see Consumer.flush() for when that is certain."""
        self._acks.ack_many(self.offset)
        return DONE

    def nack(
        self, backoff_ms: int = -1, rows: slice = slice(None), *, dead: bool = False, reason: str = ""
    ) -> Awaitable[None]:
        """Ends their attempts: the next ones after `backoff_ms`; -1: the group's exponential backoff. `dead`: no more
        attempts, they are dead letters at once. `reason`: kept with those that become dead letters by this; at most
        1,024 bytes. Raises ValueError.
        """
        self._acks.nack(self.offset[rows], self.attempt[rows], backoff_ms, dead=dead, reason=reason)
        return DONE

    def give_back(self, rows: slice = slice(None), *, after: int | str | timedelta = 0) -> Awaitable[None]:
        """They were not worked on: another consumer gets them at once, or after that time, and it costs them no
        attempt. `after`: 12 h at most; closing the consumer, or the loss of the shard's master, ends it before."""
        if after_ms := duration_ms(after):
            self._acks.give_back_later(self.offset[rows], self.attempt[rows], after_ms / 1_000)
        else:
            self._acks.give_back(self.offset[rows], self.attempt[rows])
        return DONE

    async def extend(
        self, invisible: int | str | timedelta | None = None, rows: slice = slice(None)
    ) -> NDArray[np.bool_]:
        """Keeps them for `invisible` from now on, 12 h at most; None: as long as when they were received. Which rows
        are still this consumer's: the others' time was over, or they are acknowledged. Raises DelayError.
        """
        invisible_ms = self._acks.invisible_ms if invisible is None else duration_ms(invisible)
        return await self._acks.extend(self.offset[rows], self.attempt[rows], invisible_ms)

    def record(self, row: int) -> memoryview:
        """The encoded record of a row."""
        ends = self._ends or self._unpack()
        return self.records[ends[row] : ends[row + 1]]

    def decode(self) -> list[delay_pb2.Message]:
        """All records, decoded. Raises WireError."""
        ends = self._ends or self._unpack()
        return [decode_record(self.records[start:end]) for start, end in pairwise(ends)]

    def bodies(self) -> list[bytes]:
        """All bodies. Raises WireError."""
        return [message.body for message in self.decode()]

    def handles(self) -> list[str]:
        """All handles."""
        return encode_handles(self.topic, self.queue, self.uid, self.due_ms, self.seq)

    def _unpack(self) -> list[int]:
        """Columns as lists: reading a NumPy scalar costs more than decoding a record."""
        ends = np.zeros(len(self) + 1, np.int64)
        np.cumsum(self.size, out=ends[1:])
        self._offsets = self.offset.tolist()
        self._due = self.due_ms.tolist()
        self._seqs = self.seq.tolist()
        self._ends = ends.tolist()
        return self._ends


class ReceivedMessage:
    """One message. Its record is decoded at the first look at key, tag, properties, body or born_ms."""

    __slots__ = ("_batch", "_record", "_row")

    def __init__(self, batch: ReceivedBatch, row: int) -> None:
        self._batch = batch
        self._row = row
        self._record: delay_pb2.Message | None = None

    def ack(self) -> Awaitable[None]:
        """Done with it. Cheap: acknowledgements are gathered and sent soon; Consumer.flush() waits for them."""
        batch = self._batch
        if batch._ends is None:
            batch._unpack()
        batch._acks.ack(batch._offsets[self._row])
        return DONE

    def nack(self, backoff_ms: int = -1, *, dead: bool = False, reason: str = "") -> Awaitable[None]:
        """Ends this attempt: the next one after `backoff_ms`; -1: the group's exponential backoff. `dead`: no more
        attempts, it is a dead letter at once. `reason`: kept with it if it becomes a dead letter by this; at most 1,024
        bytes. Raises ValueError.
        """
        return self._batch.nack(backoff_ms, slice(self._row, self._row + 1), dead=dead, reason=reason)

    def give_back(self, *, after: int | str | timedelta = 0) -> Awaitable[None]:
        """It was not worked on: another consumer gets it at once, or after that time, and it costs no attempt. `after`:
        12 h at most; closing the consumer, or the loss of the shard's master, ends it before."""
        return self._batch.give_back(slice(self._row, self._row + 1), after=after)

    async def extend(self, invisible: int | str | timedelta | None = None) -> bool:
        """Keeps it for `invisible` from now on, 12 h at most; None: as long as when it was received. False: its time
        was over, and another consumer may have it. Raises DelayError.
        """
        return bool((await self._batch.extend(invisible, slice(self._row, self._row + 1)))[0])

    @property
    def topic(self) -> str:
        return self._batch.topic

    @property
    def queue(self) -> int:
        return self._batch.queue

    @property
    def offset(self) -> int:
        """Its place in the queue."""
        self._batch._ends or self._batch._unpack()
        return self._batch._offsets[self._row]

    @property
    def seq(self) -> int:
        """Its number in the shard."""
        self._batch._ends or self._batch._unpack()
        return self._batch._seqs[self._row]

    @property
    def due_ms(self) -> int:
        """When it was to be delivered, ms since 1970 UTC."""
        self._batch._ends or self._batch._unpack()
        return self._batch._due[self._row]

    @property
    def received_ms(self) -> int:
        """When it arrived here, ms since 1970 UTC."""
        return self._batch.received_ms

    @property
    def attempt(self) -> int:
        """1 at the first delivery."""
        return int(self._batch.attempt[self._row])

    @property
    def dead_reason(self) -> str:
        """Of a dead letter: what the nack said that made it one. Empty: it said nothing, or its last attempt ran out
        of time."""
        return self._batch.dead_reason[self._row] if self._batch.dead_reason else ""

    @property
    def handle(self) -> str:
        """The text that names it."""
        return Handle(self.topic, self.queue, self._batch.uid, self.due_ms, self.seq).encode()

    @property
    def record(self) -> delay_pb2.Message:
        """The decoded record. Raises WireError when the producer stored something else."""
        record = self._record
        if record is None:
            record = self._record = decode_record(self._batch.record(self._row))
        return record

    def shown(self) -> delay_pb2.Message:
        """Likewise for people: what is no message is a body."""
        return shown_record(self._batch.record(self._row))

    @property
    def body(self) -> bytes:
        return self.record.body

    @property
    def key(self) -> str:
        """Empty without one."""
        return self.record.key

    @property
    def tag(self) -> str:
        """Empty without one."""
        return self.record.tag

    @property
    def properties(self) -> dict[str, str]:
        return dict(self.record.properties)

    @property
    def born_ms(self) -> int:
        """The producer's clock at send, ms since 1970 UTC."""
        return self.record.born_ms

    def __repr__(self) -> str:
        return f"ReceivedMessage({self.topic}-{self.queue}, offset={self.offset}, seq={self.seq}, due_ms={self.due_ms})"


def _column(name: str, data: memoryview, dtype: str, n: int) -> NDArray[Any]:
    if len(data) != n * int(dtype[-1]):
        raise DelayError(f"column {name} has {len(data)} bytes for {n} messages", code="INTERNAL", reason="BAD_COLUMNS")
    return np.frombuffer(data, dtype)
