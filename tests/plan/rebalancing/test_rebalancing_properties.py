"""Whatever plan, whatever limits, whatever fails in between: what a rebalance never does, and where it always ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from delayoperator.crds.rebalance import MoveState, PlannedMove, RebalanceState
from delayoperator.plan import Liveness
from delayoperator.plan.placement import desired_replicas
from delayoperator.rebalance_plan import text_of
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.plan.cluster import Cluster
from tests.plan.rebalancing.driver import START_MS, Driver, a_plan, cluster, nodes_of, settle

PHASES = (Phase.explicit, Phase.reuse, Phase.generate)  # what fails is small enough to be read as it is
FINAL = {MoveState.DONE, MoveState.REFUSED}
NODES = ("n0", "n1", "n2", "n3")


@st.composite
def plans(draw: st.DrawFn, world: Cluster) -> list[PlannedMove]:
    """Moves that can be made one after the other, and some that can't: of a map that is not, or to where a copy is."""
    maps = nodes_of(world)
    found = []
    for shard in draw(st.lists(st.sampled_from(sorted(maps)), min_size=1, max_size=8)):
        nodes = maps[shard]
        origin = draw(st.sampled_from(nodes))
        to = draw(st.sampled_from([it for it in NODES if it != origin]))
        hot = draw(st.none() | st.integers(-600, 600))
        move: dict[str, Any] = {
            "shard": shard, "from": origin, "to": to, "replicas": list(nodes),
            "bytes": draw(st.sampled_from([0, 1_000, 1 << 30])),
            "hotSlots": None if hot is None else [text_of(START_MS + hot * 1_000)],
        }  # fmt: skip
        found.append(PlannedMove.model_validate(move))
        if to not in nodes:
            maps[shard] = tuple(to if node == origin else node for node in nodes)
        elif origin == nodes[0]:
            maps[shard] = (to, *(node for node in nodes if node != to))
    return found


def driven(data: st.DataObject, replicas: int) -> Driver:
    world = cluster(4, 5, replicas)
    driver = Driver(world, maxInFlight=data.draw(st.integers(1, 8), "in flight"), leadTime="30s")
    driver.ready(a_plan(data.draw(plans(world), "moves"), slot_seconds=60))
    return driver


@given(st.data(), st.integers(1, 2))
@settings(max_examples=40, deadline=None, phases=PHASES)
def test_whatever_crashes_between_the_plan_goes_to_its_end(data: st.DataObject, replicas: int) -> None:
    """Each round may write the status and lose all else; the next is a new process, with the status alone.

    More than the limit in flight: looked for in each round by the driver.
    """
    driver = driven(data, replicas)
    driver.approve()
    for crash in data.draw(st.lists(st.booleans(), max_size=30), "crashes"):
        driver.now_ms += 1_000
        driver.look(crash=crash)
        driver.nodes_work(data.draw(st.integers(0, 2)))
    driver.until(driver.is_over, rounds=2_000)
    assert driver.state in (RebalanceState.READY, RebalanceState.NOT_READY)
    assert all(move.state in FINAL for move in driver.moves)
    assert all(move.reason for move in driver.moves if move.state is MoveState.REFUSED)
    expected = replay(driver)
    settle(driver.world)
    assert nodes_of(driver.world) == expected, "the moves that are done, in their order, and no others"
    assert all(it.spec.master == it.spec.replicas[0] for it in driver.world.shards.values())
    assert driver.world.faults() == []


@given(st.data(), st.integers(1, 2))
@settings(max_examples=25, deadline=None, phases=PHASES)
def test_whatever_crashes_or_not_the_end_is_the_same(data: st.DataObject, replicas: int) -> None:
    straight = driven(data, replicas)
    straight.approve()
    other = Driver(cluster(4, 5, replicas), straight.status, maxInFlight=straight.spec.max_in_flight, leadTime="30s")
    other.status = straight.status
    straight.until(straight.is_over, rounds=2_000)
    for crash in data.draw(st.lists(st.booleans(), min_size=5, max_size=30), "crashes"):
        other.now_ms += 1_000
        other.look(crash=crash)
        other.nodes_work()
    other.until(other.is_over, rounds=2_000)
    settle(straight.world)
    settle(other.world)
    assert nodes_of(other.world) == nodes_of(straight.world)
    assert [move.state for move in other.moves] == [move.state for move in straight.moves]


