"""ShardHost: serves one shard through a term: ticks, commits, deliveries, and whoever waits for them."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import time
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, cast

import numpy as np
from delayregistry.model import TopicQuotas

from delaynode.clock import MAX_CLOCK_SKEW_MS, monotonic_ms
from delaynode.replica.hosts.arrivals import Arrivals, Stored
from delaynode.replica.hosts.host import CopyHost, NodeResources
from delaynode.replica.hosts.quotas import Cost, Quota, shard_quotas
from delaynode.replica.hosts.schedules import Fired, ScheduleMaster
from delaynode.replication.transport.until import Wakeup, wait_until
from delaynode.store.columns import is_few, lowest
from delaynode.store.errors import Damaged, Refused
from delaynode.store.log.commit_log import WriteBatch
from delaynode.store.log.incoming_batch import IncomingBatch
from delaynode.store.merging import Answer, Merger
from delaynode.store.queue import consumers
from delaynode.store.queue.consume_queue import NEVER, ReleasedRows
from delaynode.store.queue.consumers import ConsumerDelivery
from delaynode.store.queue.rate_limit import RateLimit
from delaynode.store.shard import Appended, Shard
from delaynode.store.types import I64, U32, Bools, Buffer

TICK_MS = 3  # a shard's ticks start at least this far apart
LEAD_MS = 8  # a tick starts so long before the due that calls for it: a write with its sync, here and on the slaves
AHEAD_MS = 14  # and releases what is due within so long: one tick for the messages of several ms
STOP_SECONDS = 5.0  # a stopping master waits so long for its slaves
UNSURE_SECONDS = 1.0  # a consumer that waits is told so long after the master has stopped to serve
MAX_UNSYNCED_BYTES = 8 << 20  # of firings that wait to be committed before more are written
FULL_DISK_MS = 1_000  # between two looks whether schedules may fire again
HELD_SECONDS = 0.02  # between two looks whether a master may go on
CLOCK_DIFFERS = "most other nodes' clocks differ from this node's, or were not heard yet; retry"


class Replication(Protocol):
    """What the term says: replication/term/leader.py. A lone copy has none, its own log is all there is to a commit."""

    def live(self) -> bool:
        """Whether what is read here may be answered."""

    def commit_limit(self) -> int:
        """Every frame before this log offset is stored by every counted member, this copy included."""

    def on_committed(self, offset: int) -> None: ...

    @property
    def ships(self) -> bool:
        """There are others to send to."""

    def sealed(self, batch: WriteBatch, parts: list[Buffer]) -> None:
        """On the thread that writes."""

    def on_written(self) -> None: ...

    def needed_from(self) -> int:
        """The log offset below which no other replica needs the log."""

    @property
    def in_sync_size(self) -> int: ...


class ShardHost(CopyHost):
    """Serves one shard from start() to stop(). Raises Refused to callers, NOT_SERVING once it has stopped."""

    leads = True

    def __init__(
        self,
        shard: Shard,
        directory: str,
        resources: NodeResources,
        replication: Replication | None = None,
        min_in_sync: int = 1,
    ) -> None:
        super().__init__(shard, directory, resources)
        self.replication = replication
        self.min_in_sync = min_in_sync
        self.serving = False
        self.paused: str | None = None  # why nothing is appended or answered for the moment
        self._ended: str | None = None  # why nothing more is committed here, for good
        # heap: log offset, number in order of arrival, who waits, and what for
        self._commit_waiters: list[tuple[int, int, asyncio.Future[Any], object]] = []
        self._numbers = itertools.count()
        self._arrivals = Arrivals(self, self.on_proposed)
        self._rate_limit: RateLimit | None = None  # of releases, where the topic has a cap
        self._paced_end = 0  # queue offset: the pace knows of the releases before it
        self.topic_quotas: tuple[Quota, ...] = ()  # of the topic; this shard's part
        self._quotas: TopicQuotas | None = None
        self.schedules = ScheduleMaster(shard, self._tell_unreckoned)
        self._tick_wakeup = Wakeup()  # the tick loop should look again
        self._sleep_until = 0  # ms: when the tick loop wakes by itself

    # ------------------------------------------------------------ life
    async def start(self, epoch: int, node: str) -> None:
        """Begin the term whose epoch was persisted; serves when this returns.

        MAX_AHEAD_MS must have passed since the log got its last frame: all that it released is due then, by the clock
        of the master that released it.
        """
        self.on_visible_rows(self.shard.show(NEVER))
        self.shard.begin_term(epoch, node, self.resources.clock.now_ms())
        self.serving = True
        self.resources.syncer.mark(self)
        await self.wait_log_committed(self.shard.log_end)
        await self.maintenance.load()
        self._tasks = [
            asyncio.create_task(self._guard(loop())) for loop in (self._tick_loop, *self.maintenance.loops())
        ]

    async def stop(self) -> None:
        """Stop serving: what was appended is still committed and answered, whoever waits for more gets NOT_SERVING.

        A checkpoint makes the next start quick.
        """
        if self.serving:
            self._arrivals.append()
            self.serving = False  # from here on nobody appends, so there is an end to wait for
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            with suppress(Refused, TimeoutError):  # it failed, or no slave answers: there is nothing more to wait for
                async with asyncio.timeout(STOP_SECONDS):
                    await self.wait_log_committed(self.shard.log_end)
        self._end("the shard's node is stopping")
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.maintenance.wait_idle()
        await self._last_checkpoint()
        await self._end_mark()

    async def _last_checkpoint(self) -> None:
        if self.failure is None and self.shard.committed_offset == self.shard.log_end:
            try:
                await self.maintenance.checkpoint(copy_wheels=True)
            except (OSError, Damaged) as error:
                self.fail(f"checkpoint: {error}", error)

    def stop_serving(self, why: str) -> None:
        """The term is over: nobody need wait for what may never be committed. wind_down() comes later."""
        self._end(why)

    async def wind_down(self, why: str, *, stopping: bool = False) -> None:
        """The term is over. Nothing runs or is being written when this returns. stopping: the node is, too."""
        self._end(why)
        await self._wait_idle()
        if stopping:
            await self._last_checkpoint()
        await self._end_mark()

    def _end(self, why: str) -> None:
        self.serving, self._ended = False, why
        super()._end(why)
        waiting, self._commit_waiters = self._commit_waiters, []
        self._arrivals.refuse_all(lambda: self._refusal(why))
        for _, _, future, _ in waiting:
            if not future.done():
                future.set_exception(self._refusal(why))
                future.exception()  # a caller that went away does not collect it

    def pause(self, why: str) -> None:
        """Append nothing and answer nothing until resume()."""
        self.paused = why

    def resume(self) -> None:
        self.paused = None
        self._tick_wakeup.set()

    @property
    def arriving(self) -> int:
        return self._arrivals.messages

    @property
    def replaceable(self) -> bool:
        return self.replication is not None and self.replication.in_sync_size > 1

    def check_serving(self) -> None:
        if not self.serving:
            raise self._refusal("no term")
        if self.paused is not None:
            raise self._refusal(self.paused)
        if self.replication is not None and not self.replication.live():
            raise self._refusal("it has not heard from all its in-sync slaves lately")

    async def wait_may_append(self) -> None:
        """Return when this process may write frames of its own accord."""
        await wait_until(
            lambda: self.paused is None and (self.replication is None or self.replication.live()), HELD_SECONDS
        )

    def needed_from(self) -> int:
        if self.replication is None:
            return self.shard.checkpointed
        return min(self.shard.checkpointed, self.replication.needed_from())

    # ------------------------------------------------------------ commit
    def next_batch(self) -> WriteBatch | None:
        self._arrivals.append()
        batch = super().next_batch()
        if batch is not None and self.replication is not None and self.replication.ships:
            batch.on_sealed = self.replication.sealed
        return batch

    def on_written(self, batch: WriteBatch) -> None:
        self.shard.finish_writes(batch)
        if self.replication is not None:
            self.replication.on_written()
        self.advance()
        if self.shard.log.pending:
            self.resources.syncer.mark(self)

    def advance(self) -> None:
        """Commit what may be committed, and tell whoever waits for it."""
        if self.failure is not None or not (self.serving or self._commit_waiters):
            return
        end = self.durable if self.replication is None else min(self.durable, self.replication.commit_limit())
        if end <= self.shard.committed_offset:
            return
        try:
            released = self.shard.commit(end, self.master_ms())
        except OSError as error:
            self.fail(f"ConsumeQueue: {error}", error)
            return
        if self.replication is not None:
            self.replication.on_committed(end)
        while self._commit_waiters and self._commit_waiters[0][0] <= end:
            _, _, future, result = heapq.heappop(self._commit_waiters)
            if not future.done():
                future.set_result(result)
        self.on_visible_rows(released)

    def master_ms(self) -> int:
        # A clock that is set back far must not keep from being seen what was to be due in some ms.
        return max(self.resources.clock.now_ms(), super().master_ms() - MAX_CLOCK_SKEW_MS)

    def on_visible_rows(self, released: list[ReleasedRows]) -> None:
        if released:
            self._count(released)
        super().on_visible_rows(released)

    def _seconds_until(self, due_ms: int) -> float:
        return super()._seconds_until(due_ms) - self.resources.part_of_ms()

    async def wait_committed(self, offset: int) -> None:
        """Return once everything before log offset `offset` is committed, and may be answered. Raises Refused."""
        if offset > self.shard.committed_offset:
            self.check_serving()
            await self.wait_log_committed(offset)
        if self.replication is not None:
            self.check_serving()

    async def wait_replicated(self, offset: int) -> None:
        """The same as wait_committed(), for producers; then raises Refused with fewer copies in sync than minInSync."""
        await self.wait_committed(offset)
        self.check_in_sync(appended=True)

    def check_in_sync(self, *, appended: bool = False) -> None:
        """Raises Refused when fewer copies are in sync than minInSync. appended: the call's frame is in the log."""
        if self.replication is not None and self.replication.in_sync_size < self.min_in_sync:
            unknown = "outcome unknown, a retry with the same number is safe"
            outcome = unknown if appended else "this call stored nothing"
            raise Refused(
                "NOT_ENOUGH_REPLICAS",
                f"shard {self.name} has {self.replication.in_sync_size} copies in sync, minInSync is "
                f"{self.min_in_sync}; {outcome}",
            )

    async def wait_log_committed(self, offset: int) -> None:
        """The same as wait_committed(), also while the shard is stopping or may not answer."""
        if offset <= self.shard.committed_offset:
            return
        if self.failure is not None or self._ended is not None:
            raise self._refusal(self._ended or "")
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._commit_waiters, (offset, next(self._numbers), future, None))
        self.resources.syncer.mark(self)
        await future

    def _count(self, released: list[ReleasedRows]) -> None:
        """A message that was due when it came is late by the time since then."""
        now = self.resources.clock.now_ms()
        metrics = self.resources.metrics
        for rows, arrived_ms, _ in released:
            metrics.released[self.topic] += len(rows)
            if is_few(len(rows)):
                for due in rows["due"].tolist():
                    metrics.lateness[self.topic].add_one(max(now - max(due, arrived_ms), 0))
            else:
                metrics.lateness[self.topic].add(np.maximum(now - np.maximum(rows["due"], arrived_ms), 0))

    # ------------------------------------------------------------ loops
    async def _tick_loop(self) -> None:
        rests_until = 0.0  # time.monotonic()
        while True:
            now = self.resources.clock.now_ms()
            wake, rest = self._next_wakeup(now), rests_until - time.monotonic()
            if wake > now:
                self._sleep_until = wake
                seconds = (wake - now) / 1000 - self.resources.part_of_ms()
                await self._tick_wakeup.wait(min(max(seconds, rest), 60.0))
                continue
            if rest > 0:
                await asyncio.sleep(rest)
                continue
            await self.wait_may_append()
            await wait_until(self.resources.may_tick, HELD_SECONDS)
            now, started = self.resources.clock.now_ms(), time.monotonic()
            with self.resources.syncer.turn(many=False):
                fired = self._fire(now)
                released = self._tick(self.resources.clock.now_ms())
                ended = self.shard.consumers.expire(now)
                if self.shard.log.pending:
                    self.resources.syncer.mark(self)
            if fired.full and self.unsynced < MAX_UNSYNCED_BYTES:
                await asyncio.sleep(0)  # the next ones are written with these
                continue
            if released >= 0 or ended.any or fired.any:
                await self.wait_log_committed(self.shard.log_end)
                self.resources.metrics.dead[self.topic] += ended.dead
                if ended.any:
                    self.waiters.wake_all()
            self.maintenance.check(now)
            rests_until = started + TICK_MS / 1000 if released < self.shard.config.max_tick else 0.0
            if rests_until <= time.monotonic():  # else others have their turn while this one rests
                await asyncio.sleep(0)

    def _next_wakeup(self, now_ms: int) -> int:
        """The earliest time at which the tick loop has something to do, ms."""
        tick = self.shard.next_tick() - self._lead_ms
        if self._rate_limit is not None and tick <= now_ms:
            tick = self._rate_limit.ready_ms(now_ms)
        if (schedules := self.schedules.next_due()) <= now_ms:
            schedules = now_ms + self._hold_firings_ms()
        return min(tick, schedules, self.shard.consumers.next_expiry())

    def _fire(self, now_ms: int) -> Fired:
        """Fire the schedules that are due."""
        if self.schedules.next_due() > now_ms or self._hold_firings_ms():
            return Fired()
        fired = self.schedules.fire_due(now_ms)
        for quota in self.topic_quotas:
            quota.take(Cost(fired.fired, 0), monotonic_ms())
        self.resources.syncer.mark(self)
        metrics = self.resources.metrics
        for outcome, count in (("fired", fired.fired), ("skipped", fired.skipped), ("missed", fired.missed)):
            metrics.firings[self.topic, outcome] += count
        metrics.enqueued[self.topic] += fired.fired
        return fired

    def _hold_firings_ms(self) -> int:
        """How long firings wait: for room on the disk, and while the topic's rate is owed, as new messages do."""
        if self.resources.disk_full():
            return FULL_DISK_MS
        now_ms = monotonic_ms()
        return max((quota.ready_ms(now_ms) - now_ms for quota in self.topic_quotas), default=0)

    def _tell_unreckoned(self, id_: str, why: str) -> None:
        self.resources.log("schedule-paused", shard=self.name, epoch=self.shard.epoch, schedule=id_, reason=why)

    def _tick(self, now_ms: int) -> int:
        """Shard.tick() at the topic's pace."""
        ahead_ms, max_count = min(AHEAD_MS, self.shard.max_ahead_ms), None
        if self._rate_limit is not None:
            self._count_arrived(self._rate_limit, now_ms)
            max_count = self._rate_limit.available(now_ms)
            if max_count < 1:
                return -1
        released = self.shard.tick(now_ms, max_count, ahead_ms)
        if released >= 0:
            self._note_frame_time(now_ms)
        if self._rate_limit is not None:
            self._rate_limit.spend(max(0, released))
            self._paced_end = self.shard.queue.end
        return released

    def _count_arrived(self, pace: RateLimit, now_ms: int) -> None:
        """Count what producers' own frames have released."""
        pace.owe(self.shard.queue.end - self._paced_end, now_ms)
        self._paced_end = self.shard.queue.end

    @property
    def release_rate(self) -> int | None:
        """Messages per second that this shard may release; None: no cap."""
        return None if self._rate_limit is None else self._rate_limit.rate

    def set_release_rate(self, rate: int | None) -> None:
        """rate: see release_rate."""
        if rate == self.release_rate:
            return
        now = self.resources.clock.now_ms()
        if rate is None:
            self._rate_limit = None
        else:
            self._rate_limit = RateLimit(rate, now) if self._rate_limit is None else self._rate_limit.changed(rate, now)
            self._paced_end = self.shard.queue.end
        self._tick_wakeup.set()

    def set_topic_kept(self, kept: bool) -> None:
        """kept: whether the topic is one of the cluster's; else its schedules don't fire by the clock."""
        if self.schedules.stopped == kept and (count := len(self.shard.schedules)):
            told = {"shard": self.name, "epoch": self.shard.epoch, "schedules": count}
            if kept:
                self.resources.log("schedules-resumed", **told)
            else:
                self.resources.log("schedules-stopped", **told)
        self.schedules.stopped = not kept
        self._tick_wakeup.set()

    def set_quotas(self, share: TopicQuotas | None) -> None:
        """share: this shard's part of its topic's quotas; None: it has none."""
        if share == self._quotas:
            return
        self._quotas, self.topic_quotas = share, ()
        if share is not None:
            shard, arrivals = self.shard, self._arrivals
            self.topic_quotas = shard_quotas(
                self.topic, shard.identity.queue, share, lambda: shard.index.pending + arrivals.messages,
                lambda: shard.index.pending_bytes + arrivals.record_bytes,
            )  # fmt: skip

    @property
    def _lead_ms(self) -> int:
        return min(LEAD_MS, self.shard.max_ahead_ms)

    def _wake_by(self, time_ms: int) -> None:
        """Something is due, or a lease ends, at `time_ms`: the tick loop must not sleep longer."""
        if time_ms < self._sleep_until:
            self._tick_wakeup.set()

    def wake_tick_loop(self) -> None:
        """The tick loop should look again."""
        self._tick_wakeup.set()

    # ------------------------------------------------------------ what callers ask for
    def enqueue(self, batch: IncomingBatch) -> asyncio.Future[Appended]:
        """Store a batch with the shard's next write, after those that came before it; the answer is for stored()."""
        return cast("asyncio.Future[Appended]", self.enqueue_many(batch))

    def enqueue_many(self, batch: IncomingBatch) -> Stored:
        """The same for a batch that may be of many requests (`runs`): the answer is one Appended for all of them, or a
        list of answers to come, one for each, in order. Before any of it is told to a producer: check_may_answer().

        Raises Refused where the shard takes nothing just now.
        """
        self.check_may_append()
        return self._arrivals.add(batch)

    async def stored(self, answer: asyncio.Future[Appended]) -> Appended:
        """What enqueue() was answered, once that may be told to the producer. Raises Refused."""
        refused = None
        try:
            appended = await answer
        except Refused as error:  # the future keeps it, and would keep the frames of those who wait, with the request
            refused, error.__traceback__ = error.fresh(), None
        if refused is not None:
            try:
                raise refused
            finally:
                del refused  # it has this frame, and so would keep itself
        self.check_may_answer()
        return appended

    def check_may_answer(self) -> None:
        """Raises Refused where a producer may not be told what is committed."""
        if self.replication is not None:
            self.check_serving()
            self.check_in_sync(appended=True)

    # ------------------------------------------------------------ as arrivals see it
    def check_may_append(self) -> None:
        self.check_serving()
        self.check_in_sync()

    def is_stored(self, batch: IncomingBatch) -> bool:
        return self.shard.producers.has(batch.producer, batch.number)

    def append(self, batches: list[IncomingBatch]) -> list[Answer]:
        now = self.resources.clock.now_ms()
        check = None if self.resources.may_tick() else partial(self._check_not_passed, now_ms=now)
        answers = Merger(self.shard, now, check).enqueue(batches)
        if self._rate_limit is not None:
            self._count_arrived(self._rate_limit, now)
        if self.failure is not None:  # one of them has stopped the copy
            return [self._refusal("") for _ in answers]
        flat = [part for one in answers for part in ([its for _, its in one] if isinstance(one, list) else (one,))]
        stored = [one for one in flat if isinstance(one, Appended) and not one.duplicate]
        if stored:
            self.resources.metrics.enqueued[self.topic] += sum(one.new for one in stored)
            self._wake_by(min(lowest(one.due)[0] for one in stored if one.due is not None) - self._lead_ms)
            self.maintenance.check_units()
        return answers

    def answer_at_commit(self, answer: Stored, appended: Appended) -> None:
        if appended.log_end <= self.shard.committed_offset:
            answer.set_result(appended)
        else:
            heapq.heappush(self._commit_waiters, (appended.log_end, next(self._numbers), answer, appended))

    def _check_not_passed(self, batch: IncomingBatch, now_ms: int) -> None:
        self.check_not_passed(batch.time[batch.relative == 0] if len(batch.relative) else batch.time, now_ms)

    # ------------------------------------------------------------ a clock that may be wrong
    def check_not_passed(self, dues: I64, now_ms: int) -> None:
        """Raises Refused where a message would be released at once only because this node's clock, which is not one to
        release by, has passed its due."""
        if not self.resources.may_tick() and bool(((dues > self.shard.index.watermark.due) & (dues <= now_ms)).any()):
            raise Refused("CLOCK_BEHIND", CLOCK_DIFFERS)

    def check_clock(self) -> None:
        """Raises Refused while this node's clock is not one to release by: times may be asked for by the present."""
        if not self.resources.may_tick():
            raise Refused("CLOCK_BEHIND", CLOCK_DIFFERS)

    async def receive(
        self,
        group: str,
        tags: tuple[str, ...],
        max_count: int,
        max_bytes: int,
        wait_ms: int,
        invisible_ms: int,
        from_end: bool,
    ) -> ConsumerDelivery:
        """Hand messages out, waiting up to `wait_ms` for the first."""
        self.check_serving()
        shard, clock = self.shard, self.resources.clock
        rests_on = shard.consumers.join(group, tags, from_end=from_end, now_ms=clock.now_ms())
        await self.wait_committed(rests_on)
        deadline = time.monotonic() + wait_ms / 1000
        while True:
            self.check_serving()
            await self.pass_filtered(group)
            now = clock.now_ms()
            found = shard.consumers.group(group)
            if found.readable(shard.queue, now):
                delivery = shard.consumers.deliver(group, now, invisible_ms, max_count, max_bytes)
                if len(delivery.offset):
                    self.waiters.wake_first(group)
                    self._wake_by(found.next_expiry)
                    try:
                        await self.wait_committed(delivery.depends_on)
                    except BaseException:  # also that who asked has gone
                        self.give_back(group, delivery)
                        raise
                    return delivery
            left = deadline - time.monotonic()
            if left <= 0:
                await self.wait_committed(found.commit_dependency.last)  # what took the last one away
                return ConsumerDelivery(np.empty(0, np.int64), np.empty(0, np.uint32), shard.queue.read(0, 0))
            await self.waiters.wait_for_group(group, min(left, self.sure_seconds))

    @property
    def sure_seconds(self) -> float:
        """So long a consumer waits before it is asked again whether this is the master: one that is cut off must not
        keep its consumers waiting while another delivers."""
        return UNSURE_SECONDS if self.replication is not None else math.inf

    def is_empty_for(self, group: str) -> bool:
        """Whether a consumer of the group, which is known here and has no filter, would have to wait now."""
        found = self.shard.consumers.groups.get(group)
        return (
            found is not None and not found.tags and not found.readable(self.shard.queue, self.resources.clock.now_ms())
        )

    async def pass_filtered(self, group: str) -> None:
        """Look for the group's next message, a step after the other: its filter may leave millions out, and other
        shards have their turns between two steps. Raises Refused."""
        found = self.shard.consumers.group(group)
        while found.skip_filtered(self.shard.queue, consumers.SKIP_ROWS):
            await asyncio.sleep(0)
            self.check_serving()

    def give_back(self, group: str, delivery: ConsumerDelivery) -> None:
        """Take back a delivery that was sent to nobody."""
        found = self.shard.consumers.groups.get(group)
        if found is not None:
            found.undo_delivery(delivery.offset, delivery.until_ms)
            self.waiters.wake_first(group)

    async def extend(self, group: str, offset: I64, attempt: U32, invisible_ms: int) -> tuple[Bools, int]:
        """Which of n attempts, offset i64[n] and attempt u32[n], were not over: they last for `invisible_ms` from now
        on; 0: the messages are given back, and the attempts stay theirs. Also until when. Raises Refused."""
        self.check_serving()
        await self.pass_filtered(group)
        now = self.resources.clock.now_ms()
        is_open = self.shard.consumers.extend(group, offset, attempt, now + invisible_ms if invisible_ms else 0)
        found = self.shard.consumers.group(group)
        self._wake_by(found.next_expiry)
        if not invisible_ms:
            self.waiters.wake_first(group)
        await self.wait_committed(found.commit_dependency.last)  # what ended the other attempts
        return is_open, now + invisible_ms

    def on_visible(self) -> None:
        """Something became visible other than by a release: a retry, a redrive."""
        self.waiters.wake_all()
        self._tick_wakeup.set()

    def on_proposed(self, due_ms: int | None = None) -> bool:
        if due_ms is not None:
            self._wake_by(due_ms - self._lead_ms)
        return self.resources.syncer.mark(self)
