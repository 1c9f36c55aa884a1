"""DelayTopic: a topic as an object of the team that owns it, with the fields and rules of `spec.topics[]`.

The operator merges the DelayTopics that count into the topics of their cluster (topic_merge.py).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from pydantic import ConfigDict, Field, StrictStr

from delayoperator.crds import limits
from delayoperator.crds.base import TOPIC_NAME, Int, Model, list_map, rule, rules
from delayoperator.crds.cluster import TopicSettings
from delayoperator.crds.status import ConditionModel
from delayoperator.crds.tenancy import FIXED_CLUSTER, ClusterReference

_FIXED_NAME: Final = rule(
    "has(self.name) == has(oldSelf.name) && (!has(self.name) || self.name == oldSelf.name)",
    "name can't be changed: another name is another topic",
    field=".name",
)
_NAMED: Final = rule(
    f"has(self.spec.name) || (self.metadata.name.size() <= 50 && self.metadata.name.matches('{TOPIC_NAME}'))",
    "the topic is called as its DelayTopic: 1 to 50 of a-z, 0-9 and '-', or spec.name says how",
)


class DeletionPolicy(StrEnum):
    RETAIN = "Retain"
    DELETE = "Delete"


class TopicReason(StrEnum):
    """Why a DelayTopic is Ready, or is not."""

    SERVING = "Serving"  # each of its shards has a master
    SHARDS_COMING = "ShardsComing"  # the cluster has the topic; some of its shards are not served just now
    NOT_APPLIED = "NotApplied"  # the cluster's nodes are not told of it yet
    INVALID_SPEC = "InvalidSpec"  # what was accepted before stays in force
    NAME_TAKEN = "NameTaken"  # by spec.topics, by an older DelayTopic or by what another namespace has left
    NAMESPACE_NOT_ALLOWED = "NamespaceNotAllowed"  # spec.allowedNamespaces of the cluster does not have it
    NAMESPACE_UNKNOWN = "NamespaceUnknown"  # the operator can't read the namespace's labels
    OVER_LIMIT = "OverLimit"  # spec.allowedNamespaces.limits of the cluster
    CLUSTER_FULL = "ClusterFull"  # it has as many topics or queues as a cluster may have
    DELETION_WAITS = "DeletionWaits"  # with deletionPolicy Delete: for consumers, for a node or for a person's word


class DelayTopicSpec(TopicSettings):
    """The topic, and whose it is."""

    model_config = ConfigDict(json_schema_extra=rules(FIXED_CLUSTER, _FIXED_NAME, *limits.topic()))

    cluster: ClusterReference = Field(description="The DelayCluster that has the topic. Can't be changed.")
    name: Annotated[StrictStr, Field(pattern=TOPIC_NAME, max_length=50)] | None = Field(
        None,
        description="The topic's name, as producers and consumers say it; absent: the DelayTopic's. One name is one "
        "topic of a cluster, whatever the namespace. Can't be changed.",
    )
    deletion_policy: DeletionPolicy = Field(
        DeletionPolicy.RETAIN,
        description="What becomes of the messages when the DelayTopic is deleted. Retain: they stay, and so do the "
        "shards. Delete: the shards go once nothing waits in them and every group is done with what was released; "
        "until then the DelayTopic stays, and says what is missing. Retain takes that back while it waits.",
    )


class DelayTopicStatus(Model):
    """What became of it."""

    observed_generation: Int | None = Field(None, ge=0, description="The metadata.generation that this is about.")
    conditions: list[ConditionModel] | None = Field(
        None,
        max_length=32,
        description="Ready: each of its shards has a master that serves.",
        json_schema_extra=list_map("type"),
    )
    shards: Int | None = Field(None, ge=0, description="Shards of the topic: one for each queue.")
    served_shards: Int | None = Field(None, ge=0, description="Shards whose master serves.")
    pending: Int | None = Field(
        None,
        ge=0,
        description="About how many messages wait for their due, to two digits and as of a minute ago. Absent: not "
        "known. Metrics have it exactly.",
    )
    due_within_hour: Int | None = Field(
        None, ge=0, description="About how many of these are due within the hour, likewise."
    )
    oldest_unfinished: StrictStr | None = Field(
        None,
        max_length=40,
        description="About when the oldest message was released that some group is not done with. Absent: there is "
        "none, it was released within the last minute, or it is not known.",
        json_schema_extra={"format": "date-time"},
    )


class DelayTopic(Model):
    """A topic of a DelayCluster, as an object of its own: of the team that owns it, in its namespace, where the cluster
    allows that. It has the fields of DelayCluster.spec.topics. Deleted, the topic goes, and its messages stay, unless
    deletionPolicy says otherwise.
    """

    model_config = ConfigDict(json_schema_extra=rules(_NAMED))

    spec: DelayTopicSpec = Field(description="The topic, and whose it is.")
    status: DelayTopicStatus | None = Field(None, description="What became of it.")
