"""The resources that the fake API server knows, and its discovery documents about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Kind:
    """status: it has a status subresource, so writes to the object itself leave its status alone."""

    group: str  # "" for the core group
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    status: bool = False

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """Its name in error messages: `leases.coordination.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


KINDS = (
    Kind("", "v1", "configmaps", "ConfigMap"),
    Kind("", "v1", "endpoints", "Endpoints"),
    Kind("", "v1", "events", "Event"),
    Kind("", "v1", "namespaces", "Namespace", namespaced=False, status=True),
    Kind("", "v1", "nodes", "Node", namespaced=False, status=True),
    Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", status=True),
    Kind("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False, status=True),
    Kind("", "v1", "pods", "Pod", status=True),
    Kind("", "v1", "secrets", "Secret"),
    Kind("", "v1", "serviceaccounts", "ServiceAccount"),
    Kind("", "v1", "services", "Service", status=True),
    Kind("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False, True),
    Kind("apps", "v1", "controllerrevisions", "ControllerRevision"),
    Kind("apps", "v1", "deployments", "Deployment", status=True),
    Kind("apps", "v1", "statefulsets", "StatefulSet", status=True),
    Kind("batch", "v1", "cronjobs", "CronJob", status=True),
    Kind("batch", "v1", "jobs", "Job", status=True),
    Kind("cert-manager.io", "v1", "certificaterequests", "CertificateRequest", status=True),
    Kind("cert-manager.io", "v1", "certificates", "Certificate", status=True),
    Kind("cert-manager.io", "v1", "issuers", "Issuer", status=True),
    Kind("coordination.k8s.io", "v1", "leases", "Lease"),
    Kind("delaycluster.io", "v1alpha1", "delayclusters", "DelayCluster", status=True),
    Kind("delaycluster.io", "v1alpha1", "delayrebalances", "DelayRebalance", status=True),
    Kind("delaycluster.io", "v1alpha1", "delayschedules", "DelaySchedule", status=True),
    Kind("delaycluster.io", "v1alpha1", "delayshards", "DelayShard", status=True),
    Kind("delaycluster.io", "v1alpha1", "delaysinks", "DelaySink", status=True),
    Kind("delaycluster.io", "v1alpha1", "delaytopics", "DelayTopic", status=True),
    Kind("delaycluster.io", "v1alpha1", "delayusers", "DelayUser", status=True),
    Kind("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice"),
    Kind("events.k8s.io", "v1", "events", "Event"),
    Kind("monitoring.coreos.com", "v1", "podmonitors", "PodMonitor"),
    Kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy"),
    Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", status=True),
    Kind("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    Kind("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False),
    Kind("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding"),
    Kind("rbac.authorization.k8s.io", "v1", "roles", "Role"),
    Kind("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False),
)

_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def find(plural: str, group: str | None = None) -> Kind:
    """The kind with this plural; `group` where two kinds have the same plural. Raises KeyError."""
    for kind in KINDS:
        if kind.plural == plural and group in (None, kind.group):
            return kind
    raise KeyError(f"{plural}.{group}")


def core_versions() -> dict[str, Any]:
    return {"kind": "APIVersions", "versions": ["v1"]}


def groups() -> dict[str, Any]:
    found = {(kind.group, kind.version) for kind in KINDS if kind.group}
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(*each) for each in sorted(found)]}


def group(name: str) -> dict[str, Any]:
    """The discovery document of a group. Raises KeyError."""
    version = {kind.group: kind.version for kind in KINDS if kind.group}[name]
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, version)}


def resources(name: str, version: str) -> dict[str, Any]:
    """The discovery document of a group's version. Raises KeyError for an unknown group."""
    found = [kind for kind in KINDS if (kind.group, kind.version) == (name, version)]
    if not found:
        raise KeyError(name)
    listed = [_resource(kind, kind.plural, _VERBS) for kind in found]
    listed += [_resource(kind, f"{kind.plural}/status", ["get", "patch", "update"]) for kind in found if kind.status]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": found[0].api_version,
        "resources": sorted(listed, key=lambda each: str(each["name"])),
    }


def _group(name: str, version: str) -> dict[str, Any]:
    known = {"groupVersion": f"{name}/{version}", "version": version}
    return {"name": name, "versions": [known], "preferredVersion": known}


def _resource(kind: Kind, name: str, verbs: list[str]) -> dict[str, Any]:
    return {
        "name": name,
        "singularName": kind.kind.lower() if "/" not in name else "",
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": verbs,
    }
