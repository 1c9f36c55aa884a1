"""Who may start a reign, and why not: the tables of the dangerous choice (DESIGN 5.4, 5.5, attacks B2, B6, A5, A10)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from delaynode.registry.model import (
    ClusterSpec,
    Condition,
    ConditionType,
    Durability,
    Handover,
    ShardObject,
    ShardSpec,
    ShardStatus,
    Switchover,
    TopicSpec,
    Version,
)
from delayoperator.plan import (
    ChangeSpec,
    CopyView,
    CreateShard,
    Liveness,
    NodeView,
    Observed,
    Role,
    SetConditions,
    StartReign,
    plan,
)

CLUSTER = ClusterSpec("local", 3, (TopicSpec("orders", 1),))
SOLE = ShardSpec(1, "orders", 0, ("n1",), master="n1", epoch=4, incarnation="first")
PAIR = replace(SOLE, replicas=("n1", "n2"))
THREE = replace(SOLE, replicas=("n0", "n1", "n2"))
NONE: Mapping[str, CopyView] = {}


def alive(incarnation: str) -> NodeView:
    return NodeView(Liveness.ALIVE, incarnation)


def dead(incarnation: str) -> NodeView:
    return NodeView(Liveness.DEAD, incarnation)


def unsure(incarnation: str | None = None) -> NodeView:
    return NodeView(Liveness.UNCERTAIN, incarnation)


def copy(entry: str, log_epoch: int, log_end: int, **more: Any) -> CopyView:
    """As the node's present process would answer; `planned` fills in which that is."""
    return CopyView(entry, more.pop("incarnation", ""), more.pop("epoch", log_epoch), log_epoch, log_end, **more)


def shard(spec: ShardSpec, *in_sync: str, conditions: tuple[Condition, ...] = (), **status: Any) -> ShardObject:
    """With in-sync entries: served by the process that the spec names."""
    served = ShardStatus(status.pop("serving_epoch", spec.epoch), spec.incarnation or "", in_sync, **status)
    return ShardObject(spec.name, Version("1"), spec, served if in_sync else None, conditions)


def planned(
    it: ShardObject,
    nodes: Mapping[str, NodeView],
    copies: Mapping[str, CopyView] = NONE,
    *,
    answered: Iterable[str] = (),
    unfit: Mapping[str, str] | None = None,
    cluster: ClusterSpec | None = None,
) -> StartReign | SetConditions | ChangeSpec | None:
    """The one action for the shard, or none. Whoever has a copy has answered, as the process that its lease names."""
    by_shard = {
        (it.name, node): replace(view, incarnation=view.incarnation or nodes[node].incarnation or "")
        for node, view in copies.items()
    }
    cluster = cluster or replace(CLUSTER, replicas=len(it.spec.replicas))
    heard = {node: nodes[node].incarnation or "" for node in answered}
    heard |= {node: view.incarnation for (_, node), view in by_shard.items()}
    seen = Observed((it,), nodes, by_shard, heard, unfit or {})
    actions = plan(cluster, seen)
    assert len(actions) <= 1
    action = actions[0] if actions else None
    assert not isinstance(action, CreateShard)
    return action


def reign(action: StartReign | SetConditions | ChangeSpec | None) -> tuple[str | None, int, str | None]:
    assert isinstance(action, StartReign)
    return action.spec.master, action.spec.epoch, action.spec.incarnation


def refusal(action: StartReign | SetConditions | ChangeSpec | None) -> str:
    assert isinstance(action, SetConditions)
    (condition,) = action.conditions
    assert condition.type is ConditionType.BLOCKED
    assert condition.message
    return condition.reason


# A shard with one replica.


def test_a_new_shard_gets_its_first_reign() -> None:
    new = ShardSpec(1, "orders", 0, ("n1",))
    action = planned(shard(new), {"n1": alive("first")})
    assert reign(action) == ("n1", 1, "first")
    assert action is not None
    assert action.reason == "the shard has no master yet: n1 has the only copy; epoch 1 begins"


def test_a_new_shard_waits_for_a_node_that_nobody_has_seen() -> None:
    assert planned(shard(ShardSpec(1, "orders", 0, ("n1",))), {}) is None


def test_a_served_shard_is_left_alone() -> None:
    assert planned(shard(SOLE, "copy"), {"n1": alive("first")}) is None


