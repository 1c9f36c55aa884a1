"""The tools that attacks are written with, and the list of attacks."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.support.stage import Run

Attack = Callable[[int], None]
ATTACKS: dict[str, Attack] = {}


def attack(schedule: Attack) -> Attack:
    ATTACKS[schedule.__name__] = schedule
    return schedule


def shrink(run: Run, slave: str) -> None:
    """Kill the slave, and wait until it is out of the in-sync set."""
    run.world.kill(slave)
    run.until(lambda: len(run.status().in_sync) == 1, 10, "the dead slave is out of the in-sync set")
    run.world.run(0.5)
