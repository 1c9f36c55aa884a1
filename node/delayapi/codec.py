"""Protobuf wire codecs for the calls that carry big columns; a column is copied once at most.

The generated classes copy every `bytes` field on parse, on assignment and on serialization. Here a decoded message
is a view: its columns are memoryviews over the bytes that arrived, and an encoder joins all buffers in one pass.
Malformed bytes raise WireError with the message, the field and the byte where it was found.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from delayapi.proto.delay.v1 import delay_pb2
from delayapi.wirefields import (
    BYTES,
    FIXED64,
    MASK32,
    MESSAGE,
    TEXT,
    VARINT,
    Schema,
    WireError,
    encode_varint,
    scan,
    signed,
)

Buffer: TypeAlias = bytes | bytearray | memoryview | NDArray[np.generic]
"""C-contiguous; its bytes are sent as they are, so an array must be little-endian."""

_Raw: TypeAlias = bytes | memoryview


_EMPTY: Final = memoryview(b"")


@dataclass(frozen=True, slots=True)
class EnqueueRequestView:
    """delay.v1.EnqueueRequest; the columns are views over the bytes that were decoded."""

    topic: str
    queue: int
    count: int
    time: memoryview
    relative: memoryview
    size: memoryview
    key_hash: memoryview
    tag_hash: memoryview
    records: memoryview
    producer_id: int
    number: int
    message_id: memoryview


@dataclass(frozen=True, slots=True)
class EnqueueResponseView:
    """delay.v1.EnqueueResponse; `due` is a view over the bytes that were decoded."""

    uid: int
    first_seq: int
    count: int
    due: memoryview
    duplicate: bool
    error: delay_pb2.Error | None
    seq: memoryview = _EMPTY
    repeated: memoryview = _EMPTY


@dataclass(frozen=True, slots=True)
class MessageBatchView:
    """delay.v1.MessageBatch; the columns are views over the bytes that were decoded."""

    uid: int
    count: int
    offset: memoryview
    due: memoryview
    seq: memoryview
    size: memoryview
    attempt: memoryview
    records: memoryview
    end_offset: int
    next_offset: int
    behind_ms: int
    reason_size: memoryview = _EMPTY
    reasons: memoryview = _EMPTY


# ---------------------------------------------------------------------------------------------- encode


def encode_enqueue_request(
    topic: str,
    queue: int,
    count: int,
    time: Buffer,
    size: Buffer,
    records: Buffer | Iterable[Buffer],
    *,
    relative: Buffer = b"",
    key_hash: Buffer = b"",
    tag_hash: Buffer = b"",
    producer_id: int = 0,
    number: int = 0,
    message_id: Buffer = b"",
) -> bytes:
    """delay.v1.EnqueueRequest from its columns; `records` is one buffer or the buffers to put one after the other."""
    parts: list[_Raw] = []
    _put_bytes(parts, 1, topic.encode())
    _put_varint(parts, 2, queue)
    _put_varint(parts, 3, count)
    _put_bytes(parts, 4, time)
    _put_bytes(parts, 5, relative)
    _put_bytes(parts, 6, size)
    _put_bytes(parts, 7, key_hash)
    _put_bytes(parts, 8, tag_hash)
    _put_records(parts, 9, records)
    if producer_id:
        parts.append(b"\x51" + producer_id.to_bytes(8, "little"))
    _put_varint(parts, 11, number)
    _put_bytes(parts, 12, message_id)
    return b"".join(parts)


def encode_enqueue_response(
    uid: int,
    first_seq: int,
    count: int,
    due: Buffer = b"",
    *,
    duplicate: bool = False,
    error: delay_pb2.Error | None = None,
    seq: Buffer = b"",
    repeated: Buffer = b"",
) -> bytes:
    """delay.v1.EnqueueResponse. `due`: i64[count] ms, `seq`: i64[count], `repeated`: u8[count]; or empty."""
    parts: list[_Raw] = []
    if uid:
        parts.append(b"\x09" + uid.to_bytes(8, "little"))
    _put_varint(parts, 2, first_seq)
    _put_varint(parts, 3, count)
    _put_bytes(parts, 4, due)
    _put_varint(parts, 5, int(duplicate))
    if error is not None:
        encoded = error.SerializeToString()
        parts.append(b"\x32" + encode_varint(len(encoded)) + encoded)
    _put_bytes(parts, 7, seq)
    _put_bytes(parts, 8, repeated)
    return b"".join(parts)


def encode_message_batch(
    uid: int,
    count: int,
    offset: Buffer,
    due: Buffer,
    seq: Buffer,
    size: Buffer,
    attempt: Buffer,
    records: Buffer | Iterable[Buffer],
    end_offset: int,
    next_offset: int,
    behind_ms: int = 0,
    *,
    reason_size: Buffer = b"",
    reasons: Buffer = b"",
) -> bytes:
    """delay.v1.MessageBatch from its columns; `records` is one buffer or the buffers to put one after the other."""
    parts: list[_Raw] = []
    if uid:
        parts.append(b"\x09" + uid.to_bytes(8, "little"))
    _put_varint(parts, 2, count)
    _put_bytes(parts, 3, offset)
    _put_bytes(parts, 4, due)
    _put_bytes(parts, 5, seq)
    _put_bytes(parts, 6, size)
    _put_bytes(parts, 7, attempt)
    _put_records(parts, 8, records)
    _put_varint(parts, 9, end_offset)
    _put_varint(parts, 10, next_offset)
    _put_varint(parts, 11, behind_ms)
    if len(reason_size) or len(reasons):
        _put_bytes(parts, 12, reason_size)
        _put_bytes(parts, 13, reasons)
    return b"".join(parts)


def _put_varint(parts: list[_Raw], field: int, value: int) -> None:
    if value:
        parts.append(bytes((field << 3,)) + encode_varint(value))


def _put_bytes(parts: list[_Raw], field: int, data: Buffer) -> None:
    raw = _raw(data)
    # len() of a view of an array counts rows, not bytes.
    length = len(raw) if type(raw) is bytes else memoryview(raw).nbytes
    if length:
        parts.append(bytes((field << 3 | BYTES,)) + encode_varint(length))
        parts.append(raw)


def _raw(data: Buffer) -> _Raw:
    # NumPy arrays have the buffer protocol, but before Python 3.12 no type says so.
    return data if type(data) is bytes else memoryview(cast(Any, data))


def _put_records(parts: list[_Raw], field: int, records: Buffer | Iterable[Buffer]) -> None:
    if isinstance(records, bytes | bytearray | memoryview | np.ndarray):
        _put_bytes(parts, field, records)
        return
    buffers = [_raw(data) for data in records]
    length = sum([len(raw) if type(raw) is bytes else memoryview(raw).nbytes for raw in buffers])
    if length:
        parts.append(bytes((field << 3 | BYTES,)) + encode_varint(length))
        parts.extend(buffers)


# ---------------------------------------------------------------------------------------------- decode


def decode_enqueue_request(data: bytes) -> EnqueueRequestView:
    """The view of an encoded delay.v1.EnqueueRequest. Raises WireError."""
    fields = scan("EnqueueRequest", data, _ENQUEUE_REQUEST)
    column, number = fields.columns, fields.numbers
    return EnqueueRequestView(
        topic=str(column.get(1, _EMPTY), "utf-8"),
        queue=number.get(2, 0) & MASK32,
        count=number.get(3, 0) & MASK32,
        time=column.get(4, _EMPTY),
        relative=column.get(5, _EMPTY),
        size=column.get(6, _EMPTY),
        key_hash=column.get(7, _EMPTY),
        tag_hash=column.get(8, _EMPTY),
        records=column.get(9, _EMPTY),
        producer_id=number.get(10, 0),
        number=number.get(11, 0),
        message_id=column.get(12, _EMPTY),
    )


def decode_enqueue_response(data: bytes) -> EnqueueResponseView:
    """The view of an encoded delay.v1.EnqueueResponse. Raises WireError."""
    fields = scan("EnqueueResponse", data, _ENQUEUE_RESPONSE)
    column, number = fields.columns, fields.numbers
    return EnqueueResponseView(
        uid=number.get(1, 0),
        first_seq=signed(number.get(2, 0)),
        count=number.get(3, 0) & MASK32,
        due=column.get(4, _EMPTY),
        duplicate=number.get(5, 0) != 0,
        error=_merge_error(fields.messages),
        seq=column.get(7, _EMPTY),
        repeated=column.get(8, _EMPTY),
    )


def decode_message_batch(data: bytes) -> MessageBatchView:
    """The view of an encoded delay.v1.MessageBatch. Raises WireError."""
    fields = scan("MessageBatch", data, _MESSAGE_BATCH)
    column, number = fields.columns, fields.numbers
    return MessageBatchView(
        uid=number.get(1, 0),
        count=number.get(2, 0) & MASK32,
        offset=column.get(3, _EMPTY),
        due=column.get(4, _EMPTY),
        seq=column.get(5, _EMPTY),
        size=column.get(6, _EMPTY),
        attempt=column.get(7, _EMPTY),
        records=column.get(8, _EMPTY),
        end_offset=signed(number.get(9, 0)),
        next_offset=signed(number.get(10, 0)),
        behind_ms=signed(number.get(11, 0)),
        reason_size=column.get(12, _EMPTY),
        reasons=column.get(13, _EMPTY),
    )


_ENQUEUE_REQUEST: Final[Schema] = {
    1: ("topic", TEXT),
    2: ("queue", VARINT),
    3: ("count", VARINT),
    4: ("time", BYTES),
    5: ("relative", BYTES),
    6: ("size", BYTES),
    7: ("key_hash", BYTES),
    8: ("tag_hash", BYTES),
    9: ("records", BYTES),
    10: ("producer_id", FIXED64),
    11: ("number", VARINT),
    12: ("message_id", BYTES),
}
_ENQUEUE_RESPONSE: Final[Schema] = {
    1: ("uid", FIXED64),
    2: ("first_seq", VARINT),
    3: ("count", VARINT),
    4: ("due", BYTES),
    5: ("duplicate", VARINT),
    6: ("error", MESSAGE),
    7: ("seq", BYTES),
    8: ("repeated", BYTES),
}
_MESSAGE_BATCH: Final[Schema] = {
    1: ("uid", FIXED64),
    2: ("count", VARINT),
    3: ("offset", BYTES),
    4: ("due", BYTES),
    5: ("seq", BYTES),
    6: ("size", BYTES),
    7: ("attempt", BYTES),
    8: ("records", BYTES),
    9: ("end_offset", VARINT),
    10: ("next_offset", VARINT),
    11: ("behind_ms", VARINT),
    12: ("reason_size", BYTES),
    13: ("reasons", BYTES),
}


def _merge_error(occurrences: list[tuple[int, memoryview]]) -> delay_pb2.Error | None:
    if not occurrences:
        return None
    merged = delay_pb2.Error()
    for start, encoded in occurrences:
        try:
            merged.MergeFromString(bytes(encoded))
        except DecodeError as cause:
            raise WireError(f"EnqueueResponse: the error at byte {start} is malformed: {cause}") from None
    return merged
