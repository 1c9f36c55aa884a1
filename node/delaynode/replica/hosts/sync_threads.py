"""Sync rounds: dirty shards' logs are written and flushed together by a few threads, then their callers answered."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final, Protocol

from delaynode.store.log.commit_log import WriteBatch

SHORT_S: Final = 0.002
"""A round should take so long: what takes longer is shared among threads, what takes less waits for the one before."""
STUCK_S: Final = 0.01
"""A round under way for longer waits for the disk, and others don't wait for it."""
SMALL_BYTES: Final = 64 << 10
"""Batches up to here take as long as any: it is the sync that takes the time."""
BYTES_PER_S: Final = 1e9
SAMPLES: Final = 32


class Writer(Protocol):
    """A shard's host, as the syncer sees it."""

    def next_batch(self) -> WriteBatch | None: ...

    def on_written(self, batch: WriteBatch) -> None:
        """The batch is on disk (or, with Async, in the page cache)."""

    def on_write_failed(self, error: Exception) -> None: ...


@dataclass(eq=False, slots=True)
class SyncRound:
    """What one thread writes and syncs, one batch after the other."""

    batches: list[tuple[Writer, WriteBatch]]
    began_s: float  # time.monotonic()
    expected_s: float  # so long it should take
    quickest_s: float = math.inf  # its quickest small batch took; set by the thread


class DirectWrites(Protocol):
    """Compiled code that writes and syncs beside the interpreter: delayedge.Writes."""

    def fileno(self) -> int: ...

    def submit(self, token: int, descriptor: int, data: bytes) -> None: ...

    def take(self) -> list[tuple[int, int, int, float]]: ...

    def close(self) -> None: ...


@dataclass(slots=True)  # not frozen: one is made for each message, see docs/benchmarks.md
class DirectBatch:
    """A batch that compiled code writes."""

    writer: Writer
    batch: WriteBatch
    began_s: float  # time.monotonic()


