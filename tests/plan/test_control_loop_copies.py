"""The control loop over shards with several copies: whom it asks, how often, and what it makes of the answers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from delayoperator.control_loop.loop import ControlLoop, LoopClock
from delayoperator.control_loop.probe import NodeAnswer
from delayoperator.control_loop.replica_queries import PATROL_MS
from delayoperator.control_loop.term_starts import TAKE_UP_MS
from delayoperator.plan import CopyView
from delayregistry.model import (
    BootstrapVolumes,
    ClusterSpec,
    ConditionType,
    Handover,
    NodeLease,
    ShardObject,
    ShardStatus,
    Switchover,
    TopicSpec,
)
from delayregistry.sqlite import SqliteRegistry

NODES = ("n0", "n1", "n2")


class World:
    """Three nodes, two copies of each shard, all in sync; time and answers in the test's hand."""

    def __init__(self, path: Path) -> None:
        self.registry = SqliteRegistry(path, create=True)
        self.now_ms = 1_000
        self.events: list[Mapping[str, object]] = []
        self.asked: list[tuple[int, tuple[str, ...]]] = []
        self.mute: set[str] = set()
        self.over: dict[str, int] = {}  # by shard: the epoch that n2 says it has given up
        self.damaged: dict[tuple[str, str], str] = {}
        self.log_ends: dict[tuple[str, str], int] = {}
        self.leases: dict[str, NodeLease] = {}
        self.empty = True
        uids = itertools.count(1)
        clock = LoopClock(lambda: self.now_ms, lambda: self.now_ms)
        self.ended: frozenset[str] = frozenset()
        self.loop = ControlLoop(
            self.registry, lambda: next(uids), self.events.append, clock, self, ended=lambda: self.ended
        )
        spec = ClusterSpec("local", 3, (TopicSpec("t", 3),), replicas=2, replace_after_seconds=30)
        self.registry.put_cluster(spec, None)
        for node in NODES:
            self.start(node, f"{node}-a")
        self.pass_time(500, *NODES)
        for shard in self.registry.list_shards():
            self.serve(shard.name)
        self.empty = False
        self.slaves_of_epoch_1 = {shard.name: self.slave(shard.name) for shard in self.registry.list_shards()}
        self.pass_time(500, *NODES)
        self.asked.clear()

    # The Prober's methods.

    def query(self, leases: Sequence[NodeLease]) -> Mapping[str, NodeAnswer]:
        self.asked.append((self.now_ms, tuple(lease.node for lease in leases)))
        answers = {}
        for lease in leases:
            if lease.node in self.mute:
                continue
            copies = {
                shard.spec.uid: self.copy(shard, lease.node)
                for shard in self.registry.list_shards(lease.node)
                if not self.empty
            }
            answers[lease.node] = NodeAnswer(self.leases[lease.node].incarnation, copies=copies)
        return answers

    def close(self) -> None:
        pass

    def copy(self, shard: ShardObject, node: str) -> CopyView:
        end = self.log_ends.get((shard.name, node), 100)
        over = self.over.get(shard.name, 0) if node == "n2" else 0
        return CopyView(
            f"{shard.name}-{node}", self.leases[node].incarnation, 1, 1, end, ended_epoch=over,
            not_serving="it was told of epoch 7" if over else "", damaged=self.damaged.get((shard.name, node)),
        )  # fmt: skip

    # Actions of nodes.

    def start(self, node: str, incarnation: str) -> None:
        self.leases[node] = NodeLease(node, incarnation, f"{node}:1", f"{node}:2")
        self.registry.renew_lease(self.leases[node])

    def renew(self, *nodes: str, **changes: Any) -> None:
        for node in nodes:
            self.leases[node] = replace(self.leases[node], renewals=self.leases[node].renewals + 1, **changes)
            self.registry.renew_lease(self.leases[node])

    def pass_time(self, ms: int, *living: str, step_ms: int = 100) -> None:
        for _ in range(ms // step_ms):
            self.now_ms += step_ms
            self.renew(*living)
            self.loop.round()

    def shard(self, name: str) -> ShardObject:
        found = self.registry.get_shard(name)
        assert found is not None
        return found

    def serve(self, name: str, **status: Any) -> None:
        shard = self.shard(name)
        in_sync = tuple(f"{name}-{node}" for node in shard.spec.replicas)
        served = ShardStatus(shard.spec.epoch, shard.spec.incarnation or "", in_sync)
        self.registry.write_status(name, replace(served, **status), shard.version)

    def led_by(self, node: str) -> list[str]:
        return [shard.name for shard in self.registry.list_shards() if shard.spec.master == node]

    def slave(self, name: str) -> str:
        spec = self.shard(name).spec
        return next(node for node in spec.replicas if node != spec.master)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "registry.db")
    yield world
    world.registry.close()


