"""Where another node's process is reached: what its lease says, be it nonsense."""

from __future__ import annotations

import pytest
from delaynode.node.peering import peer_address
from delaynode.node.routes import Routes
from delaynode.replication.transport.links import Address
from delayregistry.model import NodeLease


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("10.0.0.1:7000", Address("10.0.0.1", 7000, "i")),
        ("::1:7000", Address("::1", 7000, "i")),
        ("[fd00::1]:7000", Address("fd00::1", 7000, "i")),
        ("", None),
        ("10.0.0.1", None),
        ("10.0.0.1:", None),
        ("10.0.0.1:x", None),
        ("10.0.0.1:²", None),
        ("10.0.0.1:70000", None),
    ],
)
def test_a_lease_without_a_usable_address_stops_nobody_who_reads_it(peer: str, address: Address | None) -> None:
    routes = Routes()
    routes.leases = {"n1": NodeLease("n1", "i", "e:1", "h:1", peer=peer)}
    assert peer_address(routes, "n1") == address
