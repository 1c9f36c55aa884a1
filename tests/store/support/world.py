"""One shard on a disk that crashes, driven step by step beside the model, with every answer compared.

Each method is one thing that a node may do at any moment. Jobs (write, load, cascade, checkpoint, lookup) are three
steps each, so that whatever else may happen in between does.
"""

from __future__ import annotations

import copy
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Self

import numpy as np
from delayapi.units import DAY_MS, HOUR_MS, MINUTE_MS
from delaynode.store.config import ShardConfig
from delaynode.store.log.commit_log import WriteBatch
from delaynode.store.log.frames import APPENDS, FIRES, NEVER, TICKS, FrameKind, Unsealed
from delaynode.store.log.incoming_batch import ID
from delaynode.store.maintenance import persist
from delaynode.store.maintenance.reclaim import KeepConfig
from delaynode.store.queue.consume_queue import QUEUED_BYTES
from delaynode.store.queue.schedules import ScheduleState
from delaynode.store.shard import Shard
from delaynode.store.timer.cascade import CascadeJob
from delaynode.store.timer.forecast import begin_forecast
from delaynode.store.timer.jobs import LoadJob
from delaynode.store.types import MAX_SEQ, Records

from tests.store.support import model as m
from tests.store.support.memory_files import Crashed, MemoryFiles
from tests.store.support.model import Event, Model, Msg

START_MS = 1_700_000_000_000
ROOT = "/data/t-0"
UID = 0xFEEDFACECAFEBEEF
FAR_MS = 1 << 60  # all that is committed may be seen: when is tested in queue/test_store_queue.py

KIND_OF = {
    m.Epoch: FrameKind.EPOCH, m.Append: FrameKind.APPEND, m.Tick: FrameKind.TICK, m.Cancel: FrameKind.CANCEL,
    m.Scheduled: FrameKind.SCHEDULE, m.Fire: FrameKind.FIRE,
    m.Reschedule: FrameKind.RESCHEDULE, m.GroupMade: FrameKind.GROUP, m.GroupGone: FrameKind.GROUP,
    m.Ack: FrameKind.ACK, m.Retry: FrameKind.RETRY, m.Dead: FrameKind.DEAD, m.Redrive: FrameKind.RETRY,
    m.Drop: FrameKind.DEAD, m.Trim: FrameKind.TRIM, m.Relocate: FrameKind.RELOCATE,
}  # fmt: skip

SMALL = ShardConfig(
    horizon_ms=40 * DAY_MS,
    max_attempts=2,
    max_unacked=10,
    max_tick=5,
    window_budget=8,
    lookahead_ms=2 * MINUTE_MS,
    chunk_units=3,
    log_segment_bytes=2000,
    timer_segment_bytes=52 * 12,
    queue_segment_bytes=40 * 7,
    keep=KeepConfig(retention_ms=HOUR_MS, keep_log_bytes=0, keep_log_ms=0, relocate_after_ms=0),
)
"""Limits so low that every path is taken with a handful of messages."""


def schedules_of(shard: Shard) -> dict[str, dict[str, object]]:
    """All that is known of each schedule, by id, in a form that can be compared."""
    names = [one.name for one in fields(ScheduleState)]
    found = {id_: shard.schedules.find(id_) for id_ in shard.schedules.ids()}
    return {
        id_: {name: getattr(one, name) for name in names} | {"recent": one.recent.tolist()}
        for id_, one in found.items()
        if one is not None
    }


@dataclass
class Entry:
    """A frame in the log and what it means."""

    end: int
    event: Event
    queue_end: int  # the queue's end once this frame and all before it are applied


