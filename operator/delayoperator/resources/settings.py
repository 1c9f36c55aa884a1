"""What the nodes read of the cluster, the leases that they renew, and how their metrics are found."""

from __future__ import annotations

from delayregistry import codec

from delayoperator.resources import names
from delayoperator.resources.view import ClusterView, Json


def settings_map(view: ClusterView) -> Json:
    """The spec, as the registry writes them: nodes see only a spec that was found good."""
    meta = names.metadata(view, names.settings_map(view.name))
    data = {names.SETTINGS_KEY: codec.dumps(view.cluster)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


def security_map(view: ClusterView) -> Json:
    """Who may call and do what, as nodes follow it. Of its own: a node that asks nobody never reads it."""
    meta = names.metadata(view, names.security_map(view.name))
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {names.SECURITY_KEY: view.security}}


def node_lease(view: ClusterView, node: str) -> Json:
    """Made by the operator, empty: the node writes the rest, and may not make one itself."""
    meta = names.metadata(view, names.node_lease(view.name, node))
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta}


def pod_monitor(view: ClusterView) -> Json:
    """For the Prometheus operator, where its CRD is installed. Series are labelled as those of our operator are."""
    cluster = {"action": "replace", "targetLabel": "cluster", "replacement": view.name}
    meta = names.metadata(view, view.name)
    port = {"port": "metrics", "scheme": "https"} if view.metrics_authentication else {"port": "http"}
    more = dict(view.monitor_endpoint)
    relabelings = [cluster, *more.pop("relabelings", [])]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": {**meta, "labels": {**view.monitor_labels, **meta["labels"]}},
        "spec": {
            "selector": {"matchLabels": names.selector(view.name)},
            "podMetricsEndpoints": [{**port, "path": "/metrics", **more, "relabelings": relabelings}],
        },
    }
