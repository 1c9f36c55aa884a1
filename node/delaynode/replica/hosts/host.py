"""CopyHost: what every copy of a shard needs of its process, whether it leads or follows: its writes, its threads, its
end when it is damaged.

All Shard methods run on the loop's thread; jobs' run() and reads of bodies run in a thread pool.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np

from delaynode.metrics import NodeMetrics
from delaynode.replica.hosts.maintenance import Intervals, Maintenance
from delaynode.replica.hosts.sync_threads import Writer
from delaynode.replica.hosts.waiters import WaitQueues
from delaynode.replication.transport.until import all_done
from delaynode.store.errors import Damaged, Impossible, NewerFormat, Refused, Trimmed
from delaynode.store.log.commit_log import WriteBatch
from delaynode.store.log.files import Files
from delaynode.store.maintenance import marker
from delaynode.store.queue.consume_queue import NEVER, ReleasedRows
from delaynode.store.shard import Shard
from delaynode.store.types import Buffers, Records

MAX_CACHED_ROWS = 16  # bodies that are read at once when they are in the page cache: quicker than a thread's wake-up
DRAIN_SECONDS = 0.002

T = TypeVar("T")


class WallClock(Protocol):
    def now_ms(self) -> int: ...


class SyncThreads(Protocol):
    """See replica/hosts/sync_threads.py."""

    def mark(self, writer: Writer) -> bool: ...

    def turn(self, *, many: bool = True) -> AbstractContextManager[None]: ...

    def busy(self, writer: Writer) -> bool: ...

    def busy_seconds(self, writer: Writer) -> float: ...


@dataclass(slots=True)
class FrameMemory:
    """Bytes of frames that the node's slaves keep in memory until they are applied; others are read again then."""

    limit: int = 64 << 20
    used: int = 0


@dataclass(frozen=True, slots=True)
class NodeResources:
    """What the copies of one node share."""

    files: Files
    clock: WallClock
    syncer: SyncThreads
    pool: ThreadPoolExecutor
    metrics: NodeMetrics
    checkpoints: asyncio.Semaphore  # one at a time: its buffers are the largest there are
    fsync: bool
    log: Callable[..., None]  # log(event, **fields)
    disk_tight: Callable[[], bool]  # little is left: free what can be freed
    disk_full: Callable[[], bool] = lambda: False  # not even what enqueues leave free is free
    # (bytes, bytes of the copy that goes first): room for a whole copy. Raises Refused
    check_copy: Callable[[int, int], None] = lambda size, freed: None
    part_of_ms: Callable[[], float] = lambda: 0.0  # seconds since the clock's last whole ms
    may_tick: Callable[[], bool] = lambda: True  # this node's clock is one to release by
    intervals: Intervals = field(default_factory=Intervals)  # of maintenance
    apply_turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # slaves that catch up take turns on the event loop
    frame_memory: FrameMemory = field(default_factory=FrameMemory)


