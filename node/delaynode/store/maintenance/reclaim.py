"""Freeing disk: what of a shard nobody needs any more, decided by the master and followed by every replica.

    TRIM      released messages below a queue offset are kept no longer; empty segments of the CommitLog go
    RELOCATE  what is still needed of a mostly dead segment is written again at the log's end, so that it becomes empty;
              small segments are written again as one

A released message is kept until every group (at least one) is done with it, or for `retention_ms` after its release;
dead letters and redriven ones until their group is done with them. Files go once a checkpoint that does without them
is on disk.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from operator import itemgetter

import numpy as np
from delayapi.units import DAY_MS

from delaynode.store.columns import at_or_below
from delaynode.store.errors import Impossible
from delaynode.store.log.checks import record_checks
from delaynode.store.log.commit_log import CommitLog
from delaynode.store.log.frames import FrameKind, Relocate, Trim
from delaynode.store.queue.consume_queue import ConsumeQueue
from delaynode.store.queue.consumers import Consumers
from delaynode.store.queue.ledger import SegmentLedger
from delaynode.store.timer.index import TimerIndex
from delaynode.store.timer.units import ROLL, SAME, units
from delaynode.store.types import Buffer, Records

TRIM_ROWS = 65_536  # queue entries that one TRIM ends the keeping of, at most: they are read on the owner's thread
WORTH_ROWS = 65_536  # so many queue entries, or an empty segment, are worth a TRIM at once
MARKS = 10_000  # of release times: their distance is a ten-thousandth of the retention, at least mark_ms
SMALL_PART = 32  # of the size of a segment: one that is smaller is written again with others
OPEN_PART = 8  # of the size of a segment: what the open one may keep although it is dead
RELOCATED = ("seq", "due", "offset", "size", "key", "tag")  # a unit's fields that a RELOCATE carries

Propose = Callable[[FrameKind, int, tuple[Buffer, ...], int], AbstractContextManager[int]]
"""(kind, count, payload, now ms): append a frame, whose end is given; the body applies it."""


@dataclass(frozen=True, slots=True)
class KeepConfig:
    """How long things are kept."""

    retention_ms: int = 3 * DAY_MS  # a released message that not every group is done with, since its release
    mark_ms: int = 60_000  # the least distance of two release times: how exactly retention is kept
    keep_log_bytes: int = 1 << 30  # the log's last part, for replicas that catch up ...
    keep_log_ms: int = 600_000  # ... as far as it is not older than this
    relocate_after_ms: int = 600_000  # a closed segment is not emptied before: much of it may die by itself
    relocate_share: float = 0.25  # a segment is emptied when at most this part of its bytes is needed


class SpaceReclaimer:
    """Owned by the shard's thread."""

    def __init__(
        self,
        log: CommitLog,
        index: TimerIndex,
        queue: ConsumeQueue,
        consumers: Consumers,
        config: KeepConfig,
        propose: Propose,
    ) -> None:
        self.ledger = SegmentLedger()
        self.config = config
        self.release_times: list[tuple[int, int]] = []  # (wall ms, queue offset): what lies below was released before
        self.pending_delete: list[int] = []  # bases of freed segments whose files the next checkpoint does without
        self.expired = 0  # (group, message) pairs that retention ended unconsumed, since the process started
        self._log, self._index, self._queue, self._consumers = log, index, queue, consumers
        self._open = -1, 0  # the open segment's base, and when this process first saw it, ms
        self._propose = propose
        consumers.on_freed, consumers.check_freed = self._freed, self._check_freed

    def _freed(self, rows: Records) -> None:
        self.ledger.release(rows["offset"], rows["size"])

    def _check_freed(self, rows: Records) -> None:
        self.ledger.check_release(rows["offset"], rows["size"])

    # ------------------------------------------------------------ release times
    def on_release(self, wall_ms: int) -> None:
        """Messages are about to be staged at the queue's end by a frame of `wall_ms`."""
        times = self.release_times
        if not times or wall_ms >= times[-1][0] + self._mark_ms:
            times.append((wall_ms, self._queue.end))

    def on_tick(self, wall_ms: int) -> None:
        """A TICK of `wall_ms`, maybe an idle one: what is in the queue was released before. The last burst ages too."""
        times = self.release_times
        if times and self._queue.end > times[-1][1] and wall_ms >= times[-1][0] + self._mark_ms:
            times.append((wall_ms, self._queue.end))

    @property
    def _mark_ms(self) -> int:
        return max(self.config.mark_ms, self.config.retention_ms // MARKS)

    def _expired_offset(self, now_ms: int) -> int:
        """The queue offset below which everything was released more than the retention ago."""
        at = bisect_right(self.release_times, (now_ms - self.config.retention_ms, self._queue.end)) - 1
        return self.release_times[at][1] if at >= 0 else self._queue.start

    def released_ms(self, offset: int) -> int:
        """About when the message at a kept queue offset was released, ms: up to the distance of two marks too early."""
        at = bisect_right(self.release_times, offset, key=itemgetter(1)) - 1
        marked = self.release_times[at][0] if at >= 0 else 0
        return max(marked, int(self._queue.read(offset, 1)["due"][0]))

    def oldest_ms(self) -> int:
        """released_ms() of the oldest message that some group is not done with; 0: none, or there is no group."""
        oldest = self._consumers.lowest_needed()
        return self.released_ms(oldest) if self._consumers.groups and oldest < self._queue.visible else 0

    # ------------------------------------------------------------ TRIM
    def keep_from(self, now_ms: int) -> int:
        """The first queue offset that is still to be kept."""
        done = self._consumers.lowest_needed()
        return max(self._queue.start, min(self._queue.visible, max(done, self._expired_offset(now_ms))))

    def trim(self, now_ms: int, limit: int, *, small: bool) -> bool:
        """Append a TRIM if there is something to free; True when there may be more at once.

        limit: the log offset below which no frame is needed: by a recovery, a transfer or a replica.
        small: also for a few queue entries. Raises Impossible, and has freed nothing.
        """
        desired_start = self.keep_from(now_ms)
        start = min(desired_start, self._queue.start + TRIM_ROWS)
        kept_from = self.ledger.kept_from(self._log.end, now_ms, self.config.keep_log_bytes, self.config.keep_log_ms)
        bases = self.ledger.empty(min(limit, kept_from))
        few_rows = start - self._queue.start < WORTH_ROWS
        if not len(bases) and few_rows and not (small and start > self._queue.start):
            return False
        trim = Trim(start, bases)
        ended = self._expired_rows(start)
        self.ledger.check_release(ended["offset"], ended["size"])
        with self._propose(FrameKind.TRIM, len(bases), trim.payload(), now_ms) as end:
            self._consumers.on_trim(start, end)
            self._trim(trim, ended)
        return start < desired_start

    def apply_trim(self, trim: Trim) -> None:
        queue = self._queue
        if not queue.start <= trim.queue_start <= queue.committed:  # what it ends is read here: it is committed
            kept = f"[{queue.start}, {queue.committed})"
            raise Impossible(f"TRIM to queue offset {trim.queue_start}, this copy has {kept}")
        self._trim(trim, self._expired_rows(trim.queue_start))

    def _expired_rows(self, start: int) -> Records:
        """The rows of dtype QUEUED that are kept no longer once the queue starts at `start`; TRIM_ROWS at most."""
        low = self._queue.start
        rows, pinned = self._queue.read(low, start - low), self._consumers.pinned()
        if len(pinned):
            rows = rows[~np.isin(np.arange(low, low + len(rows), dtype=np.int64), pinned)]
        return rows

    def _trim(self, trim: Trim, ended: Records) -> None:
        queue = self._queue
        self.ledger.release(ended["offset"], ended["size"])
        if trim.queue_start > queue.start:
            queue.start = trim.queue_start
            self.expired += self._consumers.forget_below(queue.start)
            while len(self.release_times) > 1 and self.release_times[1][1] <= queue.start:
                self.release_times.pop(0)
        if len(trim.bases):
            self.ledger.remove(trim.bases)
            self.pending_delete.extend(trim.bases.tolist())

    # ------------------------------------------------------------ RELOCATE
    def mostly_dead(self, limit: int, now_ms: int, share: float | None) -> Records:
        """Segments (k,) of dtype SEGMENT worth emptying, the emptiest first.

        limit: as for trim(). share: of its bytes that are needed, for want of disk and at any age; None: as configured.
        """
        config, limit = self.config, self._below_retained(limit, now_ms)
        if share is not None:
            return self.ledger.mostly_dead(limit, now_ms, share)
        return self.ledger.mostly_dead(limit, now_ms - config.relocate_after_ms, config.relocate_share)

    def joinable(self, limit: int, now_ms: int, without: Collection[int]) -> Records:
        """Segments (k,) of dtype SEGMENT so small that they are worth being written again as one.

        limit: as for trim(). without: bases of those to be left alone.
        """
        small = self._log.file.segment_bytes // SMALL_PART
        before_ms = now_ms - self.config.relocate_after_ms
        return self.ledger.joinable(self._below_retained(limit, now_ms), before_ms, small, without)

    def _below_retained(self, limit: int, now_ms: int) -> int:
        """What is kept for replicas would stay beside its copy, just when there is no room for both."""
        config = self.config
        return min(limit, self.ledger.kept_from(self._log.end, now_ms, config.keep_log_bytes, config.keep_log_ms))

    def begin_segment_if_dead(self, now_ms: int, share: float | None) -> bool:
        """Let the next frame begin a segment if the open one has become large and mostly dead: else a shard that has
        come to rest would keep it for ever. share: as for mostly_dead().
        """
        if not len(self.ledger.segments):
            return False
        base = int(self.ledger.segments["base"][-1])
        if base != self._open[0]:
            self._open = base, now_ms
        size, needed = self.ledger.open_share(self._log.end)
        old = share is not None or self._open[1] <= now_ms - self.config.relocate_after_ms
        dead = needed <= (self.config.relocate_share if share is None else share)
        if not (old and dead) or size < self._log.file.segment_bytes // OPEN_PART:
            return False
        self._log.begin_segment()
        return True

    def relocate(self, rows: Records, records: Buffer, now_ms: int) -> None:
        """Append a RELOCATE of rows (n,) of dtype UNIT that are needed where they are, with their records one after
        the other. Raises Impossible when they can't be: counted off twice, they would free what others need.
        """
        if len(np.unique(rows["seq"])) < len(rows):
            raise Impossible("a RELOCATE would move a message twice")
        self.ledger.check_release(rows["offset"], rows["size"])
        seq, due, offset, size, key, tag = (np.ascontiguousarray(rows[name]) for name in RELOCATED)
        change = Relocate(seq, due, offset, size, key, tag, records, 0)
        with self._propose(FrameKind.RELOCATE, len(rows), change.payload(), now_ms) as end:
            self.apply_relocate(replace(change, records_at=end - len(records)))

    def apply_relocate(self, r: Relocate) -> None:
        offset = np.cumsum(r.size, dtype=np.int64) - r.size + r.records_at
        check = record_checks(r.records, r.records_at, r.size, r.seq)
        self.ledger.release(r.old_offset, r.size)
        self.ledger.hold(len(r.seq), len(r.records))
        letters = at_or_below(r.due, r.seq, self._index.watermark)
        if letters.any():
            self._consumers.relocate(r.seq[letters], offset[letters], check[letters])
        if not letters.all():
            rows = units(r.due, r.seq, offset, r.size, r.key, r.tag, ROLL | SAME, check)
            self._index.relocate(rows[~letters] if letters.any() else rows)
