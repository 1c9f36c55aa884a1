"""The states of a DelayRebalance and its verbs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from delayapi.units import HOUR_MS
from delayoperator.crds.rebalance import DelayRebalanceStatus, MoveState, PlanModel, RebalanceState
from delayoperator.crds.rebalancing import Approval, AutomaticBelow
from delayoperator.rebalance_plan import Job, JobState, LoadForecast, Size, made_for, text_of
from delayoperator.rebalance_plan.states import ACCEPTS
from delayregistry.model import TopicSpec

from tests.plan.cluster import Cluster
from tests.plan.rebalancing.driver import START_MS, Driver, a_move, a_plan, cluster, nodes_of


@pytest.fixture(scope="module")
def settled() -> Cluster:
    """For tests that carry nothing out."""
    return cluster(3, 6)


def moves_to(world: Cluster, node: str) -> list[dict[str, str]]:
    """All shards' copies onto one node, by hand."""
    return [
        {"shard": name, "from": nodes[0], "to": node}
        for name, nodes in sorted(nodes_of(world).items())
        if node not in nodes
    ]


def proposed(world: Cluster, *, plan: PlanModel | None = None, **spec: object) -> Driver:
    driver = Driver(world, **spec)
    name = next(name for name, nodes in sorted(nodes_of(world).items()) if nodes[0] != "n0")
    driver.ready(plan or a_plan([a_move(world, name, "n0")]))
    return driver


def test_moves_by_hand_become_a_plan_that_waits_for_its_approval(settled: Cluster) -> None:
    driver = Driver(settled, moves=moves_to(settled, "n0"))
    driver.around = replace(driver.around, generation=7, sizes={name: Size(500, 5) for name in settled.shards})
    driver.look()
    assert (driver.state, driver.reason) == (RebalanceState.PROPOSAL_READY, "WaitsForApproval")
    assert driver.status is not None
    assert driver.status.plan is not None
    assert driver.status.plan.moved_bytes == 500 * len(driver.moves) == 2_000
    assert (driver.status.plan.cluster_generation, driver.status.plan.made_for) == (7, made_for(settled.spec))
    assert {(it.hot_slots is None, it.due_during_move) for it in driver.moves} == {(True, None)}, "nobody has said it"
    assert driver.status.plan.hash
    assert driver.status.plan.hash in driver.status.conditions[0].message  # type: ignore[index]
    assert driver.last is not None
    assert (driver.last.edits, driver.last.wants_job) == ((), False)


def test_moves_by_hand_tell_what_falls_due_and_when_their_shards_are_hot(settled: Cluster) -> None:
    """n1 has 100 messages in the slot after the next, of which 60 are t-1's, and 1 a second in all slots."""
    name = next(name for name, nodes in sorted(nodes_of(settled).items()) if nodes[0] == "n1")
    flat, burst = np.full(12, 300.0), np.zeros(12)
    burst[2] = 6_000
    loads = np.stack([flat, flat + burst, flat])
    driver = Driver(settled, moves=[{"shard": name, "from": "n1", "to": "n0"}])
    coming = LoadForecast(START_MS, 300_000, ("n0", "n1", "n2"), loads, {name: flat / 3 + burst * 0.6})
    size = Size(32 << 20, 5)  # a second to copy
    driver.around = replace(driver.around, sizes={name: size}, coming=coming)
    driver.look()
    assert driver.status is not None
    assert driver.status.plan is not None
    (move,) = driver.moves
    assert move.hot_slots == [text_of(START_MS + 600_000)]
    assert move.due_during_move == driver.status.plan.due_in_window == 2  # 6 s of a third a second
    assert driver.status.plan.slot_seconds == 300
    driver.around = replace(driver.around, coming=replace(coming, whole=False))
    driver.look(verb="refresh")
    assert (driver.moves[0].hot_slots, driver.moves[0].due_during_move) == (None, 2), "hot is so beside all others"
    driver.now_ms += 590_000
    driver.around = replace(driver.around, coming=coming)
    driver.look(verb="refresh")
    driver.approve()
    assert driver.in_flight() == 0, "its hot slot is near"


