"""How long the leases are that this node's processes grant, across restarts: a new one acts as if its predecessor had
just granted one.

<data>/lease    JSON {"leaseMs": ...}, sealed: the longest that a process of this node may have granted, as far as such
                leases can still hold. Where the cluster's lease was shortened it is lowered once the longer is over.
"""

from __future__ import annotations

from delayapi.units import HOUR_MS

from delaynode.sealed_json import opened, sealed
from delaynode.store.log.files import Files

MAX_LEASE_MS = HOUR_MS  # that the registry's model allows: of a file that can't be read


def adopt(files: Files, data: str, lease_ms: int) -> int:
    """Returns the lease, ms, that an earlier process may have granted; 0: there was none. Raises OSError."""
    path = _path(data)
    size = files.size(path)
    former_ms = _read(files.read(path, 0, size)) if size else 0
    if lease_ms > former_ms:
        write(files, data, lease_ms)
    return former_ms


def _path(data: str) -> str:
    return f"{data}/lease"


def write(files: Files, data: str, lease_ms: int) -> None:
    """Raises OSError."""
    files.replace(_path(data), sealed({"leaseMs": lease_ms}).encode())


def _read(content: bytes) -> int:
    try:
        return min(MAX_LEASE_MS, int(str(opened(content)["leaseMs"])))
    except (KeyError, ValueError):
        return MAX_LEASE_MS