def test_masters_are_asked_each_three_seconds_while_all_is_well(world: World) -> None:
    before = world.registry.version()
    world.pass_time(9_000, *NODES)
    times = [at_ms for at_ms, nodes in world.asked if set(nodes) == set(NODES)]
    assert len(times) == len(world.asked) == 3
    assert [after - before for before, after in itertools.pairwise(times)] == [PATROL_MS, PATROL_MS]
    assert world.registry.version() == before


def test_a_master_that_says_its_term_is_over_is_followed_within_seconds(world: World) -> None:
    (name,) = world.led_by("n2")
    world.over[name] = 1
    world.pass_time(PATROL_MS + 200, *NODES)
    spec = world.shard(name).spec
    assert (spec.epoch, spec.master) == (2, world.slaves_of_epoch_1[name])
    assert not spec.vacant, "its leases are waited out"
    reasons = [str(event["reason"]) for event in world.events if event.get("action") == "StartTerm"]
    assert "n2 serves epoch 1 no more: it was told of epoch 7" in reasons[-1]


def test_the_end_of_an_earlier_term_is_no_fault(world: World) -> None:
    (name,) = world.led_by("n2")
    world.over[name] = 1
    world.pass_time(PATROL_MS + 200, *NODES)
    world.serve(name)
    world.pass_time(3 * PATROL_MS, *NODES)
    assert world.shard(name).spec.epoch == 2
    assert world.shard(name).conditions == ()


def test_a_master_that_gives_no_answer_is_kept_while_its_lease_is_renewed(world: World) -> None:
    world.mute = {"n2"}
    (name,) = world.led_by("n2")
    world.pass_time(4 * PATROL_MS, *NODES)
    assert world.shard(name).spec.epoch == 1


def test_a_term_given_up_for_which_nobody_is_fit_says_whom_it_waits_for(world: World) -> None:
    (name,) = world.led_by("n2")
    slave = world.slave(name)
    world.serve(name, in_sync=(f"{name}-n2",))
    world.damaged[name, "n2"] = "rot"
    world.over[name] = 1
    world.pass_time(PATROL_MS + 200, *NODES)
    (condition,) = world.shard(name).conditions
    assert (condition.reason, world.shard(name).spec.epoch) == ("CopyDamaged", 1)
    assert slave != "n2"


def test_a_new_process_costs_one_round_and_only_its_own_shards(world: World) -> None:
    (name,) = world.led_by("n1")
    world.start("n1", "n1-b")
    world.log_ends[name, "n1"] = 90
    assert world.loop.round().applied == 1
    spec = world.shard(name).spec
    assert (spec.master, spec.epoch) == (world.slave(name) if spec.master == "n1" else spec.master, 2)
    assert spec.master != "n1"
    assert {shard.spec.epoch for shard in world.registry.list_shards() if shard.name != name} == {1}


def test_a_dead_master_is_followed_by_its_slave_as_soon_as_its_lease_is_over(world: World) -> None:
    (name,) = world.led_by("n2")
    world.pass_time(2_900, "n0", "n1")
    assert world.shard(name).spec.epoch == 1
    world.asked.clear()
    world.pass_time(200, "n0", "n1")
    assert (world.shard(name).spec.epoch, world.shard(name).spec.master in ("n0", "n1")) == (2, True)
    assert all("n2" not in nodes for _, nodes in world.asked)  # the dead are not asked


def test_a_master_that_has_ended_is_followed_in_the_next_round_and_not_asked(world: World) -> None:
    (name,) = world.led_by("n2")
    before = world.registry.version()
    world.ended = frozenset(["n2-a"])
    assert world.loop.round().applied == 1
    spec = world.shard(name).spec
    assert (spec.epoch, spec.master in ("n0", "n1"), spec.vacant) == (2, True, True)
    assert all("n2" not in nodes for _, nodes in world.asked)
    world.serve(name, in_sync=(f"{name}-{spec.master}",))
    world.pass_time(2_000, "n0", "n1")
    assert world.registry.version() == before + 2  # nothing else follows from it


def test_a_silent_survivor_is_asked_again_soon_then_less_often_and_it_is_said(world: World) -> None:
    (name,) = world.led_by("n2")
    other = world.slave(name)
    world.mute.add(other)
    world.pass_time(3_200, "n0", "n1", step_ms=50)
    world.asked.clear()
    world.pass_time(20_000, "n0", "n1", step_ms=50)
    times = [at_ms for at_ms, nodes in world.asked if other in nodes]
    assert 15 <= len(times) <= 40  # about once a second, not in each of 400 rounds
    (condition,) = world.shard(name).conditions
    assert condition.reason == "NoAnswer"
    world.mute.clear()
    world.pass_time(1_100, "n0", "n1", step_ms=50)
    assert (world.shard(name).spec.master, world.shard(name).conditions) == (other, ())


