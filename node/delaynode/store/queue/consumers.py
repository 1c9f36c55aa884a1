"""The share groups of a shard: operations that the master appends, and the effect of their frames."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from delaynode.store.columns import highest, is_few
from delaynode.store.errors import Impossible, Refused
from delaynode.store.log.frames import FLAG_DEAD_LETTERS, FrameKind, GroupChange, GroupProgress
from delaynode.store.log.offsets import as_attempt_ranges, as_ranges, expand, rows_at
from delaynode.store.queue.consume_queue import NEVER, ConsumeQueue
from delaynode.store.queue.dead_letters import room_of
from delaynode.store.queue.groups import DeliveryAttempts, Group
from delaynode.store.types import I64, U32, Array, Bools, Buffer, Records

MAX_GROUP_NAME_BYTES = 255
MAX_GROUPS = 1000
MAX_TAGS = 64
MAX_REASONS_BYTES = 4 << 20  # of a group's dead letters in a shard; beyond it they have none
SKIP_ROWS = 262_144  # units looked at in one step, a group, for one that the group's filter takes
FIRST_BACKOFF_MS, LONGEST_BACKOFF_MS = 1_000, 300_000

NONE_I64: I64 = np.empty(0, np.int64)
NONE_U32: U32 = np.empty(0, np.uint32)

Propose = Callable[[FrameKind, int, tuple[Buffer, ...], int, int], AbstractContextManager[int]]
"""(kind, count, payload, now ms, flags): append a frame, whose end is given; the body applies it."""


@dataclass(slots=True)  # not frozen: one is made for each message, see docs/benchmarks.md
class ConsumerDelivery:
    """n messages for one consumer: rows of dtype QUEUED, queue offsets i64[n], attempts u32[n].

    depends_on: log offset; to be answered once everything before it is committed. until_ms: they are its until then.
    reasons: of dead letters, n of them.
    """

    offset: I64
    attempt: U32
    rows: Records
    depends_on: int = 0
    until_ms: int = 0
    reasons: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class NackCounts:
    """settled: which of the n rows named an attempt that was not over, bool[n]."""

    retried: int
    dead: int
    ignored: int
    settled: Bools


@dataclass(frozen=True, slots=True)
class ExpiredAttempts:
    """Attempts that ended because their time was over, by what became of their messages."""

    retried: int
    dead: int

    @property
    def any(self) -> bool:
        return self.retried + self.dead > 0


@dataclass(frozen=True, slots=True)
class GroupLimits:
    max_unacked: int  # queue offsets from a group's first open one
    max_attempts: int
    max_dead: int  # dead letters of a group, those at work again included
    dlq_retention_ms: int  # how long a dead letter is kept after it died or was redriven


def tag_hash(tag: str) -> int:
    """crc32 of the tag's utf-8; 0 stands for no tag."""
    return zlib.crc32(tag.encode()) if tag else 0


