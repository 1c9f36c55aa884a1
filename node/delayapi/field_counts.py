"""How many fields an encoded message has, before it is decoded.

A message of two bytes within another takes 100 bytes of memory and a third of a microsecond to decode, an entry of a
large map five: 12 MiB of them would hold an event loop for seconds. Most messages need no counting: they have too few
of the bytes that such fields begin with.
"""

from __future__ import annotations

from functools import cache
from typing import Final, TypeAlias

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

_Plan: TypeAlias = "dict[int, _Plan]"
"""By number: the fields that are messages, with theirs. Entries of maps are not looked into."""
_PART_BYTES: Final = 64 << 10
_MANY: Final = (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)


def has_more_fields(kind: type[Message], data: bytes, most: int) -> bool:
    """Whether it has more than so many fields, those of messages within it too. An entry of a map is one, and fields
    that are no message and may be there once do not always count."""
    if len(data) <= 2 * most:
        return False
    plan, begins = _known(kind.DESCRIPTOR)
    found = 0
    for at in range(0, len(data), _PART_BYTES):
        found += sum(data.count(one, at, at + _PART_BYTES) for one in begins)
        if found > most:
            return _counted(plan, data, most) > most
    return False


def count_fields(kind: type[Message], data: bytes, most: int) -> int:
    """Likewise: how many; ends beyond `most`."""
    return _counted(_known(kind.DESCRIPTOR)[0], data, most)


def _counted(plan: _Plan, data: bytes, most: int) -> int:
    """Ends beyond `most`. What is malformed counts as far as it can be read: the decoder says what is wrong."""
    found, waiting = 0, [(plan, 0, len(data))]
    while waiting:
        plan, at, end = waiting.pop()
        while at < end and found <= most:
            found += 1
            tag, at = _varint(data, at, end)
            match tag & 7:
                case 0:
                    _, at = _varint(data, at, end)
                case 1:
                    at += 8
                case 2:
                    size, at = _varint(data, at, end)
                    if (within := plan.get(tag >> 3)) is not None:
                        waiting.append((within, at, min(at + size, end)))
                    at += size
                case 5:
                    at += 4
                case _:
                    pass  # the begin or end of a group: what is in it counts as if it were not
    return found


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    return value, at


@cache
def _known(descriptor: Descriptor) -> tuple[_Plan, tuple[bytes, ...]]:
    """Its plan, and each byte that may begin a field which may be there many times. A tag may have more bytes than it
    needs, and its first one then another bit."""
    begins: set[int] = set()
    return _planned(descriptor, {}, begins), tuple(bytes((one,)) for one in sorted(begins))


def _planned(descriptor: Descriptor, seen: dict[str, _Plan], begins: set[int]) -> _Plan:
    if descriptor.full_name in seen:
        return seen[descriptor.full_name]
    plan: _Plan = {}
    seen[descriptor.full_name] = plan
    for field in descriptor.fields:
        if field.is_repeated and field.type in _MANY:
            first = (field.number << 3 | 2) & 0x7F
            begins |= {first, first | 0x80}
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            plan[field.number] = _planned(field.message_type, seen, begins)
    return plan
