"""The pace of a shard's releases under its topic's maxReleasePerSecond: a token bucket. Pure: time is passed in.

What waits here is released only for a token. What was due already when it arrived is an ordinary message, released by
its own APPEND: it passes at once and leaves a debt, at most a second's worth, that is paid back with half of the
tokens to come. So what waits keeps at least half of the rate, however many ordinary messages are sent past it.
"""

from __future__ import annotations

import numpy as np

from delaynode.store.types import I64

BURST_MS = 100  # what an idle shard may release at once
CHUNK_MS = 20  # a shard behind its cap releases so much at a time: a tick costs a sync
DEBT_MS = 1_000
WHOLE = 1_000  # parts of a token: a rate per second is as many parts per millisecond


def share(rate: int, queues: int, queue: int) -> int:
    """The part of a topic's rate, messages per second, that one of its queues has: they add up to the rate, but no
    queue has less than 1/s."""
    return max(1, rate // queues + (queue < rate % queues))


def paced(due: I64, rate: int, after_ms: I64) -> I64:
    """Of messages that are due by times so long from now, ascending ms (k,), how many are released by then: (k,)."""
    tokens = rate * after_ms // 1000
    released: I64 = tokens + np.minimum(np.minimum.accumulate(due - tokens), 0)
    return released


class RateLimit:
    """rate: messages per second. Starts empty: a restart is no way round the cap."""

    def __init__(self, rate: int, now_ms: int) -> None:
        self.rate = rate
        self._tokens = 0  # parts
        self._debt = 0  # parts
        self._dry = True  # all tokens are spent, and no chunk has come since
        self._at_ms = now_ms

    def changed(self, rate: int, now_ms: int) -> RateLimit:
        """The same bucket with another rate from now on."""
        new = RateLimit(rate, now_ms)
        self._refill(now_ms)
        new._tokens, new._debt = min(self._tokens, new._burst), min(self._debt, new.rate * DEBT_MS)
        new._dry = new._tokens < new._chunk
        return new

    @property
    def _burst(self) -> int:
        return max(WHOLE, self.rate * BURST_MS)

    @property
    def _chunk(self) -> int:
        return max(WHOLE, self.rate * CHUNK_MS)

    def _refill(self, now_ms: int) -> None:
        """A clock that goes back earns nothing and costs nothing."""
        earned = self.rate * (now_ms - self._at_ms)
        if 0 <= earned < 2:
            return  # too little to be halved: it would all go to one side
        self._at_ms = now_ms
        earned = max(0, earned)
        paid = min(self._debt, earned // 2)
        tokens = self._tokens + earned - paid
        over = max(0, tokens - self._burst)
        self._debt = max(0, self._debt - paid - over)
        self._tokens = tokens - over
        self._dry = self._dry and self._tokens < self._chunk

    def available(self, now_ms: int) -> int:
        """How many messages may be released now."""
        self._refill(now_ms)
        return self._tokens // WHOLE

    def spend(self, messages: int) -> None:
        """Released for tokens: at most as many as were available."""
        self._tokens -= messages * WHOLE
        self._dry = self._tokens < WHOLE

    def owe(self, messages: int, now_ms: int) -> None:
        """Released without asking."""
        self._refill(now_ms)
        self._debt = min(self._debt + messages * WHOLE, self.rate * DEBT_MS)

    def ready_ms(self, now_ms: int) -> int:
        """When something may be released, ms: now while tokens are left, else when a chunk of them has come."""
        self._refill(now_ms)
        if not self._dry:
            return now_ms
        missing = self._chunk - self._tokens
        return now_ms + max(1, -(-(missing + min(self._debt, missing)) // self.rate))
