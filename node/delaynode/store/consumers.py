"""The share groups of a shard: operations that the master appends, and the effect of their frames."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from delaynode.store.consumequeue import ConsumeQueue
from delaynode.store.errors import Refused
from delaynode.store.frames import FLAG_DEAD_LETTERS, GroupChange, Kind, Progress
from delaynode.store.groups import NEVER, Group, HandOut, as_ranges, expand
from delaynode.store.types import I64, U32, Buffer, Records

MAX_GROUP_NAME_BYTES = 255
MAX_GROUPS = 1000
MAX_TAGS = 64
FIRST_BACKOFF_MS, LONGEST_BACKOFF_MS = 1_000, 300_000

NONE_I64: I64 = np.empty(0, np.int64)
NONE_U32: U32 = np.empty(0, np.uint32)

Propose = Callable[[Kind, int, tuple[Buffer, ...], int, int], None]
"""(kind, count, payload, now ms, flags): append a frame; its effect is applied by the caller."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """n messages for one consumer: rows of dtype QUEUED, queue offsets i64[n], attempts u32[n]."""

    offset: I64
    attempt: U32
    rows: Records


@dataclass(frozen=True, slots=True)
class NackCounts:
    retried: int
    dead: int
    ignored: int


def tag_hash(tag: str) -> int:
    """crc32 of the tag's utf-8; 0 stands for no tag."""
    return zlib.crc32(tag.encode()) if tag else 0


