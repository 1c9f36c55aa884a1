"""Which parts of the log are read for some records, so that few reads serve many.

rows       r0 r1 r2     r3       r4 r5     as they are asked for, in any order
runs       [-------)    [--)     [----)    rows whose records follow each other in the log: a herd is a few runs,
                                           rows with scattered dues are a run each
extents    [---------------)     [----)    runs that lie close together, in the log's order: one read each
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from delaynode.store.types import I64

GAP_BYTES = 1024  # two records closer than this are read at once: less copying than the call would cost


@dataclass(frozen=True, slots=True)
class Runs:
    """k runs. first, last: their rows, i64[k]. begin, end: where they lie, log offsets i64[k]."""

    first: I64
    last: I64
    begin: I64
    end: I64

    @property
    def lengths(self) -> I64:
        """Rows of each, i64[k]."""
        return self.last - self.first + 1


def runs_of(offset: I64, size: I64) -> Runs:
    """The runs of records at log offsets (n,), n > 0, of sizes (n,) bytes."""
    end = offset + size
    breaks = np.flatnonzero(offset[1:] != end[:-1])
    first, last = np.concatenate(([0], breaks + 1)), np.append(breaks, len(end) - 1)
    return Runs(first, last, offset[first], end[last])


def extents_of(runs: Runs, bases: Sequence[int]) -> tuple[I64, I64, I64]:
    """m extents: (low i64[m], high i64[m], as log offsets; extent i64[k], the one that each run lies in).

    bases: log offsets at which segments begin. No extent has parts of two: what lies between may have been dropped.
    """
    order = np.argsort(runs.begin, kind="stable")
    begin, reach = runs.begin[order], np.maximum.accumulate(runs.end[order])
    segment = np.searchsorted(bases, begin)
    apart = (begin[1:] > reach[:-1] + GAP_BYTES) | (segment[1:] != segment[:-1])
    opens = np.flatnonzero(np.concatenate(([True], apart)))
    next_opens = np.append(opens[1:], len(begin))
    extent = np.empty(len(begin), np.int64)
    extent[order] = np.repeat(np.arange(len(opens)), next_opens - opens)
    return begin[opens], reach[next_opens - 1], extent
