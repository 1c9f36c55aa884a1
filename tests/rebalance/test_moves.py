"""Moves with what they cost and when their shards are hot: no Spark."""

from __future__ import annotations

import json

import numpy as np
import pytest
from delayapi.units import DAY_MS, MINUTE_MS
from delayoperator.crds.rebalance import DelayRebalanceStatus, MoveState, PlannedMove
from delayoperator.rebalance_plan import text_of
from delayrebalance.decision.moves import found_moves
from delayrebalance.model import F64, ClusterMap, FoundMove, LoadFigures, MapNode, MapShard, SearchSettings, Span, Study
from delayrebalance.proposal import to_plan

START_MS = 1_790_000_100_000
SPAN = Span(START_MS, 5 * MINUTE_MS, 288)
OBJECT_BYTES = 1 << 20


def moved(vectors: F64, before: F64) -> tuple[FoundMove, ...]:
    """All shards from n0 to n1."""
    shards = tuple(MapShard(f"t-{row}", "n0", ("n0",)) for row in range(len(vectors)))
    where = ClusterMap("c", tuple(MapNode(f"n{row}") for row in range(len(before))), shards)
    holds = np.zeros((len(shards), len(before)), dtype=bool)
    holds[:, 0] = True
    size = dict.fromkeys(range(len(shards)), 1_000)
    return found_moves(
        where, [(row, 1) for row in range(len(shards))], holds, vectors, size, size, before,
        np.ones(len(before), dtype=bool), SPAN, SearchSettings(), START_MS,
    )  # fmt: skip


def starts(*slots: int) -> tuple[int, ...]:
    return tuple(SPAN.start_of(slot) for slot in slots)


def test_a_shard_is_hot_where_it_has_a_tenth_of_what_its_node_has_too_much() -> None:
    """n0 has 400,000 in slot 3, n1 nothing: 200,000 above the mean. Both are even elsewhere."""
    before = np.ones((2, SPAN.count))
    before[:, 3] = (400_000, 0)
    vectors = np.full((3, SPAN.count), 0.1)
    vectors[:, 3] = (300_000, 20_000, 19_000)
    found = {it.shard: it.hot_slots_ms for it in moved(vectors, before)}
    assert found == {"t-0": starts(3), "t-1": starts(3), "t-2": ()}


def test_a_shard_with_little_in_every_slot_does_not_wait_for_its_neighbours_all_day() -> None:
    before = np.stack([np.full(SPAN.count, 1_000_000.0), np.zeros(SPAN.count)])
    assert moved(np.full((1, SPAN.count), 10_000.0), before)[0].hot_slots_ms == ()


@pytest.mark.parametrize(("messages", "named"), [(2_999.0, 0), (3_000.0, 1)])
def test_a_shard_with_less_than_ten_messages_a_second_waits_for_nothing(messages: float, named: int) -> None:
    vectors, before = np.zeros((1, SPAN.count)), np.zeros((2, SPAN.count))
    vectors[0, 3] = before[0, 3] = messages  # in five minutes
    assert len(moved(vectors, before)[0].hot_slots_ms) == named


@pytest.mark.parametrize(("moves", "named"), [(1, 64), (62, 64), (100, 40), (1_000, 4)])
def test_the_more_moves_the_fewer_hot_slots_of_each_and_the_heaviest_of_them(moves: int, named: int) -> None:
    before = np.stack([np.full(SPAN.count, 1.0 * moves), np.zeros(SPAN.count)])
    vectors = np.arange(SPAN.count, dtype=np.float64) + np.full((moves, 1), 10_000.0)
    found = moved(vectors, before)
    assert {it.hot_slots_ms for it in found} == {starts(*range(SPAN.count - named, SPAN.count))}


def test_the_largest_plan_with_all_of_its_moves_refused_is_well_below_what_an_object_may_have() -> None:
    """A thousand moves of shards with the longest names, seven copies each, every field filled in."""
    nodes = tuple(f"n{990 + row}" for row in range(7))
    hot = found_hot(1_000)
    move = FoundMove(
        f"{'t' * 50}-{9_999}", nodes[0], "n999", True, 1 << 50, 1 << 40, 1 << 40, nodes, (START_MS + DAY_MS,) * hot
    )
    figures = LoadFigures(1e12, "n999", START_MS, 1e12 / 3, 1e15, 2_016)
    study = Study(
        "", figures, figures, 1e12 / 7, (move,) * 1_000, START_MS, SPAN.slot_ms, (), np.zeros((0, 0)), np.zeros((0, 0))
    )
    plan = to_plan(study, ClusterMap("c", (), (), 1 << 30, "0" * 12), SearchSettings(max_moves=1_000), now_ms=START_MS)
    ended = {
        "state": MoveState.REFUSED, "reason": "x" * 200, "started_at": text_of(START_MS), "ended_at": text_of(START_MS),
    }  # fmt: skip
    plan = plan.model_copy(update={"moves": [it.model_copy(update=ended) for it in plan.moves or ()]})
    status = DelayRebalanceStatus.model_validate({"plan": plan})
    text = status.model_dump_json(by_alias=True, exclude_none=True)
    assert len(json.loads(text)["plan"]["moves"]) == 1_000
    assert set(json.loads(text)["plan"]["moves"][0]) == {it.alias for it in PlannedMove.model_fields.values()}
    assert len(text) < 0.8 * OBJECT_BYTES


def found_hot(moves: int) -> int:
    """How many hot slots each move of so many has at most."""
    before = np.stack([np.full(SPAN.count, 1.0 * moves), np.zeros(SPAN.count)])
    most = len(moved(np.full((moves, SPAN.count), 10_000.0), before)[0].hot_slots_ms)
    assert most
    return most