@pytest.mark.parametrize("served", [True, False])
def test_a_new_process_gets_a_new_reign_whether_or_not_the_old_one_was_taken_up(served: bool) -> None:
    action = planned(shard(SOLE, "copy") if served else shard(SOLE), {"n1": alive("second")})
    assert reign(action) == ("n1", 5, "second")
    assert action is not None
    assert action.reason == ("n1 is a new process, which may not resume epoch 4: n1 has the only copy; epoch 5 begins")


def test_a_new_process_gets_its_reign_before_it_is_certain_that_it_stays() -> None:
    assert reign(planned(shard(SOLE, "copy"), {"n1": unsure("second")})) == ("n1", 5, "second")


def test_a_pending_reign_is_not_started_again() -> None:
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


def test_a_blocked_shard_whose_node_returns_gets_its_reign_first() -> None:
    blocked = shard(SOLE, "copy", conditions=(Condition(ConditionType.BLOCKED, "NodeAway", "n1 is away", 99),))
    assert reign(planned(blocked, {"n1": alive("second")})) == ("n1", 5, "second")


# What nobody asks for any more.


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
    assert any(isinstance(action, StartReign) for action in restarted)


# A shard with more replicas: who is chosen.


def test_failover_takes_the_in_sync_replica_that_lives() -> None:
    action = planned(shard(PAIR, "c1", "c2"), {"n1": dead("first"), "n2": alive("x")}, {"n2": copy("c2", 4, 100)})
    assert reign(action) == ("n2", 5, "x")
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
        (copy("c0", 4, 900, role=Role.OPENING), copy("c2", 4, 100), "n2"),  # its log's end is not known yet
        (copy("cX", 4, 900), copy("c2", 4, 100), "n2"),  # not in sync
        (copy("", 0, 0, role=Role.FETCHING), copy("c2", 4, 100), "n2"),
        # What a copy has persisted is no measure of its log: only the reign that wrote its end is.
        (copy("c0", 3, 900, epoch=4), copy("c2", 4, 100), "n2"),
    ],
)
def test_failover_takes_the_highest_log_of_those_in_sync(zero: CopyView, two: CopyView, chosen: str) -> None:
    nodes = {"n0": alive("x"), "n1": dead("first"), "n2": alive("y")}
    assert reign(planned(shard(THREE, "c0", "c1", "c2"), nodes, {"n0": zero, "n2": two}))[0] == chosen


def test_a_member_that_gives_no_answer_is_not_waited_for_while_another_one_answers() -> None:
    nodes = {"n0": alive("x"), "n1": dead("first"), "n2": alive("y")}
    assert reign(planned(shard(THREE, "c0", "c1", "c2"), nodes, {"n2": copy("c2", 4, 100)}))[0] == "n2"


def test_a_member_that_gives_no_answer_is_chosen_when_all_are_in_sync_and_it_is_known_to_live() -> None:
    """A node that has much to do may answer after seconds; it looks for itself whether its copy is named."""
    all_in_sync, nodes = shard(PAIR, "c1", "c2"), {"n1": dead("first"), "n2": alive("x")}
    assert reign(planned(all_in_sync, nodes)) == ("n2", 5, "x")
    # rather than the former master's new process, which could not serve before a lease has passed
    again = {"n1": alive("second"), "n2": alive("x")}
    assert reign(planned(all_in_sync, again, {"n1": copy("c1", 4, 900)})) == ("n2", 5, "x")
    # but one that answers, and is not the former master, is known to be well
    three = {"n0": alive("x"), "n1": dead("first"), "n2": alive("y")}
    assert reign(planned(shard(THREE, "c0", "c1", "c2"), three, {"n2": copy("c2", 4, 100)}))[0] == "n2"


@pytest.mark.parametrize(
    ("in_sync", "view", "durability"),
    [
        (("c2",), alive("x"), Durability.FSYNC),  # of whom? n1's copy may be the one that is named
        (("c1", "c2"), unsure("x"), Durability.FSYNC),
        (("c1", "c2"), replace(alive("x"), settled=False), Durability.FSYNC),
        (("c1", "c2"), replace(alive("x"), stopping=True), Durability.FSYNC),
        (("c1", "c2"), alive("x"), Durability.ASYNC),  # its machine may have been started again
    ],
)
def test_otherwise_a_member_that_gives_no_answer_is_waited_for(
    in_sync: tuple[str, ...], view: NodeView, durability: Durability
) -> None:
    cluster = replace(CLUSTER, replicas=2, durability=durability)
    assert planned(shard(PAIR, *in_sync), {"n1": dead("first"), "n2": view}, cluster=cluster) is None