@pytest.mark.parametrize(
    ("move", "says"),
    [
        ({"shard": "t-99", "from": "n0", "to": "n1"}, "t-99: there is no such shard"),
        ({"shard": "t-0", "from": "n0", "to": "n7"}, "there is no node n7"),
        ({"shard": "t-0", "from": "n5", "to": "n1"}, "n5 has no copy; they are on n0"),
    ],
)
def test_moves_by_hand_that_cannot_be_made_are_named(settled: Cluster, move: dict[str, str], says: str) -> None:
    driver = Driver(settled, moves=[move])
    driver.look()
    assert (driver.state, driver.reason) == (RebalanceState.NOT_READY, "MovesImpossible")
    assert says in driver.status.conditions[0].message  # type: ignore[union-attr,index]


def test_an_excluded_topics_shards_stay(settled: Cluster) -> None:
    driver = Driver(settled, moves=moves_to(settled, "n0"), excludedTopics=["t"])
    driver.look()
    assert driver.reason == "MovesImpossible"


def test_without_moves_the_job_is_asked_once_and_its_plan_waits(settled: Cluster) -> None:
    driver = Driver(settled)
    assert driver.look().wants_job
    assert (driver.state, driver.reason) == (RebalanceState.PENDING_PROPOSAL, "ProposalRequested")
    asked_at = driver.status.requested_at  # type: ignore[union-attr]
    driver.job(Job(JobState.RUNS))
    driver.now_ms += 5_000
    assert not driver.look().wants_job
    assert driver.status is not None
    assert driver.status.requested_at == asked_at
    plan = a_plan([a_move(settled, "t-0", "n1")])
    driver.status = driver.status.model_copy(update={"plan": plan})
    driver.look()
    assert driver.state is RebalanceState.PROPOSAL_READY


@pytest.mark.parametrize(
    ("job", "state", "reason"),
    [
        (Job(JobState.FAILED, "exit code 1"), RebalanceState.NOT_READY, "JobFailed"),
        (Job(JobState.FINISHED), RebalanceState.READY, "Balanced"),
    ],
)
def test_a_job_without_a_plan(settled: Cluster, job: Job, state: RebalanceState, reason: str) -> None:
    driver = Driver(settled)
    driver.look()
    driver.job(job)
    driver.look()
    assert (driver.state, driver.reason) == (state, reason)


def test_a_plan_without_moves_leaves_the_cluster_alone(settled: Cluster) -> None:
    driver = proposed(settled, plan=a_plan([]), approval="Automatic")
    assert (driver.state, driver.reason) == (RebalanceState.READY, "Balanced")


@pytest.mark.parametrize("named", ["", "true", "yes", "0123456789ab"])
def test_an_approval_of_another_hash_never_starts_the_plan(settled: Cluster, named: str) -> None:
    driver = proposed(settled)
    outcome = driver.look(approve=named)
    assert (driver.state, outcome.edits) == (RebalanceState.PROPOSAL_READY, ())
    assert driver.said[-1] == "ApprovalRefused"
    assert outcome.consumed == {"approve"}


def test_an_approval_of_a_former_plan_does_not_start_the_present_one(settled: Cluster) -> None:
    driver = proposed(settled)
    assert driver.status is not None
    assert driver.status.plan is not None
    former = driver.status.plan.hash
    later = a_plan([a_move(settled, "t-1", "n0")], made_at=text_of(START_MS + 1))
    driver.status = driver.status.model_copy(update={"plan": later})
    driver.look(approve=former)
    assert driver.state is RebalanceState.PROPOSAL_READY
    assert "ApprovalRefused" in driver.said


