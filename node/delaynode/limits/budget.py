"""The bytes that clients may make the node hold: a budget for the node, and a part of it for each connection.

gRPC itself bounds nothing here: it takes a whole message into memory before a handler sees it, and an answer stays in
memory until the client reads it. So a call reads its request through the ReadingGate, a batch counts in the budget for
what comes in until it is committed, and an answer in the budget for what goes out until the client has taken it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from delayapi.units import format_bytes

from delaynode.store.errors import Refused

SMALL_ANSWER_BYTES = 4 << 10  # not counted: cheaper, and there are at most so many calls
ANSWER_COPIES = 2  # while a client does not read, Python's and gRPC's
WAIT_SECONDS = 1.0  # for room that does not come: then some client does not read
AGAIN_SECONDS = 0.5  # between two looks for those to be given up
UNREAD_SECONDS = 3.0  # an answer that has waited for so long may be given up for those of others
FIRST_ANSWER_BYTES = 256 << 10  # to a new connection; each answer that it reads doubles the next one
MANY_PEERS = 20_000
SOON_SECONDS = 0.5  # a unary call is refused when there is no room for it by then
BUSY_RETRY_MS = 20
READERS = 8  # calls that receive a large request at once
SLOW_READERS = 24
SLOW_SECONDS = 1.0  # a request that takes longer has a slow client, which must not keep others out
TOO_SLOW_SECONDS = 10.0  # nor other slow ones
SLOW_RETRY_MS = 1_000


@dataclass(slots=True, eq=False)
class Hold:
    """Bytes held for a connection."""

    peer: str
    size: int
    since: float  # time.monotonic()


class Budget:
    """Bytes held for the node, at most `limit`, and for each connection, at most `limit_per_peer`; one alone may be
    larger.

    give_up: called with the connections that keep others waiting and do not read their answers; the callee cuts them.
    """

    def __init__(
        self, what: str, limit: int, limit_per_peer: int, give_up: Callable[[set[str]], None] | None = None
    ) -> None:
        self.limit, self.limit_per_peer = limit, limit_per_peer
        self.used = 0
        self._what = what
        self._give_up = give_up
        self._reads: dict[str, int] = {}  # per connection: the largest answer it has shown that it reads, doubled
        self._gave_up_at = 0.0  # time.monotonic()
        self._holds: dict[Hold, None] = {}  # an ordered set, oldest first
        self._by_peer: dict[str, int] = {}
        self._waiting: dict[asyncio.Future[Hold], tuple[str, int]] = {}  # in the order in which they came

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def window(self, peer: str) -> int:
        """How many bytes of messages to give a connection in an answer: it must show first that it reads."""
        return self._reads.get(peer, FIRST_ANSWER_BYTES)

    def has_read(self, peer: str, size: int) -> None:
        """The connection took an answer of `size` bytes."""
        if 2 * size > self.window(peer):
            if len(self._reads) >= MANY_PEERS:  # of most the connections are long closed; the others begin anew
                self._reads.clear()
            self._reads[peer] = min(2 * size, self.limit_per_peer)

    def _fits_node(self, size: int) -> bool:
        return not self.used or self.used + size <= self.limit

    def _fits_peer(self, peer: str, size: int) -> bool:
        mine = self._by_peer.get(peer, 0)
        return not mine or mine + size <= self.limit_per_peer

    def _has_room(self, peer: str, size: int) -> bool:
        return not self._waiting and self._fits_node(size) and self._fits_peer(peer, size)

    def _acquire(self, peer: str, size: int) -> Hold:
        hold = Hold(peer, size, time.monotonic())
        self._holds[hold] = None
        self.used += size
        self._by_peer[peer] = self._by_peer.get(peer, 0) + size
        return hold

    async def acquire_soon(self, peer: str, size: int) -> Hold:
        """acquire() for a caller that should not wait for long. Raises Refused BUSY."""
        if self._has_room(peer, size):  # without a timer, which costs more than all else here
            return self._acquire(peer, size)
        try:
            async with asyncio.timeout(SOON_SECONDS):
                return await self.acquire(peer, size)
        except TimeoutError:
            fits_node, fits_peer = self._fits_node(size), self._fits_peer(peer, size)
            where, used, limit = "in this node", self.used, self.limit
            if fits_node and not fits_peer:
                where, used, limit = "for this connection", self._by_peer.get(peer, 0), self.limit_per_peer
            others = "; requests that came before this one wait for room" if fits_node and fits_peer else ""
            raise Refused(
                "BUSY",
                f"{used:,} bytes {self._what} {where}, the limit is {format_bytes(limit)}{others}",
                retry_after_ms=BUSY_RETRY_MS,
            ) from None

    async def acquire(self, peer: str, size: int) -> Hold:
        """Waits for room. A caller that waits only for its own connection's part keeps no other waiting."""
        if self._has_room(peer, size):
            return self._acquire(peer, size)
        future: asyncio.Future[Hold] = asyncio.get_running_loop().create_future()
        self._waiting[future] = (peer, size)
        self._serve()
        try:
            while not future.done():
                await asyncio.wait([future], timeout=WAIT_SECONDS)
                if not future.done():
                    self._relieve(size)
            return future.result()
        except asyncio.CancelledError:
            if future.done():
                self.release(future.result())
            raise
        finally:
            self._waiting.pop(future, None)

    def release(self, hold: Hold) -> None:
        """Once for each hold."""
        del self._holds[hold]
        self.used -= hold.size
        left = self._by_peer.pop(hold.peer, 0) - hold.size  # of an empty request nothing may be there
        if left:
            self._by_peer[hold.peer] = left
        if self._waiting:
            self._serve()

    def _serve(self) -> None:
        for future, (peer, size) in list(self._waiting.items()):
            if not self._fits_node(size):
                return
            if self._fits_peer(peer, size):
                del self._waiting[future]
                if not future.done():
                    future.set_result(self._acquire(peer, size))

    def _relieve(self, size: int) -> None:
        if self._give_up is None or self._fits_node(size):
            return
        now = time.monotonic()
        if now - self._gave_up_at < AGAIN_SECONDS:
            return
        self._gave_up_at = now
        unread = {hold.peer for hold in self._holds if now - hold.since > UNREAD_SECONDS}
        if unread:
            self._give_up(unread)