def test_a_member_that_is_opening_its_log_is_waited_for() -> None:
    opening = {"n2": copy("c2", 0, 0, role=Role.OPENING)}
    assert planned(shard(PAIR, "c1", "c2"), {"n1": dead("first"), "n2": alive("x")}, opening) is None


def test_a_member_that_gives_no_answer_for_long_is_said() -> None:
    nodes = {"n1": dead("first"), "n2": replace(alive("x"), silent=True)}
    action = planned(shard(PAIR, "c1", "c2"), nodes)
    assert refusal(action) == "NoAnswer"
    assert action is not None
    assert "cannot-see is not is-down" in action.reason


def test_the_only_member_is_chosen_while_it_is_still_opening_its_log() -> None:
    opening = {"n1": copy("c1", 0, 0, role=Role.OPENING), "n2": copy("c2", 4, 900)}
    assert reign(planned(shard(PAIR, "c1"), {"n1": alive("second"), "n2": alive("x")}, opening))[0] == "n1"


def test_the_answer_of_another_process_is_none() -> None:
    late = {"n2": copy("c2", 4, 100, incarnation="former")}
    assert planned(shard(PAIR, "c1", "c2"), {"n1": dead("first"), "n2": alive("x")}, late) is None


def test_an_answer_proves_life_before_the_lease_has_moved() -> None:
    nodes = {"n1": dead("first"), "n2": unsure("x")}
    assert reign(planned(shard(PAIR, "c1", "c2"), nodes, {"n2": copy("c2", 4, 100)})) == ("n2", 5, "x")


def test_whoever_can_not_renew_its_lease_is_not_chosen_even_if_it_answers() -> None:
    nodes = {"n1": dead("first"), "n2": dead("x")}
    assert refusal(planned(shard(PAIR, "c1", "c2"), nodes, {"n2": copy("c2", 4, 100)})) == "NodeAway"


def test_a_restarted_master_is_chosen_again_at_the_next_epoch_when_nobody_else_is_in_sync() -> None:
    nodes = {"n1": alive("second"), "n2": alive("x")}
    copies = {"n1": copy("c1", 4, 120), "n2": copy("c2", 4, 100)}
    assert reign(planned(shard(PAIR, "c1"), nodes, copies)) == ("n1", 5, "second")
    # Its new process would have to wait out what the former one may have promised; both have all that counts.
    assert reign(planned(shard(PAIR, "c1", "c2"), nodes, copies)) == ("n2", 5, "x")


def test_one_that_stops_or_leaves_is_chosen_only_when_there_is_no_other() -> None:
    # Each member has every acknowledged frame: a lasting choice is as safe as the longest log.
    nodes = {"n0": replace(alive("x"), stopping=True), "n1": dead("first"), "n2": alive("y")}
    copies = {"n0": copy("c0", 4, 900), "n2": copy("c2", 4, 100)}
    assert reign(planned(shard(THREE, "c0", "c1", "c2"), nodes, copies))[0] == "n2"
    assert reign(planned(shard(THREE, "c0", "c1"), nodes, copies))[0] == "n0"
    leaving = replace(THREE, target=("n1", "n2"), leaving=("n0",))
    steady = {**nodes, "n0": alive("x")}
    assert reign(planned(shard(leaving, "c0", "c1", "c2"), steady, copies))[0] == "n2"
    action = planned(shard(leaving, "c0", "c1"), steady, copies)
    assert isinstance(action, StartReign)
    assert (action.spec.master, action.spec.leaving) == ("n0", ())  # a master can't take itself out


def test_nobody_whose_clock_is_suspect_is_chosen() -> None:
    it, nodes = shard(THREE, "c0", "c1", "c2"), {"n0": alive("x"), "n1": dead("first"), "n2": alive("y")}
    copies = {"n0": copy("c0", 4, 900), "n2": copy("c2", 4, 100)}
    assert reign(planned(it, nodes, copies, unfit={"n0": "1.5 s ahead of its peers"}))[0] == "n2"
    action = planned(it, nodes, copies, unfit={"n0": "1.5 s ahead", "n2": "2 s behind"})
    assert refusal(action) == "ClockSuspect"
    assert action is not None
    assert "n2: 2 s behind" in action.reason


