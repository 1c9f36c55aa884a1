"""A study as the plan that a DelayRebalance holds: pure."""

from __future__ import annotations

from delayoperator.crds.rebalance import NodeLoad, PlanModel, PlannedMove
from delayoperator.rebalance_plan import digest, text_of

from delayrebalance.model import ClusterMap, FoundMove, LoadFigures, SearchSettings, Study


def to_plan(study: Study, cluster: ClusterMap, settings: SearchSettings, *, now_ms: int) -> PlanModel:
    """With its hash. One without moves says that the cluster is to be left alone."""
    plan = PlanModel.model_validate(
        {
            "madeAt": text_of(now_ms),
            "expiresAt": text_of(now_ms + settings.expires_ms),
            "clusterGeneration": cluster.generation,
            "madeFor": cluster.made_for,
            "slotSeconds": study.slot_ms // 1000,
            "movedBytes": sum(move.bytes for move in study.moves),
            "dueInWindow": sum(move.due_during_move for move in study.moves),
            "before": _load(study.before, study.bound_messages),
            "after": _load(study.after, study.bound_messages),
            "moves": [_move(move) for move in study.moves],
        }
    )
    return plan.model_copy(update={"hash": digest(plan)})


def _load(figures: LoadFigures, bound: float) -> NodeLoad:
    return NodeLoad.model_validate(
        {
            "peakMessages": round(figures.peak_messages),
            "peakBytes": round(figures.peak_bytes),
            "meanMessages": round(figures.mean_messages, 3),
            "hotSlots": figures.hot_slots,
            "lowerBoundMessages": round(bound, 3),
        }
    )


def _move(move: FoundMove) -> PlannedMove:
    return PlannedMove.model_validate(
        {
            "shard": move.shard,
            "from": move.from_,
            "to": move.to,
            "replicas": list(move.replicas),
            "bytes": move.bytes,
            "messages": move.messages,
            "dueDuringMove": move.due_during_move,
            "hotSlots": [text_of(at_ms) for at_ms in move.hot_slots_ms],
        }
    )