class AnsweredCall(Protocol):
    def peer(self) -> str: ...

    def on_done(self, done: Callable[[], None]) -> None: ...


class Answers:
    """The bytes that the answers of one call hold in the budget for answers."""

    def __init__(self, budget: Budget, call: AnsweredCall) -> None:
        self._budget = budget
        self._call = call
        self._holds: list[Hold] = []

    @property
    def window(self) -> int:
        """How many bytes of messages the answer should have at most."""
        return self._budget.window(self._call.peer())

    @property
    def counted(self) -> bool:
        """Room was taken, and not given back."""
        return bool(self._holds)

    async def reserve(self, size: int) -> None:
        """Wait for room for an answer of about `size` bytes. Call it before they are in memory."""
        if size > SMALL_ANSWER_BYTES:
            self._holds.append(await self._budget.acquire(self._call.peer(), size * ANSWER_COPIES))

    def sent(self) -> None:
        """gRPC holds no answer of this call any more."""
        for hold in self.dropped():
            self._budget.has_read(hold.peer, hold.size // ANSWER_COPIES)

    def dropped(self) -> list[Hold]:
        """Give the room back without an answer, so that the client's window does not grow. Returns what was held."""
        holds, self._holds = self._holds, []
        for hold in holds:
            self._budget.release(hold)
        return holds

    def sent_when_done(self) -> None:
        """The last answer is on its way: it is sent when the call is over."""
        if self._holds:
            self._call.on_done(self.sent)


@dataclass(slots=True, eq=False)
class _Reading:
    """A call that receives its request, in this task."""

    task: asyncio.Task[Any]
    cancelling: int  # of the task, when it began
    since: float  # time.monotonic()
    refused: bool = False  # cancelled to make room, not by its caller


class ReadingGate:
    """Lets few calls at a time receive their request: until then gRPC takes no more of it than a stream's window.

    What is small passes in a microsecond: it takes no task and no timer. A slow call leaves its place to others after
    SLOW_SECONDS and reads on among the slow ones; where these are too many, the one that has taken longest is refused.
    """

    def __init__(self, permits: int = READERS, slow_permits: int = SLOW_READERS) -> None:
        self._permits = asyncio.Semaphore(permits)
        self._slow_permits = slow_permits
        self._reading: dict[_Reading, None] = {}  # with a permit; an ordered set, as the next one, oldest first
        self._slow: dict[_Reading, None] = {}
        self._look: asyncio.TimerHandle | None = None

    async def read(self, read: Callable[[], Awaitable[Any]]) -> Any:
        """Awaits `read` and returns its result. Raises Refused BUSY."""
        await self._permits.acquire()
        task = asyncio.current_task()
        assert task is not None
        one = _Reading(task, task.cancelling(), time.monotonic())
        self._reading[one] = None
        if self._look is None:
            self._look_later()
        try:
            return await read()
        except asyncio.CancelledError:
            if not one.refused or task.uncancel() > one.cancelling:
                raise
            seconds = int(time.monotonic() - one.since)
            raise Refused(
                "BUSY", f"the request was not here after {seconds} s, and others wait", retry_after_ms=SLOW_RETRY_MS
            ) from None
        finally:
            if one in self._reading:
                del self._reading[one]
                self._permits.release()
            self._slow.pop(one, None)

    def _look_later(self) -> None:
        self._look = asyncio.get_running_loop().call_later(SLOW_SECONDS / 4, self._part_with_slow)

    def _part_with_slow(self) -> None:
        self._look = None
        now = time.monotonic()
        for one in list(self._reading):
            if now - one.since < SLOW_SECONDS or not self._room_for_slow(now):
                break
            del self._reading[one]
            self._slow[one] = None
            self._permits.release()
        if self._reading:
            self._look_later()

    def _room_for_slow(self, now: float) -> bool:
        """Makes room, where a client has been slow for too long."""
        if len(self._slow) >= self._slow_permits:
            oldest = next(iter(self._slow))
            if now - oldest.since < TOO_SLOW_SECONDS:
                return False
            del self._slow[oldest]
            oldest.refused = True
            oldest.task.cancel()
        return True
