"""Who has a Telemetry stream to this node: a client is known, with its kind, as long as it has one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from delaynode.server.edge import Call

ClientKey: TypeAlias = tuple[str, str]
"""Principal, and the id that the client has given itself."""


def key_of(call: Call) -> ClientKey:
    """The id is empty where the call has none."""
    return call.identity().principal, call.metadata("x-mq-client-id") or ""


@dataclass(slots=True)
class Client:
    """kind: a ClientType. peers: its streams, by connection."""

    kind: Any = 0
    peers: Counter[str] = field(default_factory=Counter)


class Clients:
    """One for a node. Owned by the event loop. Bounded by the calls that the edge lets be open at once."""

    def __init__(self) -> None:
        self._known: dict[ClientKey, Client] = {}

    def __len__(self) -> int:
        return len(self._known)

    def came(self, key: ClientKey, peer: str) -> Client:
        client = self._known.setdefault(key, Client())
        client.peers[peer] += 1
        return client

    def left(self, key: ClientKey, peer: str) -> bool:
        """One of its streams has ended; whether that was the last by this connection."""
        client = self._known[key]
        client.peers[peer] -= 1
        if client.peers[peer]:
            return False
        del client.peers[peer]
        if not client.peers:
            del self._known[key]
        return True

    def kind(self, key: ClientKey) -> Any:
        """A ClientType; 0: it has no stream here."""
        client = self._known.get(key)
        return 0 if client is None else client.kind

    def is_here(self, key: ClientKey) -> bool:
        return key in self._known
