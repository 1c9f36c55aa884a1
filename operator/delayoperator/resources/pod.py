"""The template of the node pods: what runs, as whom, where, and how it is told to be well.

Whatever is in here restarts every node when it changes, so nothing is that needs not be: the fields of a DelayCluster
that do so are in `tests/resources/effects.py`.

The node's id comes from the pods' label `apps.kubernetes.io/pod-index`, which every Kubernetes has that takes the
definitions (`crds.definitions.OLDEST_KUBERNETES`). Without the label POD_INDEX is empty, and the process is `n`: no
node of the cluster, with no lease that it may renew, so it never serves.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from delayoperator.resources import names, tls
from delayoperator.resources.memory import memory_args
from delayoperator.resources.node_settings import settings_args
from delayoperator.resources.view import ClusterView, Json, PodSpec

USER = 10_001
SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "fsGroupChangePolicy": "OnRootMismatch",  # not file by file with each start
    "seccompProfile": {"type": "RuntimeDefault"},
}
DATA, TMP = "/data", "/tmp"
GRACE_SECONDS = 60  # a node hands its masters over (15 s at most), then writes a checkpoint of each copy
FROZEN_GRACE_SECONDS = 10  # one whose event loop stands still hands nothing over
DEFAULT_RESOURCES = {"requests": {"cpu": "100m", "memory": "256Mi"}}

READ_AT_START = names.PREFIX + "read-at-start"
"""Annotation of the pods: parts of the spec that a node reads once, so a change of them has to restart it."""

RESTARTED = names.PREFIX + "restarted"
"""Annotation of the pods: the value of the DelayCluster's delaycluster.io/restart that they were made for."""

HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
ZONE_VARIABLE = "DELAYNODE_ZONE"


