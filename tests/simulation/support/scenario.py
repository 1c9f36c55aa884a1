"""Troubles drawn from a seed. attacks.py has the troubles written by hand."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from delayapi.units import HOUR_MS
from delayregistry.model import Delivery, Durability, ShardObject

from tests.simulation.support.attacker import Attacker
from tests.simulation.support.machine.loop import MILLI, SECOND
from tests.simulation.support.people import restore
from tests.simulation.support.sizes import Sizes, sizes_of
from tests.simulation.support.stage import Failed, Run
from tests.simulation.support.world import World, virtual

OLDER_STATES = 0.15  # share of seeds in which an older state of the registry is restored in the end
MANY_TROUBLES = 20  # in a run of some kinds alone
LARGE_STEPS = 0.2  # share of seeds that set one machine's clock far off; with two off, no peer could tell who is right


@dataclass(frozen=True)
class Plan:
    """The cluster and the length of the run that a seed stands for."""

    nodes: int
    queues: tuple[int, ...]  # of each topic
    replicas: int
    durability: Durability
    delivery: Delivery
    min_in_sync: int
    lease_seconds: int
    lag_seconds: int
    trouble_seconds: float
    troubles: int
    sizes: Sizes


def plan_of(seed: int) -> Plan:
    rng = random.Random(f"{seed}/plan")
    nodes = rng.choice((3, 3, 3, 3, 3, 4))
    replicas = rng.choice((2, 2, 2, 3))
    return Plan(
        nodes=nodes,
        queues=(1,) if rng.random() < 0.8 else rng.choice(((2,), (2,), (1, 1), (1, 1), (3,), (2, 2), (2, 1, 3), (8,))),
        replicas=replicas,
        durability=Durability.ASYNC if rng.random() < 0.2 else Durability.FSYNC,
        delivery=rng.choice((Delivery.MASTER, Delivery.MASTER_AND_SLAVE)),
        min_in_sync=rng.choice((1, 1, 1, 2)),
        lease_seconds=rng.choice((2, 2, 3)),
        lag_seconds=rng.choice((2, 3, 4)),
        trouble_seconds=rng.choice((4.0, 5.0, 6.0, 8.0)),
        troubles=rng.choice((1, 3, 5, 7, 10)),
        sizes=sizes_of(seed),
    )


class Troubles:
    """Draws troubles and their ends, all before heal()."""

    def __init__(self, run: Run, plan: Plan, kinds: tuple[str, ...] = ()) -> None:
        self.run, self.plan, self.world = run, plan, run.world
        self._kinds = [(kind, weight) for kind, weight in self.KINDS if not kinds or kind in kinds]
        self.rng = self.world.random("troubles")
        self._full = False
        self.saved: tuple[ShardObject, ...] = ()

    def schedule(self) -> None:
        for _ in range(self.plan.troubles):
            at = self.rng.uniform(0.1, self.plan.trouble_seconds * 0.8)
            kind = self.rng.choices([one for one, _ in self._kinds], [weight for _, weight in self._kinds])[0]
            self.run.at(at, getattr(self, kind), self.plan.trouble_seconds - at)
        rng = self.world.random("large steps")  # a stream of its own: all other draws of the seed stay as they are
        if rng.random() < LARGE_STEPS:
            name, by = rng.choice(tuple(self.world.machines)), rng.choice((-HOUR_MS, -5_000, 5_000, HOUR_MS))
            self.run.at(rng.uniform(0.1, self.plan.trouble_seconds * 0.8), self.run.set_clock, name, by)
        if rng.random() < OLDER_STATES:
            self.run.at(rng.uniform(0, self.plan.trouble_seconds * 0.8), self.save)

    def save(self) -> None:
        """The state of the registry that will be restored; objects that have no status yet aside."""
        self.saved = tuple(shard for shard in self.world.truth.now.shards if shard.status is not None)

    KINDS = (
        ("kill", 6), ("kill_master", 6), ("power", 3), ("freeze", 4), ("freeze_master", 6), ("partition", 4),
        ("one_way", 4), ("isolate", 4), ("slow_links", 2), ("lossy", 2), ("break_links", 2), ("registry_down", 3),
        ("registry_out", 2), ("registry_flaky", 4), ("stale_watch", 4), ("control_down", 2), ("control_restart", 1),
        ("clock_step", 3), ("slow_disk", 2), ("hang_disk", 3), ("fill_disk", 2), ("move", 4), ("switch", 6),
        ("drain", 2), ("sigterm", 4), ("rolling", 1), ("delete_object", 3), ("apply_again", 2),
    )  # fmt: skip

    def _node(self) -> str:
        return self.rng.choice(tuple(self.world.machines))

    def _shard(self) -> ShardObject | None:
        """None while all objects are deleted."""
        shards = self.world.truth.now.shards
        return self.rng.choice(shards) if shards else None

    def _master(self) -> str:
        shard = self._shard()
        return (shard.spec.master if shard is not None else None) or self._node()

    def _span(self, left: float, low: float, high: float) -> float:
        return min(left, self.rng.uniform(low, high))

    def _kill(self, name: str, left: float, *, power: bool = False) -> None:
        self.world.kill(name, power=power and self.plan.durability is Durability.FSYNC)
        self.run.at(self._span(left, 0.05, 5.0), self.world.start, name)

    def kill(self, left: float) -> None:
        self._kill(self._node(), left)

    def kill_master(self, left: float) -> None:
        self._kill(self._master(), left)

    def power(self, left: float) -> None:
        self._kill(self._node() if self.rng.random() < 0.5 else self._master(), left, power=True)

    def _freeze(self, name: str, left: float) -> None:
        self.world.freeze(name)
        self.run.at(self._span(left, 0.2, 8.0), self.world.thaw, name)

    def freeze(self, left: float) -> None:
        self._freeze(self._node(), left)

    def freeze_master(self, left: float) -> None:
        self._freeze(self._master(), left)

    def _pair(self) -> tuple[str, str]:
        one = self._node()
        return one, self.rng.choice([name for name in self.world.machines if name != one])

    def partition(self, left: float) -> None:
        one, other = self._pair()
        self.run.cut(one, other)
        self._mend_later(one, other, left)

    def one_way(self, left: float) -> None:
        one, other = self._pair()
        self.run.cut(one, other, both=False)
        self._mend_later(one, other, left)

    def _mend_later(self, one: str, other: str, left: float) -> None:
        span = self._span(left, 0.2, 8.0)
        if self.rng.random() < 0.4:
            self.run.at(self.rng.uniform(0, span), self.world.network.break_links, one, other)
        self.run.at(span, self.run.mend, one, other)

    def isolate(self, left: float) -> None:
        name = self._master() if self.rng.random() < 0.6 else self._node()
        self.run.isolate(name)
        reaches_registry = self.rng.random() < 0.4
        self.world.machines[name].weather.down = not reaches_registry
        self.run.at(self._span(left, 0.5, 8.0), self._rejoin, name)

    def _rejoin(self, name: str) -> None:
        self.run.rejoin(name)
        self.world.machines[name].weather.down = False

    def slow_links(self, left: float) -> None:
        one, other = self._pair()
        latency = self.rng.choice((20, 100, 400, 900)) * MILLI
        for line in (self.world.network.line(one, other), self.world.network.line(other, one)):
            line.latency_ns = latency
        self.run.at(left, self._quick, one, other)

    def _quick(self, one: str, other: str) -> None:
        for line in (self.world.network.line(one, other), self.world.network.line(other, one)):
            line.latency_ns = 200_000

    def lossy(self, left: float) -> None:
        one, other = self._pair()
        loss = self.rng.choice((0.2, 0.5, 0.9))
        self.world.network.line(one, other).loss = loss
        if self.rng.random() < 0.5:
            self.world.network.line(other, one).loss = loss

    def break_links(self, left: float) -> None:
        self.world.network.break_links(*self._pair())

    def registry_down(self, left: float) -> None:
        name = self._master() if self.rng.random() < 0.5 else self._node()
        self.world.machines[name].weather.down = True
        self.run.at(self._span(left, 0.5, 8.0), self._registry_up, (name,))

    def registry_out(self, left: float) -> None:
        names = tuple(self.world.machines)
        for name in names:
            self.world.machines[name].weather.down = True
        self.world.control.weather.down = True
        self.run.at(self._span(left, 0.5, 8.0), self._registry_up, (*names, "control"))

    def _registry_up(self, names: tuple[str, ...]) -> None:
        for name in names:
            weather = self.world.control.weather if name == "control" else self.world.machines[name].weather
            weather.down = False

    def registry_flaky(self, left: float) -> None:
        share = self.rng.choice((0.2, 0.5, 0.9))
        for machine in self.world.machines.values():
            machine.weather.no_answer = share
        if self.rng.random() < 0.5:
            self.world.control.weather.no_answer = share / 2

    def stale_watch(self, left: float) -> None:
        for machine in self.world.machines.values():
            if self.rng.random() < 0.6:
                machine.weather.lag_ns = self.rng.choice((200, 1_000, 3_000, 6_000)) * MILLI
        if self.rng.random() < 0.3:
            self.world.control.weather.lag_ns = self.rng.choice((200, 1_000)) * MILLI

    def control_down(self, left: float) -> None:
        self.world.trace.add("control", "stopped")
        self.world.control.up = False
        self.run.at(self._span(left, 0.5, 6.0), self._control_up)

    def _control_up(self) -> None:
        if not self.world.control.up:
            self.world.control.up = True
            self.control_restart(0.0)

    def control_restart(self, left: float) -> None:
        self.world.trace.add("control", "restarted")
        self.world.control.restart()

    def clock_step(self, left: float) -> None:
        name = self._node()
        by = self.rng.choice((-2_500, -700, -200, 200, 600, 900))
        self.run.set_clock(name, by)

    def slow_disk(self, left: float) -> None:
        self.world.machines[self._node()].disk.slow = self.rng.choice((5.0, 30.0, 100.0))

    def hang_disk(self, left: float) -> None:
        name = self._master() if self.rng.random() < 0.6 else self._node()
        span = self._span(left, 0.5, 9.0)
        self.world.trace.add(name, "disk-hangs", seconds=span)
        self.world.machines[name].disk.hung_until_ns = self.world.scheduler.now_ns + int(span * SECOND)

    def fill_disk(self, left: float) -> None:
        if not self._full:
            self._full = True
            name = self._node()
            self.world.trace.add(name, "disk-full")
            self.world.machines[name].disk.full = True

    def move(self, left: float) -> None:
        if (shard := self._shard()) is None:
            return
        target = self.rng.sample(list(self.world.machines), len(shard.spec.replicas))
        self.run.move(shard.name, tuple(target))

    def switch(self, left: float) -> None:
        if (shard := self._shard()) is None:
            return
        self.run.switch(shard.name, self.rng.choice(shard.spec.replicas))

    def drain(self, left: float) -> None:
        if len(self.world.machines) > self.plan.replicas:
            self.run.drain((self._node(),))
            self.run.at(left * 0.9, self.run.drain, ())

    def _stop(self, name: str, left: float) -> None:
        self.world.stop(name)
        wait = self._span(left, 0.5, 4.0)
        self.run.at(wait, self._start_or_kill, name)

    def _start_or_kill(self, name: str) -> None:
        process = self.world.machines[name].process
        if process is not None and process.stopping:
            self.world.kill(name)  # its time is over
        self.world.start(name)

    def sigterm(self, left: float) -> None:
        self._stop(self._master() if self.rng.random() < 0.7 else self._node(), left)

    def delete_object(self, left: float) -> None:
        """`kubectl delete delayshard`, while the nodes run on."""
        if (shard := self._shard()) is not None:
            self.world.trace.add("people", "delete", shard=shard.name)
            self.world.truth.delete(shard.name)

    def apply_again(self, left: float) -> None:
        """All objects are deleted, and the cluster is applied again over the volumes that are left."""
        self.world.trace.add("people", "delete-and-apply")
        for shard in self.world.truth.now.shards:
            self.world.truth.delete(shard.name)
        for name in self.world.machines:
            if self.world.machines[name].process is not None:
                self.world.kill(name)
        self.world.truth.forget_leases()
        self.control_restart(0.0)
        for name in self.world.machines:
            self.run.at(self._span(left, 0.05, 5.0), self.world.start, name)

    def rolling(self, left: float) -> None:
        for at, name in enumerate(self.world.machines):
            self.run.at(left * at / len(self.world.machines), self._stop, name, left / len(self.world.machines))


def run_seed(
    seed: int,
    *,
    whole_trace: bool = False,
    kinds: tuple[str, ...] = (),
    attacked: bool = False,
    sealed: bool | None = None,
) -> World:
    """One run of troubles drawn from the seed. kinds: of these alone, and many. attacked: with an Attacker between the
    nodes. sealed: whether heartbeats count only with a seal; None: where there is an attacker. Raises Violation."""
    plan = plan_of(seed)
    if kinds:
        plan = replace(plan, troubles=MANY_TROUBLES)
    world = World(
        seed, nodes=plan.nodes, queues=plan.queues, replicas=plan.replicas, durability=plan.durability,
        lease_seconds=plan.lease_seconds, lag_seconds=plan.lag_seconds, delivery=plan.delivery,
        min_in_sync=plan.min_in_sync, sizes=plan.sizes, whole_trace=whole_trace,
        sealed=attacked if sealed is None else sealed,
    )  # fmt: skip
    world.trace.add("seed", str(seed), plan=plan)
    with virtual(world):
        run = Run(world)
        if attacked:
            Attacker(run, world.random("attacker"))
        try:
            few = 1 if sum(plan.queues) > 2 else 2  # clients of each kind, where there are many shards
            run.open(producers=few, consumers=few, letters=True)
            troubles = Troubles(run, plan, kinds)
            troubles.schedule()
            world.run(plan.trouble_seconds)
            run.heal()
            if troubles.saved:
                restore(run, troubles.saved)
            run.close()
        except Exception as error:
            world.fail(f"{type(error).__name__}: {error}", error)
            raise Failed(world) from error
    return world
