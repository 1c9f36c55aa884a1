"""When nobody may be chosen, and why not; what is chosen at a risk is said before (docs/protocol.md 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from delayoperator.plan import (
    ChangeSpec,
    CopyView,
    ObservedNode,
    ObservedRole,
    SetConditions,
    StartTerm,
)
from delayregistry.model import Condition, ConditionType, ShardObject

from tests.plan.terms import (
    BOTH,
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

# No node is chosen, and the condition says why.


@pytest.mark.parametrize(
    ("in_sync", "one", "two", "reason"),
    [
        (("c1",), None, copy("c2", 4, 10**9), "NodeAway"),  # never one outside, however much it has
        (("c1", "c2"), None, copy("new", 0, 0), "NodeAway"),  # a directory made again is not in sync
        (("c2",), None, copy("c2", 4, 100, damaged="rot"), "CopyDamaged"),
        (("c1", "c2"), None, copy("c2", 4, 100, damaged="rot"), "NodeAway"),
        (("c1",), copy("new", 0, 0), copy("c2", 4, 100), "NoInSyncReplica"),
        (("c1", "c2"), None, copy("", 0, 0, role=ObservedRole.FETCHING), "NodeAway"),
        (("c1@a", "c2@b"), None, copy("c2@B", 4, 100), "NodeAway"),  # n1 may have what n2's machine lost
        (("c1@a", "c2@b"), copy("new@A", 0, 0), copy("c2@B", 4, 100), "MachineRebooted"),
        (("c1", "c2"), None, copy("c2", 5, 100), "RegistryBehind"),
    ],
)
def test_every_refusal_has_its_reason(
    in_sync: tuple[str, ...], one: CopyView | None, two: CopyView, reason: str
) -> None:
    nodes = {"n1": alive("second") if one else dead("first"), "n2": alive("x")}
    copies = {"n2": two, **({"n1": one} if one else {})}
    assert refusal(planned(shard(PAIR, *in_sync), nodes, copies)) == reason


def test_a_refusal_names_the_whole_copies_that_were_not_in_sync() -> None:
    nodes = {"n1": alive("second"), "n2": alive("x")}
    for one, reason in ((copy("c1", 4, 200, damaged="rot"), "CopyDamaged"), (copy("new", 0, 0), "NoInSyncReplica")):
        action = planned(shard(PAIR, "c1"), nodes, {"n1": one, "n2": copy("c2", 4, 100)})
        assert refusal(action) == reason
        assert isinstance(action, SetConditions)
        assert action.conditions[0].message.endswith("; whole, but not in sync: n2 with log end 100")


def test_a_served_shard_whose_registry_is_behind_is_said_too() -> None:
    action = planned(shard(PAIR, "c1", "c2"), BOTH, {"n1": copy("c1", 4, 100, epoch=9), "n2": copy("c2", 4, 100)})
    assert refusal(action) == "RegistryBehind"
    assert action is not None
    assert "delayctl adopt" in action.reason


def test_an_epoch_that_another_process_serves_than_the_registry_names_is_said() -> None:
    """Seed 64668, where an older object was put back."""
    serving = copy("c2", 4, 100, role=ObservedRole.MASTER, serving_epoch=4)
    action = planned(shard(PAIR, "c1", "c2"), BOTH, {"n1": copy("c1", 4, 100), "n2": serving})
    assert refusal(action) == "RegistryBehind"
    new = {**BOTH, "n1": alive("second")}  # the process that the registry names has ended
    known = {"n1": copy("c1", 4, 50)}
    assert isinstance(planned(shard(PAIR, "c1"), new, known), StartTerm)
    assert planned(shard(PAIR, "c1"), new, known, by_another=True) is None, "while n2 gives no answer: it may have more"
    named = replace(copy("c1", 4, 100, role=ObservedRole.MASTER, serving_epoch=4), incarnation=PAIR.incarnation)
    assert planned(shard(PAIR, "c1", "c2"), BOTH, {"n1": named, "n2": copy("c2", 4, 100)}) is None


# A choice at a risk is announced by a condition first.


def risked(it: ShardObject, action: StartTerm | SetConditions | ChangeSpec | None) -> tuple[str, ShardObject]:
    assert isinstance(action, SetConditions)
    (condition,) = action.conditions
    assert (condition.type, condition.epoch) == (ConditionType.RISKED, it.spec.epoch + 1)
    return condition.reason, replace(it, conditions=(replace(condition, since_ms=5),))


def test_when_every_machine_was_rebooted_all_are_waited_for_and_the_highest_is_taken() -> None:
    it = shard(THREE, "c0@a", "c2@b")
    nodes = {"n0": alive("x"), "n1": dead("first"), "n2": alive("y")}
    assert planned(it, nodes, {"n2": copy("c2@B", 4, 100)}) is None  # n0 may have more
    both = {"n0": copy("c0@A", 4, 90), "n2": copy("c2@B", 4, 100)}
    reason, said = risked(it, planned(it, nodes, both))
    assert reason == "AllRebooted"
    assert term(planned(said, nodes, both)) == ("n2", 5, "y")


def test_a_machine_that_was_not_rebooted_is_taken_before_one_that_was_however_much_that_has() -> None:
    nodes = {"n0": alive("x"), "n1": dead("first"), "n2": alive("y")}
    copies = {"n0": copy("c0@A", 4, 900), "n2": copy("c2@b", 4, 100)}
    assert term(planned(shard(THREE, "c0@a", "c1@c", "c2@b"), nodes, copies))[0] == "n2"


def test_a_sole_copy_on_a_rebooted_machine_goes_on_and_says_so() -> None:
    it = shard(SOLE, "c1@a")
    copies = {"n1": copy("c1@A", 4, 100)}
    reason, said = risked(it, planned(it, {"n1": alive("second")}, copies))
    assert reason == "AllRebooted"
    assert term(planned(said, {"n1": alive("second")}, copies)) == ("n1", 5, "second")


def test_a_copy_that_its_new_process_has_not_opened_is_not_taken_for_a_rebooted_one() -> None:
    """Seed 84498: on disk only, a copy names no boot, and AllRebooted was said of a process that had ended."""
    it, nodes = shard(PAIR, "c1@a"), {"n1": alive("second"), "n2": alive("y")}
    assert planned(it, nodes, {"n1": copy("c1", 4, 100, role=ObservedRole.STORED)}) is None
    assert term(planned(it, nodes, {"n1": copy("c1@a", 4, 100, role=ObservedRole.OPENING)})) == ("n1", 5, "second")


UNCLEAN = replace(CLUSTER, replicas=3, allow_unclean_failover=True)


def test_unclean_failover_takes_the_highest_sound_copy_once_no_member_can_be_had() -> None:
    it = shard(THREE, "c1")
    nodes = {"n0": alive("x"), "n1": dead("first"), "n2": alive("y")}
    copies = {"n0": copy("c0", 4, 90), "n2": copy("c2", 4, 100)}
    assert refusal(planned(it, nodes, copies)) == "NodeAway"  # by default
    reason, said = risked(it, planned(it, nodes, copies, cluster=UNCLEAN))
    assert reason == "UncleanFailover"
    assert term(planned(said, nodes, copies, cluster=UNCLEAN)) == ("n2", 5, "y")


def test_a_word_for_one_shard_allows_its_next_term_alone_and_the_risk_says_whose_it_was() -> None:
    desired = replace(CLUSTER, replicas=3)
    it = replace(shard(THREE, "c1"), unclean_allowed_by="kim: n1 is burnt")
    nodes = {"n0": alive("x"), "n1": dead("first"), "n2": alive("y")}
    copies = {"n0": copy("c0", 4, 90), "n2": copy("c2", 4, 100)}
    first = planned(it, nodes, copies, cluster=desired)
    assert isinstance(first, SetConditions)
    assert "unclean failover is allowed (kim: n1 is burnt)" in first.conditions[0].message
    action = planned(replace(it, conditions=first.conditions), nodes, copies, cluster=desired)
    assert isinstance(action, StartTerm)
    assert (term(action), action.spec.unclean_epoch) == (("n2", 5, "y"), 5)
    begun = replace(it, spec=action.spec, unclean_allowed_by="")  # as the write leaves it
    assert planned(begun, nodes, copies, cluster=desired) is None, "n2 takes it up in peace"
    gone = {**nodes, "n2": dead("y")}
    assert refusal(planned(begun, gone, {"n0": copies["n0"]}, cluster=desired)) == "NodeAway", "it was for one term"


def test_a_word_for_one_shard_is_not_used_where_a_copy_in_sync_can_be_had() -> None:
    it = replace(shard(PAIR, "c1", "c2"), unclean_allowed_by="kim")
    action = planned(it, {"n1": dead("first"), "n2": alive("x")}, {"n2": copy("c2", 4, 100)})
    assert isinstance(action, StartTerm)
    assert (action.spec.master, action.spec.unclean_epoch) == ("n2", 0)


@pytest.mark.parametrize(
    ("nodes", "copies"),
    [
        ({"n0": alive("x"), "n1": unsure("second"), "n2": alive("y")}, {"n2": copy("c2", 4, 100)}),  # who knows?
        ({"n0": alive("x"), "n1": dead("a"), "n2": alive("y")}, {"n2": copy("c2", 4, 100)}),  # n0 may have more
        ({"n0": alive("x"), "n1": alive("second"), "n2": alive("y")}, {"n2": copy("c2", 4, 100)}),
    ],
)
def test_unclean_failover_too_waits_for_whoever_may_have_more(
    nodes: Mapping[str, ObservedNode], copies: Mapping[str, CopyView]
) -> None:
    assert planned(shard(THREE, "c1"), nodes, copies, cluster=UNCLEAN) is None


def test_an_unclean_failover_does_not_begin_from_nothing() -> None:
    nodes = {"n1": dead("first"), "n2": alive("x")}
    it = shard(PAIR, "c1")
    unclean = replace(UNCLEAN, replicas=2)
    assert refusal(planned(it, nodes, {"n2": copy("c2", 0, 0)}, cluster=unclean)) == "NodeAway"


def test_a_risk_stands_for_its_term_and_ends_with_it() -> None:
    risk = Condition(ConditionType.RISKED, "UncleanFailover", "some may be lost", 9, epoch=4)
    assert planned(shard(PAIR, "c1", "c2", conditions=(risk,)), BOTH) is None
    after = planned(shard(replace(PAIR, epoch=5), "c1", "c2", conditions=(risk,)), BOTH)
    assert isinstance(after, SetConditions)
    assert after.conditions == ()


def test_a_risk_announced_and_not_taken_is_withdrawn_before_the_term() -> None:
    risk = Condition(ConditionType.RISKED, "UncleanFailover", "some may be lost", 9, epoch=5)
    nodes = {"n1": alive("second"), "n2": alive("x")}
    it = shard(PAIR, "c1", conditions=(risk,))
    action = planned(it, nodes, {"n1": copy("c1", 4, 100)})
    assert isinstance(action, SetConditions)
    assert action.conditions == ()


# A chosen master whose copy is not in sync, before it has begun to serve.


def test_a_master_chosen_outside_the_in_sync_set_makes_way_for_the_in_sync_copy_that_is_back() -> None:
    spec = replace(PAIR, master="n2", incarnation="x", epoch=5)
    refused = shard(spec, "c1", serving_epoch=4)
    outside = copy("c2", 4, 100, not_serving="copy c2 is not in sync")
    assert refusal(planned(refused, {"n1": dead("first"), "n2": alive("x")}, {"n2": outside})) == "NodeAway"
    back = {"n1": copy("c1", 4, 200), "n2": outside}
    for unclean in (False, True):
        desired = replace(CLUSTER, replicas=2, allow_unclean_failover=unclean)
        chosen = planned(refused, {"n1": alive("b"), "n2": alive("x")}, back, cluster=desired)
        assert term(chosen) == ("n1", 6, "b")


def test_a_master_chosen_outside_the_in_sync_set_is_kept_while_that_is_allowed_and_nobody_is_in_sync() -> None:
    spec = replace(PAIR, master="n2", incarnation="x", epoch=5)
    desired = replace(CLUSTER, replicas=2, allow_unclean_failover=True)
    nodes = {"n1": dead("first"), "n2": alive("x")}
    assert planned(shard(spec, "c1", serving_epoch=4), nodes, {"n2": copy("c2", 4, 100)}, cluster=desired) is None
