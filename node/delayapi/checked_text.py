"""Texts that users keep and give back: bytes in base64url without padding, with a crc32 of them at their end."""

from __future__ import annotations

import binascii
import struct
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final

CHECK_BYTES: Final = 4
_CHECK: Final = struct.Struct("<I")
_SHOWN: Final = 24


def encode(packed: bytes) -> str:
    """Raises nothing."""
    return urlsafe_b64encode(packed + _CHECK.pack(zlib.crc32(packed))).rstrip(b"=").decode()


def decode(text: str, kind: str, most_chars: int) -> bytes:
    """The bytes of a text, with the check, which is_whole() compares. kind: what it should be. Raises ValueError."""
    if not text:
        raise ValueError(f"an empty {kind}")
    if len(text) > most_chars:
        raise ValueError(f"{kind} {short(text)} is too long: {len(text):,} characters")
    if not text.isascii() or not text.replace("-", "A").replace("_", "A").isalnum():
        raise ValueError(f"{kind} {short(text)} has a character outside A-Z a-z 0-9 - _")
    try:
        return urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error as cause:
        raise ValueError(f"{kind} {short(text)} is cut off: {cause}") from None


def is_whole(raw: bytes) -> bool:
    return bool(zlib.crc32(raw[:-CHECK_BYTES]) == _CHECK.unpack(raw[-CHECK_BYTES:])[0])


def short(text: str) -> str:
    """The text, or its beginning, in quotes."""
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "...")
