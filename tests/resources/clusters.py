"""The clusters that the tests build objects for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from delayapi.units import DAY_MS
from delayoperator.resources import ClusterView, build
from delayoperator.resources.view import (
    ConsoleView,
    Json,
    NetworkAccess,
    NodeSettings,
    PodSpec,
    RebalanceJobSpec,
    SecurityMode,
    ServiceView,
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
        volumes=({"name": "issuer", "configMap": {"name": "issuer", "optional": False}},),
        volume_mounts=({"name": "issuer", "mountPath": "/etc/issuer", "readOnly": True},),
        sidecars=(
            {
                "name": "logs", "image": "registry.example.com/logs:1", "ports": [{"containerPort": 9000}],
                "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": False}],
                "livenessProbe": {"tcpSocket": {"port": 9000}, "initialDelaySeconds": 0},
                "resources": {"limits": {"memory": "1024Mi"}}, "stdin": False,
            },
        ),
        init_containers=(
            {"name": "proxy", "image": "registry.example.com/proxy:1", "restartPolicy": "Always",
             "env": [{"name": "EMPTY", "value": ""}]},
        ),
        account_annotations={"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/delay"},
        host_aliases=({"ip": "10.0.0.7", "hostnames": ["issuer.example.com"]},),
        dns_config={"options": [{"name": "ndots", "value": "2"}]},
        env=({"name": "GRPC_VERBOSITY", "value": "error"}, {"name": "POD_IP", "value": "10.0.0.1"}),
    ),
    settings=NodeSettings(max_connections=20_000, min_free_bytes=1 << 30, connection_age_s=1_800),
    service=ServiceView(
        labels={"team": "payments"},
        annotations={"service.beta.kubernetes.io/aws-load-balancer-scheme": "internal"},
        spec={"type": "LoadBalancer", "loadBalancerSourceRanges": ["10.0.0.0/8"], "externalTrafficPolicy": "Local"},
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
    console=ConsoleView("delaycluster/delaycluster-operator:0.1.0", hosts=("console.example.com",)),
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
