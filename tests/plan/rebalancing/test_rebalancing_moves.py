"""A plan that was approved: each move against the live map, so many at a time, each when its time has come."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from delayapi.units import MINUTE_MS
from delayoperator.crds.rebalance import MoveState, RebalanceState
from delayoperator.plan import Liveness
from delayoperator.plan.topology import NodeLocation
from delayoperator.rebalance_plan import World, text_of
from delayoperator.rebalance_plan.plans import impossible
from delayregistry.model import Switchover

from tests.plan.cluster import Cluster
from tests.plan.rebalancing.driver import START_MS, Driver, a_move, a_plan, cluster, nodes_of, settle


def approved(world: Cluster, *moves: object, **spec: object) -> Driver:
    driver = Driver(world, **spec)
    driver.ready(a_plan(moves))  # type: ignore[arg-type]
    driver.approve()
    return driver


def test_every_move_of_an_approved_plan_is_made_and_nothing_brings_it_back() -> None:
    world = cluster(3, 6)
    shards = sorted(name for name, nodes in nodes_of(world).items() if nodes != ("n0",))
    driver = approved(world, *(a_move(world, name, "n0") for name in shards))
    driver.until(driver.is_over)
    assert (driver.state, driver.reason) == (RebalanceState.READY, "MovesDone")
    settle(world)
    assert set(nodes_of(world).values()) == {("n0",)}, "a node that a rebalance emptied is not filled up by counts"
    assert all(shard.spec.master == "n0" for shard in world.shards.values())


def test_a_switchover_copies_nothing_and_sticks() -> None:
    world = cluster(3, 3, replicas=2)
    name = "t-0"
    master, slave = nodes_of(world)[name]
    moved = world.moved
    driver = approved(world, a_move(world, name, slave, bytes=0))
    driver.until(driver.is_over)
    settle(world)
    assert world.shards[name].spec.master == slave
    assert nodes_of(world)[name] == (slave, master)
    assert world.moved == moved, "no copy was fetched"


def test_masters_come_back_to_where_the_load_put_them_after_a_restart() -> None:
    """By counts they would stay: the other node has fewer."""
    world = cluster(3, 3, replicas=2)
    slave = nodes_of(world)["t-0"][1]
    driver = approved(world, a_move(world, "t-0", slave, bytes=0))
    driver.until(driver.is_over)
    settle(world)
    world.nodes[slave] = replace(world.nodes[slave], stopping=True)
    settle(world)
    assert world.shards["t-0"].spec.master != slave
    world.nodes[slave] = replace(world.nodes[slave], stopping=False)
    settle(world)
    assert world.shards["t-0"].spec.master == slave


def test_a_move_whose_shard_was_moved_meanwhile_is_refused_and_the_others_go_on() -> None:
    world = cluster(3, 4)
    moves = [a_move(world, name, "n0" if nodes != ("n0",) else "n1") for name, nodes in sorted(nodes_of(world).items())]
    superseded = moves[1]
    other = next(node for node in world.spec.node_ids if node not in (superseded.from_, superseded.to))
    shard = world.shards[superseded.shard]
    world._put(replace(shard, spec=replace(shard.spec, target=(other,))))
    driver = approved(world, *moves)
    driver.until(driver.is_over)
    assert (driver.state, driver.reason) == (RebalanceState.READY, "MovesDoneInPart")
    assert [it.state for it in driver.moves] == [
        MoveState.DONE, MoveState.REFUSED, MoveState.DONE, MoveState.DONE,
    ]  # fmt: skip
    assert driver.moves[1].reason == f"its copies are on {other} now, and the plan found them on {superseded.from_}"
    assert nodes_of(world)[superseded.shard] == (other,)


def test_a_move_that_somebody_redirects_while_it_is_under_way_is_refused() -> None:
    world = cluster(4, 4)
    driver = approved(world, a_move(world, "t-0", "n3"), a_move(world, "t-1", "n3"))
    shard = world.shards["t-0"]
    assert shard.spec.target == ("n3",)
    elsewhere = next(node for node in ("n1", "n2") if (node,) != shard.spec.replicas)
    world._put(replace(shard, spec=replace(shard.spec, target=(elsewhere,))))
    driver.until(driver.is_over)
    assert [it.state for it in driver.moves] == [MoveState.REFUSED, MoveState.DONE]
    assert driver.moves[0].reason == f"while it was under way: its copies are to be on {elsewhere} now"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"drained": ("n2",)}, "n2 is to be emptied"),
        ({"nodes": 2}, "there is no node n2"),
    ],
)
def test_a_node_that_is_to_go_gets_nothing(change: dict[str, object], says: str) -> None:
    world = cluster(3, 3)
    name = next(name for name, nodes in sorted(nodes_of(world).items()) if nodes == ("n0",))
    driver = Driver(world)
    driver.ready(a_plan([a_move(world, name, "n2")]))
    world.spec = replace(world.spec, **change)  # type: ignore[arg-type]
    driver.approve()
    assert (driver.state, driver.reason) == (RebalanceState.NOT_READY, "MovesRefused")
    assert driver.moves[0].reason == says


@pytest.mark.parametrize("place", ["zone", "machine"])
def test_a_move_that_the_planner_would_undo_for_its_place_is_refused(place: str) -> None:
    world = cluster(4, 4, replicas=2)
    at = dict(zip(world.spec.node_ids, ("east", "east", "west", "west"), strict=True))
    for node, there in at.items():
        world.locations[node] = replace(NodeLocation(), **{place: there})
        world.start(node)
    settle(world)
    name, (one, two) = min(nodes_of(world).items())
    beside = next(node for node in world.spec.node_ids if node != one and at[node] == at[one])
    driver = approved(world, a_move(world, name, beside, origin=two))
    assert (driver.state, driver.reason) == (RebalanceState.NOT_READY, "MovesRefused")
    assert (driver.moves[0].reason or "").startswith(
        f"{beside} is {'on' if place == 'machine' else 'in'} {place} {at[one]}, as {one} with another copy: the "
        "operator would part them again"
    )
    elsewhere = tuple(node for node in world.spec.node_ids if at[node] != at[one])
    alone = World(replace(world.spec, drained=elsewhere), nodes=world.observed().nodes)
    assert impossible(a_move(world, name, beside, origin=two), (one, two), alone) is None, "nobody else can take it"
    driver = approved(world, a_move(world, name, beside, origin=one))
    driver.until(driver.is_over)
    assert driver.state is RebalanceState.READY, "within its place a copy may go anywhere"


def test_a_move_whose_beginning_was_lost_is_refused_once_it_would_bring_copies_together() -> None:
    world = cluster(4, 4, replicas=2)
    name, (one, two) = min(nodes_of(world).items())
    to, other = (node for node in world.spec.node_ids if node not in (one, two))
    driver = Driver(world)
    driver.ready(a_plan([a_move(world, name, to, origin=two)]))
    assert driver.status is not None
    assert driver.status.plan is not None
    driver.look(approve=driver.status.plan.hash, crash=True)
    assert driver.moves[0].state is MoveState.MOVING
    for node, machine in {one: "m1", to: "m1", two: "m2", other: "m3"}.items():
        world.locations[node] = NodeLocation(machine)
        world.start(node)
    settle(world)
    driver.until(driver.is_over)
    assert (driver.state, driver.reason) == (RebalanceState.NOT_READY, "MovesRefused")
    why = f"while it was under way: {to} is on machine m1, as {one} with another copy"
    assert (driver.moves[0].reason or "").startswith(why)
    assert nodes_of(world)[name] == (one, two)


def test_all_moves_refused_is_no_success() -> None:
    world = cluster(3, 3)
    driver = Driver(world)
    driver.ready(a_plan([a_move(world, "t-0", "n1", origin="n2", replicas=["n2"])]))
    driver.approve()
    assert (driver.state, driver.reason) == (RebalanceState.NOT_READY, "MovesRefused")


def test_no_more_moves_are_in_flight_than_allowed_and_no_fewer() -> None:
    world = cluster(3, 9)
    moves = [a_move(world, name, "n2") for name, nodes in sorted(nodes_of(world).items()) if nodes != ("n2",)]
    driver = approved(world, *moves, maxInFlight=3)
    assert driver.in_flight() == 3
    driver.until(driver.is_over)  # which looks at each round
    assert {it.state for it in driver.moves} == {MoveState.DONE}


def test_a_shard_whose_hot_slot_is_near_waits_until_the_slot_is_over_and_others_go() -> None:
    world = cluster(3, 3)
    hot_ms = START_MS + 30_000
    names = sorted(name for name, nodes in nodes_of(world).items() if nodes != ("n0",))
    hot = a_move(world, names[0], "n0", hot_slots=[text_of(hot_ms)])
    driver = Driver(world)
    driver.ready(a_plan([hot, a_move(world, names[1], "n0")], slot_seconds=300))
    driver.approve()
    assert [it.state for it in driver.moves] == [None, MoveState.MOVING]
    driver.until(lambda: driver.now_ms >= hot_ms + 299_000)
    assert driver.moves[0].state is None
    assert "is hot from" in driver.status.conditions[0].message  # type: ignore[union-attr,index]
    assert driver.last is not None
    assert driver.last.recheck_at_ms == hot_ms + 300_000
    driver.until(driver.is_over)
    assert driver.moves[0].state is MoveState.DONE


@pytest.mark.parametrize(
    ("size_bytes", "lead", "begins"),
    [(1_000, "1m", True), (1_000, "10m", False), (20 << 30, "1m", False)],
)
def test_how_near_is_near_depends_on_the_bytes_and_the_lead_time(size_bytes: int, lead: str, begins: bool) -> None:
    world = cluster(3, 3)
    name = next(name for name, nodes in sorted(nodes_of(world).items()) if nodes == ("n1",))
    hot = a_move(world, name, "n0", hot_slots=[text_of(START_MS + 5 * MINUTE_MS)], bytes=size_bytes)
    driver = approved(world, hot, leadTime=lead)
    assert (driver.in_flight() == 1) is begins


def hot_from(world: Cluster, *minutes: int, slot: int, **spec: object) -> Driver:
    """A small move whose shard is hot in the slots, of so many minutes, that begin then."""
    name = next(name for name, nodes in sorted(nodes_of(world).items()) if nodes == ("n1",))
    hot = a_move(world, name, "n0", hot_slots=[text_of(START_MS + it * MINUTE_MS) for it in minutes])
    driver = Driver(world, **spec)
    driver.ready(a_plan([hot], slot_seconds=slot * 60))
    driver.approve()
    return driver


@pytest.mark.parametrize(
    ("minutes", "slot"), [(range(-30, 23 * 60, 60), 60), (range(0, 180, 5), 5), (range(0, 6 * 60, 6), 5)]
)
def test_a_shard_that_is_hot_for_hours_does_not_wait_for_them_to_end(minutes: range, slot: int) -> None:
    assert hot_from(cluster(3, 3), *minutes, slot=slot).in_flight() == 1


def test_slots_without_room_for_the_move_between_them_are_waited_for_together() -> None:
    """Hot for 5 min from 0, 6 and 40 on: with a minute's lead there is no room between the first two."""
    driver = hot_from(cluster(3, 3), 0, 6, 40, slot=5)
    assert driver.in_flight() == 0
    assert driver.last is not None
    assert driver.last.recheck_at_ms == START_MS + 11 * MINUTE_MS


