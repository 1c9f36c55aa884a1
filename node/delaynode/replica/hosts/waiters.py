"""The lines of those who wait for a shard's messages: the consumers of each group in a line, and readers by offset.

News of a group wakes the first of its line only: of 500 consumers that wait for one message, one gets it. A
consumer that has taken some and left others wakes the next.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from delaynode.store.columns import distinct
from delaynode.store.queue.consume_queue import NEVER, ConsumeQueue
from delaynode.store.queue.consumers import Consumers
from delaynode.store.queue.groups import Group
from delaynode.store.types import Records

Waiters = dict[asyncio.Future[None], float]
"""Who waits, in the order in which they came, and until when, loop.time()."""


@dataclass(slots=True)
class GroupWaiters:
    """A group's consumers, and when its next retry becomes visible."""

    waiters: Waiters = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None
    timer_ms: int = NEVER

    filter: tuple[Group, frozenset[int]] | None = None  # the group's tag hashes

    def accepts(self, group: Group | None, tags: frozenset[int]) -> bool:
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


class WaitQueues:
    """Owned by the event loop. now_ms: the node's clock."""

    def __init__(self, consumers: Consumers, queue: ConsumeQueue, now_ms: Callable[[], int]) -> None:
        self._consumers = consumers
        self._queue = queue
        self._now_ms = now_ms
        self._lines: dict[str, GroupWaiters] = {}
        self._readers: Waiters = {}
        self._loop = asyncio.get_running_loop()
        # Of all who wait: most are woken long before, and a timer for each would cost as much as what wakes them.
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf  # loop.time()

    def __len__(self) -> int:
        return len(self._readers) + sum(len(line.waiters) for line in self._lines.values())

    async def wait_for_group(self, group: str, seconds: float) -> None:
        """Wait until there is something for the group, or it is gone; at most `seconds`."""
        line = self._lines.setdefault(group, GroupWaiters())
        future = self._add(line.waiters, seconds)
        self.wake_first(group)
        try:
            await _wait(future, line.waiters)
        except asyncio.CancelledError:
            self.wake_first(group)  # it may have been woken for a message that somebody else must take now
            raise
        finally:
            self._leave(group, line)

    @contextmanager
    def in_line(self, group: str, future: asyncio.Future[None]) -> Iterator[None]:
        """In the group's line, of which one may stand in several: the first that has something sets the future."""
        line = self._lines.setdefault(group, GroupWaiters())
        line.waiters[future] = math.inf
        self.wake_first(group)
        try:
            yield
        finally:
            line.waiters.pop(future, None)
            self.wake_first(group)  # it may have been told what another's future was set for
            self._leave(group, line)

    def _leave(self, group: str, line: GroupWaiters) -> None:
        if not line.waiters and self._lines.get(group) is line:
            line.disarm()
            del self._lines[group]

    async def wait_for_release(self, seconds: float) -> None:
        """Wait for a release, at most `seconds`."""
        await _wait(self._add(self._readers, seconds), self._readers)

    def _add(self, waiters: Waiters, seconds: float) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        waiters[future] = until = self._loop.time() + seconds
        self._look_at(until)
        return future

    def _look_at(self, until: float) -> None:
        """Look at `until` who has waited long enough."""
        if until < self._timer_at:
            self._disarm()
            self._timer, self._timer_at = self._loop.call_at(until, self._wake_late), until

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, math.inf

    def _wake_late(self) -> None:
        self._disarm()
        now, left = self._loop.time(), math.inf
        for waiters in (self._readers, *(line.waiters for line in self._lines.values())):
            for future, until in list(waiters.items()):
                if until <= now:
                    _wake(future, waiters)
                else:
                    left = min(left, until)
        self._look_at(left)

    def wake_first(self, group: str) -> None:
        """Wake the first of the group's line if there is something for it."""
        line = self._lines.get(group)
        if line is None or not line.waiters:
            return
        found = self._consumers.groups.get(group)
        if found is None:
            _wake_all(line.waiters)
            return
        now = self._now_ms()
        if found.readable(self._queue, now):
            _wake(next(iter(line.waiters)), line.waiters)
            return
        visible = found.next_visible()
        if visible != line.timer_ms:
            line.disarm()
            if visible < NEVER:
                seconds = max(0.001, (visible - now) / 1000)
                line.timer = asyncio.get_running_loop().call_later(seconds, self._on_timer, group, line)
                line.timer_ms = visible

    def _on_timer(self, group: str, line: GroupWaiters) -> None:
        line.disarm()
        self.wake_first(group)

    def wake_all(self) -> None:
        """Something became visible."""
        _wake_all(self._readers)
        for group in list(self._lines):
            self.wake_first(group)

    def on_released(self, rows: Iterable[Records]) -> None:
        """These became visible, rows of dtype QUEUED. A group whose filter leaves them out is not looked at."""
        if not self._lines and not self._readers:
            return
        tags = frozenset().union(*(distinct(part["tag"]) for part in rows))
        if not tags:
            return
        _wake_all(self._readers)
        for group, line in list(self._lines.items()):
            if line.accepts(self._consumers.groups.get(group), tags):
                self.wake_first(group)

    def end(self) -> None:
        """Nothing will come any more: all go and see."""
        self._disarm()
        _wake_all(self._readers)
        for line in self._lines.values():
            _wake_all(line.waiters)


def _wake(future: asyncio.Future[None], waiters: Waiters) -> None:
    waiters.pop(future, None)
    if not future.done():
        future.set_result(None)


def _wake_all(waiters: Waiters) -> None:
    for future in list(waiters):
        _wake(future, waiters)


async def _wait(future: asyncio.Future[None], waiters: Waiters) -> None:
    try:
        await future
    finally:
        waiters.pop(future, None)
