"""A handle names one stored message: what `cancel` and `reschedule` take.

handle = base64url without padding of
         version u8 = 1 | topic length u8 | topic utf-8 | queue u32 | uid u64 | due i64 ms | seq i64 | check u32
check  = crc32 of all before it; numbers are little-endian
"""

from __future__ import annotations

import binascii
import struct
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

_VERSION: Final = 1
_TAIL: Final = struct.Struct("<IQqq")
_CHECK: Final = struct.Struct("<I")
_MAX_TOPIC_BYTES: Final = 255
_MAX_TEXT: Final = (2 + _MAX_TOPIC_BYTES + _TAIL.size + _CHECK.size + 2) // 3 * 4


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
        return urlsafe_b64encode(packed + _CHECK.pack(zlib.crc32(packed))).rstrip(b"=").decode()

    @classmethod
    def decode(cls, text: str) -> Handle:
        """The handle of a text. Raises BadHandle."""
        raw = _decode_text(text)
        if len(raw) < 2 + _TAIL.size + _CHECK.size:
            raise BadHandle(f"handle {_short(text)} is cut off: {len(raw)} bytes")
        version, topic_length = raw[0], raw[1]
        if version != _VERSION:
            raise BadHandle(f"handle {_short(text)} has version {version}; this client knows version {_VERSION}")
        if len(raw) != 2 + topic_length + _TAIL.size + _CHECK.size:
            raise BadHandle(
                f"handle {_short(text)} has {len(raw)} bytes, its topic length {topic_length} asks for more"
            )
        if zlib.crc32(raw[: -_CHECK.size]) != _CHECK.unpack(raw[-_CHECK.size :])[0]:
            raise BadHandle(f"handle {_short(text)} fails its check: it was mistyped or changed")
        try:
            topic = raw[2 : 2 + topic_length].decode()
        except UnicodeDecodeError:
            raise BadHandle(f"handle {_short(text)} has a topic that is not UTF-8") from None
        queue, uid, due_ms, seq = _TAIL.unpack_from(raw, 2 + topic_length)
        return cls(topic, queue, uid, due_ms, seq)


def encode_handles(topic: str, queue: int, uid: int, due_ms: NDArray[np.int64], seq: NDArray[np.int64]) -> list[str]:
    """The texts of n messages of one shard; `due_ms` and `seq` are i64[n]. Vectorised."""
    head = _head(topic) + struct.pack("<IQ", queue, uid)
    n = len(due_ms)
    row_bytes = len(head) + 16 + _CHECK.size
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


def _decode_text(text: str) -> bytes:
    if not text:
        raise BadHandle("an empty handle")
    if len(text) > _MAX_TEXT:
        raise BadHandle(f"handle {_short(text)} is too long: {len(text)} characters")
    if not text.isascii() or not text.replace("-", "A").replace("_", "A").isalnum():
        raise BadHandle(f"handle {_short(text)} has a character outside A-Z a-z 0-9 - _")
    try:
        return urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error as cause:
        raise BadHandle(f"handle {_short(text)} is cut off: {cause}") from None


def _short(text: str) -> str:
    return repr(text if len(text) <= 24 else text[:21] + "...")
