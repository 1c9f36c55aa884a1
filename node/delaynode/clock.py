"""The node's clock: wall time that does not jump ahead.

On Linux the boot clock is slewed together with the wall clock, and counts suspended time too. So the difference of
the two, the offset, changes only when the wall clock is set. That difference is all that is watched here:

    wall clock  =  boot clock + offset            offset: believed, until the wall clock says another one
    a step ahead within the allowance             followed
    a step ahead beyond it                        not believed: time goes on by the boot clock, until accept(),
                                                  or until the wall clock comes back
    a step back                                   followed: watermarks pause until time has caught up
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

MAX_CLOCK_SKEW_MS = 1_000
ROUNDING_MS = 1  # two readings in whole ms differ by so much without any step
ALLOWANCE_PPM = 500
"""How fast small steps may add up: the largest frequency error that the kernel corrects (adjtimex, MAXFREQ)."""


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def wall_part_s() -> float:
    """Seconds since wall_ms() last changed, below 0.001."""
    return time.time_ns() % 1_000_000 / 1_000_000_000


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def boot_ms() -> int:
    """CLOCK_BOOTTIME: steady, and counts suspended time too."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


@dataclass(frozen=True, slots=True)
class Trust:
    """The accepted offset of the wall clock; it holds until the machine boots again.

    offset_ms: wall clock minus boot clock. spent_ms: steps ahead that were followed, as of `boot_ms`.
    """

    offset_ms: int
    spent_ms: int
    boot_ms: int


class GuardedClock:
    """Wall time, guarded by the boot clock. Safe to use from several threads.

    Steps ahead of together at most `max_skew_ms` are followed, and 500 ppm (1.8 s an hour) of them besides: many small
    ones must not add up to what one large one is refused.
    """

    def __init__(
        self,
        wall: Callable[[], int] = wall_ms,
        boot: Callable[[], int] = boot_ms,
        max_skew_ms: int = MAX_CLOCK_SKEW_MS,
        trust: Trust | None = None,
    ) -> None:
        """trust: of a process before, in the same boot; without it the wall clock is believed as it stands."""
        self._wall, self._boot = wall, boot
        self._max_skew_ms = max_skew_ms
        self._lock = threading.Lock()
        self._trust = trust or self._seen()
        self.disbelieved_ms = 0
        """How far ahead of now_ms() the wall clock was at the last look, where that is not believed."""

    def _seen(self) -> Trust:
        boot = self._boot()
        return Trust(self._wall() - boot, 0, boot)

    @property
    def trust(self) -> Trust:
        return self._trust

    def now_ms(self) -> int:
        """Milliseconds since 1970 UTC."""
        before, wall = self._boot(), self._wall()
        if -ROUNDING_MS <= wall - before - self._trust.offset_ms <= ROUNDING_MS and not self.disbelieved_ms:
            return wall  # whatever another reading of the boot clock said: no step
        with self._lock:
            before = self._boot()
            wall = self._wall()
            after = self._boot()
            # The thread may have been held up between the readings: only what they leave no doubt of is a step.
            ahead, behind = wall - after - self._trust.offset_ms, self._trust.offset_ms - (wall - before)
            self.disbelieved_ms = 0
            if ahead > ROUNDING_MS:
                spent = self._spent_ms(after) + ahead
                if spent > self._max_skew_ms:
                    self.disbelieved_ms = ahead
                    return after + self._trust.offset_ms
                self._trust = Trust(self._trust.offset_ms + ahead, spent, after)
            elif behind > ROUNDING_MS:
                spent = max(0, self._spent_ms(after) - behind)  # there and back again is not a step ahead
                self._trust = Trust(self._trust.offset_ms - behind, spent, after)
            return wall

    def _spent_ms(self, boot: int) -> int:
        return max(0, self._trust.spent_ms - (boot - self._trust.boot_ms) * ALLOWANCE_PPM // 1_000_000)

    def accept(self) -> int:
        """Believe the wall clock as it stands; returns by how many ms now_ms() moves ahead."""
        with self._lock:
            former, self._trust = self._trust, self._seen()
            self.disbelieved_ms = 0
            return self._trust.offset_ms - former.offset_ms