@given(st.data(), st.integers(1, 2), st.integers(0, 12))
@settings(max_examples=40, deadline=None, phases=PHASES)
def test_once_stopped_nothing_more_begins(data: st.DataObject, replicas: int, after: int) -> None:
    driver = driven(data, replicas)
    driver.approve()
    for _ in range(after):
        driver.now_ms += 1_000
        driver.look(crash=data.draw(st.booleans()))
        driver.nodes_work()
    before = {place for place, move in enumerate(driver.moves) if move.state is not None}
    was = driver.state
    driver.look(verb="stop")
    driver.until(driver.is_over, rounds=2_000)
    assert {place for place, move in enumerate(driver.moves) if move.state is not None} == before
    if was is RebalanceState.REBALANCING:
        assert driver.state in (RebalanceState.STOPPED, RebalanceState.READY, RebalanceState.NOT_READY)
    for _ in range(5):
        driver.now_ms += 100_000
        assert driver.look().edits == ()


@given(st.data(), st.text(max_size=70))
@settings(max_examples=40, deadline=None, phases=PHASES)
def test_only_the_plans_own_hash_starts_it(data: st.DataObject, named: str) -> None:
    driver = driven(data, 1)
    assert driver.status is not None
    assert driver.status.plan is not None
    outcome = driver.look(approve=named)
    if named.strip() != driver.status.plan.hash:
        assert (driver.state, outcome.edits) == (RebalanceState.PROPOSAL_READY, ())


@given(st.data(), st.integers(1, 2))
@settings(max_examples=40, deadline=None, phases=PHASES)
def test_people_and_faults_meddle_and_it_still_ends(data: st.DataObject, replicas: int) -> None:
    """Shards are moved by others, nodes die and come back: each move ends, done or refused with its reason."""
    driver = driven(data, replicas)
    driver.approve()
    world = driver.world
    for _ in range(data.draw(st.integers(1, 20), "rounds")):
        meddling = data.draw(st.sampled_from(["nothing", "move", "kill", "start"]))
        shard = world.shards[data.draw(st.sampled_from(sorted(world.shards)))]
        node = data.draw(st.sampled_from(NODES))
        if meddling == "move" and node not in desired_replicas(shard.spec):
            target = (*desired_replicas(shard.spec)[:-1], node)
            world._put(replace(shard, spec=replace(shard.spec, target=target)))
        elif meddling == "kill" and all(it.runs for it in world.nodes.values()):
            world.kill(node)
        elif meddling == "start":
            for name, it in list(world.nodes.items()):
                if not it.runs:
                    world.start(name)
        driver.now_ms += 1_000
        driver.look(crash=data.draw(st.booleans()))
        driver.nodes_work()
    for name, it in list(world.nodes.items()):
        if not it.runs or it.seen is not Liveness.ALIVE:
            world.start(name)
    driver.until(driver.is_over, rounds=2_000)
    assert all(move.state in FINAL for move in driver.moves)
    assert all(move.reason for move in driver.moves if move.state is MoveState.REFUSED)
    settle(world)
    assert world.faults() == []


def replay(driver: Driver) -> dict[str, tuple[str, ...]]:
    """Where the moves that are done lead, from where they began."""
    maps = nodes_of(driver.world)
    begun: dict[str, tuple[str, ...]] = {}
    for move in driver.moves:
        begun.setdefault(move.shard, tuple(move.replicas or ()))
    for move in driver.moves:
        if move.state is MoveState.DONE:
            nodes = begun[move.shard]
            assert nodes == tuple(move.replicas or ())
            if move.to in nodes:
                begun[move.shard] = (move.to, *(it for it in nodes if it != move.to))
            else:
                begun[move.shard] = tuple(move.to if it == move.from_ else it for it in nodes)
    return {**maps, **begun}
