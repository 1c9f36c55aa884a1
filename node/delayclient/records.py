"""Stored records: delay.v1.Message written one at a time or many at once, and read field by field.

    Message = key 0x0a | tag 0x12 | properties 0x1a ... | body 0x22 | born_ms 0x28

An encoded record is head + body + tail: the head ends with the body's tag and length, the tail is born_ms. Many
records that share key and tag differ only in their bodies, so the rest is laid out once as a template.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
from delayapi.proto.delay.v1 import delay_pb2
from delayapi.wirefields import WireError, encode_varint
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

Bodies: TypeAlias = Sequence[bytes] | NDArray[np.uint8]
"""list[bytes], or u8[n, size] for n bodies of one size."""


@lru_cache(maxsize=8192)
def _plain_head(size: int) -> bytes:
    return b"\x22" + encode_varint(size) if size else b""


@lru_cache(maxsize=1024)
def _tag_field(tag: str) -> bytes:
    return _field(b"\x12", tag)


def _field(wire_tag: bytes, text: str) -> bytes:
    if not text:
        return b""
    encoded = text.encode()
    return wire_tag + encode_varint(len(encoded)) + encoded


def record_head(
    size: int, key: str | None = None, tag: str | None = None, properties: Mapping[str, str] | None = None
) -> bytes:
    """All of a record before its body of `size` bytes."""
    if key is None and tag is None and properties is None:
        return _plain_head(size)
    head = _field(b"\x0a", key) if key else b""
    if tag:
        head += _tag_field(tag)
    return head + _properties(properties) + _plain_head(size)


def _properties(properties: Mapping[str, str] | None) -> bytes:
    fields = b""
    for name, value in (properties or {}).items():
        entry = _field(b"\x0a", name) + _field(b"\x12", value)
        fields += b"\x1a" + encode_varint(len(entry)) + entry
    return fields


def record_tail(born_ms: int) -> bytes:
    """All of a record after its body."""
    return b"\x28" + encode_varint(born_ms)


def hash_text(text: str | None) -> int:
    """The crc32 by which a shard finds keys and filters tags; 0 when absent."""
    return zlib.crc32(text.encode()) if text else 0


@dataclass(frozen=True, slots=True)
class EncodedRecords:
    """n records: their sizes u32[n], one blob, key and tag hashes u32[n] (empty when all are 0)."""

    size: NDArray[np.uint32]
    blob: NDArray[np.uint8] | bytes
    key_hash: NDArray[np.uint32]
    tag_hash: NDArray[np.uint32]


_NO_HASH: Final = np.empty(0, np.uint32)


def encode_records(
    bodies: Bodies,
    born_ms: int,
    keys: Sequence[str] | None = None,
    tags: Sequence[str] | str | None = None,
    properties: Mapping[str, str] | None = None,
) -> EncodedRecords:
    """Records of n bodies; `keys` has n texts, `tags` one for all or n, and all have the same `properties`.

    Raises ValueError when the lengths disagree.
    """
    n = len(bodies)
    for name, texts in (("keys", keys), ("tags", None if isinstance(tags, str) else tags)):
        if texts is not None and len(texts) != n:
            raise ValueError(f"{len(texts)} {name} for {n} bodies")
    key_hash = _hashes(keys) if keys is not None else _NO_HASH
    if isinstance(tags, str):
        tag_hash = np.full(n, hash_text(tags), np.uint32)
    else:
        tag_hash = _hashes(tags) if tags is not None else _NO_HASH
    one_tag = tags if isinstance(tags, str) else None
    tail = _properties(properties) + record_tail(born_ms)
    if keys is None and (tags is None or one_tag is not None):
        rows = _equal_rows(bodies)
        if rows is not None:
            size, blob = _from_template(rows, record_head(rows.shape[1], None, one_tag), tail)
            return EncodedRecords(size, blob, key_hash, tag_hash)
    return EncodedRecords(*_one_by_one(bodies, tail, keys, tags), key_hash, tag_hash)


def _equal_rows(bodies: Bodies) -> NDArray[np.uint8] | None:
    """u8[n, size] when all bodies have one size."""
    if isinstance(bodies, np.ndarray):
        if bodies.ndim != 2 or bodies.dtype != np.uint8:
            raise ValueError(f"bodies must be u8[n, size], not {bodies.dtype}{list(bodies.shape)}")
        return bodies
    if not bodies or len(set(map(len, bodies))) != 1:
        return None
    return np.frombuffer(b"".join(bodies), np.uint8).reshape(len(bodies), len(bodies[0]))


def _from_template(rows: NDArray[np.uint8], head: bytes, tail: bytes) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
    n, size = rows.shape
    width = len(head) + size + len(tail)
    blob = np.empty((n, width), np.uint8)
    blob[:, : len(head)] = np.frombuffer(head, np.uint8)
    blob[:, len(head) : len(head) + size] = rows
    blob[:, len(head) + size :] = np.frombuffer(tail, np.uint8)
    return np.full(n, width, np.uint32), blob


def _one_by_one(
    bodies: Bodies, tail: bytes, keys: Sequence[str] | None, tags: Sequence[str] | str | None
) -> tuple[NDArray[np.uint32], bytes]:
    # Built by C loops (map, join): a list of bodies is Python objects already, but nothing here runs bytecode a message
    # unless keys or tags vary.
    items: Sequence[bytes] = list(map(bytes, bodies)) if isinstance(bodies, np.ndarray) else bodies
    sizes = list(map(len, items))
    heads: list[bytes] = list(map(_plain_head, sizes))
    if tags is not None and not isinstance(tags, str):
        heads = list(map(bytes.__add__, map(_tag_field, tags), heads))
    elif tags:
        heads = list(map(_tag_field(tags).__add__, heads))
    if keys is not None:
        heads = [_field(b"\x0a", key) + head for key, head in zip(keys, heads, strict=True)]
    n = len(items)
    parts: list[bytes] = [tail] * (3 * n)
    parts[0::3] = heads
    parts[1::3] = items
    size = np.fromiter(map(len, heads), np.uint32, n) + np.array(sizes, np.uint32) + np.uint32(len(tail))
    return size, b"".join(parts)


def _hashes(texts: Iterable[str]) -> NDArray[np.uint32]:
    return np.array(list(map(zlib.crc32, map(str.encode, texts))), np.uint32)


def decode_record(data: bytes | memoryview) -> delay_pb2.Message:
    """The message of a record. Raises WireError when a producer stored something else."""
    try:
        return delay_pb2.Message.FromString(data)  # type: ignore[arg-type]  # takes any buffer
    except DecodeError as cause:
        raise WireError(f"a record of {len(data)} bytes is not a delay.v1.Message: {cause}") from None


def shown_record(data: bytes | memoryview) -> delay_pb2.Message:
    """For people: what a producer stored that is no message is shown as a body, and hides no others behind it."""
    try:
        return decode_record(data)
    except WireError:
        return delay_pb2.Message(body=bytes(data))
