"""Plans: their names, those by hand, and what a move comes to on the map that it was made for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from delaynode.registry.model import shard_name

from delayoperator.crds.rebalance import DelayRebalanceSpec, Move, MoveState, Plan, PlannedMove
from delayoperator.plan.placement import wanted
from delayoperator.plan.rebalancing.times import text_of
from delayoperator.plan.rebalancing.world import World

EXPIRES_MS = 24 * 3_600_000  # of a plan by hand
FINAL = frozenset({MoveState.DONE, MoveState.REFUSED})


def digest(plan: Plan) -> str:
    """The plan's name: what it would do, to which cluster, and when it was made."""
    moves = [[it.shard, it.from_, it.to, it.replicas] for it in plan.moves or ()]
    text = json.dumps([moves, plan.cluster_generation, plan.made_at])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def moves_of(plan: Plan | None) -> list[PlannedMove]:
    return [] if plan is None or plan.moves is None else list(plan.moves)


def state_of(move: PlannedMove) -> MoveState:
    return move.state or MoveState.WAITING


def takes_over(move: Move, nodes: Sequence[str]) -> bool:
    """It is a switchover: nothing is copied. nodes: the shard's, the master's first."""
    return move.to in nodes


def goal(move: Move, nodes: Sequence[str]) -> tuple[str, ...]:
    """Where the copies are to be afterwards, the master's first."""
    if takes_over(move, nodes):
        return (move.to, *(node for node in nodes if node != move.to))
    return tuple(move.to if node == move.from_ else node for node in nodes)


def impossible(move: Move, nodes: Sequence[str], world: World) -> str | None:
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
    if view is not None and view.gone:
        return f"{move.to} is lost"
    return None


def by_hand(spec: DelayRebalanceSpec, world: World, now_ms: int) -> Plan | list[str]:
    """spec.moves as a plan, or why they can't be made, a sentence each."""
    found: list[PlannedMove] = []
    faults: list[str] = []
    maps = {name: wanted(shard.spec) for name, shard in world.shards.items()}
    for move in spec.moves or ():
        nodes = maps.get(move.shard)
        if nodes is None:
            faults.append(f"{move.shard}: there is no such shard")
            continue
        why = _excluded(move, spec) or impossible(move, nodes, world)
        if why is not None:
            faults.append(f"{move.shard}: {why}")
            continue
        size = world.sizes.get(move.shard)
        found.append(
            PlannedMove.model_validate(
                {
                    "shard": move.shard,
                    "from": move.from_,
                    "to": move.to,
                    "replicas": nodes,
                    "bytes": 0 if takes_over(move, nodes) else None if size is None else size.bytes,
                    "messages": None if size is None else size.messages,
                }
            )
        )
        maps[move.shard] = goal(move, nodes)
    if faults:
        return faults
    sizes = [it.bytes for it in found]
    plan = Plan.model_validate(
        {
            "made_at": text_of(now_ms),
            "expires_at": text_of(now_ms + EXPIRES_MS),
            "cluster_generation": world.generation,
            "moved_bytes": None if None in sizes else sum(it or 0 for it in sizes),
            "moves": found,
        }
    )
    return plan.model_copy(update={"hash": digest(plan)})


def _excluded(move: Move, spec: DelayRebalanceSpec) -> str | None:
    for topic in spec.excluded_topics or ():
        if move.shard == shard_name(topic, int(move.shard.rpartition("-")[2])):
            return f"topic {topic} is among excludedTopics"
    return None


def same_moves(spec: DelayRebalanceSpec, plan: Plan) -> bool:
    """The plan is the one that spec.moves asks for."""
    asked = [(it.shard, it.from_, it.to) for it in spec.moves or ()]
    return asked == [(it.shard, it.from_, it.to) for it in plan.moves or ()]
