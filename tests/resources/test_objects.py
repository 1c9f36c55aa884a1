"""The promises of a cluster's objects."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from delayoperator.resources import ClusterView, build, foreign, grown
from delayoperator.resources.sink import SinkView, sink_objects
from delayoperator.resources.view import NetworkAccess, VolumeRequest
from delayregistry.codec import from_json
from delayregistry.model import ClusterSpec

from tests.resources.clusters import MINIMAL, PRODUCTION, one, stateful_set
from tests.resources.server import served
from tests.resources.snapshots import CLUSTERS, path, rendered

BOTH = pytest.mark.parametrize("view", [MINIMAL, PRODUCTION], ids=["minimal", "production"])


@pytest.mark.parametrize("name", CLUSTERS)
def test_the_objects_are_as_they_were_reviewed(name: str) -> None:
    assert rendered(CLUSTERS[name]) == path(name).read_text(encoding="utf-8"), "python -m tests.resources.snapshots"


@BOTH
def test_every_object_goes_with_its_cluster_and_says_whose_it_is(view: ClusterView) -> None:
    for item in build(view):
        meta = item["metadata"]
        assert [(owner["uid"], owner["controller"]) for owner in meta["ownerReferences"]] == [(view.uid, True)]
        assert meta["namespace"] == view.namespace
        assert meta["labels"]["delaycluster.io/cluster"] == view.name
        assert foreign(view, served(item)) is None


@BOTH
def test_objects_have_names_of_their_own_and_what_pods_need_comes_before_the_pods(view: ClusterView) -> None:
    kinds = [item["kind"] for item in build(view)]
    assert len({(item["kind"], item["metadata"]["name"]) for item in build(view)}) == len(kinds)
    assert kinds.index("StatefulSet") > max(
        kinds.index(kind) for kind in ("Role", "RoleBinding", "ConfigMap", "Lease", "Service")
    )


@BOTH
def test_building_twice_gives_the_same(view: ClusterView) -> None:
    assert json.dumps(build(view)) == json.dumps(build(view))


@BOTH
def test_services_choose_the_pods_and_name_ports_that_they_have(view: ClusterView) -> None:
    template = stateful_set(view)["spec"]["template"]
    ports = {port["name"] for port in template["spec"]["containers"][0]["ports"]}
    for name in (f"{view.name}-client", f"{view.name}-nodes"):
        spec = one(build(view), "Service", name)["spec"]
        assert spec["selector"].items() <= template["metadata"]["labels"].items()
        assert {port["targetPort"] for port in spec["ports"]} <= ports


def test_the_settings_are_read_back_as_they_were_wished() -> None:
    data = one(build(PRODUCTION), "ConfigMap")["data"]
    assert from_json(ClusterSpec, json.loads(data["cluster.json"])) == PRODUCTION.cluster


# ---------------------------------------------------------------- access
def allowed(view: ClusterView, verb: str, group: str, resource: str, name: str) -> bool:
    """Decide as the API server's RBAC does about one object."""
    return any(
        verb in rule["verbs"] and group in rule["apiGroups"] and resource in rule["resources"]
        and (not rule.get("resourceNames") or name in rule["resourceNames"])
        for rule in one(build(view), "Role", f"{view.name}-node")["rules"]
    )  # fmt: skip


def test_nodes_write_the_status_of_their_clusters_shards_and_their_leases_and_nothing_else() -> None:
    shards, leases = "delaycluster.io", "coordination.k8s.io"
    assert allowed(PRODUCTION, "patch", shards, "delayshards/status", "payments.timeouts-3")
    assert allowed(PRODUCTION, "patch", shards, "delayshards/status", "payments.old-0")
    assert allowed(PRODUCTION, "patch", leases, "leases", "payments.n4")
    assert not allowed(PRODUCTION, "patch", shards, "delayshards/status", "orders.timeouts-3")
    assert not allowed(PRODUCTION, "patch", shards, "delayshards", "payments.timeouts-3")
    assert not allowed(PRODUCTION, "patch", leases, "leases", "payments.n5")
    for name in ("payments-cluster", "payments-security"):
        assert allowed(PRODUCTION, "get", "", "configmaps", name)
        assert allowed(PRODUCTION, "watch", "", "configmaps", name)
    assert not allowed(PRODUCTION, "get", "", "configmaps", "other-cluster")
    assert not allowed(PRODUCTION, "get", "", "configmaps", "other-security")
    writes = {"create", "update", "patch", "delete", "deletecollection", "*"}
    for rule in one(build(PRODUCTION), "Role", "payments-node")["rules"]:
        assert "secrets" not in rule["resources"]
        assert "*" not in [*rule["resources"], *rule["apiGroups"], *rule["verbs"]]
        assert not writes & {*rule["verbs"]} or rule["resourceNames"], f"{rule} may write any name"
        assert not {"create", "delete", "deletecollection"} & {*rule["verbs"]}


