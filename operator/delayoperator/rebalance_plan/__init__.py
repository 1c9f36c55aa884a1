"""Carrying out a DelayRebalance: a pure state machine, without I/O or clock (`states.step`), and its driver.

The status alone says how far everything is: a driver may die between any two of its writes and begin anew. A plan that
is there already, from the job: DelayRebalanceStatus(plan=plan), with `plan.hash` = digest(plan).

The rest is the planner's: an edit sets a shard's `target` (or `switchover`), and the moves go on by themselves.
"""

from delayoperator.rebalance_plan.driver import RebalanceConflict, RebalanceDriver, RebalanceStore
from delayoperator.rebalance_plan.plans import digest, made_for, moves_of
from delayoperator.rebalance_plan.step_values import (
    Job,
    JobState,
    LoadForecast,
    RebalanceEvent,
    RebalanceRequest,
    Size,
    World,
)
from delayoperator.rebalance_plan.times import text_of

__all__ = [
    "Job",
    "JobState",
    "LoadForecast",
    "RebalanceConflict",
    "RebalanceDriver",
    "RebalanceEvent",
    "RebalanceRequest",
    "RebalanceStore",
    "Size",
    "World",
    "digest",
    "made_for",
    "moves_of",
    "text_of",
]
