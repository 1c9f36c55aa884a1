"""Who calls, asked once for each connection and what its calls say of themselves."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import unquote

from cryptography import x509

from delaynode.auth.identity import Identities, Identity, IdentityKind, forwarded_caller
from delaynode.clock import wall_ms
from delaynode.server.listeners import Listener
from delaynode.server.user_connections import UserConnections
from delaynode.store.errors import Refused

RESOLVE_SECONDS = 10.0
SIGNED, CREDENTIAL = "MQv2-HMAC-SHA1", "Credential="  # of RocketMQ's clients
MAX_KEPT = 20_000  # identities, of all connections


@dataclass(frozen=True, slots=True)
class Caller:
    """forwards: it is a node, which says itself whether it passes a call on. now_ms: the node's clock."""

    identity: Identity
    forwards: bool = False
    now_ms: Callable[[], int] = field(default=wall_ms, compare=False, repr=False)

    def seconds_left(self) -> float | None:
        """Until it has expired; None: it lasts as long as its connection."""
        expires_ms = self.identity.expires_ms
        return None if expires_ms is None else (expires_ms - self.now_ms()) / 1_000


@dataclass(frozen=True, slots=True)
class Said:
    """What is known of a caller: names in its verified certificate, when that ends, Unix time, and its call's metadata;
    principal: in the form of a URL's part, as metadata takes ASCII alone."""

    names: tuple[str, ...]
    authorization: str | None
    principal: str | None
    ends_ms: int | None = None


class Callers:
    """Owned by the event loop."""

    def __init__(
        self,
        identities: Identities,
        listeners: Sequence[Listener],
        connections: UserConnections | None = None,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        """connections: asked of each caller; None: nobody has a quota of them. now_ms: by which callers expire."""
        self._identities, self._connections, self._now_ms = identities, connections, now_ms
        self._peer_listeners = {one.name for one in listeners if one.config.authentication == "peer"}
        self._kept: OrderedDict[tuple[str, str, tuple[str, ...], bytes], Caller] = OrderedDict()

    async def find(self, listener: str, said: Said) -> Caller:
        """Raises Refused."""
        try:
            async with asyncio.timeout(RESOLVE_SECONDS):
                found = await self._identities.resolve(listener, said.names, said.authorization, said.ends_ms)
        except TimeoutError:
            raise Refused(
                "NOT_SERVING", f"who calls was not found out within {RESOLVE_SECONDS:.0f} s", retry_after_ms=1_000
            ) from None
        if listener not in self._peer_listeners or found.kind is not IdentityKind.PEER:
            return Caller(_same(found), now_ms=self._now_ms)
        if said.principal is not None:
            found = forwarded_caller(found, unquote(said.principal))
            return Caller(_same(found), forwards=True, now_ms=self._now_ms)
        return Caller(_same(found), forwards=found.role == "node", now_ms=self._now_ms)

    async def admit(self, caller: Caller, listener: str, peer: str) -> None:
        """Count the connection as the caller's. Raises Refused QUOTA."""
        if self._connections is not None:
            await self._connections.admit(caller.identity, (listener, peer))

    def left(self, listener: str, peer: str) -> None:
        """The connection has ended."""
        if self._connections is not None:
            self._connections.left((listener, peer))

    async def find_kept(self, listener: str, peer: str, said: Said) -> Caller:
        """find(), once for each connection as long as the answer holds. peer: names the connection. Raises Refused."""
        digest = hashlib.sha256(repr((said.authorization, said.principal)).encode()).digest()
        key = listener, peer, said.names, digest
        kept = self._kept.get(key)
        if kept is not None and ((left := kept.seconds_left()) is None or left > 0):
            self._kept.move_to_end(key)
            return kept
        found = await self.find(listener, said)
        self._kept[key] = found
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return found


def shown_by(metadata: Mapping[str, str]) -> str | None:
    """The `authorization` of a call. A RocketMQ client sends a token as its session token, or as its access key: the
    call's signature is of a time alone, and shows nothing that its sender could not have copied. The compiled edge
    does the same (edge/src/caller.rs)."""
    value = metadata.get("authorization")
    if value is not None and not value.startswith(SIGNED):
        return value
    token = metadata.get("x-mq-session-token")
    if not token and value is not None:
        parts = (part.strip() for part in value.removeprefix(SIGNED).split(","))
        token = next((part.removeprefix(CREDENTIAL) for part in parts if part.startswith(CREDENTIAL)), "")
    return f"Bearer {token}" if token else None


@lru_cache(maxsize=1_024)
def ends_ms(certificate: bytes) -> int:
    """When it does, Unix time. certificate: DER, or PEM."""
    load = x509.load_pem_x509_certificate if certificate.startswith(b"-----") else x509.load_der_x509_certificate
    return int(load(certificate).not_valid_after_utc.timestamp() * 1_000)


@lru_cache(maxsize=MAX_KEPT)
def _same(identity: Identity) -> Identity:
    """One object for what is equal: the compiled edge groups by it."""
    return identity