def test_without_shards_no_status_may_be_written() -> None:
    """An empty list of names would allow all."""
    assert not allowed(MINIMAL, "patch", "delaycluster.io", "delayshards/status", "orders.anything-0")


def test_the_role_of_ten_thousand_shards_fits_into_an_object() -> None:
    topic = "t" * 50
    view = replace(
        MINIMAL,
        cluster=replace(MINIMAL.cluster, name="c" * 40),
        shards=tuple(f"{topic}-{number}" for number in range(10_000)),
    )
    assert len(json.dumps(one(build(view), "Role"))) < 1_200_000


# ---------------------------------------------------------------- sizes and volumes
def retention(view: ClusterView, live: Any = None) -> str:
    policy = stateful_set(view, live)["spec"]["persistentVolumeClaimRetentionPolicy"]
    return f"deleted: {policy['whenDeleted']}, scaled: {policy['whenScaled']}"


def test_claims_outlive_the_cluster_unless_asked_otherwise() -> None:
    assert retention(MINIMAL) == "deleted: Retain, scaled: Retain"
    assert retention(PRODUCTION) == "deleted: Delete, scaled: Retain"


def test_a_scale_in_by_the_operator_takes_the_claims_of_the_emptied_nodes_away() -> None:
    live = served(stateful_set(replace(MINIMAL, cluster=replace(MINIMAL.cluster, nodes=5))))
    assert retention(MINIMAL, live) == "deleted: Retain, scaled: Delete"
    live["spec"]["replicas"] = 3  # applied, and two pods are ending
    assert retention(MINIMAL, live) == "deleted: Retain, scaled: Delete"
    live["status"]["replicas"] = 3
    assert retention(MINIMAL, live) == "deleted: Retain, scaled: Retain"


def test_the_restart_that_was_asked_for_last_stays_in_the_template() -> None:
    def restarted(view: ClusterView, live: Any = None) -> str | None:
        found: dict[str, str] = stateful_set(view, live)["spec"]["template"]["metadata"]["annotations"]
        return found.get("delaycluster.io/restarted")

    assert restarted(MINIMAL, served(stateful_set(MINIMAL))) is None
    live = served(stateful_set(replace(MINIMAL, restart="monday")))
    assert restarted(MINIMAL, live) == "monday", "its annotation is gone: no new revision"
    assert restarted(replace(MINIMAL, restart="friday"), live) == "friday"


def test_a_stateful_set_that_somebody_scaled_down_by_hand_loses_no_claim() -> None:
    live = served(stateful_set(MINIMAL))
    live["spec"]["replicas"] = 0
    assert retention(MINIMAL, live) == "deleted: Retain, scaled: Retain"
    assert stateful_set(MINIMAL, live)["spec"]["replicas"] == 3


def test_a_larger_volume_leaves_the_template_as_it_is_and_grows_the_claims() -> None:
    live = served(stateful_set(MINIMAL))
    view = replace(MINIMAL, storage=VolumeRequest("50Gi", "other"))
    claims = stateful_set(view, live)["spec"]["volumeClaimTemplates"]
    assert [(it["spec"]["resources"]["requests"]["storage"], it["spec"].get("storageClassName")) for it in claims] == [
        ("10Gi", None)
    ]
    assert grown(view, claim("10Gi")) == {
        "metadata": {"resourceVersion": "7"},
        "spec": {"resources": {"requests": {"storage": "50Gi"}}},
    }


