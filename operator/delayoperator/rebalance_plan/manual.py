"""spec.moves as a plan: what each move costs, and when its shard is hot, as far as the nodes have said it."""

from __future__ import annotations

from delayapi import hot_slots
from delayapi.units import DAY_MS
from delayregistry.model import shard_name

from delayoperator.crds.rebalance import DelayRebalanceSpec, MoveModel, PlanModel, PlannedMove
from delayoperator.plan.placement import desired_replicas
from delayoperator.rebalance_plan.plans import digest, goal, impossible, made_for, takes_over
from delayoperator.rebalance_plan.step_values import World
from delayoperator.rebalance_plan.times import text_of
from delayoperator.rebalance_plan.validate import BYTES_PER_SECOND, MovePace

EXPIRES_MS = DAY_MS


def manual_plan(spec: DelayRebalanceSpec, world: World, now_ms: int) -> PlanModel | list[str]:
    """The plan, or why its moves can't be made, a sentence each."""
    found: list[PlannedMove] = []
    faults: list[str] = []
    maps = {name: desired_replicas(shard.spec) for name, shard in world.shards.items()}
    forecast = _Forecast(spec, world, now_ms)
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
        size_bytes = 0 if takes_over(move, nodes) else None if size is None else size.bytes
        found.append(
            PlannedMove.model_validate(
                {
                    "shard": move.shard,
                    "from": move.from_,
                    "to": move.to,
                    "replicas": nodes,
                    "bytes": size_bytes,
                    "messages": None if size is None else size.messages,
                    "due_during_move": forecast.due(move.shard, size_bytes),
                    "hot_slots": forecast.hot_slots(move.shard),
                }
            )
        )
        maps[move.shard] = goal(move, nodes)
    if faults:
        return faults
    plan = PlanModel.model_validate(
        {
            "made_at": text_of(now_ms),
            "expires_at": text_of(now_ms + EXPIRES_MS),
            "cluster_generation": world.generation,
            "made_for": made_for(world.cluster),
            "slot_seconds": None if world.coming is None else world.coming.slot_ms // 1_000,
            "moved_bytes": _sum([it.bytes for it in found]),
            "due_in_window": _sum([it.due_during_move for it in found]),
            "moves": found,
        }
    )
    return plan.model_copy(update={"hash": digest(plan)})


class _Forecast:
    """Messages that fall due on shards during moves made one after the other, and hot slots; None: not known."""

    def __init__(self, spec: DelayRebalanceSpec, world: World, now_ms: int) -> None:
        self._world, self._at_ms, self._moves = world, now_ms, len(spec.moves or ())
        self._pace = MovePace(BYTES_PER_SECOND, 0, 0)
        coming = self._coming = world.coming
        if coming is None or not coming.whole:
            return
        # Nodes that get nothing count only while they have something: as in the job's mean.
        stays = [node in world.cluster.node_ids and node not in world.cluster.drained for node in coming.nodes]
        counted = (coming.loads.max(axis=1, initial=0.0) > 0) | stays
        self._hot = hot_slots.hot(coming.loads, counted, spec.threshold or world.threshold)
        self._excess = hot_slots.above(coming.loads, counted)

    def due(self, shard: str, size_bytes: int | None) -> int | None:
        coming = self._coming
        begin_ms = self._at_ms
        self._at_ms += self._pace.move_ms(size_bytes)
        if coming is None or shard not in coming.shards:
            return None
        return hot_slots.due(coming.shards[shard], coming.start_ms, coming.slot_ms, begin_ms, self._at_ms)

    def hot_slots(self, shard: str) -> list[str] | None:
        coming, known = self._coming, self._world.shards[shard]
        if coming is None or not coming.whole or shard not in coming.shards or known.spec.master not in coming.nodes:
            return None
        row = coming.nodes.index(known.spec.master)
        vector = coming.shards[shard]
        slots = hot_slots.of_shard(vector, self._hot[row], self._excess[row], coming.slot_ms, self._moves)
        return [text_of(coming.start_ms + slot * coming.slot_ms) for slot in slots.tolist()]


def _excluded(move: MoveModel, spec: DelayRebalanceSpec) -> str | None:
    for topic in spec.excluded_topics or ():
        if move.shard == shard_name(topic, int(move.shard.rpartition("-")[2])):
            return f"topic {topic} is among excludedTopics"
    return None


def _sum(amounts: list[int | None]) -> int | None:
    return None if None in amounts else sum(it or 0 for it in amounts)
