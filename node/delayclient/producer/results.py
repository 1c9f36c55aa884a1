"""The results that a producer gets: where its messages are stored and the handles by which they can be cancelled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from delayapi.handle import Handle, encode_handles
from numpy.typing import NDArray

from delayclient.errors import DelayError


class SendResult(NamedTuple):
    """A stored message: topic, queue, the shard's uid, due (ms since 1970 UTC) and seq. repeated: it was stored before,
    by its message id."""

    topic: str
    queue: int
    uid: int
    due_ms: int
    seq: int
    repeated: bool = False

    @property
    def handle(self) -> str:
        """The text by which the message is cancelled or rescheduled."""
        return Handle(*self[:5]).encode()


@dataclass(frozen=True, slots=True, eq=False)
class BatchPart:
    """The messages of a batch that one request stored in one shard: seq is first_seq + position in the part."""

    topic: str
    queue: int
    uid: int
    first_seq: int
    rows: NDArray[np.int64]
    """i64[n]: which of the batch's messages these are."""
    due_ms: NDArray[np.int64]
    """i64[n] ms since 1970 UTC."""

    @property
    def seq(self) -> NDArray[np.int64]:
        """i64[n]."""
        return np.arange(self.first_seq, self.first_seq + len(self.rows), dtype=np.int64)


class BatchResult:
    """A stored batch of n messages, in the order in which they were given."""

    def __init__(self, count: int, parts: Sequence[BatchPart]) -> None:
        self.count = count
        self.parts = tuple(parts)

    def __len__(self) -> int:
        return self.count

    @cached_property
    def due_ms(self) -> NDArray[np.int64]:
        """i64[n] ms since 1970 UTC; 0 for a message that was not stored."""
        due = np.zeros(self.count, np.int64)
        for part in self.parts:
            due[part.rows] = part.due_ms
        return due

    @cached_property
    def seq(self) -> NDArray[np.int64]:
        """i64[n]; -1 for a message that was not stored. Numbers of different shards are unrelated."""
        seq = np.full(self.count, -1, np.int64)
        for part in self.parts:
            seq[part.rows] = part.seq
        return seq

    @cached_property
    def handles(self) -> list[str]:
        """The n handles, made at first use; empty for a message that was not stored."""
        handles = [""] * self.count
        for part in self.parts:
            texts = encode_handles(part.topic, part.queue, part.uid, part.due_ms, part.seq)
            start = int(part.rows[0]) if len(part.rows) else 0
            if len(part.rows) and int(part.rows[-1]) - start + 1 == len(part.rows):
                handles[start : start + len(texts)] = texts
            else:
                for row, text in zip(part.rows.tolist(), texts, strict=True):
                    handles[row] = text
        return handles


class BatchFailed(DelayError):
    """Part of a batch was not acknowledged. `result` has what was stored, `failures` the rows i64[k] and why not."""

    def __init__(self, result: BatchResult, failures: Sequence[tuple[NDArray[np.int64], DelayError]]) -> None:
        first = failures[0][1]
        self.result = result
        self.failures = tuple(failures)
        self.failed = sum(len(rows) for rows, _ in failures)
        message = f"{self.failed} of {result.count} messages were not acknowledged: {first.message}"
        super().__init__(message, code=first.code, reason=first.reason, metadata=first.metadata)
