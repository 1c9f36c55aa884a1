"""A receipt names one delivery of a message to a consumer: what Ack, Nack and Extend of the MessageService take.

receipt = base64url without padding of
          version u8 = 1 | topic length u8 | group length u8 | topic, group utf-8
          | queue u32 | uid u64 | offset i64 | attempt u32 | until i64 ms | check u32
check   = crc32 of all before it; numbers are little-endian

It grants nothing: whoever shows it needs the right to consume, and the attempt must still be the message's.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from delayapi import checked_text
from delayapi.checked_text import CHECK_BYTES, short

_VERSION: Final = 1
_TAIL: Final = struct.Struct("<IQqIq")
_MAX_NAME_BYTES: Final = 255
_MAX_TEXT: Final = (3 + 2 * _MAX_NAME_BYTES + _TAIL.size + CHECK_BYTES + 2) // 3 * 4


class BadReceipt(ValueError):
    """A text that is not a receipt; says why."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """One delivery: topic, queue, the shard's uid, group, queue offset, attempt, and when its lease was to end as it
    was handed out, ms since 1970 UTC."""

    topic: str
    queue: int
    uid: int
    group: str
    offset: int
    attempt: int
    until_ms: int

    def encode(self) -> str:
        """The receipt's text. Raises ValueError for a topic or group over 255 bytes."""
        topic, group = self.topic.encode(), self.group.encode()
        if max(len(topic), len(group)) > _MAX_NAME_BYTES:
            raise ValueError(f"a receipt has room for names of {_MAX_NAME_BYTES} bytes")
        tail = _TAIL.pack(self.queue, self.uid, self.offset, self.attempt, self.until_ms)
        packed = bytes((_VERSION, len(topic), len(group))) + topic + group + tail
        return checked_text.encode(packed)

    @classmethod
    def decode(cls, text: str) -> Receipt:
        """The receipt of a text. Raises BadReceipt."""
        try:
            raw = checked_text.decode(text, "receipt", _MAX_TEXT)
        except ValueError as error:
            raise BadReceipt(str(error)) from None
        if len(raw) < 3 + _TAIL.size + CHECK_BYTES:
            raise BadReceipt(f"receipt {short(text)} is cut off: {len(raw)} bytes")
        version, of_topic, of_group = raw[0], raw[1], raw[2]
        if version != _VERSION:
            raise BadReceipt(f"receipt {short(text)} has version {version}; this node knows version {_VERSION}")
        names_end = 3 + of_topic + of_group
        if len(raw) != names_end + _TAIL.size + CHECK_BYTES:
            raise BadReceipt(f"receipt {short(text)} has {len(raw)} bytes, its names ask for another length")
        if not checked_text.is_whole(raw):
            raise BadReceipt(f"receipt {short(text)} fails its check: it was mistyped or changed")
        try:
            return cls.unpack(raw)
        except UnicodeDecodeError:
            raise BadReceipt(f"receipt {short(text)} has a name that is not UTF-8") from None

    @classmethod
    def unpack(cls, raw: bytes) -> Receipt:
        """The receipt of a text's bytes, whose version, length and check are right. Raises UnicodeDecodeError."""
        names_at, names_end = 3 + raw[1], 3 + raw[1] + raw[2]
        queue, uid, offset, attempt, until_ms = _TAIL.unpack_from(raw, names_end)
        return cls(raw[3:names_at].decode(), queue, uid, raw[names_at:names_end].decode(), offset, attempt, until_ms)