# Masters that give up: resigned, handing over, chosen in vain.


def test_a_master_that_has_resigned_is_replaced_at_once_by_another() -> None:
    nodes = {"n1": alive("first"), "n2": alive("x")}
    copies = {"n1": copy("c1", 4, 900), "n2": copy("c2", 4, 100)}
    action = planned(shard(PAIR, "c1", "c2", resigned="its disk hangs"), nodes, copies)
    assert reign(action) == ("n2", 5, "x")
    assert action is not None
    assert action.reason.startswith("n1 has resigned: its disk hangs: n2 is in sync")


def test_a_resigned_master_is_chosen_again_only_when_it_alone_is_in_sync_and_sound() -> None:
    nodes = {"n1": alive("first"), "n2": alive("x")}
    copies = {"n1": copy("c1", 4, 900), "n2": copy("c2", 4, 100)}
    assert reign(planned(shard(PAIR, "c1", resigned="slow"), nodes, copies)) == ("n1", 5, "first")
    damaged = {**copies, "n1": copy("c1", 4, 900, damaged="frame 7 is torn")}
    action = planned(shard(PAIR, "c1", resigned="damaged"), nodes, damaged)
    assert refusal(action) == "CopyDamaged"
    assert action is not None
    assert "n1: frame 7 is torn" in action.reason


def test_the_resignation_of_an_earlier_epoch_does_not_count() -> None:
    it = shard(replace(PAIR, epoch=5), "c1", "c2", resigned="slow", serving_epoch=4)
    assert planned(it, {"n1": alive("first"), "n2": alive("x")}) is None


@pytest.mark.parametrize(
    ("late", "found"),
    [(copy("c2", 4, 100, damaged="rot"), "damaged"), (None, "has no copy")],
)
def test_a_chosen_master_whose_copy_is_of_no_use_is_replaced(late: CopyView | None, found: str) -> None:
    it = shard(replace(PAIR, master="n2", incarnation="x", epoch=5), "c1", "c2", serving_epoch=4)
    copies = {"n1": copy("c1", 4, 100), **({"n2": late} if late else {})}
    action = planned(it, {"n1": alive("second"), "n2": alive("x")}, copies, answered=["n2"])
    assert reign(action) == ("n1", 6, "second")
    assert action is not None
    assert found in action.reason


HANDING = replace(PAIR, switchover=Switchover("n2"))
BOTH = {"n1": alive("first"), "n2": alive("x")}


def handed(log_end: int, *in_sync: str, epoch: int = 4) -> ShardObject:
    return shard(HANDING, *in_sync, handover=Handover(epoch, log_end))


def test_a_handover_is_followed_by_the_reign_of_the_one_it_names() -> None:
    copies = {"n1": copy("c1", 4, 100), "n2": copy("c2", 4, 100)}
    action = planned(handed(100, "c1", "c2"), BOTH, copies)
    assert reign(action) == ("n2", 5, "x")
    assert isinstance(action, StartReign)
    assert action.spec.switchover is None
    assert action.reason == "n1 hands over to n2, which has its log end, 100; epoch 5 begins"


@pytest.mark.parametrize(
    ("it", "two"),
    [
        (handed(100, "c1", "c2"), copy("c2", 4, 99)),  # not all of the log
        (handed(100, "c1"), copy("c2", 4, 100)),  # not in sync
        (handed(100, "c1", "c2"), copy("c2", 4, 100, damaged="rot")),
        (handed(100, "c1", "c2"), copy("c2", 4, 100, incarnation="former")),
        (handed(100, "c1", "c2", epoch=3), copy("c2", 4, 100)),  # of an earlier reign
        (shard(PAIR, "c1", "c2", handover=Handover(4, 100)), copy("c2", 4, 100)),  # asked for no more
    ],
)
def test_a_handover_to_one_that_is_not_proven_to_have_all_starts_no_reign(it: ShardObject, two: CopyView) -> None:
    assert not isinstance(planned(it, BOTH, {"n1": copy("c1", 4, 100), "n2": two}), StartReign)


