"""The decisions of maintenance as tables of cases: restarts, sizes, volumes, who has ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from delayoperator.cluster.ended_processes import KEPT, EndedProcesses, incarnation_of
from delayoperator.cluster.pod_counts import Sizes, sizes, spare_copies, without_copies_lost
from delayoperator.cluster.restart import RestartPod, RestartWaits, afterwards, next_restart
from delayoperator.cluster.shard_summary import (
    SLOW_START_MS,
    STUCK_MS,
    ClaimView,
    PodView,
    SetView,
    ShardSummary,
    stuck_shards,
    summarize_shards,
)
from delayoperator.cluster.volumes import volumes
from delayoperator.kube.views import claim_view, ended_processes, pod_view, set_view
from delayregistry.model import ClusterSpec, Condition, ConditionType, ShardObject, ShardSpec, TopicSpec, Version
from hypothesis import given
from hypothesis import strategies as st

OLD, NEW = "shop-1", "shop-2"
WHOLE = ShardSummary(desired=6, existing=6, served=6, in_sync=6, masters={"n0": 3, "n1": 1, "n2": 2})


def pod(number: int, revision: str = OLD, *, ready: bool = True, deleting: bool = False, stopped: str = "") -> PodView:
    return PodView(f"shop-{number}", f"n{number}", f"uid{number}", revision, ready, deleting, stopped or None)


def unready(number: int, revision: str = OLD, *containers: str) -> PodView:
    """It runs, and has not been ready since 0."""
    return replace(pod(number, revision, ready=False), unready=containers, unready_since_ms=0)


def pods(*revisions: str) -> list[PodView]:
    return [pod(number, revision) for number, revision in enumerate(revisions)]


def pods_with(one: PodView) -> list[PodView]:
    """All others are old ones."""
    return [one if number == int(one.node[1:]) else pod(number) for number in range(3)]


# ---------------------------------------------------------------- restarts
SHORT = ShardSummary(desired=6, served=6, in_sync=5, unsynced=("orders-3 has 1 of 2 copies in sync",))
RESTARTS = {
    "nothing is old": (pods(NEW, NEW, NEW), WHOLE, None),
    "the fewest masters first": (pods(OLD, OLD, OLD), WHOLE, "shop-1"),
    "then the next": (pods(OLD, NEW, OLD), WHOLE, "shop-2"),
    "of equal ones the highest": (pods(OLD, OLD, OLD), ShardSummary(), "shop-2"),
    "a pod is ending": ([pod(0), pod(1), pod(2, deleting=True, ready=False)], WHOLE, "shop-2 is ending"),
    "a pod is missing": ([pod(0), pod(1)], WHOLE, "2 of 3 pods exist"),
    "a pod is not ready": ([pod(0), pod(1, NEW, ready=False), pod(2)], WHOLE, "waiting for shop-1 to be ready"),
    "a copy is missing": (
        pods(OLD, OLD, NEW),
        SHORT,
        "orders-3 has 1 of 2 copies in sync",
    ),
    "a shard has no master": (
        pods(OLD, OLD, NEW),
        ShardSummary(desired=6, served=5, in_sync=5, unserved=("orders-3 has no master yet",)),
        "orders-3 has no master yet",
    ),
    "a shard moves": (
        pods(OLD, OLD, NEW),
        ShardSummary(desired=1, served=1, in_sync=1, moving=1),
        "1 shard on the move",
    ),
    "a shard nobody asks for lacks a copy": (
        pods(OLD, NEW, NEW),
        ShardSummary(surplus=1, unsynced=("a-0 has 1 of 2",)),
        "a-0",
    ),
    "the new one does not start": (
        [pod(0), pod(1), pod(2, NEW, ready=False, stopped="ErrImagePull: no such image")],
        WHOLE,
        "the new revision does not start (shop-2: ErrImagePull: no such image)",
    ),
    "an old one does not start: it is no loss": (
        [pod(0), pod(1, ready=False, stopped="CrashLoopBackOff"), pod(2, NEW)],
        ShardSummary(desired=6, served=4, in_sync=2, unsynced=("orders-1 has 1 of 2 copies in sync",)),
        "shop-1",
    ),
    "an old one runs and is not ready: the one that was waited for": (pods_with(unready(0)), WHOLE, "shop-0"),
    "but not beside another": ([pod(0), unready(1), unready(2, NEW)], WHOLE, "waiting for shop-1, shop-2 to be ready"),
    "nor while a copy is missing that it may have": (pods_with(unready(0)), SHORT, "waiting for shop-0 to be ready"),
    "one whose restart was asked for": (
        [pod(0, NEW), replace(pod(1, NEW), restart="kim"), pod(2, NEW)],
        WHOLE,
        "shop-1",
    ),
    "and not twice": ([pod(0, NEW), replace(pod(1, NEW, deleting=True), restart="kim"), pod(2, NEW)], WHOLE, None),
    "but one at a time": (
        [pod(0), pod(1, ready=False, stopped="CrashLoopBackOff"), pod(2, deleting=True, ready=False)],
        WHOLE,
        "shop-2 is ending",
    ),
}


@pytest.mark.parametrize("case", RESTARTS)
def test_which_pod_is_restarted_next_or_what_it_waits_for(case: str) -> None:
    seen, counted, expected = RESTARTS[case]
    decided = next_restart(SetView(3, NEW, observed=True), seen, counted)
    if expected is None:
        assert decided is None
    elif isinstance(decided, RestartPod):
        assert decided.pod.name == expected
    else:
        assert isinstance(decided, RestartWaits)
        assert expected in decided.message
        assert decided.stuck == ("does not start" in expected)


STUCK: Mapping[str, frozenset[str]] = {"orders-3": frozenset({"n1", "n2"})}


def test_a_node_without_copies_of_a_stuck_shard_is_restarted_and_the_others_are_left_as_they_are() -> None:
    current = SetView(3, NEW, observed=True)
    decided = next_restart(current, pods(OLD, OLD, OLD), WHOLE, STUCK)
    assert isinstance(decided, RestartPod)
    assert decided.pod.name == "shop-0", "though it has the most masters"
    waits = next_restart(current, pods(NEW, OLD, OLD), WHOLE, STUCK)
    assert isinstance(waits, RestartWaits)
    assert waits.stuck
    assert "2 of 3 pods to go, all with copies of shards that are Blocked" in waits.message
    assert "orders-3 (copies on n1, n2)" in waits.message


def test_a_pod_that_cannot_start_is_replaced_whatever_it_has_copies_of() -> None:
    seen = [pod(0, NEW), pod(1, ready=False, stopped="CrashLoopBackOff"), pod(2, NEW)]
    decided = next_restart(SetView(3, NEW, observed=True), seen, WHOLE, STUCK)
    assert isinstance(decided, RestartPod)
    assert decided.pod.name == "shop-1"


def test_one_that_is_not_ready_stays_while_it_has_a_copy_of_a_stuck_shard_and_no_other_goes() -> None:
    decided = next_restart(SetView(3, NEW, observed=True), pods_with(unready(1)), WHOLE, STUCK)
    assert isinstance(decided, RestartWaits)
    assert "waiting for shop-1 to be ready" in decided.message


def test_a_pod_that_runs_and_is_not_ready_for_long_needs_people() -> None:
    current, seen = SetView(3, NEW, observed=True), pods_with(unready(1, NEW, "proxy"))
    early = next_restart(current, seen, WHOLE, wall_ms=STUCK_MS - 1)
    assert isinstance(early, RestartWaits)
    assert not early.stuck
    late = next_restart(current, seen, WHOLE, wall_ms=STUCK_MS)
    words = "shop-1 runs and does not become ready (container proxy)"
    assert late == RestartWaits(f"2 of 3 pods to go; {words}", stuck=True)
    recovering = pods_with(unready(1, NEW, "node", "proxy"))
    for wall_ms, stuck in ((SLOW_START_MS - 1, False), (SLOW_START_MS, True)):
        waits = next_restart(current, recovering, WHOLE, wall_ms=wall_ms)
        assert isinstance(waits, RestartWaits)
        assert waits.stuck == stuck
    last = [*pods(NEW, NEW), unready(2, NEW)]
    for wall_ms, stuck in ((STUCK_MS - 1, False), (STUCK_MS, True)):
        waits = afterwards("shop-2", current, last, WHOLE, wall_ms)
        assert waits is not None
        assert waits.stuck == stuck


def test_only_what_is_blocked_for_long_is_stuck_and_what_is_left_out_is_not_counted() -> None:
    blocked = Condition(ConditionType.BLOCKED, "NodeAway", "waiting", since_ms=1_000_000)
    spec = ShardSpec(7, "orders", 1, ("n0", "n1"), target=("n0", "n2"))
    shards = [
        ShardObject("orders-0", Version("1"), ShardSpec(6, "orders", 0, ("n0", "n1"))),
        ShardObject("orders-1", Version("1"), spec, conditions=(blocked,)),
    ]
    assert stuck_shards(shards, 1_000_000 + STUCK_MS - 1) == {}
    stuck = stuck_shards(shards, 1_000_000 + STUCK_MS)
    assert stuck == {"orders-1": {"n0", "n1", "n2"}}
    counted = summarize_shards(ClusterSpec("shop", 3, (TopicSpec("orders", 2),), 2), shards, {}, without=stuck)
    assert (counted.desired, counted.moving, counted.surplus, counted.blocked) == (1, 0, 0, ())
    assert counted.unserved_names == ("orders-0",)


def test_nothing_is_restarted_while_the_new_revision_is_not_known() -> None:
    assert next_restart(SetView(3, OLD, observed=False), pods(OLD, NEW, NEW), WHOLE) is None


def test_a_restart_is_over_when_all_is_as_before() -> None:
    current = SetView(3, NEW, observed=True)
    for seen, counted in (
        (pods(NEW, NEW), WHOLE),
        ([*pods(NEW, NEW), pod(2, NEW, ready=False)], WHOLE),
        (pods(NEW, NEW, NEW), ShardSummary(desired=6, served=6, in_sync=5)),
    ):
        waits = afterwards("shop-2", current, seen, counted)
        assert waits is not None
        assert "shop-2 was the last" in waits.message
    assert afterwards("shop-2", current, pods(NEW, NEW, NEW), WHOLE) is None


# ---------------------------------------------------------------- sizes
SIZES: Mapping[str, tuple[tuple[int, int, dict[str, int], tuple[str, ...]], Sizes]] = {
    "new": ((3, 0, {}, ()), Sizes(3, 3)),
    "as it is": ((3, 3, {"n0": 4, "n2": 1}, ()), Sizes(3, 3)),
    "more, at once": ((5, 3, {"n0": 4}, ()), Sizes(5, 5)),
    "fewer: first it has to be known": ((3, 5, {"n0": 4}, ()), Sizes(5, 5, ("n3", "n4"))),
    "fewer: known, and copies are left": ((3, 5, {"n4": 4}, ("n3", "n4")), Sizes(5, 5, ("n3", "n4"))),
    "the highest is empty": ((3, 5, {"n3": 1, "n4": 0}, ("n3", "n4")), Sizes(4, 4, ("n3",))),
    "all empty": ((3, 5, {"n2": 1}, ("n3", "n4")), Sizes(3, 3)),
    "another thought": ((5, 5, {"n4": 1}, ("n3", "n4")), Sizes(5, 5)),
    "the StatefulSet is lost": ((3, 0, {"n0": 1, "n4": 2}, ()), Sizes(5, 5, ("n3", "n4"))),
    "somebody shrank the StatefulSet": ((5, 1, {"n4": 2}, ()), Sizes(5, 5)),
    "drained by people, not leaving": ((3, 3, {"n1": 2}, ("n1",)), Sizes(3, 3)),
}


@pytest.mark.parametrize("case", SIZES)
def test_how_many_pods_there_are_to_be(case: str) -> None:
    (wanted, now, named, drained), expected = SIZES[case]
    found = sizes(wanted, now, named, drained)
    assert (found.nodes, found.pods, found.leaving) == (expected.nodes, expected.pods, expected.leaving)


@given(
    st.integers(1, 8),
    st.integers(0, 8),
    st.dictionaries(st.integers(0, 7).map("n{}".format), st.integers(0, 3)),
    st.sets(st.integers(0, 7).map("n{}".format)),
)
def test_no_pod_goes_that_has_a_copy_and_leaving_ends(
    wanted: int, now: int, named: dict[str, int], drained: set[str]
) -> None:
    found = sizes(wanted, now, named, drained)
    assert all(int(node[1:]) < found.pods for node, count in named.items() if count)
    assert found.pods >= wanted
    assert all(wanted <= int(node[1:]) < found.nodes for node in found.leaving)
    drained = drained | set(found.leaving)
    once_empty = sizes(
        wanted, found.pods, {node: count for node, count in named.items() if int(node[1:]) < wanted}, drained
    )
    assert once_empty.pods == wanted


SPARE = {
    "each has said that it has nothing else": ({"n3": 0, "n4": 0}, "n3 n4", "", 3),
    "one has": ({"n3": 1, "n4": 0}, "n3 n4", "", 4),
    "one has not said so": ({"n3": 0}, "n3 n4", "", 5),
    "it never had a volume": ({"n3": 0}, "n3", "", 3),
    "it has been away for long": ({"n3": 0}, "n3 n4", "n4", 3),
}


@pytest.mark.parametrize("name", SPARE)
def test_no_volume_goes_that_may_have_copies_on_which_no_shard_counts(name: str) -> None:
    spare, have, gone, pods = SPARE[name]
    found = without_copies_lost(Sizes(3, 3), 3, 5, spare, have.split(), gone.split())
    assert (found.nodes, found.pods) == (pods, pods)
    assert found.leaving == tuple(f"n{number}" for number in range(3, pods))
    assert ("`delayctl nodes orphans`" in found.message) == (name == "one has")


def test_a_copy_whose_shard_was_deleted_a_moment_ago_keeps_its_node() -> None:
    """The volume would be gone before the nodes are asked again: what they said is held against the shards of now."""
    said = {"n3": frozenset({7}), "n4": frozenset({7, 8})}
    assert spare_copies(said, {7: {"n3", "n4"}, 8: {"n4"}}) == {"n3": 0, "n4": 0}
    assert spare_copies(said, {7: {"n0", "n4"}}) == {"n3": 1, "n4": 1}
    found = without_copies_lost(Sizes(3, 3), 3, 5, spare_copies(said, {}), {"n3", "n4"}, ())
    assert found.pods == 5


def test_a_set_that_is_made_again_begins_with_all_volumes_that_there_are() -> None:
    assert sizes(3, 0, {}, (), {"n0", "n4"}) == Sizes(
        5, 5, ("n3", "n4"), "to 3 nodes: n3, n4 go, and no shard is left there"
    )
    drained = ("n3", "n4")
    assert sizes(3, 0, {}, drained, {"n0", "n4"}).pods == 5, "they were drained in a former cluster of this name"
    assert sizes(3, 3, {}, (), {"n0", "n4"}) == Sizes(3, 3), "one that is left behind beside a set is not waited for"


# ---------------------------------------------------------------- volumes
GIB = 2**30
VOLUMES = {
    "large enough": (ClaimView("data-shop-0", "n0", 2 * GIB, 2 * GIB, True), "", ""),
    "larger than wished: it never shrinks": (ClaimView("data-shop-0", "n0", 4 * GIB, 4 * GIB, True), "", ""),
    "too small": (ClaimView("data-shop-0", "n0", GIB, GIB, True), "grow", "data-shop-0 has 1 GiB, 2Gi is wished for"),
    "the class is not known: it is tried": (ClaimView("data-shop-0", "n0", GIB, GIB, None), "grow", "data-shop-0"),
    "the class says no": (ClaimView("data-shop-0", "n0", GIB, GIB, False), "refused", "data-shop-0 has 1 GiB"),
    "under way": (ClaimView("data-shop-0", "n0", 2 * GIB, GIB, True), "growing", "data-shop-0 has 1 GiB of 2 GiB"),
    "not bound yet": (ClaimView("data-shop-0", "n0", GIB, 0, True), "", ""),
}


@pytest.mark.parametrize("case", VOLUMES)
def test_which_claims_grow(case: str) -> None:
    claim, where, words = VOLUMES[case]
    found = volumes(2 * GIB, "2Gi", [claim])
    said = {"grow": [it.reason for it in found.grow], "growing": found.growing, "refused": found.refused}
    assert [name for name, sentences in said.items() if sentences] == ([where] if where else [])
    assert not where or words in said[where][0]


# ---------------------------------------------------------------- who has ended
@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("incarnation 0011aabb\n", "0011aabb"),
        ("incarnation 0011aabb", "0011aabb"),
        ("Traceback ...\nincarnation 0011aabb\n", None),
        ("incarnation 0011aabb and more", None),
        ("incarnation ", None),
        ("", None),
        (None, None),
        (7, None),
    ],
)
def test_only_a_termination_message_of_exactly_this_form_names_a_process(message: object, expected: str | None) -> None:
    assert incarnation_of(message) == expected


def test_only_terminated_containers_have_ended() -> None:
    note = {"message": "incarnation aa\n"}
    seen = {
        "metadata": {"name": "shop-0", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "status": {
            "phase": "Failed",
            "containerStatuses": [
                {"name": "node", "state": {"running": note}, "lastState": {"waiting": note}},
                {"name": "sidecar", "state": {"terminated": {"message": "incarnation cc\n"}}},
            ],
        },
    }
    assert ended_processes(seen) == []
    seen["status"]["containerStatuses"][0]["lastState"] = {"terminated": note}  # type: ignore[index]
    assert ended_processes(seen) == ["aa"]


def test_who_has_ended_once_stays_so_and_the_memory_is_bounded() -> None:
    endings = EndedProcesses()
    assert endings.add(["a", "b", "a"]) == ("a", "b")
    assert endings.add(["b", "c"]) == ("c",)
    assert endings.known() == {"a", "b", "c"}
    endings.add([f"x{number}" for number in range(2 * KEPT)])
    assert len(endings.known()) == KEPT


# ---------------------------------------------------------------- Kubernetes' words
STOPPED = {
    "runs": ({"phase": "Running", "containerStatuses": [{"name": "node", "state": {"running": {}}}]}, None),
    "image": (
        {"phase": "Pending", "containerStatuses": [{"name": "node", "state": {"waiting": {"reason": "ErrImagePull"}}}]},
        "ErrImagePull",
    ),
    "crashes": (
        {
            "phase": "Running",
            "containerStatuses": [
                {
                    "name": "node",
                    "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}},
                    "lastState": {"terminated": {"exitCode": 3}},
                }
            ],
        },
        "CrashLoopBackOff: the last one ended with exit code 3; see kubectl logs --previous",
    ),
    "no machine": (
        {
            "phase": "Pending",
            "conditions": [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": "no memory",
                }
            ],
        },
        "Unschedulable: no memory",
    ),
    "evicted": ({"phase": "Failed", "reason": "Evicted", "message": "disk pressure"}, "Evicted: disk pressure"),
    "just made": ({}, "Pending"),
}


@pytest.mark.parametrize("case", STOPPED)
def test_why_a_pod_does_not_run(case: str) -> None:
    status, expected = STOPPED[case]
    view = pod_view("shop", {"metadata": {"name": "shop-1"}, "status": status})
    assert view is not None
    assert view.stopped == expected


def test_which_containers_of_a_pod_are_not_ready_and_since_when() -> None:
    since = {"type": "Ready", "status": "False", "lastTransitionTime": "1970-01-01T00:01:00Z"}
    containers = [{"name": "node", "ready": True}, {"name": "proxy", "ready": False}]
    status = {"phase": "Running", "conditions": [since], "containerStatuses": containers}
    view = pod_view("shop", {"metadata": {"name": "shop-1"}, "status": status})
    assert view is not None
    assert (view.ready, view.unready, view.unready_since_ms) == (False, ("proxy",), 60_000)
    since["status"] = "True"
    view = pod_view("shop", {"metadata": {"name": "shop-1"}, "status": status})
    assert view is not None
    assert (view.ready, view.unready_since_ms) == (True, None)


def test_names_that_only_look_like_this_clusters_are_not_its_own() -> None:
    for name in ("shop-", "shop-x", "shop-01", "shopping-1", "shop-1-2", "eshop-1"):
        assert pod_view("shop", {"metadata": {"name": name}}) is None
        assert claim_view("shop", {"metadata": {"name": f"data-{name}"}}, {}) is None


def test_a_status_of_an_earlier_spec_says_nothing_of_the_revision() -> None:
    body = {"metadata": {"generation": 3}, "spec": {"replicas": 3}, "status": {"updateRevision": "a"}}
    assert not set_view({**body, "status": {"updateRevision": "a", "observedGeneration": 2}}).observed
    assert set_view({**body, "status": {"updateRevision": "a", "observedGeneration": 3}}).observed
    assert not set_view({"metadata": {"generation": 1}, "spec": {}}).observed
