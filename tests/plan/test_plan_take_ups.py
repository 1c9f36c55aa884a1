"""Terms that a chosen master does nothing about: since when they count as overdue, and who leads then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from delayoperator.control_loop.probe import NodeAnswer
from delayoperator.control_loop.term_starts import BLIND_MS, EXCLUDED_MS, TAKE_UP_MS, TermStarts
from delayoperator.plan import (
    ChangeSpec,
    CopyView,
    NotBegun,
    Observed,
    ObservedNode,
    ObservedRole,
    SetConditions,
    StartTerm,
    plan,
)
from delayregistry.model import Condition, ConditionType, ShardObject, ShardSpec

from tests.plan.terms import BOTH, CLUSTER, PAIR, SOLE, THREE, alive, copy, dead, planned, refusal, shard, term

MISSING = "the registry has no such shard"
CHOSEN = replace(PAIR, master="n2", incarnation="x", epoch=5)
UNSERVED = shard(CHOSEN, "c1", "c2", serving_epoch=4)
COPIES = {"n1": copy("c1", 4, 100), "n2": copy("c2", 4, 100, not_serving=MISSING)}
LATE = NotBegun(10, MISSING, ("n2",), again=False)


# ---------------------------------------------------------------- who leads then
def test_another_copy_in_sync_leads_where_the_chosen_one_does_nothing_about_it() -> None:
    action = planned(UNSERVED, BOTH, COPIES, late=LATE)
    assert term(action) == ("n1", 6, "first")
    assert isinstance(action, StartTerm)
    assert action.reason.startswith(f"n2 was chosen for epoch 5 and has not begun it for over 10 s ({MISSING}): n1 is")
    assert not action.spec.vacant, "who led before the one that was chosen may do so still"


def test_a_copy_that_is_not_in_sync_never_leads_for_that_not_even_uncleanly() -> None:
    only = shard(CHOSEN, "c2", serving_epoch=4)
    unclean = replace(CLUSTER, replicas=2, allow_unclean_failover=True)
    action = planned(only, BOTH, {**COPIES, "n1": copy("c1", 4, 900)}, late=LATE, cluster=unclean)
    assert refusal(action) == "NotTakenUp"


def test_a_copy_outside_that_was_chosen_uncleanly_makes_way_for_no_shorter_one() -> None:
    lost = shard(CHOSEN, "c0", serving_epoch=4)
    unclean = replace(CLUSTER, replicas=2, allow_unclean_failover=True)
    assert refusal(planned(lost, BOTH, COPIES, late=LATE, cluster=unclean)) == "NotTakenUp"


def test_the_condition_says_who_for_which_epoch_how_long_and_what_is_waited_for() -> None:
    nodes = {"n1": dead("first"), "n2": alive("x")}
    action = planned(UNSERVED, nodes, {"n2": COPIES["n2"]}, late=LATE)
    assert isinstance(action, SetConditions)
    message = (
        f"n2 was chosen for epoch 5 and has not begun it for over 10 s ({MISSING}); waiting for it, or for another "
        "copy in sync (n1: away)"
    )
    assert action.conditions == (Condition(ConditionType.BLOCKED, "NotTakenUp", message),)
    said = replace(UNSERVED, conditions=action.conditions)
    assert planned(said, nodes, {"n2": COPIES["n2"]}, late=LATE) is None
    over = planned(replace(said, status=replace(UNSERVED.status, serving_epoch=5)), BOTH)  # type: ignore[type-var]
    assert isinstance(over, SetConditions)
    assert over.conditions == ()


def test_the_only_copy_is_waited_for_by_name() -> None:
    it = shard(replace(SOLE, epoch=5), "c1", serving_epoch=4)
    late = NotBegun(20, MISSING, ("n1",), again=True)
    action = planned(it, {"n1": alive("first")}, {"n1": copy("c1", 4, 100)}, late=late)
    assert refusal(action) == "NotTakenUp"
    assert action is not None
    assert action.reason.endswith("waiting for it, which has the only copy")


def test_a_copy_that_gives_no_answer_just_now_changes_nothing() -> None:
    assert planned(UNSERVED, BOTH, {"n2": COPIES["n2"]}, late=LATE) is None


def test_a_master_that_gives_no_answer_is_kept_and_named() -> None:
    late = replace(LATE, silent=True)
    assert refusal(planned(UNSERVED, BOTH, {"n1": COPIES["n1"]}, late=late)) == "NoAnswer"


@pytest.mark.parametrize(
    ("in_vain", "again", "leads"),
    [
        (("n2",), False, "n1"),
        (("n1", "n2"), False, "n0"),  # never tried
        (("n0", "n2"), True, "n1"),  # so is this one: it comes first
        (("n1", "n0", "n2"), False, None),
        (("n1", "n0", "n2"), True, "n1"),  # its try is the longest ago
    ],
)
def test_those_that_were_chosen_in_vain_are_left_in_peace_for_a_while(
    in_vain: tuple[str, ...], again: bool, leads: str | None
) -> None:
    spec = replace(THREE, master="n2", incarnation="x", epoch=8)
    copies = {"n0": copy("c0", 4, 100), "n1": copy("c1", 4, 200), "n2": copy("c2", 4, 100)}
    nodes = {"n0": alive("z"), **BOTH}
    late = NotBegun(10, MISSING, in_vain, again)
    action = planned(shard(spec, "c0", "c1", "c2", serving_epoch=4), nodes, copies, late=late)
    if leads is None:
        assert refusal(action) == "NotTakenUp"
    else:
        assert term(action)[:2] == (leads, 9)


def test_a_first_term_that_is_not_begun_goes_to_another_node() -> None:
    first = ShardObject(CHOSEN.name, UNSERVED.version, CHOSEN)
    assert term(planned(first, BOTH, answered=BOTH, late=LATE)) == ("n1", 6, "first")
    both = replace(LATE, in_vain=("n1", "n2"))
    assert refusal(planned(first, BOTH, answered=BOTH, late=both)) == "NotTakenUp"


def test_a_damaged_copy_is_called_so_rather_than_late() -> None:
    damaged = {"n2": copy("c2", 4, 100, damaged="rot")}
    only = shard(CHOSEN, "c2", serving_epoch=4)
    assert refusal(planned(only, BOTH, {**damaged, "n1": copy("c1", 4, 9)}, late=LATE)) == "CopyDamaged"


# ---------------------------------------------------------------- since when
class Watch:
    """n2 is chosen; what it answers, and time, are in the test's hand."""

    def __init__(self, *shards: ShardObject) -> None:
        self.shards = shards or (UNSERVED,)
        self.nodes: Mapping[str, ObservedNode] = BOTH
        self.take_ups, self.now_ms = TermStarts(), 1_000

    def look(self, after_ms: int = 0, *, mute: bool = False, **answer: Any) -> Observed:
        """A look now, and one each second until so much later: the last of them."""
        views = {it.spec.uid: copy("c2", 4, 100, **answer) for it in self.shards}
        answers = {} if mute else {"n2": NodeAnswer("x", copies=views)}
        seen = self.take_ups.update(Observed(self.shards, self.nodes), answers, self.now_ms)
        for _ in range(after_ms // 1_000):
            self.now_ms += 1_000
            seen = self.take_ups.update(Observed(self.shards, self.nodes), answers, self.now_ms)
        return seen

    def late(self, after_ms: int = 0, **answer: Any) -> NotBegun | None:
        spec = self.shards[0].spec
        return self.look(after_ms, **answer).not_begun.get((spec.uid, spec.epoch))

    def terms(self, node: str, served: int) -> None:
        (it,) = self.shards
        incarnation = self.nodes[node].incarnation
        spec = replace(it.spec, master=node, incarnation=incarnation, epoch=it.spec.epoch + 1)
        assert it.status is not None
        self.shards = (replace(it, spec=spec, status=replace(it.status, serving_epoch=served)),)


def test_a_slave_that_was_chosen_is_overdue_after_its_time_and_not_before() -> None:
    watch = Watch()
    assert watch.late(TAKE_UP_MS - 1_000) is None
    late = watch.late(1_000, not_serving=MISSING)
    assert late == NotBegun(10, MISSING, ("n2",), again=True)


@pytest.mark.parametrize("working", [{"role": ObservedRole.OPENING}, {"role": ObservedRole.CANDIDATE}, {
    "role": ObservedRole.CANDIDATE, "ended_epoch": 3, "not_serving": "what ended an earlier term"
}])  # fmt: skip
def test_no_time_counts_while_it_is_at_work(working: Mapping[str, Any]) -> None:
    watch = Watch()
    assert watch.late(20 * TAKE_UP_MS, **working) is None
    assert watch.late(TAKE_UP_MS - 2_000) is None
    assert watch.late(4_000) is not None


def test_a_candidate_that_says_what_it_waits_for_is_not_at_work() -> None:
    late = Watch().late(
        TAKE_UP_MS, role=ObservedRole.CANDIDATE, not_serving="the registry did not take its status: 403"
    )
    assert late is not None
    assert late.what == "the registry did not take its status: 403"


def test_a_node_that_begins_what_it_was_chosen_for_before_gets_its_time() -> None:
    """One that was chosen for 1,000 shards at once."""
    shards = [replace(UNSERVED, spec=replace(CHOSEN, uid=uid, queue=uid)) for uid in range(1, 6)]
    watch = Watch(*shards)
    for at in range(1, 5):
        assert watch.look(TAKE_UP_MS - 2_000).not_begun == {}
        status = replace(UNSERVED.status, serving_epoch=5)  # type: ignore[type-var]
        watch.shards = (*(replace(it, status=status) for it in shards[:at]), *shards[at:])
    assert watch.look(TAKE_UP_MS - 2_000).not_begun == {}
    assert list(watch.look(4_000).not_begun) == [(5, 5)]


def test_a_node_that_begins_what_it_was_chosen_for_later_gets_no_more_time_for_that() -> None:
    watch = Watch()
    watch.look(TAKE_UP_MS - 2_000)
    later = replace(UNSERVED, spec=replace(CHOSEN, uid=7, queue=7))
    watch.shards = UNSERVED, later
    watch.look(1_000)
    watch.shards = UNSERVED, replace(later, status=replace(UNSERVED.status, serving_epoch=5))  # type: ignore[type-var]
    assert watch.late(2_000) is not None


def test_after_a_time_without_a_look_all_is_counted_anew() -> None:
    watch = Watch()
    watch.look(TAKE_UP_MS - 1_000)
    watch.now_ms += BLIND_MS + 1
    assert watch.late(TAKE_UP_MS - 1_000) is None
    assert watch.late(1_000) is not None


def test_a_new_process_and_a_dead_node_are_not_overdue() -> None:
    watch = Watch()
    watch.nodes = {**BOTH, "n2": dead("x")}
    assert watch.late(2 * TAKE_UP_MS) is None
    watch.nodes = {**BOTH, "n2": alive("a new process")}
    assert watch.late(2 * TAKE_UP_MS) is None


def test_one_answer_that_is_missing_ends_nothing_and_begins_nothing() -> None:
    watch = Watch()
    assert watch.late(TAKE_UP_MS, not_serving=MISSING) is not None
    assert watch.late(1_000, mute=True) is not None
    assert Watch().late(2 * TAKE_UP_MS, mute=True) is None


def test_a_node_that_stays_silent_is_said_to_be_silent() -> None:
    watch = Watch()
    watch.nodes = {**BOTH, "n2": replace(alive("x"), silent=True)}
    assert watch.late(TAKE_UP_MS - 1_000, mute=True) is None
    late = watch.late(1_000, mute=True)
    assert late is not None
    assert late.silent


def test_how_long_it_has_been_is_told_in_steps_that_double() -> None:
    watch = Watch()
    told = [late.seconds for _ in range(100) if (late := watch.late(1_000)) is not None]
    assert sorted(set(told)) == [10, 20, 40, 80]
    assert told == sorted(told)


def test_the_pause_before_another_try_doubles_and_ends_with_the_first_success() -> None:
    watch, pauses = Watch(), []
    for node in ("n1", "n2", "n1", "n2", "n1"):
        watch.nodes = {"n1": alive("x"), "n2": alive("x")}  # the same answer for either
        answers = {name: NodeAnswer("x", copies={1: copy("c", 4, 100)}) for name in ("n1", "n2")}
        began_ms, again = watch.now_ms, False
        while not again:
            watch.now_ms += 1_000
            seen = watch.take_ups.update(Observed(watch.shards, watch.nodes), answers, watch.now_ms)
            again = any(late.again for late in seen.not_begun.values())
        pauses.append((watch.now_ms - began_ms) // 1_000)
        watch.terms(node, served=4)
    assert pauses == [11, 21, 41, 81, 81]
    watch.terms("n2", served=watch.shards[0].spec.epoch + 1)
    watch.look()
    watch.terms("n2", served=watch.shards[0].spec.epoch)
    late = watch.late(TAKE_UP_MS)
    assert late is not None
    assert (late.in_vain, late.again) == (("n2",), True)


def test_a_term_that_was_given_up_before_it_was_served_is_overdue_at_once() -> None:
    watch = Watch(shard(CHOSEN, "c2", serving_epoch=4))
    gone = {"ended_epoch": 5, "not_serving": "the shard is gone from the registry"}
    late = watch.late(**gone)
    assert late == NotBegun(1, "the shard is gone from the registry", ("n2",), again=False)
    seen = watch.look(TAKE_UP_MS, **gone)  # nobody else could be chosen: it may have another term
    assert (seen.given_up, seen.not_begun) == ({(1, 5): "the shard is gone from the registry"}, {})
    copies = {(UNSERVED.name, "n2"): copy("c2", 4, 100, incarnation="x")}
    (action,) = plan(replace(CLUSTER, replicas=2), replace(seen, copies=copies, answered={"n2": "x"}))
    assert term(action) == ("n2", 6, "x")  # type: ignore[arg-type]


def test_what_it_waits_for_is_told_as_it_seems_where_it_does_not_say() -> None:
    def told(answer: NodeAnswer) -> str:
        take_ups, seen = TermStarts(), Observed()
        for now_ms in range(0, TAKE_UP_MS + 1_000, 1_000):
            seen = take_ups.update(Observed((UNSERVED,), BOTH), {"n2": answer}, now_ms)
        return seen.not_begun[1, 5].what

    def of(view: CopyView) -> NodeAnswer:
        return NodeAnswer("x", copies={1: view})

    assert told(NodeAnswer("x", listed=False)) == "it has not read the shards from the registry yet"
    assert told(NodeAnswer("x")) == "it has made no copy yet"
    assert told(of(copy("c2", 4, 1))) == "it seems not to have heard that it was chosen"
    earlier = copy("c2", 4, 1, ended_epoch=3, not_serving="what ended an earlier term")
    assert told(of(earlier)) == "it seems not to have heard that it was chosen"
    assert told(of(copy("c2", 4, 1, role=ObservedRole.MASTER, serving_epoch=4))).startswith("it leads in epoch 4 still")
    assert told(of(copy("c2", 4, 1, damaged="rot"))) == "its copy is damaged: rot"


def test_terms_that_are_over_are_forgotten() -> None:
    watch = Watch()
    watch.look(TAKE_UP_MS)
    watch.terms("n1", served=4)
    watch.look()
    watch.shards = ()
    watch.look()
    kept = watch.take_ups._chosen, watch.take_ups._in_vain, watch.take_ups._tries, watch.take_ups._excluded
    assert kept == ({}, {}, {}, {})


def test_one_that_was_passed_over_is_excluded_for_a_while_and_its_next_process_is_not() -> None:
    watch = Watch()
    watch.look(TAKE_UP_MS)
    watch.terms("n1", served=6)
    assert watch.look().excluded == {(1, "n2")}
    assert not watch.take_ups.due(watch.now_ms)
    watch.nodes = {**BOTH, "n2": alive("a new process")}
    assert watch.look().excluded == frozenset()

    watch = Watch()
    watch.look(TAKE_UP_MS)
    watch.terms("n1", served=6)
    assert watch.look(EXCLUDED_MS - 1_000).excluded == {(1, "n2")}
    watch.now_ms += 1_000
    assert watch.take_ups.due(watch.now_ms), "the world is to be planned for anew"
    assert watch.look().excluded == frozenset()


def test_a_shard_is_not_handed_over_to_one_that_is_excluded_unless_a_person_asks() -> None:
    it = shard(replace(PAIR, target=("n2",)), "c1", "c2")
    copies = {(it.name, node): replace(view, incarnation=BOTH[node].incarnation) for node, view in COPIES.items()}
    seen = Observed((it,), BOTH, copies, {"n1": "first", "n2": "x"})
    (action,) = plan(replace(CLUSTER, replicas=1), seen)
    assert isinstance(action, ChangeSpec)
    (said,) = plan(replace(CLUSTER, replicas=1), replace(seen, excluded=frozenset({(1, "n2")})))
    assert isinstance(said, SetConditions)
    assert said.conditions[0].reason == "NoSuccessor"


def test_among_equals_one_that_is_excluded_is_chosen_last() -> None:
    it = shard(THREE, "c0", "c1", "c2")
    copies = {
        (it.name, "n0"): copy("c0", 4, 100, incarnation="z"),
        (it.name, "n2"): copy("c2", 4, 200, incarnation="x"),
    }
    nodes = {"n0": alive("z"), "n1": dead("first"), "n2": alive("x")}
    seen = Observed((it,), nodes, copies, {"n0": "z", "n2": "x"})
    for excluded, leads in ((frozenset(), "n2"), (frozenset({(1, "n2")}), "n0")):
        (action,) = plan(replace(CLUSTER, replicas=3), replace(seen, excluded=excluded))
        assert term(action)[0] == leads  # type: ignore[arg-type]


def test_a_shard_that_was_never_chosen_for_is_not_overdue() -> None:
    assert Watch(ShardObject("orders-0", UNSERVED.version, ShardSpec(1, "orders", 0, ("n1",)))).late(99_000) is None
