"""When nothing changes, nothing is written."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from e2e.harness import writes
from e2e.harness.delaycluster import ClusterUnderTest
from e2e.harness.helm import REPLICAS, Release

IDLE_SECONDS = 60
SETTLE_SECONDS = 10  # events and the like of what came before


def idle_writes(cluster: ClusterUnderTest) -> Counter[str]:
    time.sleep(SETTLE_SECONDS)
    before = writes.so_far(cluster.kube)
    time.sleep(IDLE_SECONDS)
    return writes.so_far(cluster.kube) - before


def test_an_idle_minute_writes_nothing_but_lease_renewals(
    cluster: ClusterUnderTest, operator: Release, figure: Callable[..., None]
) -> None:
    """With the operator that leads and the one that stands by."""
    assert len(operator.pods()) == REPLICAS
    found = idle_writes(cluster)
    figure(seconds=IDLE_SECONDS, leases=found[writes.LEASES], others=writes.ours(found))
    assert found[writes.LEASES] > 0, "renewals are counted at all"
    assert not writes.ours(found), f"written while nothing changed: {writes.ours(found)}"
