"""Once a process is known to have ended, others take its shards over at once, and nothing else changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from delayoperator.plan import (
    Action,
    ChangeSpec,
    CopyView,
    Liveness,
    Observed,
    ObservedNode,
    ObservedRole,
    SetConditions,
    StartTerm,
    plan,
    questions,
)
from delayregistry.model import ClusterSpec, Handover, ShardObject, ShardSpec, ShardStatus, TopicSpec, Version

PAIR = ShardSpec(1, "orders", 0, ("n1", "n2"), master="n1", epoch=4, incarnation="first")
SOLE = replace(PAIR, replicas=("n1",))
FRESH = {"n1": ObservedNode(Liveness.ALIVE, "first"), "n2": ObservedNode(Liveness.ALIVE, "x")}
RESTARTED = {**FRESH, "n1": ObservedNode(Liveness.UNCERTAIN, "second")}
SLAVE = {"n2": CopyView("c2", "x", 4, 4, 100)}
MASTER = {"n1": CopyView("c1", "first", 4, 4, 120, role=ObservedRole.MASTER, serving_epoch=4)}


def shard(spec: ShardSpec, *in_sync: str, serving_epoch: int = 4, incarnation: str = "first") -> ShardObject:
    status = ShardStatus(serving_epoch, incarnation, in_sync) if in_sync else None
    return ShardObject(spec.name, Version("1"), spec, status)


def planned(
    it: ShardObject,
    nodes: Mapping[str, ObservedNode],
    copies: Mapping[str, CopyView],
    ended: Iterable[str] = ("first",),
) -> list[Action]:
    cluster = ClusterSpec("local", 3, (TopicSpec("orders", 1),), replicas=len(it.spec.replicas))
    by_shard = {(it.name, node): copy for node, copy in copies.items()}
    heard = {node: copy.incarnation for node, copy in copies.items()}
    return plan(cluster, Observed((it,), nodes, by_shard, heard, ended=frozenset(ended)))


def term(actions: list[Action]) -> StartTerm:
    (action,) = actions
    assert isinstance(action, StartTerm)
    return action


@pytest.mark.parametrize("nodes", [FRESH, RESTARTED])
def test_a_master_whose_process_has_ended_is_followed_at_once_and_its_term_is_vacant(
    nodes: Mapping[str, ObservedNode],
) -> None:
    """Whether its lease is still fresh or already another process's."""
    action = term(planned(shard(PAIR, "c1", "c2"), nodes, SLAVE))
    assert (action.spec.master, action.spec.epoch, action.spec.incarnation) == ("n2", 5, "x")
    assert action.spec.vacant
    assert action.reason == "n1's process has ended: n2 is in sync with the highest log end, 100; epoch 5 begins"


def test_a_fresh_lease_of_a_process_that_nobody_saw_end_stands() -> None:
    assert planned(shard(PAIR, "c1", "c2"), FRESH, SLAVE, ended=["another"]) == []


def test_a_process_that_its_lease_names_no_more_has_not_ended_for_that() -> None:
    """Its machine may only be out of reach, and it may serve there: its leases are waited out."""
    action = term(planned(shard(PAIR, "c1", "c2"), RESTARTED, SLAVE, ended=[]))
    assert action.spec.master == "n2"
    assert not action.spec.vacant


@pytest.mark.parametrize(
    "status",
    [
        ShardStatus(3, "before", ("c1", "c2")),  # whoever served before may not know yet
        ShardStatus(4, "other", ("c1", "c2")),
        ShardStatus(3, "before", ("c1", "c2"), Handover(3, 100)),
    ],
)
def test_a_term_that_was_never_taken_up_leaves_leases_to_wait_out(status: ShardStatus) -> None:
    action = term(planned(replace(shard(PAIR), status=status), FRESH, SLAVE))
    assert (action.spec.master, action.spec.epoch) == ("n2", 5)
    assert not action.spec.vacant


def test_the_next_term_says_anew_whether_it_follows_a_vacant_one() -> None:
    """A word about one epoch's start must not be read of another's."""
    later = replace(PAIR, master="n2", incarnation="x", epoch=5, vacant=True)
    nodes = {"n1": ObservedNode(Liveness.ALIVE, "second"), "n2": ObservedNode(Liveness.DEAD, "x")}
    copies = {"n1": CopyView("c1", "second", 5, 5, 130)}
    action = term(planned(shard(later, "c1", "c2", serving_epoch=5, incarnation="x"), nodes, copies))
    assert (action.spec.master, action.spec.epoch) == ("n1", 6)
    assert not action.spec.vacant


def test_what_else_changes_in_the_term_leaves_the_word_about_its_start() -> None:
    """Its master may not have read it yet."""
    spec = replace(PAIR, vacant=True, target=("n1", "n0"))
    nodes = {**FRESH, "n0": ObservedNode(Liveness.ALIVE, "y")}
    (action,) = planned(shard(spec, "c1", "c2"), nodes, {**MASTER, **SLAVE}, ended=[])
    assert isinstance(action, ChangeSpec)
    assert action.spec.vacant


def test_nobody_who_has_ended_is_chosen_whatever_it_said_a_moment_ago() -> None:
    seen = {"n1": ObservedNode(Liveness.DEAD, "first"), "n2": ObservedNode(Liveness.ALIVE, "x")}
    assert planned(shard(PAIR, "c1", "c2"), seen, SLAVE, ended=["first", "x"]) == []
    assert planned(shard(PAIR, "c1", "c2"), seen, {}, ended=["first", "x"]) == []


def test_nobody_who_has_ended_is_asked() -> None:
    seen = Observed((shard(PAIR, "c1", "c2"),), FRESH, ended=frozenset(["first"]))
    assert questions(seen).now == {"n2"}


@pytest.mark.parametrize(("it", "copies"), [(shard(SOLE, "c1"), {}), (shard(PAIR, "c1"), SLAVE), (shard(SOLE), {})])
def test_where_nobody_else_can_lead_the_next_process_is_waited_for_without_a_word(
    it: ShardObject, copies: Mapping[str, CopyView]
) -> None:
    """It is back before anybody could read a condition; if not, its lease runs out."""
    assert planned(it, FRESH, copies) == []
    away = {**FRESH, "n1": ObservedNode(Liveness.DEAD, "first")}
    (action,) = planned(it, away, copies)
    assert isinstance(action, SetConditions)


def test_the_only_copy_goes_on_with_the_next_process() -> None:
    action = term(planned(shard(SOLE, "c1"), RESTARTED, {}))
    assert (action.spec.master, action.spec.incarnation) == ("n1", "second")


def test_a_slave_that_has_ended_changes_nothing() -> None:
    """It is its master's to go on without it."""
    assert planned(shard(PAIR, "c1", "c2"), FRESH, MASTER, ended=["x"]) == []


def test_nothing_is_handed_to_a_process_that_has_ended() -> None:
    stopping = {**FRESH, "n1": ObservedNode(Liveness.ALIVE, "first", stopping=True)}
    (action,) = planned(shard(PAIR, "c1", "c2"), stopping, MASTER, ended=[])
    assert isinstance(action, ChangeSpec)
    assert planned(shard(PAIR, "c1", "c2"), stopping, MASTER, ended=["x"]) == []
