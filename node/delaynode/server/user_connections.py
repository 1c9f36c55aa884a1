"""How many connections each user has to this node, and its quota of them.

What counts is a connection by which it calls, whatever else it is used for: one that proves nothing is nobody's, and
`--max-connections` is for all. A node's own calls, those that it passes on among them, count for nobody.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection
from typing import TypeAlias

from delayregistry.security import MAX_USERS

from delaynode.auth.identity import Identity, IdentityKind
from delaynode.auth.rights import Rights
from delaynode.metrics import NodeMetrics
from delaynode.store.errors import Refused

CONNECTIONS = "connections"
LOOK_SECONDS = 0.2  # between two looks at which connections of a user there are still
COUNTED = (IdentityKind.TOKEN, IdentityKind.CERTIFICATE)
ClientConnection: TypeAlias = tuple[str, str]  # the listener, and the peer as gRPC names it


class UserConnections:
    """Owned by the event loop.

    alive: of these connections, those that there are still, where nobody calls left(): only users with a quota are
    counted then. None: left() is told of each that ends.
    """

    def __init__(
        self,
        rights: Rights,
        metrics: NodeMetrics,
        alive: Callable[[Collection[ClientConnection]], Awaitable[set[ClientConnection]]] | None = None,
    ) -> None:
        self._rights, self._metrics, self._alive = rights, metrics, alive
        self._of: dict[str, set[ClientConnection]] = {}
        self._users: dict[ClientConnection, set[str]] = {}
        self._looked: dict[str, float] = {}  # by principal, monotonic s

    async def admit(self, identity: Identity, connection: ClientConnection) -> None:
        """Count it, once. Raises Refused QUOTA."""
        if identity.kind not in COUNTED:
            return
        principal = identity.principal
        if connection in self._of.get(principal, ()):
            return
        quotas = self._rights.quotas(identity)
        limit = None if quotas is None else quotas.connections
        if limit is None and self._alive is not None:
            return
        if limit is not None and self._count(principal) >= limit:
            await self._look(principal)
        if limit is not None and (current := self._count(principal)) >= limit:
            self._metrics.count_quota_refused("", principal, CONNECTIONS, 1)
            raise Refused(
                "QUOTA",
                f"user {principal!r}, at this node, has {current:,} of {limit:,} connections (quota {CONNECTIONS})",
                quota=CONNECTIONS, scope="user", name=principal, limit=limit, current=current,
            )  # fmt: skip
        self._of.setdefault(principal, set()).add(connection)
        self._users.setdefault(connection, set()).add(principal)

    async def _look(self, principal: str) -> None:
        """Forget those of its connections that have ended."""
        now = time.monotonic()
        if self._alive is None or now < self._looked.get(principal, -LOOK_SECONDS) + LOOK_SECONDS:
            return
        if len(self._looked) >= MAX_USERS:  # of former documents
            self._looked.clear()
        self._looked[principal] = now
        held = frozenset(self._of[principal])
        for gone in held - await self._alive(held):
            self.left(gone)

    def left(self, connection: ClientConnection) -> None:
        """It has ended."""
        for principal in self._users.pop(connection, ()):
            held = self._of[principal]
            held.discard(connection)
            if not held:
                del self._of[principal]

    def _count(self, principal: str) -> int:
        return len(self._of.get(principal, ()))