class WorldBase:
    """The shard's life: log, jobs, clock, crashes."""

    def __init__(
        self, seed: int = 0, config: ShardConfig = SMALL, *, fsync: bool = True, page: int = 64, now_ms: int = START_MS
    ) -> None:
        self.rng = random.Random(seed)  # draws bodies and disk troubles; the caller chooses the steps
        self.disk = MemoryFiles(self.rng, page)
        self.config = config
        self.fsync = fsync
        self.now = self.born = now_ms
        self.entries: list[Entry] = []
        self.released_ms: list[int] = []  # by queue offset: when it was released
        self.queue_bytes = b""  # the bytes of all rows that commit() has returned
        self.recoveries = 0
        self.shard = persist.create(self.disk, ROOT, UID, "t", 0, config, now_ms)
        self.model = Model(self.shard.index.watermark)
        self._forget_jobs()
        self.term()

    def _forget_jobs(self) -> None:
        self.batch: WriteBatch | None = None
        self.loading: LoadJob | None = None
        self.cascading: CascadeJob | None = None
        self.checkpointing: persist.CheckpointJob | None = None
        self.ran: set[str] = set()  # jobs that wait for their finish
        self.crashed_lookups()

    def crashed_lookups(self) -> None:
        """Lookups under way are gone with the process."""

    # ------------------------------------------------------------ trouble
    @contextmanager
    def disk_trouble(self) -> Iterator[None]:
        """A crash or an I/O error in this step ends the process; it comes back from what the disk holds."""
        try:
            yield
        except Crashed:
            self.power_cut()
        except OSError:
            self.power_cut()  # a copy that saw a write fail is damaged; here its machine restarts

    def power_cut(self) -> None:
        """The machine stops. With fsync nothing that was committed may be missing afterwards."""
        must_have = self.shard.committed_offset if self.fsync else self.shard.log.synced
        self.disk.crash()
        self._recover(must_have)

    def kill(self) -> None:
        """kill -9: all that was written is still there."""
        must_have = max(self.shard.committed_offset, self.shard.log.written)
        self.disk.kill()
        self._recover(must_have)

    def stop(self) -> None:
        """A clean stop and start."""
        self.pump()
        self.checkpoint()
        self.kill()

    def twin(self, disk: MemoryFiles, must_have: int) -> Self:
        """This world come back from another disk, not leading yet. Raises Damaged; fails where the model differs."""
        other = copy.copy(self)
        other.disk = disk
        other._come_back(must_have)
        return other

    def _recover(self, must_have: int) -> None:
        self._come_back(must_have)
        try:
            self.term()
        except Crashed:
            self.power_cut()

    def _come_back(self, must_have: int) -> None:
        self._forget_jobs()
        self.recoveries += 1
        while True:
            try:
                self.shard, self.recovery = persist.recover(self.disk, ROOT, self.config)
                break
            except Crashed:
                self.disk.crash()
        self.shard.queue.show(FAR_MS)
        end = self.shard.log.end
        assert end >= must_have, f"log ends at {end}, committed was {must_have}"
        kept = [entry for entry in self.entries if entry.end <= end]
        assert (kept[-1].end if kept else 0) == end, f"log end {end} is no frame's end"
        self.entries = kept
        self.model = Model((self.born, MAX_SEQ))
        for entry in kept:
            self.model.apply(entry.event)
        self.released_ms = self.released_ms[: len(self.model.queue)]
        self.check_all()

    def term(self) -> None:
        epoch = self.next_epoch()
        persist.accept_epoch(self.disk, ROOT, self.shard, epoch)
        with self.recording() as events:
            self.shard.begin_term(epoch, "n0", self.now)
            events.append(m.Epoch(epoch))

    def next_epoch(self) -> int:
        return self.shard.identity.epoch + 1

    # ------------------------------------------------------------ the log
    @contextmanager
    def recording(self) -> Iterator[list[Event]]:
        """For each frame that the body proposes, the body appends an event to the list: what the frame means."""
        events: list[Event] = []
        before = len(self.shard.log.pending)
        yield events
        frames = [frame for frame in self.shard.log.pending[before:] if isinstance(frame, Unsealed)]
        kinds = [
            FrameKind.APPEND if f.kind in APPENDS - FIRES
            else FrameKind.DEAD if f.kind is FrameKind.DEAD_REASON
            else FrameKind.FIRE if f.kind in FIRES
            else FrameKind.TICK if f.kind in TICKS
            else f.kind
            for f in frames
        ]  # fmt: skip
        assert kinds == [KIND_OF[type(e)] for e in events]
        for frame, event in zip(frames, events, strict=True):
            released = len(self.model.queue)
            self.model.apply(event)
            for queued in self.model.queue[released:]:
                assert queued.due <= self.now + self.shard.max_ahead_ms, "released before its due"
            self.entries.append(Entry(frame.offset + frame.length, event, len(self.model.queue)))
            self.released_ms += [self.now] * (len(self.model.queue) - len(self.released_ms))
        self.check_counters()

    def begin_write(self) -> None:
        if self.batch is None:
            self.batch = self.shard.next_batch(sync=self.fsync or self.rng.random() < 0.2)

    def run_write(self) -> None:
        if self.batch is not None and "write" not in self.ran:
            with self.disk_trouble():
                self.batch.run()
                self.ran.add("write")

    def finish_write(self) -> None:
        if self.batch is not None and "write" in self.ran:
            self.shard.finish_writes(self.batch)
            self.batch = None
            self.ran.discard("write")

    def commit(self, lag: int = 0) -> None:
        """Commit up to `lag` frames before the last that may be committed."""
        ready = self.ready()
        end_of = attrgetter("end")
        first = bisect_right(self.entries, self.shard.committed_offset, key=end_of)
        last = bisect_right(self.entries, ready, key=end_of) - 1 - lag
        if last < first:
            return
        seen = self.shard.queue.visible
        with self.disk_trouble():
            parts = self.shard.commit(self.entries[last].end, FAR_MS)
            got = np.concatenate([part.rows for part in parts]) if parts else None
            assert self.shard.queue.visible == self.entries[last].queue_end
            if got is not None:
                self.queue_bytes += got.tobytes()
                self.compare_rows(got, seen)

    def ready(self) -> int:
        """The log offset before which all may be committed."""
        return self.shard.log.synced if self.fsync else self.shard.log.written

    def pump(self) -> None:
        """Write and commit everything that waits."""
        life = self.recoveries
        for _ in range(2):  # a batch may be under way
            for step in (self.begin_write, self.run_write, self.finish_write, self.commit):
                step()
                if self.recoveries != life:
                    return

    # ------------------------------------------------------------ jobs
    def begin_load(self) -> None:
        if self.loading is None and self.shard.loader.is_due(self.now):
            target = self.shard.loader.target_ms(self.now)
            self.loading = self.shard.index.begin_load(target, self.config.window_budget)

    def run_load(self) -> None:
        if self.loading is not None and "load" not in self.ran:
            self.loading.run()
            self.ran.add("load")

    def finish_load(self) -> None:
        if self.loading is not None and "load" in self.ran:
            self.shard.index.finish_load(self.loading)
            self.loading = None
            self.ran.discard("load")

    def begin_cascade(self) -> None:
        if self.cascading is None and self.checkpointing is None and self.shard.index.cascade_due(self.now):
            self.cascading = self.shard.index.begin_cascade()

    def run_cascade(self) -> None:
        if self.cascading is not None and "cascade" not in self.ran:
            with self.disk_trouble():
                self.cascading.run()
                self.ran.add("cascade")

    def finish_cascade(self) -> None:
        if self.cascading is not None and "cascade" in self.ran:
            self.shard.index.finish_cascade(self.cascading)
            self.cascading = None
            self.ran.discard("cascade")

    def begin_checkpoint(self) -> None:
        if self.cascading is None and self.checkpointing is None:
            self.checkpointing = persist.begin_checkpoint(self.disk, ROOT, self.shard)

    def run_checkpoint(self) -> None:
        job = self.checkpointing
        if job is not None and "checkpoint" not in self.ran and self.shard.committed_offset >= job.log_offset:
            with self.disk_trouble():
                job.run()
                self.ran.add("checkpoint")

    def finish_checkpoint(self) -> None:
        if self.checkpointing is not None and "checkpoint" in self.ran:
            paths = persist.finish_checkpoint(self.checkpointing)
            with self.disk_trouble():
                persist.remove_files(self.disk, paths)
            self.checkpointing = None
            self.ran.discard("checkpoint")

    def copy_wheels(self) -> None:
        if self.checkpointing is None and self.cascading is None:
            with self.disk_trouble():
                persist.copy_wheels(self.disk, ROOT, self.shard)

    def checkpoint(self) -> None:
        self._all_of(
            self.run_cascade, self.finish_cascade, self.begin_checkpoint, self.pump, self.run_checkpoint,
            self.finish_checkpoint,
        )  # fmt: skip

    def _all_of(self, *steps: Callable[[], None]) -> None:
        life = self.recoveries
        for step in steps:
            if self.recoveries == life:
                step()

    # ------------------------------------------------------------ time
    def advance(self, ms: int) -> None:
        self.now += ms

    def idle(self, ms: int) -> None:
        """Advance the clock; the shard writes an idle tick each half hour."""
        while ms > 0:
            self.advance(min(ms, 30 * MINUTE_MS))
            self.settle()
            ms -= 30 * MINUTE_MS

    def tick(self) -> int:
        released = -1
        index = self.shard.index
        with self.recording() as events:
            before = index.watermark
            ahead_ms = self.rng.choice((0, 0, 3, self.shard.max_ahead_ms)) if self.shard.max_ahead_ms else 0
            target = self.now + ahead_ms, MAX_SEQ
            due = sorted(key for key in self.model.live if key <= target)
            released = self.shard.tick(self.now, ahead_ms=ahead_ms)
            if released >= 0:
                mark = index.watermark
                assert before < mark <= target
                assert released == sum(key <= mark for key in due) <= self.config.max_tick
                events.append(m.Tick((mark.due, mark.seq)))
        return released

    def settle(self) -> None:
        """Do everything that is due at this moment; afterwards no due message may be left."""
        life = self.recoveries
        self._all_of(
            self.run_cascade, self.finish_cascade, self.run_load, self.finish_load, self.pump, self.run_checkpoint,
            self.finish_checkpoint,
        )  # fmt: skip
        for _ in range(20_000):
            before = self.progress()
            self._all_of(
                self.begin_cascade, self.run_cascade, self.finish_cascade, self.begin_load, self.run_load,
                self.finish_load,
            )  # fmt: skip
            while self.recoveries == life and self.tick() >= 0:
                self.pump()
            if self.recoveries != life:
                return self.settle()
            if before == self.progress():
                break
        else:
            raise AssertionError("never settles")
        late = [key for key in self.model.live if key[0] <= self.now]
        assert not late, f"due and not released: {late}"
        self.pump()

    def progress(self) -> tuple[object, ...]:
        index = self.shard.index
        return index.watermark, index.window.bound, index.minute_bound_ms, index.cascade

    # ------------------------------------------------------------ comparisons
    def check_counters(self) -> None:
        shard, model = self.shard, self.model
        assert shard.index.watermark == model.watermark
        assert shard.index.pending == len(model.live)
        assert shard.index.pending_bytes == sum(len(msg.body) for msg in model.live.values())
        assert shard.next_seq == model.next_seq
        assert shard.queue.end == len(model.queue)
        assert shard.epoch == model.epoch
        assert schedules_of(shard) == {id_: vars(one) | {"id": id_} for id_, one in model.schedules.items()}
        assert shard.schedules.next_due == min((one.due for one in model.schedules.values()), default=NEVER)
        assert shard.schedules.definition_bytes == sum(len(one.definition) for one in model.schedules.values())

    def compare_rows(self, rows: Records, first: int) -> None:
        expected = self.model.queue[first : first + len(rows)]
        assert [(q.due, q.seq, q.msg.tag, len(q.msg.body)) for q in expected] == [
            (int(r["due"]), int(r["seq"]), int(r["tag"]), int(r["size"])) for r in rows
        ]

    def check_all(self) -> None:
        """After a recovery, when all that is in the log is committed: everything, read back from the disk."""
        self.check_counters()
        shard = self.shard
        assert shard.committed_offset == shard.log.end
        start = shard.queue.start
        assert start == self.model.start
        rows = shard.queue.read(start, shard.queue.end)
        assert len(rows) == len(self.model.queue) - start
        self.compare_rows(rows, start)
        self.check_bodies(rows, [q.msg for q in self.model.queue[start:]])
        content, kept = rows.tobytes(), self.queue_bytes[QUEUED_BYTES * start :]
        common = min(len(content), len(kept))
        assert content[:common] == kept[:common], "the ConsumeQueue changed"
        self.queue_bytes = self.queue_bytes[: QUEUED_BYTES * start] + content
        assert sorted(shard.consumers.groups) == sorted(self.model.groups)
        self.check_ids()

    def check_ids(self) -> None:
        """All ids that were ever stored: the shard knows just those that it must."""
        if self.model.ids:
            ids, time = list(self.model.ids), self.shard.producers.time_ms
            seq, due = self.shard.message_ids.find(np.frombuffer(b"".join(ids), ID), time)
            known = self.model.known_ids(time)
            found = {one: row for one, *row in zip(ids, seq.tolist(), due.tolist(), strict=True) if row[0] >= 0}
            assert found == {one: list(stored[:2]) for one, stored in known.items()}

    def check_bodies(self, rows: Records, messages: list[Msg]) -> None:
        assert b"".join(self.shard.read_records(rows)) == b"".join(msg.body for msg in messages)

    def check_wheel(self) -> None:
        """The slot counts above the minute that is being released, against the model's."""
        times, widths, counts = (column.tolist() for column in self.shard.index.begin_count()())
        bound = self.shard.index.minute_bound_ms
        first = self.shard.index.watermark.due // MINUTE_MS * MINUTE_MS
        expected: dict[tuple[int, int], int] = {}
        for due, _ in self.model.live:
            width = MINUTE_MS if due < bound else HOUR_MS
            slot = due - due % width
            if slot > first:
                expected[slot, width] = expected.get((slot, width), 0) + 1
        got = {(t, w): c for t, w, c in zip(times, widths, counts, strict=True) if t > first}
        assert got == expected
        for end in (first + HOUR_MS, bound + HOUR_MS // 2):
            times, widths, counts = (column.tolist() for column in self.shard.index.begin_count(end)())
            part = {(t, w): c for t, w, c in zip(times, widths, counts, strict=True) if first < t < end}
            assert part == {(t, w): count for (t, w), count in expected.items() if t < end}
        self.check_forecast(first, bound)

    def check_forecast(self, first: int, bound: int) -> None:
        """Never later than in the model; as in the model within the window, and by whole slots too early beyond it."""
        live = np.sort(np.array([due for due, _ in self.model.live], np.int64))
        windowed = self.shard.index.window.bound.due
        near = live[:: max(1, len(live) // 50)] + 1
        edges = np.unique(np.concatenate((near, [first, first + 30_000, windowed, windowed + 1, bound, 2**62])))
        got = begin_forecast(self.shard.index)(edges)
        width = np.where(edges <= bound, MINUTE_MS, HOUR_MS)
        exact, by_slots = live.searchsorted(edges), live.searchsorted(edges - edges % -width)
        assert (exact <= got).all()
        assert (got <= by_slots).all()
        assert (got[edges <= windowed] == exact[edges <= windowed]).all()
