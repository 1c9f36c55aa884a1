"""A .creds file of NATS: the user's JWT, and the seed of the Ed25519 key that signs what the server asks.

    -----BEGIN NATS USER JWT-----          -----BEGIN USER NKEY SEED-----
    eyJ0eXAiOiJKV1Qi...                    SU + 56 characters of base32: prefix, 32 bytes, CRC-16
    ------END NATS USER JWT------          ------END USER NKEY SEED------

nats-py needs the package nkeys for them, and reads a file without a JWT for ever.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from delaysink.secret_file import BadSecret

_PART: Final = re.compile(r"---\s*BEGIN ([A-Z ]+?)\s*---+\s+(\S{1,65536})\s+---+\s*END \1\s*---")
_JWT: Final = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+", re.ASCII)
_SEED, _USER = 18 << 3, 20 << 3
_USER_SEED: Final = bytes((_SEED | _USER >> 5, (_USER & 31) << 3))
"""The first two bytes: a seed, and a user's."""


@dataclass(frozen=True, slots=True, repr=False)
class NatsCredentials:
    """Of one user."""

    jwt: bytes
    _key: Ed25519PrivateKey

    def signature(self, nonce: str) -> bytes:
        """In base64."""
        return base64.b64encode(self._key.sign(nonce.encode()))


def parse_credentials(text: str, where: str) -> NatsCredentials:
    """Raises BadSecret."""
    parts = dict(_PART.findall(text))
    for name in ("NATS USER JWT", "USER NKEY SEED"):
        if name not in parts:
            raise BadSecret(f"{where} has no {name}: it must be a user's .creds file")
    jwt = parts["NATS USER JWT"]
    if not _JWT.fullmatch(jwt):
        raise BadSecret(f"{where}: its NATS USER JWT is no JWT")
    return NatsCredentials(jwt.encode(), Ed25519PrivateKey.from_private_bytes(_seed(parts["USER NKEY SEED"], where)))


def _seed(text: str, where: str) -> bytes:
    try:
        found = base64.b32decode(text + "=" * (-len(text) % 8))
    except (binascii.Error, ValueError):
        found = b""
    checksum = binascii.crc_hqx(found[:-2], 0).to_bytes(2, "little")
    if len(found) != 36 or found[:2] != _USER_SEED or found[-2:] != checksum:
        raise BadSecret(f"{where}: its USER NKEY SEED is no seed of a user")
    return found[2:-2]
