"""Tokens: who somebody is that sends one. Static tokens by their SHA-256, signed ones (JWT) by their issuer's keys.

A token is verified once and known by its SHA-256 until it expires, or until the security document changes. What is
refused is refused with a sentence; nothing that is in the token counts before its signature does.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NoReturn, TypeVar

import jwt
from delayregistry.security import IssuerKind, SecuritySpec, StaticToken, TokenIssuer, Verification

from delaynode.auth.identity import MAX_PRINCIPAL_CHARS, Identity, IdentityKind
from delaynode.auth.key_sources import ApiServer, fetch_keys
from delaynode.auth.keys import ALGORITHMS, IssuerKey, IssuerKeys, KeySet, KeysUnusable
from delaynode.auth.rights import NO_DOCUMENT, credential_of
from delaynode.clock import wall_ms
from delaynode.store.errors import Refused

MAX_TOKEN_BYTES = 16 << 10
LEEWAY_SECONDS = 30  # between the issuer's clock and this one
REVIEW_SECONDS = 60.0  # what the API server said of a token holds so long for new connections
MAX_KNOWN = 20_000  # tokens
MAX_GROUPS = 200
FETCHES = 4  # at once: a provider that does not answer must not keep the others waiting

_SERVICE_ACCOUNT: Final = re.compile(r"system:serviceaccount:[a-z0-9.-]{1,253}:[a-z0-9.-]{1,253}")
_CHECKED: Final[Any] = {
    "require": ["exp", "iss", "aud"], "verify_signature": True, "verify_iat": False,
    "verify_exp": False, "verify_nbf": False,  # _check_times
}  # fmt: skip
T = TypeVar("T")


class TokenRefused(Refused):
    """kind: one of a few words, for a counter."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__("UNAUTHENTICATED", message)
        self.kind = kind


