"""DelayCluster: what people write. Every default that is about messages stands in the schema, so that it is kept with
the object: a later release with another default changes no cluster that exists. What may follow the operator (the
image, what a pod asks for) has no default here and is filled in when the objects are built.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from delayapi.log_levels import LogLevel
from delayregistry.model import (
    MAX_HORIZON_DAYS,
    MAX_QUEUES,
    MAX_QUOTA,
    MIN_LEASE_SECONDS,
    BootstrapVolumes,
    Delivery,
    Durability,
    TopicType,
)
from pydantic import ConfigDict, Field, StrictStr

from delayoperator.crds import limits
from delayoperator.crds.autoscaling import Autoscaling
from delayoperator.crds.base import (
    ATOMIC,
    LIST_SET,
    OPEN,
    TOPIC_NAME,
    Bool,
    Duration,
    Image,
    Int,
    Model,
    NodeId,
    Quantity,
    Text,
    list_map,
    rules,
)
from delayoperator.crds.console import ISSUER_KNOWN, SECURITY_WANTED, ConsoleModel
from delayoperator.crds.node_settings import NodeSettingsModel
from delayoperator.crds.pod import Anything, Labels, PodTemplate, Resources
from delayoperator.crds.rebalancing import Rebalancing
from delayoperator.crds.security import SecurityModel
from delayoperator.crds.service import ClientService
from delayoperator.crds.status import DelayClusterStatus
from delayoperator.crds.tenancy import AllowedNamespaces


class Quotas(Model):
    """What a topic takes, of all its producers together. Each queue has an equal part, which its master enforces; what
    is over is refused with QUOTA, and stored messages are never touched. Absent: no limit."""

    pending_messages: Int | None = Field(
        None, ge=1, le=MAX_QUOTA, description="The most messages that wait for their due."
    )
    pending_bytes: Int | None = Field(
        None, ge=1, le=MAX_QUOTA, description="The most bytes of messages that wait for their due."
    )
    enqueue_per_second: Int | None = Field(
        None,
        ge=1,
        le=MAX_QUOTA,
        description="The most messages a second that are taken; one second's may come at once.",
    )


class TopicSettings(Model):
    """What a topic guarantees and takes, wherever it is asked for."""

    queues: Int = Field(
        8,
        ge=1,
        le=MAX_QUEUES,
        description="Into how many queues (shards) the topic is cut: each has its own master, so this is how far the "
        "topic can spread over nodes. Can grow, never shrink; 10,000 in all topics together.",
    )
    type: TopicType = Field(
        TopicType.MIXED,
        description="What the topic takes: Delay (only messages with a delay or a due time), Normal (only messages "
        "that are due at once), Mixed (both). Others are refused with WRONG_TOPIC_TYPE. Can't be changed.",
    )
    retention: Duration = Field(
        "3d",
        description="How long a released message is kept for groups that have not consumed it, such as 12h or 3d; "
        "with no group at all, too. 1ms to 3660d.",
    )
    dlq_retention: Duration = Field(
        "7d", description="How long a dead letter is kept since it died or was redriven. 1ms to 3660d."
    )
    max_attempts: Int = Field(
        16,
        ge=1,
        le=1_000,
        description="After so many deliveries without an ack a message is a dead letter of the group.",
    )
    max_delay: Duration | None = Field(
        None,
        description="The longest delay that is accepted, such as 30m or 14d; absent: the cluster's horizonDays, which "
        "it may not exceed. A longer one is refused with DELAY_TOO_LONG.",
    )
    max_release_per_second: Int | None = Field(
        None,
        ge=1,
        le=1_000_000_000,
        description="The most messages a second that fall due and are released, for the whole topic; the rest waits in "
        "order. Absent: no limit. It protects consumers from a herd of messages with one due time.",
    )
    quotas: Quotas | None = Field(None, description="What the topic takes. Absent: no limits.")
    deduplicate: Bool = Field(
        False,
        description="Whether a message that its sender has given an id is stored once: one with an id that was stored "
        "within the last day is answered as the first was. A shard knows 10,000,000 ids at most, 32 bytes each.",
    )


class Topic(TopicSettings):
    """A topic and what it guarantees."""

    model_config = ConfigDict(json_schema_extra=rules(*limits.TOPIC))

    name: Annotated[StrictStr, Field(pattern=TOPIC_NAME, max_length=50)] = Field(
        description="The topic's name, as producers and consumers say it: a-z, 0-9 and '-', at most 50. It can't be "
        "changed: another name is another topic."
    )


class Failover(Model):
    """When a node counts as lost, and what is done then. The defaults suit most clusters."""

    model_config = ConfigDict(json_schema_extra=rules(*limits.FAILOVER))

    lease_seconds: Int = Field(
        3,
        ge=MIN_LEASE_SECONDS,
        le=3_600,
        description="A failover after a node was lost takes about this long. Less is quicker, and more easily mistaken "
        "about a node that is only slow; 2 is the least. 10 suits an API server that is slow to answer. A change "
        "restarts the nodes, one after the other.",
    )
    lag_seconds: Int = Field(
        10,
        ge=1,
        le=3_600,
        description="A copy that is so far behind its master is taken out of the in-sync set, so that commits need not "
        "wait for it. It catches up by itself and joins again.",
    )
    replace_after_seconds: Int = Field(
        600,
        ge=1,
        le=2_592_000,
        description="A node that was away for so long gets its copies replaced on other nodes. More than leaseSeconds.",
    )
    allow_unclean: Bool = Field(
        False,
        description="Lets a copy that is not in sync become master when no other is left. What it costs: acknowledged "
        "messages may be lost, delivered again or delivered after they were cancelled, and a former master that is "
        "only cut off serves on beside the new one. Turn it on for one shard's sake, and off again.",
    )


class BootstrapModel(Model):
    """How shards begin."""

    volumes: BootstrapVolumes = Field(
        BootstrapVolumes.ADOPT,
        description="What becomes of copies that are on the nodes' volumes when a topic's shard has no DelayShard: the "
        "DelayCluster was deleted and applied again, or a DelayShard was, or etcd restored. Adopt: go on from them, if "
        "they are of one history and of a cluster of this name; else the condition OrphanedCopies says what waits for "
        "your word. Refuse: always wait for your word (`delayctl adopt`). Ignore: make an empty shard beside them.",
    )


class Finalize(StrEnum):
    AUTOMATIC = "Automatic"
    MANUAL = "Manual"


class UpgradeModel(Model):
    """How the nodes come to a newer release."""

    finalize: Finalize = Field(
        Finalize.AUTOMATIC,
        description="When a newer format of files is written. Automatic: once every node reads it. Manual: not yet, so "
        "that you can go back to the release before; set Automatic when you won't.",
    )


class StorageModel(Model):
    """A volume for each node."""

    model_config = ConfigDict(json_schema_extra=rules(*limits.STORAGE))

    size: Quantity = Field(
        "10Gi",
        description="The size of each node's volume, at least 1Gi. Can grow where the storage class allows it, never "
        "shrink. At least 1.4 x messages x (their bytes + 200) x replicas / (nodes - 1), and 1.25Gi for each copy of a "
        "busy queue on a node, 0.25Gi of a quiet one; docs/operations.md#what-a-node-needs has it in full.",
    )
    storage_class_name: Annotated[StrictStr, Field(max_length=253)] | None = Field(
        None,
        description="The StorageClass of the volumes; absent: Kubernetes' default one; '': none. Can't be changed.",
    )
    delete_with_cluster: Bool = Field(
        False,
        description="Whether the volumes go with the DelayCluster. false: they stay, with every message on them; a "
        "DelayCluster of the same name takes them up again, see bootstrap.volumes.",
    )


class MetricsAuthentication(StrEnum):
    TOKEN = "Token"
    MUTUAL_TLS = "MutualTLS"


class Monitoring(Model):
    """How the cluster is watched."""

    metrics_authentication: MetricsAuthentication | None = Field(
        None,
        description="Gives /metrics a port of its own, 7171, by TLS, for who proves in this way who it is and may "
        "Describe all topics. It counts where security.mode is Permissive or Required; MutualTLS with "
        "certificates.clientCA. Absent: on 7170, for everybody. A change restarts the "
        "nodes, one after the other.",
    )

    pod_monitor: Bool = Field(
        False, description="Makes a PodMonitor of the Prometheus operator (its CRD must be there) for the nodes."
    )
    labels: Labels | None = Field(
        None,
        description="Labels of the PodMonitor, besides the operator's: what your Prometheus selects PodMonitors by, "
        "such as release: kube-prometheus-stack.",
        max_length=64,
        json_schema_extra=rules(limits.ours("labels")),
    )
    endpoint: Anything | None = Field(
        None,
        description="More of the PodMonitor's endpoint, as the Prometheus operator has it: interval, tlsConfig, "
        "authorization and so on.",
        json_schema_extra=OPEN,
    )


class IpBlock(Model):
    """An IPBlock of networking.k8s.io/v1."""

    cidr: Text = Field(description="The addresses, such as 10.1.0.0/16.")
    except_: list[Text] | None = Field(
        None, alias="except", max_length=64, description="Those of them that are left out.", json_schema_extra=ATOMIC
    )


class NetworkPeer(Model):
    """A NetworkPolicyPeer of networking.k8s.io/v1."""

    model_config = ConfigDict(json_schema_extra=rules(limits.NETWORK_PEER))

    pod_selector: Anything | None = Field(
        None,
        description="Pods by their labels: of the namespaces that namespaceSelector says, else of the cluster's own.",
        json_schema_extra=OPEN,
    )
    namespace_selector: Anything | None = Field(
        None, description="Namespaces by their labels; {}: all.", json_schema_extra=OPEN
    )
    ip_block: IpBlock | None = Field(None, description="Addresses outside of the cluster.")


class NetworkPolicyModel(Model):
    """Who reaches the ports of nodes, sinks and the console. Replication and heartbeats (7270) are the nodes' alone."""

    clients: list[NetworkPeer] | None = Field(
        None,
        max_length=64,
        description="Who reaches the ports for clients (7070, and 7170 for HTTP in plain text, where /metrics is too "
        "unless it has a port of its own by monitoring.metricsAuthentication), beside the nodes, the operator and the "
        "rebalance job. Absent: everybody.",
        json_schema_extra=ATOMIC,
    )
    monitoring: list[NetworkPeer] | None = Field(
        None,
        max_length=64,
        description="Who reaches health and metrics of nodes (7170) and of sinks (7180), beside the kubelet and, of "
        "sinks, the operator. Absent: everybody.",
        json_schema_extra=ATOMIC,
    )
    console: list[NetworkPeer] | None = Field(
        None,
        max_length=64,
        description="Who reaches the console, where there is one. Absent: everybody.",
        json_schema_extra=ATOMIC,
    )


