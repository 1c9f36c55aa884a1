"""A driver of the rebalance over the small cluster of tests/plan/cluster.py, on a clock of its own: it does what
RebalanceDriver does, and crashes wherever a test asks for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from delayoperator.crds.rebalance import (
    DelayRebalanceSpec,
    DelayRebalanceStatus,
    MoveState,
    PlanModel,
    PlannedMove,
    RebalanceState,
)
from delayoperator.plan import ChangeSpec, plan
from delayoperator.plan.placement import desired_replicas
from delayoperator.rebalance_plan import Job, RebalanceRequest, World, digest, text_of
from delayoperator.rebalance_plan.states import step
from delayoperator.rebalance_plan.step_values import StepOutcome
from delayregistry.model import ClusterSpec, TopicSpec

from tests.plan.cluster import Cluster

START_MS = 1_800_000_000_000
ROUND_MS = 1_000
Json = dict[str, Any]


def cluster(nodes: int = 3, queues: int = 6, replicas: int = 1) -> Cluster:
    """A settled cluster: all shards served, all copies in sync."""
    world = Cluster(ClusterSpec("local", nodes, (TopicSpec("t", queues),), replicas=replicas))
    for node in world.spec.node_ids:
        world.start(node)
    settle(world)
    assert world.faults() == []
    return world


def settle(world: Cluster) -> None:
    for _ in range(2_000):
        actions = plan(world.spec, world.observed())
        for action in actions:
            world.apply(action)
        if not world.nodes_act() and not actions:
            return
    raise AssertionError("it does not come to rest")


def a_move(world: Cluster, shard: str, to: str, origin: str | None = None, **costs: Any) -> PlannedMove:
    """A move as the job proposes it: from the shard's first replica, unless `origin` is given."""
    nodes = desired_replicas(world.shards[shard].spec)
    said = {"shard": shard, "from": origin or nodes[0], "to": to, "replicas": list(nodes), "bytes": 1_000, **costs}
    return PlannedMove.model_validate(said)


def a_plan(moves: Sequence[PlannedMove], **more: Any) -> PlanModel:
    made = PlanModel.model_validate({"made_at": text_of(START_MS), "moves": list(moves), **more})
    return made.model_copy(update={"hash": digest(made)})


class Driver:
    """status: the one kept last. Each round reads it from JSON, as a new process would."""

    def __init__(self, world: Cluster, status: DelayRebalanceStatus | None = None, **spec: Any) -> None:
        self.world = world
        self.spec = DelayRebalanceSpec.model_validate({"cluster": "local", **spec})
        self.generation = 1
        self.status = status
        self.now_ms = START_MS
        self.around = World(world.spec)  # everything but the shards and nodes
        self.said: list[str] = []
        self.begun: list[tuple[int, str]] = []  # (time of a move's edit, its shard)
        self.last: StepOutcome | None = None

    def ready(self, plan: PlanModel) -> None:
        self.status = DelayRebalanceStatus.model_validate({"plan": plan})
        self.look()

    def look(self, approve: str | None = None, verb: str | None = None, *, crash: bool = False) -> StepOutcome:
        """Take one step. crash: it writes the status and nothing else."""
        kept = None if self.status is None else self.status.model_dump_json(by_alias=True, exclude_none=True)
        status = None if kept is None else DelayRebalanceStatus.model_validate_json(kept)
        seen = self.world.observed()
        around = replace(
            self.around, cluster=self.world.spec, shards={it.name: it for it in seen.shards}, nodes=seen.nodes
        )
        self.last = outcome = step(
            RebalanceRequest(self.spec, self.generation, approve, verb), status, around, self.now_ms
        )
        self.status = outcome.status
        self.said += [it.reason for it in outcome.events]
        assert self.in_flight() <= self.spec.max_in_flight
        if not crash:
            for edit in outcome.edits:
                if self.world.apply(ChangeSpec(edit.shard, edit.spec, edit.reason)):
                    self.begun.append((self.now_ms, edit.shard.name))
        return outcome

    def nodes_work(self, rounds: int = 1) -> None:
        for _ in range(rounds):
            for action in plan(self.world.spec, self.world.observed()):
                self.world.apply(action)
            self.world.nodes_act()

    def approve(self) -> None:
        assert self.status is not None
        assert self.status.plan is not None
        self.look(approve=self.status.plan.hash)

    def until(self, true: Callable[[], bool], rounds: int = 400, each: Callable[[], object] = lambda: None) -> None:
        for _ in range(rounds):
            if true():
                return
            self.now_ms += ROUND_MS
            self.look()
            self.nodes_work()
            each()
        raise AssertionError(f"not so after {rounds} rounds: {self.status}")

    def is_over(self) -> bool:
        return self.state not in (RebalanceState.REBALANCING, RebalanceState.PENDING_PROPOSAL, RebalanceState.NEW)

    @property
    def state(self) -> RebalanceState | None:
        return None if self.status is None else self.status.state

    @property
    def reason(self) -> str:
        assert self.status is not None
        assert self.status.conditions
        return self.status.conditions[0].reason

    @property
    def moves(self) -> list[PlannedMove]:
        assert self.status is not None
        assert self.status.plan is not None
        return list(self.status.plan.moves or ())

    def in_flight(self) -> int:
        plan = None if self.status is None else self.status.plan
        return sum(it.state is MoveState.MOVING for it in (plan.moves or ()) if plan) if plan else 0

    def job(self, job: Job) -> None:
        self.around = replace(self.around, job=job)

    def paused(self, paused: bool) -> None:
        self.around = replace(self.around, paused=paused)


def nodes_of(world: Cluster) -> dict[str, tuple[str, ...]]:
    return {name: desired_replicas(shard.spec) for name, shard in world.shards.items()}
