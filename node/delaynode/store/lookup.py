"""Where the messages of a Cancel, a Reschedule or a lookup stand: pending, or why not any more."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from delaynode.store.columns import at_or_below
from delaynode.store.timer.due_window import SortedRun
from delaynode.store.timer.index import TimerIndex
from delaynode.store.timer.scan import ScanJob
from delaynode.store.timer.units import DELETE, MOVED
from delaynode.store.types import I64, U8, Bools, Records

# what Cancel and Reschedule answer (delay.v1.Outcome)
CANCELLED, TOO_LATE, ALREADY_CANCELLED, RESCHEDULED, NOT_FOUND, MOVED_NOW = 1, 2, 3, 4, 5, 6


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Per message: an Outcome u8[n]; for Reschedule also the due now in force i64[n] ms."""

    outcome: U8
    due: I64


@dataclass(slots=True)
class Lookup:
    """Where messages stand: asked by (due, seq); `job` reads those that are not in the window, None: all are."""

    due: I64
    seq: I64
    job: ScanJob | None


def resolve(lookup: Lookup, index: TimerIndex, next_seq: int, past_ms: int) -> tuple[Records, Bools, U8]:
    """Per message: its unit, whether it can still be cancelled, and else the outcome that says why not.

    past_ms: the highest time that the shard or its caller knows. On the owner's thread, once the job has run.
    """
    due, seq = lookup.due, lookup.seq
    rows, found = index.window.find(due, seq)
    if lookup.job is not None:
        latest, _ = lookup.job.result()
        if len(latest):
            row = SortedRun.of(latest).places(due, seq)  # words are in a run's order
            hit = ~found & (row >= 0)
            rows[hit] = latest[row[hit]]
            found |= hit
    released = at_or_below(due, seq, index.watermark)
    dead = found & ((rows["magic"] & DELETE) != 0)
    moved = dead & ((rows["magic"] & MOVED) != 0)
    live = found & ~dead & ~released
    existed = (seq >= 0) & (seq < next_seq)
    late = existed & (released | ((due <= past_ms) & ~found))
    why = np.full(len(due), NOT_FOUND, np.uint8)
    why[late] = TOO_LATE
    why[dead & ~moved] = ALREADY_CANCELLED
    why[moved] = RESCHEDULED
    return rows, live, why


def first_named(rows: Records, live: Bools) -> Bools:
    """`live` without the second and later mention of one message in a request."""
    at = np.flatnonzero(live)
    order = np.lexsort((at, rows["seq"][at], rows["due"][at]))
    due, seq = rows["due"][at][order], rows["seq"][at][order]
    again = np.zeros(len(at), bool)
    again[1:] = (due[1:] == due[:-1]) & (seq[1:] == seq[:-1])
    first = live.copy()
    first[at[order][again]] = False
    return first
