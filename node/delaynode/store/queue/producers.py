"""Idempotent producers: which batches of which producer are stored, and what they were answered.

A row for each producer: the number of its last batch, when that was stored, and its last 16 answers in a ring, the
one of number n at n % 16. Only last + 1 is stored. An unseen producer is forgotten after a day, by frame time; within
the day it never is, so a shard that remembers `limit` producers takes no further ones.

frame time: the sum of the steps from each frame's wall time to the next one's. A step back counts nothing, one ahead
at most an hour. So it is the same on every replica, it only grows, and a clock that is once days ahead, or was, takes
no producer's day away. While a shard writes nothing its producers are remembered for longer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from delayapi.units import DAY_MS, HOUR_MS

from delaynode.store.errors import Refused
from delaynode.store.types import Array, Records

ANSWERS_KEPT = 16
EXPIRY_MS = DAY_MS
LIMIT = 10_000
RETRY_MS = 10_000
LONGEST_STEP_MS = HOUR_MS
FIRST_ROWS = 16

ROW = np.dtype(
    [
        ("id", "<u8"), ("last", "<u8"), ("seen_ms", "<i8"), ("first_seq", "<i8", ANSWERS_KEPT),
        ("wall_ms", "<i8", ANSWERS_KEPT), ("messages", "<u4", ANSWERS_KEPT),
    ]
)  # fmt: skip
"""344 bytes. messages 0: no answer of that number, the producer began later."""


class FirstAnswer(NamedTuple):
    """What batch `number` was answered, and its frame's wall time, from which its delays were counted."""

    number: int
    first_seq: int
    messages: int
    wall_ms: int


class Producers:
    """By producer id."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self._row_index: dict[int, int] = {}  # id -> row
        self._rows: Records = np.zeros(FIRST_ROWS, ROW)
        self._none_expires_before_ms = 0
        self.time_ms = 0  # frame time
        self.wall_ms = 0  # of the latest frame

    def advance_time(self, wall_ms: int) -> None:
        """A frame of this wall time is applied; to be told before what the frame does."""
        self.time_ms = self._time_at(wall_ms)
        self.wall_ms = wall_ms

    def _time_at(self, wall_ms: int) -> int:
        return self.time_ms + min(max(0, wall_ms - self.wall_ms), LONGEST_STEP_MS)

    def __len__(self) -> int:
        return len(self._row_index)

    def check(self, producer: int, number: int, now_ms: int) -> FirstAnswer | None:
        """The first answer of a batch that is stored already; None when it is next in order. Raises Refused.

        now_ms: this node's wall time.
        """
        row_index = self._row_index.get(producer)
        if row_index is None:
            self._check_unknown(producer, number, now_ms)
            return None
        row = self._rows[row_index]
        last = int(row["last"])
        if number == last + 1:
            return None
        if last - ANSWERS_KEPT < number <= last:
            at = number % ANSWERS_KEPT
            if row["messages"][at]:
                return FirstAnswer(number, int(row["first_seq"][at]), int(row["messages"][at]), int(row["wall_ms"][at]))
        raise Refused("OUT_OF_ORDER", f"producer {producer:x}: batch {number}, expected {last + 1}", expected=last + 1)

    def last_number(self, producer: int) -> int | None:
        """Of its batches that are stored; None: it is not known."""
        row_index = self._row_index.get(producer)
        return None if row_index is None else int(self._rows["last"][row_index])

    def has(self, producer: int, number: int) -> bool:
        """Whether the batch is stored: a retry."""
        last = self.last_number(producer)
        return last is not None and number <= last

    def _check_unknown(self, producer: int, number: int, now_ms: int) -> None:
        if number:
            raise Refused(
                "UNKNOWN_PRODUCER",
                f"producer {producer:x} is not known here (it expires after a day unseen); start at number 0",
                expected=0,
            )
        if len(self._row_index) >= self.limit and self._time_at(now_ms) >= self._none_expires_before_ms:
            self.expire(self._time_at(now_ms))
        if len(self._row_index) >= self.limit:
            raise Refused(
                "TOO_MANY_PRODUCERS",
                f"the shard remembers {len(self._row_index):,} producers of the last day, at most {self.limit:,}",
                retry_after_ms=RETRY_MS,
            )

    def store(self, producer: int, answer: FirstAnswer) -> None:
        """The batch was stored."""
        row_index = self._row_index.get(producer)
        if row_index is None:
            row_index = self._row_index[producer] = len(self._row_index)
            if row_index == len(self._rows):
                self._rows = np.concatenate((self._rows, np.zeros(row_index, ROW)))
            self._rows[row_index] = np.zeros((), ROW)
        row = self._rows[row_index]
        if not answer.number:  # it had expired; a replay from an older checkpoint may still know its former numbers
            row["messages"] = 0
        row["id"], row["last"], row["seen_ms"] = producer, answer.number, self.time_ms
        at = answer.number % ANSWERS_KEPT
        row["first_seq"][at], row["wall_ms"][at] = answer.first_seq, answer.wall_ms
        row["messages"][at] = answer.messages

    def expire(self, time_ms: int) -> None:
        """Forget those unseen for a day, at this frame time."""
        rows = self.rows()
        kept = rows[rows["seen_ms"] + EXPIRY_MS > time_ms]
        if len(kept) < len(rows):
            self._add_rows(kept)
        self._none_expires_before_ms = int(kept["seen_ms"].min()) + EXPIRY_MS if len(kept) else 0

    def rows(self) -> Records:
        """All that is known, of dtype ROW: what a checkpoint keeps. A view until the next change."""
        return self._rows[: len(self._row_index)]

    def restore(self, rows: Array, time_ms: int, wall_ms: int) -> None:
        """Know what rows(), time_ms and wall_ms were, and nothing else."""
        self.time_ms, self.wall_ms = time_ms, wall_ms
        self._add_rows(rows)

    def _add_rows(self, rows: Array) -> None:
        self._rows = np.zeros(max(FIRST_ROWS, len(rows)), ROW)
        self._rows[: len(rows)] = rows
        self._row_index = {producer: row_index for row_index, producer in enumerate(rows["id"].tolist())}
