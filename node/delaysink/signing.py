"""Signatures as Standard Webhooks 1.0 has them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final

from delaysink.secret_file import BadSecret

SECRET_PREFIX: Final = "whsec_"
LEAST_BYTES, MOST_BYTES = 24, 64
MAX_SECRETS: Final = 2


def parse_secrets(text: str, where: str) -> tuple[bytes, ...]:
    """One or two secrets with white space between. Raises BadSecret."""
    words = text.split()
    if not 1 <= len(words) <= MAX_SECRETS:
        raise BadSecret(f"{where} has {len(words)} secrets: it must have one, or two while one replaces the other")
    keys = []
    for number, word in enumerate(words, 1):
        if not word.startswith(SECRET_PREFIX):
            raise BadSecret(f"{where}: secret {number} does not begin with {SECRET_PREFIX}")
        try:
            key = base64.b64decode(word.removeprefix(SECRET_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            raise BadSecret(f"{where}: what follows {SECRET_PREFIX} in secret {number} is not base64") from None
        if not LEAST_BYTES <= len(key) <= MOST_BYTES:
            raise BadSecret(
                f"{where}: secret {number} has {len(key)} bytes; it must have {LEAST_BYTES} to {MOST_BYTES}"
            )
        keys.append(key)
    return tuple(keys)


def signature(keys: tuple[bytes, ...], message_id: str, timestamp_s: int, body: bytes) -> str:
    """The header webhook-signature: by each key."""
    content = f"{message_id}.{timestamp_s}.".encode() + body
    digests = (hmac.digest(key, content, hashlib.sha256) for key in keys)
    return " ".join(f"v1,{base64.b64encode(it).decode()}" for it in digests)
