"""The planner: pure functions from the desired and the observed state to actions."""

from delayoperator.plan.isolation import plan_isolating
from delayoperator.plan.observed import (
    Action,
    ChangeSpec,
    CopyView,
    CreateShard,
    Liveness,
    NotBegun,
    Observed,
    ObservedNode,
    ObservedRole,
    SetConditions,
    StartTerm,
)
from delayoperator.plan.planner import plan
from delayoperator.plan.questions import Questions, masters, questions

__all__ = [
    "Action",
    "ChangeSpec",
    "CopyView",
    "CreateShard",
    "Liveness",
    "NotBegun",
    "Observed",
    "ObservedNode",
    "ObservedRole",
    "Questions",
    "SetConditions",
    "StartTerm",
    "masters",
    "plan",
    "plan_isolating",
    "questions",
]
