"""A handle names one stored message: what `cancel` and `reschedule` take.

handle = base64url without padding of
         version u8 = 1 | topic length u8 | topic utf-8 | queue u32 | uid u64 | due i64 ms | seq i64 | check u32
check  = crc32 of all before it; numbers are little-endian
"""

from __future__ import annotations

import struct
import zlib
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from delayapi import checked_text
from delayapi.checked_text import CHECK_BYTES, short

_VERSION: Final = 1
_TAIL: Final = struct.Struct("<IQqq")
_MAX_TOPIC_BYTES: Final = 255
_MAX_TEXT: Final = (2 + _MAX_TOPIC_BYTES + _TAIL.size + CHECK_BYTES + 2) // 3 * 4


class BadHandle(ValueError):
    """A text that is not a handle; says why."""


@dataclass(frozen=True, slots=True)
class Handle:
    """One stored message: topic, queue, the shard's uid, due (ms since 1970 UTC) and seq."""

    topic: str
    queue: int
    uid: int
    due_ms: int
    seq: int

    def encode(self) -> str:
        """The handle's text. Raises ValueError for a topic over 255 bytes."""
        packed = _head(self.topic) + _TAIL.pack(self.queue, self.uid, self.due_ms, self.seq)
        return checked_text.encode(packed)

    @classmethod
    def decode(cls, text: str) -> Handle:
        """The handle of a text. Raises BadHandle."""
        try:
            raw = checked_text.decode(text, "handle", _MAX_TEXT)
        except ValueError as error:
            raise BadHandle(str(error)) from None
        if len(raw) < 2 + _TAIL.size + CHECK_BYTES:
            raise BadHandle(f"handle {short(text)} is cut off: {len(raw)} bytes")
        version, topic_length = raw[0], raw[1]
        if version != _VERSION:
            raise BadHandle(f"handle {short(text)} has version {version}; this client knows version {_VERSION}")
        if len(raw) != 2 + topic_length + _TAIL.size + CHECK_BYTES:
            raise BadHandle(f"handle {short(text)} has {len(raw)} bytes, its topic length {topic_length} asks for more")
        if not checked_text.is_whole(raw):
            raise BadHandle(f"handle {short(text)} fails its check: it was mistyped or changed")
        try:
            topic = raw[2 : 2 + topic_length].decode()
        except UnicodeDecodeError:
            raise BadHandle(f"handle {short(text)} has a topic that is not UTF-8") from None
        queue, uid, due_ms, seq = _TAIL.unpack_from(raw, 2 + topic_length)
        return cls(topic, queue, uid, due_ms, seq)


def encode_handles(topic: str, queue: int, uid: int, due_ms: NDArray[np.int64], seq: NDArray[np.int64]) -> list[str]:
    """The texts of n messages of one shard; `due_ms` and `seq` are i64[n]. Vectorised."""
    head = _head(topic) + struct.pack("<IQ", queue, uid)
    n = len(due_ms)
    row_bytes = len(head) + 16 + CHECK_BYTES
    # Rows padded to whole base64 groups can be encoded in one call; the padding's characters are cut off again.
    padded = -(-row_bytes // 3) * 3
    rows = np.zeros((n, padded), np.uint8)
    rows[:, : len(head)] = np.frombuffer(head, np.uint8)
    rows[:, len(head) : len(head) + 8] = _bytes_of(due_ms)
    rows[:, len(head) + 8 : len(head) + 16] = _bytes_of(seq)
    check = _crc32_rows(rows[:, len(head) : len(head) + 16], zlib.crc32(head))
    rows[:, len(head) + 16 : row_bytes] = check.astype("<u4").view(np.uint8).reshape(n, 4)
    text = urlsafe_b64encode(rows.tobytes()).decode()
    width, kept = padded // 3 * 4, -(-row_bytes * 8 // 6)
    return [text[at : at + kept] for at in range(0, n * width, width)]


def _bytes_of(column: NDArray[np.int64]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(column, dtype="<i8").view(np.uint8).reshape(len(column), 8)


def _crc_table() -> NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> np.uint32(1)) ^ np.uint32(0xEDB88320), table >> np.uint32(1))
    return table


_CRC_TABLE: Final = _crc_table()


def _crc32_rows(rows: NDArray[np.uint8], start: int) -> NDArray[np.uint32]:
    """zlib.crc32(row, start) of each row, a column at a time."""
    crc = np.full(len(rows), ~start & 0xFFFFFFFF, np.uint32)
    for column in range(rows.shape[1]):
        crc = _CRC_TABLE[(crc ^ rows[:, column]) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
    return ~crc


def _head(topic: str) -> bytes:
    encoded = topic.encode()
    if len(encoded) > _MAX_TOPIC_BYTES:
        raise ValueError(f"topic {topic[:20]!r}... has {len(encoded)} bytes; at most {_MAX_TOPIC_BYTES} fit a handle")
    return bytes((_VERSION, len(encoded))) + encoded
