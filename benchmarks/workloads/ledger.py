"""Compares stored with delivered messages, one by one: lateness, early, missing, duplicates.

A message is named by (queue, seq). It is kept as one i64, queue << 48 | seq, so that a million are compared at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
from delayclient.producer.results import BatchResult
from numpy.typing import NDArray

QUEUE_SHIFT = 48

Scalar = TypeVar("Scalar", bound=np.generic)

Row: TypeAlias = tuple[int, int, int, float, int]
"""(queue, seq, due_ms, received_ms, bytes of the body)."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """Milliseconds from due to the client's hands."""

    min: float
    p50: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a workload's deliveries went; `seconds` is from the first to the last of them."""

    delivered: int
    seconds: float
    messages_per_second: float
    lateness_ms: Lateness
    early: int
    missing: int
    duplicates: int


class NothingDelivered(TimeoutError):
    """The node delivered no message at all."""


class DeliveryRecord:
    """Counts messages stored and messages delivered. What it was not told of as stored is not counted as delivered."""

    def __init__(self) -> None:
        self.one_by_one: list[Row] = []
        """Messages that came singly; to be appended to."""
        self._stored: list[NDArray[np.int64]] = []
        self._ids: list[NDArray[np.int64]] = []
        self._due: list[NDArray[np.int64]] = []
        self._came: list[NDArray[np.float64]] = []
        self._in_columns = 0

    def stored(self, result: BatchResult) -> None:
        """A batch was acknowledged."""
        for part in result.parts:
            self._stored.append(part.seq | part.queue << QUEUE_SHIFT)

    def stored_one(self, queue: int, seq: int) -> None:
        """A single message was acknowledged."""
        self._stored.append(np.array([seq | queue << QUEUE_SHIFT], np.int64))

    def received(self, queue: int, seq: NDArray[np.int64], due_ms: NDArray[np.int64], received_ms: float) -> None:
        """Messages of one queue came: seq i64[n], due i64[n]."""
        self._ids.append(seq | queue << QUEUE_SHIFT)
        self._due.append(due_ms)
        self._came.append(np.full(len(seq), received_ms))
        self._in_columns += len(seq)

    @property
    def delivered(self) -> int:
        """Messages that came so far, duplicates included."""
        return self._in_columns + len(self.one_by_one)

    @property
    def missing(self) -> int:
        """How many of those stored have not come."""
        return int(np.count_nonzero(~np.isin(_joined(self._stored, np.int64), self._columns()[0])))

    def verdict(self) -> Verdict:
        """Raises NothingDelivered."""
        stored = _joined(self._stored, np.int64)
        ids, due_ms, came_ms = self._columns()
        ours = np.isin(ids, stored)
        if not ours.any():
            raise NothingDelivered(f"none of {len(stored)} messages was delivered")
        ids, late_ms, came_ms = ids[ours], (came_ms - due_ms)[ours], came_ms[ours]
        distinct = len(np.unique(ids))
        seconds = float(came_ms.max() - came_ms.min()) / 1000
        return Verdict(
            delivered=distinct,
            seconds=seconds,
            messages_per_second=distinct / max(seconds, 0.001),  # the clock's own step
            lateness_ms=Lateness(*np.percentile(late_ms, (0, 50, 99, 100)).tolist()),
            early=int(np.count_nonzero(late_ms < 0)),
            missing=len(stored) - distinct,
            duplicates=len(ids) - distinct,
        )

    def _columns(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """(id, due_ms, received_ms) of all that came."""
        rows = self.one_by_one
        queue, seq, due_ms = (np.array([row[column] for row in rows], np.int64) for column in range(3))
        came_ms = np.array([row[3] for row in rows], np.float64)
        return (
            _joined([*self._ids, seq | queue << QUEUE_SHIFT], np.int64),
            _joined([*self._due, due_ms], np.int64),
            _joined([*self._came, came_ms], np.float64),
        )


def _joined(parts: Sequence[NDArray[Scalar]], dtype: type[Scalar]) -> NDArray[Scalar]:
    return np.concatenate(parts) if parts else np.empty(0, dtype)
