"""The kinds of objects that the operator touches, and where the API server has them."""

from __future__ import annotations

from dataclasses import dataclass

GROUP, VERSION = "delaycluster.io", "v1alpha1"
CLUSTER_LABEL = f"{GROUP}/cluster"


@dataclass(frozen=True, slots=True)
class ObjectKind:
    name: str
    group: str  # "" is the core group
    version: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str, name: str = "") -> str:
        """namespace: "" for the collection of all namespaces."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        inside = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{root}{inside}/{self.plural}" + (f"/{name}" if name else "")


DELAY_CLUSTER = ObjectKind("DelayCluster", GROUP, VERSION, "delayclusters")
DELAY_SHARD = ObjectKind("DelayShard", GROUP, VERSION, "delayshards")
DELAY_REBALANCE = ObjectKind("DelayRebalance", GROUP, VERSION, "delayrebalances")
DELAY_USER = ObjectKind("DelayUser", GROUP, VERSION, "delayusers")
DELAY_SINK = ObjectKind("DelaySink", GROUP, VERSION, "delaysinks")
DELAY_TOPIC = ObjectKind("DelayTopic", GROUP, VERSION, "delaytopics")
DELAY_SCHEDULE = ObjectKind("DelaySchedule", GROUP, VERSION, "delayschedules")
STATEFUL_SET = ObjectKind("StatefulSet", "apps", "v1", "statefulsets")
DEPLOYMENT = ObjectKind("Deployment", "apps", "v1", "deployments")  # of a DelaySink, and the console's
SERVICE = ObjectKind("Service", "", "v1", "services")
CONFIG_MAP = ObjectKind("ConfigMap", "", "v1", "configmaps")
SERVICE_ACCOUNT = ObjectKind("ServiceAccount", "", "v1", "serviceaccounts")
ROLE = ObjectKind("Role", "rbac.authorization.k8s.io", "v1", "roles")
ROLE_BINDING = ObjectKind("RoleBinding", "rbac.authorization.k8s.io", "v1", "rolebindings")
DISRUPTION_BUDGET = ObjectKind("PodDisruptionBudget", "policy", "v1", "poddisruptionbudgets")
NETWORK_POLICY = ObjectKind("NetworkPolicy", "networking.k8s.io", "v1", "networkpolicies")
SECRET = ObjectKind("Secret", "", "v1", "secrets")  # of a cluster's own CA alone: kube/own_ca.py
ISSUER = ObjectKind("Issuer", "cert-manager.io", "v1", "issuers")
CERTIFICATE = ObjectKind("Certificate", "cert-manager.io", "v1", "certificates")
CERTIFICATE_REQUEST = ObjectKind("CertificateRequest", "cert-manager.io", "v1", "certificaterequests")
LEASE = ObjectKind("Lease", "coordination.k8s.io", "v1", "leases")
POD_MONITOR = ObjectKind("PodMonitor", "monitoring.coreos.com", "v1", "podmonitors")
CRON_JOB = ObjectKind("CronJob", "batch", "v1", "cronjobs")
JOB = ObjectKind("Job", "batch", "v1", "jobs")
POD = ObjectKind("Pod", "", "v1", "pods")
CLAIM = ObjectKind("PersistentVolumeClaim", "", "v1", "persistentvolumeclaims")
STORAGE_CLASS = ObjectKind("StorageClass", "storage.k8s.io", "v1", "storageclasses", namespaced=False)
NODE = ObjectKind("Node", "", "v1", "nodes", namespaced=False)  # a machine, in our words
NAMESPACE = ObjectKind("Namespace", "", "v1", "namespaces", namespaced=False)
EVENT = ObjectKind("Event", "", "v1", "events")

# What a cluster owns and is compared with what it should be. PodMonitor is only there where Prometheus' operator is,
# Issuer and Certificate where cert-manager is.
OWNED = (
    CONFIG_MAP,
    SERVICE_ACCOUNT,
    ROLE,
    ROLE_BINDING,
    LEASE,
    SERVICE,
    DISRUPTION_BUDGET,
    NETWORK_POLICY,
    ISSUER,
    CERTIFICATE,
    STATEFUL_SET,
    POD_MONITOR,
    CRON_JOB,
    DEPLOYMENT,
)
OPTIONAL = frozenset({POD_MONITOR, CRON_JOB, NETWORK_POLICY, ISSUER, CERTIFICATE, DEPLOYMENT})
# The operator deletes objects of these kinds that are not wished for any more; of the others it has a fixed set.
PRUNED = frozenset(
    {
        LEASE, POD_MONITOR, CRON_JOB, NETWORK_POLICY, ISSUER, CERTIFICATE, SERVICE_ACCOUNT, ROLE, ROLE_BINDING,
        SERVICE, DEPLOYMENT,
    }
)  # fmt: skip


def kind_of(body: dict[str, object]) -> ObjectKind:
    """Raises KeyError for a kind that no cluster owns."""
    return _BY_NAME[str(body["apiVersion"]), str(body["kind"])]


_BY_NAME = {(kind.api_version, kind.name): kind for kind in OWNED}