class CopyHost(ABC):
    """Owned by the event loop. A damaged copy has a `failure`; nothing more comes of it."""

    leads = False

    def __init__(self, shard: Shard, directory: str, resources: NodeResources) -> None:
        self.shard = shard
        self.directory = directory
        self.resources = resources
        self.topic = shard.identity.topic
        self.name = f"{shard.identity.topic}-{shard.identity.queue}"
        self.failure: str | None = None  # why it is of no use any more
        self.lasting = False  # and a process that opens it next must not trust it either
        self.newer_format = False  # nothing is wrong with it: this release can't read what comes
        self.on_failed: Callable[[], None] = lambda: None  # told once, when it fails
        self.waiters = WaitQueues(shard.consumers, shard.queue, resources.clock.now_ms)
        # The time of a frame by its master's clock, ms, and the event loop's time when that was past already.
        self._frame_ms, self._frame_s = 0, asyncio.get_running_loop().time()
        self._show_timer: asyncio.TimerHandle | None = None  # when what is committed and not due yet is shown
        self._tasks: list[asyncio.Task[None]] = []
        self._mark: Callable[[], None] | None = None  # writes the file `damaged`; None when that is done
        self._marking: asyncio.Future[None] | None = None
        self._jobs: set[asyncio.Future[Any]] = set()  # running off the loop
        self._closed = False  # it writes nothing more: the log is another host's, or opened anew
        self.maintenance = Maintenance(self)
        shard.on_failed = self.fail

    # ------------------------------------------------------------ work
    def off_loop(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run it in a thread. What reads the shard's files must: files are removed when no job reads them any more."""
        job = asyncio.get_running_loop().run_in_executor(self.resources.pool, work)
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
        return asyncio.shield(job)  # a caller that is cancelled doesn't end the thread

    def jobs(self) -> list[asyncio.Future[Any]]:
        """The jobs that run in threads now."""
        return list(self._jobs)

    async def _wait_idle(self) -> None:
        """Return when nothing of this copy runs or is being written any more; its tasks have ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.maintenance.wait_idle()
        while self._jobs or self.resources.syncer.busy(self):
            await all_done(self._jobs)
            await asyncio.sleep(DRAIN_SECONDS)
        self._closed = True  # the syncer may still have it in its line

    def wake_tick_loop(self) -> None:  # noqa: B027 - a slave has nobody to wake
        """The due window has been loaded further."""

    def on_proposed(self, due_ms: int | None = None) -> bool:
        """The caller has proposed frames; `due_ms`: the earliest new due. Returns what Syncer.mark() does."""
        return self.resources.syncer.mark(self)

    def check_serving(self) -> None:
        """Raises Refused when nobody may be answered from this copy."""
        if self.failure is not None:
            raise self._refusal("")

    @abstractmethod
    async def wait_committed(self, offset: int) -> None:
        """Return once everything before log offset `offset` is committed. Raises Refused when it may never be."""

    @abstractmethod
    async def wait_log_committed(self, offset: int) -> None:
        """The same as wait_committed(), also while the copy is stopping."""

    # ------------------------------------------------------------ its end
    async def wait_may_append(self) -> None:  # noqa: B027 - a slave never does
        """Return when this process may write frames of its own accord: a master's."""

    def believed_ms(self) -> int:
        """The present, ms; while this node's clock is not one to release by, no later than the watermark, which was
        moved by one that was."""
        now_ms = self.resources.clock.now_ms()
        return now_ms if self.resources.may_tick() else min(now_ms, self.shard.index.watermark.due)

    def behind_ms(self) -> int:
        """Since when the master may have committed what is not known here; 0 on the master itself."""
        return 0

    def needed_from(self) -> int:
        """The log offset below which no frame is needed: by a recovery, a transfer or another replica."""
        return self.shard.checkpointed

    # ------------------------------------------------------------ what is released before it is due
    def _note_frame_time(self, wall_ms: int) -> None:
        """A frame of this time was written, or applied, just now."""
        self._frame_ms, self._frame_s = wall_ms, asyncio.get_running_loop().time()

    def master_ms(self) -> int:
        """It is as late by the master's clock, at least, as of the last frames."""
        return self._frame_ms + int((asyncio.get_running_loop().time() - self._frame_s) * 1000)

    def on_visible_rows(self, released: list[ReleasedRows]) -> None:
        """These have become visible, if any; a timer is set for those that are to come."""
        if released:
            self.waiters.on_released(one.rows for one in released)
        due = self.shard.queue.next_visible_ms()
        if due < NEVER and self._show_timer is None:
            self._show_timer = asyncio.get_running_loop().call_later(self._seconds_until(due), self._show)

    def _seconds_until(self, due_ms: int) -> float:
        return (due_ms - self.master_ms()) / 1000

    def _show(self) -> None:
        self._show_timer = None
        try:
            self.on_visible_rows(self.shard.show(self.master_ms()))
        except Exception as error:  # nobody would look again, and the queue would stand still
            self.fail(f"{type(error).__name__}: {error}", error)

    def _end(self, why: str) -> None:
        if self._show_timer is not None:
            self._show_timer.cancel()
        for task in self._tasks:
            task.cancel()
        self.waiters.end()
        self.maintenance.end()

    def fail(self, why: str, error: Exception) -> None:
        """This copy is damaged: nothing more is written or acknowledged here, nor by the process that opens it next."""
        if self.failure is None:
            self.failure = why
            self.shard.damaged = why
            self.resources.log("shard-damaged", shard=self.name, epoch=self.shard.epoch, reason=why)
            self._end(why)
            self.newer_format = isinstance(error, NewerFormat)
            self.lasting = marker.is_permanent(error)
            if self.lasting:
                self._mark = partial(
                    marker.mark_damaged, self.resources.files, self.directory, why, self.resources.clock.now_ms(),
                    self.shard.committed_offset,
                )  # fmt: skip
                self._marking = asyncio.ensure_future(self._write_mark())
            self.on_failed()

    def log_impossible(self, what: str, error: Impossible) -> None:
        """An operation was not possible, so this copy's memory or files contradict each other: alert."""
        self.resources.metrics.impossible[self.topic] += 1
        self.resources.log("impossible", shard=self.name, epoch=self.shard.epoch, what=what, reason=str(error))

    async def _write_mark(self) -> None:
        """Try to; the disk that has failed may not take it."""
        if self._mark is not None:
            try:
                await self.off_loop(self._mark)
                self._mark = None
            except OSError as error:
                self.resources.log("damage-not-marked", shard=self.name, reason=str(error))

    async def _end_mark(self) -> None:
        if self._marking is not None:
            await self._marking
            await self._write_mark()  # once more, if it was not taken

    async def _guard(self, loop: Coroutine[None, None, None]) -> None:
        try:
            await loop
        except asyncio.CancelledError:
            raise
        except Exception as error:  # a loop that dies silently would leave messages unreleased
            self.fail(f"{type(error).__name__}: {error}", error)

    @property
    def arriving(self) -> int:
        """Messages that are taken and not appended yet."""
        return 0

    @property
    def replaceable(self) -> bool:
        """Another copy may do what this one can't: whoever asks should try again."""
        return False

    def _refusal(self, why: str) -> Refused:
        if self.failure is not None:
            reason = "NOT_SERVING" if self.replaceable else "SHARD_DAMAGED"
            return Refused(reason, f"shard {self.name} has stopped: {self.failure}")
        return Refused("NOT_SERVING", f"shard {self.name} is not served here: {why}")

    # ------------------------------------------------------------ the log's writes
    def next_batch(self) -> WriteBatch | None:
        return None if self._closed else self.shard.next_batch(sync=self.resources.fsync)

    @abstractmethod
    def on_written(self, batch: WriteBatch) -> None:
        """The batch is on disk (or, with Async, in the page cache)."""

    def on_write_failed(self, error: Exception) -> None:
        self.fail(f"CommitLog: {error}", error)

    @property
    def durable(self) -> int:
        """The log offset below which this copy has stored everything, as the cluster's durability asks."""
        return self.shard.log.synced if self.resources.fsync else self.shard.log.written

    @property
    def unsynced(self) -> int:
        """Bytes at the log's end that lie beyond that."""
        return self.shard.log.end - self.durable

    # ------------------------------------------------------------ reading
    async def read_records(self, rows: Records) -> Buffers:
        """Bodies of committed rows, in order. Raises Refused."""
        if not len(rows):
            return []
        try:
            if len(rows) <= MAX_CACHED_ROWS:
                cached = self.shard.read_cached(rows)
                if cached is not None:
                    return cached
            records = await self.off_loop(lambda: self.shard.read_records(rows))
        except Trimmed as error:
            raise Refused("BUSY", f"{error}: consumed meanwhile, ask again", retry_after_ms=1) from error
        except (OSError, Damaged) as error:
            self.fail(f"reading records: {error}", error)
            raise self._refusal("") from error
        self.check_serving()  # a disk may take its time, and another may serve by now
        return records

    async def fetch(self, offset: int, max_count: int, max_bytes: int, wait_ms: int) -> tuple[int, Records]:
        """Rows of dtype QUEUED from queue offset `offset`, which must not lie beyond the end."""
        self.check_serving()
        queue = self.shard.queue
        if queue.visible < offset <= queue.committed:  # by a slave's reckoning it is due
            raise Refused("NOT_SERVING", f"shard {self.name}: queue offset {offset} is not due here yet; retry")
        if not 0 <= offset <= queue.visible:
            raise Refused("BAD_REQUEST", f"offset {offset} is outside the queue, [0, {queue.visible}]")
        if offset < queue.start:
            why = f"the messages below queue offset {queue.start} are consumed or outlived, and kept no longer"
            raise Refused("OFFSET_TRIMMED", f"offset {offset}: {why}", start=queue.start)
        if offset == queue.visible and wait_ms:
            await self.waiters.wait_for_release(wait_ms / 1000)
            self.check_serving()
        rows = queue.read(offset, min(max_count, queue.visible - offset))
        fits = max(1, int(np.searchsorted(np.cumsum(rows["size"], dtype=np.int64), max_bytes, "right")))
        return offset, rows[:fits]
