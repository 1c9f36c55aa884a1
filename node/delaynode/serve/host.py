"""ShardHost: drives one shard on the event loop: ticks, sync rounds, background jobs, and whoever waits for them.

All Shard methods run on the loop's thread; jobs' run() and reads of bodies run in a thread pool.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np

from delaynode.metrics import NodeMetrics
from delaynode.serve.syncer import Syncer
from delaynode.serve.upkeep import Upkeep
from delaynode.serve.waiting import Waiting
from delaynode.store import marker
from delaynode.store.commitlog import WriteBatch
from delaynode.store.consumequeue import Released
from delaynode.store.consumers import Delivery
from delaynode.store.errors import Damaged, Refused, Trimmed
from delaynode.store.files import Files
from delaynode.store.intake import Batch
from delaynode.store.ratelimit import Pace
from delaynode.store.shard import Appended, Shard
from delaynode.store.types import Buffers, Records

TICK_MS = 3  # a shard's ticks start at least this far apart
FEW_ROWS = 16  # bodies that are read at once when they are in the page cache: quicker than a thread's wake-up

T = TypeVar("T")


class Clock(Protocol):
    def now_ms(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Workshop:
    """What the hosts of one node share."""

    files: Files
    clock: Clock
    syncer: Syncer
    pool: ThreadPoolExecutor
    metrics: NodeMetrics
    checkpoints: asyncio.Semaphore  # one at a time: its buffers are the largest there are
    fsync: bool
    log: Callable[..., None]  # log(event, **fields)
    disk_tight: Callable[[], bool]  # little is left: free what can be freed


class ShardHost:
    """Serves one shard from start() to stop(). Raises Refused to callers, NOT_SERVING once it has stopped."""

    def __init__(self, shard: Shard, directory: str, shop: Workshop) -> None:
        self.shard = shard
        self.directory = directory
        self.shop = shop
        self.topic = shard.identity.topic
        self.name = f"{shard.identity.topic}-{shard.identity.queue}"
        self.failure: str | None = None  # why it does not serve
        self.serving = False
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []  # heap: log offset, arrival, who waits
        self._arrivals = itertools.count()
        self.waiting = Waiting(shard.consumers, shard.queue, shop.clock.now_ms)
        self._pace: Pace | None = None  # of releases, where the topic has a cap
        self._paced_end = 0  # queue offset: the pace knows of the releases before it
        self._alarm = asyncio.Event()  # the tick loop should look again
        self._sleep_until = 0  # ms: when the tick loop wakes by itself
        self._tasks: list[asyncio.Task[None]] = []
        self._mark: Callable[[], None] | None = None  # writes the file `damaged`; None when that is done
        self._marking: asyncio.Future[None] | None = None
        self._jobs: set[asyncio.Future[Any]] = set()  # running off the loop
        self.upkeep = Upkeep(self)

    # ------------------------------------------------------------ life
    async def start(self, epoch: int, node: str) -> None:
        """Begin the reign whose epoch was persisted; serves when this returns."""
        self.shard.begin_reign(epoch, node, self.shop.clock.now_ms())
        self.serving = True
        self.shop.syncer.mark(self)
        await self.committed(self.shard.log_end)
        await self.upkeep.load()
        self._tasks = [asyncio.create_task(self._guard(loop())) for loop in (self._tick_loop, *self.upkeep.loops())]

    async def stop(self) -> None:
        """Stop serving: what was appended is still committed and answered, whoever waits for more gets NOT_SERVING.

        A checkpoint makes the next start quick.
        """
        if self.serving:
            self.serving = False  # from here on nobody appends, so there is an end to wait for
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._quietly(self.written(self.shard.log_end))
        self._end("the shard's node is stopping")
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.upkeep.end_checkpoint()
        if self.failure is None:
            try:
                await self.upkeep.persist(copy_wheels=True)
            except (OSError, Damaged) as error:
                self.fail(f"checkpoint: {error}", error)
        if self._marking is not None:
            await self._marking
            await self._write_mark()  # once more, if it was not taken

    @staticmethod
    async def _quietly(work: Awaitable[None]) -> None:
        try:
            await work
        except Refused:
            return  # it failed: there is nothing more to wait for

    def _end(self, why: str) -> None:
        self.serving = False
        for task in self._tasks:
            task.cancel()
        waiting, self._waiting = self._waiting, []
        for _, _, future in waiting:
            if not future.done():
                future.set_exception(self._refusal(why))
                future.exception()  # a caller that went away does not collect it
        self.waiting.end()
        self.upkeep.end()

    def fail(self, why: str, error: Exception) -> None:
        """This copy is damaged: nothing more is acknowledged from it, nor by the process that opens it next."""
        if self.failure is None:
            self.failure = why
            self.shard.damaged = why
            self.shop.log("shard-damaged", shard=self.name, epoch=self.shard.epoch, reason=why)
            self._end(why)
            if marker.outlasts_a_restart(error):
                self._mark = partial(
                    marker.mark_damaged, self.shop.files, self.directory, why, self.shop.clock.now_ms(),
                    self.shard.committed,
                )  # fmt: skip
                self._marking = asyncio.ensure_future(self._write_mark())

    async def _write_mark(self) -> None:
        """Try to; the disk that has failed may not take it."""
        if self._mark is not None:
            try:
                await self.off_loop(self._mark)
                self._mark = None
            except OSError as error:
                self.shop.log("damage-not-marked", shard=self.name, reason=str(error))

    async def _guard(self, loop: Coroutine[None, None, None]) -> None:
        try:
            await loop
        except asyncio.CancelledError:
            raise
        except Exception as error:  # a loop that dies silently would leave messages unreleased
            self.fail(f"{type(error).__name__}: {error}", error)

    def _refusal(self, why: str) -> Refused:
        if self.failure is not None:
            return Refused("SHARD_DAMAGED", f"shard {self.name} has stopped: {self.failure}")
        return Refused("NOT_SERVING", f"shard {self.name} is not served here: {why}")

    def check_serving(self) -> None:
        if not self.serving:
            raise self._refusal("no reign")

    # ------------------------------------------------------------ commit
    def take_writes(self) -> WriteBatch | None:
        return self.shard.take_writes(sync=self.shop.fsync)

    def wrote(self, batch: WriteBatch) -> None:
        self.shard.finish_writes(batch)
        try:
            released = self.shard.commit(batch.end)
        except OSError as error:
            self.fail(f"ConsumeQueue: {error}", error)
            return
        while self._waiting and self._waiting[0][0] <= batch.end:
            future = heapq.heappop(self._waiting)[2]
            if not future.done():
                future.set_result(None)
        if released:
            self._count(released)
            self.waiting.released(one.rows for one in released)
        if self.shard.log.pending:
            self.shop.syncer.mark(self)

    def write_failed(self, error: Exception) -> None:
        self.fail(f"CommitLog: {error}", error)

    async def committed(self, offset: int) -> None:
        """Return once everything before log offset `offset` is committed. Raises Refused when it may never be."""
        if offset <= self.shard.committed:
            return
        self.check_serving()
        await self.written(offset)

    async def written(self, offset: int) -> None:
        """As committed(), also while the shard is stopping."""
        if offset <= self.shard.committed:
            return
        if self.failure is not None:
            raise self._refusal("")
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (offset, next(self._arrivals), future))
        self.shop.syncer.mark(self)
        await future

    def _count(self, released: list[Released]) -> None:
        """A message that was due when it came is late by the time since then."""
        now = self.shop.clock.now_ms()
        metrics = self.shop.metrics
        for rows, arrived_ms in released:
            metrics.released[self.topic] += len(rows)
            metrics.lateness[self.topic].add(np.maximum(now - np.maximum(rows["due"], arrived_ms), 0))

    # ------------------------------------------------------------ loops
    async def _tick_loop(self) -> None:
        while True:
            now = self.shop.clock.now_ms()
            wake = self._next_wakeup(now)
            if wake > now:
                self._sleep_until = wake
                await self._sleep((wake - now) / 1000)
                continue
            started = time.monotonic()
            released = self._tick(now)
            ended = self.shard.consumers.expire(now)
            if released >= 0 or ended.any:
                await self.committed(self.shard.log_end)
                self.shop.metrics.dead[self.topic] += ended.dead
                if ended.any:
                    self.waiting.tell()
            self.upkeep.look(now)
            if released < self.shard.config.max_tick:
                await asyncio.sleep(max(0.0, TICK_MS / 1000 - (time.monotonic() - started)))

    def _next_wakeup(self, now_ms: int) -> int:
        """The earliest time at which the tick loop has something to do, ms."""
        tick = self.shard.next_tick()
        if self._pace is not None and tick <= now_ms:
            tick = self._pace.ready_ms(now_ms)
        return min(tick, self.shard.consumers.next_expiry())

    def _tick(self, now_ms: int) -> int:
        """As Shard.tick(), at the topic's pace."""
        if self._pace is None:
            return self.shard.tick(now_ms)
        self._note_passed(self._pace, now_ms)
        most = self._pace.available(now_ms)
        if most < 1:
            return -1
        released = self.shard.tick(now_ms, most)
        self._pace.spend(max(0, released))
        self._paced_end = self.shard.queue.end
        return released

    def _note_passed(self, pace: Pace, now_ms: int) -> None:
        """Count what producers' own frames have released."""
        pace.owe(self.shard.queue.end - self._paced_end, now_ms)
        self._paced_end = self.shard.queue.end

    def set_release_rate(self, rate: int | None) -> None:
        """rate: messages per second that this shard may release; None: no cap."""
        if rate == (self._pace.rate if self._pace is not None else None):
            return
        now = self.shop.clock.now_ms()
        if rate is None:
            self._pace = None
        else:
            self._pace = Pace(rate, now) if self._pace is None else self._pace.changed(rate, now)
            self._paced_end = self.shard.queue.end
        self._alarm.set()

    async def _sleep(self, seconds: float) -> None:
        self._alarm.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, 60.0)):  # wait_for() may swallow the cancellation of stop()
                await self._alarm.wait()

    def _expect(self, due_ms: int) -> None:
        """Something is due at `due_ms`: the tick loop must not sleep longer."""
        if due_ms < self._sleep_until:
            self._alarm.set()

    def off_loop(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run it in a thread. What reads the shard's files must: files are removed when no job reads them any more."""
        job = asyncio.get_running_loop().run_in_executor(self.shop.pool, work)
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
        return job

    def jobs(self) -> list[asyncio.Future[Any]]:
        """Those under way off the loop."""
        return list(self._jobs)

    def alarm(self) -> None:
        """The tick loop should look again."""
        self._alarm.set()

    # ------------------------------------------------------------ what callers ask for
    def enqueue(self, batch: Batch) -> Appended:
        """Append; the caller waits for committed(log_end) before it answers."""
        self.check_serving()
        now = self.shop.clock.now_ms()
        appended = self.shard.enqueue(batch, now)
        if self._pace is not None:
            self._note_passed(self._pace, now)
        if appended.due is not None and not appended.duplicate:
            self.shop.metrics.enqueued[self.topic] += appended.count
            self._expect(int(appended.due.min()))
            self.upkeep.look_at_units()
        self.shop.syncer.mark(self)
        return appended

    async def read_records(self, rows: Records) -> Buffers:
        """Bodies of committed rows, in order."""
        if not len(rows):
            return []
        try:
            if len(rows) <= FEW_ROWS:
                cached = self.shard.read_cached(rows)
                if cached is not None:
                    return cached
            return await self.off_loop(lambda: self.shard.read_records(rows))
        except Trimmed as error:
            raise Refused("BUSY", f"{error}: consumed meanwhile, ask again", retry_after_ms=1) from error
        except (OSError, Damaged) as error:
            self.fail(f"reading records: {error}", error)
            raise self._refusal("") from error

    async def receive(
        self,
        group: str,
        tags: tuple[str, ...],
        most: int,
        most_bytes: int,
        wait_ms: int,
        invisible_ms: int,
        from_end: bool,
    ) -> Delivery:
        """Hand messages out, waiting up to `wait_ms` for the first."""
        self.check_serving()
        shard, clock = self.shard, self.shop.clock
        shard.consumers.join(group, tags, from_end=from_end, now_ms=clock.now_ms())
        await self.committed(shard.log_end)
        deadline = time.monotonic() + wait_ms / 1000
        while True:
            self.check_serving()
            now = clock.now_ms()
            found = shard.consumers.group(group)
            if found.readable(shard.queue, now):
                delivery = shard.consumers.deliver(group, now, invisible_ms, most, most_bytes)
                if len(delivery.offset):
                    self.waiting.look(group)
                    await self.committed(shard.log_end)
                    if found.next_expiry < self._sleep_until:
                        self._alarm.set()
                    return delivery
            left = deadline - time.monotonic()
            if left <= 0:
                return Delivery(np.empty(0, np.int64), np.empty(0, np.uint32), shard.queue.read(0, 0))
            await self.waiting.consumer(group, left)

    async def fetch(self, offset: int, most: int, most_bytes: int, wait_ms: int) -> tuple[int, Records]:
        """Rows of dtype QUEUED from queue offset `offset`, which must not lie beyond the end."""
        self.check_serving()
        queue = self.shard.queue
        if not 0 <= offset <= queue.visible:
            raise Refused("BAD_REQUEST", f"offset {offset} is outside the queue, [0, {queue.visible}]")
        if offset < queue.start:
            why = f"the messages below queue offset {queue.start} are consumed or outlived, and kept no longer"
            raise Refused("OFFSET_TRIMMED", f"offset {offset}: {why}", start=queue.start)
        if offset == queue.visible and wait_ms:
            await self.waiting.reader(wait_ms / 1000)
        rows = queue.read(offset, most)
        fits = max(1, int(np.searchsorted(np.cumsum(rows["size"], dtype=np.int64), most_bytes, "right")))
        return offset, rows[:fits]

    def woken(self) -> None:
        """Something became visible other than by a release: a retry, a redrive."""
        self.waiting.tell()
        self._alarm.set()

    def changed(self, due_ms: int | None = None) -> None:
        """The caller has proposed frames; `due_ms`: the earliest new due."""
        if due_ms is not None:
            self._expect(due_ms)
        self.shop.syncer.mark(self)