def test_a_chosen_master_that_begins_nothing_is_named_and_makes_way_for_a_copy_that_is_back(world: World) -> None:
    (name,) = world.led_by("n2")
    other = world.slave(name)
    world.pass_time(4_000, "n0", "n1")
    assert (world.shard(name).spec.master, world.shard(name).conditions) == (other, ())
    world.pass_time(TAKE_UP_MS + 1_000, "n0", "n1")
    (condition,) = world.shard(name).conditions
    assert (condition.type, condition.reason) == (ConditionType.BLOCKED, "NotTakenUp")
    assert condition.message.startswith(f"{other} was chosen for epoch 2 and has not begun it for over 10 s")
    before = world.registry.version()
    world.pass_time(4_000, "n0", "n1")
    assert world.registry.version() == before, "it is said once"
    world.start("n2", "n2-b")
    world.pass_time(2_000, *NODES)
    assert (world.shard(name).spec.master, world.shard(name).spec.epoch) == ("n2", 3)
    assert world.shard(name).conditions == ()


def test_the_answer_of_a_process_that_the_lease_does_not_show_is_not_used(world: World) -> None:
    (name,) = world.led_by("n2")
    other = world.slave(name)
    world.leases[other] = replace(world.leases[other], incarnation="later")  # answers, before its lease is written
    for _ in range(32):
        world.now_ms += 100
        for node in {"n0", "n1"} - {other}:
            world.renew(node)
        shown = replace(world.leases[other], incarnation=f"{other}-a", renewals=world.now_ms)
        world.registry.renew_lease(shown)
        world.loop.round()
    assert world.shard(name).spec.epoch == 1


def test_a_resignation_and_a_handover_are_acted_on_in_the_next_round(world: World) -> None:
    (name,) = world.led_by("n0")
    other = world.slave(name)
    world.serve(name, resigned="its disk hangs")
    assert world.loop.round().applied == 1
    assert (world.shard(name).spec.master, world.shard(name).spec.epoch) == (other, 2)

    (name,) = (shard for shard in world.led_by("n1") if world.shard(shard).spec.epoch == 1)
    other = world.slave(name)
    shard = world.shard(name)
    world.registry.write_spec(name, replace(shard.spec, switchover=Switchover(other)), shard.version)
    world.now_ms += 100
    assert world.loop.round().applied == 0
    world.serve(name, handover=Handover(1, 101))
    assert world.loop.round().applied == 0  # it does not have all yet
    world.log_ends[name, other] = 101
    world.pass_time(200, *NODES, step_ms=50)
    spec = world.shard(name).spec
    assert (spec.master, spec.epoch, spec.switchover) == (other, 2, None)


def test_a_stopping_node_is_relieved_in_the_next_round(world: World) -> None:
    (name,) = world.led_by("n0")
    world.renew("n0", stopping=True)
    assert world.loop.round().applied == 1
    assert world.shard(name).spec.switchover == Switchover(world.slave(name))
    assert not any(nodes for _, nodes in world.asked)  # with all in sync nobody need be asked to begin


def test_a_node_lost_for_good_is_replaced_and_a_restarted_loop_counts_anew(world: World) -> None:
    world.pass_time(29_000, "n0", "n1")
    for name in [shard.name for shard in world.registry.list_shards()]:
        shard = world.shard(name)
        if shard.status is None or shard.status.serving_epoch < shard.spec.epoch:
            world.serve(name)
    assert all(shard.spec.target is None for shard in world.registry.list_shards())
    assert any("n2" in shard.spec.replicas for shard in world.registry.list_shards())
    world.pass_time(2_000, "n0", "n1")
    for shard in world.registry.list_shards():
        if "n2" in shard.spec.replicas:
            assert set(shard.spec.target or ()) == {"n0", "n1"}


def test_a_thousand_terms_begin_in_one_round(tmp_path: Path) -> None:
    """A lost node of a large cluster costs as many compare-and-swaps; about a second where fsync takes 5 ms."""
    registry = SqliteRegistry(tmp_path / "registry.db", create=True)
    topics = (TopicSpec("t", 1_000),)
    registry.put_cluster(ClusterSpec("local", 2, topics, bootstrap_volumes=BootstrapVolumes.IGNORE), None)
    uids = itertools.count(1)
    loop = ControlLoop(registry, lambda: next(uids), lambda event: None, LoopClock(lambda: 0, lambda: 0), writers=32)
    registry.renew_lease(NodeLease("n0", "a", "n0:1", "h"))
    registry.renew_lease(NodeLease("n1", "a", "n1:1", "h"))
    assert loop.round().applied == 1_000
    before = registry.version()
    assert loop.round().applied == 1_000
    assert {shard.spec.epoch for shard in registry.list_shards()} == {1}
    assert registry.version() == before + 1_000
    registry.close()
