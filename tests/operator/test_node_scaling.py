"""How many nodes the load to come needs: each rule as a case, then a day of herds followed minute by minute."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from delayapi.hot_slots import F64
from delayapi.units import HOUR_MS, MINUTE_MS
from delayoperator.cluster.node_scaling import (
    HPA_TOLERANCE,
    QUIET_PART,
    SLOT_MS,
    ClusterLoad,
    NodeAdvice,
    ScalingFacts,
    ScalingSettings,
    advise,
    lead_ms,
    load_per_second,
)
from delayoperator.cluster.reasons import Reason
from hypothesis import example, given, settings
from hypothesis import strategies as st

NOW_MS = 1_800_000_000_000 // SLOT_MS * SLOT_MS  # 08:00 UTC
SLOTS = 360
EACH = ScalingSettings(per_node=1_000.0)  # five nodes do 5,000 messages a second


def load(*herds: tuple[int, float], base: float = 0.0, length: int = 1, size: int = 0) -> ClusterLoad:
    """herds: (minute, messages a second), for `length` minutes. size: pending bytes."""
    per_second = np.full(SLOTS, base)
    for minute, rate in herds:
        per_second[minute : minute + length] += rate
    return ClusterLoad(NOW_MS, per_second, size, watched_ms=2 * HOUR_MS)


def facts(coming: ClusterLoad | str, nodes: int = 3, **changes: Any) -> ScalingFacts:
    return replace(ScalingFacts(NOW_MS, nodes, 2, 64, coming, still_ms=NOW_MS - 2 * HOUR_MS), **changes)


HERD = (60, 4_600.0)
CASES: dict[str, tuple[ScalingFacts, int, Reason, str]] = {
    "nothing comes": (facts(load(), 2), 2, Reason.NODES_SUFFICE, "less than 1 message a second is to come"),
    "what comes is enough for three": (
        facts(load((60, 2_900.0))), 3, Reason.NODES_SUFFICE, "2,900 messages a second at 09:00 UTC",
    ),
    "a herd in an hour": (
        facts(load(HERD)), 5, Reason.MORE_NODES,
        "4,600 messages a second at 09:00 UTC are the most to come: 5 nodes, which take 2 min to start",
    ),
    "a herd that is nearer than a pod takes to start": (
        facts(load((1, 4_600.0))), 3, Reason.HERD_TOO_NEAR,
        "which 5 nodes could do, but they take 2 min to start and to get their shards: looked at again after 08:02 UTC",
    ),
    "a herd just as far away as pods take": (facts(load((2, 4_600.0))), 5, Reason.MORE_NODES, ""),
    # 60 GiB x 1.4 x 2 copies, 2 of 5 parts of it, at 32 MiB/s: 36 minutes
    "a herd nearer than its shards take to move": (
        facts(load((37, 4_600.0), size=60 << 30)), 3, Reason.HERD_TOO_NEAR, "they take 38 min",
    ),
    "a herd just further away than that": (facts(load((38, 4_600.0), size=60 << 30)), 5, Reason.MORE_NODES, ""),
    "a second herd with no room before it": (
        facts(load((1, 4_600.0), (3, 4_600.0))), 3, Reason.HERD_TOO_NEAR, "looked at again after 08:04 UTC",
    ),
    "a second herd with room before it": (
        facts(load((1, 3_100.0), (30, 4_600.0))), 3, Reason.HERD_TOO_NEAR, "looked at again after 08:02 UTC",
    ),
    "too much for hours has no better time": (
        facts(load((0, 4_600.0), length=121)), 5, Reason.MORE_NODES,
        "too much for 121 min: 5 nodes, though shards move",
    ),
    "too much for two hours is waited for": (facts(load((0, 4_600.0), length=120)), 3, Reason.HERD_TOO_NEAR, ""),
    "too much enqueued": (facts(load(base=3_500.0)), 4, Reason.MORE_NODES, ""),
    "as many in each zone": (facts(load((60, 3_100.0)), zones=3), 6, Reason.MORE_NODES, "6 nodes"),
    "a drained node does nothing": (facts(load((60, 2_900.0)), drained=1), 4, Reason.MORE_NODES, ""),
    "a step that an autoscaler takes for more than noise": (
        facts(load((60, 20_100.0)), 20), 23, Reason.MORE_NODES, "",
    ),
    "more nodes than shards": (facts(load((60, 90_000.0)), shards=8), 8, Reason.MORE_NODES, "8 nodes"),
    "a node for each shard is there": (
        facts(load((60, 90_000.0)), 8, shards=8), 8, Reason.TOO_FEW_QUEUES, "none of the 8 shards",
    ),
    "what is not known": (
        facts("n2 has not answered"), 3, Reason.LOAD_UNKNOWN, "the load to come is not known: n2 has not answered",
    ),
    "one step at a time": (
        facts(load(HERD), under_way="from 3 to 4 nodes"), 3, Reason.SCALING_WAITS, "under way: from 3 to 4 nodes",
    ),
    "quiet": (
        facts(load((60, 2_400.0)), 5), 4, Reason.FEWER_NODES,
        "2,400 messages a second at 09:00 UTC are the most to come, which is below 60% of what 4 nodes can do",
    ),
    "not quiet enough": (facts(load((300, 2_401.0)), 5), 5, Reason.NODES_SUFFICE, ""),
    "quiet, but never fewer than replicas": (facts(load(), 3, replicas=3), 3, Reason.NODES_SUFFICE, ""),
    "quiet, but a zone has one node": (facts(load(), 3, replicas=1, zones=3), 3, Reason.NODES_SUFFICE, ""),
    "quiet, and a node less in each zone": (facts(load(), 6, zones=3), 3, Reason.FEWER_NODES, ""),
    "quiet, but something moved a while ago": (
        facts(load(), 5, still_ms=NOW_MS - HOUR_MS + 1), 5, Reason.NODES_SUFFICE,
        "4 nodes would do once nothing has moved for 60 min",
    ),
    "quiet, and something is moved": (
        facts(load(), 5, still_ms=None), 5, Reason.NODES_SUFFICE, "once nothing has moved",
    ),
    "quiet, with drained nodes": (facts(load((60, 1_200.0)), 5, drained=1), 5 - 1, Reason.FEWER_NODES, ""),
    "not quiet enough, with drained nodes": (
        facts(load((60, 1_801.0)), 5, drained=1), 5, Reason.NODES_SUFFICE, "",
    ),
    "quiet, of many nodes": (facts(load(), 40), 35, Reason.FEWER_NODES, ""),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_an_advice_says_how_many_nodes_and_why(case: str) -> None:
    seen, nodes, reason, says = CASES[case]
    found = advise(EACH, seen)
    assert (found.nodes, found.reason) == (nodes, reason), found.because
    assert says in found.because
    assert found.because


def test_an_operator_that_is_new_waits_until_it_knows_what_is_enqueued() -> None:
    new = replace(load(), watched_ms=HOUR_MS - 1)
    found = advise(EACH, facts(new, 5))
    assert (found.nodes, found.reason) == (5, Reason.NODES_SUFFICE)
    assert "4 nodes would do once enqueues were watched for 60 min" in found.because


def test_a_minutes_messages_are_to_be_out_within_the_lateness_that_is_asked_for() -> None:
    due = {"a": np.array([6_000.0, 0.0]), "b": np.array([0.0, 600.0])}
    assert load_per_second(due, {}, MINUTE_MS, 5.0).tolist() == [105.0, 15.0]
    assert load_per_second(due, {}, 10_000, 0.0).tolist() == [600.0, 60.0]


def test_a_topic_that_is_held_back_releases_no_more_than_its_limit_and_the_rest_later() -> None:
    due = {"a": np.array([9_000.0, 0.0, 0.0])}
    assert load_per_second(due, {"a": 100}, MINUTE_MS, 0.0).tolist() == [100.0, 50.0, 0.0]
    assert load_per_second(due, {"other": 100}, MINUTE_MS, 0.0).tolist() == [150.0, 0.0, 0.0]


def test_a_cluster_without_messages_has_a_load_of_its_enqueues() -> None:
    assert load_per_second({}, {}, MINUTE_MS, 7.0).tolist() == []


herds = st.lists(st.tuples(st.integers(0, SLOTS - 1), st.floats(0, 50_000), st.integers(1, 200)), max_size=6)


@given(
    coming=herds, nodes=st.integers(1, 60), replicas=st.integers(1, 3), zones=st.integers(1, 3),
    drained=st.integers(0, 2), size=st.integers(0, 200 << 30), shards=st.integers(0, 100),
)  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_no_advice_breaks_a_rule(
    coming: list[tuple[int, float, int]], nodes: int, replicas: int, zones: int, drained: int, size: int, shards: int
) -> None:
    per_second = np.zeros(SLOTS)
    for minute, rate, length in coming:
        per_second[minute : minute + length] += rate
    nodes = max(nodes, replicas + drained)
    seen = facts(
        ClusterLoad(NOW_MS, per_second, size, 2 * HOUR_MS), nodes, replicas=replicas, zones=zones, drained=drained,
        shards=shards,
    )  # fmt: skip
    assert isinstance(seen.load, ClusterLoad)
    found = advise(EACH, seen)
    assert found.nodes >= replicas + drained
    assert bool(found.nodes > nodes) is (found.reason is Reason.MORE_NODES)
    assert bool(found.nodes < nodes) is (found.reason is Reason.FEWER_NODES)
    if found.nodes != nodes and found.nodes != shards + drained:
        assert found.nodes % zones == 0
        assert abs(found.nodes / nodes - 1) > HPA_TOLERANCE
    over = np.flatnonzero(per_second > EACH.per_node * (nodes - drained))
    if found.nodes > nodes:
        assert over.size
        late = over[0] * SLOT_MS < lead_ms(EACH, seen, seen.load, found.nodes)
        assert not late or over[-1] - over[0] >= SLOTS / 3, "moved in a herd that is soon over"
        assert found.nodes <= max(nodes, shards + drained)
    if found.nodes < nodes:
        assert per_second.max() <= QUIET_PART * EACH.per_node * (found.nodes - drained)
        again = advise(EACH, replace(seen, nodes=found.nodes))
        assert again.nodes <= found.nodes, "it does not come back at once"


def follow(per_second: F64, nodes: int, size: int, chosen: ScalingSettings) -> tuple[list[int], list[NodeAdvice]]:
    """The nodes that serve in each minute, where each advice is followed: a step takes its lead, and is under way until
    then."""
    serve, said = [], []
    target, done, still = nodes, 0, -10_000
    slots = chosen.horizon_ms // SLOT_MS
    for minute in range(len(per_second) - slots):
        if target != nodes and minute >= done:
            nodes, still = target, minute
        step = "" if target == nodes else "more" if target > nodes else "fewer"
        coming = ClusterLoad(NOW_MS + minute * SLOT_MS, per_second[minute : minute + slots], size, 2 * HOUR_MS)
        seen = facts(
            coming, nodes, now_ms=NOW_MS + minute * SLOT_MS, under_way=step,
            still_ms=NOW_MS + still * SLOT_MS,
        )  # fmt: skip
        found = advise(chosen, seen)
        said.append(found)
        if found.nodes != target and target == nodes:
            target = found.nodes
            done = minute + math.ceil(lead_ms(chosen, seen, coming, max(target, nodes)) / SLOT_MS)
        serve.append(nodes)
    return serve, said


@given(
    herds=st.lists(st.tuples(st.integers(400, 1_400), st.floats(500, 20_000)), min_size=1, max_size=4),
    size=st.integers(0, 20 << 30),
)
@example(herds=[(400, 500.0), (758, 2_001.0)], size=0)
@settings(max_examples=60, deadline=None)
def test_over_a_day_the_nodes_are_there_before_each_herd_and_go_after_it(
    herds: list[tuple[int, float]], size: int
) -> None:
    """Each was stored hours before, and they are further apart than a step takes."""
    day = np.zeros(24 * 60 + SLOTS + 2_400)
    kept: list[tuple[int, float]] = []
    for minute, rate in sorted(herds):
        if not kept or minute - kept[-1][0] > 120:
            kept.append((minute, rate))
            day[minute] += rate
    serve, said = follow(day, 3, size, EACH)
    for minute, rate in kept:
        assert rate <= serve[minute] * EACH.per_node, f"{serve[minute]} nodes at {rate}: {said[minute - 60].because}"
        # a later one that has just come in sight is seen to at once
        if not any(0 <= minute - (other - EACH.horizon_ms // SLOT_MS) <= 120 for other, _ in kept if other > minute):
            assert not said[minute].because.endswith("under way: more"), "shards moved to new nodes in the herd"
    assert serve[-1] == 2, "nothing is to come, and the last herd is hours ago"