def test_a_single_slot_is_waited_for_however_long_it_is() -> None:
    assert hot_from(cluster(3, 3), 1, slot=12 * 60).in_flight() == 0


@pytest.mark.parametrize("copies", [True, False])
def test_a_move_whose_beginning_was_lost_waits_again_when_its_hot_slot_has_come_near(copies: bool) -> None:
    world = cluster(3, 3, replicas=2)
    has = nodes_of(world)["t-0"]
    to = next(it for it in world.spec.node_ids if it not in has) if copies else has[1]
    driver = Driver(world)
    driver.ready(a_plan([a_move(world, "t-0", to, hot_slots=[text_of(START_MS + 10 * MINUTE_MS)])]))
    assert driver.status is not None
    assert driver.status.plan is not None
    driver.look(approve=driver.status.plan.hash, crash=True)
    assert driver.in_flight() == 1, "the status was written, and nothing else"
    driver.now_ms += 9 * MINUTE_MS + 30_000
    assert driver.look().edits == ()
    assert (driver.in_flight(), driver.moves[0].started_at) == (0, None)
    driver.now_ms += 6 * MINUTE_MS
    assert len(driver.look().edits) == 1


def test_a_hot_slot_that_is_over_holds_up_nothing() -> None:
    world = cluster(3, 3)
    name = next(name for name, nodes in sorted(nodes_of(world).items()) if nodes == ("n1",))
    driver = approved(world, a_move(world, name, "n0", hot_slots=[text_of(START_MS - 300_000)]))
    assert driver.in_flight() == 1


