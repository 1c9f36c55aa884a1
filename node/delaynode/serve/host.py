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
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from delaynode.memory import give_back
from delaynode.metrics import NodeMetrics
from delaynode.serve.syncer import Syncer
from delaynode.store import persist
from delaynode.store.commitlog import WriteBatch
from delaynode.store.consumers import Delivery
from delaynode.store.errors import Damaged, Refused
from delaynode.store.files import Files
from delaynode.store.intake import Batch
from delaynode.store.shard import Appended, Lookup, Shard, next_wakeup
from delaynode.store.types import Buffers, Records

TICK_MS = 3  # a shard's ticks start at least this far apart
MAINTAIN_SECONDS = 0.25
CHECKPOINT_SECONDS = 30.0
IDLE_CHECKPOINT_SECONDS = 600.0  # when the log has grown by less than IDLE_BYTES: idle ticks
IDLE_BYTES = 64 << 10
UNFLUSHED_FLUSHES = 2  # a shard takes new messages until so many flushes' units wait
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
        self._flushing: asyncio.Future[None] | None = None  # resolved when a flush begins
        self._news: asyncio.Future[None] | None = None  # resolved when messages become visible
        self._alarm = asyncio.Event()  # the tick loop should look again
        self._sleep_until = 0  # ms: when the tick loop wakes by itself
        self._want_load = asyncio.Event()
        self._want_maintenance = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._checkpoint_task: asyncio.Task[None] | None = None
        self._units_copied = 0
        self._checkpointed_at = shard.log_end

    # ------------------------------------------------------------ life
    async def start(self, epoch: int, node: str) -> None:
        """Begin the reign whose epoch was persisted; serves when this returns."""
        self.shard.begin_reign(epoch, node, self.shop.clock.now_ms())
        self.serving = True
        self.shop.syncer.mark(self)
        await self.committed(self.shard.log_end)
        await self._load()
        self._tasks = [
            asyncio.create_task(self._guard(loop())) for loop in (self._tick_loop, self._load_loop, self._maintain_loop)
        ]

    async def stop(self) -> None:
        """Stop serving: what was appended is still committed and answered, whoever waits for more gets NOT_SERVING.

        A checkpoint makes the next start quick.
        """
        if self.serving:
            self.serving = False  # from here on nobody appends, so there is an end to wait for
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._quietly(self._written(self.shard.log_end))
        self._end("the shard's node is stopping")
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._checkpoint_task is not None:
            await asyncio.gather(self._checkpoint_task, return_exceptions=True)
        if self.failure is None:
            await self._persist(copy_wheels=True)

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
        self._tell_news()
        self._tell_flushing()

    def fail(self, why: str) -> None:
        """This copy is damaged: nothing more is acknowledged from it."""
        if self.failure is None:
            self.failure = why
            self.shard.damaged = why
            self.shop.log("shard-damaged", shard=self.name, epoch=self.shard.epoch, reason=why)
            self._end(why)

    async def _guard(self, loop: Coroutine[None, None, None]) -> None:
        try:
            await loop
        except asyncio.CancelledError:
            raise
        except Exception as error:  # a loop that dies silently would leave messages unreleased
            self.fail(f"{type(error).__name__}: {error}")

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
            self.fail(f"ConsumeQueue: {error}")
            return
        while self._waiting and self._waiting[0][0] <= batch.end:
            future = heapq.heappop(self._waiting)[2]
            if not future.done():
                future.set_result(None)
        if released:
            self._count(released)
            self._tell_news()
        if self.shard.log.pending:
            self.shop.syncer.mark(self)

    def write_failed(self, error: Exception) -> None:
        self.fail(f"CommitLog: {error}")

    async def committed(self, offset: int) -> None:
        """Return once everything before log offset `offset` is committed. Raises Refused when it may never be."""
        if offset <= self.shard.committed:
            return
        self.check_serving()
        await self._written(offset)

    async def _written(self, offset: int) -> None:
        """As committed(), also while the shard is stopping."""
        if offset <= self.shard.committed:
            return
        if self.failure is not None:
            raise self._refusal("")
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (offset, next(self._arrivals), future))
        self.shop.syncer.mark(self)
        await future

    def _count(self, released: list[Records]) -> None:
        now = self.shop.clock.now_ms()
        metrics = self.shop.metrics
        for rows in released:
            metrics.released[self.topic] += len(rows)
            metrics.lateness[self.topic].add(np.maximum(now - rows["due"], 0))

    def _tell_news(self) -> None:
        news, self._news = self._news, None
        if news is not None and not news.done():
            news.set_result(None)

    async def _news_or(self, seconds: float) -> None:
        """Wait for messages to become visible, at most `seconds`."""
        if self._news is None:
            self._news = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._news], timeout=seconds)

    # ------------------------------------------------------------ loops
    async def _tick_loop(self) -> None:
        while True:
            now = self.shop.clock.now_ms()
            wake = next_wakeup(self.shard)
            if wake > now:
                self._sleep_until = wake
                await self._sleep((wake - now) / 1000)
                continue
            started = time.monotonic()
            released = self.shard.tick(now)
            expired = self.shard.consumers.expire(now)
            if released >= 0 or expired:
                await self.committed(self.shard.log_end)
                if expired:
                    self._tell_news()
            if self.shard.wants_load(now):
                self._want_load.set()
            if self.shard.index.cascade_due(now):
                self._want_maintenance.set()
            if released < self.shard.config.max_tick:
                await asyncio.sleep(max(0.0, TICK_MS / 1000 - (time.monotonic() - started)))

    async def _sleep(self, seconds: float) -> None:
        self._alarm.clear()
        try:
            await asyncio.wait_for(self._alarm.wait(), min(seconds, 60.0))
        except TimeoutError:
            return

    def _expect(self, due_ms: int) -> None:
        """Something is due at `due_ms`: the tick loop must not sleep longer."""
        if due_ms < self._sleep_until:
            self._alarm.set()

    async def _load_loop(self) -> None:
        while True:
            if self.shard.wants_load(self.shop.clock.now_ms()):
                await self._load()
            else:
                self._want_load.clear()
                try:
                    await asyncio.wait_for(self._want_load.wait(), 1.0)
                except TimeoutError:
                    continue

    async def _load(self) -> None:
        shard, now = self.shard, self.shop.clock.now_ms()
        room = max(1, shard.config.window_budget - len(shard.index.window))
        job = shard.index.begin_load(shard.load_target(now), room)
        if job is None:
            return
        try:
            await self.off_loop(job.run)
        except BaseException:
            shard.index.end_capture(job.capture)
            raise
        shard.index.finish_load(job)
        self._alarm.set()

    async def _maintain_loop(self) -> None:
        checkpointed = time.monotonic()
        while True:
            shard = self.shard
            while shard.index.cascade_due(self.shop.clock.now_ms()):
                await self._cascade()
            age, grown = time.monotonic() - checkpointed, shard.log_end - self._checkpointed_at
            idle = grown < IDLE_BYTES and not shard.index.unflushed
            old = grown > 0 and age > (IDLE_CHECKPOINT_SECONDS if idle else CHECKPOINT_SECONDS)
            if old or shard.index.unflushed >= shard.config.flush_units:
                await self._checkpoint()
                checkpointed = time.monotonic()
                continue
            shard.index.window.settle()  # now, not when a herd is due
            self._want_maintenance.clear()
            try:
                await asyncio.wait_for(self._want_maintenance.wait(), MAINTAIN_SECONDS)
            except TimeoutError:
                continue

    async def _cascade(self) -> None:
        job = self.shard.index.begin_cascade()
        if job is None:
            return
        try:
            await self.off_loop(job.run)
        except BaseException:
            self.shard.index.end_capture(job.capture)
            raise
        self.shard.index.finish_cascade(job)
        self._want_load.set()

    async def _checkpoint(self) -> None:
        self._checkpoint_task = asyncio.ensure_future(self._persist(copy_wheels=False))
        await asyncio.shield(self._checkpoint_task)  # stop() lets it end: half of one must not be left

    async def _persist(self, *, copy_wheels: bool) -> None:
        shop, shard = self.shop, self.shard
        async with shop.checkpoints:
            job = persist.begin_checkpoint(shop.files, self.directory, shard)
            self._tell_flushing()
            await self._written(job.log_offset)
            await self.off_loop(job.run)
            persist.finish_checkpoint(job)
            self._checkpointed_at = job.log_offset
            self._units_copied += len(job.flush.rows)
            if copy_wheels or self._units_copied >= shard.config.wheel_copy_units:
                await self.off_loop(lambda: persist.copy_wheels(shop.files, self.directory, shard))
                self._units_copied = 0
            await self.off_loop(give_back)  # the flush's buffers were the largest there are

    def off_loop(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self.shop.pool, work)

    # ------------------------------------------------------------ what callers ask for
    async def room(self) -> None:
        """Wait while flushes are behind: units that are not flushed are memory. Raises Refused."""
        while self.shard.index.unflushed >= UNFLUSHED_FLUSHES * self.shard.config.flush_units:
            self.check_serving()
            self._want_maintenance.set()
            if self._flushing is None:
                self._flushing = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._flushing])

    def _tell_flushing(self) -> None:
        flushing, self._flushing = self._flushing, None
        if flushing is not None and not flushing.done():
            flushing.set_result(None)

    def enqueue(self, batch: Batch) -> Appended:
        """Append; the caller waits for committed(log_end) before it answers."""
        self.check_serving()
        appended = self.shard.enqueue(batch, self.shop.clock.now_ms())
        if appended.due is not None:
            self.shop.metrics.enqueued[self.topic] += appended.count
            self._expect(int(appended.due.min()))
            if self.shard.index.unflushed >= self.shard.config.flush_units:
                self._want_maintenance.set()
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
        except (OSError, Damaged) as error:
            self.fail(f"reading records: {error}")
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
                    await self.committed(shard.log_end)
                    if found.next_expiry < self._sleep_until:
                        self._alarm.set()
                    return delivery
            left = deadline - time.monotonic()
            if left <= 0:
                return Delivery(np.empty(0, np.int64), np.empty(0, np.uint32), shard.queue.read(0, 0))
            await self._news_or(min(left, max(0.001, (found.next_visible() - now) / 1000)))

    async def fetch(self, offset: int, most: int, most_bytes: int, wait_ms: int) -> tuple[int, Records]:
        """Rows of dtype QUEUED from queue offset `offset`, which must not lie beyond the end."""
        self.check_serving()
        queue = self.shard.queue
        if not 0 <= offset <= queue.visible:
            raise Refused("BAD_REQUEST", f"offset {offset} is outside the queue, [0, {queue.visible}]")
        if offset == queue.visible and wait_ms:
            await self._news_or(wait_ms / 1000)
        rows = queue.read(offset, most)
        fits = max(1, int(np.searchsorted(np.cumsum(rows["size"], dtype=np.int64), most_bytes, "right")))
        return offset, rows[:fits]

    async def look_up(self, lookup: Lookup) -> None:
        """Run a lookup's job; the caller applies it and then calls shard.end_lookup."""
        if lookup.job is not None:
            await self.off_loop(lookup.job.run)

    def woken(self) -> None:
        """Something became visible other than by a release: a retry, a redrive."""
        self._tell_news()
        self._alarm.set()

    def changed(self, due_ms: int | None = None) -> None:
        """The caller has proposed frames; `due_ms`: the earliest new due."""
        if due_ms is not None:
            self._expect(due_ms)
        self.shop.syncer.mark(self)
