"""The shard: one log, one state machine.

The master proposes a frame and applies it at once in memory; the same `_apply_*` run when frames are replayed. A frame
that the master could not apply is taken back, so that no disk and no slave gets it; the copy has failed then. Nothing
that rests on a frame which ends at log offset E may be answered before `committed_offset` >= E (deliveries: see
CommitDependency in queue/groups.py). Files that are derived from the log (TimerLog, ConsumeQueue, checkpoint) take
committed frames only. A slave applies committed frames only: its log can be cut without undoing anything, and it can be
led from where it stands.

Invariants kept here: release follows (due, seq) within a tick and never precedes due by the `now_ms` passed in;
watermark and epoch only grow; seq is never reused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace

import numpy as np
from delayapi.durations import format_ms

from delaynode.store.columns import at_or_below, highest, is_one, lowest, offsets_from
from delaynode.store.config import ShardConfig
from delaynode.store.errors import Damaged, Impossible, Refused, Unappliable
from delaynode.store.log.checks import record_check, record_checks
from delaynode.store.log.commit_log import CommitLog, WriteBatch
from delaynode.store.log.frames import (
    APPENDS,
    FIRES,
    FLAG_NEW_SEGMENT,
    SINCE_FORMAT,
    TICKS,
    Append,
    Cancel,
    Firings,
    Frame,
    FrameKind,
    Reschedule,
    ScheduleChange,
    Tick,
    Unsealed,
    append_ids_prefix,
    append_prefix,
    column_bytes,
    parse_append,
    parse_append_runs,
    parse_cancel,
    parse_firings,
    parse_group,
    parse_progress,
    parse_relocate,
    parse_reschedule,
    parse_schedule,
    parse_tick,
    parse_trim,
)
from delaynode.store.log.incoming_batch import (
    BatchRun,
    IncomingBatch,
    merge_columns,
    merge_with_ids,
    resolve_due,
    select_rows,
)
from delaynode.store.log.segments import SegmentedFile
from delaynode.store.lookup import (
    ALREADY_CANCELLED,
    CANCELLED,
    MOVED_NOW,
    RESCHEDULED,
    Lookup,
    Outcomes,
    first_named,
    resolve,
)
from delaynode.store.maintenance.reclaim import SpaceReclaimer
from delaynode.store.maintenance.recovery_point import SpareFiles
from delaynode.store.queue.consume_queue import QUEUED_BYTES, ConsumeQueue, ReleasedRows
from delaynode.store.queue.consumers import Consumers
from delaynode.store.queue.message_ids import MessageIds, first_of_each
from delaynode.store.queue.producers import FirstAnswer, Producers
from delaynode.store.queue.schedules import Schedules
from delaynode.store.timer.due_window import Released, ReleasedFew, before
from delaynode.store.timer.index import TimerIndex
from delaynode.store.timer.loader import WindowLoader
from delaynode.store.timer.scan import SlotSnapshotCache
from delaynode.store.timer.units import DEFAULT, UNIT, units
from delaynode.store.types import I64, MAX_SEQ, U8, Bools, Buffer, Buffers, Pair, Records

MAX_DUE_MS = 1 << 62
MAX_AHEAD_MS = 20  # a TICK_AHEAD's watermark is at most so long after its own time
MIN_TICK_ROWS = 4_096  # a tick with few messages to release passes so many cancelled ones


@dataclass(frozen=True, slots=True)
class ShardIdentity:
    """What identifies this copy: the shard's uid, this directory's copy id, and the highest epoch it has accepted."""

    uid: int
    copy_id: str
    topic: str
    queue: int
    epoch: int


@dataclass(slots=True)
class Appended:
    """The answer to an Enqueue, given once `log_end` is committed: the first answer again for a duplicate.

    due: i64[n] ms; None for a duplicate that has not as many messages as the first had: it is another batch; and None
    from ShardHost.stored() where the batch itself has the dues.
    seq: i64[n] of a batch with message ids, else None; repeated: bool[n], which of them were stored before.
    """

    first_seq: int
    count: int
    due: I64 | None
    log_end: int
    duplicate: bool = False
    seq: I64 | None = None
    repeated: Bools | None = None

    @property
    def new(self) -> int:
        """How many messages were stored, where it is no duplicate."""
        return self.count if self.repeated is None else int(np.count_nonzero(~self.repeated))


class _Proposal(AbstractContextManager[int]):
    """In which a frame that was proposed is applied; as a generator it would cost twice as much."""

    __slots__ = ("_frame", "_shard")

    def __init__(self, shard: Shard, frame: Unsealed) -> None:
        self._shard, self._frame = shard, frame

    def __enter__(self) -> int:
        try:
            return self._shard.begin_effect(self._frame)
        except Exception as error:
            self._shard.effect_failed(self._frame, error)
            raise

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, Exception):
            self._shard.effect_failed(self._frame, error)


class Shard:
    """Owned by one thread. Made by persist.create() or persist.recover()."""

    def __init__(
        self,
        identity: ShardIdentity,
        config: ShardConfig,
        log: CommitLog,
        index: TimerIndex,
        queue: ConsumeQueue,
        next_seq: int,
        epochs: list[list[int]],
        wall_ms: int,
    ) -> None:
        self.identity = identity
        self.config = config
        self.format = config.format  # in which frames and files are written; it never goes down
        self.log = log
        self.index = index
        self.loader = WindowLoader(index, config)
        self.queue = queue
        self.consumers = Consumers(queue, self._propose, self._get_committed_offset, config.group_limits)
        self.consumers.keeps_reasons = self._keeps_reasons
        self.producers = Producers(config.max_producers)
        self.message_ids = MessageIds(config.max_message_ids)
        self.schedules = Schedules()
        self.space = SpaceReclaimer(log, index, queue, self.consumers, config.keep, self._propose)
        self.next_seq = next_seq
        self.epochs = epochs  # [epoch, start offset], ascending, of the frames applied
        self.wall_ms = wall_ms  # the highest of a frame applied
        self.applied = 0  # log offset: all frames before it are applied; a master applies what it proposes
        self.committed_offset = 0
        self.checkpointed = 0  # log offset: a recovery needs no frame before it
        self.checkpoint_bytes = 0  # size of the file that says so
        self.spare = SpareFiles()  # there for the previous checkpoint only
        self.skipped: list[int] = []  # log offsets of frames that a person has had skipped, see repair.py
        self.damaged: str | None = None  # why nothing more is written
        self.on_failed: Callable[[str, Exception], None] | None = None  # told when the effect of a proposal has failed
        # The registry's status, as it was seen last: epoch, in-sync set.
        self.known_status: tuple[int, tuple[str, ...]] = (0, ())

    # ------------------------------------------------------------ the log
    @property
    def epoch(self) -> int:
        return self.epochs[-1][0] if self.epochs else 0

    @property
    def log_end(self) -> int:
        return self.log.end

    def has_spare_files(self) -> bool:
        """Whether files would go with the next checkpoint, though nothing more is freed."""
        return any(map(self.spare_bases, (self.log.file, self.index.log.file, self.queue.file)))

    def spare_bases(self, file: SegmentedFile) -> Sequence[int]:
        """Segments of one of the shard's files that are there for the previous checkpoint only."""
        if file is self.index.log.file:
            return file.closed_below(min(self.spare.timer_start, self.index.unread_below()))
        if file is self.queue.file:
            return file.closed_below(self.spare.queue_start * QUEUED_BYTES)
        return self.spare.segments

    def next_batch(self, *, sync: bool) -> WriteBatch | None:
        """The next batch to write. None when nothing waits, and once the copy is damaged."""
        return self.log.next_batch(sync=sync) if self.damaged is None else None

    def finish_writes(self, batch: WriteBatch) -> None:
        self.log.finish(batch)

    def commit(self, offset: int, now_ms: int | None = None) -> list[ReleasedRows]:
        """Frames up to log offset `offset` are committed. Returns what became visible, by frame.

        now_ms: by the master's clock; None: it is known to be past the time of the last frame that was applied.
        """
        self.committed_offset = self.log.committed_offset = max(self.committed_offset, offset)
        return self.queue.commit(self.committed_offset, self.wall_ms if now_ms is None else now_ms)

    def show(self, now_ms: int) -> list[ReleasedRows]:
        """It is `now_ms` by the master's clock. Returns what became visible, by frame."""
        return self.queue.show(now_ms)

    def _get_committed_offset(self) -> int:
        return self.committed_offset

    def _keeps_reasons(self) -> bool:
        return self.format >= SINCE_FORMAT[FrameKind.DEAD_REASON]

    def _propose(
        self, kind: FrameKind, count: int, payload: tuple[Buffer, ...], now_ms: int, flags: int = 0, first_seq: int = 0
    ) -> _Proposal:
        """Append a frame, whose end is given; the body applies it at once.

        Where the body fails, the shard is changed by half: the frame is taken back and nothing is written any more.
        """
        if SINCE_FORMAT[kind] > self.format:
            raise Impossible(f"a {kind.name} frame is of format {SINCE_FORMAT[kind]}, all nodes read {self.format}")
        frame = self.log.propose(kind, self.epoch, count, first_seq, now_ms, payload, flags)
        self._advance_time(now_ms)
        self.applied = self.log.end
        return _Proposal(self, frame)

    def begin_effect(self, frame: Unsealed) -> int:
        """The frame was proposed and is applied now. Returns its end."""
        if frame.flags & FLAG_NEW_SEGMENT:
            self.space.ledger.open(frame.offset, frame.wall_ms)
        return self.applied

    def effect_failed(self, frame: Unsealed, error: Exception) -> None:
        """The frame that was proposed is taken back: its effect is there by half, and the copy is damaged."""
        self.log.retract(frame)
        self.damaged = f"the effect of a {frame.kind.name} failed: {type(error).__name__}: {error}"
        if self.on_failed is not None:
            self.on_failed(self.damaged, error)

    def _advance_time(self, wall_ms: int) -> None:
        """A frame of this wall time is applied."""
        self.wall_ms = max(self.wall_ms, wall_ms)
        self.producers.advance_time(wall_ms)

    def begin_term(self, epoch: int, node: str, now_ms: int) -> None:
        """Append EPOCH: the start of a term. The epoch was persisted before."""
        if epoch <= self.log.last_epoch:
            raise Damaged(f"epoch {epoch} does not follow {self.log.last_epoch}")
        if self.applied != self.log.end:
            raise Damaged(f"a term begins at {self.log.end}, the log is applied up to {self.applied}")
        self.epochs.append([epoch, self.log.end])
        with self._propose(FrameKind.EPOCH, 1, (node.encode(),), now_ms):
            pass  # the next frames carry the epoch, and so does this one

    # ------------------------------------------------------------ messages in
    @property
    def max_delay_ms(self) -> int:
        own = self.config.max_delay_ms
        return self.config.horizon_ms if own is None else min(own, self.config.horizon_ms)

    def enqueue(self, batch: IncomingBatch, now_ms: int) -> Appended:
        """Store a batch whole, or raise Refused and store nothing. Of one with message ids: what is not stored yet."""
        if len(batch.ids):
            return self.append_ids((batch,), now_ms)[0]
        if batch.producer:
            first = self.producers.check(batch.producer, batch.number, now_ms)
            if first is not None:  # its frame may be gone by now
                same = len(batch.time) == first.messages
                due = resolve_due(batch.time, batch.relative, first.wall_ms, MAX_DUE_MS) if same else None
                return Appended(first.first_seq, first.messages, due, self.log.end, duplicate=True)
        due = self.resolve_due(batch, now_ms)
        return self._append((batch,), due, batch, now_ms)[0]

    def append_ids(self, batches: Sequence[IncomingBatch], now_ms: int) -> list[Appended]:
        """Store the messages whose ids are not known, once each, in one frame. Raises Refused, and stores nothing,
        where one of the batches breaks a limit."""
        if self.format < SINCE_FORMAT[FrameKind.APPEND_IDS]:
            raise Refused(
                "NOT_UPGRADED",
                f"messages are deduplicated from file format {SINCE_FORMAT[FrameKind.APPEND_IDS]} on, and format "
                f"{self.format} is written, for a node of an earlier release or until the upgrade is final",
            )
        batch = merge_with_ids(batches)
        seq, due = self.message_ids.find(batch.ids, self.producers.time_ms)
        first_row, is_first = first_of_each(batch.ids)
        new = (seq < 0) & is_first
        if new.any():
            self.message_ids.check_room(int(np.count_nonzero(new)), self.producers.time_ms)
            # Those that are stored are not judged again: as if they were due now, which is always taken.
            relative = np.where(new, batch.relative, 0).astype(np.uint8) if len(batch.relative) else batch.relative
            judged = replace(batch, time=np.where(new, batch.time, now_ms), relative=relative)
            resolved = self.resolve_due(judged, now_ms)
            chosen = batch if new.all() else select_rows(batch, new, resolved)
            (stored,) = self._append((chosen,), resolved[new], chosen, now_ms)
            seq[new], due[new] = np.arange(stored.first_seq, stored.first_seq + stored.count), resolved[new]
        seq, due = seq[first_row], due[first_row]
        answers, at = [], 0
        for one in batches:
            rows = slice(at, at + len(one.time))
            at = rows.stop
            answers.append(
                Appended(
                    int(seq[rows.start]),
                    len(one.time),
                    due[rows],
                    self.log.end,
                    not new[rows].any(),
                    seq[rows],
                    ~new[rows],
                )
            )
        return answers

    def append_runs(self, batches: Sequence[IncomingBatch], now_ms: int) -> list[Appended]:
        """Store batches in one frame, each request of theirs the next of its producer as those before it leave it.
        Raises Refused, and stores nothing, where one of them breaks a limit."""
        columns = merge_columns(batches)
        due = self.resolve_due(columns, now_ms)
        if len(batches) > 1:
            columns = replace(columns, records=b"".join(batch.records for batch in batches))
        return self._append(batches, due, columns, now_ms)

    def resolve_due(self, batch: IncomingBatch, now_ms: int) -> I64:
        """The due of each message, i64[n] ms. Raises Refused where one breaks a limit, or no slot is free for it."""
        due = resolve_due(batch.time, batch.relative, now_ms, self.max_delay_ms)
        self._check_wheel(due, now_ms)
        return due

    def _append(self, batches: Sequence[IncomingBatch], due: I64, merged: IncomingBatch, now_ms: int) -> list[Appended]:
        """merged: the messages of all batches."""
        first_seq = self.next_seq
        runs = [run for batch in batches for run in batch.requests]
        prefix, records = append_prefix(runs), merged.records
        columns = column_bytes(due, merged.size, merged.key, merged.tag)
        kind = FrameKind.APPEND if len(runs) == 1 else FrameKind.APPEND_RUNS
        if len(merged.ids):
            prefix, kind, runs = append_ids_prefix(merged.ids), FrameKind.APPEND_IDS, [BatchRun(0, 0, len(due))]
        with self._propose(kind, len(due), (prefix, *columns, records), now_ms, first_seq=first_seq) as end:
            append = Append(runs, due, merged.size, merged.key, merged.tag, records, end - len(records), merged.ids)
            answers, at = [], 0
            for batch in batches:
                messages = len(batch.time)
                answers.append(Appended(first_seq + at, messages, due[at : at + messages], end))
                at += messages
            self._apply_append(append, first_seq, now_ms, end)
        return answers

    def _check_wheel(self, due: I64, now_ms: int) -> None:
        latest = highest(due)[0]
        if latest > max(now_ms, self.index.last_due_ms()):  # what is due already takes no slot
            raise Refused(
                "WHEEL_BEHIND", "the shard is still releasing old messages: no slot is free for this due yet; retry"
            )
        watermark = self.index.watermark.due
        if now_ms + self.max_ahead_ms < watermark and bool(((due > now_ms) & (due <= watermark)).any()):
            raise Refused(
                "CLOCK_BEHIND", f"this node's clock is {format_ms(watermark - now_ms)} behind what was released; retry"
            )

    def _apply_append(self, a: Append, first_seq: int, wall_ms: int, end: int, *, arrived: bool = True) -> None:
        """arrived: their senders sent them now, so that they are not late before."""
        n = len(a.due)
        if is_one(n) and not len(a.ids) and (due := a.due.item()) > max(self.index.watermark.due, wall_ms):
            self._apply_one(a, due, first_seq, wall_ms)
            return
        seq = np.arange(first_seq, first_seq + n, dtype=np.int64)
        at = offsets_from(a.size, a.records_at)
        check = record_checks(a.records, a.records_at, a.size, seq)
        self.space.ledger.hold(n, len(a.records))
        mark = max(self.index.watermark, Pair(wall_ms, MAX_SEQ))
        overdue = 0
        if not n or lowest(a.due)[0] <= mark.due:
            over = at_or_below(a.due, seq, mark)
            overdue = int(np.count_nonzero(over))
        if overdue:
            self.space.on_release(wall_ms)
            self.queue.stage(
                end, a.due[over], seq[over], at[over], a.size[over], a.tag[over], check[over],
                wall_ms if arrived else 0, self._latest_ms(a.due[over], wall_ms),
            )  # fmt: skip
        if overdue < n:
            rows = units(a.due, seq, at, a.size, a.key, a.tag, DEFAULT, check)
            self.index.insert(rows[~over] if overdue else rows)
        self.next_seq = first_seq + n
        self._store_answers(a.runs, first_seq, wall_ms)
        if len(a.ids):
            self.message_ids.add(a.ids, seq, a.due, self.producers.time_ms)

    def _apply_one(self, a: Append, due: int, seq: int, wall_ms: int) -> None:
        """_apply_append() of a message alone that is not due yet, in plain numbers."""
        self.space.ledger.hold(1, len(a.records))
        check = record_check(a.records, a.records_at, seq)
        self.index.insert_one((due, seq, a.records_at, a.size.item(), a.key.item(), a.tag.item(), DEFAULT, check))
        self.next_seq = seq + 1
        self._store_answers(a.runs, seq, wall_ms)

    def _latest_ms(self, due: I64, wall_ms: int) -> int:
        """The latest of the dues (n,) that a frame of `wall_ms` releases, where it is after that; else 0."""
        if self.index.watermark.due <= wall_ms:
            return 0
        latest = highest(due)[0]
        return latest if latest > wall_ms else 0

    def _store_answers(self, runs: Sequence[BatchRun], first_seq: int, wall_ms: int) -> None:
        for producer, number, messages in runs:
            if producer:
                self.producers.store(producer, FirstAnswer(number, first_seq, messages, wall_ms))
            first_seq += messages

    # ------------------------------------------------------------ schedules
    def change_schedule(self, change: ScheduleChange, now_ms: int) -> None:
        """Append a SCHEDULE. Raises Impossible."""
        if not change.put and change.id not in self.schedules:
            raise Impossible(f"there is no schedule {change.id!r}")
        with self._propose(FrameKind.SCHEDULE, 1, change.payload(), now_ms) as end:
            self.schedules.apply(change, now_ms, end)

    def fire(self, firings: Firings, messages: IncomingBatch, now_ms: int) -> None:
        """Append a FIRE, or where one schedule fires several times by the clock a FIRE_AGAIN: the messages of the FIRED
        rows, with dues that are over, are released, and what comes next is armed, in one frame. Raises Impossible."""
        if len(messages.time) and highest(messages.time)[0] > now_ms:
            raise Impossible("a firing that is not due yet")
        kind = FrameKind.FIRE_AGAIN if firings.repeat_by_clock else FrameKind.FIRE
        self.schedules.rows_of(firings, kind)
        columns = column_bytes(messages.time, messages.size, messages.key, messages.tag)
        payload, count, first_seq = firings.payload(), len(messages.time), self.next_seq
        with self._propose(kind, count, (*payload, *columns, messages.records), now_ms, first_seq=first_seq) as end:
            self._apply_fire(
                kind, firings,
                Append(
                    (), messages.time, messages.size, messages.key, messages.tag, messages.records,
                    end - len(messages.records),
                ),
                first_seq, now_ms, end,
            )  # fmt: skip

    def _apply_fire(
        self, kind: FrameKind, firings: Firings, append: Append, first_seq: int, wall_ms: int, end: int
    ) -> None:
        rows, queue_end = self.schedules.rows_of(firings, kind), self.queue.end
        if len(append.due):
            self._apply_append(append, first_seq, wall_ms, end, arrived=False)
        self.schedules.fire(rows, firings, append.due, wall_ms, queue_end)

    # ------------------------------------------------------------ messages out
    def next_tick(self) -> int:
        """When tick() has something to do, ms: the next due, or the idle tick."""
        return min(self.index.window.next_due(), self.index.watermark.due + self.config.idle_tick_ms)

    @property
    def max_ahead_ms(self) -> int:
        """How far after its time a tick may release: once so long has passed, all that is released is due."""
        return MAX_AHEAD_MS if self.format >= SINCE_FORMAT[FrameKind.TICK_AHEAD] else 0

    def tick(self, now_ms: int, max_released: int | None = None, ahead_ms: int = 0) -> int:
        """Append a TICK if something is due at `now_ms`; returns the number of messages it releases, -1: no frame.

        Never goes past the loaded part of the window. max_released: messages that may be released, at least 1; None: no
        limit but maxTick. ahead_ms: what is due so soon is released too, max_ahead_ms at most, and visible once it is
        due.
        """
        index = self.index
        target = min(Pair(now_ms + ahead_ms, MAX_SEQ), before(index.window.bound))
        if target <= index.watermark:
            return -1
        if index.window.next_due() > target.due and target.due - index.watermark.due < self.config.idle_tick_ms:
            return -1
        rows = (
            self.config.max_tick
            if max_released is None
            else min(self.config.max_tick, max(MIN_TICK_ROWS, 4 * max_released))
        )
        taken = index.release(target, rows, max_released)
        tick = Tick(taken.watermark.due, taken.watermark.seq, len(taken), self.queue.end + len(taken))
        kind = FrameKind.TICK_AHEAD if tick.due > now_ms else FrameKind.TICK
        with self._propose(kind, len(taken), tick.payload(), now_ms) as end:
            self._release(taken, now_ms, end)
        return len(taken)

    def _release(self, taken: Released, wall_ms: int, end: int) -> None:
        """Stage the rows that a TICK of `wall_ms`, which ends at log offset `end`, took out of the window."""
        self.space.on_tick(wall_ms)
        if len(taken):
            self.space.on_release(wall_ms)
            latest_ms = taken.latest_due if taken.latest_due > wall_ms else 0
            if isinstance(taken, ReleasedFew):
                self.queue.stage_few(end, taken.rows, latest_ms)
            else:
                self.queue.stage(
                    end, taken.due, taken.seq, taken.offset, taken.size, taken.tag, taken.check, latest_ms=latest_ms
                )

    def raise_format(self, new: int) -> None:
        """Write in this format from now on: all nodes read it, or this copy has it already."""
        self.format = max(self.format, new)

    # ------------------------------------------------------------ a topic's limits
    def reconfigure(self, desired: ShardConfig) -> None:
        """Take up what may change while the shard is used. On the owner's thread."""
        limits = ("max_delay_ms", "max_attempts", "dlq_retention_ms", "keep", "max_message_ids")
        config = replace(self.config, **{name: getattr(desired, name) for name in limits})
        if config != self.config:
            self.config, self.consumers.limits, self.space.config = config, config.group_limits, config.keep
            self.message_ids.limit = config.max_message_ids

    # ------------------------------------------------------------ cancel, reschedule
    def _not_in_window(self, found: Bools, seq: I64) -> Bools:
        return ~found & (seq >= 0) & (seq < self.next_seq)

    def in_window(self, due: I64, seq: I64) -> bool:
        """A lookup of these messages has no job."""
        return not self._not_in_window(self.index.window.find(due, seq)[1], seq).any()

    def begin_lookup(self, due: I64, seq: I64, slot_cache: SlotSnapshotCache | None = None) -> Lookup:
        """Start to find messages; run `job` on any thread, then cancel() or reschedule(), then end_lookup().

        Without a job, go on before anything else is done to the shard.
        """
        rows, found = self.index.window.find(due, seq)
        away = self._not_in_window(found, seq)
        return Lookup(
            due, seq, self.index.begin_lookup(due, seq, away, rows[found], slot_cache) if away.any() else None
        )

    def end_lookup(self, lookup: Lookup) -> None:
        """Always, also when the job failed."""
        if lookup.job is not None:
            self.index.close_view(lookup.job.view)
            lookup.job = None

    def _resolve(self, lookup: Lookup, now_ms: int) -> tuple[Records, Bools, U8]:
        past_ms = max(now_ms, self.wall_ms)  # the clock may have gone back since
        return resolve(lookup, self.index, self.next_seq, past_ms)

    def cancel(self, lookup: Lookup, now_ms: int) -> Outcomes:
        """Append a CANCEL of those that are live; the truth for each. Raises Impossible."""
        rows, live, why = self._resolve(lookup, now_ms)
        first = first_named(rows, live)
        if first.any():
            chosen = rows[first]
            cancel = Cancel(*(np.ascontiguousarray(chosen[name]) for name in ("seq", "due", "offset", "size")))
            self.space.ledger.check_release(cancel.offset, cancel.size)
            with self._propose(FrameKind.CANCEL, len(chosen), cancel.payload(), now_ms):
                self._apply_cancel(cancel)
        why[live] = ALREADY_CANCELLED
        why[first] = CANCELLED
        return Outcomes(why, np.where(first, lookup.due, 0))

    def _apply_cancel(self, cancel: Cancel) -> None:
        self.index.delete(cancel.due, cancel.seq, cancel.size, moved=False)
        self.space.ledger.release(cancel.offset, cancel.size)

    def new_due(self, time: I64, relative: U8, now_ms: int) -> I64:
        """The dues that a reschedule asks for, i64[n] ms. Raises Refused where one is against the rules of enqueue."""
        due = resolve_due(time, relative, now_ms, self.max_delay_ms)
        self._check_wheel(due, now_ms)
        return due

    def reschedule(self, lookup: Lookup, time: I64, relative: U8, now_ms: int) -> Outcomes:
        """Give live messages a new due under the rules of enqueue; all or none where a new due is refused."""
        new_due = self.new_due(time, relative, now_ms)
        rows, live, why = self._resolve(lookup, now_ms)
        first = first_named(rows, live)
        if first.any():
            chosen, due = rows[first], new_due[first]
            columns = {name: np.ascontiguousarray(chosen[name]) for name in UNIT.names or ()}
            change = Reschedule(
                columns["seq"], columns["due"], due, columns["offset"], columns["size"], columns["key"],
                columns["tag"], columns["check"],
            )  # fmt: skip
            with self._propose(FrameKind.RESCHEDULE, len(chosen), change.payload(), now_ms) as end:
                self._apply_reschedule(change, now_ms, end)
        why[live] = RESCHEDULED
        why[first] = MOVED_NOW
        return Outcomes(why, np.where(first, new_due, 0))

    def _apply_reschedule(self, r: Reschedule, wall_ms: int, end: int) -> None:
        self.index.delete(r.old_due, r.seq, r.size, moved=True)
        over = (r.new_due <= wall_ms) | at_or_below(r.new_due, r.seq, self.index.watermark)
        if over.any():
            order = np.flatnonzero(over)[np.lexsort((r.seq[over], r.new_due[over]))]
            self.space.on_release(wall_ms)
            self.queue.stage(
                end, r.new_due[order], r.seq[order], r.offset[order], r.size[order], r.tag[order], r.check[order],
                wall_ms, self._latest_ms(r.new_due[order], wall_ms),
            )  # fmt: skip
        if not over.all():
            rows = units(r.new_due, r.seq, r.offset, r.size, r.key, r.tag, DEFAULT, r.check)
            self.index.reinsert(rows[~over])

    # ------------------------------------------------------------ replay
    def apply_committed(self, frames: Iterable[Frame]) -> list[ReleasedRows]:
        """Apply frames that are committed and written here, in order from `applied` on; what became visible, by frame.

        Loads the due window on this thread where a frame needs it. Raises Damaged.
        """
        released: list[ReleasedRows] = []
        for frame in frames:
            released += self.commit(frame.offset)  # what a TRIM or an ACK is of must be there
            self.apply(frame)
        return released + self.commit(self.applied)

    def apply(self, frame: Frame) -> None:
        """Apply a frame from the log, as the master that wrote it did. Raises Unappliable where that is not possible,
        OSError. This copy, changed by half, is of no use then.
        """
        if frame.offset != self.applied:
            raise Damaged(f"the frame at {frame.offset} does not follow: frames up to {self.applied} are applied")
        try:
            self._apply(frame)
        except (OSError, MemoryError):
            raise
        except Exception as error:  # a frame may say anything: no error of its own may get past those who catch Damaged
            is_known_error = isinstance(error, Damaged | Impossible)
            why = str(error) if is_known_error else f"{type(error).__name__}: {error}"
            raise Unappliable(frame.offset, f"{frame.kind.name} of epoch {frame.epoch}", why) from error
        self.applied = frame.end

    def skip(self, frame: Frame) -> None:
        """Pass over a frame that can't be applied. The parts that later frames need stay: its segment, its seqs, and
        the answer that its producer was given.
        """
        self._begin(frame)
        if frame.kind in APPENDS:
            self.next_seq = max(self.next_seq, frame.first_seq + frame.count)
            with suppress(Damaged):
                self._store_answers(parse_append_runs(frame), frame.first_seq, frame.wall_ms)
        self.skipped.append(frame.offset)
        self.applied = frame.end

    def _begin(self, frame: Frame) -> None:
        """What every frame does, whatever its effect: advance the time, open the segment that it begins, and show that
        all nodes read the format of its kind."""
        self._advance_time(frame.wall_ms)
        self.raise_format(SINCE_FORMAT[frame.kind])
        if frame.flags & FLAG_NEW_SEGMENT:
            self.space.ledger.open(frame.offset, frame.wall_ms)

    def _apply(self, frame: Frame) -> None:
        kind = frame.kind
        self._begin(frame)
        if kind in FIRES:
            self._apply_fire(kind, parse_firings(frame), parse_append(frame), frame.first_seq, frame.wall_ms, frame.end)
        elif kind in APPENDS:
            self._apply_append(parse_append(frame), frame.first_seq, frame.wall_ms, frame.end)
        elif kind in TICKS:
            self._apply_tick(parse_tick(frame), frame)
        elif kind is FrameKind.CANCEL:
            self._apply_cancel(parse_cancel(frame))
        elif kind is FrameKind.RESCHEDULE:
            self._apply_reschedule(parse_reschedule(frame), frame.wall_ms, frame.end)
        elif kind is FrameKind.GROUP:
            self.consumers.apply_group(parse_group(frame))
        elif kind is FrameKind.SCHEDULE:
            self.schedules.apply(parse_schedule(frame), frame.wall_ms, frame.end)
        elif kind is FrameKind.RELOCATE:
            self.space.apply_relocate(parse_relocate(frame))
        elif kind is FrameKind.TRIM:
            self.space.apply_trim(parse_trim(frame))
        elif kind is FrameKind.EPOCH:
            self.epochs.append([frame.epoch, frame.offset])
        else:
            self.consumers.apply_progress(kind, frame.flags, parse_progress(frame), frame.wall_ms)

    def _apply_tick(self, tick: Tick, frame: Frame) -> None:
        mark = Pair(tick.due, tick.seq)
        # No master releases further ahead of its clock; and all hours up to the mark would come down.
        ahead_ms = MAX_AHEAD_MS if frame.kind is FrameKind.TICK_AHEAD else 0
        if mark.due > frame.wall_ms + ahead_ms:
            raise Damaged(f"frame at {frame.offset}: its watermark {mark.due} is after its own time {frame.wall_ms}")
        if mark < self.index.watermark:
            raise Impossible(f"its watermark {mark} is below {self.index.watermark}")
        self.loader.load_past(mark)
        taken = self.index.release(mark, MAX_SEQ)
        self._release(taken, frame.wall_ms, frame.end)
        if len(taken) != tick.released or self.queue.end != tick.queue_end:
            raise Impossible(
                f"it releases {tick.released} messages up to queue offset {tick.queue_end}, "
                f"this copy has {len(taken)} up to {self.queue.end}"
            )

    # ------------------------------------------------------------ views
    def read_cached(self, rows: Records) -> Buffers | None:
        """The same as read_records(), for a few rows, when it can be done at once; else None."""
        return self.log.read_cached(rows)

    def read_records(self, rows: Records) -> Buffers:
        """The records of rows of dtype QUEUED or UNIT, in order; on any thread, for committed frames."""
        return self.log.read_records(rows)