def test_a_switchover_to_one_that_is_not_in_sync_waits_and_says_so() -> None:
    action = planned(shard(HANDING, "c1"), BOTH, {"n1": copy("c1", 4, 100), "n2": copy("c2", 4, 100)})
    assert isinstance(action, SetConditions)
    (condition,) = action.conditions
    assert (condition.type, condition.reason) == (ConditionType.HELD, "NotInSync")
    held = shard(HANDING, "c1", conditions=action.conditions)
    assert planned(held, BOTH) is None  # no answers this time: what was said stands


@pytest.mark.parametrize(
    ("to", "view"),
    [("n2", dead("x")), ("n2", replace(alive("x"), stopping=True)), ("n9", alive("z")), ("n1", alive("first"))],
)
def test_a_switchover_that_can_not_be_is_withdrawn(to: str, view: NodeView) -> None:
    it = shard(replace(PAIR, switchover=Switchover(to)), "c1", "c2")
    action = planned(it, {**BOTH, to: view})
    assert isinstance(action, ChangeSpec)
    assert action.spec == PAIR


def test_a_failover_ends_a_switchover() -> None:
    nodes = {"n1": dead("first"), "n2": alive("x")}
    action = planned(shard(HANDING, "c1", "c2"), nodes, {"n2": copy("c2", 4, 100)})
    assert isinstance(action, StartReign)
    assert action.spec.switchover is None


# Nobody is chosen, and why not.


