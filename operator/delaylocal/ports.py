"""Where a local cluster's nodes listen."""

from __future__ import annotations

import itertools
import random
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException

HOST = "127.0.0.1"
HTTP_OFFSET = 100
PEER_OFFSET = 200
MTLS_OFFSET = 300
INTERNAL_OFFSET = 400
HTTP_TOKENS_OFFSET = 500
MAX_GIVEN = 8_000

_given: set[int] = set()
"""Free ports that this process has chosen: they are bound later, and again when a node restarts."""


class PortInUse(Exception):
    """Another process listens there; says which port."""


@dataclass(frozen=True, slots=True)
class Ports:
    """A port for each node, in the order of the node ids."""

    grpc: tuple[int, ...]
    http: tuple[int, ...]
    peer: tuple[int, ...]  # of the nodes among themselves, TCP and UDP
    mtls: tuple[int, ...] = ()  # gRPC for clients with certificates
    internal: tuple[int, ...] = ()  # gRPC for the cluster's own processes
    http_tokens: tuple[int, ...] = ()  # HTTP for clients with tokens

    @property
    def all(self) -> tuple[int, ...]:
        return (*self.grpc, *self.http, *self.peer, *self.mtls, *self.internal, *self.http_tokens)


def choose(port: int, nodes: int, *, secure: bool = False) -> Ports:
    """gRPC at port, port + 1, ...; HTTP at port + 100, ...; among the nodes port + 200, ...; for 0 any free ones.

    secure: gRPC for certificates at port + 300, ..., for the cluster's own processes at port + 400, ..., and HTTP for
    tokens at port + 500, ..., too.
    """
    offsets = (0, HTTP_OFFSET, PEER_OFFSET, MTLS_OFFSET, INTERNAL_OFFSET, HTTP_TOKENS_OFFSET)[: 6 if secure else 3]
    if port == 0:
        free = _free(len(offsets) * nodes)
        return Ports(*(free[at * nodes : (at + 1) * nodes] for at in range(len(offsets))))
    if nodes > HTTP_OFFSET or port < 0 or port + offsets[-1] + nodes > 65_536:
        raise ValueError(f"{nodes} nodes from port {port} on: at most {HTTP_OFFSET} nodes, ports up to 65535")
    return Ports(*(tuple(port + offset + it for it in range(nodes)) for offset in offsets))


def await_unused(ports: Sequence[int], timeout_s: float) -> None:
    """Raises PortInUse when one is still listened on after `timeout_s`.

    gRPC listens with SO_REUSEPORT, so a second server on the port would not fail: it would share the connections.
    """
    deadline_s = time.monotonic() + timeout_s
    while taken := [port for port in ports if not _unused(port)]:
        if time.monotonic() >= deadline_s:
            listed = ", ".join(str(port) for port in taken)
            raise PortInUse(f"already in use on {HOST}: port {listed}; choose others with --port (0: any free ones)")
        time.sleep(0.05)


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((HOST, port)) == 0


def unready_reason(port: int) -> str | None:
    """What the /readyz that is served there says; None when it is well."""
    connection = HTTPConnection(HOST, port, timeout=1.0)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
    except (OSError, HTTPException) as error:
        return f"it does not answer: {error}"
    finally:
        connection.close()
    return None if answer.status == HTTPStatus.OK else ", ".join(text.split())


def _unused(port: int) -> bool:
    # TCP and UDP: heartbeats are datagrams.
    return all(_bindable(port, kind) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM))


def _bindable(port: int, kind: socket.SocketKind) -> bool:
    with socket.socket(type=kind) as probe:
        # Connections of an earlier server that linger in TIME_WAIT are no listener.
        if kind is socket.SOCK_STREAM:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _free(count: int) -> tuple[int, ...]:
    # Not from the kernel's ephemeral range: there a client's outgoing connection could take the port of a node that
    # is just being restarted.
    candidates = random.sample(range(15_000, 32_000), 1_000)
    free = tuple(itertools.islice((port for port in candidates if port not in _given and _unused(port)), count))
    if len(free) < count:
        raise PortInUse(f"no {count} free ports between 15000 and 32000")
    if len(_given) > MAX_GIVEN:  # the oldest clusters of so long a process are gone
        _given.clear()
    _given.update(free)
    return free
