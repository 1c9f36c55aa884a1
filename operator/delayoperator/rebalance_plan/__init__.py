"""Carrying out a DelayRebalance: a pure state machine, without I/O or clock (`states.step`), and its driver.

The status alone says how far everything is: a driver may die between any two of its writes and begin anew. A plan that
is there already, from the job: DelayRebalanceStatus(plan=plan), with `plan.hash` = digest(plan).

The rest is the planner's: an edit sets a shard's `target` (or `switchover`), and the moves go on by themselves.
"""

from delayoperator.rebalance_plan.driver import RebalanceConflict, RebalanceDriver, RebalanceRound, RebalanceStore
from delayoperator.rebalance_plan.plans import digest, made_for, moves_of
from delayoperator.rebalance_plan.states import step
from delayoperator.rebalance_plan.step_values import (
    Edit,
    Job,
    JobState,
    LoadForecast,
    RebalanceEvent,
    RebalanceRequest,
    Size,
    StepOutcome,
    Why,
    World,
)
from delayoperator.rebalance_plan.times import instant, text_of

__all__ = [
    "Edit",
    "Job",
    "JobState",
    "LoadForecast",
    "RebalanceConflict",
    "RebalanceDriver",
    "RebalanceEvent",
    "RebalanceRequest",
    "RebalanceRound",
    "RebalanceStore",
    "Size",
    "StepOutcome",
    "Why",
    "World",
    "digest",
    "instant",
    "made_for",
    "moves_of",
    "step",
    "text_of",
]