def test_nothing_begins_before_the_window_and_the_rest_is_kept_after_it() -> None:
    world = cluster(3, 6)
    moves = [a_move(world, name, "n2") for name, nodes in sorted(nodes_of(world).items()) if nodes != ("n2",)]
    begin_ms, end_ms = START_MS + 10_000, START_MS + 13_000
    driver = approved(world, *moves, notBefore=text_of(begin_ms), notAfter=text_of(end_ms), maxInFlight=1)
    assert driver.in_flight() == 0
    driver.until(driver.is_over)
    assert (driver.state, driver.reason) == (RebalanceState.STOPPED, "WindowClosed")
    assert driver.begun
    assert all(begin_ms <= at_ms < end_ms for at_ms, _ in driver.begun)
    done = [it for it in driver.moves if it.state is MoveState.DONE]
    assert 0 < len(done) < len(moves)


def test_throttled_moves_keep_to_the_rate_on_average() -> None:
    world = cluster(3, 6)
    moves = [a_move(world, n, "n2", bytes=10 << 20) for n, nodes in sorted(nodes_of(world).items()) if nodes != ("n2",)]
    driver = approved(world, *moves, throttleBytesPerSecond=1 << 20, maxInFlight=8)
    driver.until(driver.is_over)
    begun = [at_ms for at_ms, _ in driver.begun]
    assert len(begun) == len(moves) == 4
    assert all(later - earlier >= 10_000 for earlier, later in itertools.pairwise(begun))


