"""Plans: their names, and what a move comes to on the map that it was made for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from delayregistry.model import ClusterSpec

from delayoperator.crds.rebalance import DelayRebalanceSpec, MoveModel, MoveState, PlanModel, PlannedMove
from delayoperator.plan.balance import unplaceable
from delayoperator.plan.observed import Observed
from delayoperator.plan.topology import Topology
from delayoperator.rebalance_plan.step_values import World

FINAL = frozenset({MoveState.DONE, MoveState.REFUSED})


def digest(plan: PlanModel) -> str:
    """The plan's name: what it would do, to which cluster, and when it was made."""
    moves = [[it.shard, it.from_, it.to, it.replicas] for it in plan.moves or ()]
    return _named([moves, plan.made_for, plan.made_at])


def made_for(cluster: ClusterSpec) -> str:
    """Names what a plan counts on: where copies may be, how many, and of which shards. All else, such as a pause, a
    retention or an image, may change while a plan waits."""
    topics = sorted((topic.name, topic.queues) for topic in cluster.topics)
    return _named([cluster.nodes, sorted(cluster.drained), cluster.replicas, topics])


def _named(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]


def moves_of(plan: PlanModel | None) -> list[PlannedMove]:
    return [] if plan is None or plan.moves is None else list(plan.moves)


def state_of(move: PlannedMove) -> MoveState:
    return move.state or MoveState.WAITING


def takes_over(move: MoveModel, nodes: Sequence[str]) -> bool:
    """It is a switchover: nothing is copied. nodes: the shard's, the master's first."""
    return move.to in nodes


def goal(move: MoveModel, nodes: Sequence[str]) -> tuple[str, ...]:
    """Where the copies are to be afterwards, the master's first."""
    if takes_over(move, nodes):
        return (move.to, *(node for node in nodes if node != move.to))
    return tuple(move.to if node == move.from_ else node for node in nodes)


def impossible(move: MoveModel, nodes: Sequence[str], world: World) -> str | None:
    """Why the move can't be made from this map, whatever time brings. nodes: the shard's, the master's first."""
    at = ", ".join(nodes)
    if move.from_ not in nodes:
        return f"{move.from_} has no copy; they are on {at}"
    if takes_over(move, nodes) and move.from_ != nodes[0]:
        return f"{move.to} has a copy already, and {move.from_} is not where the master belongs ({nodes[0]} is)"
    if move.to not in world.cluster.node_ids:
        return f"there is no node {move.to}"
    if move.to in world.cluster.drained:
        return f"{move.to} is to be emptied"
    view = world.nodes.get(move.to)
    if view is not None and view.replaceable:
        return f"{move.to} is lost"
    return None if takes_over(move, nodes) else _crowds(move, [node for node in nodes if node != move.from_], world)


def _crowds(move: MoveModel, others: Sequence[str], world: World) -> str | None:
    """Why the planner would take the copy away again: it shares a zone or a machine with another, and need not."""
    topology = Topology({node: view.location for node, view in world.nodes.items()})
    avoid = unplaceable(world.cluster, Observed(nodes=world.nodes))
    better = topology.farther(move.to, others, (node for node in world.cluster.node_ids if node not in avoid))
    return topology.refusal(move.to, others, better, move.from_) if better else None


def same_moves(spec: DelayRebalanceSpec, plan: PlanModel) -> bool:
    """The plan is the one that spec.moves asks for."""
    asked = [(it.shard, it.from_, it.to) for it in spec.moves or ()]
    return asked == [(it.shard, it.from_, it.to) for it in plan.moves or ()]
