"""A plan in which a shard that the planner fails on holds up no other shard.

An object that no release of ours has written (a person edited it, a backup restored half of it) may break an assumption
of the planner. Without this, the exception ended each round before anything was applied: one object, and no shard of
the cluster had a failover any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from delayregistry.model import ClusterSpec, Condition, ConditionType, ShardObject

from delayoperator.plan.observed import Action, CreateShard, Observed, SetConditions
from delayoperator.plan.planner import plan, unstamped


def plan_isolating(desired: ClusterSpec, observed: Observed) -> list[Action]:
    """plan(), shard by shard. A shard that plan() fails on gets the condition Blocked, `NotPlanned`, and nothing else
    is done to it.

    Raises what plan() raises where no single shard is to blame.
    """
    try:
        return plan(desired, observed)
    except Exception:
        failing = _failing(desired, observed, observed.shards)
        if not failing:
            raise
        sound = tuple(shard for shard in observed.shards if shard.name not in failing)
        actions = plan(desired, replace(observed, shards=sound))
        made = [one for one in actions if not (isinstance(one, CreateShard) and one.name in failing)]
        return [*made, *(said for shard, why in failing.values() if (said := _not_planned(shard, why)) is not None)]


def _failing(
    desired: ClusterSpec, observed: Observed, shards: Sequence[ShardObject]
) -> dict[str, tuple[ShardObject, Exception]]:
    """By name, the shards that plan() fails on by themselves: by halves, as there may be thousands."""
    try:
        plan(desired, replace(observed, shards=tuple(shards)))
    except Exception as error:
        if len(shards) == 1:
            return {shards[0].name: (shards[0], error)}
        middle = len(shards) // 2
        return _failing(desired, observed, shards[:middle]) | _failing(desired, observed, shards[middle:])
    return {}


def _not_planned(shard: ShardObject, error: Exception) -> SetConditions | None:
    message = (
        f"the operator can't plan for this shard ({type(error).__name__}: {error}): it leaves it as it is; "
        "correct its spec"
    )
    conditions = (Condition(ConditionType.BLOCKED, "NotPlanned", message),)
    return None if unstamped(shard) == conditions else SetConditions(shard, conditions, message)
