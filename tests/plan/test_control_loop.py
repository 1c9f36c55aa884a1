"""The control loop over a real registry file, with its clock in the test's hand."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from delayoperator.control_loop.loop import ControlLoop, LoopClock
from delayregistry.model import (
    BootstrapVolumes,
    ClusterSpec,
    NodeLease,
    ShardObject,
    ShardSpec,
    ShardStatus,
    TopicSpec,
    Version,
)
from delayregistry.port import Conflict, OutcomeUnknown, Registry, RegistryUnavailable
from delayregistry.sqlite import SqliteRegistry

SPEC = ClusterSpec("local", 2, (TopicSpec("orders", 2),), bootstrap_volumes=BootstrapVolumes.IGNORE)


class Faulty:
    """A registry that fails when told to. `after` writes are made, then not answered."""

    def __init__(self, inner: Registry) -> None:
        self._inner = inner
        self.reads_fail = self.writes_fail = self.writes_unanswered = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call: Callable[..., Any] = getattr(self._inner, name)

        def faulty(*args: Any) -> Any:
            if self.writes_fail and name in ("probe", "renew_lease"):
                raise RegistryUnavailable("no writes")
            if name.startswith(("write", "create", "put")):
                if self.writes_fail:
                    raise OutcomeUnknown("not done")
                if self.writes_unanswered:
                    call(*args)
                    raise OutcomeUnknown("done, but who knows")
            elif self.reads_fail:
                raise RegistryUnavailable("no reads")
            return call(*args)

        return faulty


class World:
    """One loop, one registry, nodes that renew when told to."""

    def __init__(self, path: Path) -> None:
        self.registry = SqliteRegistry(path, create=True)
        self.faulty = Faulty(self.registry)
        self.events: list[Mapping[str, object]] = []
        self.now_ms = 1_000
        self.leases: dict[str, NodeLease] = {}
        self.loop = self.new_loop()

    def new_loop(self) -> ControlLoop:
        clock = LoopClock(monotonic_ms=lambda: self.now_ms, wall_ms=lambda: 5_000_000 + self.now_ms)
        uids = itertools.count(1)
        registry: Any = self.faulty
        return ControlLoop(registry, lambda: next(uids), self.events.append, clock)

    def request(self, **changes: Any) -> None:
        found = self.registry.read_cluster()
        spec = (
            found.spec
            if found
            else ClusterSpec("local", 2, (TopicSpec("orders", 2),), bootstrap_volumes=BootstrapVolumes.IGNORE)
        )
        self.registry.put_cluster(replace(spec, **changes), found.version if found else None)

    def start(self, node: str, incarnation: str) -> None:
        self.leases[node] = NodeLease(node, incarnation, f"{node}:1", f"{node}:2")
        self.registry.renew_lease(self.leases[node])

    def renew(self, *nodes: str) -> None:
        for node in nodes:
            self.leases[node] = replace(self.leases[node], renewals=self.leases[node].renewals + 1)
            self.registry.renew_lease(self.leases[node])

    def pass_time(self, ms: int, *living: str) -> None:
        """Rounds every 100 ms; the living renew each time."""
        for _ in range(ms // 100):
            self.now_ms += 100
            if not (self.faulty.writes_fail or self.faulty.reads_fail):
                self.renew(*living)
            try:
                self.loop.round()
            except RegistryUnavailable:
                assert self.faulty.writes_fail or self.faulty.reads_fail

    def shard(self, name: str = "orders-0") -> ShardObject:
        shard = self.registry.get_shard(name)
        assert shard is not None
        return shard

    def serve(self, name: str) -> None:
        shard = self.shard(name)
        assert shard.spec.incarnation is not None
        status = ShardStatus(shard.spec.epoch, shard.spec.incarnation, (f"copy-{name}",))
        self.registry.write_status(name, status, shard.version)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "registry.db")
    yield world
    world.registry.close()


def served(world: World) -> World:
    world.request()
    world.start("n0", "a0")
    world.start("n1", "a1")
    world.pass_time(300, "n0", "n1")
    for shard in world.registry.list_shards():
        world.serve(shard.name)
    world.pass_time(200, "n0", "n1")
    return world


def test_a_wished_topic_gets_its_shards_and_their_first_terms(world: World) -> None:
    world.request()
    world.start("n0", "a0")
    world.start("n1", "a1")
    assert world.loop.round().applied == 2
    assert world.loop.round().applied == 2
    assert world.loop.round().applied == 0
    specs = [shard.spec for shard in world.registry.list_shards()]
    assert [(spec.master, spec.epoch, spec.incarnation) for spec in specs] == [("n0", 1, "a0"), ("n1", 1, "a1")]
    assert len({spec.uid for spec in specs}) == 2


def test_each_action_is_an_event_with_its_reason(world: World) -> None:
    served(world)
    (first, *_) = [event for event in world.events if event["action"] == "StartTerm"]
    assert first == {
        "event": "action",
        "cluster": "local",
        "action": "StartTerm",
        "shard": "orders-0",
        "epoch": 1,
        "failover": False,
        "node": "n0",
        "reason": "the shard has no master yet: n0 has the only copy; epoch 1 begins",
        "outcome": "done",
    }


def test_without_spec_or_changes_nothing_is_written(world: World) -> None:
    world.start("n0", "a0")
    world.pass_time(500, "n0")
    assert world.registry.version() == 0
    served(world)
    before = world.registry.version(), len(world.events)
    world.pass_time(10_000, "n0", "n1")
    assert (world.registry.version(), len(world.events)) == before


def test_a_restarted_node_gets_a_new_epoch_in_the_next_round(world: World) -> None:
    served(world)
    world.start("n1", "b1")
    assert world.loop.round().applied == 1
    spec = world.shard("orders-1").spec
    assert (spec.master, spec.epoch, spec.incarnation) == ("n1", 2, "b1")
    assert world.shard("orders-0").spec.epoch == 1


def test_a_node_that_dies_before_it_took_up_its_term_gets_another(world: World) -> None:
    served(world)
    world.start("n1", "b1")
    world.loop.round()
    world.start("n1", "c1")
    world.loop.round()
    spec = world.shard("orders-1").spec
    assert (spec.epoch, spec.incarnation) == (3, "c1")


def test_a_dead_node_is_said_in_a_condition_with_the_time_since_and_cleared(world: World) -> None:
    served(world)
    world.pass_time(2_900, "n0")
    assert world.shard("orders-1").conditions == ()
    world.pass_time(200, "n0")
    (condition,) = world.shard("orders-1").conditions
    assert condition.reason == "NodeAway"
    assert condition.since_ms >= 5_000_000
    assert world.shard("orders-0").conditions == ()
    world.pass_time(5_000, "n0")
    assert world.shard("orders-1").conditions == (condition,)
    world.pass_time(200, "n0", "n1")
    assert world.shard("orders-1").conditions == ()
    assert world.shard("orders-1").spec.epoch == 1  # the same process: its term stands


@pytest.mark.parametrize("fault", ["reads_fail", "writes_fail"])
def test_an_outage_of_the_registry_kills_nobody(world: World, fault: str) -> None:
    served(world)
    setattr(world.faulty, fault, True)
    world.pass_time(60_000)
    setattr(world.faulty, fault, False)
    world.pass_time(2_000)  # back, but nobody has renewed yet
    assert all(shard.conditions == () for shard in world.registry.list_shards())
    world.pass_time(5_000, "n0", "n1")
    assert all((shard.conditions, shard.spec.epoch) == ((), 1) for shard in world.registry.list_shards())


def test_glimpses_between_short_outages_do_not_add_up_to_a_death(world: World) -> None:
    served(world)
    for _ in range(10):
        world.faulty.reads_fail = True
        world.pass_time(1_000)
        world.faulty.reads_fail = False
        world.pass_time(100)  # one look, before anybody could renew
    assert all(shard.conditions == () for shard in world.registry.list_shards())


def test_a_write_without_an_answer_is_planned_again_from_what_is_there(world: World) -> None:
    served(world)
    world.start("n1", "b1")
    world.faulty.writes_unanswered = True
    assert world.loop.round().refused == 1
    world.faulty.writes_unanswered = False
    world.pass_time(300, "n0", "n1")
    assert world.shard("orders-1").spec.epoch == 2  # it had happened: not 3
    assert [event["outcome"] for event in world.events[-1:]] == ["unknown"]


def test_a_conflicting_write_is_left_to_the_next_round(world: World) -> None:
    served(world)
    world.start("n1", "b1")
    shard = world.shard("orders-1")
    real = world.registry.write_spec

    def late(name: str, spec: ShardSpec, version: Version) -> Version:
        assert shard.status is not None
        world.registry.write_status(name, replace(shard.status, in_sync=("other",)), version)
        world.registry.write_spec = real  # type: ignore[method-assign]
        return real(name, spec, version)

    world.registry.write_spec = late  # type: ignore[method-assign]
    assert world.loop.round().refused == 1
    assert world.events[-1]["outcome"] == "conflict"
    assert world.loop.round().applied == 1
    assert world.shard("orders-1").spec.epoch == 2


def test_two_loops_on_one_registry_do_no_harm(world: World) -> None:
    served(world)
    second = world.new_loop()
    for number in range(1, 6):
        world.start("n0", f"process-{number}")
        world.loop.round()
        second.round()
        world.loop.round()
        assert world.shard().spec.epoch == number + 1
        assert world.shard().spec.incarnation == f"process-{number}"


def test_a_new_loop_goes_on_where_the_old_one_stopped(world: World) -> None:
    served(world)
    before = world.registry.version()
    world.loop = world.new_loop()
    world.pass_time(3_000, "n0", "n1")
    assert world.registry.version() == before


def test_more_queues_and_fewer(world: World) -> None:
    served(world)
    world.request(topics=(TopicSpec("orders", 3),))
    world.pass_time(300, "n0", "n1")
    assert world.shard("orders-2").spec.epoch == 1
    world.request(topics=(TopicSpec("orders", 1),))
    world.pass_time(300, "n0", "n1")
    reasons = [[condition.reason for condition in shard.conditions] for shard in world.registry.list_shards()]
    assert reasons == [[], ["FewerQueues"], ["FewerQueues"]]


def test_a_write_that_is_refused_for_ever_is_not_tried_twenty_times_a_second(world: World) -> None:
    """An object that somebody broke, say. Each try is a request and a line in the log."""
    world.request()
    world.start("n0", "a")
    refused: list[float] = []

    def refuse(*_: object) -> Version:
        refused.append(time.monotonic())
        raise Conflict("not this one")

    world.faulty.create_shard = refuse  # type: ignore[attr-defined]
    stop = threading.Event()
    running = threading.Thread(target=world.loop.run, args=(stop,))
    running.start()
    time.sleep(2.0)
    stop.set()
    running.join()
    assert 4 <= len(refused) / 2 < 20  # two shards a round; without a pause it would be 40 rounds


def test_run_survives_an_outage_says_it_once_and_stops_when_told(world: World) -> None:
    world.faulty.reads_fail = True
    stop = threading.Event()
    thread = threading.Thread(target=world.loop.run, args=(stop, 5))
    thread.start()
    while not world.events:
        stop.wait(0.01)
    stop.wait(0.1)
    world.request()
    world.start("n0", "a0")
    world.start("n1", "a1")
    world.faulty.reads_fail = False
    while len(world.registry.list_shards()) < 2:
        stop.wait(0.01)
    stop.set()
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert [event["event"] for event in world.events].count("registry-unavailable") == 1
