"""The ledger: how many of each CommitLog segment's messages are still needed.

A message is needed while it is pending, or released and kept for its groups, or a dead letter. Every frame that ends
one of these counts it off, so the ledger is the same on every replica and a segment whose count is 0 can go.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from delaynode.store.errors import Damaged, Impossible
from delaynode.store.types import I64, Array, Bools, Records

COLUMN_BYTES = 36  # a message's columns in a RELOCATE
MIN_JOIN, MAX_JOIN = 8, 16  # small segments that are written again as one
SEGMENT = np.dtype(
    [
        ("base", "<i8"),  # log offset
        ("end", "<i8"),  # log offset; of the open segment: 0
        ("count", "<i8"),  # messages still needed
        ("bytes", "<i8"),  # of their records
        ("closed_ms", "<i8"),  # wall time of the frame that began the next one; of the open segment: 0
    ]
)


@dataclass(frozen=True, slots=True)
class SegmentUsage:
    """Bytes of the closed segments, and how much of it is needed."""

    closed_bytes: int
    needed_bytes: int


class SegmentLedger:
    """Owned by the shard's thread. Segments are in log order; the last one is open."""

    def __init__(self, segments: Array | None = None) -> None:
        if segments is not None and segments.dtype != SEGMENT:
            raise Damaged("the ledger's segments are not of this version's form")
        self.segments: Records = np.zeros(0, SEGMENT) if segments is None else segments.copy()

    def bounds(self, log_end: int) -> list[tuple[int, int]]:
        """(base, end) of each segment, the open one's end being the log's."""
        return [(int(row["base"]), int(row["end"]) or log_end) for row in self.segments]

    def open(self, base: int, wall_ms: int) -> None:
        """A frame begins a segment at `base`."""
        if len(self.segments):
            self.segments["end"][-1], self.segments["closed_ms"][-1] = base, wall_ms
        self.segments = np.append(self.segments, np.array([(base, 0, 0, 0, 0)], SEGMENT))

    def hold(self, count: int, size: int) -> None:
        """The open segment got `count` messages of `size` bytes in all."""
        counts, sizes = self.segments["count"], self.segments["bytes"]
        counts[-1] += count
        sizes[-1] += size

    def release(self, offset: Array, size: Array) -> None:
        """The messages (n,) whose records lie at `offset` are needed no more there.

        Raises Impossible, and changes nothing, when a segment holds fewer messages than that.
        """
        self.segments["count"], self.segments["bytes"] = self._without(offset, size)

    def check_release(self, offset: Array, size: Array) -> None:
        """Raises Impossible where release() would."""
        self._without(offset, size)

    def _without(self, offset: Array, size: Array) -> tuple[I64, I64]:
        """The counts and bytes (k,) of all segments once these messages (n,) are released."""
        at = self._rows(offset)
        known = len(self.segments)
        count = self.segments["count"] - np.bincount(at, minlength=known).astype(np.int64)
        left = self.segments["bytes"] - np.bincount(at, weights=size, minlength=known).astype(np.int64)
        if bool((count < 0).any()):
            base = int(self.segments["base"][np.argmin(count)])
            raise Impossible(f"CommitLog segment {base}: more messages have gone than it held")
        return count, left

    def _rows(self, offset: Array) -> I64:
        at = np.searchsorted(self.segments["base"], offset, "right") - 1
        bad = at < 0
        if not bad.any():
            end = self.segments["end"][at]
            bad = (end > 0) & (offset >= end)
        if bad.any():
            raise Impossible(
                f"no CommitLog segment holds offset {int(offset[np.argmax(bad)])}, where a message should be"
            )
        return at.astype(np.int64)

    def remove(self, bases: I64) -> None:
        """These segments are freed. Raises Impossible, and changes nothing, when one is needed, open or unknown."""
        dropped = np.isin(self.segments["base"], bases)
        found = self.segments[dropped]
        if len(found) != len(bases) or int(found["end"].min(initial=1)) == 0 or int(found["count"].max(initial=0)):
            raise Impossible(
                f"can't free CommitLog segments {bases.tolist()}: {found.tolist()} is what is known of them"
            )
        self.segments = self.segments[~dropped]

    # ------------------------------------------------------------ what can go
    def closed(self, limit: int) -> Bools:
        """Which segments (k,) end at or below log offset `limit`."""
        end = self.segments["end"]
        below: Bools = (end > 0) & (end <= limit)
        return below

    def empty(self, limit: int) -> I64:
        """The bases of those that nobody needs, ending at or below `limit`."""
        rows = self.segments[self.closed(limit) & (self.segments["count"] == 0)]
        return np.ascontiguousarray(rows["base"])

    def kept_from(self, log_end: int, now_ms: int, keep_bytes: int, keep_ms: int) -> int:
        """The log offset from which on the log is kept for being recent: less than `keep_bytes` back, and `keep_ms`."""
        old = self.segments["end"][(self.segments["end"] > 0) & (self.segments["closed_ms"] <= now_ms - keep_ms)]
        return max(int(old.max(initial=0)), log_end - keep_bytes)

    @property
    def has_closed(self) -> bool:
        """Whether there are segments but the open one. Without them nothing need be looked for."""
        return len(self.segments) > 1

    def mostly_dead(self, limit: int, before_ms: int, share: float) -> Records:
        """Closed segments (k,) of dtype SEGMENT, the emptiest first, closed before `before_ms`, of whose bytes at most
        `share` are needed (and some are).
        """
        rows = self.segments[self.closed(limit) & (self.segments["count"] > 0)]
        # as it would be written again: else one of small records would seem mostly dead, and move, for ever
        needed = (rows["bytes"] + COLUMN_BYTES * rows["count"]) / (rows["end"] - rows["base"])
        order = np.argsort(needed, kind="stable")
        order = order[(rows["closed_ms"] <= before_ms)[order] & (needed <= share)[order]]
        emptiest: Records = rows[order]
        return emptiest

    def joinable(self, limit: int, before_ms: int, small: int, without: Collection[int]) -> Records:
        """Closed segments (k,) of at most `small` bytes, the smallest first, closed before `before_ms`, worth being
        written again as one; none is one of `without`. None of them makes up more than half, so that even the smallest
        is not moved often before it is part of a large one.
        """
        size = self.segments["end"] - self.segments["base"]
        which = self.closed(limit) & (self.segments["count"] > 0) & (self.segments["closed_ms"] <= before_ms)
        which &= (size <= small) & ~np.isin(self.segments["base"], list(without))
        order = np.flatnonzero(which)
        order = order[np.argsort(size[order], kind="stable")][:MAX_JOIN]
        size = size[order]
        enough = np.flatnonzero((np.cumsum(size) >= 2 * size) & (np.arange(len(size)) + 1 >= MIN_JOIN))
        found: Records = self.segments[order[: int(enough[-1]) + 1 if len(enough) else 0]]
        return found

    def open_share(self, log_end: int) -> tuple[int, float]:
        """Bytes of the open segment, and which part of them is needed."""
        last = self.segments[-1]
        size = log_end - int(last["base"])
        return size, (int(last["bytes"]) + COLUMN_BYTES * int(last["count"])) / max(1, size)

    def usage(self) -> SegmentUsage:
        rows = self.segments[self.segments["end"] > 0]
        return SegmentUsage(int((rows["end"] - rows["base"]).sum()), int(rows["bytes"].sum()))
