"""A machine's clock as a node's process judges it: by the product's own code, with the trust kept in the machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from delaynode.clock import GuardedClock
from delaynode.node.clock_watch import ClockWatch

if TYPE_CHECKING:
    from tests.simulation.support.machine.process import Machine


class MachineClock(ClockWatch):
    """Keeps its trust in the clock where the next process of the same boot finds it."""

    def __init__(self, machine: Machine, log: Callable[..., None]) -> None:
        self._machine, clocks = machine, machine.clocks
        super().__init__(
            "", log, make=lambda _: GuardedClock(clocks.wall_ms, clocks.boot_ms, trust=machine.trust),
            steady=clocks.monotonic,
        )  # fmt: skip

    def save(self) -> None:
        self._machine.trust = self._saved = self.clock.trust