def test_an_expired_plan_cannot_be_approved() -> None:
    world = cluster(3, 3)
    for state in (RebalanceState.PROPOSAL_READY, RebalanceState.STOPPED):
        driver = proposed(world, plan=a_plan([a_move(world, "t-1", "n0")], expires_at=text_of(START_MS + HOUR_MS)))
        if state is RebalanceState.STOPPED:
            driver.spec = driver.spec.model_copy(update={"not_before": text_of(START_MS + HOUR_MS)})
            driver.approve()
            driver.look(verb="stop")
        assert driver.state is state
        driver.now_ms += HOUR_MS
        driver.approve()
        assert driver.state in (RebalanceState.NOT_READY, RebalanceState.STOPPED)
        assert "ApprovalRefused" in driver.said
        assert driver.begun == []


def test_an_approval_after_the_window_is_refused_until_there_is_a_later_one() -> None:
    world = cluster(3, 6)
    end = text_of(START_MS + 10_000)
    driver = Driver(world, moves=moves_to(world, "n2"), maxInFlight=1, notAfter=end)
    driver.look()
    driver.now_ms += 10_000
    driver.approve()
    assert (driver.state, driver.said[-1]) == (RebalanceState.PROPOSAL_READY, "ApprovalRefused")
    driver.now_ms = START_MS
    driver.approve()
    driver.now_ms += 10_000
    driver.until(driver.is_over)
    assert (driver.state, driver.reason) == (RebalanceState.STOPPED, "WindowClosed")
    begun, said = list(driver.begun), len(driver.said)
    driver.approve()
    assert driver.state is RebalanceState.STOPPED
    assert driver.said[said:] == ["ApprovalRefused"]
    assert driver.last is not None
    assert f"spec.notAfter, {end}, is over: set a later one first" in driver.last.events[0].message
    assert driver.begun == begun
    driver.spec = driver.spec.model_copy(update={"not_after": text_of(driver.now_ms + HOUR_MS)})
    driver.generation += 1
    driver.approve()
    driver.until(driver.is_over)
    assert (driver.state, driver.reason) == (RebalanceState.READY, "MovesDone")
    assert set(nodes_of(world).values()) == {("n2",)}


def test_a_plan_that_nobody_approves_expires_and_a_refresh_asks_for_another(settled: Cluster) -> None:
    driver = proposed(settled, plan=a_plan([a_move(settled, "t-1", "n0")], expires_at=text_of(START_MS + HOUR_MS)))
    assert driver.last is not None
    assert driver.last.recheck_at_ms == START_MS + HOUR_MS
    driver.now_ms += HOUR_MS
    driver.look()
    assert (driver.state, driver.reason) == (RebalanceState.NOT_READY, "PlanExpired")
    assert driver.look(verb="refresh").wants_job
    assert driver.state is RebalanceState.PENDING_PROPOSAL
    assert driver.status is not None
    assert driver.status.plan is None


@pytest.mark.parametrize(
    "change",
    [
        {"nodes": 4},
        {"drained": ("n2",)},
        {"replicas": 2},
        {"topics": (TopicSpec("t", 7),)},
        {"topics": (TopicSpec("t", 6), TopicSpec("u", 1))},
    ],
)
@pytest.mark.parametrize("state", [RebalanceState.PROPOSAL_READY, RebalanceState.STOPPED])
def test_a_plan_for_other_nodes_copies_or_topics_is_void(change: dict[str, Any], state: RebalanceState) -> None:
    world = cluster(3, 6)
    plan = a_plan([a_move(world, "t-1", "n0")], made_for=made_for(world.spec))
    driver = proposed(world, plan=plan, notBefore=text_of(START_MS + HOUR_MS))
    if state is RebalanceState.STOPPED:
        driver.approve()
        driver.look(verb="stop")
    assert driver.state is state
    world.spec = replace(world.spec, **change)
    driver.approve()
    assert (driver.state, driver.reason) == (
        (RebalanceState.NOT_READY, "ClusterChanged")
        if state is RebalanceState.PROPOSAL_READY
        else (RebalanceState.STOPPED, "StoppedByRequest")
    )
    assert "ApprovalRefused" in driver.said