class DelayClusterSpec(Model):
    """What the cluster is to be. Everything has a default: `spec: {}` is a cluster of three nodes without topics."""

    model_config = ConfigDict(json_schema_extra=rules(*limits.SPEC, ISSUER_KNOWN, SECURITY_WANTED))

    nodes: Int = Field(
        3,
        ge=1,
        le=1_000,
        description="How many nodes (pods). Scale with kubectl scale: a node that leaves is emptied first, and "
        "the pods are fewer only then. At least as many as `replicas`.",
    )
    image: Image | None = Field(
        None,
        description="The nodes' image. Absent: the operator's own, so that the nodes are upgraded with the operator. A "
        "new one is rolled out a node at a time, each handing its masters over first.",
    )
    replicas: Int = Field(
        2,
        ge=1,
        le=7,
        description="Copies of each shard, on as many nodes. With 2, any one node may be lost; with 1, its disk is the "
        "only copy. At most 7 and at most `nodes`. Copies are made and dropped while the cluster serves.",
    )
    min_in_sync: Int = Field(
        1,
        ge=1,
        le=7,
        description="With fewer copies in sync, new messages are refused (NOT_ENOUGH_REPLICAS) until there are enough "
        "again. 1 prefers to go on with the last copy. At most `replicas`.",
    )
    delivery: Delivery = Field(
        Delivery.MASTER,
        description="Who hands messages out: Master, or MasterAndSlave: in-sync slaves serve Fetch too.",
    )
    durability: Durability = Field(
        Durability.FSYNC,
        description="When a message counts as stored on a node: Fsync, on its disk; Async, in its page cache: "
        "quicker on slow disks, and what all copies' machines had only there is lost when they lose power "
        "together. A change restarts the nodes, one after the other.",
    )
    horizon_days: Int = Field(
        40,
        ge=1,
        le=MAX_HORIZON_DAYS,
        description="The longest delay of any message, in days: 1 to 3660. Can grow, never shrink; a shard keeps the "
        "horizon that it was made with.",
    )
    paused: Bool = Field(
        False,
        description="The operator changes no object, pod or volume, and makes and moves no shard. A shard that loses "
        "its master still gets another one. What the nodes do goes on. The status says Paused. "
        "The annotation delaycluster.io/paused=WHO does the same.",
    )
    topics: list[Topic] | None = Field(
        None,
        max_length=limits.MAX_TOPICS,
        description="The cluster's topics, known by name: several teams can each apply their own with `kubectl "
        "apply --server-side --field-manager=TEAM`. A topic that is taken away is served on: its shards say "
        "Surplus.",
        json_schema_extra=list_map("name"),
    )
    allowed_namespaces: AllowedNamespaces | None = Field(
        None,
        description="Whose DelayTopics and DelayUsers count for the cluster. Absent: only those of its own namespace.",
    )
    failover: Failover = Field(Failover.model_validate({}), description="When a node counts as lost.")
    drained: list[NodeId] | None = Field(
        None,
        max_length=1_000,
        description="Nodes that are to be emptied and get nothing new, such as n2 (pod NAME-2). At least `replicas` "
        "others must be left. An id that there is no node for does nothing. "
        "The annotation delaycluster.io/drain-n2=WHO does the same, and GitOps leaves it alone.",
        json_schema_extra=LIST_SET,
    )
    bootstrap: BootstrapModel = Field(BootstrapModel.model_validate({}), description="How shards begin.")
    upgrade: UpgradeModel = Field(UpgradeModel.model_validate({}), description="How the nodes come to a newer release.")
    storage: StorageModel = Field(StorageModel.model_validate({}), description="The nodes' volumes.")
    resources: Resources | None = Field(
        None,
        description="CPU and memory of the node's container. Absent: requests of 100m and 256Mi, no limits, and it "
        "takes up to 1Gi under load; in production say what it may have. A memory limit is at least 384Mi.",
        json_schema_extra=rules(limits.MEMORY),
    )
    pod_template: PodTemplate | None = Field(
        None, description="Where pods run and what they carry. A change restarts the nodes, one after the other."
    )
    settings: NodeSettingsModel | None = Field(
        None, description="Settings of the nodes. A change restarts them, one after the other."
    )
    service: ClientService | None = Field(None, description="The Service NAME-client. Absent: of type ClusterIP.")
    monitoring: Monitoring | None = Field(None, description="How the cluster is watched.")
    network_policy: NetworkPolicyModel | None = Field(
        None,
        description="A NetworkPolicy for the nodes' pods, which counts where the network of your Kubernetes enforces "
        "them. Absent: none, and whoever reaches a pod reaches all of its ports.",
    )
    log_level: LogLevel | None = Field(
        None,
        description="The least level of events in the nodes' logs: debug, info, warning or error. The nodes follow a "
        "change within a second, without a restart. Absent: info, or what DELAYCLUSTER_LOG_LEVEL in podTemplate.env "
        "says.",
    )
    security: SecurityModel | None = Field(
        None,
        description="Who may reach the nodes, and how. Absent: a new cluster is Required, with certificates of "
        "cert-manager, where that is installed, else Off; one that is there stays as it is. status.security says it.",
    )
    console: ConsoleModel | None = Field(
        None,
        description="The console in a browser, by TLS, at the Service NAME-console. Absent: none; `delayctl console` "
        "is one on your own machine.",
    )
    rebalance: Rebalancing | None = Field(
        None,
        description="A job that looks at the load to come (the nodes' timer wheels) and proposes moves, as a "
        "DelayRebalance. Absent: none.",
    )
    autoscaling: Autoscaling | None = Field(
        None, description="Says in status.autoscaling how many nodes the load to come needs. Absent: nothing is said."
    )


class DelayCluster(Model):
    """Messages that are delivered at a time that their producer named. A cluster of nodes keeps them, copied and on
    disk, and hands each out when it is due: never early, and never lost with a single node.

    Field by field: kubectl explain delaycluster.spec --recursive
    """

    model_config = ConfigDict(json_schema_extra=rules(*limits.NAME))

    spec: DelayClusterSpec = Field(description="What the cluster is to be.")
    status: DelayClusterStatus | None = Field(None, description="What the cluster is, as its operator sees it.")