def template(view: ClusterView, restarted: str = "") -> Json:
    pod_spec = view.pod
    return {
        "metadata": {
            "labels": {**pod_spec.labels, **names.labels(view.name)},
            "annotations": {
                **pod_spec.annotations,
                "kubectl.kubernetes.io/default-container": names.CONTAINER,
                READ_AT_START: _read_at_start(view),
                **({RESTARTED: restarted} if restarted else {}),
                **({names.SECURITY_MODE: view.tls.mode.value} if view.tls is not None else {}),
            },
        },
        "spec": {
            "serviceAccountName": names.node_account(view.name),
            "automountServiceAccountToken": True,  # the node follows its shards, and renews its lease
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": GRACE_SECONDS
            if pod_spec.grace_seconds is None
            else pod_spec.grace_seconds,
            "initContainers": [dict(one) for one in pod_spec.init_containers],
            "containers": [_container(view), *(dict(one) for one in pod_spec.sidecars)],
            "volumes": [
                {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
                *tls.volumes(view.tls),
                *(dict(one) for one in pod_spec.volumes),
            ],
            "hostAliases": [dict(one) for one in pod_spec.host_aliases],
            "dnsConfig": None if pod_spec.dns_config is None else dict(pod_spec.dns_config),
            "affinity": _affinity(view),
            "topologySpreadConstraints": _spread(view),
            "priorityClassName": pod_spec.priority_class,
            **identity_and_place(view),
        },
    }


def _read_at_start(view: ClusterView) -> str:
    """Of the ServiceAccount's annotations too: what a cloud makes of them comes into a pod when it is made."""
    account = json.dumps(dict(view.pod.account_annotations), sort_keys=True)
    return " ".join(
        [
            f"durability={view.cluster.durability}",
            f"leaseSeconds={view.cluster.lease_seconds}",
            *([f"account={hashlib.sha256(account.encode()).hexdigest()[:16]}"] if view.pod.account_annotations else []),
        ]
    )


def identity_and_place(view: ClusterView) -> Json:
    """As whom, where, and with which image pull secrets a pod runs: the nodes', and those of the rebalance job."""
    pod_spec = view.pod
    chosen = view.pod_security if pod_spec.security is None else pod_spec.security
    return {
        "securityContext": SECURITY if chosen is None else dict(chosen),
        "nodeSelector": dict(pod_spec.node_selector),
        "tolerations": [dict(toleration) for toleration in pod_spec.tolerations],
        "imagePullSecrets": [{"name": name} for name in pod_spec.image_pull_secrets],
    }


def pull_policy(pod_spec: PodSpec) -> Json:
    return {} if pod_spec.image_pull_policy is None else {"imagePullPolicy": pod_spec.image_pull_policy}


def restricted() -> Json:
    """The security context of every container."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _container(view: ClusterView) -> Json:
    resources = DEFAULT_RESOURCES if view.resources is None else view.resources
    secured = view.metrics_authentication
    return {
        "name": names.CONTAINER,
        "image": view.image,
        **pull_policy(view.pod),
        "command": ["delaynode"],
        "args": [
            "--node-id=n$(POD_INDEX)",
            f"--data={DATA}",
            f"--registry=kube:{view.namespace}/{view.name}",
            # On all addresses, of IPv6 and IPv4: kubectl port-forward comes by the loopback. $(POD_IP) may be an IPv6
            # address, which nobody puts between brackets here: the node reads it without.
            f"--listen=[::]:{names.GRPC_PORT}",
            f"--advertise=$(POD_IP):{names.GRPC_PORT}",
            f"--http=[::]:{names.HTTP_PORT}",
            f"--advertise-http=$(POD_IP):{names.HTTP_PORT}",
            f"--peer=$(POD_IP):{names.PEER_PORT}",
            *tls.args(view.tls),
            *([f"--metrics-listener={names.METRICS_PORT},tls,{secured}"] if secured else []),
            *memory_args(resources),
            *settings_args(view.settings),
        ],
        "env": _env(view),
        "ports": [
            *(
                {"name": name, "containerPort": port, "protocol": "TCP"}
                for name, port in tls.all_client_ports(view.tls)
            ),
            {"name": "peer", "containerPort": names.PEER_PORT, "protocol": "TCP"},
            {"name": "peer-udp", "containerPort": names.PEER_PORT, "protocol": "UDP"},
            *([{"name": "metrics", "containerPort": names.METRICS_PORT, "protocol": "TCP"}] if secured else []),
        ],
        "resources": {
            kind: {name: str(amount) for name, amount in amounts.items()} for kind, amounts in resources.items()
        },
        "volumeMounts": [
            {"name": names.VOLUME, "mountPath": DATA},
            {"name": "tmp", "mountPath": TMP},
            *tls.mounts(view.tls),
            *(dict(one) for one in view.pod.volume_mounts),
        ],
        "securityContext": restricted(),
        **_probes(),
    }


def _probes() -> Json:
    """/healthz is answered by the node's event loop and asks nobody: neither a hanging disk nor an API server that is
    away fails it, a loop that stands still or has lost a vital part does. All that may take long comes after it:
    waiting for the API server, sweeping up, opening shards.

    A node that stands still has lost its masters by then, within the lease: liveness has time.
    """
    return {
        "startupProbe": {
            **_get("/healthz"),
            "periodSeconds": 2,
            "timeoutSeconds": 5,
            "failureThreshold": 300,  # 10 minutes: it is answered as soon as Python has started, on whatever machine
        },
        "readinessProbe": {**_get("/readyz"), "periodSeconds": 5, "timeoutSeconds": 3, "failureThreshold": 2},
        "livenessProbe": {
            **_get("/healthz"),
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 6,
            "terminationGracePeriodSeconds": FROZEN_GRACE_SECONDS,
        },
    }


def _get(path: str) -> Json:
    return {"httpGet": {"path": path, "port": "http"}}


def _env(view: ClusterView) -> list[Any]:
    ours = [
        {"name": "POD_INDEX", "valueFrom": _field("metadata.labels['apps.kubernetes.io/pod-index']")},
        {"name": "POD_IP", "valueFrom": _field("status.podIP")},
        {"name": "POD_UID", "valueFrom": _field("metadata.uid")},
    ]
    taken = {item["name"] for item in ours}
    theirs = [dict(item) for item in view.pod.env if item["name"] not in taken]
    if not any(item["name"] == ZONE_VARIABLE for item in theirs):
        # Pods have it from their machines with Kubernetes 1.35 and later; before, it is empty, and no zone is known.
        # A variable, which an image of before there were zones does not mind.
        ours.append({"name": ZONE_VARIABLE, "valueFrom": _field(f"metadata.labels['{ZONE}']")})
    return [*ours, *theirs]


def _field(path: str) -> Json:
    return {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}


def _affinity(view: ClusterView) -> Json:
    """Given, it alone holds. Otherwise another machine is preferred, not required: a test cluster may have one."""
    if view.pod.affinity is not None:
        return dict(view.pod.affinity)
    term = {"labelSelector": {"matchLabels": names.selector(view.name)}, "topologyKey": HOST}
    preferred = [{"weight": 100, "podAffinityTerm": term}]
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


def _spread(view: ClusterView) -> list[Json]:
    own: Json = {"labelSelector": {"matchLabels": names.selector(view.name)}}
    if view.pod.topology_spread is None:
        return [{"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "ScheduleAnyway", **own}]
    return [{**own, **constraint} for constraint in view.pod.topology_spread]
