"""What goes over a socket between a program and its agent: frames.

    header length u32 | payload length u32 | header, JSON | payload

A request's header has `op`. An answer's has `error` when the request failed, and a delivery's has `tag`.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Final

LENGTHS: Final = struct.Struct("<II")
Frame = tuple[dict[str, Any], bytes]


def encode(header: dict[str, Any], payload: bytes = b"") -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    return LENGTHS.pack(len(text), len(payload)) + text + payload


def cut(buffer: bytearray) -> Frame | None:
    """The first frame of what has arrived, which is taken out; None: it is not complete yet."""
    if len(buffer) < LENGTHS.size:
        return None
    head, body = LENGTHS.unpack_from(buffer)
    start, end = LENGTHS.size + head, LENGTHS.size + head + body
    if len(buffer) < end:
        return None
    header, payload = json.loads(buffer[LENGTHS.size : start]), bytes(buffer[start:end])
    del buffer[:end]
    return header, payload
