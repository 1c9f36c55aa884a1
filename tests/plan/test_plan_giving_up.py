"""Masters that give up: resigned, handing over, chosen in vain; who leads after them (docs/protocol.md 5, attack
A5).
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from delayoperator.plan import (
    ChangeSpec,
    CopyView,
    ObservedNode,
    SetConditions,
    StartTerm,
)
from delayregistry.model import ConditionType, Handover, ShardObject, Switchover

from tests.plan.terms import BOTH, PAIR, alive, copy, dead, planned, refusal, shard, term


def test_a_master_that_has_resigned_is_replaced_at_once_by_another() -> None:
    nodes = {"n1": alive("first"), "n2": alive("x")}
    copies = {"n1": copy("c1", 4, 900), "n2": copy("c2", 4, 100)}
    action = planned(shard(PAIR, "c1", "c2", resigned="its disk hangs"), nodes, copies)
    assert term(action) == ("n2", 5, "x")
    assert action is not None
    assert action.reason.startswith("n1 has resigned: its disk hangs: n2 is in sync")


def test_a_resigned_master_is_chosen_again_only_when_it_alone_is_in_sync_and_sound() -> None:
    nodes = {"n1": alive("first"), "n2": alive("x")}
    copies = {"n1": copy("c1", 4, 900), "n2": copy("c2", 4, 100)}
    assert term(planned(shard(PAIR, "c1", resigned="slow"), nodes, copies)) == ("n1", 5, "first")
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
    assert term(action) == ("n1", 6, "second")
    assert action is not None
    assert found in action.reason


HANDING = replace(PAIR, switchover=Switchover("n2"))


def handed(log_end: int, *in_sync: str, epoch: int = 4) -> ShardObject:
    return shard(HANDING, *in_sync, handover=Handover(epoch, log_end))


def test_a_handover_is_followed_by_the_term_of_the_one_it_names() -> None:
    copies = {"n1": copy("c1", 4, 100), "n2": copy("c2", 4, 100)}
    action = planned(handed(100, "c1", "c2"), BOTH, copies)
    assert term(action) == ("n2", 5, "x")
    assert isinstance(action, StartTerm)
    assert action.spec.switchover is None
    assert action.reason == "n1 hands over to n2, which has its log end, 100; epoch 5 begins"


@pytest.mark.parametrize(
    ("it", "two"),
    [
        (handed(100, "c1", "c2"), copy("c2", 4, 99)),  # not all of the log
        (handed(100, "c1"), copy("c2", 4, 100)),  # not in sync
        (handed(100, "c1", "c2"), copy("c2", 4, 100, damaged="rot")),
        (handed(100, "c1", "c2"), copy("c2", 4, 100, incarnation="former")),
        (handed(100, "c1", "c2", epoch=3), copy("c2", 4, 100)),  # of an earlier term
        (shard(PAIR, "c1", "c2", handover=Handover(4, 100)), copy("c2", 4, 100)),  # asked for no more
    ],
)
def test_a_handover_to_one_that_is_not_proven_to_have_all_starts_no_term(it: ShardObject, two: CopyView) -> None:
    assert not isinstance(planned(it, BOTH, {"n1": copy("c1", 4, 100), "n2": two}), StartTerm)


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
def test_a_switchover_that_can_not_be_is_withdrawn(to: str, view: ObservedNode) -> None:
    it = shard(replace(PAIR, switchover=Switchover(to)), "c1", "c2")
    action = planned(it, {**BOTH, to: view})
    assert isinstance(action, ChangeSpec)
    assert action.spec == PAIR


def test_a_failover_ends_a_switchover() -> None:
    nodes = {"n1": dead("first"), "n2": alive("x")}
    action = planned(shard(HANDING, "c1", "c2"), nodes, {"n2": copy("c2", 4, 100)})
    assert isinstance(action, StartTerm)
    assert action.spec.switchover is None
