"""A run: a world and its clients, the troubles that may be done to them, how it begins, and how it has to end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from delaynode.replica.replica import Replica
from delaynode.store.errors import Refused
from delaynode.store.log.incoming_batch import IncomingBatch
from delaynode.store.shard import Appended
from delayregistry.model import ShardObject, ShardSpec, ShardStatus, Switchover
from delayregistry.port import Conflict

from tests.simulation.support.machine.frontdoor import enqueue
from tests.simulation.support.machine.loop import MILLI, SECOND
from tests.simulation.support.workload import NEAR_MS, Clients, ShardView, Timeout
from tests.simulation.support.world import World, virtual

SERVED_SECONDS = 20.0  # a new cluster serves within
HEALTHY_SECONDS = 60.0  # so does one whose troubles are over
DRAINED_SECONDS = 40.0  # until something that is due, if anything is, was consumed
SETTLED_SECONDS = 60.0  # until the control loop has nothing left to do
QUIET_NS = SECOND  # without a plan: some six rounds


class Run:
    """A world and its clients. Troubles are methods: each happens at once, and says how it ends."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.clients = world.clients = Clients(world)

    # ------------------------------------------------------------ the three acts
    def open(self, *, clients: bool = True, **work: Any) -> None:
        """Run until every shard is served by a full in-sync set. work: arguments of Clients.begin()."""
        self.world.start_all()
        self.world.run_until(self.healthy, SERVED_SECONDS, "the new cluster is healthy")
        for shard in self.world.truth.now.shards if clients else ():
            self.clients.begin(shard.spec.uid, shard.name, **work)

    def close(self) -> None:
        """End the run after the troubles: all must get healthy, all due messages come, and all copies be the same."""
        world = self.world
        world.run_until(self.healthy, HEALTHY_SECONDS, lambda: f"healthy again: {self.ailing()}")
        self.clients.sending = False
        world.run_until(lambda: not self.clients.senders, DRAINED_SECONDS, "every producer got its answer")
        world.run((NEAR_MS + 500) / 1000)
        while backlog := self.clients.outstanding():  # a group that fails often needs minutes for a long one
            further = partial(self._is_further, backlog, self.clients.acked())
            world.run_until(further, DRAINED_SECONDS, "all that is due was delivered")
        self.clients.stop_consuming()
        world.run(0.5)
        world.run_until(self.at_rest, 20.0, "all slaves have applied everything")
        world.run_until(self.settled, SETTLED_SECONDS, "invariant 7: nothing is left to be planned")
        self.clients.check()
        world.checker.final()
        world._check()

    def _is_further(self, backlog: int, acked: int) -> bool:
        """Whether the consumers have come further; an hour's firings of a schedule may be before the messages."""
        return self.clients.outstanding() < backlog or self.clients.acked() > acked

    def settled(self) -> bool:
        """Everything is as wanted, and the control loop has planned nothing for a while."""
        return self.world.convergence.quiet_ns() > QUIET_NS and self.healthy() and self.at_rest()

    def ailing(self) -> str:
        """The list of everything that is not as it should be, as a sentence."""
        return "; ".join(what for shard in self.world.truth.now.shards for what in self._ails(shard)) or "nothing"

    def healthy(self) -> bool:
        shards = self.world.truth.now.shards
        wanted = sum(topic.queues for topic in self.world.cluster_spec.topics)
        return len(shards) == wanted and not any(what for shard in shards for what in self._ails(shard))

    def _faults(self, shard: ShardObject) -> list[str]:
        """The reasons of its conditions. A copy that is adopted before its first checkpoint does not know in which boot
        it was in sync, so AllRebooted is said though no machine was started again."""
        unknown = {"AllRebooted"} if shard.name in self.world.truth.deleted else set()
        return [condition.reason for condition in shard.conditions if condition.reason not in unknown]

    def _ails(self, shard: ShardObject) -> Iterator[str]:
        spec, status, world = shard.spec, shard.status, self.world
        cluster = world.truth.now.cluster
        assert cluster is not None
        if status is None or status.serving_epoch != spec.epoch or spec.master is None:
            yield f"{shard.name}: epoch {spec.epoch} is not served"
            return
        process = world.machines[spec.master].process
        replica = process.replicas.get(spec.uid) if process is not None else None
        if replica is None or replica.master is None or replica.leader is None or not replica.leader.live():
            yield f"{shard.name}: its master does not serve"
        elif replica.leader.term.epoch != spec.epoch:
            yield f"{shard.name}: its master serves epoch {replica.leader.term.epoch}, the registry is at {spec.epoch}"
        if len(status.in_sync) != len(spec.replicas) or len(spec.replicas) != cluster.spec.replicas:
            yield f"{shard.name}: {len(status.in_sync)} in sync, replicas {','.join(spec.replicas)}"
        for name, value in (
            ("target", spec.target), ("leaving", spec.leaving), ("switchover", spec.switchover),
            ("handover", status.handover), ("resigned", status.resigned),
            ("conditions", self._faults(shard)),
            ("drained", [node for node in spec.replicas if node in cluster.spec.drained]),
        ):  # fmt: skip
            if value:
                yield f"{shard.name}: {name} {value}"

    def at_rest(self) -> bool:
        for shard in self.world.truth.now.shards:
            ends = set()
            for node in shard.spec.replicas:
                process = self.world.machines[node].process
                replica = process.replicas.get(shard.spec.uid) if process is not None else None
                if replica is None or replica.shard is None:
                    return False
                ends |= {replica.shard.log.end, replica.shard.applied, replica.shard.committed_offset}
            if len(ends) != 1:
                return False
        return True

    # ------------------------------------------------------------ what is where
    def shard(self, name: str = "t-0") -> ShardObject:
        found = self.world.truth.shard(name)
        assert found is not None
        return found

    def status(self, name: str = "t-0") -> ShardStatus:
        found = self.shard(name).status
        assert found is not None
        return found

    def master(self, name: str = "t-0") -> str:
        node = self.shard(name).spec.master
        assert node is not None
        return node

    def slaves(self, name: str = "t-0") -> list[str]:
        return [node for node in self.shard(name).spec.replicas if node != self.master(name)]

    def replica(self, node: str, name: str = "t-0") -> Replica:
        process = self.world.machines[node].process
        assert process is not None
        found = process.replicas.get(self.shard(name).spec.uid)
        assert found is not None
        return found

    def once(self, seen: Callable[[ShardObject], bool], call: Callable[[], object]) -> None:
        """Make the call right after the first write of a shard that `seen` accepts, before its writer hears of it."""
        done = False

        def told(before: ShardObject | None, after: ShardObject) -> None:
            nonlocal done
            if not done and seen(after):
                done = True
                self.world.scheduler.at(self.world.scheduler.now_ns, _call, call, ())

        self.world.truth.told.append(told)

    def until(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        self.world.run_until(done, seconds, what)

    def ask(self, view: ShardView, batch: IncomingBatch, answered: Callable[[Appended], None]) -> None:
        """Enqueue, again and again, until there is an answer."""
        done: list[Appended] = []

        async def go() -> None:
            while not done:
                with suppress(Timeout, Refused):
                    done.append(await self.clients.call(view, "enqueue", enqueue(batch)))

        with self.world.client_loop.running():
            self.clients.spawn(go())
        self.until(lambda: bool(done), 30, "an answer")
        answered(done[0])

    def stored(self) -> int:
        """The number of acknowledged messages."""
        return self.clients.counts["answered"]

    # ------------------------------------------------------------ troubles
    def at(self, seconds: float, call: Callable[..., object], *args: object) -> None:
        """Make the call so many seconds from now."""
        self.world.scheduler.after(int(seconds * SECOND), _call, call, args)

    def change_spec(self, name: str, change: Callable[[ShardSpec], ShardSpec]) -> None:
        """Change a shard's spec as the CLI does: a conflicting write is dropped."""
        shard = self.world.truth.shard(name)
        if shard is not None:
            with suppress(Conflict):
                spec = change(shard.spec)
                self.world.truth.change(name, shard.version, lambda one: replace(one, spec=spec))

    def move(self, name: str, target: tuple[str, ...]) -> None:
        self.change_spec(name, lambda spec: replace(spec, target=target))

    def switch(self, name: str, to: str) -> None:
        self.change_spec(name, lambda spec: replace(spec, switchover=Switchover(to)) if to != spec.master else spec)

    def drain(self, nodes: tuple[str, ...]) -> None:
        cluster = self.world.truth.now.cluster
        assert cluster is not None
        self.world.truth.put_cluster(replace(cluster.spec, drained=nodes), cluster.version)
        self.world.trace.add("people", "drain", nodes=nodes)

    def restart(self, name: str) -> None:
        self.world.kill(name)
        self.world.start(name)

    def cut(self, one: str, other: str, *, both: bool = True) -> None:
        self.world.trace.add("network", "cut", between=(one, other), both=both)
        self.world.network.cut(one, other)
        if both:
            self.world.network.cut(other, one)

    def mend(self, one: str, other: str) -> None:
        self.world.trace.add("network", "mended", between=(one, other))
        self.world.network.mend(one, other)
        self.world.network.mend(other, one)

    def fail_disk(self, name: str) -> None:
        """Let the next sync of a CommitLog fail with EIO."""
        self.world.copies.harm(name)
        self.world.machines[name].disk.files.fail_next("sync", path="/log/")

    def isolate(self, name: str) -> None:
        for other in self.everybody(name):
            self.cut(name, other)

    def rejoin(self, name: str) -> None:
        for other in self.everybody(name):
            self.mend(name, other)

    def set_clock(self, name: str, by_ms: int) -> None:
        self.world.trace.add(name, "clock-set", by_ms=by_ms)
        self.world.machines[name].clocks.step(by_ms)

    def everybody(self, name: str) -> list[str]:
        return [other for other in (*self.world.machines, "client", "control") if other != name]

    def heal(self) -> None:
        """End all troubles."""
        world = self.world
        world.trace.add("people", "heal")
        world.calm = True
        names = [*world.machines, "client", "control"]
        for at, one in enumerate(names):
            for other in names[at + 1 :]:
                world.network.mend(one, other)
                world.network.mend(other, one)
                for line in (world.network.line(one, other), world.network.line(other, one)):
                    line.loss, line.latency_ns, line.jitter_ns = 0.0, 200_000, 300_000
        for name, machine in world.machines.items():
            machine.clocks.correct()
            machine.weather.down, machine.weather.no_answer, machine.weather.lag_ns = False, 0.0, 20 * MILLI
            machine.disk.hung_until_ns, machine.disk.slow = 0, 1.0
            machine.disk.full = False
            world.thaw(name)
            if machine.process is None:
                world.start(name)
        control = world.control.weather
        control.down, control.no_answer, control.lag_ns = False, 0.0, 20 * MILLI
        world.control.up = True
        cluster = world.truth.now.cluster
        if cluster is not None and cluster.spec.drained:
            self.drain(())


def _call(call: Callable[..., object], args: tuple[object, ...]) -> None:
    call(*args)


class Failed(AssertionError):
    """A run has failed. The trace is in world.report()."""

    def __init__(self, world: World) -> None:
        super().__init__(f"seed {world.seed}: {world.violation}\n{world.trace.text()[-20_000:]}")
        self.world = world


@contextmanager
def cluster(seed: int = 1, *, clients: bool = True, close: bool = True, **desired: Any) -> Iterator[Run]:
    """A healthy cluster with clients at work, for troubles written by hand. Raises Failed, with the trace in it."""
    world = World(seed, whole_trace=True, **desired)
    with virtual(world):
        run = Run(world)
        try:
            run.open(clients=clients)
            run.world.run(1.0)
            yield run
            if close:
                run.heal()
                run.close()
            world._check()
        except Exception as error:
            if world.violation is None:
                world.trace.add("test", "failed", what=f"{type(error).__name__}: {error}")
            raise Failed(world) from error
