"""A sender's own id of a message, as it travels: 16 bytes, by which a topic that deduplicates knows the message."""

from __future__ import annotations

import hashlib
from typing import Final

MAX_ID_BYTES: Final = 256


def hash_id(message_id: str) -> bytes:
    """The first 16 bytes of the SHA-256 of the text: two ids have the same with a probability of 2^-128.

    Raises ValueError.
    """
    encoded = message_id.encode()
    if not 0 < len(encoded) <= MAX_ID_BYTES:
        raise ValueError(f"a message id has 1 to {MAX_ID_BYTES} bytes, this one {len(encoded)}")
    return hashlib.sha256(encoded).digest()[:16]
