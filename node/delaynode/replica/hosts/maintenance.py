"""Maintenance of a shard's copy: what it does in the background so that it goes on being quick and small.

    load         the due window, ahead of the ticks
    cascade      the hour that comes within a day, to the minute level, a piece at a time
    checkpoint   each 30 s, each 8 s of a busy shard, or when many units wait; then files that it does without go
    free         TRIM what nobody needs; empty mostly dead segments; clean the TimerLog

All but the load run one after the other: a flush, a cascade and a cleaning must not overlap. One shard of a node at
a time runs such a job, so that their memory does not add up: all of them cascade the same hour at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from delaynode.memory import give_back
from delaynode.replication.transport.until import all_done, wait_event
from delaynode.store.errors import Damaged, Impossible, Refused, Trimmed
from delaynode.store.maintenance import evacuation, persist
from delaynode.store.queue.ledger import COLUMN_BYTES
from delaynode.store.timer.jobs import LoadJob
from delaynode.store.types import Pair, Records

if TYPE_CHECKING:
    from delaynode.replica.hosts.host import CopyHost

COMMIT_SECONDS = 1.0  # that other shards' checkpoints wait for one whose last frames are not committed yet
BUSY_BYTES = 4 << 20
IDLE_BYTES = 64 << 10
EMPTY_BYTES = 16 << 20  # written again at once, about: memory, and a segment of its own
EMPTY_SEGMENTS = 16  # emptied at once, at most: each is read whole, while a checkpoint may wait
TIGHT_SHARE = 0.75  # with little disk left a segment is emptied as soon as so much of it, or less, is needed


@dataclass(frozen=True, slots=True)
class Intervals:
    """How often maintenance does what, seconds. The simulation passes others, so that its short runs have all of it."""

    maintain: float = 0.25
    check: float = 4.0  # between two looks at the due window, which reaches minutes ahead
    quiet: float = 4.0  # of a shard that nothing happens to: a node may have a thousand
    checkpoint: float = 30.0
    busy_checkpoint: float = 8.0  # when the log has grown by BUSY_BYTES: a node that was killed has all that to apply
    idle_checkpoint: float = 600.0  # when the log has grown by less than IDLE_BYTES: idle ticks
    free: float = 1.0  # between two looks at what may go; 200 busy shards' looks are felt
    trim: float = 5.0  # between two TRIMs of a few queue entries
    empty_again: float = 60.0  # a segment that could not be emptied is not looked at again before


class Maintenance:
    """Owned by the event loop; one a copy's host. What it writes into the log, only a master does."""

    def __init__(self, host: CopyHost) -> None:
        self._host, self._shard, self._resources = host, host.shard, host.resources
        self._intervals = host.resources.intervals
        self._load_wakeup = asyncio.Event()
        self._loading = asyncio.Lock()  # one load at a time
        self._timer_job = asyncio.Lock()  # one cascade, flush or cleaning of the TimerLog at a time
        self._wakeup = asyncio.Event()
        self._flushed: asyncio.Future[None] | None = None  # resolved when a flush ends
        self._flushing_units = 0  # units of a flush that is under way, or waits for its frames to be committed
        self._writing: set[asyncio.Task[None]] = set()  # checkpoints and cascades, waiting for their turn or under way
        self._checkpointed = time.monotonic()
        self._freed = 0.0  # time.monotonic() of the last look at what may go
        self._trimmed = 0.0  # time.monotonic() of the last TRIM
        self._units_copied = 0  # flushed since the last copy of the wheels
        self._timer_start = self._shard.index.log.start  # as of that copy
        self._not_before: dict[int, float] = {}  # segment -> time.monotonic()
        self._frees = True  # until the ledger has contradicted what it should free
        self._kept: dict[int, int] = {}  # segment -> queue offset of a message that keeps it from being emptied

    def loops(self) -> list[Callable[[], Coroutine[None, None, None]]]:
        """To be run while the shard is served."""
        return [self._load_loop, self._maintain_loop]

    def check(self, now_ms: int) -> None:
        """The watermark has moved, or messages have come: is there something to do?"""
        if self._shard.loader.is_due(now_ms):
            self._load_wakeup.set()
        if self._shard.index.cascade_due(now_ms):
            self._wakeup.set()
        self.check_units()

    def check_units(self) -> None:
        """Messages have come: is a flush due?"""
        if self._many_units():
            self._wakeup.set()

    def _many_units(self) -> bool:
        return self._shard.index.unflushed >= self._shard.config.flush_units

    # ------------------------------------------------------------ the due window
    async def _load_loop(self) -> None:
        while True:
            if self._shard.loader.is_due(self._resources.clock.now_ms()):
                async with self._loading:
                    await self.load()
            else:
                await wait_event(self._load_wakeup, self._intervals.check)

    async def load(self) -> None:
        """Load the due window further."""
        shard = self._shard
        room = max(1, shard.config.window_budget - len(shard.index.window))
        job = shard.index.begin_load(shard.loader.target_ms(self._resources.clock.now_ms()), room)
        if job is None:
            return
        await self._run_load(job)
        self._host.wake_tick_loop()

    async def load_past(self, mark: Pair) -> None:
        """Load the due window past the mark of a master's tick: a slave follows, whatever its own clock says."""
        index = self._shard.index
        async with self._loading:
            while index.window.bound <= mark:
                while index.minute_bound_ms <= mark.due:
                    await self._cascade(lambda: index.minute_bound_ms <= mark.due)
                job = index.begin_load(index.geometry.minute_end(mark.due), self._shard.config.window_budget)
                if job is None:
                    raise Damaged(f"can't load the due window past {mark}: its bound is {index.window.bound}")
                await self._run_load(job)

    async def _run_load(self, job: LoadJob) -> None:
        try:
            await self._host.off_loop(job.run)
        except BaseException:
            self._shard.index.close_view(job.view)
            raise
        self._shard.index.finish_load(job)

    # ------------------------------------------------------------ one after the other
    async def _maintain_loop(self) -> None:
        shard, seen, pause = self._shard, -1, self._intervals.maintain
        while True:
            checkpoint = self._checkpoint_due()
            if checkpoint:
                await self._checkpoint()
            if self._cascade_due():
                await self._cascade(self._cascade_due)  # a piece: a checkpoint need not wait for the whole hour
                continue
            if checkpoint:
                continue
            if self._free_due():
                await self._free()
                self._freed = time.monotonic()
            if shard.index.clean_due() and await self._clean_step():
                continue
            shard.index.window.flush_arrivals()  # now, not when a herd is due
            quiet = shard.applied == seen and not self._resources.disk_tight()
            seen, pause = shard.applied, min(2 * pause, self._intervals.quiet) if quiet else self._intervals.maintain
            await wait_event(self._wakeup, pause)

    def _cascade_due(self) -> bool:
        return self._shard.index.cascade_due(self._resources.clock.now_ms())

    async def _cascade(self, due: Callable[[], bool]) -> None:
        """The next piece of the hour at the minute level's bound, or hours without messages, while it is `due`."""
        await self._run_shielded(self._cascade_step(due))
        self._load_wakeup.set()

    async def _cascade_step(self, due: Callable[[], bool]) -> None:
        index = self._shard.index
        async with self._resources.checkpoints, self._timer_job:
            while due():
                job = index.begin_cascade()
                if job is not None:
                    await self._host.off_loop(job.run)
                    index.finish_cascade(job)
                    return

    async def _run_shielded(self, work: Coroutine[None, None, None]) -> None:
        """Half of it must not be left when the caller is cancelled: wait_idle() waits for it."""
        task = asyncio.ensure_future(work)
        self._writing.add(task)
        task.add_done_callback(self._on_written)
        await asyncio.shield(task)

    def _on_written(self, task: asyncio.Future[None]) -> None:
        self._writing.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception) and not isinstance(error, Refused):  # its caller may have gone, so here too
            self._host.fail(f"checkpoint: {type(error).__name__}: {error}", error)

    async def wait_idle(self) -> None:
        """Return when no checkpoint and no cascade is under way any more."""
        await all_done(self._writing)

    # ------------------------------------------------------------ checkpoints
    def _checkpoint_due(self) -> bool:
        shard, every = self._shard, self._intervals
        age, grown = time.monotonic() - self._checkpointed, shard.log_end - shard.checkpointed
        spare = shard.has_spare_files()
        pending_delete = bool(shard.space.pending_delete) or spare
        idle = grown < IDLE_BYTES and not shard.index.unflushed and not pending_delete
        busy = grown >= BUSY_BYTES and not self._resources.checkpoints.locked()
        enough = every.idle_checkpoint if idle else every.busy_checkpoint if busy else every.checkpoint
        old = (grown > 0 or spare) and age > enough
        return old or self._many_units() or (pending_delete and self._resources.disk_tight())

    async def _checkpoint(self) -> None:
        await self.checkpoint(copy_wheels=False)
        self._checkpointed = time.monotonic()

    async def checkpoint(self, *, copy_wheels: bool) -> None:
        """Persist, to the end also when the caller is cancelled."""
        await self._run_shielded(self.persist(copy_wheels=copy_wheels))

    async def persist(self, *, copy_wheels: bool) -> None:
        """Write a checkpoint, and a copy of the wheels when it is time for one."""
        patience = COMMIT_SECONDS
        while True:
            await self._host.wait_log_committed(
                self._shard.applied
            )  # with no other shard waiting: a slave may be away for long
            async with self._resources.checkpoints, self._timer_job:
                if await self._persist(patience, copy_wheels=copy_wheels):
                    return
            patience *= 2  # it commits, but slowly: it must have a checkpoint some time

    async def _persist(self, patience: float, *, copy_wheels: bool) -> bool:
        """False when what has been appended meanwhile is not committed within `patience` s: then nothing was done."""
        host, shard, files = self._host, self._shard, self._resources.files
        self._flushing_units = shard.index.unflushed
        job = persist.begin_checkpoint(files, host.directory, shard)
        try:
            async with asyncio.timeout(patience):
                await host.wait_log_committed(job.log_offset)
        except BaseException as error:
            self._flushing_units = 0
            persist.abandon_checkpoint(job)
            if isinstance(error, TimeoutError):
                return False
            raise
        try:
            await host.off_loop(job.run)
        finally:
            self._flushing_units = 0
            self._notify_flushed()
        paths = persist.finish_checkpoint(job)
        readers = host.jobs()
        self._units_copied += job.flush.units
        # with another start of the TimerLog the copy before would not be used
        stale = self._timer_start != shard.index.log.start
        if copy_wheels or stale or self._units_copied >= shard.config.wheel_copy_units:
            await host.off_loop(lambda: persist.copy_wheels(files, host.directory, shard))
            self._units_copied, self._timer_start = 0, shard.index.log.start
        if paths:
            await all_done(readers)  # they may still read what goes
            await host.off_loop(lambda: persist.remove_files(files, paths))
        await host.off_loop(give_back)  # the flush's buffers were the largest there are
        return True

    @property
    def file_lock(self) -> asyncio.Lock:
        """While it is held no checkpoint is written."""
        return self._timer_job

    @property
    def full(self) -> bool:
        """Flushes are behind, so nothing should be taken in: units that are not flushed are memory."""
        units = self._shard.index.unflushed + self._flushing_units + self._host.arriving
        return units >= self._shard.config.max_unflushed

    async def wait_room(self) -> None:
        """Wait while it is full. Raises Refused."""
        while self.full:
            self._host.check_serving()
            await self.wait_flushed()

    async def wait_flushed(self) -> None:
        """Return once a flush has ended, or the shard is served no more."""
        self._wakeup.set()
        if self._flushed is None:
            self._flushed = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._flushed])

    def _notify_flushed(self) -> None:
        flushed, self._flushed = self._flushed, None
        if flushed is not None and not flushed.done():
            flushed.set_result(None)

    def end(self) -> None:
        """The shard is served no more: whoever waits for room goes and sees."""
        self._notify_flushed()

    # ------------------------------------------------------------ freeing disk
    def _free_due(self) -> bool:
        due = self._resources.disk_tight() or time.monotonic() - self._freed >= self._intervals.free
        return self._host.leads and self._frees and due

    async def _free(self) -> None:
        """Where an effect is not possible, this process frees nothing more: by counts that are wrong it would free what
        is needed. The shard serves on, its disk fills."""
        try:
            await self._free_all()
        except Impossible as error:
            self._frees = False
            self._host.log_impossible("freeing disk", error)

    async def _free_all(self) -> None:
        await self._host.wait_may_append()
        shard, now = self._shard, self._host.believed_ms()
        if shard.consumers.expire_dead(now):
            self._host.on_proposed()
        small = time.monotonic() - self._trimmed > self._intervals.trim
        end, more = shard.log_end, True
        while more:
            more = shard.space.trim(now, self._host.needed_from(), small=small)
            if shard.log_end > end:
                self._trimmed, end = time.monotonic(), shard.log_end
                self._host.on_proposed()
                await self._host.wait_log_committed(end)
        shard.space.begin_segment_if_dead(now, self._share())
        if shard.space.ledger.has_closed and len(segments := self._to_empty(now)):
            await self._empty(segments)

    def _share(self) -> float | None:
        """What may be needed of a segment that is emptied at any age; None: as configured."""
        return TIGHT_SHARE if self._resources.disk_tight() else None

    def _to_empty(self, now_ms: int) -> Records:
        """The emptiest segments worth it, as many as are emptied at once; else small ones that are joined."""
        freeing, limit = self._shard.space, self._host.needed_from()
        share = self._share()
        candidates = freeing.mostly_dead(limit, now_ms, share)
        now = time.monotonic()
        self._not_before = {base: at for base, at in self._not_before.items() if at > now}
        self._kept = {base: at for base, at in self._kept.items() if at >= self._shard.queue.start}
        left = [*self._not_before, *self._kept]
        found = candidates[~np.isin(candidates["base"], left)][:EMPTY_SEGMENTS] if left else candidates[:EMPTY_SEGMENTS]
        if not len(found) and share is None:
            found = freeing.joinable(limit, now_ms, left)
        size = np.cumsum(found["bytes"] + COLUMN_BYTES * found["count"])
        return found[: max(1, int(np.searchsorted(size, EMPTY_BYTES, "right")))]

    async def _empty(self, segments: Records) -> None:
        """Write what the segments (k,) still hold again, so that the next TRIM frees them."""
        shard, host = self._shard, self._host
        again = time.monotonic() + self._intervals.empty_again
        self._not_before |= dict.fromkeys(segments["base"].tolist(), again)
        async with self._resources.checkpoints:
            job = evacuation.begin_evacuation(shard, segments)
            try:
                with suppress(Trimmed):  # it went while it was looked at
                    await host.off_loop(job.run)
            except BaseException:
                evacuation.end_evacuation(shard, job)
                raise
        try:
            self._kept |= job.kept
            # While a slave is away this waits: other shards' checkpoints must not wait with it.
            await host.wait_may_append()
            if evacuation.relocate(shard, job, self._resources.clock.now_ms()):
                host.on_proposed()
                await host.wait_log_committed(shard.log_end)
        finally:
            evacuation.end_evacuation(shard, job)

    async def _clean_step(self) -> bool:
        """A step of cleaning the TimerLog; False when there was nothing to clean."""
        shard = self._shard
        async with self._resources.checkpoints, self._timer_job:
            job = shard.index.begin_clean()
            if job is None:
                return False
            try:
                await self._host.off_loop(job.run)
            except BaseException:
                shard.index.close_view(job.view)
                raise
            shard.index.finish_clean(job)
        return True
