"""What one process of a sink counts: its metrics, and its state in a word."""

from __future__ import annotations

import time
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Enum, Histogram

from delaysink.outcome import Verdict

STATES: Final = (
    "Starting", "Delivering", "Paused", "CircuitOpen", "Gone", "SecretUnusable", "NotReachable", "ClusterRefuses",
)  # fmt: skip
_ATTEMPT_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_LATE_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 600, 3_600, 86_400)


class SinkFigures:
    """Owned by the event loop."""

    def __init__(self, sink: str) -> None:
        self.registry = CollectorRegistry()
        self.state, self.message, self.since_ms = STATES[0], "", int(time.time() * 1_000)
        self._counts = dict.fromkeys(Verdict, 0)
        self._dead_count = 0
        self._attempts = Counter(
            "delay_sink_attempts", "Attempts to deliver.", ("sink", "verdict"), registry=self.registry
        )
        self._seconds = Histogram(
            "delay_sink_attempt_seconds", "How long attempts took.", ("sink",), buckets=_ATTEMPT_BUCKETS,
            registry=self.registry,
        ).labels(sink)  # fmt: skip
        self._late = Histogram(
            "delay_sink_late_seconds", "From a message's due time to the receiver's 2xx.", ("sink",),
            buckets=_LATE_BUCKETS, registry=self.registry,
        ).labels(sink)  # fmt: skip
        self._dead_letters = Counter(
            "delay_sink_dead_letters", "Messages that were given up.", ("sink",), registry=self.registry
        ).labels(sink)
        self._by_verdict = {it: self._attempts.labels(sink, str(it)) for it in Verdict}
        self._state = Enum(
            "delay_sink_state", "What the sink does.", ("sink",), states=list(STATES), registry=self.registry
        ).labels(sink)

    def say(self, state: str, message: str) -> bool:
        """Whether that is news."""
        if (state, message) == (self.state, self.message):
            return False
        self.state, self.message, self.since_ms = state, message, int(time.time() * 1_000)
        self._state.state(state)
        return True

    def count(self, verdict: Verdict, seconds: float = 0.0) -> None:
        self._counts[verdict] += 1
        self._by_verdict[verdict].inc()
        self._seconds.observe(seconds)

    def late(self, seconds: float) -> None:
        self._late.observe(seconds)

    def dead(self) -> None:
        self._dead_count += 1
        self._dead_letters.inc()

    def counts(self) -> dict[str, int]:
        failed = sum(self._counts[it] for it in Verdict) - self._counts[Verdict.DELIVERED]
        return {"delivered": self._counts[Verdict.DELIVERED], "failed": failed, "dead": self._dead_count}
