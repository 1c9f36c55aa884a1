"""Inputs and outputs of a step: plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from delayapi.hot_slots import F64
from delayregistry.model import ClusterSpec, ShardObject, ShardSpec

from delayoperator.crds import VERBS
from delayoperator.crds.rebalance import DelayRebalanceSpec, DelayRebalanceStatus
from delayoperator.crds.rebalancing import Approval, AutomaticBelow
from delayoperator.plan.observed import ObservedNode


class Why(StrEnum):
    """Reasons of conditions and events: stable words that scripts match. docs/operations.md has each."""

    PROPOSAL_REQUESTED = "ProposalRequested"
    WAITS_FOR_APPROVAL = "WaitsForApproval"
    COOLING_DOWN = "CoolingDown"  # a plan that needs no approval waits all the same
    ANOTHER_UNDER_WAY = "AnotherUnderWay"  # likewise: of one cluster's plans one is carried out at a time
    MOVES_UNDER_WAY = "MovesUnderWay"
    STOPPING = "Stopping"
    STOPPED = "StoppedByRequest"
    WINDOW_CLOSED = "WindowClosed"
    MOVES_DONE = "MovesDone"
    MOVES_DONE_IN_PART = "MovesDoneInPart"
    BALANCED = "Balanced"  # no move is worth its cost
    PAUSED = "Paused"
    # NotReady
    MOVES_IMPOSSIBLE = "MovesImpossible"
    JOB_FAILED = "JobFailed"
    PLAN_EXPIRED = "PlanExpired"
    CLUSTER_CHANGED = "ClusterChanged"
    MOVES_REFUSED = "MovesRefused"  # all of them
    # Events only
    APPROVED = "PlanApproved"
    APPROVAL_REFUSED = "ApprovalRefused"
    VERB_REFUSED = "VerbRefused"
    PLAN_REPLACED = "PlanReplaced"
    MOVE_STARTED = "MoveStarted"
    MOVE_DONE = "MoveDone"
    MOVE_REFUSED = "MoveRefused"


WARNINGS = frozenset(
    {
        Why.MOVES_IMPOSSIBLE, Why.JOB_FAILED, Why.PLAN_EXPIRED, Why.CLUSTER_CHANGED, Why.MOVES_REFUSED,
        Why.APPROVAL_REFUSED, Why.VERB_REFUSED, Why.MOVE_REFUSED, Why.MOVES_DONE_IN_PART,
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RebalanceRequest:
    """A DelayRebalance's spec and verbs. approve: the hash that is named. verb: `stop` or `refresh`."""

    spec: DelayRebalanceSpec
    generation: int = 1
    approve: str | None = None
    verb: str | None = None

    @classmethod
    def of(cls, spec: DelayRebalanceSpec, generation: int, annotations: Mapping[str, str]) -> RebalanceRequest:
        return cls(spec, generation, **{name: annotations.get(key) for name, key in VERBS.items()})

    def answered(self, verbs: frozenset[str], annotations: Mapping[str, str]) -> list[str]:
        """The annotations of these verbs, without those that somebody has set anew since."""
        return [VERBS[it] for it in verbs if annotations.get(VERBS[it]) == getattr(self, it)]


class JobState(StrEnum):
    NONE = "None"  # there is none, or none that is known
    RUNS = "Runs"
    FINISHED = "Finished"  # well: without a plan, none is worth its cost
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Job:
    """Result of the job requested at status.requested_at."""

    state: JobState = JobState.NONE
    message: str = ""  # why it failed


@dataclass(frozen=True, slots=True)
class Size:
    """Pending messages of a shard."""

    bytes: int
    messages: int


@dataclass(frozen=True, slots=True, eq=False)
class LoadForecast:
    """Messages that fall due, in slots of slot_ms from start_ms on: N nodes, S slots. whole: every node has answered;
    else there is no telling which are hot."""

    start_ms: int
    slot_ms: int
    nodes: tuple[str, ...]
    loads: F64  # [N, S]
    shards: Mapping[str, F64]  # [S] of those that were asked about and are known
    whole: bool = True


@dataclass(frozen=True, slots=True)
class World:
    """The live map, and what else a step needs to know.

    generation: of the DelayCluster; None where there is no such thing. approval, automatic_below: what its spec says
    about plans of the job, where a DelayRebalance has none of its own. busy: another DelayRebalance of this cluster
    that is being carried out. copied: bytes that copies under way have fetched, by shard. sizes, coming, threshold: for
    plans by hand; what is missing is not known.
    """

    cluster: ClusterSpec
    shards: Mapping[str, ShardObject] = field(default_factory=dict)  # by name
    nodes: Mapping[str, ObservedNode] = field(default_factory=dict)  # by node id
    generation: int | None = None
    paused: bool = False
    approval: Approval = Approval.MANUAL
    automatic_below: AutomaticBelow | None = None
    busy: str | None = None
    job: Job = Job()
    copied: Mapping[str, int] = field(default_factory=dict)
    sizes: Mapping[str, Size] = field(default_factory=dict)
    coming: LoadForecast | None = None
    threshold: float = 1.5


@dataclass(frozen=True, slots=True)
class Edit:
    """A conditional write of the operator's part of a shard."""

    shard: ShardObject
    spec: ShardSpec
    reason: str


@dataclass(frozen=True, slots=True)
class RebalanceEvent:
    reason: Why
    message: str

    @property
    def warning(self) -> bool:
        return self.reason in WARNINGS


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """Result of a step; see the package. recheck_at_ms: when the next step is due without an event; None: never."""

    status: DelayRebalanceStatus
    edits: tuple[Edit, ...] = ()
    consumed: frozenset[str] = frozenset()  # of {"approve", "verb"}
    events: tuple[RebalanceEvent, ...] = ()
    wants_job: bool = False
    recheck_at_ms: int | None = None
