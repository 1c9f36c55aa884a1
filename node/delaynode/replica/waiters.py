"""Who waits for a shard's messages: the consumers of each group in a line, and readers by offset.

News of a group wakes the first of its line only: of 500 consumers that wait for one message, one gets it. Who has
taken some and left others wakes the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from delaynode.store.queue.consume_queue import ConsumeQueue
from delaynode.store.queue.consumers import Consumers
from delaynode.store.queue.dead_letters import NEVER
from delaynode.store.queue.groups import Group
from delaynode.store.types import Records

Places = dict[asyncio.Future[None], None]
"""An ordered set: who waits, in the order in which they came."""


@dataclass(slots=True)
class Line:
    """A group's consumers, and when its next retry becomes visible."""

    places: Places = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None
    timer_ms: int = NEVER

    filter: tuple[Group, frozenset[int]] | None = None  # the group's tag hashes

    def takes(self, group: Group | None, tags: frozenset[int]) -> bool:
        """Whether messages with these tag hashes concern the group."""
        if group is None or not group.tags:
            return True
        if self.filter is None or self.filter[0] is not group:
            self.filter = group, frozenset(group.tag_hashes.tolist())
        return not self.filter[1].isdisjoint(tags)

    def disarm(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer, self.timer_ms = None, NEVER


class Waiting:
    """Owned by the event loop. now_ms: the node's clock."""

    def __init__(self, consumers: Consumers, queue: ConsumeQueue, now_ms: Callable[[], int]) -> None:
        self._consumers = consumers
        self._queue = queue
        self._now_ms = now_ms
        self._lines: dict[str, Line] = {}
        self._readers: Places = {}

    def __len__(self) -> int:
        return len(self._readers) + sum(len(line.places) for line in self._lines.values())

    async def consumer(self, group: str, seconds: float) -> None:
        """Wait until there is something for the group, or it is gone; at most `seconds`."""
        line = self._lines.setdefault(group, Line())
        future = _place(line.places)
        self.look(group)
        try:
            await _within(future, line.places, seconds)
        except asyncio.CancelledError:
            self.look(group)  # it may have been woken for a message that somebody else must take now
            raise
        finally:
            if not line.places and self._lines.get(group) is line:
                line.disarm()
                del self._lines[group]

    async def reader(self, seconds: float) -> None:
        """Wait for a release, at most `seconds`."""
        await _within(_place(self._readers), self._readers, seconds)

    def look(self, group: str) -> None:
        """Wake the first of the group's line if there is something for it."""
        line = self._lines.get(group)
        if line is None or not line.places:
            return
        found = self._consumers.groups.get(group)
        if found is None:
            _wake_all(line.places)
            return
        now = self._now_ms()
        if found.readable(self._queue, now):
            _wake(next(iter(line.places)), line.places)
            return
        visible = found.next_visible()
        if visible != line.timer_ms:
            line.disarm()
            if visible < NEVER:
                seconds = max(0.001, (visible - now) / 1000)
                line.timer = asyncio.get_running_loop().call_later(seconds, self._ring, group, line)
                line.timer_ms = visible

    def _ring(self, group: str, line: Line) -> None:
        line.disarm()
        self.look(group)

    def tell(self) -> None:
        """Something became visible."""
        _wake_all(self._readers)
        for group in list(self._lines):
            self.look(group)

    def released(self, rows: Iterable[Records]) -> None:
        """These became visible, rows of dtype QUEUED. A group whose filter leaves them out is not looked at."""
        if not self._lines and not self._readers:
            return
        tags = frozenset(tag for part in rows for tag in np.unique(part["tag"]).tolist())
        if not tags:
            return
        _wake_all(self._readers)
        for group, line in list(self._lines.items()):
            if line.takes(self._consumers.groups.get(group), tags):
                self.look(group)

    def end(self) -> None:
        """Nothing will come any more: all go and see."""
        _wake_all(self._readers)
        for line in self._lines.values():
            _wake_all(line.places)


def _place(places: Places) -> asyncio.Future[None]:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    places[future] = None
    return future


def _wake(future: asyncio.Future[None], places: Places) -> None:
    places.pop(future, None)
    if not future.done():
        future.set_result(None)


def _wake_all(places: Places) -> None:
    for future in list(places):
        _wake(future, places)


async def _within(future: asyncio.Future[None], places: Places, seconds: float) -> None:
    timer = asyncio.get_running_loop().call_later(seconds, _wake, future, places)
    try:
        await future
    finally:
        timer.cancel()
        places.pop(future, None)
