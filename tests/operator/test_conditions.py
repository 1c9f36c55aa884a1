"""The status's conditions, as tables of cases: the reason that scripts match, and the message's names and numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from delayoperator.cluster.annotations import Drains
from delayoperator.cluster.conditions import (
    MAX_MESSAGE_CHARS,
    ClusterObservation,
    ClusterProblem,
    ConditionUpdate,
    conditions,
)
from delayoperator.cluster.pod_counts import Sizes
from delayoperator.cluster.reasons import DEGRADED, NEEDS_PAGE, Reason
from delayoperator.cluster.restart import RestartWaits
from delayoperator.cluster.shard_summary import (
    SWITCHING_MS,
    PodView,
    ShardSummary,
    summarize_shards,
    unserved_since,
    without_switchovers,
)
from delayoperator.cluster.versions import NodesVersion
from delayoperator.cluster.volumes import Volumes
from delayoperator.kube.status import changed, status_of, transitions, was_ready
from delayoperator.plan import Liveness, ObservedNode, OrphanReport
from delayregistry.model import (
    ClusterSpec,
    Condition,
    ConditionType,
    ShardObject,
    ShardSpec,
    ShardStatus,
    TopicSpec,
    Version,
)

PODS = tuple(PodView(f"shop-{n}", f"n{n}", f"uid{n}", "a", True, machine=f"machine-{n}") for n in range(3))
WELL = ClusterObservation(
    "shop",
    3,
    shard_summary=ShardSummary(desired=6, existing=6, served=6, in_sync=6),
    pods=PODS,
    nodes={f"n{n}": ObservedNode(Liveness.ALIVE, f"i{n}") for n in range(3)},
    sizes=Sizes(3, 3),
    was_ready=True,
)
STOPPED = replace(PODS[2], ready=False, stopped="CrashLoopBackOff: exit code 1")


def said(seen: ClusterObservation, kind: str) -> ConditionUpdate:
    return next(it for it in conditions(seen) if it.type == kind)


def with_summary(**changes: Any) -> ClusterObservation:
    return replace(WELL, shard_summary=replace(WELL.shard_summary, **changes))


CASES = {
    "well": (WELL, "Ready", True, Reason.SERVING, "served: 6 of 6 shards; ready: 3 of 3 nodes"),
    "copies that share a place": (
        with_summary(together=("orders-3 (n0, n1 on machine m1)",)),
        "Ready",
        True,
        Reason.SERVING,
        "served: 6 of 6 shards; ready: 3 of 3 nodes; copies that may fail together: orders-3 (n0, n1 on machine m1)",
    ),
    "well, too": (WELL, "Degraded", False, Reason.HEALTHY, "nothing"),
    "settled": (WELL, "Progressing", False, Reason.SETTLED, "in place"),
    "not served": (
        with_summary(served=5, unserved=("orders-3 waits for a new master: n1 is not there",)),
        "Ready",
        False,
        Reason.SHARDS_NOT_SERVED,
        "served: 5 of 6 shards; ready: 3 of 3 nodes: orders-3 waits for a new master: n1 is not there",
    ),
    "new": (
        replace(with_summary(served=0, unserved=("a-0 has no master yet",)), was_ready=False),
        "Ready",
        False,
        Reason.STARTING,
        "served: 0 of 6",
    ),
    "surplus": (with_summary(surplus=2), "Ready", True, Reason.SERVING, "2 shards that nobody asks for: kept"),
    "blocked": (
        with_summary(blocked=("orders-1: NodeAway, no living replica is in sync; waiting for n2",)),
        "Degraded",
        True,
        Reason.SHARDS_BLOCKED,
        "waiting for n2. See docs/operations.md#shardsblocked",
    ),
    "short of copies": (
        with_summary(in_sync=5, unsynced=("orders-1 has 1 of 2 copies in sync",)),
        "Degraded",
        True,
        Reason.COPIES_OUT_OF_SYNC,
        "1 of 6 shards without all copies in sync: orders-1 has 1 of 2 copies in sync",
    ),
    "silent": (
        replace(WELL, nodes={**WELL.nodes, "n1": ObservedNode(Liveness.DEAD, "i1")}),
        "Degraded",
        True,
        Reason.NODE_SILENT,
        "no sign of life from n1 (pod shop-1 on machine-1)",
    ),
    "silent, and gone for good by scale-in": (
        replace(WELL, nodes={**WELL.nodes, "n7": ObservedNode(Liveness.DEAD, "i7")}),
        "Degraded",
        False,
        Reason.HEALTHY,
        "",
    ),
    "a restart of ours is no fault": (
        replace(with_summary(in_sync=3, unsynced=("orders-1 has 1 of 2",)), restart=RestartWaits("2 of 3 pods to go")),
        "Degraded",
        False,
        Reason.HEALTHY,
        "",
    ),
    "a restart is told": (
        replace(WELL, restart=RestartWaits("2 of 3 pods to go; shop-1 is ending")),
        "Progressing",
        True,
        Reason.ROLLING_RESTART,
        "2 of 3 pods to go; shop-1 is ending",
    ),
    "stuck": (
        replace(WELL, restart=RestartWaits("2 of 3 pods to go; the new revision does not start (...)", stuck=True)),
        "Degraded",
        True,
        Reason.ROLLOUT_STUCK,
        "does not start",
    ),
    "a pod that does not start": (
        replace(WELL, pods=(*PODS[:2], STOPPED)),
        "Degraded",
        True,
        Reason.POD_NOT_STARTING,
        "shop-2 (CrashLoopBackOff: exit code 1)",
    ),
    "a pod that is only being made": (
        replace(WELL, pods=(*PODS[:2], replace(STOPPED, stopped="ContainerCreating"))),
        "Degraded",
        False,
        Reason.HEALTHY,
        "",
    ),
    "and is waited for": (
        replace(WELL, pods=(*PODS[:2], replace(STOPPED, stopped="ContainerCreating"))),
        "Progressing",
        True,
        Reason.PODS_STARTING,
        "2 of 3 pods are ready (shop-2: ContainerCreating)",
    ),
    "scale-in": (
        replace(WELL, sizes=Sizes(5, 5, ("n3", "n4"), "to 3 nodes: n3, n4 go; n4 still has 2 copies")),
        "Progressing",
        True,
        Reason.SCALING_IN,
        "n4 still has 2 copies",
    ),
    "scale-out": (replace(WELL, sizes=Sizes(5, 5, (), "3 to 5")), "Progressing", True, Reason.SCALING_OUT, "3 to 5"),
    "volumes": (replace(WELL, volumes=Volumes(growing=("data-shop-0 has 1 GiB of 2 GiB",))), "Progressing", True,
                Reason.VOLUMES_GROWING, "data-shop-0 has 1 GiB of 2 GiB"),
    "moves": (with_summary(moving=2), "Progressing", True, Reason.MOVING_SHARDS, "2 shards"),
    "held": (with_summary(held=("orders-1: NoRoom, n2 is to be emptied: no other node",)), "Degraded", True,
             Reason.MOVES_HELD, "orders-1: NoRoom"),
    "one release": (WELL, "Upgrading", False, Reason.UP_TO_DATE, "format 1 is written"),
    "two releases": (replace(WELL, versions=NodesVersion(1, mixed="formats 1 (n0), 2 (n1)")), "Upgrading", True,
                     Reason.VERSIONS_MIXED, "formats 1 (n0), 2 (n1)"),
    "not final": (replace(WELL, versions=NodesVersion(1, held="you can still go back")), "Upgrading", True,
                  Reason.UPGRADE_NOT_FINALIZED, "you can still go back"),
    "releases apart": (replace(WELL, versions=NodesVersion(1, apart="n0 and n1: wire versions 1 and 3")), "Degraded",
                       True, Reason.VERSIONS_INCOMPATIBLE, "n0 and n1: wire versions 1 and 3"),
    "paused": (replace(WELL, paused_by="spec.paused"), "Progressing", False, Reason.PAUSED, "spec.paused"),
    "drain": (replace(with_summary(named={"n2": 3}), drains=Drains({"n2": "kim"})), "Progressing", True,
              Reason.DRAINING, "n2 is emptied: copies of 3 shards are left (kim)"),
    "drained": (replace(WELL, drains=Drains({"n2": "kim", "n7": "lee"})), "Progressing", False, Reason.SETTLED,
                "what was asked for is in place; drained: n2 (kim)"),
    "a drain that can't be": (replace(WELL, drains=Drains({}, ("no room",))), "Degraded", True,
                              Reason.ANNOTATION_REFUSED, "no room"),
    "bad spec": (replace(WELL, invalid=("spec.nodes: is 0; allowed: at least 1",)), "Progressing", False,
                   Reason.INVALID_SPEC, "spec.nodes: is 0; allowed: at least 1; the last good spec stands"),
    "bad spec, served": (replace(WELL, invalid=("spec.nodes: is 0",)), "Ready", True, Reason.SERVING, ""),
    "bad spec from the start": (replace(WELL, invalid=("spec.nodes: is 0",), has_accepted_spec=False), "Ready", False,
                                  Reason.INVALID_SPEC, "spec.nodes: is 0"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_said(case: str) -> None:
    seen, kind, status, reason, words = CASES[case]
    found = said(seen, kind)
    assert (found.status, found.reason) == (status, reason)
    assert words in found.message
    assert ("docs/operations.md#" in found.message) == (reason in NEEDS_PAGE)


def test_the_worst_comes_first_and_the_others_are_named() -> None:
    seen = replace(
        with_summary(blocked=("a-0: NodeAway, ...",)), problems=(ClusterProblem(Reason.APPLY_FAILED, "Service shop"),)
    )
    found = said(seen, "Degraded")
    assert found.reason is Reason.SHARDS_BLOCKED
    assert "also ApplyFailed: Service shop" in found.message


def test_long_lists_are_cut_with_their_number() -> None:
    many = tuple(f"orders-{number} has no master yet" for number in range(900))
    found = said(with_summary(served=0, unserved=many), "Ready")
    assert "and 897 more" in found.message
    assert len(found.message) <= MAX_MESSAGE_CHARS + 100


def test_every_reason_of_degraded_is_ordered_and_has_a_page() -> None:
    assert DEGRADED[0] is Reason.OPERATOR_ERROR
    assert DEGRADED[-2:] == (Reason.VOLUMES_CANNOT_GROW, Reason.REBALANCE_FAILED)
    assert set(DEGRADED) <= NEEDS_PAGE


# ---------------------------------------------------------------- counting shards
DESIRED = ClusterSpec("shop", 3, (TopicSpec("orders", 3),), replicas=2)
ALIVE = {f"n{n}": ObservedNode(Liveness.ALIVE, f"i{n}") for n in range(3)}


def shard(queue: int, **changes: Any) -> ShardObject:
    spec = ShardSpec(queue + 1, "orders", queue, ("n0", "n1"), master="n0", epoch=4, incarnation="i0")
    whole = ShardObject(f"orders-{queue}", Version("1"), spec, ShardStatus(4, "i0", ("a", "b")))
    return replace(whole, **changes)


def test_shards_are_counted_by_what_clients_have_of_them() -> None:
    whole = [shard(0), shard(1), shard(2)]
    assert summarize_shards(DESIRED, whole, ALIVE).sound
    dead = {**ALIVE, "n0": ObservedNode(Liveness.DEAD, "i0")}
    assert summarize_shards(DESIRED, whole, dead).unserved[0] == "orders-0 waits for a new master: n0 is not there"
    again = {**ALIVE, "n0": ObservedNode(Liveness.ALIVE, "other")}
    assert "started again" in summarize_shards(DESIRED, whole, again).unserved[0]
    short = summarize_shards(DESIRED, [*whole[:2], shard(2, status=ShardStatus(4, "i0", ("a",)))], ALIVE)
    assert (short.served, short.in_sync, short.sound) == (3, 2, False)
    assert short.unsynced == ("orders-2 has 1 of 2 copies in sync",)
    early = summarize_shards(DESIRED, [*whole[:2], shard(2, status=ShardStatus(3, "i9", ("a", "b")))], ALIVE)
    assert early.unserved == ("orders-2 is not yet served by n0 in epoch 4",)
    assert summarize_shards(DESIRED, whole[:2], ALIVE).unserved == ("orders-2 does not exist yet",)
    fewer = summarize_shards(replace(DESIRED, topics=(TopicSpec("orders", 2),)), whole, ALIVE)
    assert (fewer.desired, fewer.served, fewer.surplus, fewer.sound) == (2, 2, 1, True)
    moving = shard(2, spec=replace(shard(2).spec, target=("n1", "n2")))
    counted = summarize_shards(DESIRED, [*whole[:2], moving], ALIVE)
    assert (counted.moving, counted.named, counted.sound) == (1, {"n0": 3, "n1": 3, "n2": 1}, False)
    blocked = shard(2, conditions=(Condition(ConditionType.BLOCKED, "NodeAway", "waiting for n1"),))
    assert summarize_shards(DESIRED, [blocked], ALIVE).blocked == ("orders-2: NodeAway, waiting for n1",)


def test_a_switchovers_pause_is_nobodys_trouble_and_a_longer_one_is() -> None:
    early = summarize_shards(DESIRED, [shard(0), shard(1), shard(2, status=ShardStatus(3, "i9", ("a", "b")))], ALIVE)
    since = unserved_since(early, {}, 10_000)
    assert since == {"orders-2": 10_000}
    assert without_switchovers(early, since, 10_000).unserved == ()
    assert without_switchovers(early, since, 10_000).served == 3
    assert unserved_since(early, since, 12_000) == since, "the time runs on"
    assert without_switchovers(early, since, 10_000 + SWITCHING_MS) == early
    assert unserved_since(summarize_shards(DESIRED, [shard(0), shard(1), shard(2)], ALIVE), since, 12_000) == {}


def test_a_copy_on_its_way_is_not_missed_by_anybody() -> None:
    spec = replace(shard(2).spec, replicas=("n0", "n1", "n2"), target=("n0", "n2"))
    assert summarize_shards(DESIRED, [shard(0), shard(1), shard(2, spec=spec)], ALIVE).unsynced == ()


# ---------------------------------------------------------------- the status as it is written
def _status(seen: ClusterObservation, before: dict[str, Any], wall_ms: int = 0) -> dict[str, Any]:
    return status_of(conditions(seen), seen, before, 7, "a=b", "node:1", wall_ms)


def test_a_condition_keeps_its_time_while_its_status_stays() -> None:
    first = _status(WELL, {}, 1_000)
    second = _status(with_summary(moving=1), first, 9_000)
    times = {it["type"]: it["lastTransitionTime"] for it in second["conditions"]}
    assert times["Ready"] == "1970-01-01T00:00:01Z"
    assert times["Progressing"] == "1970-01-01T00:00:09Z"
    assert {it["observedGeneration"] for it in second["conditions"]} == {7}


def test_nothing_is_written_when_nothing_has_changed() -> None:
    first = _status(WELL, {}, 1_000)
    assert changed(first, _status(WELL, first, 9_000)) == {}
    assert set(changed(first, _status(with_summary(in_sync=5), first, 9_000))) == {"inSyncShards"}


def test_an_event_for_each_turn_and_a_warning_for_the_bad_ones() -> None:
    before = _status(WELL, {})
    assert transitions(before, _status(WELL, before)) == []
    worse = _status(with_summary(served=5, unserved=("orders-3 has no master yet",)), before)
    (turn,) = transitions(before, worse)
    assert (turn[0], turn[2]) == ("ShardsNotServed", True)
    (back,) = transitions(worse, _status(WELL, worse))
    assert (back[0], back[2]) == ("Serving", False)


def test_a_cluster_that_gets_its_first_copies_has_not_been_complete_yet() -> None:
    fresh = replace(with_summary(in_sync=2, unsynced=("orders-1 has 1 of 2 copies in sync",)), was_ready=False)
    assert not was_ready({})
    assert not was_ready(_status(fresh, {}))
    assert said(fresh, "Progressing").reason is Reason.COPIES_COMING
    assert said(fresh, "Degraded").reason is Reason.HEALTHY
    assert was_ready(_status(replace(WELL, was_ready=False), {}))


def test_copies_without_an_object_are_said_with_their_messages() -> None:
    orphans = OrphanReport(
        orphans=("orders-0: 00000000000000ab on n0 (5 pending): no topic has this shard",), pending=5
    )
    degraded = said(replace(WELL, orphans=orphans), "Degraded")
    assert (degraded.status, degraded.reason) == (True, Reason.ORPHANED_COPIES)
    assert degraded.message.startswith("up to 5 messages in copies without a DelayShard: orders-0: ")
    assert degraded.message.endswith("See docs/operations.md#orphanedcopies")


def test_shards_that_wait_for_what_nodes_have_are_progress() -> None:
    waiting = OrphanReport(waiting=("orders-0", "orders-1"), unheard=("n2",))
    progressing = said(replace(WELL, orphans=waiting), "Progressing")
    assert (progressing.status, progressing.reason) == (True, Reason.VOLUMES_UNREAD)
    assert progressing.message == "2 shards wait until these nodes have said what their volumes have: n2"
