"""What the operator says about a cluster, and conditions as all three kinds have them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from delayoperator.crds.base import Int, Model, NodeId, Text, list_map
from delayoperator.resources.view import SecurityMode

Timestamp = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


class ConditionStatus(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class ConditionModel(Model):
    """A metav1.Condition."""

    type: Text = Field(description="What the condition speaks of.")
    status: ConditionStatus = Field(description="True, False or Unknown.")
    reason: Text = Field("", description="Why, in one CamelCase word that stays the same over releases.")
    message: str = Field("", description="Why, for people: what is waited for, which limit.")
    last_transition_time: Timestamp | None = Field(None, description="When `status` changed last.")
    observed_generation: Int | None = Field(
        None, ge=0, description="The metadata.generation that the condition is about."
    )


class ClaimingOperator(Model):
    """The operator that has the cluster; any other leaves it alone (delayoperator.election.claim)."""

    release: Text | None = Field(None, description="The name of its Deployment and of its Lease of the election.")
    namespace: Text | None = Field(None, description="Where that Lease is.")
    version: Text | None = Field(None, description="Its release. A newer operator takes the cluster from an older one.")


class NodeLocationModel(Model):
    """Where a node's pod runs."""

    node: NodeId = Field(description="The node's id; n2 is the pod NAME-2.")
    machine: Text | None = Field(None, description="The Kubernetes node that the pod is on.")
    zone: Text | None = Field(None, description="What may fail with that machine, where it is known.")


class AutoscalingStatus(Model):
    """What spec.autoscaling makes of the load to come."""

    desired: Int | None = Field(None, ge=1, description="How many nodes there should be now.")
    because: str = Field("", max_length=4_096, description="Why so many: the most that is to come, and when.")
    at: Timestamp | None = Field(
        None, description="When that was said; it is said again every five minutes, whether or not it changes."
    )


class DelayClusterStatus(Model):
    """What the cluster is, as its operator sees it."""

    observed_generation: Int | None = Field(
        None, ge=0, description="The metadata.generation of the spec that this status is about."
    )
    conditions: list[ConditionModel] | None = Field(
        None,
        max_length=32,
        description="Ready: every shard is served. Progressing: the operator is changing something. Degraded: "
        "copies are missing, or something needs a person. Rebalancing: moves of a plan are under way. Upgrading: nodes "
        "of two releases run, or a newer format is not final. Scaling, with spec.autoscaling: another number of nodes "
        "is needed.",
        json_schema_extra=list_map("type"),
    )
    nodes: Int | None = Field(None, ge=0, description="Pods that there are.")
    ready_nodes: Int | None = Field(None, ge=0, description="Pods that are ready.")
    shards: Int | None = Field(None, ge=0, description="Shards that the topics ask for.")
    served_shards: Int | None = Field(None, ge=0, description="Shards whose master serves.")
    in_sync_shards: Int | None = Field(None, ge=0, description="Shards that have all their copies in sync.")
    locations: list[NodeLocationModel] | None = Field(
        None,
        max_length=1_000,
        description="Where the nodes run. Copies of a shard are kept in different zones, else on different machines, "
        "as far as there are any.",
        json_schema_extra=list_map("node"),
    )
    selector: str | None = Field(
        None, max_length=1_024, description="The pods' label selector, for the scale subresource."
    )
    nodes_version: Int | None = Field(
        None,
        ge=1,
        description="The format that the nodes write their files in: the newest that every node reads. An image whose "
        "release does not read it can't be gone back to.",
    )
    version: Text | None = Field(
        None,
        description="The release of the operator that looks after the cluster: the nodes' too, unless spec.image names "
        "another.",
    )
    autoscaling: AutoscalingStatus | None = Field(
        None, description="How many nodes the load to come needs, with spec.autoscaling: an autoscaler follows it."
    )
    operator: ClaimingOperator | None = Field(
        None,
        description="The operator that has claimed the cluster. Remove it to hand the cluster to another one that "
        "watches this namespace.",
    )
    security: SecurityMode | None = Field(
        None, description="The security mode that holds for every node: while nodes are restarted, the weakest."
    )
    image: Text | None = Field(None, description="The image that the nodes run, or are being moved to.")