@pytest.mark.parametrize("trouble", ["dead", "stopping"])
def test_nothing_begins_while_a_node_is_away_or_about_to_be(trouble: str) -> None:
    world = cluster(3, 3)
    driver = Driver(world)
    name = next(name for name, nodes in sorted(nodes_of(world).items()) if nodes == ("n1",))
    driver.ready(a_plan([a_move(world, name, "n0")]))
    away = {"seen": Liveness.DEAD} if trouble == "dead" else {"stopping": True}
    well = world.nodes["n2"]
    world.nodes["n2"] = replace(well, **away)  # type: ignore[arg-type]
    driver.approve()
    assert driver.in_flight() == 0
    world.nodes["n2"] = well
    driver.until(driver.is_over)
    assert driver.reason == "MovesDone"


def test_a_switchover_that_somebody_else_asked_for_is_waited_for() -> None:
    world = cluster(3, 3, replicas=2)
    master, slave = nodes_of(world)["t-0"]
    other = next(node for node in world.spec.node_ids if node not in (master, slave))
    shard = world.shards["t-0"]
    world._put(replace(shard, spec=replace(shard.spec, switchover=Switchover(slave))))
    driver = approved(world, a_move(world, "t-0", other))
    assert driver.in_flight() == 0
    assert "for another reason" in driver.status.conditions[0].message  # type: ignore[union-attr,index]


def test_two_moves_of_one_shard_go_in_their_order() -> None:
    world = cluster(4, 1, replicas=2)
    first, second = nodes_of(world)["t-0"]
    free = [node for node in world.spec.node_ids if node not in (first, second)]
    one = a_move(world, "t-0", free[0])
    two = a_move(world, "t-0", free[1], origin=second, replicas=[free[0], second])
    driver = approved(world, one, two, maxInFlight=8)
    assert driver.in_flight() == 1
    driver.until(driver.is_over)
    assert nodes_of(world)["t-0"] == (free[0], free[1])


def test_progress_tells_how_far_it_is() -> None:
    world = cluster(3, 3)
    names = sorted(name for name, nodes in nodes_of(world).items() if nodes != ("n0",))
    moves = [a_move(world, names[0], "n0", bytes=3 << 20), a_move(world, names[1], "n0", bytes=1 << 20)]
    driver = approved(world, *moves, maxInFlight=1)
    seen = []
    driver.until(driver.is_over, each=lambda: seen.append(driver.status.progress))  # type: ignore[union-attr]
    said = [(it.moves_done, it.percent, it.bytes_done, it.current) for it in seen]
    assert list(dict.fromkeys(said)) == [(0, 0, 0, names[0]), (1, 75, 3 << 20, names[1]), (2, 100, 4 << 20, None)]
    assert seen[-1].seconds_left == 0


def test_a_node_that_was_drained_and_is_back_gets_its_share_though_a_rebalance_had_emptied_it() -> None:
    world = cluster(3, 6)
    driver = approved(world, *(a_move(world, n, "n0") for n, at in sorted(nodes_of(world).items()) if at != ("n0",)))
    driver.until(driver.is_over)
    settle(world)
    assert ("n2",) not in nodes_of(world).values()
    world.spec = replace(world.spec, drained=("n2",))
    settle(world)
    world.spec = replace(world.spec, drained=())
    settle(world)
    assert ("n2",) in nodes_of(world).values(), "it begins anew"
    assert ("n1",) not in nodes_of(world).values(), "and the other one is left as the rebalance left it"