@pytest.mark.parametrize(
    "change",
    [{"min_in_sync": 1, "horizon_days": 90}, {"topics": (TopicSpec("t", 6, max_attempts=3),)}, {}],
)
def test_a_plan_outlasts_changes_that_it_does_not_count_on_such_as_a_pause(change: dict[str, Any]) -> None:
    world = cluster(3, 6)
    driver = Driver(world)
    driver.around = replace(driver.around, generation=4)
    plan = a_plan([a_move(world, "t-1", "n0")], made_for=made_for(world.spec), cluster_generation=4)
    driver.ready(plan)
    driver.paused(True)
    driver.look()
    assert driver.state is RebalanceState.RECONCILIATION_PAUSED
    world.spec = replace(world.spec, **change)
    driver.around = replace(driver.around, generation=6)
    driver.paused(False)
    driver.approve()
    assert driver.state is RebalanceState.REBALANCING


@pytest.mark.parametrize(
    ("limits", "begins"),
    [
        ({"movedBytes": 1_000}, True),
        ({"movedBytes": 999}, False),
        ({"movedBytes": 1_000, "dueInWindow": 9}, False),
        ({"dueInWindow": 10}, True),
    ],
)
def test_small_plans_are_carried_out_unasked_where_that_is_wished(limits: dict[str, int], begins: bool) -> None:
    world = cluster(3, 3)
    name = next(name for name, nodes in sorted(nodes_of(world).items()) if nodes[0] != "n0")
    plan = a_plan([a_move(world, name, "n0")], moved_bytes=1_000, due_in_window=10)
    driver = proposed(world, plan=plan, approval="AutomaticBelow", automaticBelow=limits)
    assert (driver.state is RebalanceState.REBALANCING) is begins


def below(moved_bytes: int) -> AutomaticBelow:
    return AutomaticBelow(moved_bytes=moved_bytes, due_in_window=None)


@pytest.mark.parametrize(
    ("clusters", "own", "begins"),
    [
        ({"approval": Approval.AUTOMATIC}, {}, True),
        ({"approval": Approval.MANUAL}, {}, False),
        ({"approval": Approval.AUTOMATIC}, {"approval": "Manual"}, False),
        ({"approval": Approval.MANUAL}, {"approval": "Automatic"}, True),
        (
            {
                "approval": Approval.AUTOMATIC_BELOW,
                "automatic_below": below(1_000),
            },
            {},
            True,
        ),
        (
            {
                "approval": Approval.AUTOMATIC_BELOW,
                "automatic_below": below(999),
            },
            {},
            False,
        ),
    ],
)
def test_the_clusters_approval_holds_where_a_rebalance_has_none_of_its_own(
    clusters: dict[str, Any], own: dict[str, Any], begins: bool
) -> None:
    world = cluster(3, 3)
    driver = Driver(world, **own)
    driver.around = replace(driver.around, **clusters)
    driver.ready(a_plan([a_move(world, "t-1", "n0")], moved_bytes=1_000))
    assert (driver.state is RebalanceState.REBALANCING) is begins


def test_the_clusters_approval_is_the_present_one_and_not_that_of_the_plans_making() -> None:
    world = cluster(3, 3)
    driver = Driver(world)
    driver.ready(a_plan([a_move(world, "t-1", "n0")]))
    assert driver.state is RebalanceState.PROPOSAL_READY
    driver.around = replace(driver.around, approval=Approval.AUTOMATIC)
    driver.look()
    assert driver.state is RebalanceState.REBALANCING


def test_moves_by_hand_wait_for_approval_whatever_the_clusters_request_for_the_jobs(settled: Cluster) -> None:
    driver = Driver(settled, moves=moves_to(settled, "n0"))
    driver.around = replace(driver.around, approval=Approval.AUTOMATIC)
    driver.look()
    assert driver.state is RebalanceState.PROPOSAL_READY


