"""The planner: pure functions from what is wanted and what is seen to what is to be done."""

from delayoperator.plan.planner import plan
from delayoperator.plan.world import (
    Action,
    CopyView,
    CreateShard,
    Liveness,
    NodeView,
    Observed,
    SetConditions,
    StartReign,
)

__all__ = [
    "Action",
    "CopyView",
    "CreateShard",
    "Liveness",
    "NodeView",
    "Observed",
    "SetConditions",
    "StartReign",
    "plan",
]
