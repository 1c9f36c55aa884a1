"""Keys and JWTs of NATS: an operator, its accounts and a user, as `nsc` makes them."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SEED, OPERATOR, ACCOUNT, USER = 18 << 3, 14 << 3, 0, 20 << 3
_NO_LIMITS: Final = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
_JETSTREAM: Final = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)
_KINDS: Final = {OPERATOR: "operator", ACCOUNT: "account", USER: "user"}


def _text(raw: bytes) -> str:
    return base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).decode().rstrip("=")


def _url_safe(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


class Key:
    """A key pair of one kind."""

    def __init__(self, kind: int) -> None:
        self._kind, self._key = kind, Ed25519PrivateKey.generate()
        self.public = _text(bytes([kind]) + self._key.public_key().public_bytes_raw())

    @property
    def seed(self) -> str:
        head = bytes([SEED | self._kind >> 5, (self._kind & 31) << 3])
        return _text(head + self._key.private_bytes_raw())

    def sign(self, content: str) -> bytes:
        return self._key.sign(content.encode())

    def jwt_of(self, other: Key, until_s: int = 0, **more: Any) -> str:
        """What this one says of the other, for ever or until a time."""
        kind = _KINDS[other._kind]
        head = {"typ": "JWT", "alg": "ed25519-nkey"}
        claims = {"iat": 1, "iss": self.public, "sub": other.public, "name": kind}
        if until_s:
            claims["exp"] = until_s
        claims["nats"] = {"type": kind, "version": 2, **more}
        content = ".".join(_url_safe(json.dumps(it).encode()) for it in (head, claims))
        return f"{content}.{_url_safe(self.sign(content))}"


class NatsOperator:
    """Of a server with one account that has JetStream, and one user of it."""

    def __init__(self) -> None:
        self._operator, self._system, self._account = Key(OPERATOR), Key(ACCOUNT), Key(ACCOUNT)
        self.user = Key(USER)
        self.user_jwt = self._account.jwt_of(self.user, subs=-1, data=-1, payload=-1)

    @property
    def configuration(self) -> str:
        """Of the server."""
        limits = {**_NO_LIMITS, "wildcards": True}
        rights = {self._system: limits, self._account: {**limits, **_JETSTREAM}}
        accounts = {it.public: self._operator.jwt_of(it, limits=what) for it, what in rights.items()}
        known = "\n".join(f"  {public}: {jwt}" for public, jwt in accounts.items())
        return (
            f"operator: {self._operator.jwt_of(self._operator)}\nsystem_account: {self._system.public}\n"
            f"resolver: MEMORY\nresolver_preload: {{\n{known}\n}}\n"
        )

    @property
    def credentials(self) -> str:
        """A .creds file."""
        return self._file_of(self.user_jwt)

    def credentials_until(self, until_s: int) -> str:
        """Which are refused from then on, in seconds since 1970: the server ends their connections."""
        return self._file_of(self._account.jwt_of(self.user, until_s, subs=-1, data=-1, payload=-1))

    def _file_of(self, jwt: str) -> str:
        return (
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            "************************* IMPORTANT *************************\n"
            f"-----BEGIN USER NKEY SEED-----\n{self.user.seed}\n------END USER NKEY SEED------\n"
        )

    @property
    def access(self) -> dict[str, Any]:
        """Of nats-py, for the test's own client."""
        return {
            "user_jwt_cb": self.user_jwt.encode,
            "signature_cb": lambda nonce: base64.b64encode(self.user.sign(nonce)),
        }