class Consumers:
    """Owned by the shard's thread.

    on_freed: told, while frames are applied, the QUEUED rows (each once) of dead letters that no group has any more and
    that the queue has no more either: their bodies are needed by nobody. check_freed: raises Impossible where that
    would. keeps_reasons: whether all nodes read frames with reasons.
    """

    def __init__(
        self, queue: ConsumeQueue, propose: Propose, committed_offset: Callable[[], int], limits: GroupLimits
    ) -> None:
        self.queue = queue
        self.groups: dict[str, Group] = {}
        self.limits = limits
        self.on_freed: Callable[[Records], None] = lambda rows: None
        self.check_freed: Callable[[Records], None] = lambda rows: None
        self.keeps_reasons: Callable[[], bool] = lambda: False
        self._propose = propose
        self._committed_offset = committed_offset  # log offset

    # ------------------------------------------------------------ operations of the master
    def group(self, name: str) -> Group:
        """Raises Refused UNKNOWN_GROUP."""
        found = self.groups.get(name)
        if found is None:
            raise Refused("UNKNOWN_GROUP", f"group {name!r} has not received here yet")
        return found

    def join(self, name: str, tags: tuple[str, ...], *, from_end: bool, now_ms: int) -> int:
        """Make sure that the group is there with this filter; returns the log offset that must be committed first."""
        tags = tuple(sorted(set(tags)))
        known = self.groups.get(name)
        if known is not None:
            if known.tags != tags:
                raise Refused(
                    "GROUP_MISMATCH",
                    f"group {name!r} takes tags {list(known.tags) or 'all'}, asked for {list(tags) or 'all'}",
                )
            return known.commit_dependency.last_change
        if not 0 < len(name.encode()) <= MAX_GROUP_NAME_BYTES:
            raise Refused(
                "BAD_GROUP", f"a group's name has 1 to {MAX_GROUP_NAME_BYTES} bytes, this one {len(name.encode())}"
            )
        if not name.isprintable():  # whoever lists groups has it on a terminal, or in a log
            raise Refused("BAD_GROUP", f"a group's name has characters that can't be printed: {name!r}")
        if len(tags) > MAX_TAGS or any(len(tag.encode()) > MAX_GROUP_NAME_BYTES for tag in tags):
            raise Refused("BAD_GROUP", f"a group's filter has at most {MAX_TAGS} tags of {MAX_GROUP_NAME_BYTES} bytes")
        if len(self.groups) >= MAX_GROUPS:
            raise Refused("BAD_GROUP", f"the shard has {MAX_GROUPS} groups already; delete one")
        change = GroupChange(name, True, self.queue.visible if from_end else self.queue.start, tags)
        with self._propose(FrameKind.GROUP, 1, change.payload(), now_ms, 0) as end:
            self.apply_group(change)
            self.groups[name].commit_dependency.last_change = end
        return end

    def delete(self, name: str, now_ms: int) -> None:
        """Raises Refused, Impossible."""
        group = self.group(name)
        change = GroupChange(name, False, 0, ())
        self._check_removal(group, *group.dead_letters.below(self.queue.start))
        with self._propose(FrameKind.GROUP, 1, change.payload(), now_ms, 0):
            self.apply_group(change)

    def deliver(self, name: str, now_ms: int, invisible_ms: int, max_messages: int, max_bytes: int) -> ConsumerDelivery:
        """Hand out what is visible now, at least one message if there is any, at most `max_messages` and `max_bytes`.

        Fewer than are there and fit where those of the last delivery were larger.
        """
        group = self.group(name)
        until_ms = now_ms + invisible_ms
        delivered = group.deliver(self.queue, now_ms, until_ms, min(max_messages, group.likely_to_fit(max_bytes)))
        rows = self._rows(group, delivered.offset)
        fits, size = _fitting(rows["size"], max_bytes)
        if fits:
            group.last_delivered = fits, size
        if fits < len(rows):
            group.undo_delivery(delivered.offset[fits:], until_ms)
            delivered, rows = DeliveryAttempts(delivered.offset[:fits], delivered.attempt[:fits]), rows[:fits]
        last = highest(delivered.offset)[0] if len(rows) else -1
        depends_on = group.commit_dependency.depends_on(last + 1 - self.limits.max_unacked)
        records_end = highest(rows["offset"] + rows["size"])[0] if len(rows) else 0
        if records_end > self._committed_offset():  # a dead letter's, which a RELOCATE under way moves
            depends_on = max(depends_on, records_end)
        return ConsumerDelivery(delivered.offset, delivered.attempt, rows, depends_on, until_ms)

    def _rows(self, group: Group, delivered: I64) -> Records:
        """The rows of what a group handed out: dead letters first, then messages of its window."""
        if not len(group.dead_letters):
            return rows_at(self.queue, delivered)
        positions, is_dead_letter = group.dead_letters.find_redriven(delivered)
        rows = rows_at(self.queue, delivered[~is_dead_letter])
        return (
            np.concatenate((group.dead_letters.rows(positions[is_dead_letter]), rows)) if is_dead_letter.any() else rows
        )

    def acknowledge(self, name: str, start: I64, end: I64, now_ms: int) -> int:
        """Take ranges out of the group; returns how many messages that were. Any released offset may be named.

        Raises Refused, Impossible.
        """
        group = self.group(name)
        if len(start) != len(end):
            raise Refused("BAD_COLUMNS", f"column start has {len(start)} rows, column end {len(end)}")
        if not len(start):
            return 0
        group.skip_filtered(self.queue, SKIP_ROWS)
        start, end = self._sound_ranges(group, start, end)
        progress = GroupProgress(name, start, end, NONE_U32, NONE_I64)
        if len(group.dead_letters):
            self._check_removal(group, *group.dead_letters.at(group.dead_letters.redriven_in(start, end)))
        with self._propose(FrameKind.ACK, len(start), progress.payload(), now_ms, 0) as log_end:
            group.commit_dependency.add_window_move(group.first_unacked, log_end, self._committed_offset())
            return group.acknowledge(start, end, self.queue)

    def _sound_ranges(self, group: Group, start: I64, end: I64) -> tuple[I64, I64]:
        """The ranges (k,) of an acknowledgement in ascending order. Raises Refused."""
        visible, first_unacked = self.queue.visible, group.first_unacked
        if len(start) == 1:
            low, high = int(start[0]), int(end[0])
            if 0 <= low < high <= visible and high <= first_unacked + self.limits.max_unacked:
                return start, end
        bad = (start < 0) | (end <= start) | (end > visible)
        if bad.any():
            at = int(np.argmax(bad))
            raise Refused(
                "BAD_REQUEST", f"range {at} is [{int(start[at])}, {int(end[at])}), released are [0, {visible})"
            )
        reach = max(first_unacked, int(end[start <= first_unacked].max(initial=0))) + self.limits.max_unacked
        if int(end.max()) > reach:
            raise Refused(
                "BAD_REQUEST",
                f"range ends at {int(end.max())}, more than {self.limits.max_unacked:,} above the first open offset",
            )
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
        if bool((start[1:] < end[:-1]).any()):
            raise Refused("BAD_COLUMNS", "ranges overlap")
        return start, end

    def acknowledge_attempts(self, name: str, offset: I64, attempt: U32, now_ms: int) -> tuple[int, Bools]:
        """Take messages out of the group whose attempts, u32[n], are not over: how many those were, and which rows.

        Raises Refused, Impossible.
        """
        is_open = self._open_attempts(self.group(name), offset, attempt)
        start, end = as_ranges(np.unique(offset[is_open]))
        return self.acknowledge(name, start, end, now_ms), is_open

    def extend(self, name: str, offset: I64, attempt: U32, until_ms: int) -> Bools:
        """Attempts that are not over last until `until_ms`; 0: the messages are given back, to be handed out again as
        the same attempts. Returns which rows they are, bool[n]. Memory of the master. Raises Refused.
        """
        group = self.group(name)
        is_open = self._open_attempts(group, offset, attempt)
        group.extend(np.unique(offset[is_open]), until_ms)
        return is_open

    def nack(
        self, name: str, offset: I64, attempt: U32, backoff_ms: int, now_ms: int, *, dead: bool = False,
        reason: str = "",
    ) -> NackCounts:  # fmt: skip
        """End attempts: those that are the last become dead letters, with `dead` all do; the others wait for their
        backoff. reason: kept with those that die, where there is room for it. Raises Refused.
        """
        is_open = self._open_attempts(self.group(name), offset, attempt)
        ended, first = np.unique(offset[is_open], return_index=True)
        attempts = DeliveryAttempts(ended, attempt[is_open][first])
        retried, died = self._end_attempts(name, attempts, backoff_ms, now_ms, dead=dead, reason=reason)
        return NackCounts(retried, died, len(offset) - retried - died, is_open)

    def _open_attempts(self, group: Group, offset: I64, attempt: U32) -> Bools:
        """Which of n rows name an attempt that is not over. Raises Refused."""
        if len(offset) != len(attempt):
            raise Refused("BAD_COLUMNS", f"column offset has {len(offset)} rows, column attempt {len(attempt)}")
        group.skip_filtered(self.queue, SKIP_ROWS)
        is_open = (offset >= 0) & (offset < min(self.queue.visible, group.first_unacked + self.limits.max_unacked))
        is_open[is_open] = group.is_current_attempt(offset[is_open], attempt[is_open], self.queue)
        return is_open

    def expire(self, now_ms: int) -> ExpiredAttempts:
        """End the attempts whose invisible time is over."""
        retried = dead = 0
        for name, group in self.groups.items():
            if group.next_expiry > now_ms:
                continue
            late = group.expired(now_ms)
            if len(late.offset):
                again, died = self._end_attempts(name, late, 0, now_ms)
                retried, dead = retried + again, dead + died
        return ExpiredAttempts(retried, dead)

    def next_expiry(self) -> int:
        """When the earliest invisible time ends, ms; NEVER when nothing is handed out."""
        return min((group.next_expiry for group in self.groups.values()), default=NEVER)

    def _end_attempts(
        self, name: str, ended: DeliveryAttempts, backoff_ms: int, now_ms: int, *, dead: bool = False,
        reason: str = "",
    ) -> tuple[int, int]:  # fmt: skip
        """Propose what becomes of ended attempts: (messages to be tried again, messages that died). dead: no more
        attempts, however many are left.

        While the group's dead letters are at their limit, messages that should die stay in its window and are tried
        again after the longest backoff: nothing is lost, and memory stays bounded.
        """
        group = self.groups[name]
        last = (ended.attempt >= self.limits.max_attempts) | dead
        new = np.flatnonzero(last & ~group.dead_letters.find_redriven(ended.offset)[1])
        kept = new[max(0, self.limits.max_dead - len(group.dead_letters)) :]
        last[kept] = False
        if backoff_ms >= 0:
            wait = np.full(len(last), backoff_ms, np.int64)
        else:
            wait = np.minimum(
                FIRST_BACKOFF_MS << np.minimum(ended.attempt.astype(np.int64) - 1, 20), LONGEST_BACKOFF_MS
            )
        wait[kept] = LONGEST_BACKOFF_MS
        room = MAX_REASONS_BYTES - group.dead_letters.reason_bytes
        if not self.keeps_reasons() or int(np.count_nonzero(last)) * room_of(reason) > room:
            reason = ""
        died = FrameKind.DEAD_REASON if reason else FrameKind.DEAD
        for kind, rows in ((died, last), (FrameKind.RETRY, ~last)):
            if not rows.any():
                continue
            start, end, attempt, visible = as_attempt_ranges(
                ended.offset[rows], ended.attempt[rows], now_ms + wait[rows]
            )
            progress = (
                GroupProgress(name, start, end, attempt, visible)
                if kind is FrameKind.RETRY
                else GroupProgress(name, start, end, attempt, NONE_I64, reason)
            )
            with self._propose(kind, len(start), progress.payload(), now_ms, 0) as log_end:
                group.commit_dependency.last_change = log_end
                self.apply_progress(kind, 0, progress, now_ms)
        return int(np.count_nonzero(~last)), int(np.count_nonzero(last))

    # ------------------------------------------------------------ dead letters
    def dead_letters(self, name: str, after_offset: int, limit: int) -> ConsumerDelivery:
        """Dead letters with a larger offset, ascending."""
        offset, attempt, rows, reasons = self.group(name).dead_letters.dead_after(after_offset, limit)
        return ConsumerDelivery(offset, attempt, rows, reasons=reasons)

    def resolve(self, name: str, offsets: I64 | None, *, redrive: bool, now_ms: int) -> int:
        """Redrive or drop dead letters (all with None); returns how many of those named were dead letters.

        Raises Refused, Impossible.
        """
        dead = self.group(name).dead_letters.dead_after(-1, NEVER)[0]
        selected = dead if offsets is None else dead[np.isin(dead, offsets)]
        self._resolve(name, selected, redrive=redrive, now_ms=now_ms)
        return len(selected)

    def expire_dead(self, now_ms: int) -> int:
        """Drop dead letters that died, or were redriven, longer than `dlq_retention_ms` ago; returns how many.

        Raises Impossible.
        """
        count = 0
        for name, group in self.groups.items():
            old = group.dead_letters.older_than(now_ms - self.limits.dlq_retention_ms)
            self._resolve(name, old, redrive=False, now_ms=now_ms)
            count += len(old)
        return count

    def _resolve(self, name: str, offsets: I64, *, redrive: bool, now_ms: int) -> None:
        if not len(offsets):
            return
        start, end = as_ranges(offsets)
        kind, group = FrameKind.RETRY if redrive else FrameKind.DEAD, self.group(name)
        if not redrive:
            self._check_removal(group, *group.dead_letters.at(group.dead_letters.find(offsets)[0]))
        zeros = np.zeros(len(start), np.int64)
        progress = GroupProgress(name, start, end, zeros.astype(np.uint32), zeros if redrive else NONE_I64)
        with self._propose(kind, len(start), progress.payload(), now_ms, FLAG_DEAD_LETTERS) as log_end:
            group.commit_dependency.last_change = log_end
            self.apply_progress(kind, FLAG_DEAD_LETTERS, progress, now_ms)

    # ------------------------------------------------------------ what is still needed
    def lowest_needed(self) -> int:
        """The first queue offset that some group is not done with; without a group nothing is done with."""
        for group in self.groups.values():
            group.skip_filtered(self.queue, SKIP_ROWS)
        return min((group.first_unacked for group in self.groups.values()), default=self.queue.start)

    def pinned(self) -> I64:
        """The queue offsets of all groups' dead letters, ascending, each once: TRIM keeps their bodies."""
        parts = [group.dead_letters.offsets() for group in self.groups.values() if len(group.dead_letters)]
        if len(parts) < 2:
            return parts[0] if parts else NONE_I64
        return np.unique(np.concatenate(parts))

    def dead_letter_usage(self) -> tuple[int, bool]:
        """How many dead letters all groups have, and whether some group has as many as it may."""
        counts = [len(group.dead_letters) for group in self.groups.values()]
        return sum(counts), max(counts, default=0) >= self.limits.max_dead

    def trimmed_dead_letters(self) -> Records:
        """The QUEUED rows, each once, of dead letters below the queue's start: the only ones a RELOCATE may move."""
        parts = [
            group.dead_letters.below(self.queue.start) for group in self.groups.values() if len(group.dead_letters)
        ]
        rows = np.concatenate([rows for _, rows in parts]) if parts else self.queue.read(0, 0)
        offsets = np.concatenate([offsets for offsets, _ in parts]) if parts else NONE_I64
        trimmed: Records = rows[np.unique(offsets, return_index=True)[1]]
        return trimmed

    def on_trim(self, start: int, end: int) -> None:
        """A TRIM to queue offset `start` was proposed, which ends at log offset `end`, and is to be applied."""
        for group in self.groups.values():
            if group.first_unacked < start:
                group.commit_dependency.add_window_move(group.first_unacked, end, self._committed_offset())

    def forget_below(self, start: int) -> int:
        """TRIM: the queue starts at `start` now, its units below can still be read.

        Returns how many messages that takes from groups that were not done with them, summed over groups.
        """
        return sum(group.forget_below(start, self.queue) for group in self.groups.values())

    def relocate(self, seq: I64, offset: I64, check: U32) -> None:
        """RELOCATE: the records of messages `seq` (n,) lie at log offset `offset` (n,) now, with these checks (n,)."""

        def moved(rows: Records, which: npt.NDArray[np.intp]) -> None:
            rows["offset"], rows["check"] = offset[which], check[which]

        for group in self.groups.values():
            group.dead_letters.relocate(seq, moved)

    def _on_removed(self, group: Group, offsets: I64, rows: Records) -> None:
        """The group has these dead letters no more."""
        last = self._unreferenced(group, offsets, rows)
        if len(last):
            self.on_freed(last)

    def _check_removal(self, group: Group, offsets: I64, rows: Records) -> None:
        """Raises Impossible when the group can't lose these letters."""
        if len(offsets):
            self.check_freed(self._unreferenced(group, offsets, rows))

    def _unreferenced(self, owner: Group, offsets: I64, rows: Records) -> Records:
        """The rows of those dead letters of one group that no other group has, nor the queue."""
        trimmed = offsets < self.queue.start
        for group in self.groups.values():
            if group is not owner and trimmed.any() and len(group.dead_letters):
                trimmed &= ~group.dead_letters.find(offsets)[1]
        last: Records = rows[trimmed]
        return last

    # ------------------------------------------------------------ frames
    def apply_group(self, change: GroupChange) -> None:
        if change.create:
            if change.start > self.queue.end:
                raise Impossible(f"it starts at queue offset {change.start}, the queue ends at {self.queue.end}")
            self._add(Group(change.group, change.tags, _hashes(change.tags), change.start, self.limits.max_unacked))
            return
        group = self.groups.pop(change.group, None)
        if group is not None:
            group.dead_letters.remove_all()

    def _add(self, group: Group) -> None:
        group.dead_letters.on_removed = partial(self._on_removed, group)
        self.groups[group.name] = group

    def apply_progress(self, kind: FrameKind, flags: int, progress: GroupProgress, wall_ms: int) -> None:
        """wall_ms: of the frame."""
        group = self.groups.get(progress.group)
        if group is None or not len(progress.start):
            return
        last = highest(progress.end)[0]
        if last > self.queue.end:  # of messages that are not here
            raise Impossible(f"it names queue offset {last - 1}, the queue ends at {self.queue.end}")
        if flags & FLAG_DEAD_LETTERS:
            offsets = expand(progress.start, progress.end)
            group.redrive(offsets, wall_ms) if kind is FrameKind.RETRY else group.drop_dead_letters(offsets)
        elif kind is FrameKind.ACK:
            group.acknowledge(progress.start, progress.end, self.queue)
        elif kind is FrameKind.RETRY:
            group.retry(progress.start, progress.end, progress.attempt, progress.visible, self.queue)
        else:
            group.add_dead_letters(progress.start, progress.end, progress.attempt, wall_ms, self.queue, progress.reason)

    # ------------------------------------------------------------ checkpoint
    def snapshot(self) -> tuple[list[dict[str, object]], dict[str, Array]]:
        """Replicated state of all groups: JSON-able fields of each, and arrays."""
        fields, arrays = [], {}
        for at, group in enumerate(self.groups.values()):
            of_group, columns = group.snapshot()
            fields.append(of_group)
            arrays.update({f"g{at}.{name}": column for name, column in columns.items()})
        return fields, arrays

    def restore(self, fields: list[dict[str, object]], arrays: dict[str, Array]) -> None:
        """The groups of a snapshot."""
        for at, of_group in enumerate(fields):
            tags = tuple(str(tag) for tag in of_group["tags"])  # type: ignore[attr-defined]
            first_unacked, window_end = int(of_group["floor"]), int(of_group["fresh"])  # type: ignore[call-overload]
            group = Group(str(of_group["name"]), tags, _hashes(tags), first_unacked, self.limits.max_unacked)
            prefix = f"g{at}."
            group.restore(window_end, {name[len(prefix) :]: a for name, a in arrays.items() if name.startswith(prefix)})
            self._add(group)


def _fitting(size: U32, max_bytes: int) -> tuple[int, int]:
    """How many of these records (n,), from the first on, are `max_bytes` at most, but at least 1; their bytes."""
    if not len(size):
        return 0, 0
    if is_few(len(size)):
        ends = [*accumulate(size.tolist())]
        fits = max(1, bisect_right(ends, max_bytes))
        return fits, ends[fits - 1]
    ends_of_many = np.cumsum(size, dtype=np.int64)
    fits = max(1, int(np.searchsorted(ends_of_many, max_bytes, "right")))
    return fits, int(ends_of_many[fits - 1])


def _hashes(tags: tuple[str, ...]) -> U32:
    return np.array([tag_hash(tag) for tag in tags], np.uint32)
