"""The simulated cluster: machines, their processes, the registry, the network, the control loop. One seed, one run."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from delaynode.replica.hosts import sync_threads
from delaynode.store import formats
from delayregistry.model import ClusterSpec, Durability, TopicSpec

from tests.simulation.support.checks.checker import Checker
from tests.simulation.support.checks.convergence import Convergence
from tests.simulation.support.checks.copies import Copies
from tests.simulation.support.checks.coverage import Coverage
from tests.simulation.support.control import Control
from tests.simulation.support.machine.clocks import MachineClocks, true_ms
from tests.simulation.support.machine.disk import Disk
from tests.simulation.support.machine.loop import MILLI, SECOND, ProcessLoop, Scheduler
from tests.simulation.support.machine.network import Network
from tests.simulation.support.machine.process import Machine, NoThreads, Process
from tests.simulation.support.registry import Truth, Weather
from tests.simulation.support.sizes import SIZES, Sizes
from tests.simulation.support.trace import Trace

if TYPE_CHECKING:
    from tests.simulation.support.workload import Clients


TOPICS = ("t", "u", "v")


class Violation(AssertionError):
    """An invariant does not hold, or code failed where it must not."""


class Dice(random.Random):
    """Draws what random.Random draws, integers with fewer calls."""

    def randint(self, a: int, b: int) -> int:
        width = b - a + 1
        if width <= 0:
            raise ValueError(f"nothing lies between {a} and {b}")
        bits = width.bit_length()
        drawn = self.getrandbits(bits)
        while drawn >= width:
            drawn = self.getrandbits(bits)
        return a + drawn


class World:
    def __init__(
        self,
        seed: int,
        *,
        nodes: int = 3,
        queues: int | tuple[int, ...] = 1,
        replicas: int = 2,
        durability: Durability = Durability.FSYNC,
        lease_seconds: int = 2,
        lag_seconds: int = 3,
        sizes: Sizes = SIZES,
        whole_trace: bool = False,
        sealed: bool = False,
        **cluster: Any,
    ) -> None:
        """queues: the number of queues of each topic; a single number: of the only topic. sealed: see Network."""
        self.seed = seed
        self.scheduler = Scheduler()
        self.trace = Trace(self.scheduler.time_ns, whole=whole_trace)
        self.violation: Violation | None = None
        self.sizes = sizes
        counts = (queues,) if isinstance(queues, int) else queues
        topics = tuple(TopicSpec(name, count) for name, count in zip(TOPICS, counts, strict=False))
        self.cluster_spec = ClusterSpec(
            "sim", nodes, topics, replicas=replicas, durability=durability, lease_seconds=lease_seconds,
            lag_seconds=lag_seconds, nodes_version=self._format(), **cluster,
        )  # fmt: skip
        self.truth = Truth(self.scheduler)
        self.truth.put_cluster(self.cluster_spec, None)
        self.network = Network(self.scheduler, self.random("network"), self._network_trace, sealed=sealed)
        self.machines = {name: self._machine(name) for name in self.cluster_spec.node_ids}
        self.autopsy = False  # keep dead processes to be looked at
        self.calm = False  # no more troubles: a process that ends is started again
        self.graves: list[Process] = []  # dead processes, kept: their objects must not be collected while others live
        self.client_loop = ProcessLoop(self.scheduler, self._client_failed)  # type: ignore[abstract]
        self.clients: Clients | None = None
        self.checker = Checker(self)
        self.coverage = Coverage()
        self.truth.told.append(self.coverage.recorded)
        self.copies = Copies(self)
        self.convergence = Convergence(self)
        self.control = Control(self, self.random("control"))

    def _machine(self, name: str) -> Machine:
        rng = self.random(f"machine {name}")
        drift = rng.uniform(-1e-3, 1e-3) if rng.random() < 0.5 else rng.uniform(-1e-4, 1e-4)
        clocks = MachineClocks(self.scheduler.time_ns, drift, offset_ns=rng.randint(-300, 300) * 1_000_000)
        apart_ns = self.random(f"watches {name}").randint(-self.sizes.apart_ms, self.sizes.apart_ms) * MILLI
        weather = Weather(latency_ns=self.sizes.latency_ms * MILLI, apart_ns=apart_ns)
        return Machine(name, Disk(self.scheduler, self.random(f"disk {name}")), clocks, weather)

    # ------------------------------------------------------------ for everybody
    def _format(self) -> int:
        """In which nodes write: in one drawn seed of four with message ids."""
        drawn = self.random("format").choice((1, 2, 2))
        return (
            formats.NEWEST
            if drawn > 1 and self.sizes is not SIZES and self.random("with ids").random() < 0.38
            else drawn
        )

    def random(self, what: str) -> random.Random:
        """A stream of random numbers for each use: draws from one do not move the others."""
        return Dice(f"{self.seed}/{what}")

    def true_ms(self) -> int:
        return true_ms(self.scheduler.time_ns())

    def fail(self, what: str, cause: BaseException | None = None) -> None:
        """Record a violation. The scheduler raises it: nodes' code would swallow it."""
        if self.violation is None:
            self.trace.add("checker", "VIOLATION", what=what)
            self.violation = self.scheduler.failure = Violation(what)
            self.violation.__cause__ = cause

    def _client_failed(self, what: str, error: BaseException | None) -> None:
        self.fail(f"client: {what}: {error!r}", error)

    def _check(self) -> None:
        if self.violation is not None:
            raise self.violation

    def _network_trace(self, event: str, **fields: object) -> None:
        self.trace.add("network", event, **fields)

    # ------------------------------------------------------------ machines
    def start(self, name: str) -> None:
        machine = self.machines[name]
        if machine.process is None:
            if machine.lost is not None:
                self.control.supervisor.machine_starts(machine.lost)
            machine.process, machine.lost = Process(self, machine), None
            self.trace.add(name, "process-starts", incarnation=machine.process.incarnation)

    def start_all(self) -> None:
        for name in self.machines:
            self.start(name)

    def kill(self, name: str, *, power: bool = False) -> None:
        """kill -9; with `power` the whole machine goes down with it."""
        machine = self.machines[name]
        process = machine.process
        at_ns = self.scheduler.now_ns
        if process is not None:
            if process.loop.frozen:
                at_ns = process.frozen_ns
            process.die()
            self.graves.append(process)
            self.network.gone(process, at_once=not power)
            self.control.supervisor.process_ended(process, with_its_machine=power)
            machine.lost = process.incarnation if power else None
        self.trace.add(name, "power-lost" if power else "killed")
        if power:
            machine.disk.power_loss(at_ns)
            machine.clocks.reboot()
            machine.trust = None
        elif process is not None:
            machine.disk.kill(at_ns)
        self.checker.disk_changed(name)

    def freeze(self, name: str) -> None:
        process = self.machines[name].process
        if process is not None and not process.loop.frozen:
            self.trace.add(name, "frozen")
            process.freeze()

    def thaw(self, name: str) -> None:
        process = self.machines[name].process
        if process is not None and process.loop.frozen:
            self.trace.add(name, "thawed")
            process.thaw()

    def stop(self, name: str) -> None:
        """Send SIGTERM: the process ends by itself."""
        process = self.machines[name].process
        if process is None or process.stopping:
            return
        self.trace.add(name, "asked-to-stop")

        async def stopping() -> None:
            await process.stop()
            self.trace.add(name, "stopped")
            self.scheduler.at(self.scheduler.now_ns, self._ended, process)

        process.loop.call_soon(lambda: process.keep(process.loop.create_task(stopping())))

    def _ended(self, process: Process) -> None:
        if not process.loop.dead:
            process.die()
            self.graves.append(process)
            self.network.gone(process, at_once=True)
            self.control.supervisor.process_ended(process)
        if self.calm:
            self.start(process.name)

    def live(self) -> list[Process]:
        return [machine.process for machine in self.machines.values() if machine.process is not None]

    def delivered(self) -> int:
        return self.clients.counts["delivered"] if self.clients is not None else 0

    def stored(self) -> int:
        return self.clients.counts["answered"] if self.clients is not None else 0

    def terms(self) -> int:
        """The number of terms that have committed something, each shard's first aside."""
        return sum(max(0, len(record.commits) - 1) for record in self.checker.records.values())

    # ------------------------------------------------------------ time
    def run(self, seconds: float) -> None:
        self.scheduler.run(self.scheduler.now_ns + int(seconds * SECOND))

    def run_until(self, done: Callable[[], bool], seconds: float, what: str | Callable[[], str]) -> None:
        end = self.scheduler.now_ns + int(seconds * SECOND)
        self.scheduler.run(end, done)
        if not done():
            self.fail(f"not within {seconds:g} s: {what if isinstance(what, str) else what()}")
            self._check()

    def report(self) -> str:
        return f"seed {self.seed}\n{self.trace.text()}\nseed {self.seed}: {self.violation}"


