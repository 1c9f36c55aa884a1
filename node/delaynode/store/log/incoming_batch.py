"""What a producer hands in: a batch in columns, and the limits that it must keep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from delayapi.durations import format_exactly_ms
from delayapi.units import format_bytes

from delaynode.store.columns import highest, is_few, lowest, total
from delaynode.store.errors import Refused
from delaynode.store.types import I64, U8, U32, Array, Bools, Buffer, Ids

MAX_MESSAGE_BYTES = 4 << 20
MAX_BATCH_BYTES = 8 << 20
MAX_BATCH_MESSAGES = 65_536
ID_BYTES = 16
ID = f"S{ID_BYTES}"
NO_IDS: Ids = np.empty(0, ID)


class BatchRun(NamedTuple):
    """The next `messages` rows: batch `number` of that producer; producer 0: of none with numbers."""

    producer: int
    number: int
    messages: int


@dataclass(slots=True)  # not frozen: one is made for each message, see docs/benchmarks.md
class IncomingBatch:
    """n messages for one shard. Views are fine: nothing is kept but the records until they are written.

    time: i64[n] ms, the due or, where relative u8[n] is 1, the delay; relative may be empty: all absolute
    size: u32[n] bytes; key, tag: u32[n] crc32; records: the bytes, one record after the other
    runs: of many requests, whose rows these are, in order; empty: of one, `number` of `producer`
    ids: S16[n], for messages that are to be stored once each, of no producer; empty: they have none
    """

    time: I64
    relative: U8
    size: U32
    key: U32
    tag: U32
    records: Buffer
    producer: int = 0  # 0: not idempotent
    number: int = 0
    runs: Sequence[BatchRun] = ()
    ids: Ids = field(default_factory=lambda: NO_IDS)

    @property
    def requests(self) -> Sequence[BatchRun]:
        return self.runs or (BatchRun(self.producer, self.number, len(self.time)),)


def split(batch: IncomingBatch) -> Iterator[IncomingBatch]:
    """A batch for each of its requests."""
    records, at, byte = memoryview(batch.records), 0, 0
    for producer, number, messages in batch.requests:
        rows = slice(at, at + messages)
        size = batch.size[rows]
        end = byte + total(size)
        yield IncomingBatch(
            batch.time[rows], batch.relative[rows], size, batch.key[rows], batch.tag[rows], records[byte:end],
            producer, number,
        )  # fmt: skip
        at, byte = rows.stop, end


def merge_columns(batches: Sequence[IncomingBatch]) -> IncomingBatch:
    """All messages of the batches, in order, as of no producer, and without the records of more than one."""
    if len(batches) == 1:
        return batches[0]
    relative = np.empty(0, np.uint8)
    if any(len(batch.relative) for batch in batches):
        columns = [b.relative if len(b.relative) else np.zeros(len(b.time), np.uint8) for b in batches]
        relative = np.concatenate(columns)
    time, size, key, tag = (
        np.concatenate(column) for column in zip(*((b.time, b.size, b.key, b.tag) for b in batches), strict=True)
    )
    return IncomingBatch(time, relative, size, key, tag, b"")


def merge_with_ids(batches: Sequence[IncomingBatch]) -> IncomingBatch:
    """All messages of the batches, in order, with their ids and records."""
    if len(batches) == 1:
        return batches[0]
    records = b"".join(batch.records for batch in batches)
    return replace(merge_columns(batches), records=records, ids=np.concatenate([batch.ids for batch in batches]))


def columns_of(
    count: int,
    time: Buffer,
    relative: Buffer,
    size: Buffer,
    key: Buffer,
    tag: Buffer,
    records: Buffer,
    producer: int = 0,
    number: int = 0,
    runs: Sequence[BatchRun] = (),
    ids: Buffer = b"",
) -> IncomingBatch:
    """A batch from the wire's columns. Raises Refused with what is wrong and where."""
    if not 0 < count <= MAX_BATCH_MESSAGES:
        raise Refused("BATCH_TOO_LARGE", f"a batch has 1 to {MAX_BATCH_MESSAGES:,} messages, this one says {count:,}")
    if len(records) > MAX_BATCH_BYTES:
        raise Refused(
            "BATCH_TOO_LARGE", f"the records have {len(records):,} bytes, the limit is {format_bytes(MAX_BATCH_BYTES)}"
        )
    columns: list[Array] = []
    for name, data, dtype, width, optional in (
        ("time", time, "<i8", 8, False), ("relative", relative, "u1", 1, True), ("size", size, "<u4", 4, False),
        ("key_hash", key, "<u4", 4, True), ("tag_hash", tag, "<u4", 4, True),
    ):  # fmt: skip
        wanted = count * width
        if optional and not len(data):
            columns.append(np.zeros(0 if name == "relative" else count, dtype))
        elif len(data) != wanted:
            raise Refused("BAD_COLUMNS", f"column {name} has {len(data)} bytes, {count} messages need {wanted}")
        else:
            columns.append(np.frombuffer(data, dtype))
    times, flags, sizes, keys, tags = columns
    if len(flags) and highest(flags)[0] > 1:
        raise Refused("BAD_COLUMNS", f"column relative: message {int(np.argmax(flags > 1))} is neither 0 nor 1")
    least, at = lowest(times)
    if least < 0:
        raise Refused("BAD_COLUMNS", f"column time: message {at} is negative ({least})")
    largest, at = highest(sizes)
    if largest > MAX_MESSAGE_BYTES:
        raise Refused(
            "MESSAGE_TOO_LARGE",
            f"message {at} has {largest:,} bytes, the limit is {format_bytes(MAX_MESSAGE_BYTES)}",
        )
    least, at = lowest(sizes)
    if least == 0:
        raise Refused("BAD_COLUMNS", f"column size: message {at} has an empty record")
    if total(sizes) != len(records):
        raise Refused("BAD_COLUMNS", f"column size adds up to {total(sizes)} bytes, records has {len(records)}")
    if len(ids) not in (0, ID_BYTES * count):
        wanted = ID_BYTES * count
        raise Refused("BAD_COLUMNS", f"column message_id has {len(ids)} bytes, {count} messages need {wanted}")
    return IncomingBatch(times, flags, sizes, keys, tags, records, producer, number, runs, np.frombuffer(ids, ID))


