"""DelayRebalance: a plan of moves with what it costs and gains; the states and verbs of Strimzi's KafkaRebalance."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field, StrictStr

from delayoperator.crds import limits
from delayoperator.crds.base import (
    ATOMIC,
    LIST_SET,
    SHARD_NAME,
    TOPIC_NAME,
    Duration,
    Int,
    Model,
    NodeId,
    Number,
    Text,
    list_map,
    rule,
    rules,
)
from delayoperator.crds.rebalancing import Approval, AutomaticBelow
from delayoperator.crds.status import ConditionModel, Timestamp

MAX_MOVES = 1_000
MAX_IN_FLIGHT = 8
HOT_SLOTS = 64  # of a shard, that a plan may name

_FIXED_CLUSTER = rule(
    "self.cluster == oldSelf.cluster", "cluster can't be changed: make another DelayRebalance", field=".cluster"
)
_WINDOW = rule(
    "!has(self.notBefore) || !has(self.notAfter) || self.notBefore < self.notAfter",
    "notAfter must be later than notBefore",
    field=".notAfter",
)
_NODES = rule(
    "self.mode == 'Full' || (has(self.nodes) && self.nodes.size() > 0)",
    "modes AddNodes and RemoveNodes need nodes: the ones that came, or that are to go",
    field=".nodes",
)
_ELSEWHERE = rule("self.from != self.to", "a move needs two nodes: from and to are the same", field=".to")


class Mode(StrEnum):
    FULL = "Full"
    ADD_NODES = "AddNodes"
    REMOVE_NODES = "RemoveNodes"


class RebalanceState(StrEnum):
    """Verbs: approve (delaycluster.io/approve=HASH), refresh and stop (delaycluster.io/rebalance=VERB).

    New; PendingProposal (accepts stop, refresh); ProposalReady (approve, refresh); Rebalancing (stop, refresh);
    Stopped (approve, which goes on with the rest of the plan, and refresh); NotReady, Ready (refresh);
    ReconciliationPaused (keeps them for later).
    """

    NEW = "New"
    PENDING_PROPOSAL = "PendingProposal"
    PROPOSAL_READY = "ProposalReady"
    REBALANCING = "Rebalancing"
    STOPPED = "Stopped"
    NOT_READY = "NotReady"
    READY = "Ready"
    RECONCILIATION_PAUSED = "ReconciliationPaused"


class Ending(StrEnum):
    STOP = "Stop"
    REFRESH = "Refresh"


class MoveModel(Model):
    """One copy of one shard goes from a node to another."""

    model_config = ConfigDict(json_schema_extra=rules(_ELSEWHERE))

    shard: Annotated[StrictStr, Field(pattern=SHARD_NAME, max_length=56)] = Field(description="The shard, TOPIC-QUEUE.")
    from_: NodeId = Field(alias="from", description="The node that loses its copy.")
    to: NodeId = Field(description="The node that gets one.")


class MoveState(StrEnum):
    WAITING = "Waiting"
    MOVING = "Moving"
    DONE = "Done"
    REFUSED = "Refused"


DateTime = Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})]


class PlannedMove(MoveModel):
    """A move with what it costs. A node that has a copy already, as `to`, takes over from the master: a switchover."""

    replicas: list[NodeId] | None = Field(
        None,
        max_length=64,
        description="The nodes of the shard's copies as the plan found them, the master's first: with others the move "
        "is refused. `to` takes the place of `from`, in a switchover the first place. Absent: as found at its start.",
        json_schema_extra=ATOMIC,
    )
    bytes: Int | None = Field(None, ge=0, description="What is copied.")
    messages: Int | None = Field(None, ge=0, description="Messages that wait in the shard.")
    due_during_move: Int | None = Field(None, ge=0, description="Messages that fall due while it moves.")
    hot_slots: list[DateTime] | None = Field(
        None,
        max_length=HOT_SLOTS,
        description="When the slots of time begin in which the shard makes its node hot; each lasts plan.slotSeconds. "
        "A move that would not be over by then, with spec.leadTime to spare, waits until the slot is over.",
        json_schema_extra=ATOMIC,
    )
    state: MoveState | None = Field(None, description="How far it is; absent: Waiting.")
    reason: Text | None = Field(None, description="Why it was refused: the map changed since the plan.")
    started_at: Timestamp | None = Field(None, description="When it began.")
    ended_at: Timestamp | None = Field(None, description="When it was done or refused.")


class NodeLoad(Model):
    """The load to come, over nodes and slots of time."""

    peak_messages: Int | None = Field(
        None, ge=0, description="The most messages that fall due on one node in one slot."
    )
    peak_bytes: Int | None = Field(None, ge=0, description="The same in bytes.")
    mean_messages: Number | None = Field(None, ge=0, description="The mean of all nodes in that slot.")
    hot_slots: Int | None = Field(None, ge=0, description="Slots in which a node is above the threshold.")
    lower_bound_messages: Number | None = Field(None, ge=0, description="What no plan could get below.")


class PlanModel(Model):
    """What is proposed: made by the job or from spec.moves, and never changed but for how far its moves are: a refresh
    makes another. The job leaves the moves' state out; a plan without moves says that none is worth its cost.
    """

    hash: Annotated[StrictStr, Field(pattern=r"^[0-9a-f]{8,64}$")] | None = Field(
        None, description="Names the plan; approval names it: delaycluster.io/approve=HASH."
    )
    made_at: Timestamp | None = Field(None, description="When it was made.")
    expires_at: Timestamp | None = Field(None, description="After this it can't be approved.")
    cluster_generation: Int | None = Field(
        None, ge=0, description="The DelayCluster's metadata.generation when it was made; `madeFor` says what counts."
    )
    made_for: Annotated[StrictStr, Field(pattern=r"^[0-9a-f]{8,64}$")] | None = Field(
        None,
        description="A hash of what it counts on in the DelayCluster: nodes, drained, replicas, and the topics with "
        "their queues. Another one makes it void; a pause does not.",
    )
    slot_seconds: Int | None = Field(None, ge=1, le=86_400, description="How long a slot of time is; absent: 300.")
    moved_bytes: Int | None = Field(None, ge=0, description="What all moves copy.")
    due_in_window: Int | None = Field(
        None, ge=0, description="Messages that fall due on moving shards while they move."
    )
    before: NodeLoad | None = Field(None, description="The load as it is.")
    after: NodeLoad | None = Field(None, description="The load with every move done.")
    moves: list[PlannedMove] | None = Field(
        None, max_length=MAX_MOVES, description="The moves, in their order.", json_schema_extra=ATOMIC
    )


class ProgressModel(Model):
    """How far the moves are."""

    moves_done: Int | None = Field(None, ge=0, description="Moves that are done.")
    moves_total: Int | None = Field(None, ge=0, description="Moves of the plan.")
    moves_refused: Int | None = Field(None, ge=0, description="Moves that were refused; plan.moves says why.")
    bytes_done: Int | None = Field(None, ge=0, description="Bytes that were copied.")
    percent: Int | None = Field(None, ge=0, le=100, description="Of the plan's bytes; without any, of its moves.")
    current: Text | None = Field(None, description="The shards that move now, or what the next move waits for.")
    seconds_left: Int | None = Field(None, ge=0, description="An estimate, at the pace so far.")


class DelayRebalanceSpec(Model):
    """What is asked for."""

    model_config = ConfigDict(json_schema_extra=rules(_FIXED_CLUSTER, _WINDOW, _NODES, *limits.REBALANCING))

    cluster: Annotated[StrictStr, Field(min_length=1, max_length=limits.MAX_NAME)] = Field(
        description="The DelayCluster, in the same namespace. Can't be changed."
    )
    mode: Mode = Field(
        Mode.FULL, description="Full: over all nodes. AddNodes: only onto `nodes`. RemoveNodes: only away from `nodes`."
    )
    nodes: list[NodeId] | None = Field(
        None, max_length=1_000, description="The nodes that came or are to go.", json_schema_extra=LIST_SET
    )
    moves: list[MoveModel] | None = Field(
        None,
        max_length=MAX_MOVES,
        description="Exactly these moves, by hand. Absent: the job proposes some.",
        json_schema_extra=ATOMIC,
    )
    threshold: Number | None = Field(
        None, ge=1, le=100, description="As in the DelayCluster's rebalance; absent: as there."
    )
    approval: Approval | None = Field(
        None,
        description="Manual: the plan waits for the annotation delaycluster.io/approve=HASH. Automatic: it does not. "
        "AutomaticBelow: it does not when it is within `automaticBelow`. Absent: as in the DelayCluster's rebalance; "
        "with `moves`, Manual.",
    )
    automatic_below: AutomaticBelow | None = Field(None, description="With AutomaticBelow: up to what size.")
    excluded_topics: list[Annotated[StrictStr, Field(pattern=TOPIC_NAME, max_length=50)]] | None = Field(
        None, max_length=limits.MAX_TOPICS, description="Topics whose shards stay.", json_schema_extra=LIST_SET
    )
    not_before: Timestamp | None = Field(None, description="No move starts earlier.")
    not_after: Timestamp | None = Field(None, description="No move starts later.")
    lead_time: Duration | None = Field(
        None,
        description="How long before a shard's hot slot it must be in place: a move that could end later waits until "
        "the slot is over, and what is due in it is delivered where it is. Such as 2m; absent: 1m.",
    )
    max_in_flight: Int = Field(
        2, ge=1, le=MAX_IN_FLIGHT, description="Moves at a time: they share disks and network with the clients."
    )
    cool_down: Duration = Field(
        "1h", description="After a plan has ended or was stopped, none is carried out unasked for so long."
    )
    throttle_bytes_per_second: Int | None = Field(
        None,
        ge=65_536,
        le=1 << 40,
        description="The most that moves copy on average: the next one waits until the bytes of those before it would "
        "have passed at this rate. Each single copy goes as fast as it can. Absent: no limit.",
    )


class DelayRebalanceStatus(Model):
    """What became of it."""

    observed_generation: Int | None = Field(
        None, ge=0, description="The metadata.generation that this status is about."
    )
    state: RebalanceState | None = Field(
        None,
        description="New, PendingProposal, ProposalReady (waits for approval), Rebalancing, Stopped, NotReady (the "
        "condition says why), Ready (done), ReconciliationPaused. Annotate delaycluster.io/rebalance=refresh for a new "
        "plan, =stop to stop after the move that is under way.",
    )
    conditions: list[ConditionModel] | None = Field(
        None, max_length=32, description="The state with its reason.", json_schema_extra=list_map("type")
    )
    plan: PlanModel | None = Field(None, description="What is proposed, or was carried out.")
    requested_at: Timestamp | None = Field(None, description="When a proposal was asked for last.")
    plan_seen: Text | None = Field(None, description="The hash of the plan that `state` is about.")
    approved: Text | None = Field(None, description="The hash of the plan that was approved.")
    approved_at: Timestamp | None = Field(None, description="When it was approved.")
    ending: Ending | None = Field(
        None, description="Stop or Refresh was asked for: no move starts, and those under way are waited for."
    )
    paused_from: RebalanceState | None = Field(None, description="While ReconciliationPaused: the state to go on from.")
    progress: ProgressModel | None = Field(None, description="How far the moves are.")
    cool_down_until: Timestamp | None = Field(None, description="Until then no plan is carried out unasked.")


class DelayRebalance(Model):
    """Moves of shards between nodes, proposed with what they cost and gain, approved, and carried out one by one. Made
    by the rebalance job or by hand.

    Approve: kubectl annotate delayrebalance NAME delaycluster.io/approve=HASH. Stop or refresh: kubectl annotate
    delayrebalance NAME delaycluster.io/rebalance=stop
    """

    spec: DelayRebalanceSpec = Field(description="What is asked for.")
    status: DelayRebalanceStatus | None = Field(None, description="What became of it.")
