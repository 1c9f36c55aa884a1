"""Sets of queue offsets: as ranges, as frames carry them, and the queue's units that stand there."""

from __future__ import annotations

import numpy as np

from delaynode.store.errors import Damaged
from delaynode.store.queue.consume_queue import ConsumeQueue
from delaynode.store.types import I64, U32, Records

MAX_GAP_ROWS = 4096  # units closer than this are read as one piece


def as_ranges(offsets: I64) -> tuple[I64, I64]:
    """Ascending offsets (n,) as k ranges: start i64[k], end i64[k] (exclusive)."""
    if not len(offsets):
        return offsets, offsets
    breaks = np.flatnonzero(np.diff(offsets) != 1)
    start = offsets[np.concatenate(([0], breaks + 1))]
    end = offsets[np.append(breaks, len(offsets) - 1)] + 1
    return start, end


def as_attempt_ranges(offsets: I64, attempt: U32, visible: I64) -> tuple[I64, I64, U32, I64]:
    """The same as as_ranges(), for one offset or more; offsets in a range have like attempt and time."""
    breaks = np.flatnonzero((np.diff(offsets) != 1) | (np.diff(attempt) != 0) | (np.diff(visible) != 0))
    first = np.concatenate(([0], breaks + 1))
    last = np.append(breaks, len(offsets) - 1)
    return offsets[first], offsets[last] + 1, attempt[first], visible[first]


def expand(start: I64, end: I64) -> I64:
    """The offsets in k ranges, in range order."""
    if len(start) == 1:
        return np.arange(start[0], end[0], dtype=np.int64)
    length = end - start
    total = int(length.sum())
    at = np.repeat(start - np.concatenate(([0], np.cumsum(length)[:-1])), length)
    offsets: I64 = at + np.arange(total)
    return offsets


def rows_at(queue: ConsumeQueue, offsets: I64) -> Records:
    """The queue's units at these ascending offsets, read in few pieces. Raises Damaged when one is not there."""
    if not len(offsets):
        return queue.read(0, 0)
    is_dense = int(offsets[-1]) - int(offsets[0]) <= MAX_GAP_ROWS
    parts = []
    for part in (offsets,) if is_dense else np.split(offsets, np.flatnonzero(np.diff(offsets) > MAX_GAP_ROWS) + 1):
        low, high = int(part[0]), int(part[-1]) + 1
        rows = queue.read(low, high - low)
        if len(rows) < high - low:
            raise Damaged(f"queue offsets [{low}, {high}) are wanted, {len(rows)} of them are there")
        whole = len(part) == len(rows) and (len(part) == 1 or bool((np.diff(part) == 1).all()))
        parts.append(rows if whole else rows[part - low])
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
