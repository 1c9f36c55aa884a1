"""The kinds of objects that the operator touches, and where the API server has them."""

from __future__ import annotations

from dataclasses import dataclass

GROUP, VERSION = "delaycluster.io", "v1alpha1"
CLUSTER_LABEL = f"{GROUP}/cluster"


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    group: str  # "" is the core group
    version: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str, name: str = "") -> str:
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        inside = f"/namespaces/{namespace}" if self.namespaced else ""
        return f"{root}{inside}/{self.plural}" + (f"/{name}" if name else "")


DELAY_CLUSTER = Kind("DelayCluster", GROUP, VERSION, "delayclusters")
DELAY_SHARD = Kind("DelayShard", GROUP, VERSION, "delayshards")
DELAY_REBALANCE = Kind("DelayRebalance", GROUP, VERSION, "delayrebalances")
STATEFUL_SET = Kind("StatefulSet", "apps", "v1", "statefulsets")
SERVICE = Kind("Service", "", "v1", "services")
CONFIG_MAP = Kind("ConfigMap", "", "v1", "configmaps")
SERVICE_ACCOUNT = Kind("ServiceAccount", "", "v1", "serviceaccounts")
ROLE = Kind("Role", "rbac.authorization.k8s.io", "v1", "roles")
ROLE_BINDING = Kind("RoleBinding", "rbac.authorization.k8s.io", "v1", "rolebindings")
DISRUPTION_BUDGET = Kind("PodDisruptionBudget", "policy", "v1", "poddisruptionbudgets")
LEASE = Kind("Lease", "coordination.k8s.io", "v1", "leases")
POD_MONITOR = Kind("PodMonitor", "monitoring.coreos.com", "v1", "podmonitors")
CRON_JOB = Kind("CronJob", "batch", "v1", "cronjobs")
JOB = Kind("Job", "batch", "v1", "jobs")
POD = Kind("Pod", "", "v1", "pods")
CLAIM = Kind("PersistentVolumeClaim", "", "v1", "persistentvolumeclaims")
STORAGE_CLASS = Kind("StorageClass", "storage.k8s.io", "v1", "storageclasses", namespaced=False)
EVENT = Kind("Event", "", "v1", "events")

# What a cluster owns and is compared with what it should be. PodMonitor is only there where Prometheus' operator is.
OWNED = (
    CONFIG_MAP,
    SERVICE_ACCOUNT,
    ROLE,
    ROLE_BINDING,
    LEASE,
    SERVICE,
    DISRUPTION_BUDGET,
    STATEFUL_SET,
    POD_MONITOR,
    CRON_JOB,
)
OPTIONAL = frozenset({POD_MONITOR, CRON_JOB})
# Of these, what is not wished for any more is deleted; of the others there is always the same set.
PRUNED = frozenset({LEASE, POD_MONITOR, CRON_JOB, SERVICE_ACCOUNT, ROLE, ROLE_BINDING})


def kind_of(body: dict[str, object]) -> Kind:
    """Raises KeyError for a kind that no cluster owns."""
    return _BY_NAME[str(body["apiVersion"]), str(body["kind"])]


_BY_NAME = {(kind.api_version, kind.name): kind for kind in OWNED}
