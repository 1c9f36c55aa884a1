"""plan(desired, observed) -> actions: pure, without I/O or clock (DESIGN section 6).

Each round proposes at most one action per shard; the next round sees its effect. A round without actions means
that nothing is left to do until the world changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from delaynode.registry.model import ClusterSpec, Condition, ConditionType, ShardObject, shard_name

from delayoperator.plan.placement import Placement
from delayoperator.plan.reign import Decision, Promote, Refuse, Wait, decide_reign
from delayoperator.plan.world import Action, CreateShard, Liveness, Observed, SetConditions, StartReign


def plan(desired: ClusterSpec, observed: Observed) -> list[Action]:
    return [*_missing_shards(desired, observed), *_shard_actions(desired, observed)]


def _missing_shards(desired: ClusterSpec, observed: Observed) -> Iterator[Action]:
    exists = {shard.name for shard in observed.shards}
    dead = {node for node in desired.node_ids if observed.node(node).liveness is Liveness.DEAD}
    placement = Placement((shard.spec for shard in observed.shards), desired.node_ids, avoid=dead)
    for topic in desired.topics:
        for queue in range(topic.queues):
            name = shard_name(topic.name, queue)
            if name in exists:
                continue
            replicas = placement.place(topic.name, desired.replicas)
            reason = f"topic {topic.name} wants {topic.queues} queues and {name} is missing: to {', '.join(replicas)}"
            yield CreateShard(topic.name, queue, replicas, reason)


def _shard_actions(desired: ClusterSpec, observed: Observed) -> Iterator[Action]:
    for shard in observed.shards:
        decision = decide_reign(shard, observed)
        if isinstance(decision, Promote):
            # A switchover asked of the old master ends with its reign.
            spec = replace(
                shard.spec,
                master=decision.node,
                epoch=shard.spec.epoch + 1,
                incarnation=decision.incarnation,
                switchover=None,
            )
            yield StartReign(shard, spec, f"{decision.reason}; epoch {spec.epoch} begins")
            continue
        conditions = (*_blocked(shard, decision), *_surplus(desired, shard))
        if conditions != tuple(replace(condition, since_ms=0) for condition in shard.conditions):
            reason = "; ".join(condition.message for condition in conditions) or "what was wrong is over"
            yield SetConditions(shard, conditions, reason)


def _blocked(shard: ShardObject, decision: Decision) -> Iterator[Condition]:
    if isinstance(decision, Refuse):
        yield Condition(ConditionType.BLOCKED, decision.reason, decision.message)
    elif isinstance(decision, Wait):
        # Nothing new is known, so what was said before stands.
        for condition in shard.conditions:
            if condition.type is ConditionType.BLOCKED:
                yield replace(condition, since_ms=0)


def _surplus(desired: ClusterSpec, shard: ShardObject) -> Iterator[Condition]:
    spec = shard.spec
    topic = desired.topic(spec.topic)
    if topic is None:
        message = f"topic {spec.topic} is no longer wanted; the shard keeps its messages and goes on serving"
        yield Condition(ConditionType.SURPLUS, "TopicRemoved", message)
    elif spec.queue >= topic.queues:
        message = f"topic {spec.topic} has {topic.queues} queues now; the shard keeps its messages and goes on serving"
        yield Condition(ConditionType.SURPLUS, "FewerQueues", message)