def claim(size: str, phase: str = "Bound", **meta: str) -> Any:
    return {
        "metadata": {"name": "data-orders-0", "resourceVersion": "7", **meta},
        "spec": {"resources": {"requests": {"storage": size}}},
        "status": {"phase": phase},
    }


def test_a_claim_is_left_alone_that_is_large_enough_or_not_bound_or_about_to_go() -> None:
    assert grown(MINIMAL, claim("10Gi")) is None
    assert grown(MINIMAL, claim("10240Mi")) is None
    assert grown(MINIMAL, claim("11Gi")) is None
    assert grown(MINIMAL, claim("1Gi", "Pending")) is None
    assert grown(MINIMAL, claim("1Gi", deletionTimestamp="2026-01-01T00:00:00Z")) is None
    assert grown(MINIMAL, claim("9Gi")) is not None


# ---------------------------------------------------------------- others' objects
def test_an_object_that_was_there_before_is_nobody_elses_to_take() -> None:
    service = served(one(build(MINIMAL), "Service", "orders-client"))
    service["metadata"].update(ownerReferences=[], labels={"app": "shop"})
    assert foreign(MINIMAL, service) == "it was there before and is not the operator's"
    service["metadata"]["ownerReferences"] = [{"kind": "Deployment", "name": "shop", "uid": "77", "controller": True}]
    assert foreign(MINIMAL, service) == "it belongs to Deployment shop (uid 77)"


def test_what_an_orphaning_deletion_left_behind_is_taken_over() -> None:
    left = served(one(build(MINIMAL), "Service", "orders-client"))
    del left["metadata"]["ownerReferences"]
    assert foreign(replace(MINIMAL, uid="another"), left) is None


def test_the_peer_port_is_the_nodes_and_nobody_is_not_everybody() -> None:
    def rules(access: NetworkAccess | None) -> list[tuple[list[int], int | None]]:
        """The ports of each rule, and how many peers it has; None: everybody."""
        made = build(replace(PRODUCTION, network=access))
        found = [it for it in made if (it["kind"], it["metadata"]["name"]) == ("NetworkPolicy", "payments-nodes")]
        return [
            ([port["port"] for port in rule["ports"]], len(rule["from"]) if "from" in rule else None)
            for item in found
            for rule in item["spec"]["ingress"]
        ]

    assert rules(None) == []
    assert rules(NetworkAccess()) == [([7270, 7270], 1), ([7070, 7170], None), ([7170], None)]
    assert rules(NetworkAccess(clients=(), monitoring=())) == [([7270, 7270], 1), ([7070, 7170], 3)]
    nodes = one(build(PRODUCTION), "NetworkPolicy", "payments-nodes")["spec"]
    labels = stateful_set(PRODUCTION)["spec"]["template"]["metadata"]["labels"]
    for selector in (nodes["podSelector"], nodes["ingress"][0]["from"][0]["podSelector"]):
        assert selector["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize(
    ("access", "peers"),
    [
        (NetworkAccess(clients=({"podSelector": {}},)), None),
        (NetworkAccess(monitoring=()), 1),
        (NetworkAccess(monitoring=({"namespaceSelector": {}},)), 2),
    ],
)
def test_the_port_of_a_sink_is_for_the_operator_and_who_reads_metrics(access: NetworkAccess, peers: int | None) -> None:
    """peers: that reach it; None: everybody."""
    found = one(build(replace(PRODUCTION, network=access)), "NetworkPolicy", "payments-sinks")["spec"]
    (rule,) = found["ingress"]
    assert [port["port"] for port in rule["ports"]] == [7180]
    assert (None if "from" not in rule else len(rule["from"])) == peers
    sink = SinkView("hooks", "1", {}, (), 15, 1)
    (pod,) = (it["spec"]["template"] for it in sink_objects(PRODUCTION, sink) if it["kind"] == "Deployment")
    assert found["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    alone = one(build(replace(PRODUCTION, network=access, operator_namespace="")), "NetworkPolicy", "payments-sinks")
    assert ("ingress" in alone["spec"] and bool(alone["spec"]["ingress"])) is (access.monitoring != ())
