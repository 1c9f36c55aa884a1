"""TLS between nodes: TLS 1.3, both ends with a certificate of this cluster's nodes, ECDSA on P-256.

A link uses the certificates that are the newest when it is made, and stays up when they are replaced. It ends when the
first of its two certificates expires, or a while after one of the CAs that were trusted then is taken away; some time
before, its dialler makes it anew (links.py). Handshakes run in one thread of their own: the event loop does no
arithmetic for those who are not known yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from delayapi.certificates import Certificates, load_chain, names_of

from delaynode.clock import wall_ms
from delaynode.replication.heartbeat_guard import HeartbeatGuard

HANDSHAKE = b"\x16"  # the first byte that a TLS client sends; a plain hello begins with "D"
NODE = "node"


class NotSecured(OSError):
    """No TLS link came of it; says why."""


@dataclass(frozen=True, slots=True)
class _Contexts:
    of: Certificates
    server: ssl.SSLContext
    client: ssl.SSLContext


@dataclass(frozen=True, slots=True)
class SecuredSocket:
    """nodes: which ones the other end's certificate is of; empty: of any of the cluster. ends_ms: when the first of
    both ends' certificates expires, Unix time. roots: the CAs that were trusted."""

    sock: ssl.SSLSocket
    nodes: frozenset[str]
    ends_ms: int
    roots: frozenset[bytes]


class PeerTls:
    """Owned by the event loop. current: the node's own certificates; None: there are none that are good. cluster_uri:
    what the URIs of the cluster's own processes begin with; "": not known."""

    def __init__(self, current: Callable[[], Certificates | None], cluster_uri: Callable[[], str]) -> None:
        self._current, self._cluster_uri = current, cluster_uri
        self._contexts: _Contexts | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="peer-handshakes")

    def close(self) -> None:
        self._thread.shutdown(wait=False)

    @property
    def usable(self) -> bool:
        """Whether there is a certificate with this cluster's URI, and a CA by which to know the others."""
        found = self._current()
        return found is not None and bool(found.roots_pem) and bool(self._cluster_uri())

    def trusts(self, roots: frozenset[bytes]) -> bool:
        """Whether all of these CAs still count."""
        found = self._current()
        return found is None or roots <= found.roots

    async def secure(self, sock: socket.socket, *, server: bool) -> SecuredSocket:
        """Shake hands on a connected socket that does not block. Raises OSError. The caller bounds the time, and closes
        `sock` when this raises."""
        contexts = self._newest()
        context = contexts.server if server else contexts.client
        secured = context.wrap_socket(sock, server_side=server, do_handshake_on_connect=False)
        try:
            await self._shake_hands(secured)
            certificate = _shown(secured)
            ends_ms = min(contexts.of.not_after_ms, int(certificate.not_valid_after_utc.timestamp() * 1_000))
            return SecuredSocket(secured, self._nodes(certificate), ends_ms, contexts.of.roots)
        except BaseException:
            secured.close()
            raise

    async def _shake_hands(self, secured: ssl.SSLSocket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            step = loop.run_in_executor(self._thread, _step, secured)
            try:
                wants = await asyncio.shield(step)
            except asyncio.CancelledError:
                # It never waits for the network. A socket that is closed meanwhile leaves its number to another file.
                while not step.done():
                    with contextlib.suppress(asyncio.CancelledError):  # cancelled again: a time-out, then the end
                        await asyncio.wait([step])
                step.exception()  # nobody asks for it any more
                raise
            if wants is None:
                return
            await ready(secured, write=wants == ssl.SSL_ERROR_WANT_WRITE)

    def _nodes(self, certificate: x509.Certificate) -> frozenset[str]:
        """Raises NotSecured."""
        key, names = certificate.public_key(), names_of(certificate)
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
            raise NotSecured("its certificate's key is not ECDSA on P-256")
        node = self._cluster_uri() + NODE
        if node == NODE or node not in names:
            raise NotSecured(f"its certificate is of {', '.join(names) or 'nobody'}; expected {node}")
        return frozenset(name[len(node) + 1 :] for name in names if name.startswith(f"{node}/"))

    def _newest(self) -> _Contexts:
        """Raises NotSecured."""
        found = self._current()
        if found is None or not self.usable:
            raise NotSecured("this node has no certificate of a node with a ca.crt that it could use")
        if self._contexts is None or self._contexts.of is not found:
            try:
                self._contexts = _Contexts(found, *(_context(found, server=server) for server in (True, False)))
            except (ssl.SSLError, OSError) as error:
                raise NotSecured(f"this node's own certificates can't be used: {error}") from error
        return self._contexts


@dataclass(frozen=True, slots=True)
class LinkSecurity:
    """How links are secured. required: plain text is neither taken nor dialled. dials: TLS is dialled where the other
    node's lease offers it. guard: gets a key by each TLS link. wall_ms: Unix time, by which certificates expire."""

    tls: PeerTls
    required: bool
    dials: bool
    guard: HeartbeatGuard
    wall_ms: Callable[[], int] = wall_ms


async def ready(sock: socket.socket, *, write: bool = False) -> None:
    """Return when it can be read from, or written to."""
    loop = asyncio.get_running_loop()
    waiting = loop.create_future()
    add, remove = (loop.add_writer, loop.remove_writer) if write else (loop.add_reader, loop.remove_reader)
    add(sock, lambda: None if waiting.done() else waiting.set_result(None))
    try:
        await waiting
    finally:
        remove(sock)


def _shown(secured: ssl.SSLSocket) -> x509.Certificate:
    """The other end's."""
    data = secured.getpeercert(binary_form=True)
    assert data is not None, "a certificate is asked for"
    return x509.load_der_x509_certificate(data)


def _step(secured: ssl.SSLSocket) -> int | None:
    """Go on with the handshake: what it waits for; None: it is done. Raises OSError."""
    try:
        secured.do_handshake()
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as wants:
        return wants.errno
    return None


def _context(found: Certificates, *, server: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # nodes are dialled by IP address; _nodes() looks at the URI
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=found.roots_pem.decode())
    if server:
        context.num_tickets = 0  # every link begins with a whole handshake
    load_chain(context, found)
    return context
