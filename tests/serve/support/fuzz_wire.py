"""Bytes that are nearly a protobuf message: any field with any wire type, and good messages with something wrong."""

from __future__ import annotations

import random
from typing import Any

from delayapi.wirefields import encode_varint
from google.protobuf.descriptor import FieldDescriptor

VARINT, FIXED64, BYTES, START_GROUP, END_GROUP, FIXED32 = range(6)
BORDERS = [
    0,
    1,
    2,
    127,
    128,
    255,
    65_535,
    65_536,
    65_537,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**63 - 1,
    2**63,
    2**64 - 1,
]
WIRE_TYPE = {
    FieldDescriptor.TYPE_BYTES: BYTES, FieldDescriptor.TYPE_STRING: BYTES, FieldDescriptor.TYPE_MESSAGE: BYTES,
    FieldDescriptor.TYPE_FIXED64: FIXED64, FieldDescriptor.TYPE_DOUBLE: FIXED64,
}  # fmt: skip
NOT_UTF8 = [b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"t\x80", b"\xf4\x90\x80\x80"]


class Wire:
    """Random choices come from `choose` alone."""

    def __init__(self, choose: random.Random) -> None:
        self.choose = choose

    def tag(self, number: int, wire_type: int) -> bytes:
        return encode_varint(number << 3 | wire_type)

    def value(self, wire_type: int) -> bytes:
        choose = self.choose
        match wire_type:
            case 0:
                return encode_varint(choose.choice(BORDERS) if choose.random() < 0.7 else choose.getrandbits(64))
            case 1:
                return choose.choice((choose.randbytes(8), b"\0" * 8, b"\xff" * 8, b"\0\0\0\0\0\0\xf8\x7f"))
            case 5:
                return choose.choice((choose.randbytes(4), b"\0\0\xc0\x7f"))
            case 3:
                depth = choose.choice((1, 2, 99, 100, 101, 5_000))
                return b"\x0b" * depth + b"\x0c" * choose.choice((depth, depth, depth + 1, 0))
            case _:
                return self.text()

    def text(self) -> bytes:
        """A length and bytes: short, of whole rows, or not UTF-8; now and then very long."""
        choose = self.choose
        kind = choose.random()
        if kind < 0.3:
            data = choose.randbytes(choose.choice((0, 1, 3, 7, 20)))
        elif kind < 0.7:
            data = b"".join(choose.choice(BORDERS).to_bytes(8, "little") for _ in range(choose.choice((1, 1, 2, 5))))
        elif kind < 0.9:
            data = choose.choice([b"t", b"g", b"x" * 300, *NOT_UTF8])
        elif kind < 0.99:
            data = bytes(choose.choice((64, 520, 4_000)))
        else:
            data = bytes(choose.choice((65_537 * 8, 1 << 20)))
        return encode_varint(len(data)) + data

    def message(self, descriptor: Any) -> bytes:
        """Fields of this message type, some more than once, some with a wire type that is not theirs."""
        choose = self.choose
        parts = []
        for field in choose.choices(descriptor.fields, k=choose.randrange(1, 2 * len(descriptor.fields) + 1)):
            wire_type = WIRE_TYPE.get(field.type, VARINT)
            if choose.random() < 0.05:
                wire_type = choose.randrange(8)
            if field.name == "topic" and choose.random() < 0.9:
                parts.append(self.tag(field.number, BYTES) + b"\x01t")
            elif field.name == "queue" and choose.random() < 0.9:
                parts.append(self.tag(field.number, VARINT) + bytes((choose.randrange(2),)))
            elif field.name == "wait_ms":
                parts.append(self.tag(field.number, VARINT) + bytes((choose.randrange(4),)))
            else:
                parts.append(self.tag(field.number, wire_type) + self.value(wire_type))
        return b"".join(parts)

    def spoiled(self, good: bytes) -> bytes:
        """A good message with one to three things wrong."""
        data = good
        for _ in range(self.choose.choice((1, 1, 2, 3))):
            data = self._spoil(data)
        return data

    def _spoil(self, data: bytes) -> bytes:
        choose = self.choose
        at = choose.randrange(len(data) + 1)
        to = min(len(data), at + choose.choice((1, 1, 2, 8, 50)))
        match choose.randrange(12):
            case 0 if data:
                at = choose.randrange(len(data))
                return data[:at] + bytes((data[at] ^ 1 << choose.randrange(8),)) + data[at + 1 :]
            case 1:
                return data[:at]
            case 2:
                return data[:at] + data[to:]
            case 3:
                return data[:to] + data[at:]
            case 4:
                return data[:at] + choose.randbytes(choose.choice((1, 2, 9))) + data[at:]
            case 5:  # a field number that the message does not have
                number = choose.choice((50, 1_000, 2**29 - 1, 2**29, 0))
                wire_type = choose.choice((VARINT, FIXED64, BYTES, START_GROUP, FIXED32))
                return data + self.tag(number, wire_type) + self.value(wire_type)
            case 6:  # a known number with another wire type
                wire_type = choose.randrange(8)
                return data + self.tag(choose.randrange(1, 12), wire_type) + self.value(wire_type)
            case 7:  # a length beyond the end
                return data + self.tag(choose.randrange(1, 12), BYTES) + encode_varint(choose.choice(BORDERS[2:]))
            case 8:  # a varint that does not end, or is too long
                return data + self.tag(choose.randrange(1, 12), VARINT) + b"\xff" * choose.choice((9, 10, 11, 40))
            case 9:
                text = choose.choice(NOT_UTF8)
                return data + self.tag(choose.choice((1, 3, 6)), BYTES) + bytes((len(text),)) + text
            case 10:
                return data + data
            case _:
                return choose.randbytes(choose.randrange(40))