class Consumers:
    """Owned by the shard's thread."""

    def __init__(self, queue: ConsumeQueue, propose: Propose, max_unacked: int, max_attempts: int) -> None:
        self.queue = queue
        self.groups: dict[str, Group] = {}
        self.max_unacked = max_unacked
        self.max_attempts = max_attempts
        self._propose = propose

    # ------------------------------------------------------------ operations of the master
    def group(self, name: str) -> Group:
        """Raises Refused UNKNOWN_GROUP."""
        found = self.groups.get(name)
        if found is None:
            raise Refused("UNKNOWN_GROUP", f"group {name!r} has not received here yet")
        return found

    def join(self, name: str, tags: tuple[str, ...], *, from_end: bool, now_ms: int) -> bool:
        """Make sure that the group is there with this filter; True when a frame was needed, which must commit first."""
        tags = tuple(sorted(set(tags)))
        known = self.groups.get(name)
        if known is not None:
            if known.tags != tags:
                raise Refused(
                    "GROUP_MISMATCH",
                    f"group {name!r} takes tags {list(known.tags) or 'all'}, asked for {list(tags) or 'all'}",
                )
            return False
        if not 0 < len(name.encode()) <= MAX_GROUP_NAME_BYTES:
            raise Refused(
                "BAD_GROUP", f"a group's name has 1 to {MAX_GROUP_NAME_BYTES} bytes, this one {len(name.encode())}"
            )
        if len(tags) > MAX_TAGS or any(len(tag.encode()) > MAX_GROUP_NAME_BYTES for tag in tags):
            raise Refused("BAD_GROUP", f"a group's filter has at most {MAX_TAGS} tags of {MAX_GROUP_NAME_BYTES} bytes")
        if len(self.groups) >= MAX_GROUPS:
            raise Refused("BAD_GROUP", f"the shard has {MAX_GROUPS} groups already; delete one")
        change = GroupChange(name, True, self.queue.visible if from_end else 0, tags)
        self._propose(Kind.GROUP, 1, change.payload(), now_ms, 0)
        self.apply_group(change)
        return True

    def delete(self, name: str, now_ms: int) -> None:
        self.group(name)
        change = GroupChange(name, False, 0, ())
        self._propose(Kind.GROUP, 1, change.payload(), now_ms, 0)
        self.apply_group(change)

    def deliver(self, name: str, now_ms: int, invisible_ms: int, most: int, most_bytes: int) -> Delivery:
        """Hand out what is visible now, at least one message if there is any, at most `most` and `most_bytes`."""
        group = self.group(name)
        handed = group.hand_out(self.queue, now_ms, now_ms + invisible_ms, most)
        rows = self.rows(handed.offset)
        fits = max(1, int(np.searchsorted(np.cumsum(rows["size"], dtype=np.int64), most_bytes, "right")))
        if fits < len(rows):
            group.give_back(handed.offset[fits:])
            handed, rows = HandOut(handed.offset[:fits], handed.attempt[:fits]), rows[:fits]
        return Delivery(handed.offset, handed.attempt, rows)

    def rows(self, offsets: I64) -> Records:
        """The queue's units at these offsets, in this order."""
        start, end = as_ranges(offsets)
        parts = [self.queue.read(low, high - low) for low, high in zip(start.tolist(), end.tolist(), strict=True)]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else self.queue.read(0, 0)

    def acknowledge(self, name: str, start: I64, end: I64, now_ms: int) -> int:
        """Take ranges out of the group; returns how many messages that were. Any released offset may be named."""
        group = self.group(name)
        if len(start) != len(end):
            raise Refused("BAD_COLUMNS", f"column start has {len(start)} rows, column end {len(end)}")
        if not len(start):
            return 0
        group.skip_filtered(self.queue)
        bad = (start < 0) | (end <= start) | (end > self.queue.visible)
        if bad.any():
            at = int(np.argmax(bad))
            raise Refused(
                "BAD_REQUEST",
                f"range {at} is [{int(start[at])}, {int(end[at])}), released are [0, {self.queue.visible})",
            )
        reach = max(group.floor, int(end[start <= group.floor].max(initial=0))) + self.max_unacked
        if int(end.max()) > reach:
            raise Refused(
                "BAD_REQUEST",
                f"range ends at {int(end.max())}, more than {self.max_unacked:,} above the first open offset",
            )
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
        if bool((start[1:] < end[:-1]).any()):
            raise Refused("BAD_COLUMNS", "ranges overlap")
        progress = Progress(name, start, end, NONE_U32, NONE_I64)
        self._propose(Kind.ACK, len(start), progress.payload(), now_ms, 0)
        return group.acknowledge(start, end, self.queue)

    def nack(self, name: str, offset: I64, attempt: U32, backoff_ms: int, now_ms: int) -> NackCounts:
        """End attempts: those that are the last become dead letters, the others wait for their backoff."""
        group = self.group(name)
        if len(offset) != len(attempt):
            raise Refused("BAD_COLUMNS", f"column offset has {len(offset)} rows, column attempt {len(attempt)}")
        group.skip_filtered(self.queue)
        _, first = np.unique(offset, return_index=True)
        named = len(offset)
        offset, attempt = offset[first], attempt[first]
        known = (offset >= 0) & (offset < min(self.queue.visible, group.floor + self.max_unacked))
        offset, attempt = offset[known], attempt[known]
        held = group.holds(offset, attempt, self.queue)
        retried, dead = self._end_attempts(name, HandOut(offset[held], attempt[held]), backoff_ms, now_ms)
        return NackCounts(retried, dead, named - retried - dead)

    def expire(self, now_ms: int) -> bool:
        """End the attempts whose invisible time is over; True when there were any."""
        any_late = False
        for name, group in self.groups.items():
            if group.next_expiry > now_ms:
                continue
            late = group.expired(now_ms)
            if len(late.offset):
                self._end_attempts(name, late, 0, now_ms)
                any_late = True
        return any_late

    def next_expiry(self) -> int:
        """When the earliest invisible time ends, ms; NEVER when nothing is handed out."""
        return min((group.next_expiry for group in self.groups.values()), default=NEVER)

    def _end_attempts(self, name: str, ended: HandOut, backoff_ms: int, now_ms: int) -> tuple[int, int]:
        last = ended.attempt >= self.max_attempts
        for kind, rows in ((Kind.DEAD, last), (Kind.RETRY, ~last)):
            if not rows.any():
                continue
            offset, attempt = ended.offset[rows], ended.attempt[rows]
            if backoff_ms >= 0:
                wait = np.full(len(offset), backoff_ms, np.int64)
            else:
                wait = np.minimum(FIRST_BACKOFF_MS << np.minimum(attempt.astype(np.int64) - 1, 20), LONGEST_BACKOFF_MS)
            start, end, ended_attempt, visible = _ranges_of(offset, attempt, now_ms + wait)
            progress = Progress(name, start, end, ended_attempt, visible if kind is Kind.RETRY else NONE_I64)
            self._propose(kind, len(start), progress.payload(), now_ms, 0)
            self.apply_progress(kind, 0, progress)
        return int(np.count_nonzero(~last)), int(np.count_nonzero(last))

    def dead_letters(self, name: str, after_offset: int, limit: int) -> Delivery:
        """Dead letters with a larger offset, ascending."""
        group = self.group(name)
        offsets = np.array(sorted(at for at in group.dead if at > after_offset)[:limit], np.int64)
        attempts = np.array([group.dead[at] for at in offsets.tolist()], np.uint32)
        return Delivery(offsets, attempts, self.rows(offsets))

    def resolve(self, name: str, offsets: I64 | None, *, redrive: bool, now_ms: int) -> int:
        """Redrive or drop dead letters (all with None); returns how many of those named were dead letters."""
        group = self.group(name)
        wanted = sorted(group.dead if offsets is None else group.dead.keys() & set(offsets.tolist()))
        if not wanted:
            return 0
        start, end = as_ranges(np.array(wanted, np.int64))
        kind = Kind.RETRY if redrive else Kind.DEAD
        zeros = np.zeros(len(start), np.int64)
        progress = Progress(name, start, end, zeros.astype(np.uint32), zeros if redrive else NONE_I64)
        self._propose(kind, len(start), progress.payload(), now_ms, FLAG_DEAD_LETTERS)
        self.apply_progress(kind, FLAG_DEAD_LETTERS, progress)
        return len(wanted)

    # ------------------------------------------------------------ frames
    def apply_group(self, change: GroupChange) -> None:
        if change.create:
            hashes = np.array([tag_hash(tag) for tag in change.tags], np.uint32)
            self.groups[change.group] = Group(change.group, change.tags, hashes, change.start, self.max_unacked)
        else:
            self.groups.pop(change.group, None)

    def apply_progress(self, kind: Kind, flags: int, progress: Progress) -> None:
        group = self.groups.get(progress.group)
        if group is None or not len(progress.start):
            return
        if flags & FLAG_DEAD_LETTERS:
            offsets = expand(progress.start, progress.end)
            group.redrive(offsets) if kind is Kind.RETRY else group.drop(offsets)
        elif kind is Kind.ACK:
            group.acknowledge(progress.start, progress.end, self.queue)
        elif kind is Kind.RETRY:
            group.retry(progress.start, progress.end, progress.attempt, progress.visible, self.queue)
        else:
            group.bury(progress.start, progress.end, progress.attempt, self.queue)


def _ranges_of(offset: I64, attempt: U32, visible: I64) -> tuple[I64, I64, U32, I64]:
    """Runs of adjacent offsets with like attempt and time as ranges."""
    breaks = np.flatnonzero((np.diff(offset) != 1) | (np.diff(attempt) != 0) | (np.diff(visible) != 0))
    first = np.concatenate(([0], breaks + 1))
    last = np.append(breaks, len(offset) - 1)
    return offset[first], offset[last] + 1, attempt[first], visible[first]
