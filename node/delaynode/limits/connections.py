"""The node's client connections, found among the process's sockets: gRPC does not hand them out.

gRPC names a call's connection by its peer's address, `ipv4:10.0.0.7:51234`. A call can't be ended by the server while
its answer waits for the client to read, and keeps the answer in memory; a connection that is shut down can't.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
from collections.abc import Collection, Iterator
from urllib.parse import unquote

FILES = "/proc/self/fd"
TCP_INFO_BYTES = 192
BYTES_RECEIVED_AT = 128  # of u64 tcpi_bytes_received in struct tcp_info (linux/tcp.h)
Address = tuple[str, int]


def address_of(peer: str) -> Address:
    """gRPC's name of a peer as (host, port). Raises ValueError for what is no TCP address."""
    kind, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if kind not in ("ipv4", "ipv6"):
        raise ValueError(f"{peer!r} names no TCP connection")
    return host.strip("[]"), int(port)


def _plain(address: object) -> Address | None:
    """A socket's address; one of IPv4 that came in over IPv6 as IPv4."""
    match address:
        case (str(host), int(port), *_):
            return host.removeprefix("::ffff:"), port
    return None


def _sockets() -> Iterator[socket.socket]:
    """A copy of each TCP socket of this process, closed when the next is asked for."""
    for name in os.listdir(FILES):
        try:
            if not os.readlink(f"{FILES}/{name}").startswith("socket:"):
                continue
            copy = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # closed meanwhile
            continue
        with copy:
            if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM:
                yield copy


def cut(peers: Collection[Address]) -> int:
    """Shut clients' connections down, with all their calls; returns how many were found."""
    found = 0
    for one in _sockets():
        with contextlib.suppress(OSError):
            if _plain(one.getpeername()) in peers:
                one.shutdown(socket.SHUT_RDWR)
                found += 1
    return found


def received(ports: Collection[int]) -> dict[Address, int]:
    """Per client of these ports of ours: the bytes that have come from it."""
    found: dict[Address, int] = {}
    for one in _sockets():
        with contextlib.suppress(OSError):  # a listening socket has no peer
            mine, peer = _plain(one.getsockname()), _plain(one.getpeername())
            if mine is not None and peer is not None and mine[1] in ports:
                info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
                found[peer] = struct.unpack_from("<Q", info, BYTES_RECEIVED_AT)[0] if len(info) >= 136 else 0
    return found


def raise_file_limit() -> int:
    """Allow as many open files as the system lets us; returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # "unlimited" may be more than the kernel's own limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
