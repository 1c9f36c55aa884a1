"""The job on rows that are given: what it proposes, what it leaves alone, and what comes to the driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from delayapi.units import HOUR_MS, MINUTE_MS
from delayoperator.crds.rebalance import PlanModel
from delayrebalance import job
from delayrebalance.forecast.loads import ShardLoads
from delayrebalance.model import ClusterMap, MapNode, MapShard, RebalanceError, SearchSettings, Span, Study
from delayrebalance.proposal import to_plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START_MS = 1_790_000_100_000
SLOT_MS = 5 * MINUTE_MS
SETTINGS = SearchSettings(horizon_ms=2 * HOUR_MS, tolerance=0.0)


def slots_of(spark: SparkSession, load: dict[str, Sequence[int]], *more: tuple[str, int, int, int, int]) -> DataFrame:
    """Messages of each shard in the slots from the start on; more: (shard, start, width, messages, epoch)."""
    rows = [
        (name, START_MS + n * SLOT_MS, SLOT_MS, count, 1)
        for name, counts in load.items()
        for n, count in enumerate(counts)
        if count
    ]
    shards, starts, widths, messages, epochs = zip(*(*rows, *more), strict=True) if rows or more else ((),) * 5
    waiting = [sum(load.get(name, (count,))) for name, count in zip(shards, messages, strict=True)]
    instant = pa.timestamp("us", tz="UTC")
    table = pa.table(
        {
            "shard": pa.array(shards, pa.string()),
            "node": pa.array(["n0"] * len(shards), pa.string()),
            "slot_start": pa.array([at * 1000 for at in starts], pa.int64()).cast(instant),
            "slot_ms": pa.array(widths, pa.int64()),
            "messages": pa.array(messages, pa.int64()),
            "bytes": pa.array([100 * it for it in messages], pa.int64()),
            "epoch": pa.array(epochs, pa.int64()),
            "pending": pa.array(waiting, pa.int64()),
            "pending_bytes": pa.array([100 * it for it in waiting], pa.int64()),
            "taken_at": pa.array([START_MS * 1000] * len(shards), pa.int64()).cast(instant),
        }
    )
    return spark.createDataFrame(table)


def proposed(spark: SparkSession, slots: DataFrame, where: ClusterMap, now_ms: int = START_MS) -> PlanModel | None:
    """As a DelayRebalance gets it; None: the cluster is to be left alone."""
    found = job.study(spark, slots, where, SETTINGS, now_ms=now_ms)
    return to_plan(found, where, SETTINGS, now_ms=now_ms) if found.moves else None


def cluster(placed: dict[str, tuple[str, ...]], nodes: int = 3, **changed: MapNode) -> ClusterMap:
    return ClusterMap(
        "c",
        tuple(changed.get(f"n{n}", MapNode(f"n{n}")) for n in range(nodes)),
        tuple(MapShard(name, at[0], at) for name, at in placed.items()),
        generation=4,
        made_for="0123456789ab",
    )


def studied(spark: SparkSession, slots: DataFrame, where: ClusterMap, settings: SearchSettings = SETTINGS) -> Study:
    return job.study(spark, slots, where, settings, now_ms=START_MS)


HOT = {"a-0": [0, 60], "a-1": [0, 60], "a-2": [0, 60], "b-0": [5, 5], "b-1": [5, 5]}
AT_N0 = dict.fromkeys(("a-0", "a-1", "a-2"), ("n0",)) | {"b-0": ("n1",), "b-1": ("n2",)}


def test_the_shards_of_a_hot_slot_are_spread(spark: SparkSession) -> None:
    found = studied(spark, slots_of(spark, HOT), cluster(AT_N0))
    assert (found.before.peak_messages, found.before.peak_node) == (180, "n0")
    assert found.before.peak_slot_ms == START_MS + SLOT_MS
    assert found.before.hot_slots == 1
    assert found.bound_messages == 65, "one of three nodes has two of the four shards"
    assert found.after.peak_messages == 65
    assert sorted((it.from_, it.to, it.bytes, it.messages, it.copies) for it in found.moves) == [
        ("n0", "n1", 6000, 60, True),
        ("n0", "n2", 6000, 60, True),
    ]
    assert found.node_loads_after.sum() == found.node_loads.sum() == 200


def test_busy_shards_have_their_hot_slot_in_the_plan_and_idle_ones_none(spark: SparkSession) -> None:
    busy = {shard: [100 * messages for messages in load] for shard, load in HOT.items()}
    for load, named in ((busy, (START_MS + SLOT_MS,)), (HOT, ())):
        found = studied(spark, slots_of(spark, load), cluster(AT_N0))
        assert {it.hot_slots_ms for it in found.moves} == {named}


def test_the_plan_has_its_hash_its_costs_and_the_clusters_generation(spark: SparkSession) -> None:
    slots = slots_of(spark, HOT)
    plan = proposed(spark, slots, cluster(AT_N0))
    assert plan is not None
    assert plan.before is not None
    assert plan.after is not None
    assert (plan.cluster_generation, plan.made_for) == (4, "0123456789ab")
    assert (plan.moved_bytes, plan.slot_seconds) == (12_000, 300)
    assert (plan.before.peak_messages, plan.after.peak_messages) == (180, 65)
    assert plan == proposed(spark, slots, cluster(AT_N0))
    assert plan.hash
    later = proposed(spark, slots, cluster(AT_N0), START_MS + 1)
    assert later is not None
    assert later.hash != plan.hash


@pytest.mark.parametrize(
    ("load", "placed", "why"),
    [
        (
            {"a-0": [9, 9], "a-1": [9, 9], "a-2": [10, 8]},
            {"a-0": ("n0",), "a-1": ("n1",), "a-2": ("n2",)},
            "in any slot",
        ),
        ({"a-0": [90]}, {"a-0": ("n0",)}, "within 0% of the lower bound"),
        ({}, {"a-0": ("n0",)}, "nothing falls due"),
    ],
)
def test_what_is_even_or_can_be_no_better_is_left_alone(
    spark: SparkSession, load: dict[str, list[int]], placed: dict[str, tuple[str, ...]], why: str
) -> None:
    where = cluster(placed)
    assert proposed(spark, slots_of(spark, load), where) is None
    found = studied(spark, slots_of(spark, load), where)
    assert why in found.why
    assert (found.node_loads == found.node_loads_after).all()


def test_fixed_shards_excluded_topics_and_emptied_nodes_are_respected(spark: SparkSession) -> None:
    slots = slots_of(spark, HOT)
    drained = cluster(AT_N0, n1=MapNode("n1", usable=False))
    assert {it.to for it in studied(spark, slots, drained).moves} == {"n2"}
    fixed = replace(cluster(AT_N0), shards=tuple(replace(it, fixed=it.name != "a-1") for it in cluster(AT_N0).shards))
    assert {it.shard for it in studied(spark, slots, fixed).moves} == {"a-1"}
    assert not studied(spark, slots, cluster(AT_N0), replace(SETTINGS, excluded_topics=frozenset({"a"}))).moves
    assert len(studied(spark, slots, cluster(AT_N0), replace(SETTINGS, max_moves=1)).moves) == 1
    assert {it.to for it in studied(spark, slots, cluster(AT_N0), replace(SETTINGS, onto=frozenset({"n2"}))).moves} == {
        "n2"
    }
    assert not studied(spark, slots, cluster(AT_N0), replace(SETTINGS, away_from=frozenset({"n2"}))).moves


def test_a_second_copy_takes_over_for_nothing(spark: SparkSession) -> None:
    placed = AT_N0 | {"a-1": ("n0", "n1"), "a-2": ("n0", "n2")}
    found = studied(spark, slots_of(spark, HOT), cluster(placed))
    assert sorted((it.shard, it.to, it.bytes, it.copies) for it in found.moves) == [
        ("a-1", "n1", 0, False),
        ("a-2", "n2", 0, False),
    ]


def test_wider_and_narrower_slots_are_cut_to_those_of_the_search(spark: SparkSession) -> None:
    rows = slots_of(
        spark,
        {},
        ("a-0", START_MS, HOUR_MS, 120, 1),
        ("a-0", START_MS + MINUTE_MS, MINUTE_MS, 3, 1),
        ("a-0", START_MS - MINUTE_MS, MINUTE_MS, 50, 1),  # over
        ("a-0", START_MS + 3 * HOUR_MS, MINUTE_MS, 50, 1),  # beyond the horizon
    )
    found = studied(spark, rows, cluster({"a-0": ("n0",)}))
    assert found.node_loads[0].tolist() == [13.0] + [10.0] * 11 + [0.0] * 12


def test_a_shard_that_two_nodes_tell_of_counts_by_its_higher_epoch(spark: SparkSession) -> None:
    rows = slots_of(spark, {"a-0": [40], "a-1": [7]}, ("a-0", START_MS, SLOT_MS, 41, 2))
    assert studied(spark, rows, cluster({"a-0": ("n0",), "a-1": ("n1",)})).before.peak_messages == 41


def test_the_driver_gets_no_more_shards_than_it_may_hold(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    vectors = ShardLoads.vectors

    def noted(self: ShardLoads, shards: np.ndarray, slots: np.ndarray) -> np.ndarray:
        asked.append(len(shards))
        return vectors(self, shards, slots)

    monkeypatch.setattr(ShardLoads, "vectors", noted)
    rng = np.random.default_rng(5)
    load = {f"a-{n}": rng.integers(0, 30, 24).tolist() for n in range(60)}
    placed = {name: (f"n{min(2, int(name[2:]) // 25)}",) for name in load}  # 25, 25, 10
    settings = replace(SETTINGS, candidates=12, tolerance=0.02, threshold=1.1)
    found = studied(spark, slots_of(spark, load), cluster(placed), settings)
    assert found.moves
    assert max(asked) <= 12 + len(found.moves)
    assert found.after.peak_messages < found.before.peak_messages
    whole = studied(spark, slots_of(spark, load), cluster(placed), replace(settings, candidates=1_000))
    assert whole.bound_messages == found.bound_messages
    assert whole.ratio <= found.ratio < 1.15


def test_what_is_said_of_the_loads_after_is_true(spark: SparkSession) -> None:
    rng = np.random.default_rng(6)
    load = {f"a-{n}": rng.integers(0, 30, 24).tolist() for n in range(40)}
    where = cluster({name: (f"n{int(name[2:]) % 7 // 3}",) for name in load})
    found = studied(spark, slots_of(spark, load), where, replace(SETTINGS, threshold=1.1))
    at = {it.name: it.master for it in where.shards} | {it.shard: it.to for it in found.moves}
    expected = np.zeros((3, 24))
    for name, counts in load.items():
        expected[int(at[name][1:])] += counts
    np.testing.assert_allclose(found.node_loads_after, expected)


def test_what_would_not_fit_the_driver_is_refused(spark: SparkSession) -> None:
    far = SearchSettings(horizon_ms=366 * 24 * HOUR_MS, slot_ms=MINUTE_MS)
    where = ClusterMap("c", tuple(MapNode(f"n{n}") for n in range(100)), (MapShard("a-0", "n0", ("n0",)),))
    with pytest.raises(RebalanceError, match=r"100 nodes x 527,040 slots are more than"):
        studied(spark, slots_of(spark, HOT), where, far)


def test_sums_are_by_node_and_slot(spark: SparkSession) -> None:
    loads = ShardLoads(
        spark, slots_of(spark, {"a-0": [1, 2], "a-1": [3, 4]}), ["a-0", "a-1"], Span(START_MS, SLOT_MS, 3)
    )
    sums = loads.node_sums(np.array([1, 1]), 2)
    loads.close()
    assert sums.messages.tolist() == [[0, 0, 0], [4, 6, 0]]
    assert sums.bytes.tolist() == [[0, 0, 0], [400, 600, 0]]
    assert sums.tallest.tolist() == [3, 4, 0]


def test_more_large_shards_than_nodes_have_to_share_one(spark: SparkSession) -> None:
    load = {"a-0": [0, 9], "a-1": [5, 10], "a-2": [5, 8], "a-3": [5, 7], "a-4": [1, 1]}
    loads = ShardLoads(spark, slots_of(spark, load), list(load), Span(START_MS, SLOT_MS, 3))
    loads.node_sums(np.zeros(5, dtype=np.int64), 3)
    crowded = [loads.crowded(nodes, above) for nodes, above in ((3, 12.0), (3, 15.0), (2, 12.0), (5, 0.0))]
    loads.close()
    assert crowded == [15.0, 0.0, 17.0, 1.0]


def test_a_shard_told_of_in_pieces_shares_with_others_only(spark: SparkSession) -> None:
    load = {"a-0": [4, 4], "a-1": [1, 1]}
    loads = ShardLoads(spark, slots_of(spark, load), list(load), Span(START_MS, 2 * SLOT_MS, 1))
    loads.node_sums(np.zeros(2, dtype=np.int64), 2)
    crowded = loads.crowded(1, 0.0)
    loads.close()
    assert crowded == 10.0


def test_a_plan_that_can_not_be_better_reaches_its_bound(spark: SparkSession) -> None:
    load = {f"a-{n}": [0, 10 + n] for n in range(4)}
    found = studied(spark, slots_of(spark, load), cluster(dict.fromkeys(load, ("n0",))), SETTINGS)
    assert (found.bound_messages, found.after.peak_messages) == (21.0, 21.0)
