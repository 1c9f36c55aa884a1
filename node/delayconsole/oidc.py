"""Sign-in at a provider: the authorization code flow of OpenID Connect, with PKCE (S256), state and nonce.

The ID token that comes out is what the nodes are shown: they verify it as they do every caller's (spec.security.tokens
of the DelayCluster). It is verified here too, so that a session begins with no other.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import secrets
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp
import jwt

TIMEOUT: Final = aiohttp.ClientTimeout(total=10)
MAX_ANSWER_BYTES: Final = 256 << 10
MAX_PENDING: Final = 20_000
"""Anybody may begin one, and the oldest goes: as many as strangers begin in the minute that a person takes."""
PENDING_S: Final = 600.0
"""So long a person may take at the provider."""
METADATA_S: Final = 3_600.0
LEEWAY_S: Final = 30
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")


class OidcError(Exception):
    """Nobody is signed in; says what the provider, or the browser, has sent instead."""


@dataclass(frozen=True, slots=True)
class OidcClient:
    """The console at the provider. secret_file: of a confidential client; "": PKCE alone. ca: PEM; "": public CAs."""

    issuer: str
    client_id: str
    secret_file: str = ""
    scopes: Sequence[str] = ()
    ca: str = ""


@dataclass(frozen=True, slots=True)
class SignedIn:
    """token: for the nodes. name: for people. lifetime_s: how long the token is valid."""

    token: str = field(repr=False)
    name: str
    lifetime_s: float


@dataclass(frozen=True, slots=True)
class _Pending:
    verifier: str
    nonce: str
    browser: str
    redirect: str
    until_s: float


class OidcFlow:
    """With one provider. Belongs to an event loop."""

    def __init__(self, client: OidcClient, now_s: Callable[[], float] = time.monotonic) -> None:
        self._client, self._now_s = client, now_s
        self._ssl = ssl.create_default_context(cadata=client.ca or None)
        self._pending: dict[str, _Pending] = {}  # by state, the oldest first
        self._metadata: Mapping[str, Any] = {}
        self._metadata_s = -METADATA_S

    async def begin(self, redirect: str) -> tuple[str, str]:
        """Where the browser goes, and what its cookie must be when it comes back to `redirect`. Raises OidcError."""
        found = await self._discovered()
        now_s = self._now_s()
        while oldest := next(iter(self._pending), None):
            if self._pending[oldest].until_s > now_s and len(self._pending) < MAX_PENDING:
                break
            del self._pending[oldest]
        state, verifier, nonce, browser = (secrets.token_urlsafe(32) for _ in range(4))
        self._pending[state] = _Pending(verifier, nonce, browser, redirect, now_s + PENDING_S)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        query = {
            "response_type": "code",
            "client_id": self._client.client_id,
            "redirect_uri": redirect,
            "scope": " ".join(dict.fromkeys(("openid", *self._client.scopes))),
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        endpoint = found["authorization_endpoint"]
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}", browser

    async def finish(self, query: Mapping[str, str], browser: str | None) -> SignedIn:
        """query: with which the browser has come back. browser: its cookie. Raises OidcError."""
        pending = self._pending.pop(query.get("state", ""), None)
        if pending is None or pending.until_s <= self._now_s():
            raise OidcError("this sign-in was not begun here, or took too long: begin again")
        if browser is None or not hmac.compare_digest(browser.encode("utf-8", "replace"), pending.browser.encode()):
            raise OidcError("this sign-in was begun in another browser: begin again")
        if "error" in query:
            said = query.get("error_description") or query["error"]
            raise OidcError(f"the provider says: {said[:300]}")
        if query.get("iss", self._client.issuer) != self._client.issuer:
            raise OidcError(f"the answer is of {query['iss'][:200]!r}, not of {self._client.issuer}")
        if not query.get("code"):
            raise OidcError("the provider has sent no code")
        return await self._exchanged(query["code"], pending)

    async def _exchanged(self, code: str, pending: _Pending) -> SignedIn:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": pending.redirect,
            "client_id": self._client.client_id,
            "code_verifier": pending.verifier,
        }
        if self._client.secret_file:
            form["client_secret"] = await asyncio.to_thread(_secret, Path(self._client.secret_file))
        found = await self._discovered()
        answer = await self._json("POST", found["token_endpoint"], form)
        token = answer.get("id_token")
        if not isinstance(token, str):
            said = answer.get("error_description") or answer.get("error") or "no id_token"
            raise OidcError(f"the provider has given no token: {str(said)[:300]}")
        claims = await self._verified(token, found)
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), pending.nonce.encode()):
            raise OidcError("the token is of another sign-in: its nonce is not ours")
        name = next((str(claims[it]) for it in ("email", "preferred_username", "name", "sub") if claims.get(it)), "")
        return SignedIn(token, name[:200], max(0.0, float(claims["exp"]) - time.time()))

    async def _verified(self, token: str, found: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in ALGORITHMS:
                raise OidcError(f"the token is signed by {str(header.get('alg'))[:40]!r}; expected one of {ALGORITHMS}")
            keys = jwt.PyJWKSet.from_dict(dict(await self._json("GET", found["jwks_uri"])))
            key = next((it for it in keys.keys if it.key_id == header.get("kid")), None)
            if key is None:
                raise OidcError("the token is signed by a key that the provider does not publish")
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[*ALGORITHMS],
                audience=self._client.client_id,
                issuer=self._client.issuer,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iat", "iss", "aud", "sub"]},
            )
        except jwt.PyJWTError as error:
            raise OidcError(f"the token can't be trusted: {error}") from None
        return claims

    async def _discovered(self) -> Mapping[str, Any]:
        if self._now_s() - self._metadata_s < METADATA_S:
            return self._metadata
        found = await self._json("GET", self._client.issuer.rstrip("/") + "/.well-known/openid-configuration")
        if found.get("issuer") != self._client.issuer:
            raise OidcError(f"{self._client.issuer} says that it is {str(found.get('issuer'))[:200]!r}")
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            if not str(found.get(name, "")).startswith("https://"):
                raise OidcError(f"{self._client.issuer} names no {name} by https")
        self._metadata, self._metadata_s = found, self._now_s()
        return found

    async def _json(self, method: str, url: str, form: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        try:
            async with (
                aiohttp.ClientSession(timeout=TIMEOUT, trust_env=True) as session,
                session.request(method, url, data=form, ssl=self._ssl, allow_redirects=False) as answer,
            ):
                body = b""
                while len(body) <= MAX_ANSWER_BYTES and (more := await answer.content.read(MAX_ANSWER_BYTES)):
                    body += more
                status = answer.status
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            raise OidcError(f"{url} gives no answer: {error or type(error).__name__}") from None
        if len(body) > MAX_ANSWER_BYTES:
            raise OidcError(f"{url} answers with more than {MAX_ANSWER_BYTES >> 10} KiB")
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            raise OidcError(f"{url} answers with {status} and no JSON") from None
        if not isinstance(found, dict):
            raise OidcError(f"{url} answers with {status} and no object")
        return found


def _secret(path: Path) -> str:
    """Read each time: it may be replaced."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise OidcError(f"the client's secret can't be read: {error}") from None
