"""The operator asks masters over real gRPC for the load to come, and says how many nodes it needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.units import HOUR_MS, MINUTE_MS
from delayoperator.cluster.conditions import ClusterObservation, ConditionUpdate, conditions
from delayoperator.cluster.node_scaling import NodeAdvice, ScalingSettings
from delayoperator.cluster.pod_counts import Sizes
from delayoperator.cluster.reasons import Reason
from delayoperator.cluster.shard_summary import PodView, ShardSummary
from delayoperator.control_loop.loop import LoopClock
from delayoperator.control_loop.probe import GrpcProber
from delayoperator.kube.node_scaling import ASK_MS, SAY_MS, NodeScaler
from delayoperator.kube.status import changed, status_of, transitions
from delayoperator.plan import Liveness, ObservedNode
from delayregistry.model import ClusterSpec, NodeLease, TopicSpec

from tests.operator.test_sizes import Firings, lease, node, shard, wheel

START_MS = 1_800_000_000_000  # a whole minute, 08:00 UTC
EACH = ScalingSettings(per_node=100.0)
TOPICS = (TopicSpec("orders", 2), TopicSpec("calm", 1, max_release_per_second=50))
CLUSTER = ClusterSpec("shop", 3, TOPICS, replicas=2)
SHARDS = [shard("orders-0", "n0"), shard("orders-1", "n1"), shard("calm-0", "n1")]
PODS = tuple(PodView(f"shop-{n}", f"n{n}", f"uid{n}", "a", True) for n in range(3))
WELL = ClusterObservation(
    "shop",
    3,
    shard_summary=ShardSummary(desired=8, existing=8, served=8, in_sync=8),
    pods=PODS,
    nodes={f"n{n}": ObservedNode(Liveness.ALIVE, f"i{n}") for n in range(3)},
    sizes=Sizes(3, 3),
    was_ready=True,
)
STILL = {
    "conditions": [
        {"type": kind, "status": "False", "lastTransitionTime": "2027-01-15T01:00:00Z"}
        for kind in ("Progressing", "Rebalancing")
    ]
}


class World:
    """now_ms: both clocks', which goes on by hand, and by took_ms as nodes are asked."""

    def __init__(self, leases: list[NodeLease]) -> None:
        self.leases, self.asked, self.now_ms, self.took_ms = leases, 0, 0, 0
        clock = LoopClock(monotonic_ms=lambda: self.now_ms, wall_ms=lambda: START_MS + self.now_ms)
        self.scaler = NodeScaler(self, clock)  # type: ignore[arg-type]  # of the registry it asks for leases alone

    def list_leases(self) -> Sequence[NodeLease]:
        return self.leases

    def advise(self, seen: ClusterObservation = WELL, before: Any = None, later_ms: int = 0) -> NodeAdvice:
        self.now_ms += later_ms
        before = STILL if before is None else before
        advice, _ = self.scaler.advise(EACH, CLUSTER, seen, before, SHARDS, self._prober)
        return advice

    def _prober(self) -> GrpcProber:
        self.asked += 1
        self.now_ms += self.took_ms
        return GrpcProber()


@contextmanager
def world(*nodes: Sequence[pb.ShardWheel], firings: Firings | None = None) -> Iterator[World]:
    with ExitStack() as stack:
        started = [stack.enter_context(node(*it, now_ms=START_MS, firings=firings)) for it in nodes]
        yield World([lease(f"n{at}", endpoint) for at, endpoint in enumerate(started)])


def slot(minute: int, messages: int) -> tuple[int, int, int]:
    return START_MS + minute * MINUTE_MS, MINUTE_MS, messages


