"""Moves, drains, new and lost nodes, stopping ones: each a walk of small steps that never takes a copy too early."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from delayoperator.plan import ChangeSpec, CopyView, Liveness, Observed, ObservedNode, StartTerm, plan
from delayoperator.plan.planner import MAX_MOVES
from delayregistry.model import (
    ClusterSpec,
    ConditionType,
    ShardObject,
    ShardSpec,
    ShardStatus,
    Switchover,
    TopicSpec,
    Version,
)

from tests.plan.cluster import Cluster


def cluster(nodes: int, queues: int, replicas: int) -> Cluster:
    """Settled: all shards served, all copies in sync."""
    world = Cluster(ClusterSpec("local", nodes, (TopicSpec("t", queues),), replicas=replicas))
    for node in world.spec.node_ids:
        world.start(node)
    settle(world)
    assert world.faults() == []
    return world


def settle(world: Cluster, each: Callable[[], None] = lambda: None) -> int:
    """Until nobody does anything any more; how many rounds it took. `each` looks at every round."""
    for number in range(2_000):
        actions = plan(world.spec, world.observed())
        for action in actions:
            world.apply(action)
        each()
        acted = world.nodes_act()
        for queue in range(3):
            world.write(f"t-{queue}")
        if not actions and not acted:
            return number
    raise AssertionError("it does not come to rest")


def masters(world: Cluster) -> Counter[str]:
    return Counter(shard.spec.master or "" for shard in world.shards.values())


def copies(world: Cluster) -> Counter[str]:
    return Counter(node for shard in world.shards.values() for node in shard.spec.replicas)


def want(world: Cluster, name: str, **changes: object) -> None:
    shard = world.shards[name]
    assert world.apply(ChangeSpec(shard, replace(shard.spec, **changes), "asked for"))  # type: ignore[arg-type]


# One step at a time.

FOUR = ClusterSpec("local", 4, (TopicSpec("t", 1),), replicas=2)
SPEC = ShardSpec(1, "t", 0, ("n0", "n1"), master="n0", epoch=3, incarnation="p")
AWAY = replace(SPEC, target=("n2", "n1"))
GROWN = replace(AWAY, replicas=("n0", "n1", "n2"))
LED = replace(GROWN, master="n2")
LEAVING = replace(LED, leaving=("n0",))


def step(
    spec: ShardSpec,
    *in_sync: str,
    dead: tuple[str, ...] = (),
    mute: tuple[str, ...] = (),
    drained: tuple[str, ...] = (),
    replicas: int = 2,
) -> ChangeSpec | str | None:
    """The plan for a shard whose copies on n0, n1, ... are c0, c1, ...; a condition by its reason."""
    nodes = {
        node: ObservedNode(Liveness.DEAD if node in dead else Liveness.ALIVE, "p") for node in ("n0", "n1", "n2", "n3")
    }
    heard = {node: "p" for node in nodes if node not in dead and node not in mute}
    seen = {("t-0", node): CopyView(f"c{node[1:]}", "p", 3, 3, 100) for node in spec.replicas if node in heard}
    shard = ShardObject("t-0", Version("1"), spec, ShardStatus(3, "p", in_sync))
    actions = plan(replace(FOUR, drained=drained, replicas=replicas), Observed((shard,), nodes, seen, heard))
    if not actions:
        return None
    (action,) = actions
    if isinstance(action, ChangeSpec):
        assert action.reason
        return action
    assert not isinstance(action, StartTerm)
    return action.conditions[0].reason  # type: ignore[union-attr]


def changed(action: ChangeSpec | str | None) -> ShardSpec:
    assert isinstance(action, ChangeSpec)
    return action.spec


def test_the_steps_of_a_move_in_their_order() -> None:
    assert changed(step(AWAY, "c0", "c1")) == GROWN
    assert step(GROWN, "c0", "c1") is None  # n2 fetches its copy and grows into the in-sync set by itself
    assert changed(step(GROWN, "c0", "c1", "c2")) == replace(GROWN, switchover=Switchover("n2"))
    assert changed(step(LED, "c0", "c1", "c2")) == LEAVING
    assert step(LEAVING, "c0", "c1", "c2") is None  # the master takes n0 out
    assert changed(step(LEAVING, "c1", "c2")) == replace(SPEC, replicas=("n2", "n1"), master="n2")


def test_nobody_is_dropped_on_a_guess() -> None:
    assert step(LEAVING, "c1", "c2", mute=("n1",)) is None  # whose is c1? it might be n0's
    assert step(LED, "c0", "c1", "c2", mute=("n1",)) is None
    assert step(GROWN, "c0", "c1", "c2", mute=("n2",)) is None


def test_a_leaving_copy_whose_node_is_dead_is_dropped_all_the_same() -> None:
    assert changed(step(LEAVING, "c1", "c2", dead=("n0",))).replicas == ("n2", "n1")


def test_when_a_wanted_copy_falls_out_of_sync_nobody_leaves() -> None:
    assert changed(step(LEAVING, "c0", "c2")).leaving == ()


def test_a_move_that_waits_for_a_node_that_is_away_says_so() -> None:
    assert step(GROWN, "c0", "c1", dead=("n2",)) == "NodeAway"


def test_a_move_that_has_not_begun_takes_another_node_when_its_own_dies() -> None:
    assert changed(step(AWAY, "c0", "c1", dead=("n2",))).target == ("n0", "n1")  # which has a copy already
    assert changed(step(AWAY, "c0", "c1", dead=("n2",), drained=("n0",))).target == ("n3", "n1")


def test_a_move_whose_aim_is_withdrawn_lets_everybody_stay() -> None:
    assert changed(step(replace(LEAVING, target=None), "c1", "c2", replicas=3)).leaving == ()
    more = replace(GROWN, target=None)
    assert set(changed(step(more, "c0", "c1", "c2")).target or ()) == {"n0", "n1"}  # three copies, two are wanted


def test_a_target_of_the_present_nodes_is_only_their_order() -> None:
    assert changed(step(replace(SPEC, target=("n1", "n0")), "c0", "c1")) == replace(SPEC, replicas=("n1", "n0"))


# Walks.


def test_a_move_ends_with_the_copies_where_they_were_wanted_and_nowhere_else() -> None:
    world = cluster(4, 1, 2)
    here = world.shards["t-0"].spec.replicas
    there = tuple(node for node in world.spec.node_ids if node not in here)
    fewest: list[int] = []

    def look() -> None:
        shard = world.shards["t-0"]
        assert shard.status is not None
        fewest.append(len(shard.status.in_sync))

    want(world, "t-0", target=there)
    settle(world, look)
    assert world.shards["t-0"].spec.replicas == there
    assert {node for _, node in world.copies} == set(there)
    assert min(fewest) == 2  # never fewer in sync than before
    assert world.moved == 2 + 1  # of these one when it was made


def test_a_shard_with_a_single_copy_moves_too() -> None:
    world = cluster(2, 1, 1)
    (here,) = world.shards["t-0"].spec.replicas
    there = "n1" if here == "n0" else "n0"
    want(world, "t-0", target=(there,))
    settle(world)
    assert [(name, node) for name, node in world.copies] == [("t-0", there)]
    assert world.faults() == []


def test_what_people_moved_is_not_moved_back() -> None:
    world = cluster(3, 6, 1)
    onto = {name for name, shard in world.shards.items() if shard.spec.replicas != ("n0",)}
    want(world, min(onto), target=("n0",))
    settle(world)
    assert sorted(copies(world).values()) == [1, 2, 3]
    assert copies(world)["n0"] == 3


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_drained_node_is_emptied_and_its_load_spread(replicas: int) -> None:
    world = cluster(4, 12, replicas)
    world.spec = replace(world.spec, drained=("n1",))
    settle(world)
    assert world.faults() == []
    assert not [key for key in world.copies if key[1] == "n1"]
    assert max(copies(world).values()) - min(copies(world).values()) <= 3  # who has one can't take the other
    assert max(masters(world).values()) - min(masters(world).values()) <= 2


def test_a_drain_without_room_keeps_the_copies_and_says_so() -> None:
    world = cluster(2, 2, 2)
    world.spec = replace(world.spec, drained=("n1",))
    settle(world)
    for shard in world.shards.values():
        assert set(shard.spec.replicas) == {"n0", "n1"}
        ((kind, reason),) = [(condition.type, condition.reason) for condition in shard.conditions]
        assert (kind, reason) == (ConditionType.HELD, "NoRoom")
        assert "n1 is to be emptied: no other node can take a copy" in shard.conditions[0].message
    world.spec = replace(world.spec, nodes=3)
    world.start("n2")
    settle(world)
    assert world.faults() == []
    assert set(copies(world)) == {"n0", "n2"}


def test_moves_in_flight_are_few() -> None:
    world = cluster(3, 60, 1)
    flight: list[int] = []

    def look() -> None:
        flight.append(sum(len(shard.spec.replicas) > 1 for shard in world.shards.values()))

    world.spec = replace(world.spec, drained=("n0",))
    settle(world, look)
    assert world.faults() == []
    assert max(flight) == MAX_MOVES


def test_a_new_node_gets_its_share_of_copies_and_masters_and_nothing_else_moves() -> None:
    world = cluster(3, 30, 2)
    before, made = {name: shard.spec for name, shard in world.shards.items()}, world.moved
    world.spec = replace(world.spec, nodes=4)
    world.start("n3")
    settle(world)
    assert world.faults() == []
    assert copies(world)["n3"] == 15
    assert world.moved - made == 15
    assert max(copies(world).values()) - min(copies(world).values()) <= 1
    assert 6 <= masters(world)["n3"] <= 8
    for name, shard in world.shards.items():
        assert set(shard.spec.replicas) - set(before[name].replicas) <= {"n3"}


def test_a_new_node_takes_the_first_place_of_a_shard_that_its_donor_leads() -> None:
    """Else another goes on leading it, as long as that one has hardly more than others, and the new node leads none."""
    led = {0: ("n0", "n1", "n1"), 1: ("n0", "n1", "n0"), 2: ("n1", "n0", "n0"), 3: ("n1", "n0", "n1")}
    shards = []
    for queue, (first, second, master) in led.items():
        spec = ShardSpec(queue, "t", queue, (first, second), master=master, epoch=1, incarnation="p")
        shards.append(ShardObject(spec.name, Version("1"), spec, ShardStatus(1, "p", ("a", "b"))))
    nodes = {node: ObservedNode(Liveness.ALIVE, "p") for node in ("n0", "n1", "n2")}
    request = ClusterSpec("local", 3, (TopicSpec("t", 4),), replicas=2)
    changes = [it for it in plan(request, Observed(tuple(shards), nodes)) if isinstance(it, ChangeSpec)]
    assert {it.shard.name for it in changes if it.spec.target and it.spec.target[0] == "n2"} == {"t-1"}


def test_a_node_that_leads_less_than_its_share_leads_where_it_is_first_whoever_led_there() -> None:
    """A start of all nodes ends so: the nodes that answered first lead, not the nodes in the first places."""
    led = {0: ("n3", "n0", "n0"), 1: ("n0", "n1", "n1"), 2: ("n1", "n2", "n2"), 3: ("n2", "n1", "n1")}
    shards = []
    for queue, (first, second, master) in led.items():
        spec = ShardSpec(queue, "t", queue, (first, second), master=master, epoch=1, incarnation="p")
        shards.append(ShardObject(spec.name, Version("1"), spec, ShardStatus(1, "p", ("a", "b"))))
    nodes = {f"n{number}": ObservedNode(Liveness.ALIVE, "p") for number in range(4)}
    copies = {
        (shard.name, node): CopyView("ab"[place], "p", 1, 1, 9)
        for shard in shards
        for place, node in enumerate(shard.spec.replicas)
    }
    answered = dict.fromkeys(nodes, "p")
    request = ClusterSpec("local", 4, (TopicSpec("t", 4),), replicas=2)
    found = plan(request, Observed(tuple(shards), nodes, copies, answered))
    leads = {it.shard.name: it.spec.switchover for it in found if isinstance(it, ChangeSpec)}
    assert leads["t-0"] == Switchover("n3")


def test_missing_copies_are_added_and_surplus_ones_dropped() -> None:
    world = cluster(3, 6, 1)
    held = {name: shard.spec.master for name, shard in world.shards.items()}
    world.spec = replace(world.spec, replicas=2)
    settle(world)
    assert world.faults() == []
    assert {name: shard.spec.master for name, shard in world.shards.items()} == held
    world.spec = replace(world.spec, replicas=1)
    settle(world)
    assert world.faults() == []
    assert len(world.copies) == 6
    assert {name: shard.spec.master for name, shard in world.shards.items()} == held


def test_a_node_that_is_away_is_waited_for_and_one_that_is_lost_is_replaced() -> None:
    world = cluster(4, 8, 2)
    made = world.moved
    world.kill("n0")
    settle(world)
    assert copies(world)["n0"] > 0
    assert world.moved == made
    world.nodes["n0"].gone = True
    settle(world)
    assert copies(world)["n0"] == 0
    assert {len(shard.status.in_sync) for shard in world.shards.values() if shard.status} == {2}
    world.start("n0")  # back after all: it has nothing, so that it gets its share, and its old copies are deleted
    settle(world)
    assert world.faults() == []
    assert copies(world)["n0"] == 4


def test_a_node_is_lost_and_nobody_can_take_its_place() -> None:
    world = cluster(2, 2, 2)
    world.kill("n0")
    world.nodes["n0"].gone = True
    settle(world)
    assert {shard.conditions[0].reason for shard in world.shards.values()} == {"NoRoom"}
    assert all(len(shard.spec.replicas) == 2 for shard in world.shards.values())


def test_the_masters_of_a_stopping_node_go_to_others_and_come_back_with_it() -> None:
    world = cluster(3, 9, 2)
    before = masters(world)
    world.nodes["n0"].stopping = True
    settle(world)
    assert masters(world)["n0"] == 0
    assert world.moved == 9  # when they were made: no copy has moved since
    epochs = {name: shard.spec.epoch for name, shard in world.shards.items()}
    world.kill("n0")
    settle(world)
    assert {name: shard.spec.epoch for name, shard in world.shards.items()} == epochs  # no failover was needed
    world.start("n0")
    settle(world)
    assert masters(world) == before
    assert world.faults() == []


def test_a_sole_copy_stays_on_a_stopping_node() -> None:
    world = cluster(2, 2, 1)
    world.nodes["n0"].stopping = True
    assert plan(world.spec, world.observed()) == []


def test_when_all_nodes_stop_nobody_hands_over() -> None:
    world = cluster(3, 9, 2)
    for node in world.nodes.values():
        node.stopping = True
    assert plan(world.spec, world.observed()) == []


def test_a_stopping_master_with_a_slave_out_of_sync_hands_over_to_the_other() -> None:
    nodes = {node: ObservedNode(Liveness.ALIVE, "p", stopping=node == "n0") for node in ("n0", "n1", "n2", "n3")}
    spec = replace(SPEC, replicas=("n0", "n1", "n2"))
    shard = ShardObject("t-0", Version("1"), spec, ShardStatus(3, "p", ("c0", "c2")))
    seen = {("t-0", node): CopyView(f"c{node[1:]}", "p", 3, 3, 100) for node in spec.replicas}
    three = replace(FOUR, replicas=3)
    (action,) = plan(three, Observed((shard,), nodes, seen, dict.fromkeys(nodes, "p")))
    assert isinstance(action, ChangeSpec)
    assert action.spec.switchover == Switchover("n2")
    assert action.reason == "n0 is stopping: n2 takes over"
    assert plan(three, Observed((shard,), nodes)) == []  # not known who is in sync: nobody is guessed


def test_one_master_more_is_no_reason_for_a_pause() -> None:
    world = cluster(2, 2, 2)
    moved = next(shard.spec.master for shard in world.shards.values())
    assert moved is not None
    world.kill(moved)
    settle(world)
    assert len(masters(world)) == 1
    world.start(moved)
    settle(world)
    assert sorted(masters(world).values()) == [1, 1]  # two more: one goes back
    one = cluster(2, 1, 2)
    (first,) = masters(one)
    one.kill(first)
    settle(one)
    one.start(first)
    settle(one)
    assert first not in masters(one)


def test_nothing_is_moved_for_balance_while_somebody_is_away() -> None:
    world = cluster(3, 9, 2)
    world.kill("n0")
    world.kill("n1")
    settle(world)
    world.start("n0")
    settle(world)
    assert masters(world)["n2"] > masters(world)["n0"]
    world.start("n1")
    settle(world)
    assert max(masters(world).values()) - min(masters(world).values()) <= 1
