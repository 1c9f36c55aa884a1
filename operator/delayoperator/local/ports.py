"""Where a local cluster's nodes listen."""

from __future__ import annotations

import itertools
import random
import socket
import time
from collections.abc import Sequence

HOST = "127.0.0.1"
HTTP_OFFSET = 100


class PortInUse(Exception):
    """Another process listens there; says which port."""


def choose(port: int, nodes: int) -> tuple[list[int], list[int]]:
    """gRPC and HTTP ports, a node each: port, port + 1, ... and port + 100, port + 101, ...; for 0 any free ones."""
    if port == 0:
        free = _free(2 * nodes)
        return free[:nodes], free[nodes:]
    if nodes > HTTP_OFFSET or port < 0 or port + HTTP_OFFSET + nodes > 65_536:
        raise ValueError(f"{nodes} nodes from port {port} on: at most {HTTP_OFFSET} nodes, ports up to 65535")
    return [port + number for number in range(nodes)], [port + HTTP_OFFSET + number for number in range(nodes)]


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


def _unused(port: int) -> bool:
    with socket.socket() as probe:
        # Connections of an earlier server that linger in TIME_WAIT are no listener.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _free(count: int) -> list[int]:
    # Not from the kernel's ephemeral range: there a client's outgoing connection could take the port of a node that
    # is just being restarted.
    candidates = random.sample(range(15_000, 32_000), 1_000)
    free = list(itertools.islice((port for port in candidates if _unused(port)), count))
    if len(free) < count:
        raise PortInUse(f"no {count} free ports between 15000 and 32000")
    return free
