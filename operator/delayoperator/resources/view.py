"""What the builders read of a DelayCluster: a spec that was found good already, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from delayregistry.model import ClusterSpec, shard_name

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class VolumeRequest:
    """size: a Kubernetes quantity. class_name: None means the default class, "" means none (Kubernetes' own words)."""

    size: str = "10Gi"
    class_name: str | None = None
    delete_with_cluster: bool = False


@dataclass(frozen=True, slots=True)
class PodSpec:
    """spec.podTemplate. What core/v1 has a shape for is in that shape, as JSON."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    affinity: Mapping[str, Any] | None = None  # None: other machines are preferred
    tolerations: tuple[Mapping[str, Any], ...] = ()
    topology_spread: tuple[Mapping[str, Any], ...] | None = None  # None: other zones are preferred
    priority_class: str | None = None
    image_pull_secrets: tuple[str, ...] = ()  # names
    image_pull_policy: str | None = None  # None: Kubernetes' choice, by the image's tag
    security: Mapping[str, Any] | None = None  # None: pod_security of the view
    grace_seconds: int | None = None
    env: tuple[Mapping[str, Any], ...] = ()
    volumes: tuple[Mapping[str, Any], ...] = ()
    volume_mounts: tuple[Mapping[str, Any], ...] = ()  # of the node's container
    sidecars: tuple[Mapping[str, Any], ...] = ()
    init_containers: tuple[Mapping[str, Any], ...] = ()
    account_annotations: Mapping[str, str] = field(default_factory=dict)
    host_aliases: tuple[Mapping[str, Any], ...] = ()
    dns_config: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """spec.settings. None: the node's own, or what its memory limit makes of it."""

    max_connections: int | None = None
    min_free_bytes: int | None = None
    log_segment_bytes: int | None = None
    connection_age_s: int | None = None
    window_budget: int | None = None  # messages
    unread_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ServiceView:
    """spec.service. spec: more of the Service's own, as core/v1 has it."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=lambda: {"type": "ClusterIP"})


@dataclass(frozen=True, slots=True)
class RebalanceJobSpec:
    """spec.rebalance, as far as it is about the job. image: never empty. history: a claim's name, and a path in it."""

    image: str
    schedule: str | None = None  # as a CronJob's, UTC; None: only when it is asked for
    master: str = "local[*]"
    resources: Mapping[str, Mapping[str, str | int | float]] | None = None  # None: the operator's own
    conf: Mapping[str, str] = field(default_factory=dict)
    history: tuple[str, str] | None = None

    @property
    def executors(self) -> bool:
        """It runs its work in pods of its own."""
        return self.master.startswith("k8s://")


@dataclass(frozen=True, slots=True)
class ConsoleProvider:
    """Where the console's users sign in. secret: a Secret's name and a key of it; None: the client is public. ca: PEM;
    "": the public CAs."""

    issuer: str
    client_id: str
    secret: tuple[str, str] | None = None
    scopes: tuple[str, ...] = ()
    ca: str = ""


@dataclass(frozen=True, slots=True)
class ConsoleView:
    """spec.console. image: never empty. certificate: a Secret; "": the one that cert-manager makes."""

    image: str
    allow_changes: bool = False
    hosts: tuple[str, ...] = ()
    certificate: str = ""
    oidc: ConsoleProvider | None = None
    resources: Mapping[str, Mapping[str, str | int | float]] | None = None  # None: the operator's own


@dataclass(frozen=True, slots=True)
class NetworkAccess:
    """spec.networkPolicy: peers as networking.k8s.io/v1 has them, of port 7070, of port 7170 and of the console. None:
    everybody."""

    clients: tuple[Json, ...] | None = None
    monitoring: tuple[Json, ...] | None = None
    console: tuple[Json, ...] | None = None


class SecurityMode(StrEnum):
    """Of a cluster's pods, from weak to strong: delayoperator.cluster.security."""

    OFF = "Off"
    PERMISSIVE = "Permissive"
    REQUIRED = "Required"


@dataclass(frozen=True, slots=True)
class CertificateIssuer:
    """An issuer of cert-manager."""

    name: str
    kind: str = "Issuer"
    group: str = "cert-manager.io"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """mode: of the pods that are made from now on; not Off. server, peers: Secrets with the nodes' certificates.
    client_ca: likewise, of who may issue clients' certificates; "": no listener mtls. cert_manager: it makes the
    certificates; issuer: that of `server`, None: the cluster's own CA. own_ca: the operator makes them.
    """

    mode: SecurityMode
    server: str
    peers: str
    client_ca: str = ""
    cert_manager: bool = False
    issuer: CertificateIssuer | None = None
    own_ca: bool = False


@dataclass(frozen=True, slots=True)
class ClusterView:
    """cluster: the spec as the nodes get it; its `nodes` is the number of pods. image: never empty.

    resources: requests and limits of the node's container, by their names in core/v1; None: the operator's own.
    shards: names of all shards that exist, wanted or not; those of the topics need not be among them.
    security: the security document; "": there is none. restart: a value that is new makes the pods anew; "": as it is.
    network: None: everybody reaches every port. operator_namespace: of the operator's pods; "": not known.
    tls: None: there is none.
    pod_security: of pods whose template names no security context; None: the operator's own choice.
    """

    namespace: str
    uid: str
    cluster: ClusterSpec
    image: str
    storage: VolumeRequest = field(default_factory=VolumeRequest)
    resources: Mapping[str, Mapping[str, str | int | float]] | None = None
    pod: PodSpec = field(default_factory=PodSpec)
    settings: NodeSettings = field(default_factory=NodeSettings)
    service: ServiceView = field(default_factory=ServiceView)
    pod_monitor: bool = False
    monitor_labels: Mapping[str, str] = field(default_factory=dict)  # of the PodMonitor
    monitor_endpoint: Mapping[str, Any] = field(default_factory=dict)  # more of its endpoint
    metrics_authentication: str = ""  # token or mtls, of a port for metrics; "": there is none
    shards: tuple[str, ...] = ()
    rebalance: RebalanceJobSpec | None = None
    console: ConsoleView | None = None
    restart: str = ""
    security: str = ""
    network: NetworkAccess | None = None
    operator_namespace: str = ""
    tls: TlsSettings | None = None
    pod_security: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        return self.cluster.name

    @property
    def all_shards(self) -> tuple[str, ...]:
        """The shards that exist and those that the topics ask for."""
        wanted = (shard_name(topic.name, queue) for topic in self.cluster.topics for queue in range(topic.queues))
        return tuple(sorted({*self.shards, *wanted}))
