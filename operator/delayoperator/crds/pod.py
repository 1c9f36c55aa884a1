"""What people may say about the pods: core/v1's own shapes, handed on to the StatefulSet as they are."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import ConfigDict, Field, StrictStr

from delayoperator.crds import limits
from delayoperator.crds.base import (
    ATOMIC,
    ATOMIC_MAP,
    DNS_LABEL,
    OPEN,
    Int,
    Model,
    ResourceAmount,
    Text,
    list_map,
    rules,
)

LabelKey = Annotated[StrictStr, Field(max_length=63)]
Labels = dict[str, LabelKey]
Anything = dict[str, Any]


class Resources(Model):
    """The resources of a container of core/v1."""

    requests: dict[str, ResourceAmount] | None = Field(
        None,
        description="What the scheduler sets aside for the container, for example cpu: 500m and memory: 1Gi.",
        max_length=16,
    )
    limits: dict[str, ResourceAmount] | None = Field(
        None,
        description="What the container may use at most. The node's own bounds are set from the memory limit (without "
        "one they suit 1Gi), so that it refuses work instead of being killed. With a CPU limit it is late at times.",
        max_length=16,
    )


class TolerationOperator(StrEnum):
    EXISTS = "Exists"
    EQUAL = "Equal"


class TaintEffect(StrEnum):
    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class Toleration(Model):
    """A Toleration of core/v1."""

    key: Text | None = Field(None, description="The taint's key; absent with operator Exists: every taint.")
    operator: TolerationOperator | None = Field(None, description="Exists, or Equal (the default).")
    value: Text | None = Field(None, description="The taint's value, with operator Equal.")
    effect: TaintEffect | None = Field(None, description="The taint's effect; absent: all of them.")
    toleration_seconds: Int | None = Field(
        None, description="With effect NoExecute: for so long the pod stays although the taint is there."
    )


class WhenUnsatisfiable(StrEnum):
    DO_NOT_SCHEDULE = "DoNotSchedule"
    SCHEDULE_ANYWAY = "ScheduleAnyway"


class Honor(StrEnum):
    HONOR = "Honor"
    IGNORE = "Ignore"


class TopologySpreadConstraint(Model):
    """A TopologySpreadConstraint of core/v1."""

    max_skew: Int = Field(1, ge=1, description="The largest difference of pods between two domains.")
    topology_key: Text = Field(
        description="The label of Kubernetes nodes whose values are the domains, for example "
        "topology.kubernetes.io/zone."
    )
    when_unsatisfiable: WhenUnsatisfiable = Field(
        WhenUnsatisfiable.SCHEDULE_ANYWAY,
        description="DoNotSchedule: the pod waits. ScheduleAnyway: it is a preference.",
    )
    label_selector: Anything | None = Field(
        None, description="Which pods are counted; absent: this cluster's own.", json_schema_extra=OPEN
    )
    match_label_keys: list[Text] | None = Field(
        None,
        max_length=16,
        description="Keys of pod labels whose values are added to the selector.",
        json_schema_extra=ATOMIC,
    )
    min_domains: Int | None = Field(
        None, ge=1, description="With DoNotSchedule: fewer domains count as having no pods."
    )
    node_affinity_policy: Honor | None = Field(None, description="Whether the pods' node affinity limits the domains.")
    node_taints_policy: Honor | None = Field(None, description="Whether taints limit the domains.")


class LocalReference(Model):
    name: Annotated[StrictStr, Field(min_length=1, max_length=253)] = Field(
        description="The object's name, in the cluster's namespace."
    )


class _Open(Model):
    """An object of core/v1 of which we read a field or two. The rest is handed on."""

    model_config = ConfigDict(extra="allow", json_schema_extra=OPEN)


DnsLabel = Annotated[StrictStr, Field(pattern=DNS_LABEL, max_length=63)]


class Volume(_Open):
    """A Volume of core/v1."""

    name: DnsLabel = Field(description="The volume's name, as mounts say it.")


class VolumeMount(_Open):
    """A VolumeMount of core/v1."""

    mount_path: Annotated[StrictStr, Field(min_length=1, max_length=512)] = Field(
        description="Where it is seen in the container, such as /etc/issuer."
    )


class Container(_Open):
    """A Container of core/v1."""

    name: DnsLabel = Field(description="The container's name.")


class HostAlias(_Open):
    """A HostAlias of core/v1."""

    ip: Annotated[StrictStr, Field(min_length=1, max_length=64)] = Field(description="The address of its hostnames.")


class EnvVar(Model):
    """An EnvVar of core/v1."""

    name: Annotated[StrictStr, Field(min_length=1, max_length=256)] = Field(description="The variable's name.")
    value: Annotated[StrictStr, Field(max_length=32_768)] | None = Field(None, description="The variable's value.")
    value_from: Anything | None = Field(
        None,
        description="Where the value comes from (fieldRef, configMapKeyRef, secretKeyRef...), as in core/v1.",
        json_schema_extra=OPEN,
    )


class Affinity(Model):
    """An Affinity of core/v1."""

    node_affinity: Anything | None = Field(None, description="As core/v1 NodeAffinity.", json_schema_extra=OPEN)
    pod_affinity: Anything | None = Field(None, description="As core/v1 PodAffinity.", json_schema_extra=OPEN)
    pod_anti_affinity: Anything | None = Field(None, description="As core/v1 PodAntiAffinity.", json_schema_extra=OPEN)


class PullPolicy(StrEnum):
    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class PodTemplate(Model):
    """Changes of it restart the nodes, one after the other, each when all copies are in sync."""

    labels: Labels | None = Field(
        None,
        description="Labels of the pods, besides the operator's.",
        max_length=64,
        json_schema_extra=rules(limits.ours("labels")),
    )
    annotations: dict[str, Annotated[StrictStr, Field(max_length=65_536)]] | None = Field(
        None, description="Annotations of the pods.", max_length=64, json_schema_extra=rules(limits.ours("annotations"))
    )
    node_selector: Labels | None = Field(
        None,
        description="Labels that a Kubernetes node must have to run a pod.",
        max_length=64,
        json_schema_extra=ATOMIC_MAP,
    )
    affinity: Affinity | None = Field(
        None,
        description="Absent: another machine is preferred for each pod. Given: it alone holds.",
    )
    tolerations: list[Toleration] | None = Field(
        None, max_length=64, description="Taints that the pods live with.", json_schema_extra=ATOMIC
    )
    topology_spread_constraints: list[TopologySpreadConstraint] | None = Field(
        None,
        max_length=16,
        description="How the pods spread. Absent: other zones are preferred.",
        json_schema_extra=list_map("topologyKey", "whenUnsatisfiable"),
    )
    priority_class_name: Annotated[StrictStr, Field(max_length=253)] | None = Field(
        None, description="The pods' PriorityClass."
    )
    image_pull_secrets: list[LocalReference] | None = Field(
        None, max_length=16, description="Secrets to pull the image with.", json_schema_extra=list_map("name")
    )
    image_pull_policy: PullPolicy | None = Field(
        None,
        description="When the image is pulled: Always, IfNotPresent or Never. Absent: as Kubernetes has it, Always for "
        "the tag latest, else IfNotPresent, so that an image that was pushed again under its tag is not seen.",
    )
    security_context: Anything | None = Field(
        None,
        description="A PodSecurityContext of core/v1, in place of the operator's (user, group and fsGroup 10001), for "
        "the nodes' pods and the rebalance job's. Without ids in it Kubernetes chooses them, as OpenShift's "
        "restricted-v2 demands.",
        json_schema_extra=OPEN,
    )
    termination_grace_period_seconds: Int | None = Field(
        None,
        ge=5,
        le=3_600,
        description="How long a node has to hand its masters over and to write what spares it work at the next start; "
        "absent: 60.",
    )
    env: list[EnvVar] | None = Field(
        None,
        max_length=128,
        description="More environment variables of the node's container. POD_INDEX, POD_IP and POD_UID are the "
        "operator's.",
        json_schema_extra=rules(*limits.ENV, **list_map("name")),
    )
    volumes: list[Volume] | None = Field(
        None,
        max_length=64,
        description="More volumes of the nodes' pods, as in core/v1. The operator's own are "
        f"{', '.join(limits.TAKEN_VOLUMES)}.",
        json_schema_extra=rules(limits.VOLUMES, **list_map("name")),
    )
    volume_mounts: list[VolumeMount] | None = Field(
        None,
        max_length=64,
        description="What the node's container sees of the volumes, as in core/v1; not below /data, /tmp or "
        "/etc/delaycluster.",
        json_schema_extra=rules(limits.MOUNTS, **list_map("mountPath")),
    )
    sidecars: list[Container] | None = Field(
        None,
        max_length=16,
        description="Containers beside the node's, as in core/v1. What the node needs until its end, such as a proxy, "
        "belongs in initContainers with restartPolicy Always: those end after it.",
        json_schema_extra=rules(limits.CONTAINERS, **list_map("name")),
    )
    init_containers: list[Container] | None = Field(
        None,
        max_length=16,
        description="Containers that end before the node's starts, or with restartPolicy Always run until after its "
        "end, as in core/v1.",
        json_schema_extra=rules(limits.CONTAINERS, **list_map("name")),
    )
    service_account_annotations: dict[str, Annotated[StrictStr, Field(max_length=4_096)]] | None = Field(
        None,
        description="Annotations of the nodes' ServiceAccount, by which clouds give it an identity, such as "
        "eks.amazonaws.com/role-arn.",
        max_length=64,
        json_schema_extra=rules(limits.ours("annotations")),
    )
    host_aliases: list[HostAlias] | None = Field(
        None,
        max_length=64,
        description="Lines of the pods' /etc/hosts, as in core/v1.",
        json_schema_extra=list_map("ip"),
    )
    dns_config: Anything | None = Field(
        None, description="A PodDNSConfig of core/v1: name servers, search domains, options.", json_schema_extra=OPEN
    )
