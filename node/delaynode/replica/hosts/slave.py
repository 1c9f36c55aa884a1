"""SlaveHost: a shard's copy that follows a master: stores what it is sent, applies what is committed.

Only committed frames are applied, so the log can be cut to another master's without undoing anything, and this very
Shard can be led from here: see Replica.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from delaynode.clock import MAX_CLOCK_SKEW_MS
from delaynode.replica.hosts.host import DRAIN_SECONDS, CopyHost, NodeResources
from delaynode.replication.transport.until import wait_until
from delaynode.store.errors import Damaged, Refused
from delaynode.store.log.commit_log import WriteBatch
from delaynode.store.log.frames import Frame, FrameKind, count_runs, parse_tick
from delaynode.store.queue.consume_queue import NEVER
from delaynode.store.shard import Shard
from delaynode.store.types import Pair, Records

MAX_FRAME_BYTES = 16 << 20  # of frames that are not applied yet; what is more is read from the file again
MIN_FRAME_BYTES = 256 << 10  # of them, whatever the node's other slaves keep
APPLY_BYTES = 1 << 20  # applied in a turn: the event loop has other work too
FRAME_COST = 8 << 10  # bytes: a small frame takes as long as so many more (measured: 40 us)
RUN_COST = 512  # bytes: the same for each request in it
READ_BYTES = 4 << 20
BATCH_S = 0.02  # in which frames gather before they are applied while nobody reads here: a turn costs more than one
READER_S = 2.0  # so long after a Fetch somebody still reads here


class SlaveHost(CopyHost):
    """Follows from start() to end(). on_stored(): told whenever more of the log is stored, or applied."""

    def __init__(self, shard: Shard, directory: str, resources: NodeResources) -> None:
        super().__init__(shard, directory, resources)
        self.on_stored: Callable[[], None] = lambda: None
        self.known_committed = shard.committed_offset  # log offset: all before it is committed, wherever this log ends
        self._frames: deque[Frame] = deque()  # not applied yet, a stretch without gaps, or empty
        self._bytes = 0
        self._apply_wakeup = asyncio.Event()
        self._applying = asyncio.Lock()  # held while frames are applied; a cut waits for it
        self.unreadable_reason: Callable[[], str | None] = lambda: None  # why Fetch is not answered from here
        self.unheard_ms: Callable[[], int] = lambda: 0  # since what is known here was all that the master had committed
        self._caught_up_s = 0.0  # when all that the master had committed was applied, by the loop's clock
        self._readable_s = 0.0  # when all that was released before the start is due, by the loop's clock
        self._read_s = -READER_S  # when Fetch was last asked for, by the loop's clock

    def _heard_s(self) -> float:
        """When the master had committed no more than is known here."""
        return asyncio.get_running_loop().time() - self.unheard_ms() / 1000

    def start(self) -> None:
        self._caught_up_s = self._heard_s()
        super()._note_frame_time(self.shard.wall_ms)
        self._readable_s = self._frame_s + self.shard.max_ahead_ms / 1000
        self.on_visible_rows([])
        self._tasks = [
            asyncio.create_task(self._guard(loop())) for loop in (self._apply_loop, *self.maintenance.loops())
        ]

    def _end(self, why: str) -> None:
        super()._end(why)
        self._forget_frames()  # whoever applies them is cancelled

    async def end(self, why: str) -> None:
        """Nothing runs or is being written when this returns; the Shard is as its committed frames made it."""
        self._end(why)
        await self._wait_idle()
        await self._end_mark()

    async def stop(self) -> None:
        """The node is stopping. A checkpoint makes the next start quick."""
        await self.end("the shard's node is stopping")
        if self.failure is None:
            try:
                await self.maintenance.persist(copy_wheels=True)
            except (OSError, Damaged) as error:
                self.fail(f"checkpoint: {error}", error)
        await self._end_mark()

    # ------------------------------------------------------------ the master's frames
    def receive(self, data: memoryview) -> None:
        """Whole frames that begin at the log's end. Raises BadFrame or Damaged and takes nothing."""
        frames = self.shard.log.receive(data)
        if not frames:
            return
        at = self._frames[-1].end if self._frames else self.shard.applied
        if frames[0].offset == at and self._may_keep(len(data)):
            self._frames.extend(frames)
            self._count_kept(len(data))
        self.resources.syncer.mark(self)

    def _may_keep(self, size: int) -> bool:
        """Whether so many bytes more of frames may stay in memory, until they are applied."""
        kept, total = self.resources.frame_memory, self._bytes + size
        return total <= MIN_FRAME_BYTES or (total <= MAX_FRAME_BYTES and kept.used + size <= kept.limit)

    def _count_kept(self, size: int) -> None:
        self._bytes += size
        self.resources.frame_memory.used += size

    def _forget_frames(self) -> None:
        self._frames.clear()
        self._count_kept(-self._bytes)

    def commit_to(self, offset: int) -> None:
        """All before this log offset is committed."""
        if offset > self.known_committed:
            if self.shard.applied >= self.known_committed:
                self._caught_up_s = self._heard_s()
            self.known_committed = offset
            self._apply_wakeup.set()

    async def cut(self, end: int) -> None:
        """Drop the log from `end` on. Raises Damaged where something committed would go."""
        async with self._applying, self.maintenance.file_lock:  # a checkpoint syncs the very files that are cut
            log = self.shard.log
            await wait_until(lambda: not self.resources.syncer.busy(self), DRAIN_SECONDS)
            # `known_committed` may lie beyond what is here
            if end < min(self.known_committed, log.end) or end < self.shard.applied:
                raise Damaged(f"{self.directory}: not cut at {end}: all before {self.known_committed} is committed")
            self._forget_frames()
            batch = log.next_batch(sync=self.resources.fsync)  # here: no sync round must take it while the file is cut

            def work() -> None:
                if batch is not None:
                    batch.run()
                    log.finish(batch)
                if log.end > end or log.written > log.synced:
                    log.cut(min(end, log.end))

            await self.off_loop(work)
            # beyond the log's end, it was of another history if copies were lost
            self.known_committed = min(self.known_committed, log.end)

    def on_written(self, batch: WriteBatch) -> None:
        self.shard.finish_writes(batch)
        self._apply_wakeup.set()
        self.on_stored()
        if self.shard.log.pending:
            self.resources.syncer.mark(self)

    @property
    def replaceable(self) -> bool:
        return True

    async def wait_log_committed(self, offset: int) -> None:
        """What is applied is stored."""
        if self.failure is not None or offset > self.durable:
            raise self._refusal("it follows a master")

    async def wait_committed(self, offset: int) -> None:
        await self.wait_log_committed(offset)

    def check_serving(self) -> None:
        super().check_serving()
        why = self.unreadable_reason()
        if why is not None:
            raise Refused("NOT_SERVING", f"shard {self.name} is not read from this copy: {why}")

    def behind_ms(self) -> int:
        if self.shard.applied >= self.known_committed:
            return self.unheard_ms()
        applying_ms = int((asyncio.get_running_loop().time() - self._caught_up_s) * 1000)
        return max(self.unheard_ms(), applying_ms)

    async def fetch(self, offset: int, max_count: int, max_bytes: int, wait_ms: int) -> tuple[int, Records]:
        self.check_serving()
        now_s = self._read_s = asyncio.get_running_loop().time()
        if now_s < self._readable_s:
            await asyncio.sleep(self._readable_s - now_s)
        if offset > self.shard.queue.visible:  # whoever asks has read further elsewhere
            raise Refused("NOT_SERVING", f"shard {self.name}: this slave has queue offset {offset} not yet")
        return await super().fetch(offset, max_count, max_bytes, wait_ms)

    # ------------------------------------------------------------ applying
    def _note_frame_time(self, wall_ms: int) -> None:
        """Where the master's clock was set back far, what waits goes on by the time of the frames before."""
        if wall_ms >= self.master_ms() - MAX_CLOCK_SKEW_MS or self.shard.queue.next_visible_ms() == NEVER:
            super()._note_frame_time(wall_ms)

    async def _apply_loop(self) -> None:
        shard, time_s = self.shard, asyncio.get_running_loop().time
        mark, mark_s = self.known_committed, self._heard_s()
        while True:
            if shard.applied >= mark:
                self._caught_up_s = max(self._caught_up_s, mark_s)
                mark, mark_s = self.known_committed, self._heard_s()
            limit = min(self.known_committed, self.durable)
            if shard.applied >= limit:
                self._apply_wakeup.clear()
                await self._apply_wakeup.wait()
                continue
            if self.maintenance.full:  # other shards checkpoint first; what is stored meanwhile is acknowledged
                await self.maintenance.wait_flushed()
                continue
            async with self._applying:
                await self._apply(min(limit, self.durable))  # it may have been cut meanwhile
            self.on_stored()
            behind = shard.applied < min(self.known_committed, self.durable)
            read = len(self.waiters) or time_s() < self._read_s + READER_S
            await asyncio.sleep(0 if behind or read else BATCH_S)

    async def _apply(self, limit: int) -> None:
        shard = self.shard
        if not self._frames or self._frames[0].offset != shard.applied:
            self._forget_frames()
            await self._read_back()
        taken, first = 0, self._frames[0]
        if first.end <= limit and shard.loader.is_needed_by(first):
            tick = parse_tick(first)
            await self.maintenance.load_past(Pair(tick.due, tick.seq))
        async with self.resources.apply_turn:
            while self._frames and self._frames[0].end <= limit and taken < APPLY_BYTES and not self.maintenance.full:
                frame = self._frames[0]
                if shard.loader.is_needed_by(frame):
                    break  # not with everybody's turn
                self._frames.popleft()
                size = frame.end - frame.offset
                self._count_kept(-size)
                taken += size + FRAME_COST + RUN_COST * count_runs(frame)
                # A term begins once all that was released before it is due.
                is_term = frame.kind is FrameKind.EPOCH
                self.on_visible_rows(shard.commit(frame.offset, NEVER if is_term else self.master_ms()))
                shard.apply(frame)
                self._note_frame_time(frame.wall_ms)
            self.on_visible_rows(shard.commit(shard.applied, self.master_ms()))
        self.maintenance.check(self.resources.clock.now_ms())

    async def _read_back(self) -> None:
        """The next frames to apply, out of the log's files."""
        log, start = self.shard.log, self.shard.applied
        max_size = READ_BYTES if self._may_keep(READ_BYTES) else MIN_FRAME_BYTES
        self._count_kept(max_size)  # before it is read: many may be read at once

        def work() -> tuple[int, list[Frame]]:
            data = log.read_raw(start, max_size)
            return len(data), log.parse_all(memoryview(data), start)

        size, frames = await self.off_loop(work)
        self._count_kept(size - max_size)
        if not frames:
            raise Damaged(f"{self.directory}: the log has nothing at {start}, which is committed")
        self._frames.extend(frames)
