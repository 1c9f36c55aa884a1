"""When nothing changes, nothing is written."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from e2e.harness import writes
from e2e.harness.delaycluster import ClusterUnderTest
from e2e.harness.helm import Release

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
    found = idle_writes(cluster)
    figure(seconds=IDLE_SECONDS, leases=found[writes.LEASES], others=writes.ours(found))
    assert found[writes.LEASES] > 0, "renewals are counted at all"
    assert not writes.ours(found), f"written while nothing changed: {writes.ours(found)}"


def test_two_idle_operators_do_not_write_against_each_other(
    cluster: ClusterUnderTest, operator: Release, figure: Callable[..., None]
) -> None:
    operator.scale(2)
    try:
        found = idle_writes(cluster)
    finally:
        operator.scale(1)
    figure(seconds=IDLE_SECONDS, leases=found[writes.LEASES], others=writes.ours(found))
    assert not writes.ours(found), f"two operators undo each other: {writes.ours(found)}"
