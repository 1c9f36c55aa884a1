"""What the cluster's objects are called, how they are labelled, whose they are, and the ports that they agree on."""

from __future__ import annotations

from delayoperator.resources.view import ClusterView, Json

MANAGER = "delaycluster-operator"
"""Field manager of everything that the operator applies."""

API_VERSION = "delaycluster.io/v1alpha1"
PREFIX = "delaycluster.io/"
CLUSTER_LABEL = PREFIX + "cluster"
SETTINGS_KEY = "cluster.json"
SECURITY_KEY = "security.json"
SECURITY_MODE = PREFIX + "security"
"""Annotation of the pods: the SecurityMode that they were made for; absent: Off."""

TLS = PREFIX + "tls"
"""Annotation of the StatefulSet: the TlsSettings that it was made by, for when spec.security does not say them."""

VOLUME = "data"
CONTAINER = "node"

GRPC_PORT = 7070
HTTP_PORT = 7170
METRICS_PORT = 7171  # where /metrics has a port of its own
PEER_PORT = 7270  # TCP: shipping, UDP: heartbeats
TOKENS_PORT, MTLS_PORT, INTERNAL_PORT = 7071, 7072, 7073  # gRPC by TLS: delaynode.listener_options
SINK_PORT = 7180  # of a sink's pod: health, metrics, and what it says of itself
HTTP_TOKENS_PORT, HTTP_MTLS_PORT = 7081, 7082  # MessageService over HTTP by TLS; in plain text it is at HTTP_PORT


def client_service(cluster: str) -> str:
    """Not the bare name, which an application of the same name has for its own Service."""
    return f"{cluster}-client"


def headless_service(cluster: str) -> str:
    return f"{cluster}-nodes"


def network_policy(cluster: str) -> str:
    """Not the bare name, by which people were told to make one of their own."""
    return f"{cluster}-nodes"


def sink_network_policy(cluster: str) -> str:
    return f"{cluster}-sinks"


def node_account(cluster: str) -> str:
    """ServiceAccount, Role and RoleBinding of the node pods."""
    return f"{cluster}-node"


def rebalance(cluster: str) -> str:
    """The CronJob, its ServiceAccount, Role and RoleBinding, and the DelayRebalance that its runs share."""
    return f"{cluster}-rebalance"


def console(cluster: str) -> str:
    """The console's Deployment, Service, ServiceAccount and NetworkPolicy."""
    return f"{cluster}-console"


def console_certificate(cluster: str) -> str:
    return f"{cluster}-console-tls"


def settings_map(cluster: str) -> str:
    return f"{cluster}-cluster"


def security_map(cluster: str) -> str:
    return f"{cluster}-security"


def own_ca(cluster: str) -> str:
    """The Issuer of the cluster's own CA, the CA's Certificate, and the Secret with its key."""
    return f"{cluster}-ca"


def self_signed(cluster: str) -> str:
    """The Issuer of the CA's Certificate."""
    return f"{cluster}-self-signed"


def server_certificate(cluster: str) -> str:
    return f"{cluster}-server-tls"


def peer_certificate(cluster: str) -> str:
    return f"{cluster}-peers-tls"


def node_lease(cluster: str, node: str) -> str:
    return f"{cluster}.{node}"


def shard_object(cluster: str, shard: str) -> str:
    """A dot: `a` with topic `b-c` and `a-b` with topic `c` are two."""
    return f"{cluster}.{shard}"


def selector(cluster: str) -> dict[str, str]:
    """The labels that choose this cluster's pods. Fixed for ever: a StatefulSet's selector can't change."""
    return {CLUSTER_LABEL: cluster, "app.kubernetes.io/component": "node"}


def labels(cluster: str) -> dict[str, str]:
    return {
        **selector(cluster),
        "app.kubernetes.io/name": "delaycluster",
        "app.kubernetes.io/instance": cluster,
        "app.kubernetes.io/managed-by": MANAGER,
    }


def job_selector(cluster: str) -> dict[str, str]:
    return {CLUSTER_LABEL: cluster, "app.kubernetes.io/component": "rebalance"}


def job_labels(cluster: str) -> dict[str, str]:
    """The labels of the rebalance job's pods, which are no nodes: no Service and no disruption budget counts them."""
    return {**labels(cluster), **job_selector(cluster)}


def sink_selector(cluster: str) -> dict[str, str]:
    """The pods of all DelaySinks of the cluster."""
    return {CLUSTER_LABEL: cluster, "app.kubernetes.io/component": "sink"}


def console_selector(cluster: str) -> dict[str, str]:
    """Fixed for ever: a Deployment's selector can't change."""
    return {CLUSTER_LABEL: cluster, "app.kubernetes.io/component": "console"}


def client_pods(cluster: str) -> Json:
    """A selector of the cluster's own pods that are its clients: the rebalance job's, the sinks' and the console's."""
    component = {"key": "app.kubernetes.io/component", "operator": "In", "values": ["console", "rebalance", "sink"]}
    return {"matchLabels": {CLUSTER_LABEL: cluster}, "matchExpressions": [component]}


def owner(view: ClusterView) -> Json:
    return {
        "apiVersion": API_VERSION,
        "kind": "DelayCluster",
        "name": view.name,
        "uid": view.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def metadata(view: ClusterView, name: str) -> Json:
    """The owner reference of every owned object: it goes with the cluster."""
    return {
        "name": name,
        "namespace": view.namespace,
        "labels": labels(view.name),
        "ownerReferences": [owner(view)],
    }
