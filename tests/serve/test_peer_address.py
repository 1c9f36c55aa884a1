"""Where another node's process is reached: what its lease says, be it nonsense."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from delaynode.registry.model import NodeLease
from delaynode.serve.node import Node


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("10.0.0.1:7000", ("10.0.0.1", 7000, "i")),
        ("::1:7000", ("::1", 7000, "i")),
        ("", None),
        ("10.0.0.1", None),
        ("10.0.0.1:", None),
        ("10.0.0.1:x", None),
        ("10.0.0.1:²", None),
        ("10.0.0.1:70000", None),
    ],
)
def test_a_lease_without_a_usable_address_stops_nobody_who_reads_it(
    peer: str, address: tuple[str, int, str] | None
) -> None:
    lease = NodeLease("n1", "i", "e:1", "h:1", peer=peer)
    node = SimpleNamespace(routes=SimpleNamespace(leases={"n1": lease}))
    assert Node._peer_address(node, "n1") == address  # type: ignore[arg-type]
