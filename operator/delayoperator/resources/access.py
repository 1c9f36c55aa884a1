"""What the node pods may do at the API server: write the status of their own cluster's shards and their own leases.

Reading can't be limited to names: RBAC knows no labels, and a list or a watch has no name. So a node may read all
DelayShards and Leases of its namespace, and its own settings; no Secrets, no Pods.

A Role names each shard: 100 bytes at worst, so the 10,000 that a cluster may ask for are 1 MB; etcd takes 1.5 MiB.
"""

from __future__ import annotations

from delayoperator.resources import names
from delayoperator.resources.view import ClusterView, Json

RBAC = "rbac.authorization.k8s.io"


def service_account(view: ClusterView) -> Json:
    """The node pods ask for its token themselves; nothing else gets it by chance."""
    return {"apiVersion": "v1", "kind": "ServiceAccount", **_meta(view), "automountServiceAccountToken": False}


def role(view: ClusterView) -> Json:
    shards = [names.shard_object(view.name, shard) for shard in view.all_shards]
    leases = [names.node_lease(view.name, node) for node in view.cluster.node_ids]
    rules = [
        _rule("delaycluster.io", "delayshards", ["get", "list", "watch"]),
        # An empty list of names would mean every name.
        *([_rule("delaycluster.io", "delayshards/status", ["patch", "update"], shards)] if shards else []),
        _rule("coordination.k8s.io", "leases", ["get", "list"]),
        _rule("coordination.k8s.io", "leases", ["patch", "update"], leases),
        # A watch of one object: with the field selector metadata.name.
        _rule("", "configmaps", ["get", "watch"], [names.settings_map(view.name)]),
    ]
    return {"apiVersion": f"{RBAC}/v1", "kind": "Role", **_meta(view), "rules": rules}


def role_binding(view: ClusterView) -> Json:
    name = names.node_account(view.name)
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        **_meta(view),
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": view.namespace}],
    }


def job_account(view: ClusterView) -> Json:
    """Of the rebalance job."""
    return {"apiVersion": "v1", "kind": "ServiceAccount", **_job_meta(view), "automountServiceAccountToken": False}


def job_role(view: ClusterView) -> Json:
    """The job reads the map and proposes: it moves nothing. Its executors, where it has any, are pods that it makes."""
    rules = [
        _rule("delaycluster.io", "delayclusters", ["get"], [view.name]),
        _rule("delaycluster.io", "delayshards", ["get", "list", "watch"]),
        _rule("delaycluster.io", "delayrebalances", ["get", "create"]),
        _rule("delaycluster.io", "delayrebalances/status", ["patch"]),
        _rule("coordination.k8s.io", "leases", ["get", "list"]),
        _rule("", "configmaps", ["get", "watch"], [names.settings_map(view.name)]),
        _rule("", "pods", ["list"]),  # which machine, thus which zone, a node runs in
    ]
    if view.rebalance is not None and view.rebalance.executors:
        verbs = ["get", "list", "watch", "create", "patch", "delete", "deletecollection"]
        rules += [
            _rule("", resource, verbs) for resource in ("pods", "services", "configmaps", "persistentvolumeclaims")
        ]
    return {"apiVersion": f"{RBAC}/v1", "kind": "Role", **_job_meta(view), "rules": rules}


def job_role_binding(view: ClusterView) -> Json:
    name = names.rebalance(view.name)
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        **_job_meta(view),
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": view.namespace}],
    }


def _job_meta(view: ClusterView) -> Json:
    return {"metadata": names.metadata(view, names.rebalance(view.name))}


def _meta(view: ClusterView) -> Json:
    return {"metadata": names.metadata(view, names.node_account(view.name))}


def _rule(group: str, resource: str, verbs: list[str], resource_names: list[str] | None = None) -> Json:
    return {"apiGroups": [group], "resources": [resource], "verbs": verbs, "resourceNames": resource_names}
