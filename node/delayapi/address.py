"""HOST:PORT, where HOST may be an IPv6 address: written with brackets, read with or without them.

Without, because Kubernetes puts a pod's bare address into a container's arguments: `$(POD_IP):7070`. The port is never
left out, so the last colon is the one before it.
"""

from __future__ import annotations

import errno
import socket

EVERYWHERE = ("", "::")  # hosts that stand for all addresses of the machine, of IPv6 and of IPv4
NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)  # of a machine where it is switched off
BACKLOG = 4_096


def split(address: str) -> tuple[str, int]:
    """Host, without brackets, and port. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not (colon and port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise ValueError(f"{address!r} is not HOST:PORT")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return host, int(port)


def join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def normal(address: str) -> str:
    """Parses what join() writes. Raises ValueError."""
    return join(*split(address))


def listen(host: str, port: int) -> socket.socket:
    """A TCP socket that listens there. On all addresses, a machine without IPv6 gets what it has. Raises OSError."""
    if host not in EVERYWHERE:
        return socket.create_server((host, port), family=family_of(host), backlog=BACKLOG)
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("::", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
        except OSError as error:
            if error.errno not in NO_IPV6:
                raise
    return socket.create_server(("0.0.0.0", port), backlog=BACKLOG)


def family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
