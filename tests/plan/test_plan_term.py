"""Which node may start a term: the tables of the dangerous choice (docs/protocol.md 4, attacks B2, B6, A10)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from delayoperator.plan import (
    CopyView,
    Observed,
    ObservedNode,
    ObservedRole,
    SetConditions,
    StartTerm,
    plan,
)
from delayregistry.model import (
    BootstrapVolumes,
    Condition,
    ConditionType,
    Durability,
    ShardObject,
    ShardSpec,
    ShardStatus,
    TopicSpec,
    Version,
)

from tests.plan.terms import (
    CLUSTER,
    PAIR,
    SOLE,
    THREE,
    alive,
    copy,
    dead,
    planned,
    refusal,
    shard,
    term,
    unsure,
)

# A shard with one replica.


OTHERS = {"n0": alive("zeroth"), "n2": alive("second")}


def test_a_new_shard_gets_its_first_term() -> None:
    new = ShardSpec(1, "orders", 0, ("n1",))
    action = planned(shard(new), {**OTHERS, "n1": alive("first")}, answered=["n0", "n1", "n2"])
    assert term(action) == ("n1", 1, "first")
    assert action is not None
    assert action.reason == "the shard has no master yet: n1 is its first living replica; epoch 1 begins"


def test_a_new_shard_waits_for_a_node_that_nobody_has_seen() -> None:
    assert planned(shard(ShardSpec(1, "orders", 0, ("n1",))), {}) is None


def test_a_served_shard_is_left_alone() -> None:
    assert planned(shard(SOLE, "copy"), {"n1": alive("first")}) is None


@pytest.mark.parametrize("served", [True, False])
def test_a_new_process_gets_a_new_term_whether_or_not_the_old_one_was_taken_up(served: bool) -> None:
    action = planned(shard(SOLE, "copy") if served else shard(SOLE), {"n1": alive("second")})
    assert term(action) == ("n1", 5, "second")
    assert action is not None
    assert action.reason == ("n1 is a new process, which may not resume epoch 4: n1 has the only copy; epoch 5 begins")


def test_a_new_process_gets_its_term_before_it_is_certain_that_it_stays() -> None:
    assert term(planned(shard(SOLE, "copy"), {"n1": unsure("second")})) == ("n1", 5, "second")


def test_a_pending_term_is_not_started_again() -> None:
    pending = ShardObject("orders-0", Version("1"), SOLE, ShardStatus(3, "before", ("copy",)))
    assert planned(pending, {"n1": alive("first")}) is None


def test_a_sole_copy_whose_node_is_away_is_waited_for_and_said() -> None:
    action = planned(shard(SOLE, "copy"), {"n0": alive("x"), "n1": dead("first"), "n2": alive("y")})
    assert refusal(action) == "NodeAway"
    assert action is not None
    assert "n1 has the only copy" in action.reason


def test_cannot_see_is_not_is_down() -> None:
    assert planned(shard(SOLE, "copy"), {"n1": unsure("first")}) is None
    assert planned(shard(SOLE, "copy"), {}) is None


def test_a_condition_is_said_once_kept_while_uncertain_and_removed_when_over() -> None:
    action = planned(shard(SOLE, "copy"), {"n1": dead("first")})
    assert isinstance(action, SetConditions)
    stamped = tuple(replace(condition, since_ms=99) for condition in action.conditions)
    blocked = shard(SOLE, "copy", conditions=stamped)
    assert planned(blocked, {"n1": dead("first")}) is None
    assert planned(blocked, {"n1": unsure("first")}) is None
    over = planned(blocked, {"n1": alive("first")})
    assert isinstance(over, SetConditions)
    assert over.conditions == ()


def test_a_blocked_shard_whose_node_returns_gets_its_term_first() -> None:
    blocked = shard(SOLE, "copy", conditions=(Condition(ConditionType.BLOCKED, "NodeAway", "n1 is away", 99),))
    assert term(planned(blocked, {"n1": alive("second")})) == ("n1", 5, "second")


# Shards that the spec does not ask for any more.


@pytest.mark.parametrize(
    ("topics", "reason"),
    [((), "TopicRemoved"), ((TopicSpec("orders", 1),), "FewerQueues")],
)
def test_an_unwanted_shard_is_marked_and_goes_on(topics: tuple[TopicSpec, ...], reason: str) -> None:
    spec = replace(SOLE, queue=1)
    cluster = replace(CLUSTER, topics=topics)
    seen = {"n1": alive("first")}
    present = shard(SOLE, "copy") if topics else shard(spec, "copy")
    actions = plan(cluster, Observed((present, shard(spec, "copy")) if topics else (present,), seen))
    (action,) = actions
    assert isinstance(action, SetConditions)
    assert action.shard.name == "orders-1"
    assert [(condition.type, condition.reason) for condition in action.conditions] == [(ConditionType.SURPLUS, reason)]
    restarted = plan(cluster, Observed((shard(spec, "copy"),), {"n1": alive("second")}))
    assert any(isinstance(action, StartTerm) for action in restarted)


# A shard with more replicas: who is chosen.


def test_failover_takes_the_in_sync_replica_that_lives() -> None:
    action = planned(shard(PAIR, "c1", "c2"), {"n1": dead("first"), "n2": alive("x")}, {"n2": copy("c2", 4, 100)})
    assert term(action) == ("n2", 5, "x")
    assert action is not None
    assert action.reason == "n1 is dead: n2 is in sync with the highest log end, 100; epoch 5 begins"


@pytest.mark.parametrize(
    ("zero", "two", "chosen"),
    [
        (copy("c0", 3, 900), copy("c2", 4, 100), "n2"),  # the log's epoch first
        (copy("c0", 4, 101), copy("c2", 4, 100), "n0"),
        (copy("c0", 4, 100), copy("c2", 4, 101), "n2"),
        (copy("c0", 4, 100), copy("c2", 4, 100), "n0"),  # equal: always the same one
        (copy("c0", 4, 900, damaged="rot"), copy("c2", 4, 100), "n2"),
        (copy("c0", 4, 900, role=ObservedRole.OPENING), copy("c2", 4, 100), "n2"),  # its log's end is not known yet
        (copy("cX", 4, 900), copy("c2", 4, 100), "n2"),  # not in sync
        (copy("", 0, 0, role=ObservedRole.FETCHING), copy("c2", 4, 100), "n2"),
        # The epoch that a copy persisted says nothing of its log: only the term that wrote the log's end counts.
        (copy("c0", 3, 900, epoch=4), copy("c2", 4, 100), "n2"),
    ],
)
def test_failover_takes_the_highest_log_of_those_in_sync(zero: CopyView, two: CopyView, chosen: str) -> None:
    nodes = {"n0": alive("x"), "n1": dead("first"), "n2": alive("y")}
    assert term(planned(shard(THREE, "c0", "c1", "c2"), nodes, {"n0": zero, "n2": two}))[0] == chosen


def test_a_member_that_gives_no_answer_is_not_waited_for_while_another_one_answers() -> None:
    nodes = {"n0": alive("x"), "n1": dead("first"), "n2": alive("y")}
    assert term(planned(shard(THREE, "c0", "c1", "c2"), nodes, {"n2": copy("c2", 4, 100)}))[0] == "n2"


def test_a_member_that_gives_no_answer_is_chosen_when_all_are_in_sync_and_it_is_known_to_live() -> None:
    """A node that has much to do may answer after seconds; it looks for itself whether its copy is named."""
    all_in_sync, nodes = shard(PAIR, "c1", "c2"), {"n1": dead("first"), "n2": alive("x")}
    assert term(planned(all_in_sync, nodes)) == ("n2", 5, "x")
    # rather than the former master's new process, which could not serve before a lease has passed
    again = {"n1": alive("second"), "n2": alive("x")}
    assert term(planned(all_in_sync, again, {"n1": copy("c1", 4, 900)})) == ("n2", 5, "x")
    # but one that answers, and is not the former master, is known to be well
    three = {"n0": alive("x"), "n1": dead("first"), "n2": alive("y")}
    assert term(planned(shard(THREE, "c0", "c1", "c2"), three, {"n2": copy("c2", 4, 100)}))[0] == "n2"


@pytest.mark.parametrize(
    ("in_sync", "view", "durability"),
    [
        (("c2",), alive("x"), Durability.FSYNC),  # of whom? n1's copy may be the one that is named
        (("c1", "c2"), unsure("x"), Durability.FSYNC),
        (("c1", "c2"), replace(alive("x"), stable=False), Durability.FSYNC),
        (("c1", "c2"), replace(alive("x"), stopping=True), Durability.FSYNC),
        (("c1", "c2"), alive("x"), Durability.ASYNC),  # its machine may have been started again
    ],
)
def test_otherwise_a_member_that_gives_no_answer_is_waited_for(
    in_sync: tuple[str, ...], view: ObservedNode, durability: Durability
) -> None:
    cluster = replace(CLUSTER, replicas=2, durability=durability)
    assert planned(shard(PAIR, *in_sync), {"n1": dead("first"), "n2": view}, cluster=cluster) is None


def test_a_member_that_is_opening_its_log_is_waited_for() -> None:
    opening = {"n2": copy("c2", 0, 0, role=ObservedRole.OPENING)}
    assert planned(shard(PAIR, "c1", "c2"), {"n1": dead("first"), "n2": alive("x")}, opening) is None


def test_a_member_that_gives_no_answer_for_long_is_said() -> None:
    nodes = {"n1": dead("first"), "n2": replace(alive("x"), silent=True)}
    action = planned(shard(PAIR, "c1", "c2"), nodes)
    assert refusal(action) == "NoAnswer"
    assert action is not None
    assert "cannot-see is not is-down" in action.reason


def test_the_only_member_is_chosen_while_it_is_still_opening_its_log() -> None:
    opening = {"n1": copy("c1", 0, 0, role=ObservedRole.OPENING), "n2": copy("c2", 4, 900)}
    assert term(planned(shard(PAIR, "c1"), {"n1": alive("second"), "n2": alive("x")}, opening))[0] == "n1"


def test_the_answer_of_another_process_is_none() -> None:
    late = {"n2": copy("c2", 4, 100, incarnation="former")}
    assert planned(shard(PAIR, "c1", "c2"), {"n1": dead("first"), "n2": alive("x")}, late) is None


def test_an_answer_proves_life_before_the_lease_has_moved() -> None:
    nodes = {"n1": dead("first"), "n2": unsure("x")}
    assert term(planned(shard(PAIR, "c1", "c2"), nodes, {"n2": copy("c2", 4, 100)})) == ("n2", 5, "x")


def test_whoever_can_not_renew_its_lease_is_not_chosen_even_if_it_answers() -> None:
    nodes = {"n1": dead("first"), "n2": dead("x")}
    assert refusal(planned(shard(PAIR, "c1", "c2"), nodes, {"n2": copy("c2", 4, 100)})) == "NodeAway"


def test_a_restarted_master_is_chosen_again_at_the_next_epoch_when_nobody_else_is_in_sync() -> None:
    nodes = {"n1": alive("second"), "n2": alive("x")}
    copies = {"n1": copy("c1", 4, 120), "n2": copy("c2", 4, 100)}
    assert term(planned(shard(PAIR, "c1"), nodes, copies)) == ("n1", 5, "second")
    # Its new process would have to wait out what the former one may have promised; both have all that counts.
    assert term(planned(shard(PAIR, "c1", "c2"), nodes, copies)) == ("n2", 5, "x")


def test_one_that_stops_or_leaves_is_chosen_only_when_there_is_no_other() -> None:
    # Each member has every acknowledged frame: a lasting choice is as safe as the longest log.
    nodes = {"n0": replace(alive("x"), stopping=True), "n1": dead("first"), "n2": alive("y")}
    copies = {"n0": copy("c0", 4, 900), "n2": copy("c2", 4, 100)}
    assert term(planned(shard(THREE, "c0", "c1", "c2"), nodes, copies))[0] == "n2"
    assert term(planned(shard(THREE, "c0", "c1"), nodes, copies))[0] == "n0"
    leaving = replace(THREE, target=("n1", "n2"), leaving=("n0",))
    steady = {**nodes, "n0": alive("x")}
    assert term(planned(shard(leaving, "c0", "c1", "c2"), steady, copies))[0] == "n2"
    action = planned(shard(leaving, "c0", "c1"), steady, copies)
    assert isinstance(action, StartTerm)
    assert (action.spec.master, action.spec.leaving) == ("n0", ())  # a master can't take itself out


def test_nobody_whose_clock_is_suspect_is_chosen() -> None:
    it, nodes = shard(THREE, "c0", "c1", "c2"), {"n0": alive("x"), "n1": dead("first"), "n2": alive("y")}
    copies = {"n0": copy("c0", 4, 900), "n2": copy("c2", 4, 100)}
    assert term(planned(it, nodes, copies, unfit={"n0": "1.5 s ahead of its peers"}))[0] == "n2"
    action = planned(it, nodes, copies, unfit={"n0": "1.5 s ahead", "n2": "2 s behind"})
    assert refusal(action) == "ClockSuspect"
    assert action is not None
    assert "n2: 2 s behind" in action.reason


# The first term.

NEW = ShardSpec(1, "orders", 0, ("n1", "n2"))


def test_the_first_term_goes_to_the_first_replica_once_all_have_said_that_they_have_nothing() -> None:
    nodes = {"n0": alive("z"), "n1": alive("a"), "n2": alive("b")}
    assert planned(shard(NEW), nodes) is None
    assert planned(shard(NEW), nodes, answered=["n1", "n2"]) is None
    assert term(planned(shard(NEW), nodes, answered=["n0", "n1", "n2"])) == ("n1", 1, "a")


def test_a_directory_of_a_first_term_that_never_began_is_no_data() -> None:
    nodes = {"n1": dead("a"), "n2": alive("b")}
    begun = replace(NEW, master="n1", incarnation="a", epoch=1)
    assert refusal(planned(shard(begun), nodes, answered=["n2"])) == "NodeAway"
    nodes["n1"] = alive("c")
    assert term(planned(shard(begun), nodes, {"n1": copy("c1", 0, 0, epoch=1)}, answered=["n2"])) == ("n1", 2, "c")


def test_a_first_term_is_refused_while_a_replica_is_away() -> None:
    assert refusal(planned(shard(NEW), {"n1": dead("a"), "n2": alive("b")}, answered=["n2"])) == "NodeAway"
    assert planned(shard(NEW), {"n1": unsure(), "n2": unsure()}) is None


def test_data_without_a_status_is_not_called_new() -> None:
    nodes = {"n1": alive("a"), "n2": alive("b")}
    lost = shard(replace(NEW, epoch=9))
    refusing = replace(CLUSTER, nodes=2, replicas=2, bootstrap_volumes=BootstrapVolumes.REFUSE)
    action = planned(lost, nodes, {"n2": copy("c2", 9, 5)}, answered=["n1"], cluster=refusing)
    assert refusal(action) == "StatusLost"
    assert action is not None
    assert "delayctl adopt" in action.reason
    opening = {"n2": copy("c2", 0, 0, epoch=9, role=ObservedRole.OPENING)}
    assert planned(lost, nodes, opening, answered=["n1"]) is None  # a directory, of whose log nothing is known yet
