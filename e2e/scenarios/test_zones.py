"""Copies of a shard are in different zones: what Kubernetes says of its machines reaches the planner."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from e2e.harness.delaycluster import ClusterUnderTest
from e2e.harness.helm import Release
from e2e.harness.kubectl import Failed, Kubectl, wait_until

ZONE = "topology.kubernetes.io/zone"
ZONES = ("e2e-a", "e2e-b")
APART_SECONDS = 90  # a node counts as there to stay after 10 s, and copies move 8 at a time


@pytest.fixture
def zones(kube: Kubectl) -> Iterator[dict[str, str]]:
    """By Kubernetes node: two zones in turn."""
    workers = kube.workers()
    if len(workers) < 4:
        pytest.skip(f"it wants four machines, here are {len(workers)}")
    if any(ZONE in node["metadata"].get("labels", {}) for node in kube.list("nodes")):
        pytest.skip("the machines have zones of their own")
    found = {worker: ZONES[place % 2] for place, worker in enumerate(workers)}
    try:
        for worker, zone in found.items():
            kube("label", "node", worker, f"{ZONE}={zone}")
        yield found
    finally:
        kube("label", "node", *found, f"{ZONE}-")


def test_copies_are_in_different_zones_and_no_move_brings_them_together(
    operator: Release, kube: Kubectl, namespace: str, zones: dict[str, str], figure: Callable[..., None]
) -> None:
    cluster = ClusterUnderTest(kube, "zoned", namespace)
    cluster.apply(nodes=4, replicas=2, topics=[{"name": "t", "queues": 12}])
    ready = cluster.wait_whole()
    pods = cluster.pods()
    if not all(ZONE in pod["metadata"]["labels"] for pod in pods.values()):
        pytest.skip("pods are not told their machine's zone: a Kubernetes before 1.35")
    zone = {node: zones[pod["spec"]["nodeName"]] for node, pod in pods.items()}
    assert set(zone.values()) == set(ZONES), f"the pods are spread over the zones: {zone}"

    def together() -> list[str]:
        return [f"{it.name}: {it.replicas}" for it in cluster.shards() if len({zone[n] for n in it.replicas}) < 2]

    apart = wait_until("no two copies of a shard are in one zone", together, APART_SECONDS)
    cluster.wait_whole()

    listed = cluster.delayctl("nodes", "list")
    assert all(any(node in line and zone[node] in line for line in listed.splitlines()) for node in zone), listed
    shard = next(it for it in cluster.shards() if it.master is not None)
    slave = next(node for node in shard.replicas if node != shard.master)
    beside = next((n for n in zone if n not in shard.replicas and zone[n] == zone[str(shard.master)]), None)
    if beside is not None:
        with pytest.raises(Failed, match=f"{beside} is in zone {zone[beside]}, as {shard.master} with another copy"):
            cluster.delayctl("shards", "move", f"t-{shard.queue}", "--from", slave, "--to", beside)
    figure(ready_s=round(ready, 1), apart_s=round(apart, 1))
    cluster.delete()
