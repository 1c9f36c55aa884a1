"""Index units: what the timer knows of a message, and how a slot's units fold into its live messages.

A unit says one thing about (due, seq), and later units win:
    DEFAULT  live, with its record at this log offset      (APPEND, RESCHEDULE to this due)
    ROLL     its record or its slot has moved; live only if it was
    DELETE   dead: cancelled; with MOVED: rescheduled away; with ROLL: dead before its slot moved, so a late Cancel
             is still told why
With SAME the unit takes the place of an earlier one in the same slot (a record relocated, a TimerLog file cleaned), so
it changes no count. COUNT is of no message: `seq` is what the slot's units in a cleaned file, gone by now, had added
to its count.
"""

from __future__ import annotations

import numpy as np

from delaynode.store.columns import release_order
from delaynode.store.types import I64, U32, Array, Bools, Records

DEFAULT, ROLL, DELETE, MOVED, SAME, COUNT = 1, 2, 4, 8, 16, 32
MAGIC_MASK = 0xFFFF  # a stored unit has its own check above
DELETE_MOVED = DELETE | MOVED

UNIT = np.dtype(
    [
        ("due", "<i8"),  # ms
        ("seq", "<i8"),
        ("offset", "<i8"),  # of the record in the CommitLog
        ("size", "<u4"),  # of the record, bytes
        ("key", "<u4"),  # crc32 of the key
        ("tag", "<u4"),  # crc32 of the tag
        ("magic", "<i4"),
        ("check", "<u4"),  # of the record, see checks.py; 0 with DELETE
    ]
)
"""One unit in memory, 44 bytes."""


def units(
    due: I64,
    seq: I64,
    offset: I64 | int,
    size: U32 | int,
    key: U32 | int,
    tag: U32 | int,
    magic: int,
    check: U32 | int = 0,
) -> Records:
    """n units of one kind from their columns; scalars are repeated."""
    made = np.empty(len(due), UNIT)
    made["due"], made["seq"], made["offset"], made["size"] = due, seq, offset, size
    made["key"], made["tag"], made["magic"], made["check"] = key, tag, magic, check
    return made


def change_of(magic: Array) -> I64:
    """The change that each unit (n,) makes to its slot's count of live messages: 1, -1 or 0. Shapes (n,) -> (n,)."""
    dead = (magic & DELETE) != 0
    change = np.where(dead, np.where((magic & ROLL) != 0, 0, -1), 1).astype(np.int64)
    change[(magic & (SAME | COUNT)) != 0] = 0
    return change


def concatenated(parts: list[Records]) -> Records:
    """The parts, each contiguous, one after the other; the part itself when there is one."""
    if len(parts) == 1:
        return parts[0]
    # np.concatenate() looks at the fields of each part's dtype: 8 ms for a thousand parts, this takes 0.03.
    return np.frombuffer(bytearray().join(parts), UNIT)  # type: ignore[arg-type]


def latest_units(ordered: Records) -> tuple[Records, Bools]:
    """Fold units given in TimerLog order: one row per (due, seq), sorted by it, and which of them are live.

    A row is the last unit of its (due, seq): of a live one it names the record; of a dead one its magic has
    DELETE, and MOVED too when it was rescheduled away.
    """
    rows = ordered[release_order(ordered["due"], ordered["seq"])]
    if not len(rows):
        return rows, np.empty(0, bool)
    due, seq, magic = rows["due"], rows["seq"], rows["magic"]
    starts = np.flatnonzero(np.concatenate(([True], (due[1:] != due[:-1]) | (seq[1:] != seq[:-1]))))
    if len(starts) == len(rows):
        return rows, (magic & DELETE) == 0
    last = np.append(starts[1:], len(rows)) - 1
    at = np.arange(len(rows))
    decisive = (magic & ~SAME) != ROLL
    decided = np.maximum.reduceat(np.where(decisive, at, -1), starts)  # the last DEFAULT or DELETE, -1: none
    live = (decided < 0) | ((magic[decided] & DELETE) == 0)
    return rows[np.where(live, last, decided)], live


def live_units(ordered: Records) -> Records:
    """The live rows of latest_units()."""
    rows, live = latest_units(ordered)
    return rows if live.all() else rows[live]
