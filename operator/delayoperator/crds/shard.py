"""DelayShard: one topic-queue's place in the cluster. Its fields are registry.model's, as registry.codec writes them.

Fields that this release does not know are kept: chart upgrades leave CRDs as they are, and an API server that dropped
a newer node's word would make it lie.
"""

from __future__ import annotations

from typing import Annotated

from delayregistry.model import MAX_QUEUES
from pydantic import ConfigDict, Field, StrictStr

from delayoperator.crds.base import ATOMIC, OPEN, TOPIC_NAME, Bool, Int, Model, NodeId, Text, list_map, rule, rules
from delayoperator.crds.status import ConditionStatus, Timestamp

COPIES = 64
"""Most entries of a list of copies or nodes: far above the 7 replicas and those that come and go while shards move.
What machines write has no limit on its length that could ever bite: that would stop a shard."""

_FIXED = tuple(
    rule(f"self.{field} == oldSelf.{field}", f"a shard's {field} can't be changed", field=f".{field}")
    for field in ("uid", "topic", "queue")
)
_GROWS = rule("self.epoch >= oldSelf.epoch", "epochs only grow", field=".epoch")


class SwitchoverModel(Model):
    """The operator asks the master to hand over."""

    to: NodeId = Field(description="The node that is to be master.")


class DelayShardSpec(Model):
    """The nodes that are to have the shard. The operator alone writes it."""

    model_config = ConfigDict(json_schema_extra=rules(*_FIXED, _GROWS, **OPEN))

    uid: Annotated[StrictStr, Field(pattern=r"^[0-9]{1,20}$", max_length=20)] = Field(
        description="Names this shard for ever, also in its nodes' directories; a number of 64 bits as text."
    )
    topic: Annotated[StrictStr, Field(pattern=TOPIC_NAME, max_length=50)] = Field(description="The topic.")
    queue: Int = Field(ge=0, le=MAX_QUEUES - 1, description="Which of the topic's queues: 0 is the first.")
    replicas: list[NodeId] = Field(
        min_length=1, max_length=COPIES, description="The nodes with a copy.", json_schema_extra=ATOMIC
    )
    master: NodeId | None = Field(None, description="The node that leads; absent until the first term.")
    epoch: Int = Field(
        0, ge=0, description="The number of the term: one more at each start of a term, also by the same node."
    )
    incarnation: Text | None = Field(
        None, description="The master's process, as its Lease names it: the term is its alone."
    )
    switchover: SwitchoverModel | None = Field(None, description="The master is asked to hand over.")
    target: list[NodeId] | None = Field(
        None,
        min_length=1,
        max_length=COPIES,
        description="The nodes that are to have the copies; absent: as `replicas`.",
        json_schema_extra=ATOMIC,
    )
    leaving: list[NodeId] | None = Field(
        None,
        max_length=COPIES,
        description="Of `replicas`: those that the master takes out of the in-sync set.",
        json_schema_extra=ATOMIC,
    )
    vacant: Bool = Field(
        False,
        description="The term before this epoch's was taken up and its process has ended: no lease need be waited out.",
    )
    unclean_epoch: Int = Field(
        0,
        ge=0,
        description="The epoch that may begin from a copy out of sync, which the annotation "
        "delaycluster.io/allow-unclean-failover allowed for this shard; 0: none.",
    )
    by_load: list[NodeId] | None = Field(
        None,
        max_length=COPIES,
        description="A rebalance moved the shard between these nodes, by the load: mere counts don't move it back.",
        json_schema_extra=ATOMIC,
    )


class HandoverModel(Model):
    """The master's answer to a switchover: it has stopped, and the other has all of its log."""

    epoch: Int = Field(ge=0, description="The term that ends.")
    log_end: Int = Field(ge=0, description="Where its log ends, in bytes.")


class ShardCondition(Model):
    """What is wrong with a shard. One that is over is removed: no conditions, nothing wrong."""

    type: Text = Field(
        description="Blocked: no term can be started. Held: a switchover or a move waits. Surplus: nobody asks "
        "for this shard any more. Risked: a term began though acknowledged messages may be missing."
    )
    status: ConditionStatus = Field(ConditionStatus.TRUE, description="True: it is so.")
    reason: Text = Field("", description="Why, in one CamelCase word; docs/operations.md says what to do.")
    message: str = Field("", description="Why, for people.")
    epoch: Int | None = Field(None, ge=0, description="The term that it speaks of; 0: none in particular.")
    last_transition_time: Timestamp | None = Field(None, description="When it was set, by the operator's clock.")


class DelayShardStatus(Model):
    """What the shard is. Written by its master; the conditions by the operator."""

    model_config = ConfigDict(json_schema_extra=OPEN)

    serving_epoch: Int | None = Field(None, ge=0, description="The term that is served: spec.epoch, or it is not yet.")
    incarnation: Text | None = Field(None, description="The process that serves, as in its Lease.")
    in_sync: list[Annotated[StrictStr, Field(max_length=1_024)]] | None = Field(
        None,
        max_length=COPIES,
        description="The copies that have every acknowledged message, by copy id.",
        json_schema_extra=ATOMIC,
    )
    handover: HandoverModel | None = Field(None, description="The answer to spec.switchover.")
    resigned: str | None = Field(None, description="The master serves no more in this epoch, and why.")
    revision: Int | None = Field(None, ge=0, description="Counts what the master has written here in its term.")
    conditions: list[ShardCondition] | None = Field(
        None, max_length=32, description="What is wrong, in the operator's view.", json_schema_extra=list_map("type")
    )


class DelayShard(Model):
    """One queue of a topic: who has its copies and who leads. Made by the operator; `kubectl get delayshards` is the
    map of a cluster. Read it, and leave it to the operator and the shard's master.
    """

    spec: DelayShardSpec = Field(description="The nodes that are to have the shard. The operator alone writes it.")
    status: DelayShardStatus | None = Field(None, description="What the shard is.")
