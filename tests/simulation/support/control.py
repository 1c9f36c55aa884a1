"""The control loop's process and its sources: nodes' answers about copies, which are a little old or missing, and
reports of ended processes, which are true, but perhaps late or missing."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from delayapi.proto.delay.v1 import delay_pb2 as pb
from delaynode.server.replica_status import answer_of
from delayoperator.control_loop.loop import ControlLoop, LoopClock
from delayoperator.control_loop.probe import NodeAnswer, read_answer
from delayregistry.model import NodeLease
from delayregistry.port import RegistryError

from tests.simulation.support.machine.loop import MILLI, Job, in_job
from tests.simulation.support.registry import Access, Weather

if TYPE_CHECKING:
    from tests.simulation.support.machine.process import Process
    from tests.simulation.support.world import World

POLL_NS = 150 * MILLI
ANSWER_NS = 400 * MILLI  # an answer is at most so old when the control loop acts upon it


class SimProber:
    """Implements the control loop's Prober: what the nodes' own code answers, through its own wire form.

    asked_after_ns: no answer is older than this: the loop asks after it has read the shards that it plans with.
    """

    def __init__(self, world: World, rng: random.Random, asked_after_ns: Callable[[], int] = lambda: 0) -> None:
        self._world, self._rng, self._asked_after_ns = world, rng, asked_after_ns
        self._made: dict[str, tuple[int, str, bytes]] = {}  # by node: time, process and bytes of its answer

    def query(self, leases: Sequence[NodeLease]) -> Mapping[str, NodeAnswer]:
        world = self._world
        answers: dict[str, NodeAnswer] = {}
        for lease in leases:
            process = world.machines[lease.node].process
            reached = world.network.both_ways("control", lease.node)
            if process is None or process.loop.frozen or not reached or self._rng.random() < 0.02:
                continue
            answer = answer_of(process.replicas, process.name, process.incarnation, process.unfit())
            data = answer.SerializeToString()
            now = world.scheduler.now_ns
            before = self._made.get(lease.node)
            self._made[lease.node] = (now, process.incarnation, data)
            oldest_ns = max(now - ANSWER_NS, self._asked_after_ns())
            if before is not None and before[1] == process.incarnation and before[0] >= oldest_ns:
                data = before[2] if self._rng.random() < 0.5 else data
            answers[lease.node] = read_answer(pb.ReplicaStatusResponse.FromString(data))
        return answers

    def close(self) -> None:
        pass


class Supervisor:
    """Sees processes end, and tells the control loop: soon, late, or never.

    delay_ns: time until it reports an end; None: never. Drawn for each end, unless a schedule replaces it.
    """

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world, self._rng = world, rng
        self.ended: frozenset[str] = frozenset()
        self.delay_ns: Callable[[], int | None] = self._drawn_ns

    def _drawn_ns(self) -> int | None:
        kind = self._rng.random()
        if kind < 0.25:
            return None
        return self._rng.randint(0, 60 if kind < 0.75 else 4_000) * MILLI

    def process_ended(self, process: Process, *, with_its_machine: bool = False) -> None:
        """If the machine ended too, so did its supervisor, which reports the end only when the machine starts again."""
        delay_ns = self.delay_ns()
        if delay_ns is not None and not with_its_machine:
            self._world.scheduler.after(delay_ns, self.tell, process.incarnation)

    def machine_starts(self, former: str) -> None:
        """Report that the process `former`, which ran there before the power was lost, has ended."""
        if former not in self.ended and self.delay_ns() is not None:
            self.tell(former)

    def tell(self, incarnation: str) -> None:
        self._world.trace.add("supervisor", "process-ended", incarnation=incarnation)
        self.ended |= {incarnation}


class Control:
    """Runs rounds while it is up. A round happens at one instant; the facts that it acts upon are older."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world, self._rng = world, rng
        self.weather = Weather(latency_ns=world.sizes.latency_ms * MILLI)
        self.supervisor = Supervisor(world, world.random("supervisor"))
        self.up = True
        self.rounds = 0
        self._starts = 0
        self.restart()
        world.scheduler.after(10 * MILLI, self._round)

    def restart(self) -> None:
        """Start a new process, which does not know what the former one saw of leases."""
        self._starts += 1
        registry = Access(self.world.truth, self.weather, self._rng, self._trace)
        clock = LoopClock(
            monotonic_ms=lambda: self.world.scheduler.time_ns() // MILLI,
            wall_ms=lambda: self.world.true_ms(),
        )
        prober = SimProber(self.world, self._rng, lambda: registry.listed_ns)
        since = self._forgotten()
        self.loop = ControlLoop(
            registry, self._uid, self._log, clock, prober, ended=lambda: self.supervisor.ended - since
        )

    def _forgotten(self) -> frozenset[str]:
        """The ends that the new process has not heard of: all earlier ones, or none if it asks the supervisor again."""
        return self.supervisor.ended if self._rng.random() < 0.5 else frozenset()

    def _uid(self) -> int:
        return self._rng.getrandbits(63) | 1

    def _trace(self, event: str, **fields: object) -> None:
        self.world.trace.add("control", event, **fields)

    def _log(self, event: Mapping[str, object]) -> None:
        fields = {name: value for name, value in event.items() if name not in ("event", "cluster")}
        self._trace(str(event["event"]), **fields)

    def _round(self) -> None:
        scheduler = self.world.scheduler
        wait = POLL_NS
        if self.up:
            self.rounds += 1
            job = Job(scheduler.now_ns)
            done, error = in_job(scheduler, job, self.loop.round)
            if error is not None and not isinstance(error, RegistryError):
                self.world.fail(f"control loop: {error!r}", error)
            took = job.now_ns - scheduler.now_ns
            wait = took if error is None and done.applied else POLL_NS + took
        scheduler.after(max(wait, MILLI), self._round)
