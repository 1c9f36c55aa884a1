"""Copies of a shard are in different zones and on different machines: what Kubernetes says of its machines reaches the
planner, by the labels of the machines alone, and where these may not be read by the pods' own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from e2e.harness.delaycluster import LABEL, ClusterUnderTest
from e2e.harness.helm import Release
from e2e.harness.kubectl import Failed, Kubectl, wait_until

ZONE = "topology.kubernetes.io/zone"
LEASE_ZONE = "delaycluster.io/zone"
ZONES = ("e2e-a", "e2e-b")
APART_SECONDS = 90  # a node counts as there to stay after 10 s, and copies move 8 at a time
MACHINES_ONLY = "rbac.readNodes=false"
# The nodes are told no zone, as before Kubernetes 1.35: their pods have no label of this name.
NO_LABEL = {"fieldRef": {"fieldPath": "metadata.labels['none']"}}
TOLD_NOTHING = {"env": [{"name": "DELAYNODE_ZONE", "valueFrom": NO_LABEL}]}


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


@pytest.fixture
def machines_only(operator: Release) -> Iterator[Release]:
    """An operator that may not read Nodes."""
    operator.install(MACHINES_ONLY)
    try:
        yield operator
    finally:
        operator.install("rbac.readNodes=true")


def told_by_nodes(kube: Kubectl, cluster: ClusterUnderTest) -> dict[str, str]:
    """The zones that the nodes say themselves, in their leases."""
    leases = [it["metadata"] for it in kube.list("leases", cluster.namespace, f"{LABEL}={cluster.name}")]
    return {it["name"].rpartition(".")[2]: (it.get("annotations") or {}).get(LEASE_ZONE, "") for it in leases}


def locations(cluster: ClusterUnderTest) -> dict[str, dict[str, Any]]:
    return {it["node"]: it for it in cluster.object["status"].get("locations", ())}


def wait_apart(cluster: ClusterUnderTest, place: dict[str, str]) -> float:
    """place: by node id."""

    def together() -> list[str]:
        copies = {it.name: it.replicas for it in cluster.shards()}
        return [f"{name}: {nodes}" for name, nodes in copies.items() if len({place[it] for it in nodes}) < len(nodes)]

    return wait_until(f"no two copies of a shard are together, of {place}", together, APART_SECONDS)


def test_copies_are_in_different_zones_by_the_machines_labels_alone_and_no_move_brings_them_together(
    operator: Release, kube: Kubectl, namespace: str, zones: dict[str, str], figure: Callable[..., None]
) -> None:
    cluster = ClusterUnderTest(kube, "zoned", namespace)
    cluster.apply(nodes=4, replicas=2, topics=[{"name": "t", "queues": 12}], podTemplate=TOLD_NOTHING)
    ready = cluster.wait_whole()
    assert set(told_by_nodes(kube, cluster).values()) == {""}, "no node knows its zone"
    machine = {node: pod["spec"]["nodeName"] for node, pod in cluster.pods().items()}
    zone = {node: zones[it] for node, it in machine.items()}
    assert set(zone.values()) == set(ZONES), f"the pods are spread over the zones: {zone}"
    apart = wait_apart(cluster, zone)
    cluster.wait_whole()

    found = locations(cluster)
    assert {node: it["zone"] for node, it in found.items()} == zone
    assert {node: it["machine"] for node, it in found.items()} == machine
    shard, beside = next(
        (it, node)
        for it in cluster.shards()
        for node in zone
        if node not in it.replicas and zone[node] == zone[str(it.master)]
    )
    slave = next(node for node in shard.replicas if node != shard.master)
    with pytest.raises(Failed, match=f"{beside} is in zone {zone[beside]}, as {shard.master} with another copy"):
        cluster.delayctl("shards", "move", f"t-{shard.queue}", "--from", slave, "--to", beside)
    figure(ready_s=round(ready, 1), apart_s=round(apart, 1))
    cluster.delete()


def test_without_the_right_to_nodes_the_pods_labels_say_the_zones(
    machines_only: Release, kube: Kubectl, namespace: str, zones: dict[str, str], figure: Callable[..., None]
) -> None:
    account = f"system:serviceaccount:{machines_only.namespace}:{machines_only.name}"
    assert kube("auth", "can-i", "get", "nodes", "--as", account, check=False).strip() == "no"
    cluster = ClusterUnderTest(kube, "labelled", namespace)
    cluster.apply(nodes=4, replicas=2, topics=[{"name": "t", "queues": 12}])
    ready = cluster.wait_whole()
    pods = cluster.pods()
    if not all(ZONE in pod["metadata"]["labels"] for pod in pods.values()):
        pytest.skip("pods are not told their machine's zone: a Kubernetes before 1.35")
    zone = {node: zones[pod["spec"]["nodeName"]] for node, pod in pods.items()}
    assert told_by_nodes(kube, cluster) == zone
    apart = wait_apart(cluster, zone)
    listed = cluster.delayctl("nodes", "list")
    assert all(any(node in line and zone[node] in line for line in listed.splitlines()) for node in zone), listed
    figure(ready_s=round(ready, 1), apart_s=round(apart, 1))
    cluster.delete()


def test_no_two_copies_are_on_one_machine_while_another_has_room(
    operator: Release, kube: Kubectl, namespace: str, figure: Callable[..., None]
) -> None:
    nodes = len(kube.workers()) + 1
    cluster = ClusterUnderTest(kube, "crowded", namespace)
    cluster.apply(nodes=nodes, replicas=2, topics=[{"name": "t", "queues": 12}])
    ready = cluster.wait_whole()
    machine = {node: pod["spec"]["nodeName"] for node, pod in cluster.pods().items()}
    assert len(set(machine.values())) < nodes, "two pods share a machine"
    apart = wait_apart(cluster, machine)
    cluster.wait_whole()
    assert "fail together" not in cluster.condition("Ready")["message"]
    figure(ready_s=round(ready, 1), apart_s=round(apart, 1))
    cluster.delete()
