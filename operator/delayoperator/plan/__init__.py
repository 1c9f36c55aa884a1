"""The planner: pure functions from what is wanted and what is seen to what is to be done."""

from delayoperator.plan.planner import plan
from delayoperator.plan.questions import Questions, masters, questions
from delayoperator.plan.sparing import plan_sparing
from delayoperator.plan.world import (
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
    StartReign,
)

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
    "StartReign",
    "masters",
    "plan",
    "plan_sparing",
    "questions",
]
