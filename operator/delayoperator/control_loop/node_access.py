"""How the operator reaches nodes: by their listener `internal` with a certificate of its own, or without TLS."""

from __future__ import annotations

from collections.abc import Callable

from delayapi import address
from delayapi.credentials import ClientCredentials
from delayapi.node_client import NodeClient
from delayregistry.model import NodeLease

INTERNAL = "internal"  # as delaynode.listener_options has it


class OperatorAccess:
    """credentials: the operator's to the nodes of one cluster; None: it has none. They name the DNS name that the
    nodes' certificates are for, since leases name nodes by address.

    dial: where to connect to for an endpoint.
    """

    def __init__(
        self, credentials: ClientCredentials | None = None, dial: Callable[[str], str] = lambda endpoint: endpoint
    ) -> None:
        self._credentials, self._dial = credentials, dial

    def client(self, lease: NodeLease, options: tuple[tuple[str, int], ...] = ()) -> NodeClient:
        """The caller's to close."""
        endpoint, by_tls = self._way(lease)
        dialled = self._dial(endpoint)
        if self._credentials is None or not by_tls:
            return NodeClient(dialled, options)
        host, _ = address.split(dialled)
        tls = self._credentials.tls
        named = self._credentials.options(host, (tls.server_name if tls else "") or host)
        return NodeClient(dialled, (*options, *named), self._credentials.channel())

    def way(self, lease: NodeLease) -> object:
        """Differs once client() would make another one."""
        endpoint, by_tls = self._way(lease)
        return endpoint, self._credentials.channel() if self._credentials is not None and by_tls else None

    def _way(self, lease: NodeLease) -> tuple[str, bool]:
        internal = lease.endpoint_of(INTERNAL) if self._credentials is not None else ""
        return internal or lease.endpoint, bool(internal)
