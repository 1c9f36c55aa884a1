"""Leases in Kubernetes: made by the operator, renewed by their nodes, and what all that costs the API server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from delayregistry.kube import KubeRegistry
from delayregistry.model import ClusterSpec, NodeLease, ShardSpec, VersionRange
from delayregistry.port import RegistryUnavailable

from tests.kube.desired import WritingRegistry
from tests.kube.fakekinds import find
from tests.registry.worlds import CLUSTER, NAMESPACE, KubeWorld, until

LEASE = NodeLease("n0", "a", "10.0.0.1:7070", "10.0.0.1:7170", 1, peer="10.0.0.1:7270", zone="east")
LEASE = replace(LEASE, formats=VersionRange(1, 2), wire=VersionRange(1, 3))
LEASES = find("leases")


@pytest.fixture
def world() -> Iterator[KubeWorld]:
    world = KubeWorld()
    yield world
    world.close()


@pytest.fixture
def operator(world: KubeWorld) -> WritingRegistry:
    return world.open()


@pytest.fixture
def node(world: KubeWorld) -> KubeRegistry:
    return world.open(owner=None, pod_uid="pod-1")


def test_a_lease_that_nobody_holds_yet_is_not_listed(world: KubeWorld, operator: WritingRegistry) -> None:
    assert [it["metadata"]["name"] for it in world.server.list("leases")] == ["c.n0", "c.n1", "c.n2"]
    assert operator.list_leases() == ()


def test_a_renewed_lease_is_one_of_kubernetes_too(
    world: KubeWorld, operator: WritingRegistry, node: KubeRegistry
) -> None:
    operator.put_cluster(ClusterSpec(CLUSTER, 3, lease_seconds=7), None)
    assert node.read_cluster() is not None
    node.renew_lease(replace(LEASE, stopping=True))
    found = world.server.get("leases", "c.n0")
    assert (found["spec"]["holderIdentity"], found["spec"]["leaseDurationSeconds"]) == ("a", 7)
    assert found["spec"]["renewTime"].endswith("Z")
    said = {key.removeprefix("delaycluster.io/"): value for key, value in found["metadata"]["annotations"].items()}
    assert said == {
        "endpoint": "10.0.0.1:7070",
        "http": "10.0.0.1:7170",
        "peer": "10.0.0.1:7270",
        "renewals": "1",
        "stopping": "true",
        "zone": "east",
        "versions": "formats 1-2, wire 1-3, of a",
        "pod-uid": "pod-1",
    }
    assert operator.list_leases() == (replace(LEASE, stopping=True),)


def test_a_lease_of_before_there_were_zones_is_read_and_a_process_in_none_takes_its_predecessors_back(
    world: KubeWorld, operator: WritingRegistry, node: KubeRegistry
) -> None:
    node.renew_lease(LEASE)
    node.renew_lease(replace(LEASE, incarnation="b", zone=""))
    assert operator.list_leases() == (replace(LEASE, incarnation="b", zone=""),)
    world.server.store.patch(LEASES, NAMESPACE, "c.n0", {"metadata": {"annotations": {"delaycluster.io/zone": None}}})
    assert [lease.zone for lease in operator.list_leases()] == [""]


def test_a_process_of_release_0_1_is_not_taken_for_its_successor_after_a_downgrade(
    world: KubeWorld, operator: WritingRegistry, node: KubeRegistry
) -> None:
    """It writes the annotations that it knows, and no others go."""
    node.renew_lease(LEASE)
    said = {"delaycluster.io/renewals": "1"}
    older = {"metadata": {"annotations": said}, "spec": {"holderIdentity": "b"}}
    world.server.store.patch(LEASES, NAMESPACE, "c.n0", older)
    assert operator.list_leases() == (replace(LEASE, incarnation="b", formats=None, wire=None),)


def test_a_lease_that_is_missing_is_not_made_by_its_node(world: KubeWorld, node: KubeRegistry) -> None:
    with pytest.raises(RegistryUnavailable, match=r"n9 not renewed: 404 .*the operator creates it"):
        node.renew_lease(replace(LEASE, node="n9"))
    assert world.server.requests("POST", since_s=time.monotonic() - 1)[3:] == []  # the world's three


def test_a_renewal_costs_one_request_and_is_done_whatever_was_there(world: KubeWorld, node: KubeRegistry) -> None:
    node.renew_lease(LEASE)
    began_s = time.monotonic()
    node.renew_lease(replace(LEASE, renewals=2))
    assert [it.method for it in world.server.requests(since_s=began_s)] == ["PATCH"]
    patch = {"metadata": {"annotations": {"delaycluster.io/renewals": "999"}}, "spec": {"holderIdentity": "another"}}
    world.server.store.patch(LEASES, NAMESPACE, "c.n0", patch)
    node.renew_lease(replace(LEASE, renewals=3))
    found = world.server.get("leases", "c.n0")
    assert found["spec"]["holderIdentity"] == "a"
    assert found["metadata"]["annotations"]["delaycluster.io/renewals"] == "3"


@pytest.mark.parametrize("how", [{"drop": "before"}, {"drop": "after"}, {"hold": True}])
def test_one_renewal_that_is_lost_does_not_cost_the_lease(
    world: KubeWorld, node: KubeRegistry, how: dict[str, object]
) -> None:
    node.renew_lease(LEASE)
    world.server.fault(method="PATCH", path="/leases/", **how)
    began_s = time.monotonic()
    node.renew_lease(replace(LEASE, renewals=2))
    assert time.monotonic() - began_s < 2.5
    assert world.server.get("leases", "c.n0")["metadata"]["annotations"]["delaycluster.io/renewals"] == "2"


def test_a_late_renewal_of_a_process_that_is_gone_does_not_look_like_it(world: KubeWorld, node: KubeRegistry) -> None:
    node.renew_lease(LEASE)
    late = world.server.fault(method="PATCH", path="/leases/", delay_s=1.6)
    thread = threading.Thread(target=node.renew_lease, args=(replace(LEASE, renewals=2),))
    thread.start()
    until(lambda: late.met == 1)
    thread.join()  # it went on with another request
    after = world.open(owner=None)
    after.renew_lease(replace(LEASE, incarnation="b"))
    until(lambda: [it.status for it in world.server.requests("PATCH")].count(409) == 1)
    assert world.server.get("leases", "c.n0")["spec"]["holderIdentity"] == "b"


def test_the_operator_reads_leases_consistently_and_nodes_from_memory_once_a_second(
    world: KubeWorld, operator: WritingRegistry, node: KubeRegistry
) -> None:
    node.renew_lease(LEASE)
    began_s = time.monotonic()
    for _ in range(5):
        operator.list_leases()
        node.list_leases()
    came = [it.query.get("resourceVersion") for it in world.server.requests("LIST", "/leases", began_s)]
    assert sorted(came, key=str) == ["0", None, None, None, None, None]
    node.renew_lease(replace(LEASE, renewals=2))
    until(lambda: [it.renewals for it in node.list_leases()] == [2])


def test_a_lease_that_somebody_broke_is_said_once_and_hides_no_other(
    world: KubeWorld, operator: WritingRegistry, node: KubeRegistry
) -> None:
    node.renew_lease(LEASE)
    node.renew_lease(replace(LEASE, node="n1"))
    patch = {"metadata": {"annotations": {"delaycluster.io/renewals": "many"}}}
    world.server.store.patch(LEASES, NAMESPACE, "c.n0", patch)
    for _ in range(3):
        assert [lease.node for lease in operator.list_leases()] == ["n1"]
    (said,) = [event for event in world.events if event["event"] == "object-unreadable"]
    assert "c.n0" in str(said["reason"])


def test_probing_needs_no_object_and_writes_nothing(world: KubeWorld, operator: WritingRegistry) -> None:
    before = world.server.store.version
    operator.probe()
    world.server.store.delete(LEASES, NAMESPACE, "c.n0")
    operator.probe()
    assert world.server.store.version == before + 1


def test_an_idle_cluster_causes_no_writes_but_its_leases_and_few_requests(
    world: KubeWorld, operator: WritingRegistry, node: KubeRegistry
) -> None:
    operator.put_cluster(ClusterSpec(CLUSTER, 1), None)
    operator.create_shard(ShardSpec(1, "orders", 0, ("n0",)))
    for registry in (operator, node):
        assert registry.list_shards()
    began_s = time.monotonic()
    for second in range(4):
        node.renew_lease(replace(LEASE, renewals=second))
        for _ in range(20):  # a node looks 20 times a second
            assert node.version() > 0
            node.list_leases()
            assert len(node.list_shards()) == 1
            assert node.read_cluster() is not None
            time.sleep(0.05)
    assert world.server.writes(began_s, but=["/leases/"]) == 0
    came = world.server.requests(since_s=began_s)
    # In four seconds: four renewals and the first one's read, five lists, at most two watches of each registry.
    assert len(came) <= 4 + 1 + 5 + 4
