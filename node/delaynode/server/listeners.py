"""A node's listeners, and the certificates that each of them uses."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from delayapi import address
from delayapi.certificates import Certificates
from delayapi.secured_http import server_context

from delaynode.auth.identity import Authentication
from delaynode.config import NodeConfig
from delaynode.listener_options import ListenerConfig
from delaynode.node_certificates import CLIENT_CA, PEER, SERVER, NodeCertificates

AGE_GRACE_MS = 30_000  # for the calls of a connection that has its age


@contextmanager
def bound(listen: str) -> Iterator[socket.socket]:
    """A socket that listens there, for as long as the block. Raises OSError, which names the address."""
    try:
        with address.listen(*address.split(listen)) as at:
            yield at
    except OSError as error:
        raise OSError(f"can't listen on {listen}: {error.strerror or error}") from error


@dataclass(frozen=True, slots=True)
class Material:
    """own: the listener's chain and key. client_roots_pem: who may have issued the certificate that each client must
    have; None: clients are not asked for one."""

    own: Certificates
    client_roots_pem: bytes | None


@dataclass(frozen=True, slots=True)
class Listener:
    """forwards: what comes by it says itself whether another node has passed it on, and is believed. max_age_ms: of a
    connection; None: it lasts."""

    config: ListenerConfig
    certificates: NodeCertificates
    forwards: bool
    max_age_ms: int | None

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def identifies(self) -> bool:
        """Clients are asked who they are."""
        return self.config.authentication != Authentication.NONE

    def material(self) -> Material | None:
        """What handshakes use from now on; None: some of it is lacking."""
        roots: bytes | None
        match self.config.authentication:
            case Authentication.PEER:
                own = trusted = self.certificates.current(PEER)
            case Authentication.MTLS:
                own, trusted = self.certificates.current(SERVER), self.certificates.current(CLIENT_CA)
            case _:
                own = self.certificates.current(SERVER)
                return None if own is None else Material(own, None)
        roots = trusted.roots_pem if trusted is not None else None
        return Material(own, roots) if own is not None and roots else None

    def subscribe(self, told: Callable[[], object]) -> None:
        """Calls `told` when material() may have changed, now too, in any thread."""
        for store in self.certificates.stores.values():
            store.subscribe(lambda _: told())


class NewestContext:
    """Of a listener's newest certificates."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._newest: tuple[Material, ssl.SSLContext] | None = None

    def __call__(self) -> ssl.SSLContext:
        """Raises OSError."""
        material = self._listener.material()
        if material is None:
            raise OSError("there is no certificate that could be used")
        if self._newest is None or self._newest[0] != material:
            self._newest = material, server_context(material.own, material.client_roots_pem)
        return self._newest[1]


def metrics_listener(config: NodeConfig, certificates: NodeCertificates) -> Listener | None:
    one = config.metrics_listener
    return None if one is None else Listener(one, certificates, forwards=False, max_age_ms=None)


def http_listeners(config: NodeConfig, certificates: NodeCertificates) -> list[Listener]:
    return [Listener(one, certificates, forwards=False, max_age_ms=None) for one in config.http_listeners]


def listeners_of(config: NodeConfig, certificates: NodeCertificates) -> list[Listener]:
    """As the settings have them. Nodes pass calls on to a listener for everybody, unless they only talk by TLS."""
    age_ms = config.security.connection_age_s * 1_000
    return [
        Listener(
            one,
            certificates,
            forwards=one.authentication == Authentication.NONE and config.security.peers != "required",
            max_age_ms=age_ms if one.tls else None,
        )
        for one in config.listeners
    ]