# ---------------------------------------------------------------- what nodes must not reach
class _Time:
    """Stands in for the module `time`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def monotonic(self) -> float:
        return self._scheduler.time_ns() / SECOND

    def monotonic_ns(self) -> int:
        return self._scheduler.time_ns()

    perf_counter = monotonic

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"code of a node asks for time.{name}")


class _Secrets:
    """Stands in for the module `secrets`."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def token_hex(self, size: int) -> str:
        return self._rng.randbytes(size).hex()

    def randbits(self, bits: int) -> int:
        return self._rng.getrandbits(bits)


def _modules() -> list[ModuleType]:
    return [module for name, module in sys.modules.items() if name.startswith(("delaynode.", "delayoperator."))]


@contextmanager
def virtual(world: World) -> Iterator[None]:
    """While this lasts, the product's modules have this world's time, randomness and threads, and no others."""
    import secrets

    shims: dict[Any, Any] = {time: _Time(world.scheduler), secrets: _Secrets(world.random("secrets"))}
    shims[threading] = None
    changed: list[tuple[ModuleType, str, Any]] = []
    for module in _modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, ModuleType) and value in shims:
                shim = shims[value]
                if value is threading:
                    if module is not sync_threads:
                        continue
                    shim = NoThreads
                changed.append((module, name, value))
                setattr(module, name, shim)
            elif name == "give_back":
                changed.append((module, name, value))
                setattr(module, name, lambda: None)
    asyncio.tasks._all_tasks.add = lambda _: None  # type: ignore[attr-defined]  # asyncio's own list, not used here
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    collecting = gc.isenabled()
    gc.disable()
    if not _buried:
        gc.freeze()  # the collector need not look at today's objects again when a world ends
    try:
        with world.checker.watching(), world.convergence.watching(), world.copies.watching(), world.coverage.counting():
            yield
    finally:
        for module, name, value in changed:
            setattr(module, name, value)
        _bury(world)
        if collecting:
            gc.enable()
        sys.unraisablehook = hook
        del asyncio.tasks._all_tasks.add  # type: ignore[attr-defined]


_buried: list[int] = []  # seeds of the worlds of this process


def _bury(world: World) -> None:
    """Drop all processes while nothing that they still do has an effect."""
    for process in world.live():
        process.die()
        world.graves.append(process)
    world.client_loop.kill()
    if world.autopsy:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # coroutines that will never run
        world.graves.clear()
        gc.collect()
    _buried.append(world.seed)
