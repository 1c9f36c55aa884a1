"""What a producer hands in: a batch in columns, and the limits that it must keep."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from delayapi.units import DAY_MS, format_bytes

from delaynode.store.errors import Refused
from delaynode.store.types import I64, U8, U32, Buffer

MAX_MESSAGE_BYTES = 4 << 20
MAX_BATCH_BYTES = 8 << 20
MAX_BATCH_MESSAGES = 65_536


@dataclass(frozen=True, slots=True)
class IncomingBatch:
    """n messages for one shard. Views are fine: nothing is kept but the records until they are written.

    time: i64[n] ms, the due or, where relative u8[n] is 1, the delay; relative may be empty: all absolute
    size: u32[n] bytes; key, tag: u32[n] crc32; records: the bytes, one record after the other
    """

    time: I64
    relative: U8
    size: U32
    key: U32
    tag: U32
    records: Buffer
    producer: int = 0  # 0: not idempotent
    number: int = 0


def columns_of(
    count: int,
    time: Buffer,
    relative: Buffer,
    size: Buffer,
    key: Buffer,
    tag: Buffer,
    records: Buffer,
    producer: int,
    number: int,
) -> IncomingBatch:
    """A Batch from the wire's columns. Raises Refused with what is wrong and where."""
    if not 0 < count <= MAX_BATCH_MESSAGES:
        raise Refused("BATCH_TOO_LARGE", f"a batch has 1 to {MAX_BATCH_MESSAGES:,} messages, this one says {count:,}")
    if len(records) > MAX_BATCH_BYTES:
        raise Refused(
            "BATCH_TOO_LARGE", f"the records have {len(records):,} bytes, the limit is {format_bytes(MAX_BATCH_BYTES)}"
        )
    columns = []
    for name, data, dtype, optional in (
        ("time", time, "<i8", False), ("relative", relative, "u1", True), ("size", size, "<u4", False),
        ("key_hash", key, "<u4", True), ("tag_hash", tag, "<u4", True),
    ):  # fmt: skip
        wanted = count * np.dtype(dtype).itemsize
        if optional and not len(data):
            columns.append(np.zeros(0 if name == "relative" else count, dtype))
        elif len(data) != wanted:
            raise Refused("BAD_COLUMNS", f"column {name} has {len(data)} bytes, {count} messages need {wanted}")
        else:
            columns.append(np.frombuffer(data, dtype))
    times, flags, sizes, keys, tags = columns
    if len(flags) and int(flags.max()) > 1:
        raise Refused("BAD_COLUMNS", f"column relative: message {int(np.argmax(flags > 1))} is neither 0 nor 1")
    if int(times.min()) < 0:
        raise Refused("BAD_COLUMNS", f"column time: message {int(np.argmin(times))} is negative ({int(times.min())})")
    if int(sizes.max()) > MAX_MESSAGE_BYTES:
        at = int(np.argmax(sizes))
        raise Refused(
            "MESSAGE_TOO_LARGE",
            f"message {at} has {int(sizes[at]):,} bytes, the limit is {format_bytes(MAX_MESSAGE_BYTES)}",
        )
    if int(sizes.min()) == 0:
        raise Refused("BAD_COLUMNS", f"column size: message {int(np.argmin(sizes))} has an empty record")
    total = int(sizes.sum(dtype=np.int64))
    if total != len(records):
        raise Refused("BAD_COLUMNS", f"column size adds up to {total} bytes, records has {len(records)}")
    return IncomingBatch(times, flags, sizes, keys, tags, records, producer, number)


def resolve_due(time: I64, relative: U8, now_ms: int, max_delay_ms: int) -> I64:
    """The due of each message, i64[n] ms: delays counted from `now_ms`. Raises Refused beyond `max_delay_ms`."""
    latest = now_ms + max_delay_ms
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
            f"message {at} is delayed by {asked / DAY_MS:.1f} days, the limit is {max_delay_ms / DAY_MS:g} days",
            max_delay_ms=max_delay_ms,
        )
    return due.astype(np.int64, copy=False)