def select_rows(batch: IncomingBatch, rows: Bools, due: I64) -> IncomingBatch:
    """These rows (n,) of a batch of one request without a producer, with their dues i64[n] as times."""
    end = np.cumsum(batch.size, dtype=np.int64)
    records, start = memoryview(batch.records), end - batch.size
    kept = [records[low:high] for low, high in zip(start[rows].tolist(), end[rows].tolist(), strict=True)]
    return IncomingBatch(
        due[rows], np.empty(0, np.uint8), batch.size[rows], batch.key[rows], batch.tag[rows], b"".join(kept),
        ids=batch.ids[rows],
    )  # fmt: skip


def resolve_due(time: I64, relative: U8, now_ms: int, max_delay_ms: int) -> I64:
    """The due of each message, i64[n] ms: delays counted from `now_ms`. Raises Refused beyond `max_delay_ms`."""
    latest = now_ms + max_delay_ms
    if is_few(len(time)):
        flags = relative.tolist() or [0] * len(time)
        delays = [at if flag else at - now_ms for at, flag in zip(time.tolist(), flags, strict=True)]
        if max(delays, default=0) <= max_delay_ms:
            return np.array([now_ms + delay for delay in delays], np.int64)
    if len(relative):
        limit = np.where(relative == 1, max_delay_ms, latest)
        over = time > limit
        due = np.where(relative == 1, np.minimum(time, max_delay_ms) + now_ms, time)
    else:
        over, due = time > latest, time
    if over.any():
        at = int(np.argmax(over))
        asked = int(time[at]) - (0 if len(relative) and relative[at] else now_ms)
        raise Refused(
            "DELAY_TOO_LONG",
            f"message {at} is delayed by {format_exactly_ms(asked)}, the limit is {format_exactly_ms(max_delay_ms)}",
            max_delay_ms=max_delay_ms,
        )
    return due.astype(np.int64, copy=False)