def in_an_hour(messages: int) -> tuple[list[pb.ShardWheel], list[pb.ShardWheel]]:
    """Half of it on each node."""
    half = slot(60, messages // 2)
    return [wheel("orders", 0, messages, 10, half)], [wheel("orders", 1, messages, 10, half), wheel("calm", 0, 0, 0)]


def test_what_falls_due_on_all_masters_in_one_minute_is_one_herd() -> None:
    with world(*in_an_hour(60 * 480)) as found:
        said = found.advise()
    assert (said.nodes, said.reason) == (5, Reason.MORE_NODES)
    assert "480 messages a second at 09:00 UTC are the most to come: 5 nodes" in said.because


def test_firings_of_schedules_are_a_load_to_come() -> None:
    """On two nodes: 240 messages a second each, of no message that waits."""
    firings = {"orders": (START_MS + 90 * MINUTE_MS, 60 * 240)}
    with world(*in_an_hour(0), firings=firings) as found:
        said = found.advise()
    assert (said.nodes, said.reason) == (5, Reason.MORE_NODES)
    assert said.because.startswith("480 messages a second at 09:30 UTC are the most to come"), said.because


def test_a_topic_that_is_held_back_needs_nodes_for_its_limit_alone() -> None:
    calm = wheel("calm", 0, 60_000, 10, slot(60, 60_000))
    with world([wheel("orders", 0, 0, 0)], [wheel("orders", 1, 0, 0), calm]) as found:
        said = found.advise()
    assert (said.nodes, said.reason) == (3, Reason.NODES_SUFFICE), said.because
    assert said.because.startswith("50 messages a second at 09:00 UTC"), "1,000 a second are due, and 50 are released"


def test_what_is_late_is_due_now() -> None:
    late = wheel("orders", 0, 60 * 480, 10, slot(-90, 60 * 480))
    with world([late], [wheel("orders", 1, 0, 0), wheel("calm", 0, 0, 0)]) as found:
        said = found.advise()
    assert said.reason is Reason.HERD_TOO_NEAR, said.because
    assert "480 messages a second at 08:00 UTC" in said.because


def test_a_master_that_does_not_answer_leaves_the_number_as_it_is() -> None:
    with world(*in_an_hour(60 * 480)) as found:
        found.leases[1] = lease("n1", "127.0.0.1:1")
        said = found.advise()
    assert (said.nodes, said.reason) == (3, Reason.LOAD_UNKNOWN)
    assert "the masters of these shards have not answered: calm-0; orders-1" in said.because


@pytest.mark.parametrize(("took_ms", "pause_ms"), [(0, 5_000), (2_000, 12_000), (10_000, 60_000)])
def test_a_master_that_hangs_is_asked_less_often(took_ms: int, pause_ms: int) -> None:
    """An operator's round waits for the answers."""
    with world([wheel("orders", 0, 0, 0)]) as found:
        found.took_ms = took_ms
        assert found.advise().reason is Reason.LOAD_UNKNOWN
        found.advise(later_ms=pause_ms - took_ms - 1)
        assert found.asked == 1
        found.advise(later_ms=1)
        assert found.asked == 2


def test_masters_are_asked_once_a_minute_and_the_advice_follows_the_spec_at_once() -> None:
    with world(*in_an_hour(60 * 480)) as found:
        assert found.advise().nodes == 5
        more = replace(WELL, wanted_nodes=5, sizes=Sizes(5, 5, message="from 3 to 5 nodes"))
        said = found.advise(more, later_ms=ASK_MS - 1)
        assert (said.nodes, said.reason, found.asked) == (5, Reason.SCALING_WAITS, 1)
        assert "one is under way: from 3 to 5 nodes" in said.because
        found.advise(more, later_ms=1)
        assert found.asked == 2


def test_a_paused_cluster_waits_and_says_so() -> None:
    with world(*in_an_hour(60 * 480)) as found:
        said = found.advise(replace(WELL, paused_by="spec.paused is true"))
    assert (said.nodes, said.reason) == (3, Reason.SCALING_WAITS)
    assert "spec.paused is true" in said.because


def test_there_are_fewer_once_nothing_moved_and_enqueues_were_watched() -> None:
    large = replace(WELL, wanted_nodes=5, sizes=Sizes(5, 5), pods=(PODS * 2)[:5])
    with world(*in_an_hour(0)) as found:
        assert "once enqueues were watched for 60 min" in found.advise(large).because
        for _ in range(60):
            said = found.advise(large, later_ms=ASK_MS)
        assert (said.nodes, said.reason) == (4, Reason.FEWER_NODES)
        moving = found.advise(replace(large, rebalancing="1 of 3 moves are done"))
        assert (moving.nodes, moving.reason) == (5, Reason.NODES_SUFFICE)
        moved = {"conditions": [{**it, "status": "True"} for it in STILL["conditions"]]}
        assert "once nothing has moved for 60 min" in found.advise(large, before=moved).because


def test_messages_that_are_enqueued_count_until_an_hour_later() -> None:
    orders = wheel("orders", 0, 0, 0)
    with world([orders], [wheel("orders", 1, 0, 0), wheel("calm", 0, 0, 0)]) as found:
        found.advise()
        orders.pending, orders.released = 100_000, 260_000  # some were delivered: 400 a second in a quarter of an hour
        with node(orders) as endpoint:
            found.leases[0] = lease("n0", endpoint)
            said = found.advise(later_ms=ASK_MS)
        assert said.because.startswith("400 messages a second"), said.because
        assert said.nodes == 4
        orders.pending = 0  # cancelled
        with node(orders) as endpoint:
            found.leases[0] = lease("n0", endpoint)
            for _ in range(24):
                said = found.advise(later_ms=ASK_MS)
            assert said.because.startswith("240 messages a second"), "in 25 minutes"
            for _ in range(42):
                said = found.advise(later_ms=ASK_MS)
    assert said.because.startswith("less than 1 message a second")


def test_nodes_in_three_zones_are_as_many_in_each() -> None:
    zoned = {node: replace(it, zone=f"zone-{node}") for node, it in WELL.nodes.items()}
    with world(*in_an_hour(60 * 480)) as found:
        assert found.advise(replace(WELL, nodes=zoned)).nodes == 6
        unknown = {**zoned, "n1": replace(zoned["n1"], zone="")}
        assert found.advise(replace(WELL, nodes=unknown)).nodes == 5


def test_the_status_says_it_and_says_it_again_though_it_stays() -> None:
    with world(*in_an_hour(60 * 480)) as found:
        said = found.advise()
        seen = replace(WELL, scaling=said)
        assert _scaling(seen) == ConditionUpdate("Scaling", True, Reason.MORE_NODES, said.because)
        first = status_of(conditions(seen), seen, {}, 1, "", "", START_MS)
        assert first["autoscaling"] == {"desired": 5, "because": said.because, "at": "2027-01-15T08:00:00Z"}
        assert ("MoreNodes", said.because, False) in transitions({}, first)
        soon = replace(WELL, scaling=found.advise(later_ms=SAY_MS - 1))
        assert "autoscaling" not in changed(first, status_of(conditions(soon), soon, first, 1, "", "", START_MS))
        later = replace(WELL, scaling=found.advise(later_ms=1))
        again = status_of(conditions(later), later, first, 1, "", "", START_MS)
        assert again["autoscaling"]["at"] == "2027-01-15T08:05:00Z"
        assert transitions(first, again) == [], "no event: nothing is new"
    none = status_of(conditions(WELL), WELL, first, 1, "", "", START_MS)
    assert none["autoscaling"] is None
    assert "Scaling" not in {it["type"] for it in none["conditions"]}


@pytest.mark.parametrize("minutes", [0, 5 * 60 + 59])
def test_the_whole_horizon_is_looked_at(minutes: int) -> None:
    orders = wheel("orders", 0, 1, 0, slot(minutes, 60 * 480))
    with world([orders], [wheel("orders", 1, 0, 0), wheel("calm", 0, 0, 0)]) as found:
        assert found.advise().reason is (Reason.MORE_NODES if minutes else Reason.HERD_TOO_NEAR)
    assert EACH.horizon_ms == 6 * HOUR_MS


def _scaling(seen: ClusterObservation) -> ConditionUpdate:
    return next(it for it in conditions(seen) if it.type == "Scaling")
