"""The console of a cluster, reached as people reach it: by a port-forward to its Service, signed in or not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.harness.delaycluster import ClusterUnderTest
from e2e.harness.forwards import forwarded_port
from tests.console.support.cluster_console import ClusterConsole


@contextmanager
def forwarded(cluster: ClusterUnderTest, ca: Path) -> Iterator[ClusterConsole]:
    """ca: the browser trusts no other."""
    with forwarded_port(cluster, f"svc/{cluster.name}-console", 443) as port:
        yield ClusterConsole(port, ca, [])
