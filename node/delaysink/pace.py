"""How many deliveries to one receiver go on at once, and when there is to be none. Pure: time is passed in.

           a round of successes: +1           overloaded: half
limit   1 ..................................................... max
circuit closed --FAILURES in a row--> open --its time is over--> one probe --success--> closed, limit 1
                                        ^------------ failure, twice the time ------------|
"""

from __future__ import annotations

from typing import Final

from delaysink.outcome import Verdict

FAILURES: Final = 10
"""In a row: then the circuit opens."""
FIRST_OPEN_S, LONGEST_OPEN_S = 1.0, 60.0
FIRST_LIMIT: Final = 8


class Pace:
    """Of one receiver."""

    def __init__(self, max_concurrency: int) -> None:
        self._max = max_concurrency
        self.limit = min(FIRST_LIMIT, max_concurrency)
        self.in_flight = 0
        self.failures = 0
        self._successes = 0
        self._round = 0
        self._not_before_s = 0.0
        self._open_s = 0.0  # how long the circuit was opened for last; 0: it is closed

    @property
    def is_open(self) -> bool:
        return self._open_s > 0

    @property
    def open_s(self) -> float:
        """How long the circuit was opened for last; 0: it is closed."""
        return self._open_s

    def wait_s(self, now_s: float) -> float | None:
        """0: the next delivery may start. More: look again after that. None: when one of those under way has ended."""
        if self._not_before_s > now_s:
            return self._not_before_s - now_s
        return 0.0 if self.in_flight < (1 if self.is_open else self.limit) else None

    def start(self) -> int:
        """A delivery starts; gives back what ended() wants to know of it."""
        self.in_flight += 1
        return self._round

    def ended(self, started_in: int, verdict: Verdict, now_s: float, retry_after_ms: int | None = None) -> None:
        """A delivery has ended."""
        self.in_flight -= 1
        if verdict in (Verdict.FAILED, Verdict.OVERLOADED):
            self._failed(started_in, verdict is Verdict.OVERLOADED, now_s)
            if retry_after_ms is not None:
                self._not_before_s = max(self._not_before_s, now_s + retry_after_ms / 1_000)
        elif verdict is not Verdict.IMPOSSIBLE:  # there was an answer
            self._answered()

    def _answered(self) -> None:
        self.failures = 0
        if self.is_open:
            self._open_s = 0.0
            self.limit = 1
            self._successes = 0
            return
        self._successes += 1
        if self._successes >= self.limit:
            self._successes = 0
            self.limit = min(self.limit + 1, self._max)

    def _failed(self, started_in: int, overloaded: bool, now_s: float) -> None:
        self.failures += 1
        self._successes = 0
        if overloaded and started_in == self._round:  # once for all that were under way together
            self._round += 1
            self.limit = max(1, self.limit // 2)
        if self.is_open or self.failures >= FAILURES:
            if self._not_before_s <= now_s:  # else it was opened while this one was under way
                self._open_s = min(max(2 * self._open_s, FIRST_OPEN_S), LONGEST_OPEN_S)
            self._not_before_s = max(self._not_before_s, now_s + self._open_s)
