"""What people do to a cluster's objects, and the command with which they mend it."""

from __future__ import annotations

from delayctl.targets.errors import TargetRefused
from delayctl.targets.registry import RegistryEditor
from delayregistry.model import ShardObject

from tests.simulation.support.control import SimProber
from tests.simulation.support.machine.loop import Job, in_job
from tests.simulation.support.registry import Access, Weather
from tests.simulation.support.stage import HEALTHY_SECONDS, Run

ADOPT_SECONDS = 2.0  # between two tries
TRIES = 5  # where a node gave no answer


class People(RegistryEditor):
    """A person with a shell, whom the registry and every node answer."""

    def __init__(self, run: Run) -> None:
        rng = run.world.random(f"people {run.world.scheduler.now_ns}")
        access = Access(run.world.truth, Weather(lag_ns=0), rng, lambda event, **fields: None)
        super().__init__(access, SimProber(run.world, rng))

    def drain(self, node: str, *, undo: bool) -> None:
        raise NotImplementedError

    def restart(self) -> None:
        raise NotImplementedError


def adopt(run: Run) -> list[str]:
    """Run `delayctl adopt` by its own code, again where a node gave no answer; returns the reasons that it gave."""
    for _ in range(TRIES):
        try:
            return _adopt(run)
        except TargetRefused as refused:
            if "gives no answer" not in str(refused):
                raise
            run.world.run(0.5)
    return _adopt(run)


def _adopt(run: Run) -> list[str]:
    people = People(run)

    def work() -> list[str]:
        found = people.adoptions()
        for one in found:
            people.adopt(one)
        return [one.reason for one in found]

    reasons, error = in_job(run.world.scheduler, Job(run.world.scheduler.now_ns), work)
    if error is not None:
        raise error
    for reason in reasons:
        run.world.trace.add("people", "adopt", reason=reason)
    return list(reasons)


def restore(run: Run, older: tuple[ShardObject, ...]) -> None:
    """Restore these objects from an older state of the registry, and run `delayctl adopt` until all is well."""
    world = run.world
    world.run_until(run.healthy, HEALTHY_SECONDS, lambda: f"healthy before an older state is restored: {run.ailing()}")
    for shard in older:
        world.truth.restore(shard)
    world.trace.add("people", "restore", epochs={shard.name: shard.spec.epoch for shard in older})
    end_ns = world.scheduler.now_ns + int(HEALTHY_SECONDS * 1e9)
    world.run(ADOPT_SECONDS)
    while not run.healthy() and world.scheduler.now_ns < end_ns:
        try:
            adopt(run)
        except TargetRefused as refused:
            world.trace.add("people", "adopt-refused", reason=refused)
        world.run(ADOPT_SECONDS)
