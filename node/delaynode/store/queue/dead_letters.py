"""The dead letters of a group: its dead letters, and those of them that are at work again.

One table sorted by queue offset, a row a letter:

    state     DEAD (used up its attempts) | FREE (redriven, to be handed out from `visible` ms on) | OUT (handed out
              until `until` ms) | GONE (acknowledged or dropped, waits to be swept out)
    attempt   DEAD: how many it had; else the current one
    since     ms by the master's clock: when it died, or was redriven
    row       its own QUEUED row: the queue's unit may be trimmed and its body moved while it is here
    reason    DEAD: why, in words, where whoever gave it up said so; else ""

Each dead letter is in the table at most once, and its message is done in the group's window. Nothing here costs a
Python step per dead letter; a removal marks, and the table is swept when half of it is GONE.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from delayapi.reasons import cut_reasons, join_reasons

from delaynode.store.errors import Damaged
from delaynode.store.queue.consume_queue import NEVER, QUEUED
from delaynode.store.types import I64, U8, U32, Array, Bools, Records

FREE, OUT, DEAD, REMOVED = 0, 1, 2, 3
SWEEP_ROWS = 1024  # fewer GONE rows than this are left where they are
SCAN_ROWS = 4096  # dead letters looked at per step while some are handed out
REASON_ROOM = 64  # bytes that a reason takes beside its text

Positions = npt.NDArray[np.intp]


class _Table(NamedTuple):
    at: I64  # queue offset
    state: U8
    attempt: U32
    visible: I64
    until: I64
    since: I64
    row: Records
    reason: npt.NDArray[np.object_]

    def each(self, change: Callable[[Array], Array]) -> _Table:
        """A table of the changed columns."""
        columns: tuple[Array, ...] = self
        return _Table(*map(change, columns))


EMPTY = _Table(
    *(np.empty(0, kind) for kind in (np.int64, np.uint8, np.uint32, np.int64, np.int64, np.int64, QUEUED, object))
)


class DeadLetters:
    """`on_removed` is told the queue offsets and rows of dead letters that went for good, each once."""

    def __init__(self) -> None:
        self._table = EMPTY
        self._used = 0  # rows in use; the arrays may be longer
        self._removed_count = 0  # of these, GONE
        self.dead = 0  # of these, DEAD
        self.next_visible = NEVER  # no FREE dead letter is visible before this, ms
        self.next_expiry = NEVER  # no OUT dead letter expires before this, ms
        self.oldest = NEVER  # no dead letter's `since` is before this, ms
        self.reason_bytes = 0  # the room that reasons take, see room_of()
        self.on_removed: Callable[[I64, Records], None] = lambda offsets, rows: None

    def __len__(self) -> int:
        """Dead letters and those at work again."""
        return self._used - self._removed_count

    def _columns(self) -> _Table:
        """The rows in use."""
        return self._table.each(lambda column: column[: self._used])

    # ------------------------------------------------------------ looking
    def offsets(self) -> I64:
        """The queue offsets of all dead letters, ascending: they pin their messages' bodies."""
        rows = self._columns()
        offsets: I64 = rows.at[rows.state != REMOVED]
        return offsets

    def below(self, offset: int) -> tuple[I64, Records]:
        """The offsets and rows of dead letters below a queue offset."""
        rows = self._columns()
        positions = np.flatnonzero(rows.state[: np.searchsorted(rows.at, offset)] != REMOVED)
        return rows.at[positions], rows.row[positions]

    def dead_after(self, offset: int, limit: int) -> tuple[I64, U32, Records, list[str]]:
        """Up to `limit` dead letters with a larger queue offset, ascending: offsets, attempts, rows, reasons."""
        rows = self._columns()
        low = int(np.searchsorted(rows.at, offset, "right"))
        positions = np.flatnonzero(rows.state[low:] == DEAD)[:limit] + low
        return rows.at[positions], rows.attempt[positions], rows.row[positions], rows.reason[positions].tolist()

    def find(self, offsets: I64) -> tuple[Positions, Bools]:
        """Where these offsets stand in the table and whether they do. (n,) -> (n,), (n,)."""
        rows = self._columns()
        if not len(rows.at):
            return np.zeros(len(offsets), np.intp), np.zeros(len(offsets), bool)
        positions = np.minimum(np.searchsorted(rows.at, offsets), len(rows.at) - 1)
        found: Bools = (rows.at[positions] == offsets) & (rows.state[positions] != REMOVED)
        return positions, found

    def find_redriven(self, offsets: I64) -> tuple[Positions, Bools]:
        """The same as places(), for dead letters that are at work again."""
        positions, found = self.find(offsets)
        if found.any():
            found &= self._table.state[positions] != DEAD
        return positions, found

    def at(self, positions: Positions) -> tuple[I64, Records]:
        """The offsets and rows of letters."""
        return self._table.at[positions], self._table.row[positions]

    def attempts(self, positions: Positions) -> U32:
        return self._table.attempt[positions]

    def rows(self, positions: Positions) -> Records:
        return self._table.row[positions]

    def counts(self, now_ms: int) -> tuple[int, int, int]:
        """Dead letters at work again: to be handed out now, handed out, waiting."""
        if len(self) == self.dead:
            return 0, 0, 0
        rows = self._columns()
        when = rows.visible[rows.state == FREE]
        waiting = int(np.count_nonzero(when > now_ms))
        return len(when) - waiting, int(np.count_nonzero(rows.state == OUT)), waiting

    # ------------------------------------------------------------ deliveries (memory of the master)
    def deliver(self, now_ms: int, until_ms: int, max_messages: int) -> tuple[I64, U32]:
        """Up to `max_messages` that are visible, now OUT until `until_ms`: offsets ascending, attempts."""
        none = np.empty(0, np.int64), np.empty(0, np.uint32)
        if self.next_visible > now_ms or max_messages <= 0:
            return none
        rows = self._columns()
        free = np.flatnonzero(rows.state == FREE)
        found: list[Positions] = []
        count, begin, next_visible = 0, 0, NEVER
        while begin < len(free) and count < max_messages:
            part = free[begin : begin + SCAN_ROWS]
            begin += SCAN_ROWS
            when = rows.visible[part]
            found.append(part[when <= now_ms][: max_messages - count])
            count += len(found[-1])
            next_visible = min(next_visible, int(when[when > now_ms].min(initial=NEVER)))
        self.next_visible = next_visible if count < max_messages else now_ms  # there may be more
        positions = np.concatenate(found) if found else np.empty(0, np.intp)
        if not len(positions):
            return none
        rows.state[positions], rows.until[positions] = OUT, until_ms
        self.next_expiry = min(self.next_expiry, until_ms)
        return rows.at[positions], rows.attempt[positions]

    def undo_delivery(self, positions: Positions, until_ms: int) -> None:
        """Handed out until `until_ms` but not sent: what is still so is free again, same attempt."""
        positions = positions[(self._table.state[positions] == OUT) & (self._table.until[positions] == until_ms)]
        if len(positions):
            self._table.state[positions] = FREE
            self.next_visible = 0

    def extend(self, positions: Positions, until_ms: int) -> None:
        """These, at work again, are OUT until `until_ms`; 0: they are free again, same attempt."""
        self._table.state[positions], self._table.until[positions] = OUT if until_ms else FREE, until_ms
        if len(positions) and until_ms:
            self.next_expiry = min(self.next_expiry, until_ms)
        elif len(positions):
            self.next_visible = 0

    def expired(self, now_ms: int) -> tuple[I64, U32]:
        """Offsets and attempts of those whose time is over; they stay OUT until a frame says otherwise."""
        if self.next_expiry > now_ms:
            return np.empty(0, np.int64), np.empty(0, np.uint32)
        out = np.flatnonzero(self._columns().state == OUT)
        until = self._table.until[out]
        self.next_expiry = int(until[until > now_ms].min(initial=NEVER))
        late = out[until <= now_ms]
        return self._table.at[late], self._table.attempt[late]

    # ------------------------------------------------------------ frames
    def add(self, offsets: I64, attempts: U32, rows: Records, now_ms: int, reason: str = "") -> None:
        """Messages of the window die: offsets ascending, none of them here."""
        n = len(offsets)
        if not n:
            return
        state, since, none = np.full(n, DEAD, np.uint8), np.full(n, now_ms, np.int64), np.zeros(n, np.int64)
        self._insert(_Table(offsets, state, attempts, none, none, since, rows, np.full(n, reason, object)))
        self.dead += n
        self.reason_bytes += n * room_of(reason)
        self.oldest = min(self.oldest, now_ms)

    def _insert(self, new: _Table) -> None:
        used, n = self._used, len(new.at)
        new_columns: tuple[Array, ...] = new
        parts = iter(new_columns)
        if used and new.at[0] <= self._table.at[used - 1]:
            where = np.searchsorted(self._table.at[:used], new.at)
            self._table = self._columns().each(lambda column: np.insert(column, where, next(parts)))
        else:
            if used + n > len(self._table.at):
                self._table = self._columns().each(lambda column: _grown(column, 2 * (used + n)))
            for column in self._table:
                column[used : used + n] = next(parts)
        self._used = used + n

    def die_again(self, positions: Positions, attempts: U32, now_ms: int, reason: str) -> None:
        """Dead letters that were at work used up their attempts once more."""
        if len(positions):
            table = self._table
            self._set_reason(positions, reason)
            table.state[positions], table.attempt[positions], table.since[positions] = DEAD, attempts, now_ms
            self.dead += len(positions)
            self.oldest = min(self.oldest, now_ms)

    def retry(self, positions: Positions, visible_ms: I64) -> None:
        """The attempts of these dead letters end: the next ones, visible at `visible_ms`."""
        if len(positions):
            table = self._table
            table.state[positions], table.visible[positions] = FREE, visible_ms
            table.attempt[positions] += 1
            self.next_visible = min(self.next_visible, int(visible_ms.min()))

    def redrive(self, offsets: I64, now_ms: int) -> None:
        """Dead letters go to work again; attempts start anew."""
        positions, found = self.find(offsets)
        positions = positions[found & (self._table.state[positions] == DEAD)] if len(self) else positions[:0]
        if len(positions):
            table = self._table
            table.state[positions], table.visible[positions] = FREE, 0
            table.attempt[positions], table.since[positions] = 1, now_ms
            self._set_reason(positions, "")
            self.dead -= len(positions)
            self.next_visible, self.oldest = 0, min(self.oldest, now_ms)

    def _set_reason(self, positions: Positions, reason: str) -> None:
        if self.reason_bytes:
            self.reason_bytes -= sum(map(room_of, self._table.reason[positions].tolist()))
        elif not reason:
            return
        self._table.reason[positions] = reason
        self.reason_bytes += len(positions) * room_of(reason)

    def redriven_in(self, start: I64, end: I64) -> Positions:
        """Dead letters at work whose offsets lie in these ranges, which are ascending."""
        if len(self) == self.dead:
            return np.empty(0, np.intp)
        working = np.flatnonzero(self._columns().state <= OUT)
        at = self._table.at[working]
        range_ = np.searchsorted(start, at, "right") - 1
        inside: Positions = working[(range_ >= 0) & (at < end[np.maximum(range_, 0)])]
        return inside

    def remove(self, positions: Positions) -> None:
        """These go for good."""
        if not len(positions):
            return
        table = self._table
        self.dead -= int(np.count_nonzero(table.state[positions] == DEAD))
        self._set_reason(positions, "")
        table.state[positions] = REMOVED
        self._removed_count += len(positions)
        offsets, rows = table.at[positions], table.row[positions]
        if self._removed_count >= SWEEP_ROWS and 2 * self._removed_count >= self._used:
            kept = self._columns().state != REMOVED
            self._table = self._columns().each(lambda column: column[kept])
            self._used, self._removed_count = len(self._table.at), 0
        self.on_removed(offsets, rows)

    def remove_all(self) -> None:
        self.remove(np.flatnonzero(self._columns().state != REMOVED))

    def older_than(self, limit_ms: int) -> I64:
        """Offsets of dead letters whose `since` is before `limit_ms`, ascending; quick when there are none."""
        if self.oldest >= limit_ms:
            return np.empty(0, np.int64)
        rows = self._columns()
        live = rows.state != REMOVED
        old = live & (rows.since < limit_ms)
        if not old.any():
            self.oldest = int(rows.since[live].min(initial=NEVER))
        offsets: I64 = rows.at[old]
        return offsets

    # ------------------------------------------------------------ bodies, checkpoint
    def relocate(self, seq: I64, update: Callable[[Records, Positions], None]) -> None:
        """place(rows, which): rows of dead letters whose seq is among `seq`, and where in `seq`, to be changed in
        place.
        """
        if not len(self) or not len(seq):
            return
        order = np.argsort(seq, kind="stable")
        columns = self._columns()
        mine = columns.row["seq"]
        where = np.minimum(np.searchsorted(seq, mine, sorter=order), len(seq) - 1)
        which = order[where]
        hit = np.flatnonzero((seq[which] == mine) & (columns.state != REMOVED))
        if len(hit):
            rows = columns.row[hit]
            update(rows, which[hit])
            columns.row[hit] = rows

    def snapshot(self) -> dict[str, Array]:
        """What frames have said, a column each; deliveries are left out."""
        columns = self._columns()
        live = columns.state != REMOVED
        kept = columns.each(lambda column: column[live])
        kept.visible[kept.state == DEAD] = 0
        kept.state[kept.state == OUT] = FREE
        arrays: dict[str, Array] = {f"letter.{name}": it for name, it in kept._asdict().items() if name != "until"}
        reasons = arrays.pop("letter.reason")
        if self.reason_bytes:
            size, joined = join_reasons(reasons.tolist())
            arrays |= {"letter.reason_size": size, "letter.reasons": np.frombuffer(joined, np.uint8)}
        return arrays

    def restore(self, arrays: dict[str, Array]) -> None:
        """Into an empty table, from a snapshot. Raises Damaged."""
        n = len(arrays["letter.at"])
        more: dict[str, Array] = {"letter.until": np.zeros(n, np.int64), "letter.reason": np.full(n, "", object)}
        if "letter.reason_size" in arrays:
            try:
                reasons = cut_reasons(arrays["letter.reason_size"], arrays["letter.reasons"].tobytes(), n)
            except ValueError as error:
                raise Damaged(f"the reasons of dead letters can't be read: {error}") from error
            more["letter.reason"][:] = reasons
            self.reason_bytes = sum(map(room_of, reasons))
        self._table = _Table(*((arrays | more)[f"letter.{name}"].copy() for name in _Table._fields))
        self._used = n
        self.dead = int(np.count_nonzero(self._table.state == DEAD))
        self.next_visible = 0
        self.oldest = int(self._table.since.min(initial=NEVER))


def room_of(reason: str) -> int:
    """What it takes of the memory for reasons, bytes."""
    return len(reason.encode()) + REASON_ROOM if reason else 0


def _grown(column: Array, room: int) -> Array:
    grown = np.empty(room, column.dtype)
    grown[: len(column)] = column
    return grown