class _Turn(AbstractContextManager[None]):
    """One for all turns; as a generator it would cost three times as much."""

    def __init__(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        self._begin, self._end = begin, end

    def __enter__(self) -> None:
        self._begin()

    def __exit__(self, *_: object) -> None:
        self._end()


class Syncer:
    """At most `lanes` rounds run at once; what becomes dirty meanwhile shares the next one (group commit).

    Each thread more takes the interpreter's lock from the event loop twice a file, so a second round starts only where
    it saves time: where syncs take long, or batches are large. On a disk that syncs in 0.1 ms, one thread stores 1.4
    times as many small requests as four; on one that takes 5 ms, four threads work at once.

    Threads of its own rather than an executor: a round costs one wake-up there and one here, and there are thousands
    a second.

    direct: small batches go to it, each at once and by itself; they cost no thread here anything. The rounds then have
    what it can't take: large batches, and those that begin a segment.
    """

    def __init__(self, lanes: int = 4, direct: DirectWrites | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._direct = direct
        self._directs: dict[int, DirectBatch] = {}  # under way, by token, the oldest first
        self._token = 0
        if direct is not None:
            self._loop.add_reader(direct.fileno(), self._look)
        self._work: SimpleQueue[SyncRound | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._run_thread, name=f"sync-{n}", daemon=True) for n in range(lanes)]
        self._free = lanes
        self._dirty: dict[Writer, None] = {}  # an ordered set
        self._busy: dict[Writer, float] = {}  # since when, time.monotonic()
        self._rounds: list[SyncRound] = []  # under way
        self._samples: deque[float] = deque(maxlen=SAMPLES)  # seconds of small batches: the quickest is the disk's time
        self._starting = False
        self._later: asyncio.TimerHandle | None = None  # looks whether a round under way is stuck
        self._quiet: asyncio.Future[None] | None = None  # close() waits for it
        self._turn = _Turn(self._begin_turn, self._start)
        for thread in self._threads:
            thread.start()

    def mark(self, writer: Writer) -> bool:
        """The writer has frames to write. Cheap; call it after each proposal. Returns whether its next batch is taken
        in this turn of the event loop or the next, for certain."""
        self._dirty[writer] = None
        if writer in self._busy or not (self._free or self._direct):
            return False
        if not self._starting:
            self._starting = True
            self._loop.call_soon(self._start)  # after this callback: what else it proposes goes along
        return self._direct is not None

    def turn(self, *, many: bool = True) -> AbstractContextManager[None]:
        """What is marked meanwhile is taken at the end, which saves a turn of the event loop.

        many: of many shards. One alone waits for the others of this turn, unless its batch is written by itself anyway.
        """
        if self._starting or not (many or self._direct):  # it is taken in the next turn
            return nullcontext()
        return self._turn

    def _begin_turn(self) -> None:
        self._starting = True

    def busy(self, writer: Writer) -> bool:
        """Whether something of the writer is being written."""
        return writer in self._busy

    def busy_seconds(self, writer: Writer) -> float:
        """How long its round under way has taken so far; 0 when there is none."""
        since = self._busy.get(writer)
        return 0.0 if since is None else time.monotonic() - since

    def oldest_seconds(self) -> float:
        """How long the oldest round under way has taken so far; 0 when there is none."""
        began_s = [one.began_s for one in self._rounds]
        if self._directs:
            began_s.append(next(iter(self._directs.values())).began_s)
        return time.monotonic() - min(began_s) if began_s else 0.0

    def _start(self) -> None:
        self._starting = False
        if self._direct is not None:
            self._start_directs(self._direct)
        elif self._dirty and self._free:
            if self._may_start(len(self._dirty)):
                self._start_rounds()
            else:
                self._later = self._later or self._loop.call_later(STUCK_S, self._look_again)
        self._notify_quiet()

    def _take_batches(self) -> list[tuple[Writer, WriteBatch]]:
        waiting = [writer for writer in self._dirty if writer not in self._busy]
        for writer in waiting:
            del self._dirty[writer]
        return [(writer, batch) for writer in waiting if (batch := _next_batch(writer)) is not None]

    def _start_directs(self, direct: DirectWrites) -> None:
        others = []
        for writer, batch in self._take_batches():
            small = batch.end - batch.start <= SMALL_BYTES
            try:
                write = batch.begin_direct() if small else None
            except Exception as error:  # one shard's trouble must not keep the others' batches from being written
                writer.on_write_failed(error)
                continue
            if write is None:
                others.append((writer, batch))
                continue
            self._token += 1
            self._directs[self._token] = started = DirectBatch(writer, batch, time.monotonic())
            self._busy[writer] = started.began_s
            direct.submit(self._token, *write)
        for one in others:
            self._put([one])  # a thread takes it when one is free

    def _look(self) -> None:
        assert self._direct is not None
        with self.turn():
            for token, write_errno, sync_errno, seconds in self._direct.take():
                ended = self._directs.pop(token)
                self._busy.pop(ended.writer, None)
                self._samples.append(seconds)
                try:
                    ended.batch.end_direct(write_errno, sync_errno)
                    ended.writer.on_written(ended.batch)
                except Exception as error:  # one shard's trouble must not keep the others from their answers
                    ended.writer.on_write_failed(error)

    def _start_rounds(self) -> None:
        batches = self._take_batches()
        lanes = min(self._free, math.ceil(self._expected_s(batches) / SHORT_S))
        share = -(-len(batches) // max(1, lanes))
        while batches:
            self._put(batches[:share])
            batches = batches[share:]

    def _look_again(self) -> None:
        self._later = None
        self._start()

    def _may_start(self, count: int) -> bool:
        """Whether one more round is worth a thread, for `count` writers."""
        now_s = time.monotonic()
        rounds = [one for one in self._rounds if now_s - one.began_s < STUCK_S]
        expected_s = sum(one.expected_s for one in rounds) + count * self._sync_s()
        return len(rounds) < max(1, math.ceil(expected_s / SHORT_S))

    def _sync_s(self) -> float:
        """Seconds that this disk takes for a small batch: of the last ones the quickest, which waited for nothing."""
        return min(self._samples, default=0.0)

    def _expected_s(self, batches: list[tuple[Writer, WriteBatch]]) -> float:
        size = sum(batch.end - batch.start for _, batch in batches)
        return len(batches) * self._sync_s() + size / BYTES_PER_S

    def _put(self, batches: list[tuple[Writer, WriteBatch]]) -> None:
        started = SyncRound(batches, time.monotonic(), self._expected_s(batches))
        self._free -= 1
        self._rounds.append(started)
        self._busy.update(dict.fromkeys((writer for writer, _ in batches), started.began_s))
        self._work.put(started)

    def _run_thread(self) -> None:
        while (taken := self._work.get()) is not None:
            self._loop.call_soon_threadsafe(self._done, taken, _write(taken))
            del taken  # it has requests' bytes, and the next one may be hours away

    def _done(self, done: SyncRound, errors: list[Exception | None]) -> None:
        self._free += 1
        self._rounds.remove(done)
        if done.quickest_s < math.inf:
            self._samples.append(done.quickest_s)
        for writer, _ in done.batches:
            self._busy.pop(writer, None)
        for (writer, batch), failure in zip(done.batches, errors, strict=True):
            if failure is not None:
                writer.on_write_failed(failure)
                continue
            try:
                writer.on_written(batch)
            except Exception as error:  # one shard's trouble must not keep the others from their answers
                writer.on_write_failed(error)
        self._start()

    def _notify_quiet(self) -> None:
        if self._quiet is not None and not self._busy and not self._quiet.done():
            self._quiet.set_result(None)

    async def close(self) -> None:
        """Wait for the rounds under way."""
        while self._busy or self._starting:
            self._quiet = self._loop.create_future()
            await self._quiet
        if self._later is not None:
            self._later.cancel()
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()
        if self._direct is not None:
            self._loop.remove_reader(self._direct.fileno())
            self._direct.close()


def _write(taken: SyncRound) -> list[Exception | None]:
    """What became of each batch; on a thread."""
    errors: list[Exception | None] = []
    for _, batch in taken.batches:
        began_s = time.monotonic()
        try:
            batch.run()
            errors.append(None)
            if batch.end - batch.start <= SMALL_BYTES:
                taken.quickest_s = min(taken.quickest_s, time.monotonic() - began_s)
        except Exception as error:  # whatever went wrong, this copy must not go on: its host decides
            errors.append(error)
    return errors


def _next_batch(writer: Writer) -> WriteBatch | None:
    """One shard's trouble must not keep the others' batches, which are taken already, from being written."""
    try:
        return writer.next_batch()
    except Exception as error:
        writer.on_write_failed(error)
        return None
