from __future__ import annotations

import pytest
from delaylocal import ports


@pytest.fixture
def port() -> int:
    """A first port from which three nodes find theirs free."""
    while True:
        (base,) = ports.choose(0, 1).grpc
        try:
            ports.await_unused(ports.choose(base, 3).all, timeout_s=0)
        except ports.PortInUse:
            continue
        return base
