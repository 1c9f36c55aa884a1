"""The clusters that the tests build objects for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from delayapi.units import DAY_MS
from delayoperator.resources import ClusterView, build
from delayoperator.resources.view import (
    Json,
    NetworkAccess,
    PodSpec,
    RebalanceJobSpec,
    SecurityMode,
    TlsSettings,
    VolumeRequest,
)
from delayregistry.model import ClusterSpec, TopicSpec

MINIMAL = ClusterView(
    namespace="default",
    uid="0b8d1e0c-5c0f-4a5e-9a54-7d7b8a7f0f11",
    cluster=ClusterSpec("orders", 3, replicas=2),
    image="delaycluster/delaycluster:0.1.0",
)
PRODUCTION = ClusterView(
    namespace="shop",
    uid="6f1b7f5a-2f1e-4b8e-8a3b-2b9f3f1c7d22",
    cluster=ClusterSpec(
        "payments",
        5,
        (
            TopicSpec("timeouts", 4, retention_ms=DAY_MS, max_release_per_second=20_000),
            TopicSpec("reminders", 2, max_attempts=5),
        ),
        replicas=2,
        min_in_sync=2,
    ),
    image="registry.example.com/delaycluster/delaycluster:0.1.0",
    storage=VolumeRequest("200Gi", "fast", delete_with_cluster=True),
    resources={"requests": {"cpu": 2, "memory": "4Gi"}, "limits": {"memory": "4Gi"}},
    pod=PodSpec(
        labels={"team": "payments"},
        annotations={"example.com/cost": "42"},
        node_selector={"node-role.kubernetes.io/storage": ""},
        affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {"matchLabels": {"delaycluster.io/cluster": "payments"}},
        }]}},
        tolerations=({"key": "dedicated", "operator": "Equal", "value": "storage", "effect": "NoSchedule"},),
        topology_spread=(
            {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"},
        ),
        priority_class="important",
        image_pull_secrets=("registry",),
        grace_seconds=120,
        env=({"name": "GRPC_VERBOSITY", "value": "error"}, {"name": "POD_IP", "value": "10.0.0.1"}),
    ),
    pod_monitor=True,
    network=NetworkAccess(
        clients=(
            {"podSelector": {"matchLabels": {"uses": "payments"}}, "namespaceSelector": {}},
            {"ipBlock": {"cidr": "10.1.0.0/16", "except": ["10.1.9.0/24"]}},
        ),
        monitoring=({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}},),
    ),
    operator_namespace="delaycluster-system",
    monitor_labels={"release": "prometheus", "app.kubernetes.io/name": "not the operator's"},
    shards=("old-0", "timeouts-0", "timeouts-1"),
    rebalance=RebalanceJobSpec(
        "registry.example.com/delaycluster/delaycluster-rebalance:0.1.0",
        schedule="0 3 * * *",
        master="k8s://https://kubernetes.default.svc",
        conf={"spark.executor.instances": "4"},
        history=("load-history", "payments"),
    ),
)  # fmt: skip

SECURED = replace(
    MINIMAL,
    tls=TlsSettings(
        SecurityMode.REQUIRED, "orders-server-tls", "orders-peers-tls", client_ca="clients-ca", cert_manager=True
    ),
    security='{"authorization": "Required"}',
    network=NetworkAccess(),
    rebalance=RebalanceJobSpec("delaycluster/delaycluster-rebalance:0.1.0", master="k8s://https://kubernetes"),
)


def one(objects: tuple[Json, ...], kind: str, name: str = "") -> Json:
    """The only object of a kind, or the one of that name."""
    found = [item for item in objects if item["kind"] == kind and name in ("", item["metadata"]["name"])]
    assert len(found) == 1, f"{len(found)} {kind} {name}"
    return found[0]


def stateful_set(view: ClusterView, live: Json | None = None) -> Json:
    return one(build(view, live), "StatefulSet")


def pod_spec(view: ClusterView) -> Any:
    return stateful_set(view)["spec"]["template"]["spec"]


def container(view: ClusterView) -> Any:
    return pod_spec(view)["containers"][0]
