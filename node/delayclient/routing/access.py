"""What a client shows to the nodes of its cluster, and what it makes of their refusals."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypedDict

from delayapi import address
from delayapi.connections import Connections
from delayapi.credentials import ClientCredentials, FilePath, Metadata, Options, Tls

from delayclient.errors import DelayError, NotAuthenticated, TlsFailed, TokenExpired
from delayclient.routing.diagnosis import Diagnoses

RENEWAL_S: Final = 60.0
"""How long a token or a certificate that was taken before may be refused: until its file has a newer one, and the nodes
their issuer's new keys."""
_SERIES_S: Final = 5.0
"""Refusals further apart than this are of different ones."""


class Access(TypedDict, total=False):
    """How a client proves to the nodes who it is, and they to it; all of it may be left out.

    tls: without it, connections are plain. token_file: read again once it changes, as the kubelet does with a
    projected ServiceAccount token. token: one that does not change.
    """

    tls: Tls | None
    token_file: FilePath
    token: str


class NodeAccess:
    """Of the connections of one cluster. Belongs to an event loop."""

    def __init__(
        self, credentials: ClientCredentials, endpoints: tuple[str, ...], dial: Callable[[str], str] | None
    ) -> None:
        self._credentials = credentials
        self._endpoints = endpoints
        self._dial = dial
        self._diagnoses = Diagnoses(credentials.tls)
        self._taken = False
        self._refused_s = self._last_refused_s = -RENEWAL_S

    def connections(self, endpoint: str, options: Options) -> Connections:
        """To one endpoint, made anew when certificates change."""
        dialled = self._dialled(endpoint)
        host, _ = address.split(dialled)
        options = (*options, *self._credentials.options(host, self._name(endpoint)))
        return Connections(dialled, options, self._credentials.channel)

    def metadata(self) -> Metadata | None:
        """Of each call."""
        return self._credentials.metadata()

    def taken(self) -> None:
        """A node has answered a call with what this client shows."""
        self._taken = True

    def judged(self, error: DelayError) -> DelayError:
        """The error of a call; TokenExpired where what it shows was taken before and may be renewed by now."""
        if not isinstance(error, NotAuthenticated) or not self._taken or not self._credentials.renewable:
            return error
        self._credentials.read_again()
        now_s = time.monotonic()
        if now_s - self._last_refused_s > _SERIES_S:
            self._refused_s = now_s
        self._last_refused_s = now_s
        if now_s - self._refused_s > RENEWAL_S:
            return error
        return TokenExpired(error.message, code=error.code, reason=error.reason, metadata=error.metadata)

    async def explain(self, endpoint: str) -> TlsFailed | None:
        """Why it could not be connected to, where TLS is the reason."""
        return await self._diagnoses.of(endpoint, self._dialled(endpoint), self._name(endpoint))

    def _dialled(self, endpoint: str) -> str:
        return endpoint if self._dial is None else self._dial(endpoint)

    def _name(self, endpoint: str) -> str:
        """Whose certificate is expected there. Nodes that only a route names are the cluster's, as is the first
        endpoint."""
        tls = self._credentials.tls
        if tls is not None and tls.server_name:
            return tls.server_name
        return address.split(endpoint if endpoint in self._endpoints else self._endpoints[0])[0]