def test_what_is_not_known_is_not_below_a_limit(settled: Cluster) -> None:
    driver = proposed(settled, approval="AutomaticBelow", automaticBelow={"dueInWindow": 1 << 40})
    assert driver.state is RebalanceState.PROPOSAL_READY


def test_a_stopped_plan_finishes_what_is_under_way_starts_nothing_more_and_can_go_on() -> None:
    world = cluster(3, 6)
    driver = Driver(world, moves=moves_to(world, "n2"), maxInFlight=1)
    driver.look()
    driver.approve()
    begun = list(driver.begun)
    driver.look(verb="stop")
    assert (driver.state, driver.reason) == (RebalanceState.REBALANCING, "Stopping")
    driver.until(driver.is_over)
    assert (driver.state, driver.reason) == (RebalanceState.STOPPED, "StoppedByRequest")
    assert driver.begun == begun
    assert len(begun) == 1
    assert [it.state for it in driver.moves].count(MoveState.DONE) == 1
    driver.approve()
    driver.until(driver.is_over)
    assert (driver.state, driver.reason) == (RebalanceState.READY, "MovesDone")
    assert set(nodes_of(world).values()) == {("n2",)}


def test_a_stop_can_be_taken_back_while_it_is_awaited() -> None:
    world = cluster(3, 6)
    driver = Driver(world, moves=moves_to(world, "n2"), maxInFlight=1)
    driver.look()
    driver.approve()
    driver.look(verb="stop")
    driver.approve()
    driver.until(driver.is_over)
    assert driver.reason == "MovesDone"


def test_a_stop_that_crosses_the_jobs_plan_keeps_it_from_beginning_unasked() -> None:
    world = cluster(3, 3)
    driver = Driver(world, approval="Automatic")
    driver.look()
    assert driver.state is RebalanceState.PENDING_PROPOSAL
    assert driver.status is not None
    driver.status = driver.status.model_copy(update={"plan": a_plan([a_move(world, "t-1", "n0")])})
    outcome = driver.look(verb="stop")
    assert (driver.state, outcome.edits) == (RebalanceState.STOPPED, ())
    driver.now_ms += 3 * HOUR_MS
    assert driver.look().edits == ()
    driver.approve()
    assert driver.state is RebalanceState.REBALANCING


def test_a_refresh_while_under_way_finishes_the_move_and_proposes_anew() -> None:
    world = cluster(3, 6)
    driver = Driver(world, moves=moves_to(world, "n2"), maxInFlight=1)
    driver.look()
    former = driver.status.plan.hash  # type: ignore[union-attr]
    driver.approve()
    driver.spec = driver.spec.model_copy(update={"moves": None})
    driver.generation += 1
    driver.look(verb="refresh")
    driver.until(lambda: driver.state is RebalanceState.PENDING_PROPOSAL)
    assert len(driver.begun) == 1
    driver.look(approve=former)
    assert driver.state is RebalanceState.PENDING_PROPOSAL


def test_after_an_end_nothing_is_carried_out_unasked_until_it_has_cooled_down() -> None:
    world = cluster(3, 6)
    names = sorted(name for name, nodes in nodes_of(world).items() if nodes[0] == "n1")
    driver = proposed(world, plan=a_plan([a_move(world, names[0], "n0")]), approval="Automatic", coolDown="2h")
    driver.until(driver.is_over)
    assert driver.state is RebalanceState.READY
    assert driver.status is not None
    later = a_plan([a_move(world, names[1], "n0")], made_at=text_of(driver.now_ms))
    driver.status = driver.status.model_copy(update={"plan": later})
    driver.look()
    assert (driver.state, driver.reason) == (RebalanceState.PROPOSAL_READY, "CoolingDown")
    driver.now_ms += 2 * HOUR_MS - 10_000
    driver.look()
    assert driver.state is RebalanceState.PROPOSAL_READY
    driver.now_ms += 10_000
    driver.look()
    assert driver.state is RebalanceState.REBALANCING


