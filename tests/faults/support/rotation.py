"""All certificates and both CAs of a local cluster with TLS replaced under load, as cert-manager would do it.

First new leaves of the old CAs, then the three steps of a new CA: trusted beside the old one; new leaves of it; the old
one taken away. Clients by token and by certificate change their files in the same steps.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from delayapi.certificates import LOOK_SECONDS
from delayapi.credentials import LOOK_S
from delaylocal import ports
from delaylocal.own_keys import ADMIN_URI, CLUSTER_URI, SERVER_NAME

from tests.faults.support.failover import FaultCluster
from tests.security.authority import Authority, write
from tests.serve.support.client import poll

SETTLE_SECONDS = LOOK_SECONDS + LOOK_S + 0.5  # until nodes and clients have looked
AGE_SECONDS = 4  # of a connection: all are made anew in each step
OPTIONS = ("--connection-age-seconds", str(AGE_SECONDS))
NODE = f"{CLUSTER_URI}/role/node"


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
        old, new = (tuple(one.pem for one in cas) for cas in (self._old, self._new))
        self.steps = (
            Step("new leaves", lambda: self._issue(self._old, old)),
            Step("new CAs beside the old ones", lambda: self._trust(both)),
            Step("leaves of the new CAs", lambda: self._issue(self._new, both)),
            Step("the old CAs gone", lambda: self._trust(new)),
        )

    def _trust(self, roots: tuple[bytes, ...]) -> None:
        clients, peers = roots
        keys = self._keys
        write(keys.directory, None, clients)  # ca.crt of clients
        for directory in (keys.server, keys.clients, keys.admin):
            write(directory, None, clients)
        for directory in (keys.peers, keys.operator):
            write(directory, None, peers)

    def _issue(self, by: tuple[Authority, ...], roots: tuple[bytes, ...]) -> None:
        (ca, peer_ca), (clients, peers), keys = by, roots, self._keys
        write(keys.server, ca.issue(NODE, SERVER_NAME), clients)
        write(keys.admin, ca.issue(ADMIN_URI), clients)
        write(keys.peers, peer_ca.issue(NODE, SERVER_NAME), peers)
        write(keys.operator, peer_ca.issue(f"{CLUSTER_URI}/role/operator"), peers)

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


def rotate(cluster: FaultCluster, say: Callable[[str], None], *, leaves: bool = True) -> None:
    """All steps, and that they were taken. leaves: new ones of the old CAs first."""
    rotation = Rotation(cluster)
    for step in rotation.steps[0 if leaves else 1 :]:
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
