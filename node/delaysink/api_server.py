"""Where the Kubernetes API server is, as this process can know it: by its variable and by its Service's name.

The variable has an address as a rule. Some platforms put a name there, and then the Service's address is another one.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Final

from delaysink.fence import API_SERVER_VARIABLE

API_SERVER_NAME: Final = "kubernetes.default.svc"


async def api_server_addresses() -> frozenset[str]:
    """None outside of Kubernetes. Raises OSError: the variable has a name, and it can't be resolved."""
    host = os.environ.get(API_SERVER_VARIABLE, "")
    if not host:
        return frozenset()
    found = await _resolved(host)
    if not found:
        raise OSError(f"{API_SERVER_VARIABLE} is {host!r:.80}, which can't be resolved: the API server must be known")
    return found | await _resolved(API_SERVER_NAME)


async def _resolved(host: str) -> frozenset[str]:
    try:
        rows = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return frozenset()
    return frozenset(str(row[4][0]) for row in rows)
