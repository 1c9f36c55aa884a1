"""The planner: pure functions from the desired and the observed state to actions."""

from delayoperator.plan.bootstrap import OrphanReport, missing_shards, report_orphans
from delayoperator.plan.isolation import plan_isolating
from delayoperator.plan.observed import (
    Action,
    AdoptCopies,
    ChangeSpec,
    CopyView,
    CreateShard,
    Liveness,
    NotBegun,
    Observed,
    ObservedNode,
    ObservedRole,
    RemoveEmptyShard,
    SetConditions,
    StartTerm,
)
from delayoperator.plan.planner import plan
from delayoperator.plan.questions import Questions, patrolled, questions

__all__ = [
    "Action",
    "AdoptCopies",
    "ChangeSpec",
    "CopyView",
    "CreateShard",
    "Liveness",
    "NotBegun",
    "Observed",
    "ObservedNode",
    "ObservedRole",
    "OrphanReport",
    "Questions",
    "RemoveEmptyShard",
    "SetConditions",
    "StartTerm",
    "missing_shards",
    "patrolled",
    "plan",
    "plan_isolating",
    "questions",
    "report_orphans",
]