class TokenVerifier:
    """Owned by the event loop. api: where ServiceAccounts' keys are, and TokenReview; None: there is none.
    skew: how this node's clock differs from most others', if it does."""

    def __init__(
        self,
        api: ApiServer | None = None,
        log: Callable[..., None] = lambda event, **fields: None,
        now_ms: Callable[[], int] = wall_ms,
        skew: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._api, self._log, self._now_ms, self._skew = api, log, now_ms, skew
        self._threads = ThreadPoolExecutor(FETCHES, thread_name_prefix="tokens")
        self._applied = False  # a document has been
        self._static: dict[str, StaticToken] = {}  # by SHA-256, hexadecimal
        self._issuers: dict[TokenIssuer, IssuerKeys] = {}
        self._known: OrderedDict[bytes, tuple[Identity, float]] = OrderedDict()  # by SHA-256; and until when, monotonic

    def apply(self, spec: SecuritySpec) -> None:
        """The document's tokens and issuers count from now on, and no others. Keys of an issuer that stays are kept."""
        self._applied = True
        self._static = {token.sha256: token for token in spec.tokens}
        for issuer, keys in self._issuers.items():
            if issuer not in spec.issuers:
                keys.close()
        self._issuers = {one: self._issuers.get(one) or self._new_keys(one) for one in spec.issuers}
        self._known.clear()

    def _new_keys(self, issuer: TokenIssuer) -> IssuerKeys:
        async def fetch() -> KeySet:
            return await self._in_thread(partial(fetch_keys, issuer, self._api))

        def told(why: str) -> None:
            self._log("token-keys-not-fetched", issuer=issuer.issuer or issuer.kind.value, reason=why)

        return IssuerKeys(fetch, told)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def close(self) -> None:
        for keys in self._issuers.values():
            keys.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def verify(self, token: str) -> Identity:
        """Raises TokenRefused, and Refused NOT_SERVING while it can't be known."""
        if not self._applied:
            raise Refused("NOT_SERVING", NO_DOCUMENT)
        try:
            return await self._verify(token)
        except TokenRefused as error:
            if error.kind in ("expired", "early") and (skew := self._skew()) is not None:
                raise Refused("NOT_SERVING", f"{error.message}; but this node's clock differs: {skew}") from error
            raise

    async def _verify(self, token: str) -> Identity:
        if len(token) > MAX_TOKEN_BYTES or not token.isascii():
            size = len(token.encode("utf-8", "surrogatepass"))
            raise TokenRefused("malformed", f"the token has {size:,} bytes; allowed: {MAX_TOKEN_BYTES:,}, of ASCII")
        digest = hashlib.sha256(token.encode()).digest()
        if (known := self._recall(digest)) is not None:
            return known
        if (static := self._static.get(digest.hex())) is not None:
            return self._static_identity(static, digest)
        identity, seconds = await self._verify_signed(token)
        self._known[digest] = identity, time.monotonic() + seconds
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return identity

    def _recall(self, digest: bytes) -> Identity | None:
        identity, until_s = self._known.get(digest, (None, 0.0))
        if identity is None:
            return None
        if time.monotonic() >= until_s or (identity.expires_ms or 0) <= self._now_ms():
            del self._known[digest]
            return None
        self._known.move_to_end(digest)
        return identity

    def _static_identity(self, static: StaticToken, digest: bytes) -> Identity:
        if not hmac.compare_digest(static.sha256, digest.hex()):
            raise TokenRefused("unknown", "the token is none of this cluster's")
        if static.expires_ms is not None and static.expires_ms <= self._now_ms():
            raise TokenRefused("expired", f"token {static.name} has expired at {time_text(static.expires_ms)}")
        return Identity(f"token:{static.name}", IdentityKind.TOKEN, static.expires_ms, credential=credential_of(static))

    # ------------------------------------------------------------ signed tokens
    async def _verify_signed(self, token: str) -> tuple[Identity, float]:
        """And for how many seconds that holds, at most."""
        header, claims = _unverified(token)
        algorithm = header.get("alg")
        if algorithm not in ALGORITHMS:
            raise TokenRefused(
                "algorithm", f"the token is signed with {_shown(algorithm)}; allowed: {', '.join(ALGORITHMS)}"
            )
        issuer, keys = await self._find_issuer(claims.get("iss"))
        if issuer.verify is Verification.TOKEN_REVIEW:
            return await self._review(issuer, token, claims), REVIEW_SECONDS
        key = await self._find_key(issuer, keys, str(header.get("kid") or ""))
        if algorithm not in key.algorithms:
            allowed = ", ".join(key.algorithms)
            raise TokenRefused("algorithm", f"the token is signed with {algorithm}; its key is for {allowed}")
        name = issuer.issuer or keys.issuer
        try:
            verified = jwt.decode(
                token, key.key, algorithms=list(key.algorithms), audience=issuer.audience, issuer=name, options=_CHECKED
            )  # fmt: skip
            _check_times(verified, self._now_ms() / 1_000)
        except jwt.PyJWTError as error:
            self._refuse(error, claims, issuer.audience)
        except (ValueError, TypeError, OverflowError) as error:  # claims that are no numbers, say
            raise TokenRefused("malformed", f"the token's claims can't be read: {error}") from error
        return _identity(issuer, name, verified), float("inf")

    async def _find_issuer(self, said: object) -> tuple[TokenIssuer, IssuerKeys]:
        for issuer, keys in self._issuers.items():
            if issuer.issuer and issuer.issuer == said:
                return issuer, keys
        for issuer, keys in self._issuers.items():
            if not issuer.issuer:
                try:
                    await keys.load()  # it says what it is called
                except KeysUnusable as error:
                    raise Refused("NOT_SERVING", f"tokens can't be verified now: {error}") from error
                if keys.issuer == said:
                    return issuer, keys
        names = ", ".join(issuer.issuer or keys.issuer for issuer, keys in self._issuers.items()) or "none"
        raise TokenRefused("issuer", f"the token's issuer is {_shown(said)}; this cluster takes those of: {names}")

    async def _find_key(self, issuer: TokenIssuer, keys: IssuerKeys, key_id: str) -> IssuerKey:
        try:
            key = await keys.find(key_id)
        except KeysUnusable as error:
            raise Refused("NOT_SERVING", f"tokens can't be verified now: {error}") from error
        if key is None:
            name = issuer.issuer or keys.issuer
            raise TokenRefused(
                "key", f"{name} has no key {_shown(key_id)} for signatures, by its keys of {keys.age_s:.0f} s ago"
            )
        return key

    def _refuse(self, error: jwt.PyJWTError, claims: Mapping[str, Any], audience: str) -> NoReturn:
        match error:
            case jwt.InvalidAudienceError():
                found = claims.get("aud")
                raise TokenRefused(
                    "audience", f"the token is for audience {_shown(found)}, expected {audience!r}"
                ) from error
            case jwt.MissingRequiredClaimError():
                raise TokenRefused("malformed", f"the token has no {error.claim}, which it needs") from error
            case jwt.InvalidSignatureError():
                raise TokenRefused("signature", "the token's signature is not that of its issuer's key") from error
        raise TokenRefused("malformed", f"the token is refused: {str(error)[:200]}") from error

    async def _review(self, issuer: TokenIssuer, token: str, claims: Mapping[str, Any]) -> Identity:
        if self._api is None:
            raise Refused("NOT_SERVING", "TokenReview asks the API server, and this node has none to ask")
        try:
            status = await self._in_thread(partial(self._api.review, token, issuer.audience))
        except OSError as error:
            raise Refused("NOT_SERVING", f"the API server does not review tokens now: {error}") from error
        if status.get("authenticated") is not True:
            why = str(status.get("error") or "it gives no reason")[:200]
            raise TokenRefused("signature", f"the API server does not take the token for a ServiceAccount's: {why}")
        if issuer.audience not in (status.get("audiences") or ()):
            raise TokenRefused(
                "audience", f"the token is for audience {_shown(claims.get('aud'))}, expected {issuer.audience!r}"
            )
        principal = str((status.get("user") or {}).get("username"))
        return _identity(issuer, issuer.issuer, {"sub": principal, "exp": claims.get("exp")})


def _check_times(claims: Mapping[str, Any], now_s: float) -> None:
    """By the node's clock, which goes on where the machine's is set. Raises TokenRefused."""
    try:
        early, late = int(claims.get("nbf", 0)), int(claims["exp"])
    except (ValueError, TypeError, OverflowError):
        raise TokenRefused("malformed", "the token is refused: exp or nbf is no number") from None
    if early > now_s + LEEWAY_SECONDS:
        raise TokenRefused("early", f"the token is not valid before {_claimed(claims, 'nbf')}")
    if late <= now_s - LEEWAY_SECONDS:
        raise TokenRefused("expired", f"the token has expired at {_claimed(claims, 'exp')}")


def bearer(authorization: str) -> str:
    """The token of an `authorization` header. Raises TokenRefused."""
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise TokenRefused("malformed", f"authorization is of scheme {_shown(scheme)}; expected: Bearer TOKEN")
    return token.strip()


def _unverified(token: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Header and claims, of which nothing counts yet."""
    parts = token.split(".")
    if len(parts) != 3:
        raise TokenRefused("unknown", "the token is no static one of this cluster, and no signed one (JWT) either")
    return _part("header", parts[0]), _part("payload", parts[1])


def _part(what: str, text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, RecursionError) as error:
        raise TokenRefused("malformed", f"the token's {what} is no JSON in base64") from error
    if not isinstance(found, dict):
        raise TokenRefused("malformed", f"the token's {what} is no JSON object")
    return found


def _identity(issuer: TokenIssuer, name: str, claims: Mapping[str, Any]) -> Identity:
    """Of verified claims. Raises TokenRefused."""
    expires_ms = _expiry_ms(claims)
    if issuer.kind is IssuerKind.SERVICE_ACCOUNTS:
        account = claims.get("sub")
        if not isinstance(account, str) or not _SERVICE_ACCOUNT.fullmatch(account):
            raise TokenRefused("subject", f"the token is of {_shown(account)}, which is no ServiceAccount")
        return Identity(account, IdentityKind.TOKEN, expires_ms, credential=credential_of(issuer))
    claim = issuer.principal_claim
    subject = claims.get(claim)
    if not isinstance(subject, str) or not subject or not subject.isprintable():
        raise TokenRefused(
            "subject", f"the token's claim {claim} is {_shown(subject)}; expected text that names a user"
        )
    if claim == "email" and claims.get("email_verified") is not True:
        raise TokenRefused("subject", f"the issuer has not verified the address {_shown(subject)} (email_verified)")
    principal = f"oidc:{name}#{subject}"
    if len(principal) > MAX_PRINCIPAL_CHARS:
        raise TokenRefused("subject", f"the principal has {len(principal)} characters; allowed: {MAX_PRINCIPAL_CHARS}")
    found = claims.get(issuer.groups_claim) if issuer.groups_claim else None
    listed = found if isinstance(found, list) else [found]
    groups = tuple(one for one in listed if isinstance(one, str) and one)[:MAX_GROUPS]
    return Identity(principal, IdentityKind.TOKEN, expires_ms, groups, credential=credential_of(issuer))


def _expiry_ms(claims: Mapping[str, Any]) -> int:
    try:
        return int((float(claims["exp"]) + LEEWAY_SECONDS) * 1_000)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise TokenRefused("malformed", "the token does not say when it expires (exp)") from error


def _claimed(claims: Mapping[str, Any], name: str) -> str:
    try:
        return time_text(int(float(claims[name]) * 1_000))
    except (KeyError, TypeError, ValueError, OverflowError):
        return "no time that can be read"


def time_text(wall_ms: int) -> str:
    try:
        return datetime.fromtimestamp(wall_ms // 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{wall_ms} ms"


def _shown(value: object) -> str:
    """What the caller made up, shortened."""
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "..."
