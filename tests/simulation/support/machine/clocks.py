"""Clocks of a machine: a wall clock that is off, drifts and is set; a boot clock that only drifts, and starts anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.simulation.support.machine.loop import MILLI, SECOND

EPOCH_NS = 1_790_000_000 * SECOND + 123 * MILLI  # the wall time at which a run begins: in 2026


@dataclass
class MachineClocks:
    """time_ns: true time. drift: by how much this machine's second is too short, both clocks (they are one crystal)."""

    time_ns: Callable[[], int]
    drift: float = 0.0
    offset_ns: int = 0  # the wall clock's error
    boots: int = 0
    _booted_ns: int = field(default=-7 * SECOND)
    _set_ms: int = 0  # the sum of all steps
    _boot: tuple[int, int] = (-1, 0)  # (true time ns, boot_ms() then): code asks many times at one instant

    def boot_ms(self) -> int:
        """CLOCK_BOOTTIME."""
        now = self.time_ns()
        at, found = self._boot
        if now != at:
            found = int((now - self._booted_ns) * (1.0 + self.drift)) // MILLI
            self._boot = now, found
        return found

    def wall_ms(self) -> int:
        now = self.time_ns()
        return (EPOCH_NS + now + int(now * self.drift) + self.offset_ns) // MILLI

    def monotonic(self) -> float:
        """CLOCK_MONOTONIC, s."""
        return (self.time_ns() - self._booted_ns) * (1.0 + self.drift) / SECOND

    def step(self, by_ms: int) -> None:
        """A person, or a time service, sets the wall clock."""
        self.offset_ns += by_ms * MILLI
        self._set_ms += by_ms

    def correct(self) -> None:
        """The wall clock's steps are taken back."""
        if self._set_ms:
            self.step(-self._set_ms)

    def reboot(self) -> None:
        """The boot clock starts anew. The machine sets its wall clock from a time server before anything else runs."""
        self.boots += 1
        self._booted_ns, self._boot = self.time_ns(), (-1, 0)
        self.correct()

    @property
    def boot_id(self) -> str:
        return f"boot{self.boots}"


def true_ms(time_ns: int) -> int:
    """The wall time that a perfect clock shows."""
    return (EPOCH_NS + time_ns) // MILLI
