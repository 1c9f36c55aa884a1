"""The schedules of a shard: what each is, what it has fired, and the firing that is armed.

    number            the log offset at which the frame ends that made the schedule: it names it for ever
    version           1, and one more each time that it is put; created_ms, changed_ms: when it was, first and last
    nominal, due      the firing that is armed, ms; NEVER: none
    last              the nominal time of the last firing by the clock that is over, ms
    fired, skipped    messages so far; times that were left out; missed: times that were passed over
    queue_offset      where the last message lies in the ConsumeQueue; -1: there is none
    recent            (n, 10, 5) i64: of each of the last ten firings, the newest first, its number (0: it was skipped),
                      nominal time, due and when it was (ms), and its flags; all 0: there is none

All of it follows from frames: the master writes what is armed next, and no copy reckons times. Columns, since 100,000
schedules may fire in one second, and a checkpoint has all of them. A deleted schedule's row is dropped with the next
checkpoint, or when half of the rows are deleted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from delaynode.store.errors import Damaged, Impossible
from delaynode.store.log.frames import BY_HAND, FIRED, NEVER, SKIPPED, Firings, FrameKind, ScheduleChange
from delaynode.store.types import I64, Array

Text = TypeVar("Text", str, bytes)

RECENT = 10
COLUMNS = (
    "number", "version", "created_ms", "changed_ms", "nominal", "due", "last", "fired", "skipped", "missed",
    "queue_offset",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ScheduleState:
    """One schedule. recent: i64 (m, 5), the last firings, the newest first, see above."""

    id: str
    definition: bytes
    number: int
    version: int
    created_ms: int
    changed_ms: int
    nominal: int
    due: int
    last: int
    fired: int
    skipped: int
    missed: int
    queue_offset: int
    recent: I64


class Schedules:
    """Owned by the shard's thread."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}  # by id
        self._ids: list[str] = []  # by row; "" where it is deleted
        self._definitions: list[bytes] = []
        self._columns: dict[str, I64] = {name: np.empty(0, np.int64) for name in COLUMNS}  # numbers ascend
        self._recent = np.empty((0, RECENT, 5), np.int64)
        self._next_due: int | None = NEVER  # None: to be looked up
        self._sorted: list[str] | None = None  # the ids; None: to be sorted
        self.definition_bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, id_: str) -> bool:
        return id_ in self._rows

    def ids(self) -> list[str]:
        """All of them, ascending."""
        if self._sorted is None:
            self._sorted = sorted(self._rows)
        return self._sorted

    def find(self, id_: str) -> ScheduleState | None:
        row = self._rows.get(id_)
        return None if row is None else self._state(row)

    def _state(self, row: int) -> ScheduleState:
        recent = self._recent[row]
        values = {name: int(column[row]) for name, column in self._columns.items()}
        return ScheduleState(self._ids[row], self._definitions[row], recent=recent[recent[:, 4] > 0].copy(), **values)

    @property
    def next_due(self) -> int:
        """The earliest due that is armed, ms; NEVER: none is."""
        if self._next_due is None:
            self._next_due = int(self._columns["due"][: len(self._ids)].min(initial=NEVER))
        return self._next_due

    def due_by(self, time_ms: int, most: int) -> list[ScheduleState]:
        """Up to `most` of those whose firing is due at `time_ms`, the first due first; without `recent`."""
        if self.next_due > time_ms:
            return []
        due = self._columns["due"][: len(self._ids)]
        rows = np.flatnonzero(due <= time_ms)
        rows = rows[np.argsort(due[rows], kind="stable")][:most]
        columns = zip(*(self._columns[name][rows].tolist() for name in COLUMNS), strict=True)
        none = self._recent[0, :0]
        return [
            ScheduleState(
                self._ids[row], self._definitions[row], recent=none, **dict(zip(COLUMNS, values, strict=True))
            )
            for row, values in zip(rows.tolist(), columns, strict=True)
        ]

    def dues_before(self, time_ms: int) -> I64:
        """When the firings that are armed are due, of those before `time_ms`, ascending."""
        due = self._columns["due"][: len(self._ids)]
        return np.sort(due[due < time_ms])

    # ------------------------------------------------------------ frames
    def apply(self, change: ScheduleChange, wall_ms: int, end: int) -> None:
        """A SCHEDULE of `wall_ms` that ends at log offset `end`."""
        row = self._rows.get(change.id)
        self._next_due = None
        if not change.put:
            if row is None:
                raise Impossible(f"there is no schedule {change.id!r}")
            self._delete(row)
            return
        if row is None:
            row = self._add(change.id, wall_ms, end)
        self.definition_bytes += len(change.definition) - len(self._definitions[row])
        self._definitions[row] = change.definition
        self._columns["version"][row] += 1
        for name, value in (("changed_ms", wall_ms), ("nominal", change.nominal), ("due", change.due)):
            self._columns[name][row] = value

    def _add(self, id_: str, wall_ms: int, end: int) -> int:
        row = len(self._ids)
        if row == len(self._recent):
            self._resize(max(16, row + row // 2))
        self._rows[id_], self._sorted = row, None
        self._ids.append(id_)
        self._definitions.append(b"")
        for name, column in self._columns.items():
            column[row] = {"number": end, "created_ms": wall_ms, "queue_offset": -1}.get(name, 0)
        self._recent[row] = 0
        return row

    def _resize(self, rows: int) -> None:
        kept = len(self._ids)
        for name, column in self._columns.items():
            self._columns[name] = np.empty(rows, np.int64)
            self._columns[name][:kept] = column[:kept]
        recent, self._recent = self._recent, np.empty((rows, RECENT, 5), np.int64)
        self._recent[:kept] = recent[:kept]

    def _delete(self, row: int) -> None:
        self.definition_bytes -= len(self._definitions[row])
        del self._rows[self._ids[row]]
        self._ids[row], self._definitions[row], self._sorted = "", b"", None
        self._columns["due"][row] = NEVER
        if 2 * len(self._rows) < len(self._ids):
            self._compact()

    def _compact(self) -> None:
        """Drop the rows of deleted schedules."""
        kept = [row for row, id_ in enumerate(self._ids) if id_]
        if len(kept) == len(self._ids):
            return
        self._ids = [self._ids[row] for row in kept]
        self._definitions = [self._definitions[row] for row in kept]
        self._columns = {name: column[kept] for name, column in self._columns.items()}
        self._recent = self._recent[kept]
        self._rows = {id_: row for row, id_ in enumerate(self._ids)}

    def rows_of(self, firings: Firings, kind: FrameKind) -> npt.NDArray[np.intp]:
        """The row of each. Raises Impossible where a firing is not of a schedule here, or is not the next of its own
        schedule; where a FIRE repeats one."""
        numbers = self._columns["number"][: len(self._ids)]
        rows = np.searchsorted(numbers, firings.number)
        if not len(numbers) or (numbers[np.minimum(rows, len(numbers) - 1)] != firings.number).any():
            raise Impossible("it fires a schedule that is not here")
        by_clock = (firings.flags & BY_HAND) == 0
        several = len(np.unique(rows)) < len(rows)
        if several and by_clock.any() and (kind is FrameKind.FIRE or not by_clock.all()):
            raise Impossible("it fires a schedule twice")
        if not all(self._ids[row] for row in set(rows.tolist())):
            raise Impossible("it fires a schedule that is deleted")
        armed = self._columns["nominal"][rows]
        if several and by_clock.any():  # of the later rows of a schedule it is what the one before arms
            order = np.argsort(rows, kind="stable")
            later = np.flatnonzero(np.diff(rows[order]) == 0)
            armed[order[later + 1]] = firings.nominal[order[later]]
        again = by_clock & ((firings.time < armed) | (firings.nominal <= firings.time))
        if again.any():
            at = int(np.flatnonzero(again)[0])
            raise Impossible(
                f"it fires schedule {self._ids[rows[at]]!r} of {firings.time[at]} and arms {firings.nominal[at]}, "
                f"where {armed[at]} is armed"
            )
        return rows

    def fire(self, rows: npt.NDArray[np.intp], firings: Firings, due: I64, wall_ms: int, queue_end: int) -> None:
        """Firings of these rows, at `wall_ms`; due: i64[m] of their messages, which have queue offsets from `queue_end`
        on. A row may come several times: the last is what stays, as NumPy assigns in order."""
        columns, by_clock = self._columns, (firings.flags & BY_HAND) == 0
        fired, skipped = (firings.flags & FIRED) != 0, (firings.flags & SKIPPED) != 0
        self._next_due = None
        columns["nominal"][rows], columns["due"][rows] = firings.nominal, firings.due
        columns["last"][rows[by_clock]] = firings.time[by_clock]
        entry = np.zeros((len(rows), 5), np.int64)
        entry[fired, 0] = columns["fired"][rows[fired]] + 1 + _places(rows[fired])[0]
        entry[:, 1], entry[:, 2] = firings.time, firings.time
        entry[fired, 2] = due
        entry[:, 3], entry[:, 4] = wall_ms, firings.flags
        np.add.at(columns["fired"], rows, fired)
        np.add.at(columns["skipped"], rows, skipped)
        np.add.at(columns["missed"], rows, firings.missed)
        columns["queue_offset"][rows[fired]] = queue_end + np.arange(len(due))
        told = fired | skipped
        self._tell(rows[told], entry[told])

    def _tell(self, rows: npt.NDArray[np.intp], entry: I64) -> None:
        """Put these firings, i64 (n, 5), the oldest first, before what is recent."""
        before, after = _places(rows)
        newest = after == 0
        first, count = rows[newest], before[newest] + 1
        from_ = np.arange(RECENT) - count[:, None]
        self._recent[first] = self._recent[first[:, None], np.maximum(from_, 0)]  # what is below is written next
        kept = after < RECENT
        self._recent[rows[kept], after[kept]] = entry[kept]

    # ------------------------------------------------------------ checkpoint
    def snapshot(self) -> dict[str, Array]:
        """All of them, as arrays that nobody changes any more."""
        self._compact()
        count = len(self._ids)
        if not count:
            return {}
        arrays: dict[str, Array] = {f"schedules.{name}": self._columns[name][:count].copy() for name in COLUMNS}
        arrays["schedules.recent"] = self._recent[:count].copy()
        for name, joined, parts in (
            ("id", "".join(self._ids).encode(), self._ids),
            ("definition", b"".join(self._definitions), self._definitions),
        ):
            arrays[f"schedules.{name}"] = np.frombuffer(joined, np.uint8)
            arrays[f"schedules.{name}_length"] = np.array([*map(len, parts)], np.int64)
        return arrays

    def restore(self, arrays: dict[str, Array]) -> None:
        """Into a new table, what snapshot() gave. Raises Damaged."""
        if "schedules.number" not in arrays:
            return
        self._columns = {name: arrays[f"schedules.{name}"].astype(np.int64) for name in COLUMNS}
        self._recent = arrays["schedules.recent"].astype(np.int64)
        self._definitions = _split(arrays["schedules.definition"].tobytes(), arrays["schedules.definition_length"])
        try:
            self._ids = _split(arrays["schedules.id"].tobytes().decode(), arrays["schedules.id_length"])
        except UnicodeDecodeError as error:
            raise Damaged(f"the ids of schedules are no UTF-8: {error}") from error
        lengths = {*map(len, self._columns.values()), len(self._recent), len(self._ids), len(self._definitions)}
        if len(lengths) != 1 or self._recent.shape[1:] != (RECENT, 5):
            raise Damaged(f"the columns of schedules have {sorted(lengths)} rows")
        self._rows = {id_: row for row, id_ in enumerate(self._ids)}
        self.definition_bytes = sum(map(len, self._definitions))
        self._next_due = None


def _places(rows: npt.NDArray[np.intp]) -> tuple[I64, I64]:
    """How many equal ones come before each, and how many after it."""
    order = np.argsort(rows, kind="stable")
    ascending, at = rows[order], np.arange(len(rows))
    before, after = np.empty((2, len(rows)), np.int64)
    before[order] = at - np.searchsorted(ascending, ascending)
    after[order] = np.searchsorted(ascending, ascending, "right") - 1 - at
    return before, after


def _split(joined: Text, lengths: Array) -> list[Text]:
    """The parts, of lengths (n,), of what joins them. Raises Damaged."""
    ends = np.cumsum(lengths, dtype=np.int64).tolist()
    if (ends[-1] if ends else 0) != len(joined) or int(lengths.min(initial=0)) < 0:
        raise Damaged(f"ids or definitions of schedules have a length of {len(joined)}, not {ends[-1:]}")
    return [joined[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)]
