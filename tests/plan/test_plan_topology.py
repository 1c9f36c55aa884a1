"""Copies of a shard are in different zones where they can be, else on different machines, and no plan brings them
together."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from delayoperator.plan import ChangeSpec, CreateShard, Liveness, Observed, ObservedNode, plan
from delayoperator.plan.planner import MAX_MOVES
from delayoperator.plan.topology import NodeLocation
from delayregistry.model import BootstrapVolumes, ClusterSpec, ShardObject, ShardSpec, ShardStatus, TopicSpec, Version
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plan.cluster import Cluster

THREE = ("a", "b", "c")


def located(at: str) -> NodeLocation:
    """`a/m1`: zone a, machine m1. Either may be empty, and the machine left out."""
    zone, _, machine = at.partition("/")
    return NodeLocation(machine, zone)


def views(*at: str) -> dict[str, ObservedNode]:
    """n0, n1, ... there, alive."""
    places = [located(it) for it in at]
    return {
        f"n{number}": ObservedNode(Liveness.ALIVE, "p", zone=it.zone, machine=it.machine)
        for number, it in enumerate(places)
    }


def placed(nodes: dict[str, ObservedNode], replicas: int, queues: int = 6) -> list[tuple[str, ...]]:
    topics = (TopicSpec("t", queues),)
    spec = ClusterSpec("local", len(nodes), topics, replicas=replicas, bootstrap_volumes=BootstrapVolumes.IGNORE)
    return [action.replicas for action in plan(spec, Observed(nodes=nodes)) if isinstance(action, CreateShard)]


def aim(nodes: dict[str, ObservedNode], *replicas: str, master: str = "", **overrides: object) -> ChangeSpec | None:
    """The plan for a served shard with its copies on these nodes."""
    spec = ShardSpec(1, "t", 0, replicas, master=master or replicas[0], epoch=1, incarnation="p")
    shard = ShardObject(spec.name, Version("1"), spec, ShardStatus(1, "p", tuple(f"c-{node}" for node in replicas)))
    cluster = ClusterSpec("local", len(nodes), (TopicSpec("t", 1),), replicas=len(replicas))
    found = plan(replace(cluster, **overrides), Observed((shard,), nodes))  # type: ignore[arg-type]
    changes = [action for action in found if isinstance(action, ChangeSpec)]
    return changes[0] if changes else None


def target(action: ChangeSpec | None) -> tuple[str, ...] | None:
    return None if action is None else action.spec.target


def cluster(*at: str, queues: int = 6, replicas: int = 2) -> Cluster:
    """Settled, with n0, n1, ... there."""
    world = Cluster(ClusterSpec("local", len(at), (TopicSpec("t", queues),), replicas=replicas))
    put(world, *at)
    settle(world)
    return world


def put(world: Cluster, *at: str) -> None:
    """All nodes start (again), there."""
    for node, place in zip(world.spec.node_ids, at, strict=True):
        world.locations[node] = located(place)
        world.start(node)


def settle(world: Cluster) -> list[str]:
    """Until nobody does anything any more; what changed the wished nodes, in words."""
    said = []
    for _ in range(2_000):
        actions = plan(world.spec, world.observed())
        for action in actions:
            begins = isinstance(action, ChangeSpec) and action.spec.target is not None
            said += [action.reason] if begins and action.shard.spec.target is None else []  # type: ignore[union-attr]
            world.apply(action)
        if not world.nodes_act() and not actions:
            return said
    raise AssertionError("it does not come to rest")


def together(world: Cluster) -> list[str]:
    """The shards with copies in one zone."""
    zones = {name: [world.nodes[node].zone for node in it.spec.replicas] for name, it in world.shards.items()}
    return [name for name, its in zones.items() if len(set(its)) < len(its)]


# New shards.


def test_copies_of_new_shards_are_in_different_zones() -> None:
    nodes = views("a", "a", "a", "b", "b", "c")
    for replicas in (2, 3):
        for found in placed(nodes, replicas):
            assert len({nodes[node].zone for node in found}) == replicas


def test_with_more_copies_than_zones_each_zone_has_one_before_any_has_two() -> None:
    nodes = views("a", "a", "b", "b")
    assert all({nodes[node].zone for node in found} == {"a", "b"} for found in placed(nodes, 3))


def test_within_zones_new_copies_go_where_few_are() -> None:
    counts = Counter(node for found in placed(views("a", "a", "b", "b"), 2, queues=8) for node in found)
    assert counts == {"n0": 4, "n1": 4, "n2": 4, "n3": 4}


def test_a_dead_node_in_a_free_zone_comes_after_a_living_one_in_a_taken_zone() -> None:
    nodes = views("a", "a", "b") | {"n2": ObservedNode(Liveness.DEAD, "p", zone="b")}
    assert set(placed(nodes, 2, queues=1)[0]) == {"n0", "n1"}


def test_a_node_whose_zone_is_not_known_is_as_good_as_any() -> None:
    assert set(placed(views("a", "a", ""), 2, queues=1)[0]) == {"n0", "n2"}
    assert placed(views("", "", ""), 2, queues=2) == [("n0", "n1"), ("n2", "n0")]


# Copies that need another node.


def test_a_copy_that_is_lost_is_made_again_in_a_zone_without_one() -> None:
    nodes = views("a", "b", "b", "c") | {"n0": ObservedNode(Liveness.DEAD, "p", zone="a", replaceable=True)}
    assert target(aim(nodes, "n1", "n0")) == ("n1", "n3")  # not n2, which is in n1's


def test_a_zone_that_is_lost_costs_no_copies_and_gets_its_share_when_it_is_back() -> None:
    world = cluster("a", "a", "b", "b")
    for node in ("n2", "n3"):
        world.kill(node)
        world.nodes[node].gone = True
    settle(world)
    assert all(set(it.spec.replicas) == {"n0", "n1"} for it in world.shards.values())
    for node in ("n2", "n3"):
        world.start(node)
    assert {why.partition(":")[0] for why in settle(world)} == {"2 copies are in zone a"}
    assert together(world) == []
    assert world.faults() == []


def test_fewer_copies_give_up_the_one_that_shares_a_zone() -> None:
    assert target(aim(views("a", "b", "a"), "n0", "n1", "n2", replicas=2)) == ("n0", "n1")
    assert target(aim(views("a", "a", "b"), "n0", "n1", "n2", master="n1", replicas=2)) == ("n1", "n2")
    drained = aim(views("a", "a", "b"), "n0", "n1", "n2", replicas=2, drained=("n2",))
    assert target(drained) == ("n0", "n1"), "a node that is to be emptied is given up first"


# Copies that share a zone.


def test_copies_in_one_zone_are_brought_apart_and_the_reason_says_so() -> None:
    action = aim(views("a", "a", "b"), "n0", "n1")
    assert target(action) == ("n0", "n2")
    assert action is not None
    assert action.reason == "2 copies are in zone a: copies are to be on n0, n2"


def test_the_first_of_the_wished_nodes_stays_then_the_master() -> None:
    assert target(aim(views("a", "a", "b", "a"), "n0", "n1", "n3", replicas=3, master="n1")) == ("n0", "n1", "n2")
    assert target(aim(views("b", "a", "a", "c"), "n0", "n1", "n2", master="n2")) == ("n0", "n3", "n2")


def test_all_that_can_go_apart_goes_at_once() -> None:
    action = aim(views("a", "a", "a", "b", "c"), "n0", "n1", "n2")
    assert action is not None
    assert (set(action.spec.target or ()), action.reason[:26]) == ({"n0", "n3", "n4"}, "3 copies are in zone a: co")


@pytest.mark.parametrize(
    ("nodes", "overrides"),
    [
        (views("a", "a", "a"), {}),  # there is no other zone
        (views("a", "a", ""), {}),  # nobody knows whether there is
        (views("", "", "b"), {}),
        (views("a", "b", "c"), {}),
        (views("a", "a", "b"), {"drained": ("n2",)}),
        (views("a", "a", "b") | {"n2": ObservedNode(Liveness.DEAD, "p", zone="b")}, {}),
        (views("a", "a", "b") | {"n2": ObservedNode(Liveness.DEAD, "p", zone="b", replaceable=True)}, {}),
        (views("a", "a", "b") | {"n2": ObservedNode(Liveness.ALIVE, "p", zone="b", stable=False)}, {}),
        (views("a", "a", "b", "c") | {"n3": ObservedNode(Liveness.ALIVE, "p", zone="c", stopping=True)}, {}),
    ],
)
def test_copies_stay_where_no_other_zone_can_take_one_or_all_is_not_calm(
    nodes: dict[str, ObservedNode], overrides: dict[str, object]
) -> None:
    assert target(aim(nodes, "n0", "n1", **overrides)) is None


def test_three_copies_in_two_zones_stay() -> None:
    assert aim(views("a", "a", "b", "b"), "n0", "n1", "n2") is None


def test_zones_that_become_known_bring_copies_apart_a_few_at_a_time_and_never_with_fewer_copies() -> None:
    world = cluster("", "", "", "", queues=60)
    before = world.moved
    put(world, "a", "a", "b", "b")
    assert len(together(world)) > MAX_MOVES
    for _ in range(2_000):
        actions = plan(world.spec, world.observed())
        for action in actions:
            world.apply(action)
        fetching = sum(len(it.spec.replicas) > 2 for it in world.shards.values())
        assert fetching <= MAX_MOVES
        assert all(it.status is None or len(it.status.in_sync) >= 2 for it in world.shards.values())
        if not world.nodes_act() and not actions:
            break
    assert together(world) == []
    assert world.faults() == []
    assert world.moved - before <= 60, "a copy a shard at most"
    assert plan(world.spec, world.observed()) == []


def test_copies_stay_where_they_are_while_a_node_has_not_said_its_zone() -> None:
    """In the middle of a restart of all nodes, those that have said their zone would get a copy of everything."""
    world = cluster("", "", "", queues=6)
    put(world, "a", "a", "")
    assert settle(world) == []
    put(world, "a", "a", "b")
    settle(world)
    assert together(world) == []


def test_a_few_shards_are_parted_at_a_time_and_none_while_anything_else_moves() -> None:
    world = cluster("", "", "", "", queues=40)
    put(world, "a", "a", "b", "b")
    parted: list[int] = []
    for _ in range(2_000):
        moving = any(it.spec.target is not None for it in world.shards.values())
        actions = plan(world.spec, world.observed())
        zonal = [action for action in actions if "in zone" in action.reason]
        assert not (zonal and moving), zonal
        parted += [len(zonal)] if zonal else []
        for action in actions:
            world.apply(action)
        if not world.nodes_act() and not actions:
            break
    assert max(parted) == 8
    assert together(world) == []


# A node that is short of copies.


def test_a_new_node_takes_no_copy_that_others_of_its_zone_have() -> None:
    world = cluster("a", "b", queues=40)
    world.spec = replace(world.spec, nodes=3)
    world.locations["n2"] = located("b")
    world.start("n2")
    assert not any("zone" in why for why in settle(world)), "nothing had to be brought apart again"
    assert together(world) == []
    # All the copies in zone a are n0's; those in zone b are n1's and n2's, half each or nearly so.
    held = Counter(node for it in world.shards.values() for node in it.spec.replicas)
    assert held["n0"] == 40
    assert held["n2"] >= 40 // 2


def test_a_new_node_still_gets_its_share_where_copies_share_zones_anyway() -> None:
    world = cluster("a", "a", queues=30)
    world.spec = replace(world.spec, nodes=3)
    world.locations["n2"] = located("a")
    world.start("n2")
    settle(world)
    assert Counter(node for it in world.shards.values() for node in it.spec.replicas) == {"n0": 20, "n1": 20, "n2": 20}


# Machines.


@pytest.mark.parametrize(
    ("at", "replicas", "machines", "zones"),
    [
        (("/m1", "/m1", "/m1", "/m2"), 2, 2, 0),  # the one node of the other machine has a copy of everything
        (("/m1", "/m1", "/m2", "/m2", "/m3", "/m3"), 3, 3, 0),
        (("/m1", "/m1", "/m2"), 3, 2, 0),  # two have to share
        (("a/m1", "a/m1", "a/m2", "b/m3", "b/m3"), 2, 2, 2),  # zones first
        (("a/m1", "a/m1", "a/m2", "b/m3", "b/m3"), 3, 3, 2),  # then machines
        (("a/m1", "a/m1", "a/m1", "b/m2", "c/m3"), 3, 3, 3),
    ],
)
def test_new_copies_are_spread_over_zones_and_then_over_machines(
    at: tuple[str, ...], replicas: int, machines: int, zones: int
) -> None:
    nodes = views(*at)
    for found in placed(nodes, replicas):
        assert len({nodes[node].machine for node in found}) == machines
        assert len({nodes[node].zone for node in found} - {""}) == zones


def test_two_copies_share_a_machine_only_while_no_other_has_room() -> None:
    nodes = views("/m1", "/m1", "/m2")
    assert "n2" in placed(nodes, 2, queues=1)[0]
    dead = nodes | {"n2": ObservedNode(Liveness.DEAD, "p", machine="m2")}
    assert set(placed(dead, 2, queues=1)[0]) == {"n0", "n1"}


def test_a_machine_that_is_not_known_is_as_good_as_another() -> None:
    assert set(placed(views("/m1", "/m1", ""), 2, queues=1)[0]) == {"n0", "n2"}


def test_a_copy_that_is_lost_is_made_again_on_another_machine() -> None:
    lost = ObservedNode(Liveness.DEAD, "p", machine="m1", replaceable=True)
    assert target(aim(views("/m1", "/m2", "/m2", "/m3") | {"n0": lost}, "n1", "n0")) == ("n1", "n3")


@pytest.mark.parametrize(
    ("at", "goes_to", "why"),
    [
        (("/m1", "/m1", "/m2"), "n2", "2 copies are on machine m1"),
        (("a/m1", "a/m1", "a/m2"), "n2", "2 copies are on machine m1"),
        (("a/m1", "a/m1", "a/m2", "b/m3"), "n3", "2 copies are on machine m1"),
        (("a/m1", "a/m2", "a/m3", "b/m4"), "n3", "2 copies are in zone a"),
        (("a/m1", "a/m1", "/m2"), "n2", "2 copies are on machine m1"),  # zones are not known of all: they do not count
    ],
)
def test_copies_on_one_machine_are_brought_apart(at: tuple[str, ...], goes_to: str, why: str) -> None:
    action = aim(views(*at), "n0", "n1")
    assert action is not None
    assert action.spec.target == ("n0", goes_to)
    assert action.reason == f"{why}: copies are to be on n0, {goes_to}"


@pytest.mark.parametrize(
    ("nodes", "overrides"),
    [
        (views("/m1", "/m1", "/m1"), {}),  # there is no other machine
        (views("/m1", "/m1", ""), {}),  # nobody knows whether there is
        (views("/m1", "/m1", "/m2"), {"drained": ("n2",)}),
        (views("/m1", "/m1", "/m2") | {"n2": ObservedNode(Liveness.DEAD, "p", machine="m2")}, {}),
        (views("a/m1", "a/m2", "a/m3"), {}),  # another machine of the same zone is no gain
    ],
)
def test_copies_stay_where_no_other_machine_can_take_one(
    nodes: dict[str, ObservedNode], overrides: dict[str, object]
) -> None:
    assert target(aim(nodes, "n0", "n1", **overrides)) is None


def test_fewer_copies_give_up_the_one_that_shares_a_machine() -> None:
    assert target(aim(views("a/m1", "a/m2", "a/m1"), "n0", "n1", "n2", replicas=2)) == ("n0", "n1")
    assert target(aim(views("a/m1", "b/m2", "a/m3"), "n0", "n1", "n2", replicas=2)) == ("n0", "n1")


def test_a_new_node_takes_no_copy_that_its_machine_has() -> None:
    world = cluster("/m1", "/m2", queues=40)
    world.spec = replace(world.spec, nodes=3)
    world.locations["n2"] = located("/m2")
    world.start("n2")
    assert not any("machine" in why for why in settle(world)), "nothing had to be brought apart again"
    assert all("n0" in it.spec.replicas for it in world.shards.values())
    held = Counter(node for it in world.shards.values() for node in it.spec.replicas)
    assert held["n2"] >= 40 // 2
    assert world.faults() == []


def test_a_pod_that_comes_back_on_anothers_machine_gives_its_copies_to_a_third() -> None:
    world = cluster("/m1", "/m2", "/m3", queues=12)
    world.locations["n1"] = located("/m1")
    world.kill("n1")
    world.start("n1")
    assert {why.partition(":")[0] for why in settle(world)} == {"2 copies are on machine m1"}
    assert world.faults() == []
    assert all("n2" in it.spec.replicas for it in world.shards.values())


# From anywhere.

MACHINES = {"m1": "a", "m2": "a", "m3": "b", "m4": "b", "m5": "c"}


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(sorted(MACHINES)), min_size=1, max_size=9), st.integers(1, 4), st.integers(1, 6))
def test_new_copies_are_on_as_many_zones_and_machines_as_there_are(on: list[str], replicas: int, queues: int) -> None:
    nodes = views(*(f"{MACHINES[machine]}/{machine}" for machine in on))
    for found in placed(nodes, min(replicas, len(on)), queues):
        for place in ("machine", "zone"):
            there = {getattr(it, place) for it in nodes.values()}
            assert len({getattr(nodes[node], place) for node in found}) == min(len(there), len(found))


places = st.sampled_from(["", "/m1", "/m2", "b", *(f"{zone}/{machine}" for machine, zone in MACHINES.items())])
odd_places = places | st.sampled_from(["c/m1", "a/m3"])  # a person may have named another zone than the machine's


@settings(max_examples=200, deadline=None)
@given(
    before=st.lists(places, min_size=2, max_size=6),
    replicas=st.integers(1, 4),
    queues=st.integers(1, 10),
    data=st.data(),
)
def test_however_pods_move_it_comes_to_rest_with_copies_apart(
    before: list[str], replicas: int, queues: int, data: st.DataObject
) -> None:
    world = cluster(*before, queues=queues, replicas=min(replicas, len(before)))
    assert world.faults() == []
    after = data.draw(st.lists(places, min_size=len(before), max_size=len(before)))
    more = data.draw(st.lists(places, max_size=3))
    world.spec = replace(world.spec, nodes=len(before) + len(more))
    put(world, *after, *more)
    settle(world)
    assert world.faults() == []  # among them: copies that could be apart, and are not


@settings(max_examples=100, deadline=None)
@given(st.lists(odd_places, min_size=2, max_size=6), st.lists(odd_places, min_size=2, max_size=6), st.integers(1, 4))
def test_even_zones_that_contradict_machines_come_to_rest(before: list[str], after: list[str], replicas: int) -> None:
    world = cluster(*before, queues=8, replicas=min(replicas, len(before)))
    nodes = min(len(before), len(after))
    put(world, *after[:nodes], *before[nodes:])
    settle(world)
    assert plan(world.spec, world.observed()) == []


zones = st.sampled_from(["", *THREE])


@settings(max_examples=150, deadline=None)
@given(
    before=st.lists(zones, min_size=2, max_size=7),
    replicas=st.integers(1, 4),
    queues=st.integers(1, 12),
    data=st.data(),
)
def test_however_nodes_change_zones_it_comes_to_rest_with_copies_apart(
    before: list[str], replicas: int, queues: int, data: st.DataObject
) -> None:
    world = cluster(*before, queues=queues, replicas=min(replicas, len(before)))
    assert world.faults() == []
    after = data.draw(st.lists(zones, min_size=len(before), max_size=len(before)))
    more = data.draw(st.lists(zones, max_size=3))
    world.spec = replace(world.spec, nodes=len(before) + len(more))
    put(world, *after, *more)
    settle(world)
    assert world.faults() == []  # among them: copies that could be apart, and are not
