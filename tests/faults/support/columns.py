"""The set checker for long rounds at a high rate: the checks of checker.py, in columns of 21 bytes a message.

A message's id is its row. Two groups are watched: each must get every message. Promises, each a count that must be 0:

    missing        acknowledged, not cancelled, never delivered to some group; a cancel without an answer may have been
                   carried out
    early          received before its due, by the same machine's clock
    uncancelled    answered CANCELLED and delivered
    stored_twice   one message under two (queue, seq): a retry was stored again
    unseen         a queue offset that showed one message and later another one
    wrong_due      delivered with a due that no producer asked for
    invented       delivered, but never sent
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
GROUPS = ("g", "h")
ROW = np.dtype([
    ("queue", "u1"), ("seq", "<u4"), ("due", "<i4"), ("moved", "<i4"), ("acknowledged", "?"), ("cancelled", "?"),
    ("doubtful", "?"), ("sent", "?"), ("delivered", "<u2", (len(GROUPS),)),
])  # fmt: skip
UNKNOWN = np.uint32(0xFFFFFFFF)
NEVER = np.int32(-1)
EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class Totals:
    """The checker's findings. broken: the promises that were broken, with examples; it must be empty."""

    sent: int
    acknowledged: int
    cancelled: int
    moved: int
    delivered: tuple[int, ...]  # messages, by group
    duplicates: tuple[int, ...]  # deliveries that repeat one, by group
    missing: tuple[int, ...]  # messages, by group
    early: int
    uncancelled: int
    stored_twice: int
    unseen: int
    wrong_due: int
    invented: int
    broken: dict[str, list[str]]


@dataclass
class Columns:
    """One event loop owns it. Times are ms since 1970 UTC outside, ms since `zero_ms` inside."""

    zero_ms: int
    rows: NDArray[Any] = field(default_factory=lambda: np.zeros(0, ROW))
    count: int = 0
    broken: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    _at_offset: dict[int, NDArray[np.uint32]] = field(default_factory=dict)  # queue -> id by offset

    def new(self, n: int) -> int:
        """Reserve ids for n messages about to be sent; returns the first."""
        first, self.count = self.count, self.count + n
        if self.count > len(self.rows):
            more = np.zeros(max(1 << 16, self.count + len(self.rows) // 2), ROW)
            more["seq"], more["due"], more["moved"] = UNKNOWN, NEVER, NEVER
            more[: len(self.rows)] = self.rows
            self.rows = more
        self.rows["sent"][first : self.count] = True
        return first

    # ------------------------------------------------------------ answers to callers
    def acknowledge(self, ids: I64, queue: int, seq: I64, due_ms: I64) -> None:
        self._place(ids, queue, seq)
        self.rows["due"][ids] = due_ms - self.zero_ms
        self.rows["acknowledged"][ids] = True

    def cancel(self, ids: I64) -> None:
        self.rows["cancelled"][ids] = True

    def doubt_cancel(self, ids: I64) -> None:
        """Record that a cancel has no answer."""
        self.rows["doubtful"][ids] = True

    def maybe_move(self, ids: I64, due_ms: int) -> None:
        """Record that a reschedule was sent."""
        self.rows["moved"][ids] = due_ms - self.zero_ms

    def move(self, ids: I64, moved: NDArray[np.bool_]) -> None:
        """Record the answers to a reschedule: MOVED or not."""
        self.rows["moved"][ids[~moved]] = NEVER
        self.rows["due"][ids[moved]] = self.rows["moved"][ids[moved]]

    # ------------------------------------------------------------ deliveries
    def deliver(self, group: int, queue: int, ids: I64, offset: I64, seq: I64, due_ms: I64, received_ms: int) -> None:
        """Record a delivered batch, all of one queue."""
        known = (ids >= 0) & (ids < self.count)
        self._note("invented", ids[~known])
        ids, offset, seq, due_ms = ids[known], offset[known], seq[known], due_ms[known]
        self._note("early", ids[received_ms < due_ms])
        self._place(ids, queue, seq)
        self._see(queue, ids, offset)
        np.add.at(self.rows["delivered"][:, group], ids, 1)
        row = self.rows[ids]
        due = due_ms - self.zero_ms
        asked = (row["due"] == NEVER) | (row["due"] == due) | (row["moved"] == due)
        self._note("wrong_due", ids[~asked])

    def _place(self, ids: I64, queue: int, seq: I64) -> None:
        row = self.rows[ids]
        elsewhere = (row["seq"] != UNKNOWN) & ((row["seq"] != seq) | (row["queue"] != queue))
        self._note("stored_twice", ids[elsewhere])
        self.rows["queue"][ids], self.rows["seq"][ids] = queue, seq

    def _see(self, queue: int, ids: I64, offset: I64) -> None:
        if not len(offset):
            return
        found = self._at_offset.get(queue)
        if found is None or int(offset.max()) >= len(found):
            more = np.full(2 * int(offset.max()) + 1_024, UNKNOWN, np.uint32)
            if found is not None:
                more[: len(found)] = found
            found = self._at_offset[queue] = more
        self._note("unseen", ids[(found[offset] != UNKNOWN) & (found[offset] != ids)])
        found[offset] = ids

    def _note(self, what: str, ids: I64) -> None:
        if len(ids):
            self.broken[what] += len(ids)
            shown = self.examples.setdefault(what, [])
            shown += [f"{self.row(one)}" for one in ids[: EXAMPLES - len(shown)].tolist()]

    # ------------------------------------------------------------ the totals
    def row(self, id_: int) -> str:
        if not 0 <= id_ < self.count:
            return f"{id_}: never sent"
        row = self.rows[id_]
        names = [name for name in ROW.names or () if name != "sent"]
        return f"{id_}: " + " ".join(f"{name} {row[name]}" for name in names)

    def missing(self, group: int) -> I64:
        rows = self.rows[: self.count]
        expected = rows["acknowledged"] & ~rows["cancelled"] & ~rows["doubtful"]
        return np.flatnonzero(expected & (rows["delivered"][:, group] == 0))

    @property
    def all_missing(self) -> int:
        return sum(len(self.missing(group)) for group in range(len(GROUPS)))

    def totals(self) -> Totals:
        rows = self.rows[: self.count]
        delivered = rows["delivered"]
        per_group: Sequence[int] = range(len(GROUPS))
        self.broken["uncancelled"] = 0
        self._note("uncancelled", np.flatnonzero(rows["cancelled"] & (delivered.sum(axis=1) > 0)))
        missing = [self.missing(group) for group in per_group]
        broken = {what: self.examples.get(what, []) for what, count in self.broken.items() if count}
        broken |= {
            f"missing from {GROUPS[g]}": [self.row(one) for one in missing[g][:EXAMPLES].tolist()]
            for g in per_group
            if len(missing[g])
        }
        return Totals(
            sent=self.count,
            acknowledged=int(rows["acknowledged"].sum()),
            cancelled=int(rows["cancelled"].sum()),
            moved=int((rows["moved"] != NEVER).sum()),
            delivered=tuple(int((delivered[:, g] > 0).sum()) for g in per_group),
            duplicates=tuple(int((delivered[:, g].astype(np.int64) - (delivered[:, g] > 0)).sum()) for g in per_group),
            missing=tuple(len(missing[g]) for g in per_group),
            broken=broken,
            **{what: self.broken[what] for what in _COUNTED},
        )


_COUNTED = ("early", "uncancelled", "stored_twice", "unseen", "wrong_due", "invented")
