"""How the operator reaches nodes: by TLS with a token of its own, where they have that; else without TLS.

local cluster   the listener `internal`, with a certificate of the operator's
Kubernetes      the listener `tokens`: each node's lease says whom to trust with its certificate, so that the
                operator needs no Secret. Its token is one that it asks the API server for, for this cluster alone
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from delayapi import address
from delayapi.credentials import ClientCredentials
from delayapi.node_client import TOKENS, NodeClient, TokenSource, token_client
from delayregistry.model import ListenerTrust, NodeLease

INTERNAL = "internal"  # as delaynode.listener_options has it


@dataclass(frozen=True, slots=True)
class NodeWay:
    """trust: of the listener at `endpoint`; None: without TLS, or with the certificate of `internal`."""

    endpoint: str
    internal: bool = False
    trust: ListenerTrust | None = None


class OperatorAccess:
    """To the nodes of one cluster.

    credentials: for `internal`; they name the DNS name that the nodes' certificates are for. token: for `tokens`. With
    neither, nodes are reached without TLS. dial: where to connect to for an endpoint.
    """

    def __init__(
        self,
        credentials: ClientCredentials | None = None,
        dial: Callable[[str], str] = lambda endpoint: endpoint,
        token: TokenSource | None = None,
    ) -> None:
        self._credentials, self._dial, self._token = credentials, dial, token

    def client(self, lease: NodeLease, options: tuple[tuple[str, int], ...] = ()) -> NodeClient:
        """The caller's to close."""
        way = self._way(lease)
        dialled = self._dial(way.endpoint)
        if way.trust is not None and self._token is not None:
            return token_client(dialled, way.trust.server_name, way.trust.roots, self._token, options)
        if self._credentials is None or not way.internal:
            return NodeClient(dialled, options)
        host, _ = address.split(dialled)
        tls = self._credentials.tls
        named = self._credentials.options(host, (tls.server_name if tls else "") or host)
        return NodeClient(dialled, (*options, *named), self._credentials.channel())

    def way(self, lease: NodeLease) -> object:
        """Differs once client() would make another one."""
        way = self._way(lease)
        return way, self._credentials.channel() if self._credentials is not None and way.internal else None

    def _way(self, lease: NodeLease) -> NodeWay:
        if self._credentials is not None and (endpoint := lease.endpoint_of(INTERNAL)):
            return NodeWay(endpoint, internal=True)
        endpoint = lease.endpoint_of(TOKENS)
        if self._token is not None and lease.trust is not None and endpoint:
            return NodeWay(endpoint, trust=lease.trust)
        return NodeWay(lease.endpoint)
