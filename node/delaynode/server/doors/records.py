"""Records as delay.v1.Message. A node stores any bytes, and their sender alone has made them.

A record that is no Message, or one of more than MAX_FIELDS properties, is handed out as a body: it is not lost. Of many
properties an answer takes no more than it can decode without holding the event loop for long.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

from delayapi.field_counts import count_fields
from delayapi.proto.delay.v1 import delay_pb2 as pb
from google.protobuf.message import DecodeError

MAX_FIELDS: Final = 10_000
MAX_ANSWER_FIELDS: Final = 20_000
FEW: Final = 64
_PROPERTY_TAGS: Final = (b"\x1a", b"\x9a")  # the second where it has more bytes than it needs


def decoded(record: bytes) -> pb.Message:
    """What the record holds."""
    if _fields(record) > MAX_FIELDS:
        return pb.Message(body=record)
    try:
        return pb.Message.FromString(record)
    except DecodeError:
        return pb.Message(body=record)


def fitting(records: Sequence[bytes], most_bytes: int) -> int:
    """How many of them, from the first on, are one answer: of `most_bytes`, of which one may be larger alone, and
    decodable."""
    ends = [*accumulate(map(len, records))]
    return min(max(1, bisect_right(ends, most_bytes)), decodable(records))


def decodable(records: Iterable[bytes]) -> int:
    """How many of them, from the first on, one answer may decode; never none."""
    found = fields = 0
    for record in records:
        fields += min(_fields(record), MAX_FIELDS)
        if found and fields > MAX_ANSWER_FIELDS:
            break
        found += 1
    return found


def _fields(record: bytes) -> int:
    """At most so many, and MAX_FIELDS + 1 for all that are more. Of a record with few properties an estimate."""
    estimate = sum(map(record.count, _PROPERTY_TAGS)) if len(record) < MAX_FIELDS else MAX_FIELDS
    return estimate if estimate <= FEW else count_fields(pb.Message, record, MAX_FIELDS)
