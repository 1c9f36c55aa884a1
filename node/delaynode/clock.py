"""The node's clock: wall time that does not jump ahead."""

from __future__ import annotations

import time
from collections.abc import Callable

MAX_CLOCK_SKEW_MS = 1_000


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def boot_ms() -> int:
    """CLOCK_BOOTTIME: steady, and counts suspended time too."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class GuardedClock:
    """Wall time, guarded by the boot clock.

    A step forward of more than `max_skew_ms` is not believed: time goes on as the boot clock says, so nothing is
    released early. A step backward is followed: the watermark pauses until time has caught up.
    """

    def __init__(
        self,
        wall: Callable[[], int] = wall_ms,
        boot: Callable[[], int] = boot_ms,
        max_skew_ms: int = MAX_CLOCK_SKEW_MS,
    ) -> None:
        self._wall, self._boot = wall, boot
        self._max_skew_ms = max_skew_ms
        self._wall_at, self._boot_at = wall(), boot()
        self.disbelieved_ms = 0  # how far ahead the wall clock is of what now_ms() says

    def now_ms(self) -> int:
        """Milliseconds since 1970 UTC."""
        wall, boot = self._wall(), self._boot()
        expected = self._wall_at + boot - self._boot_at
        ahead = wall - expected
        if ahead > self._max_skew_ms:
            self.disbelieved_ms = ahead
            return expected
        self.disbelieved_ms = 0
        if ahead >= -self._max_skew_ms:  # ordinary slewing
            self._wall_at, self._boot_at = wall, boot
        return wall
