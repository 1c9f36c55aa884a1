"""All certificates and both CAs of a local cluster with TLS replaced under load, as cert-manager would do it.

The three steps of a new CA: trusted beside the old one; new leaves of it; the old one taken away. In the first, the old
CAs issue leaves once more, which expire in the last. Clients by token and by certificate change their files in the same
steps.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from delayapi.certificates import LOOK_SECONDS
from delayapi.credentials import LOOK_S
from delaylocal import ports
from delaylocal.own_keys import ADMIN_URI, CLUSTER_URI, SERVER_NAME

from tests.faults.support.failover import FaultCluster
from tests.security.authority import Authority, write
from tests.serve.support.client import poll

SETTLE_SECONDS = LOOK_SECONDS + LOOK_S + 0.5  # until nodes and clients have looked
SHORT, LONG = timedelta(seconds=2 * SETTLE_SECONDS + 2), timedelta(days=90)
AGE_SECONDS = 4
NODE = f"{CLUSTER_URI}/role/node"


def options(number: int, _: str) -> tuple[str, ...]:
    """Of a node: the first has its connections made anew all the time; those of the others last, and expire."""
    return () if number else ("--connection-age-seconds", str(AGE_SECONDS))


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    take: Callable[[], None]


class Rotation:
    """Of a cluster that runs. steps: to be taken one after the other, each SETTLE_SECONDS after the last."""

    def __init__(self, cluster: FaultCluster) -> None:
        assert cluster.keys is not None
        self._cluster, self._keys = cluster, cluster.keys
        security = self._keys.directory
        self._old = Authority.read(security / "ca"), Authority.read(security / "peer-ca")
        self._new = Authority("next"), Authority("next peers")
        both = tuple(old.pem + new.pem for old, new in zip(self._old, self._new, strict=True))
        new = tuple(one.pem for one in self._new)
        self.steps = (
            Step("short-lived leaves, new CAs beside the old ones", lambda: self._issue(self._old, both, SHORT)),
            Step("leaves of the new CAs", lambda: self._issue(self._new, both, LONG)),
            Step("the old CAs gone, the old leaves about to expire", lambda: self._trust(new)),
        )

    def _trust(self, roots: tuple[bytes, ...]) -> None:
        clients, peers = roots
        keys = self._keys
        write(keys.directory, None, clients)  # ca.crt of clients
        for directory in (keys.server, keys.clients, keys.admin):
            write(directory, None, clients)
        for directory in (keys.peers, keys.operator):
            write(directory, None, peers)

    def _issue(self, by: tuple[Authority, ...], roots: tuple[bytes, ...], ends: timedelta) -> None:
        (ca, peer_ca), (clients, peers), keys = by, roots, self._keys
        self._trust(roots)
        write(keys.server, ca.issue(NODE, SERVER_NAME, ends=ends), clients)
        write(keys.admin, ca.issue(ADMIN_URI, ends=ends), clients)
        write(keys.peers, peer_ca.issue(NODE, SERVER_NAME, ends=ends), peers)
        write(keys.operator, peer_ca.issue(f"{CLUSTER_URI}/role/operator", ends=ends), peers)

    def check_done(self) -> None:
        """Every listener shows a leaf of the new CA, and takes no certificate of the old one any more."""
        at, (ca, peer_ca), keys = self._cluster._ports, self._new, self._keys
        for found, by, own in (
            (at.grpc, ca, keys.admin),
            (at.mtls, ca, keys.admin),
            (at.internal, peer_ca, keys.operator),
        ):
            for port in found:
                assert (why := shakes(port, by, own)) == "", (port, why)
        stranger = write(self._keys.directory.parent / "old", self._old[0].issue(ADMIN_URI), ca.pem)
        for port in at.mtls:
            assert shakes(port, ca, stranger) != "", "the old CA counts still"


def shakes(port: int, ca: Authority, own: Path) -> str:
    """Why a handshake, with the certificate in `own`, fails; empty: it does not."""
    context = ssl.create_default_context(cadata=ca.pem.decode())
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(own / "tls.crt", own / "tls.key")
    try:
        with (
            socket.create_connection((ports.HOST, port), timeout=5) as plain,
            context.wrap_socket(plain, server_hostname=SERVER_NAME) as secured,
        ):
            secured.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
            return "" if secured.recv(1) else "it ends"
    except OSError as error:
        return str(error) or type(error).__name__


def rotate(cluster: FaultCluster, say: Callable[[str], None]) -> None:
    """All steps, and that they were taken."""
    rotation = Rotation(cluster)
    for step in rotation.steps:
        step.take()
        say(step.name)
        time.sleep(SETTLE_SECONDS)
    poll("all nodes use the new CAs", lambda: _done(rotation), 30.0)


def _done(rotation: Rotation) -> bool:
    try:
        rotation.check_done()
    except AssertionError:
        return False
    return True