def test_a_person_need_not_wait_for_the_cool_down() -> None:
    world = cluster(3, 3)
    driver = Driver(world, moves=moves_to(world, "n2"), approval="Automatic")
    driver.look()
    assert driver.state is RebalanceState.REBALANCING
    driver.look(verb="stop")
    driver.until(driver.is_over)
    left = [it for it in driver.moves if it.state is None]
    if left:
        driver.approve()
        assert driver.state is RebalanceState.REBALANCING


def test_of_one_cluster_one_plan_is_carried_out_at_a_time(settled: Cluster) -> None:
    for approval in ("Manual", "Automatic"):
        driver = Driver(settled, approval=approval)
        driver.around = replace(driver.around, busy="other")
        driver.ready(a_plan([a_move(settled, "t-1", "n0")]))
        driver.approve()
        assert driver.state is RebalanceState.PROPOSAL_READY
        assert driver.said[-1] in ("ApprovalRefused", "AnotherUnderWay")


def test_a_paused_cluster_rests_and_goes_on_where_it_was() -> None:
    world = cluster(3, 6)
    driver = Driver(world, moves=moves_to(world, "n2"), maxInFlight=1)
    driver.look()
    driver.approve()
    driver.paused(True)
    outcome = driver.look(verb="stop")
    assert (driver.state, driver.reason, outcome.edits) == (RebalanceState.RECONCILIATION_PAUSED, "Paused", ())
    assert outcome.consumed == frozenset(), "verbs are kept for later"
    begun = len(driver.begun)
    for _ in range(5):
        driver.now_ms += 1_000
        driver.nodes_work()
        driver.look()
    assert len(driver.begun) == begun
    driver.paused(False)
    driver.look()
    assert driver.state is RebalanceState.REBALANCING
    driver.until(driver.is_over)
    assert driver.reason == "MovesDone"


@pytest.mark.parametrize("state", sorted(set(RebalanceState) - {RebalanceState.RECONCILIATION_PAUSED}))
@pytest.mark.parametrize("verb", ["stop", "refresh", "dance"])
def test_a_verb_is_answered_and_taken_away_whatever_the_state(
    settled: Cluster, state: RebalanceState, verb: str
) -> None:
    plan = a_plan([a_move(settled, "t-1", "n0")])
    fields = {"state": state, "plan": plan, "plan_seen": plan.hash, "approved": plan.hash, "observed_generation": 1}
    driver = Driver(settled, DelayRebalanceStatus.model_validate(fields), notBefore=text_of(START_MS + HOUR_MS))
    outcome = driver.look(verb=verb)
    assert outcome.consumed == {"verb"}
    means = state in ACCEPTS.get(verb, ()) or (state is RebalanceState.NEW and verb in ACCEPTS)
    assert ("VerbRefused" in driver.said) is not means


def test_another_spec_makes_another_plan_but_stops_none(settled: Cluster) -> None:
    driver = Driver(settled, moves=moves_to(settled, "n0"))
    driver.look()
    former = driver.status.plan.hash  # type: ignore[union-attr]
    fewer = Driver(settled, moves=moves_to(settled, "n0")[:1])
    driver.spec, driver.generation = fewer.spec, 2
    driver.look()
    assert len(driver.moves) == 1
    assert driver.status.plan.hash != former  # type: ignore[union-attr]


def test_a_quiet_rebalance_changes_no_status(settled: Cluster) -> None:
    driver = proposed(settled, plan=a_plan([a_move(settled, "t-1", "n0")], expires_at=text_of(START_MS + HOUR_MS)))
    before = driver.status
    for _ in range(5):
        driver.now_ms += 60_000
        assert driver.look().events == ()
        assert driver.status == before
