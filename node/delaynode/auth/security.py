"""What a node knows of its callers: the security document in force, their rights, their tokens, and the audit log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Protocol

from delayregistry.security import Operation, SecurityObject, SecuritySpec

from delaynode.auth.audit import AuditLog
from delaynode.auth.document import SecurityDocument
from delaynode.auth.identities import ListenerIdentities
from delaynode.auth.identity import Authentication, Identities, Identity
from delaynode.auth.key_sources import ApiServer
from delaynode.auth.rights import AccessQuestion, Denial, Rights
from delaynode.auth.tokens import TokenVerifier
from delaynode.clock import wall_ms
from delaynode.metrics import NodeMetrics
from delaynode.store.log.files import Files

CLIENTS = frozenset({Authentication.TOKEN, Authentication.MTLS})  # what asks clients who they are
Log = Callable[..., None]


class RunBlocking(Protocol):
    """Runs what blocks away from the event loop."""

    def __call__(self, call: Callable[[], None]) -> Awaitable[None]: ...


class NodeSecurity:
    """Owned by the event loop. listeners: how each learns who calls; without any that does, a node follows no document
    and allows everything. peers, api: see ListenerIdentities, TokenVerifier. audit: where that log goes. of_metrics:
    the listener of metrics alone, if any: for its sake no client waits for a document. now_ms, skew: see TokenVerifier.
    """

    def __init__(
        self,
        data: str,
        metrics: NodeMetrics,
        log: Log,
        audit: Log,
        listeners: Mapping[str, Authentication],
        peers: Callable[[], str] = lambda: "",
        api: ApiServer | None = None,
        of_metrics: Mapping[str, Authentication] = MappingProxyType({}),
        now_ms: Callable[[], int] = wall_ms,
        skew: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._metrics, self._listeners, self._peers, self._api = metrics, {**listeners, **of_metrics}, peers, api
        self.followed = not CLIENTS.isdisjoint(self._listeners.values())
        self.audit = AuditLog(audit)
        self.rights = Rights(closed=not CLIENTS.isdisjoint(listeners.values()), told=self._denied)
        self._tokens = TokenVerifier(api, log, now_ms, skew)
        self.document = SecurityDocument(data, log, self._apply)

    def identities(self) -> Identities:
        """What the edges ask."""
        return ListenerIdentities(self._listeners, self._tokens, self._peers, self._token_refused)

    def administered(self, method: str, operation: Operation, identity: Identity, topic: str, group: str) -> None:
        """Somebody was let do what the audit log must name."""
        if self.followed:
            self.audit.administered(method, AccessQuestion(identity, operation, topic, group))

    def load(self, files: Files) -> None:
        """Before anything is served. Blocks."""
        if self.followed:
            self.document.load(files)

    async def take(self, found: SecurityObject | None, files: Files, run: RunBlocking) -> None:
        """What the registry has now."""
        if self.document.take(found):
            await run(lambda: self.document.keep(files))

    def not_ready(self) -> str | None:
        """Why no client should come yet."""
        return "waiting for the security document" if self.rights.closed else None

    def close(self) -> None:
        self._tokens.close()
        if self._api is not None:
            self._api.close()

    def _apply(self, spec: SecuritySpec) -> None:
        self.rights.apply(spec)
        self._tokens.apply(spec)

    def _denied(self, asked: AccessQuestion, why: Denial, allowed: bool) -> None:
        self._metrics.denied[asked.operation.value, why.value, str(allowed).lower()] += 1
        self.audit.refused(asked, why, allowed)

    def _token_refused(self, kind: str) -> None:
        self._metrics.unauthenticated[kind] += 1
