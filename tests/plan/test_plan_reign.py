"""Who may start a reign, and why not: the tables of the dangerous choice (DESIGN 5.4, 5.5, attacks B2, B6, A5, A10)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from delaynode.registry.model import (
    ClusterSpec,
    Condition,
    ConditionType,
    ShardObject,
    ShardSpec,
    ShardStatus,
    Switchover,
    TopicSpec,
    Version,
)
from delayoperator.plan import (
    CopyView,
    Liveness,
    NodeView,
    Observed,
    SetConditions,
    StartReign,
    plan,
)

CLUSTER = ClusterSpec("local", 3, (TopicSpec("orders", 1),))
SOLE = ShardSpec(1, "orders", 0, ("n1",), master="n1", epoch=4, incarnation="first")
PAIR = replace(SOLE, replicas=("n1", "n2"))


def alive(incarnation: str) -> NodeView:
    return NodeView(Liveness.ALIVE, incarnation)


def dead(incarnation: str) -> NodeView:
    return NodeView(Liveness.DEAD, incarnation)


def unsure(incarnation: str | None = None) -> NodeView:
    return NodeView(Liveness.UNCERTAIN, incarnation)


def shard(spec: ShardSpec, *in_sync: str, conditions: tuple[Condition, ...] = ()) -> ShardObject:
    """With in-sync copies: served by the process that the spec names."""
    status = ShardStatus(spec.epoch, spec.incarnation or "", in_sync) if in_sync else None
    return ShardObject(spec.name, Version("1"), spec, status, conditions)


def planned(
    it: ShardObject, nodes: Mapping[str, NodeView], copies: Mapping[str, CopyView] | None = None
) -> StartReign | SetConditions | None:
    by_shard = {(it.name, node): copy for node, copy in (copies or {}).items()}
    actions = plan(CLUSTER, Observed((it,), nodes, by_shard))
    assert len(actions) <= 1
    action = actions[0] if actions else None
    assert action is None or isinstance(action, StartReign | SetConditions)
    return action


def reign(action: StartReign | SetConditions | None) -> tuple[str | None, int, str | None]:
    assert isinstance(action, StartReign)
    return action.spec.master, action.spec.epoch, action.spec.incarnation


def refusal(action: StartReign | SetConditions | None) -> str:
    assert isinstance(action, SetConditions)
    (condition,) = action.conditions
    assert condition.type is ConditionType.BLOCKED
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


# A shard with two replicas.


def test_failover_takes_the_in_sync_replica_that_lives() -> None:
    action = planned(shard(PAIR, "c1", "c2"), {"n1": dead("first"), "n2": alive("x")}, {"n2": CopyView("c2", 4, 100)})
    assert reign(action) == ("n2", 5, "x")
    assert action is not None
    assert action.reason == "n1 is dead: n2 is in sync with the highest log end, 100; epoch 5 begins"


def test_failover_takes_the_highest_epoch_then_the_highest_log_end() -> None:
    spec = replace(PAIR, replicas=("n0", "n1", "n2"))
    nodes = {"n0": alive("x"), "n1": dead("first"), "n2": alive("y")}
    it = shard(spec, "c0", "c1", "c2")
    longer = {"n0": CopyView("c0", 3, 900), "n2": CopyView("c2", 4, 100)}
    assert reign(planned(it, nodes, longer))[0] == "n2"
    same = {"n0": CopyView("c0", 4, 100), "n2": CopyView("c2", 4, 100)}
    assert reign(planned(it, nodes, same))[0] == "n0"


def test_a_replica_outside_the_in_sync_set_is_never_chosen() -> None:
    nodes = {"n1": dead("first"), "n2": alive("x")}
    assert refusal(planned(shard(PAIR, "c1"), nodes, {"n2": CopyView("c2", 4, 10**9)})) == "NoInSyncReplica"


def test_a_recreated_directory_is_not_in_sync() -> None:
    action = planned(shard(PAIR, "c1", "c2"), {"n1": dead("first"), "n2": alive("x")}, {"n2": CopyView("new", 0, 0)})
    assert refusal(action) == "NoInSyncReplica"


def test_a_damaged_copy_is_not_chosen() -> None:
    nodes = {"n1": dead("first"), "n2": alive("x")}
    action = planned(shard(PAIR, "c1", "c2"), nodes, {"n2": CopyView("c2", 4, 100, damaged=True)})
    assert refusal(action) == "CopyDamaged"


def test_a_replica_without_an_answer_is_uncertain_and_waited_for() -> None:
    assert planned(shard(PAIR, "c1", "c2"), {"n1": dead("first"), "n2": alive("x")}) is None
    assert planned(shard(PAIR, "c1", "c2"), {"n1": dead("first"), "n2": unsure("x")}) is None


def test_a_restarted_master_may_be_chosen_again_at_the_next_epoch() -> None:
    nodes = {"n1": alive("second"), "n2": alive("x")}
    copies = {"n1": CopyView("c1", 4, 120), "n2": CopyView("c2", 4, 100)}
    assert reign(planned(shard(PAIR, "c1", "c2"), nodes, copies)) == ("n1", 5, "second")
    assert reign(planned(shard(PAIR, "c2"), nodes, copies)) == ("n2", 5, "x")


def test_a_failover_ends_a_switchover() -> None:
    spec = replace(PAIR, switchover=Switchover("n2"))
    nodes = {"n1": dead("first"), "n2": alive("x")}
    action = planned(shard(spec, "c1", "c2"), nodes, {"n2": CopyView("c2", 4, 100)})
    assert isinstance(action, StartReign)
    assert action.spec.switchover is None


def test_the_first_reign_goes_to_the_first_living_replica() -> None:
    new = ShardSpec(1, "orders", 0, ("n1", "n2"))
    assert reign(planned(shard(new), {"n1": alive("a"), "n2": alive("b")})) == ("n1", 1, "a")
    assert reign(planned(shard(new), {"n1": dead("a"), "n2": alive("b")})) == ("n2", 1, "b")
    assert planned(shard(new), {"n1": unsure(), "n2": unsure()}) is None
    assert refusal(planned(shard(new), {"n1": dead("a"), "n2": dead("b")})) == "NodeAway"


def test_data_without_a_status_is_not_called_new() -> None:
    new = ShardSpec(1, "orders", 0, ("n1", "n2"))
    nodes = {"n1": alive("a"), "n2": alive("b")}
    assert refusal(planned(shard(new), nodes, {"n2": CopyView("c2", 9, 5)})) == "StatusLost"
