"""The public keys of one token issuer: read from its key set (JWKS), fetched again now and then, and seldom.

A token names its key by an id, and whoever sends it makes that up. So an id that is not known leads to at most one
fetch in UNKNOWN_SECONDS, however many come; those that come meanwhile wait for the same one.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

UNKNOWN_SECONDS = 30.0  # between two fetches for ids that are not known
REFRESH_SECONDS = 3_600.0  # a key that the issuer has withdrawn counts no longer than that
RETRY_SECONDS = 2.0  # between two fetches while there are no keys at all
MAX_KEYS = 100
MAX_SET_BYTES = 256 << 10
MIN_RSA_BITS = 2_048

_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES: Final = {"secp256r1": ("ES256",), "secp384r1": ("ES384",), "secp521r1": ("ES512",)}
ALGORITHMS: Final = (*_RSA, *(name for names in _CURVES.values() for name in names), "EdDSA")
"""Of signatures that count: with a public key, which can make none."""


class KeysUnusable(Exception):
    """The key set could not be had, or has no key that counts; says why."""


@dataclass(frozen=True, slots=True)
class IssuerKey:
    """algorithms: those that it may have signed with. A token's own word on that is only held against them."""

    key: RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey
    algorithms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KeySet:
    """issuer: its name, as it says itself; empty: it was not asked."""

    keys: Mapping[str, IssuerKey]  # by key id; "" for a key without
    issuer: str = ""


def read_keys(text: str | bytes, issuer: str = "") -> KeySet:
    """The keys of a JWKS that sign tokens. What is none is passed over: symmetric keys, weak ones, those of other uses.

    Raises KeysUnusable.
    """
    if len(text) > MAX_SET_BYTES:
        raise KeysUnusable(f"the key set has {len(text):,} bytes; the limit is {MAX_SET_BYTES:,}")
    try:
        found = json.loads(text)["keys"]
        if not isinstance(found, list):
            raise TypeError("keys is no list")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise KeysUnusable(f"not a key set: {type(error).__name__}: {str(error)[:200]}") from error
    if len(found) > MAX_KEYS:
        raise KeysUnusable(f"the key set has {len(found):,} keys; the limit is {MAX_KEYS}")
    keys = {str(one.get("kid") or ""): key for one in found if isinstance(one, dict) and (key := _read_key(one))}
    if not keys:
        raise KeysUnusable(f"none of the key set's {len(found)} keys is one that verifies signatures")
    return KeySet(keys, issuer)


def _read_key(one: dict[str, Any]) -> IssuerKey | None:
    if one.get("use", "sig") != "sig" or one.get("kty") not in ("RSA", "EC", "OKP"):
        return None
    try:
        key = jwt.PyJWK({name: value for name, value in one.items() if name != "alg"}).key
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    if isinstance(key, RSAPublicKey):
        able: tuple[str, ...] = _RSA if key.key_size >= MIN_RSA_BITS else ()
    elif isinstance(key, EllipticCurvePublicKey):
        able = _CURVES.get(key.curve.name, ())
    elif isinstance(key, Ed25519PublicKey):
        able = ("EdDSA",)
    else:  # a private key, say
        return None
    if (only := one.get("alg")) is not None:
        able = tuple(name for name in able if name == only)
    return IssuerKey(key, able) if able else None


class IssuerKeys:
    """Owned by the event loop. fetch: gets the key set; raises KeysUnusable. told: of each fetch that failed."""

    def __init__(
        self,
        fetch: Callable[[], Awaitable[KeySet]],
        told: Callable[[str], None] = lambda why: None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fetch, self._told, self._now_s = fetch, told, now_s
        self._set: KeySet | None = None
        self._fetched_s = self._began_s = float("-inf")
        self._fetching: asyncio.Task[None] | None = None
        self.problem = ""  # why the last fetch failed

    @property
    def issuer(self) -> str:
        """As it says itself; empty: not known yet."""
        return "" if self._set is None else self._set.issuer

    @property
    def age_s(self) -> float:
        """Of the keys."""
        return self._now_s() - self._fetched_s

    async def find(self, key_id: str) -> IssuerKey | None:
        """None: the issuer has no such key, as far as is known. Raises KeysUnusable where no key is known at all."""
        if self._set is None:
            await self.load()
        elif key_id not in self._set.keys:
            await self._fetch_again(UNKNOWN_SECONDS)
        elif self.age_s > REFRESH_SECONDS:
            self._begin(UNKNOWN_SECONDS)  # nobody waits for it
        assert self._set is not None
        return self._set.keys.get(key_id)

    async def load(self) -> None:
        """Have keys. Raises KeysUnusable."""
        if self._set is None:
            await self._fetch_again(RETRY_SECONDS)
        if self._set is None:
            raise KeysUnusable(self.problem)

    async def _fetch_again(self, pause_s: float) -> None:
        self._begin(pause_s)
        if self._fetching is not None:
            await asyncio.wait([self._fetching])  # whoever gives up meanwhile does not end it for the others

    def _begin(self, pause_s: float) -> None:
        """Fetch, unless that is under way or was begun less than pause_s ago."""
        if self._fetching is None and self._now_s() >= self._began_s + pause_s:
            self._began_s = self._now_s()
            self._fetching = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            self._set = await self._fetch()
            self._fetched_s, self.problem = self._now_s(), ""
        except Exception as error:
            self.problem = str(error) if isinstance(error, KeysUnusable) else f"{type(error).__name__}: {error}"
            self._told(self.problem)
        finally:
            self._fetching = None

    def close(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
