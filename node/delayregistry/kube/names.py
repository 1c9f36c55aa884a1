"""The names, paths and labels of a cluster's objects in Kubernetes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

GROUP_VERSION = "delaycluster.io/v1alpha1"
PREFIX = "delaycluster.io/"  # of labels and annotations
CLUSTER_LABEL = PREFIX + "cluster"
TOPIC_LABEL = PREFIX + "topic"
SETTINGS_KEY = "cluster.json"
SECURITY_KEY = "security.json"
ALLOW_UNCLEAN = PREFIX + "allow-unclean-failover"
"""Annotation of a DelayShard: its next term may begin from a copy out of sync. The value says who allows it."""

NODE_MANAGER = "delaynode"  # field managers
OPERATOR_MANAGER = "delaycluster-operator"


@dataclass(frozen=True, slots=True)
class OwnerReference:
    """The object that a cluster's objects go with, as their controller: its DelayCluster."""

    name: str
    uid: str
    kind: str = "DelayCluster"
    api_version: str = GROUP_VERSION

    def to_json(self) -> dict[str, Any]:
        return {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one cluster's objects. Without a namespace, the paths are those of all namespaces."""

    namespace: str
    cluster: str

    @property
    def shards(self) -> str:
        return f"/apis/{GROUP_VERSION}{self._inside}/delayshards"

    @property
    def delay_cluster(self) -> str:
        """Of the DelayCluster itself."""
        return f"/apis/{GROUP_VERSION}{self._inside}/delayclusters/{self.cluster}"

    @property
    def leases(self) -> str:
        return f"/apis/coordination.k8s.io/v1{self._inside}/leases"

    @property
    def config_maps(self) -> str:
        return f"/api/v1{self._inside}/configmaps"

    @property
    def _inside(self) -> str:
        return f"/namespaces/{self.namespace}" if self.namespace else ""

    @property
    def settings(self) -> str:
        """The ConfigMap with the cluster's spec."""
        return f"{self.cluster}-cluster"

    @property
    def security(self) -> str:
        """The ConfigMap with the security document."""
        return f"{self.cluster}-security"

    @property
    def selector(self) -> str:
        """Chooses what is this cluster's."""
        return f"{CLUSTER_LABEL}={self.cluster}"

    @property
    def labels(self) -> dict[str, str]:
        return {
            CLUSTER_LABEL: self.cluster,
            "app.kubernetes.io/name": "delaycluster",
            "app.kubernetes.io/instance": self.cluster,
            "app.kubernetes.io/component": "node",
            "app.kubernetes.io/managed-by": OPERATOR_MANAGER,
        }

    def object(self, part: str) -> str:
        """The name of a shard's DelayShard, by the shard's name, or of a node's Lease, by the node's id.

        A dot, which neither may have: `a` with `b-c-0` and `a-b` with `c-0` are two.
        """
        return f"{self.cluster}.{part}"

    def part(self, name: str) -> str | None:
        """The other way; None for a name that is not of this form."""
        prefix = f"{self.cluster}."
        return name.removeprefix(prefix) if name.startswith(prefix) and len(name) > len(prefix) else None
