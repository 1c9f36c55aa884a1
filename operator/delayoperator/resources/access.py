"""What the node pods may do at the API server: write the status of their own cluster's shards and their own leases.

Reading can't be limited to names: RBAC knows no labels, and a list or a watch has no name. So a node may read all
DelayShards and Leases of its namespace, its own settings and its DelayCluster; no Secrets, no Pods.

A Role names each shard: 100 bytes at worst, so the 10,000 that a cluster may ask for are 1 MB; etcd takes 1.5 MiB.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from delayoperator.resources import names
from delayoperator.resources.view import ClusterView, Json

RBAC = "rbac.authorization.k8s.io"


def node_access(view: ClusterView) -> tuple[Json, ...]:
    shards = [names.shard_object(view.name, shard) for shard in view.all_shards]
    leases = [names.node_lease(view.name, node) for node in view.cluster.node_ids]
    rules = [
        _rule("delaycluster.io", "delayshards", ["get", "list", "watch"]),
        # An empty list of names would mean every name.
        *([_rule("delaycluster.io", "delayshards/status", ["patch", "update"], shards)] if shards else []),
        _rule("coordination.k8s.io", "leases", ["get", "list", "watch"]),
        _rule("coordination.k8s.io", "leases", ["patch", "update"], leases),
        # What its status says of nodes to come: server/doors/keda.
        _rule("delaycluster.io", "delayclusters", ["get"], [view.name]),
        # A watch of one object: with the field selector metadata.name.
        _rule("", "configmaps", ["get", "watch"], [names.settings_map(view.name), names.security_map(view.name)]),
    ]
    return _access(view, names.node_account(view.name), rules, view.pod.account_annotations)


def job_access(view: ClusterView) -> tuple[Json, ...]:
    """The job reads the map and proposes: it moves nothing. Its executors, where it has any, are pods that it makes."""
    rules = [
        _rule("delaycluster.io", "delayclusters", ["get"], [view.name]),
        _rule("delaycluster.io", "delayshards", ["get", "list", "watch"]),
        _rule("delaycluster.io", "delayrebalances", ["get", "create"]),
        _rule("delaycluster.io", "delayrebalances/status", ["patch"]),
        _rule("coordination.k8s.io", "leases", ["get", "list"]),
        _rule("", "configmaps", ["get", "watch"], [names.settings_map(view.name)]),
    ]
    if view.rebalance is not None and view.rebalance.executors:
        # RBAC can't say which pods. By `execute` the chart's admission policy knows who may have its own alone.
        rules += [
            _rule("", "pods", ["get", "list", "watch", "create", "delete", "deletecollection"]),
            _rule("delaycluster.io", "delayrebalances", ["execute"]),
        ]
    return _access(view, names.rebalance(view.name), rules)


def _access(
    view: ClusterView, name: str, rules: list[Json], annotations: Mapping[str, str] = MappingProxyType({})
) -> tuple[Json, ...]:
    """Account, Role and RoleBinding. The pods ask for the account's token themselves; nothing else gets it by
    chance. annotations: of the account."""
    meta = names.metadata(view, name)
    of_account = {**meta, "annotations": dict(annotations)}
    return (
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": of_account, "automountServiceAccountToken": False},
        {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": meta, "rules": rules},
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": view.namespace}],
        },
    )


def _rule(group: str, resource: str, verbs: list[str], resource_names: list[str] | None = None) -> Json:
    return {"apiGroups": [group], "resources": [resource], "verbs": verbs, "resourceNames": resource_names}
