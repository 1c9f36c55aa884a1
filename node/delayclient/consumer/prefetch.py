"""How many messages a consumer holds before it is asked for them. Pure: time is passed in.

Too few and the consumer waits for the network; too many and their invisible time runs out unseen, they go to another
consumer and lose an attempt. So as many as are taken in a second, by the rate of the last batches, are fetched ahead.
"""

from __future__ import annotations

from typing import Final

_FIRST: Final = 32
_GROWTH: Final = 16
_AHEAD_S: Final = 1.0


class Prefetch:
    """The number of messages to hold, for a consumer of some queues."""

    def __init__(self, max_messages: int, invisible_s: float) -> None:
        """max_messages: it never holds more than about this many."""
        self.held = 0
        self._max_messages = max(1, max_messages)
        self._limit = min(_FIRST, self._max_messages)
        # A share of the invisible time, so that a consumer that slows down still has time for what it holds.
        self._ahead_s = min(_AHEAD_S, invisible_s / 8)

    def request_size(self, queues: int) -> int:
        """How many to ask a queue for now; 0: wait until some are taken."""
        if self.held * 2 > self._limit:
            return 0
        return max(1, self._limit // max(1, queues))

    def arrived(self, count: int) -> None:
        """Messages came."""
        self.held += count

    def taken(self, count: int) -> None:
        """Messages left."""
        self.held -= count

    def measured(self, count: int, seconds: float) -> None:
        """`count` messages were worked through in `seconds`."""
        target = count / seconds * self._ahead_s if seconds > 0 else self._max_messages
        self._limit = max(1, int(min(target, self._limit * _GROWTH, self._max_messages)))

    def expired(self) -> None:
        """A held message was too old to be handed on."""
        self._limit = max(1, self._limit // 2)
