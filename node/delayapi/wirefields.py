"""The protobuf wire format: varints and one pass over a message's fields.

    field    = tag value
    tag      = varint(number << 3 | wire type), at most 5 bytes
    value    = varint (0), at most 10 bytes | 8 bytes (1) | varint length, bytes (2) | group (3 .. 4) | 4 bytes (5)

Accepts and refuses the same inputs as the generated classes do: fields in any order, the last one wins, unknown ones
are skipped, also a known number with another wire type. Whatever is malformed raises WireError.
"""

from __future__ import annotations

from typing import Final, TypeAlias

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
_START_GROUP: Final = 3
_END_GROUP: Final = 4
_FIXED32: Final = 5
TEXT: Final = 8  # not a wire type: BYTES that must be UTF-8
MESSAGE: Final = 9  # nor this: BYTES whose occurrences merge

MASK32: Final = (1 << 32) - 1
_MASK64: Final = (1 << 64) - 1
_MAX_GROUP_DEPTH: Final = 100


class WireError(ValueError):
    """Bytes that are not the message they should be; says which message, which field and where."""


def encode_varint(value: int) -> bytes:
    """A base-128 varint; a negative value is its 64-bit two's complement."""
    value &= _MASK64
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


Schema: TypeAlias = dict[int, tuple[str, int]]
"""Field number -> (name, wire type)."""


class Fields:
    """The fields of a decoded message: numbers and byte columns by field, and the occurrences of its one
    sub-message.
    """

    __slots__ = ("columns", "messages", "numbers")

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.columns: dict[int, memoryview] = {}
        self.messages: list[tuple[int, memoryview]] = []


def scan(message: str, data: bytes, schema: Schema) -> Fields:
    view = memoryview(data)
    end = len(view)
    at = 0
    fields = Fields()
    while at < end:
        start = at
        tag, at = _tag(message, view, at)
        field, wire = tag >> 3, tag & 7
        name, expected = schema.get(field, ("unknown", -1))
        if wire == BYTES:
            length, at = _length(message, name, view, at, start)
            if expected == TEXT:
                # Each occurrence is checked, as the generated classes do, not only the one that wins.
                _check_text(message, name, view[at : at + length])
                fields.columns[field] = view[at : at + length]
            elif expected == BYTES:
                fields.columns[field] = view[at : at + length]
            elif expected == MESSAGE:
                fields.messages.append((start, view[at : at + length]))
            at += length
        elif wire == VARINT:
            value, at = _varint(message, name, view, at)
            if expected == VARINT:
                fields.numbers[field] = value
        elif wire == FIXED64:
            if end - at < 8:
                raise WireError(f"{message}: field {field} ({name}) at byte {start} needs 8 bytes, {end - at} are left")
            if expected == FIXED64:
                fields.numbers[field] = int.from_bytes(view[at : at + 8], "little")
            at += 8
        else:
            # A wire type that the schema never uses: unknown, whatever its number.
            at = _skip(message, view, at, tag, start, 0)
    return fields


def _tag(message: str, view: memoryview, at: int) -> tuple[int, int]:
    start = at
    tag = shift = 0
    end = len(view)
    while True:
        if at >= end:
            raise WireError(f"{message}: the field tag at byte {start} is cut off")
        byte = view[at]
        at += 1
        tag |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            raise WireError(f"{message}: the field tag at byte {start} is longer than 5 bytes")
    if tag > MASK32 or tag < 8:
        raise WireError(f"{message}: the field tag {tag} at byte {start} has no valid field number")
    return tag, at


def _varint(message: str, name: str, view: memoryview, at: int) -> tuple[int, int]:
    start = at
    value = shift = 0
    end = len(view)
    while True:
        if at >= end:
            raise WireError(f"{message}: the number at byte {start} ({name}) is cut off")
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK64, at
        shift += 7
        if shift > 63:
            raise WireError(f"{message}: the number at byte {start} ({name}) is longer than 10 bytes")


def _length(message: str, name: str, view: memoryview, at: int, start: int) -> tuple[int, int]:
    prefix = at
    length, at = _varint(message, name, view, at)
    if at - prefix > 5:
        raise WireError(f"{message}: the length at byte {prefix} ({name}) is longer than 5 bytes")
    if length > len(view) - at:
        raise WireError(f"{message}: the field at byte {start} ({name}) says {length} bytes, {len(view) - at} are left")
    return length, at


def _skip(message: str, view: memoryview, at: int, tag: int, start: int, depth: int) -> int:
    """The position after the value of an unknown field of any wire type."""
    wire = tag & 7
    if wire == VARINT:
        return _varint(message, "unknown", view, at)[1]
    if wire == BYTES:
        length, at = _length(message, "unknown", view, at, start)
        return at + length
    if wire in (FIXED64, _FIXED32):
        width = 8 if wire == FIXED64 else 4
        if len(view) - at < width:
            raise WireError(f"{message}: the field at byte {start} needs {width} bytes, {len(view) - at} are left")
        return at + width
    if wire == _START_GROUP:
        if depth >= _MAX_GROUP_DEPTH:
            raise WireError(f"{message}: groups at byte {start} are nested more than {_MAX_GROUP_DEPTH} deep")
        while True:
            inner_start = at
            inner, at = _tag(message, view, at)
            if inner & 7 == _END_GROUP:
                if inner >> 3 != tag >> 3:
                    raise WireError(f"{message}: the group at byte {start} ends as another one at byte {inner_start}")
                return at
            at = _skip(message, view, at, inner, inner_start, depth + 1)
    raise WireError(f"{message}: the field tag at byte {start} has the impossible wire type {wire}")


def _check_text(message: str, name: str, data: memoryview) -> None:
    try:
        str(data, "utf-8")
    except UnicodeDecodeError as cause:
        raise WireError(f"{message}: {name} is not UTF-8: {cause.reason} at its byte {cause.start}") from None


def signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