@pytest.mark.parametrize(
    ("in_sync", "one", "two", "reason"),
    [
        (("c1",), None, copy("c2", 4, 10**9), "NodeAway"),  # never one outside, however much it has
        (("c1", "c2"), None, copy("new", 0, 0), "NodeAway"),  # a directory made again is not in sync
        (("c2",), None, copy("c2", 4, 100, damaged="rot"), "CopyDamaged"),
        (("c1", "c2"), None, copy("c2", 4, 100, damaged="rot"), "NodeAway"),
        (("c1",), copy("new", 0, 0), copy("c2", 4, 100), "NoInSyncReplica"),
        (("c1", "c2"), None, copy("", 0, 0, role=Role.FETCHING), "NodeAway"),
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


def test_a_served_shard_whose_registry_is_behind_is_said_too() -> None:
    action = planned(shard(PAIR, "c1", "c2"), BOTH, {"n1": copy("c1", 4, 100, epoch=9), "n2": copy("c2", 4, 100)})
    assert refusal(action) == "RegistryBehind"
    assert action is not None
    assert "delayctl adopt" in action.reason


# What is chosen at a risk is said before.


def risked(it: ShardObject, action: StartReign | SetConditions | ChangeSpec | None) -> tuple[str, ShardObject]:
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
    assert reign(planned(said, nodes, both)) == ("n2", 5, "y")


def test_a_machine_that_was_not_rebooted_is_taken_before_one_that_was_however_much_that_has() -> None:
    nodes = {"n0": alive("x"), "n1": dead("first"), "n2": alive("y")}
    copies = {"n0": copy("c0@A", 4, 900), "n2": copy("c2@b", 4, 100)}
    assert reign(planned(shard(THREE, "c0@a", "c1@c", "c2@b"), nodes, copies))[0] == "n2"


def test_a_sole_copy_on_a_rebooted_machine_goes_on_and_says_so() -> None:
    it = shard(SOLE, "c1@a")
    copies = {"n1": copy("c1@A", 4, 100)}
    reason, said = risked(it, planned(it, {"n1": alive("second")}, copies))
    assert reason == "AllRebooted"
    assert reign(planned(said, {"n1": alive("second")}, copies)) == ("n1", 5, "second")


UNCLEAN = replace(CLUSTER, replicas=3, allow_unclean_failover=True)


def test_unclean_failover_takes_the_highest_sound_copy_once_no_member_can_be_had() -> None:
    it = shard(THREE, "c1")
    nodes = {"n0": alive("x"), "n1": dead("first"), "n2": alive("y")}
    copies = {"n0": copy("c0", 4, 90), "n2": copy("c2", 4, 100)}
    assert refusal(planned(it, nodes, copies)) == "NodeAway"  # by default
    reason, said = risked(it, planned(it, nodes, copies, cluster=UNCLEAN))
    assert reason == "UncleanFailover"
    assert reign(planned(said, nodes, copies, cluster=UNCLEAN)) == ("n2", 5, "y")


@pytest.mark.parametrize(
    ("nodes", "copies"),
    [
        ({"n0": alive("x"), "n1": unsure("second"), "n2": alive("y")}, {"n2": copy("c2", 4, 100)}),  # who knows?
        ({"n0": alive("x"), "n1": dead("a"), "n2": alive("y")}, {"n2": copy("c2", 4, 100)}),  # n0 may have more
        ({"n0": alive("x"), "n1": alive("second"), "n2": alive("y")}, {"n2": copy("c2", 4, 100)}),
    ],
)
def test_unclean_failover_too_waits_for_whoever_may_have_more(
    nodes: Mapping[str, NodeView], copies: Mapping[str, CopyView]
) -> None:
    assert planned(shard(THREE, "c1"), nodes, copies, cluster=UNCLEAN) is None


def test_an_unclean_failover_does_not_begin_from_nothing() -> None:
    nodes = {"n1": dead("first"), "n2": alive("x")}
    it = shard(PAIR, "c1")
    unclean = replace(UNCLEAN, replicas=2)
    assert refusal(planned(it, nodes, {"n2": copy("c2", 0, 0)}, cluster=unclean)) == "NodeAway"


def test_a_risk_stands_for_its_reign_and_ends_with_it() -> None:
    risk = Condition(ConditionType.RISKED, "UncleanFailover", "some may be lost", 9, epoch=4)
    assert planned(shard(PAIR, "c1", "c2", conditions=(risk,)), BOTH) is None
    after = planned(shard(replace(PAIR, epoch=5), "c1", "c2", conditions=(risk,)), BOTH)
    assert isinstance(after, SetConditions)
    assert after.conditions == ()


def test_a_risk_announced_and_not_taken_is_withdrawn_before_the_reign() -> None:
    risk = Condition(ConditionType.RISKED, "UncleanFailover", "some may be lost", 9, epoch=5)
    nodes = {"n1": alive("second"), "n2": alive("x")}
    it = shard(PAIR, "c1", conditions=(risk,))
    action = planned(it, nodes, {"n1": copy("c1", 4, 100)})
    assert isinstance(action, SetConditions)
    assert action.conditions == ()


# The first reign.

NEW = ShardSpec(1, "orders", 0, ("n1", "n2"))


def test_the_first_reign_goes_to_the_first_replica_once_all_have_said_that_they_have_nothing() -> None:
    nodes = {"n1": alive("a"), "n2": alive("b")}
    assert planned(shard(NEW), nodes) is None
    assert planned(shard(NEW), nodes, answered=["n1"]) is None
    assert reign(planned(shard(NEW), nodes, answered=["n1", "n2"])) == ("n1", 1, "a")


def test_a_directory_of_a_first_reign_that_never_began_is_no_data() -> None:
    nodes = {"n1": dead("a"), "n2": alive("b")}
    begun = replace(NEW, master="n1", incarnation="a", epoch=1)
    assert refusal(planned(shard(begun), nodes, answered=["n2"])) == "NodeAway"
    nodes["n1"] = alive("c")
    assert reign(planned(shard(begun), nodes, {"n1": copy("c1", 0, 0, epoch=1)}, answered=["n2"])) == ("n1", 2, "c")


def test_a_first_reign_is_refused_while_a_replica_is_away() -> None:
    assert refusal(planned(shard(NEW), {"n1": dead("a"), "n2": alive("b")}, answered=["n2"])) == "NodeAway"
    assert planned(shard(NEW), {"n1": unsure(), "n2": unsure()}) is None


def test_data_without_a_status_is_not_called_new() -> None:
    nodes = {"n1": alive("a"), "n2": alive("b")}
    lost = shard(replace(NEW, epoch=9))
    action = planned(lost, nodes, {"n2": copy("c2", 9, 5)}, answered=["n1"])
    assert refusal(action) == "StatusLost"
    assert action is not None
    assert "delayctl adopt" in action.reason
    opening = {"n2": copy("c2", 0, 0, epoch=9, role=Role.OPENING)}
    assert planned(lost, nodes, opening, answered=["n1"]) is None  # a directory, of whose log nothing is known yet
