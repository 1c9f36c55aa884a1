"""CatchingUp: the budget for frames that are read from files and sent to a node that is behind.

A node that was away is behind in all of its shards at once, and what it is sent is memory there until it is stored:
WINDOW_BYTES for each of a thousand shards would be 32 GiB. So all shards that one process leads draw from one budget
for each other node, and an acknowledgement gives back what is stored. A shard with nothing on its way always gets
LEAST_BYTES. Frames of a slave that is up to date are not drawn: they are bounded by what clients may send in.
"""

from __future__ import annotations

from collections.abc import Callable

LIMIT_BYTES = 64 << 20  # for each other node
MIN_BYTES = 256 << 10


class CatchUpBudget:
    """Owned by the event loop."""

    def __init__(self, limit: int = LIMIT_BYTES) -> None:
        self.limit = limit
        self._used: dict[str, int] = {}
        self._waiting: dict[str, dict[int, Callable[[], None]]] = {}  # node -> shard uid -> what to call, in order

    def used(self, node: str) -> int:
        """Bytes on their way to the node, or about to be read for it."""
        return self._used.get(node, 0)

    def has_room(self, node: str, size: int) -> bool:
        return self.used(node) + size <= self.limit

    def acquire(self, node: str, size: int) -> None:
        """Also where there is no room: the least is for everybody, and a frame may be larger than what was asked."""
        self._used[node] = self.used(node) + size

    def wait(self, node: str, uid: int, call: Callable[[], None]) -> None:
        """Call it once when something was given back."""
        self._waiting.setdefault(node, {}).setdefault(uid, call)

    def release(self, node: str, size: int) -> None:
        """So many bytes are stored there, or lost on their way."""
        if size:
            self._used[node] = self.used(node) - size
            waiting = self._waiting.get(node, {})
            for uid in list(waiting):
                if self.used(node) >= self.limit:
                    break
                call = waiting.pop(uid, None)
                if call is not None:
                    call()
