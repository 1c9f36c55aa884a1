"""How a batch of many messages is cut into requests: by queue when it has keys, and by size."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, TypeAlias

import numpy as np
from delayapi.durations import format_ms
from delayapi.units import format_bytes
from numpy.typing import NDArray

from delayclient.errors import DelayTooLong, TooLarge
from delayclient.producer.batch import MAX_RECORD_BYTES, EnqueueColumns
from delayclient.records import Bodies, encode_records

Times: TypeAlias = NDArray[np.integer[Any]] | Sequence[int] | int

PART_MESSAGES: Final = 8192
PART_BYTES: Final = 2 << 20
_RECORD_OVERHEAD: Final = 16


@dataclass(frozen=True, slots=True)
class Messages:
    """n messages in columns: bodies, time i64[n] ms (delays when `relative`), keys and tags (one tag for all, or n).

    `properties`: of each of them.
    """

    bodies: Bodies
    time: NDArray[np.int64]
    relative: bool
    keys: Sequence[str] | None
    tags: Sequence[str] | str | None
    properties: Mapping[str, str] | None = None

    @classmethod
    def of(
        cls,
        bodies: Bodies,
        due_ms: Times | None,
        delay_ms: Times | None,
        keys: Sequence[str] | None,
        tags: Sequence[str] | str | None,
        properties: Mapping[str, str] | None = None,
    ) -> Messages:
        """Checks that the columns fit together. Raises ValueError or TypeError."""
        n = len(bodies)
        if isinstance(bodies, np.ndarray):
            if bodies.ndim != 2 or bodies.dtype != np.uint8:
                raise ValueError(f"bodies must be u8[n, size], not {bodies.dtype}{list(bodies.shape)}")
        elif set(map(type, bodies)) - {bytes}:
            raise TypeError("bodies must be bytes, or a u8[n, size] array")
        for name, texts in (("keys", keys), ("tags", None if isinstance(tags, str) else tags)):
            if texts is not None and len(texts) != n:
                raise ValueError(f"{len(texts)} {name} for {n} bodies")
        if due_ms is not None and delay_ms is not None:
            raise ValueError("give due_ms or delay_ms, not both")
        times = np.asarray(0 if due_ms is None and delay_ms is None else delay_ms if due_ms is None else due_ms)
        if times.dtype.kind not in "iu":
            raise TypeError(f"times are integer milliseconds, not {times.dtype}")
        if times.shape not in ((), (n,)):
            raise ValueError(f"{list(times.shape)} times for {n} bodies")
        if due_ms is None and times.min(initial=0) < 0:
            raise ValueError(f"a negative delay: {times.min()} ms")
        time_ms = np.ascontiguousarray(np.broadcast_to(times.astype("<i8"), (n,)))
        return cls(bodies, time_ms, due_ms is None, keys, tags, properties)

    def check_limits(self, topic: str, max_delay_ms: int) -> None:
        """Raises DelayTooLong or TooLarge for what the shard would refuse, before anything is sent."""
        longest_ms = int(self.time.max(initial=0)) - (0 if self.relative else int(time.time() * 1000))
        if longest_ms > max_delay_ms:
            raise too_long(topic, longest_ms, max_delay_ms)
        largest = int(self._sizes().max(initial=0))
        if largest > MAX_RECORD_BYTES:
            raise too_large(largest)

    def rows_by_queue(self, queues: int) -> Iterator[tuple[int | None, NDArray[np.int64]]]:
        """(queue, rows i64[k]) of each request; None for messages without keys, which may go anywhere."""
        sizes = self._sizes()
        if self.keys is None:
            yield from ((None, rows) for rows in _cut(np.arange(len(sizes), dtype=np.int64), sizes))
            return
        hashes = np.array(list(map(zlib.crc32, map(str.encode, self.keys))), np.int64)
        queue = np.where(hashes == 0, -1, hashes % queues)  # an empty key is none
        order = np.argsort(queue, kind="stable")
        numbers, starts = np.unique(queue[order], return_index=True)
        for number, rows in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
            yield from ((None if number < 0 else number, part) for part in _cut(rows, sizes[rows]))

    def columns(self, rows: NDArray[np.int64], born_ms: int) -> tuple[EnqueueColumns, int]:
        """One request's columns and the bytes of its records."""
        tags = self.tags if self.tags is None or isinstance(self.tags, str) else _pick(self.tags, rows)
        keys = None if self.keys is None else _pick(self.keys, rows)
        bodies = _rows_of(self.bodies, rows) if isinstance(self.bodies, np.ndarray) else _pick(self.bodies, rows)
        records = encode_records(bodies, born_ms, keys, tags, self.properties)
        columns = EnqueueColumns(
            _rows_of(self.time, rows),
            b"\x01" * len(rows) if self.relative else b"",
            records.size,
            records.key_hash,
            records.tag_hash,
            records.blob,
        )
        return columns, int(records.size.sum(dtype=np.int64))

    def _sizes(self) -> NDArray[np.int64]:
        """Bytes of each record i64[n], from above within a few."""
        n = len(self.bodies)
        if isinstance(self.bodies, np.ndarray):
            sizes = np.full(n, self.bodies.shape[1], np.int64)
        else:
            sizes = np.fromiter(map(len, self.bodies), np.int64, n)
        more = sum(len(name.encode()) + len(value.encode()) + 8 for name, value in (self.properties or {}).items())
        return sizes + _RECORD_OVERHEAD + more


def too_long(topic: str, delay_ms: int, max_delay_ms: int) -> DelayTooLong:
    """The error that the shard would answer."""
    asked, limit = format_ms(delay_ms), format_ms(max_delay_ms)
    if asked == limit:  # two units at most are shown
        asked += f" and {format_ms(delay_ms - max_delay_ms)}"
    message = f"a delay of {asked} is longer than topic {topic!r} allows: {limit}"
    metadata = {"max_delay_ms": str(max_delay_ms)}
    return DelayTooLong(message, code="INVALID_ARGUMENT", reason="DELAY_TOO_LONG", metadata=metadata)


def too_large(record_bytes: int) -> TooLarge:
    """The error that the shard would answer."""
    message = f"a message of {record_bytes:,} bytes is over the limit of {format_bytes(MAX_RECORD_BYTES)}"
    return TooLarge(message, code="INVALID_ARGUMENT", reason="MESSAGE_TOO_LARGE")


def _cut(rows: NDArray[np.int64], sizes: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Runs of rows of at most PART_MESSAGES and, but for a single larger one, PART_BYTES."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(rows):
        before = int(ends[start - 1]) if start else 0
        by_bytes = int(np.searchsorted(ends, before + PART_BYTES, "right"))
        stop = min(max(by_bytes, start + 1), start + PART_MESSAGES)
        yield rows[start:stop]
        start = stop


def _is_run(rows: NDArray[np.int64]) -> bool:
    return len(rows) > 0 and int(rows[-1]) - int(rows[0]) + 1 == len(rows)


def _rows_of(array: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
    # Rows ascend, so a run of them is a view; anything else is a copy.
    return array[rows[0] : rows[-1] + 1] if _is_run(rows) else array[rows]


def _pick(items: Sequence[Any], rows: NDArray[np.int64]) -> Sequence[Any]:
    if _is_run(rows):
        return items[rows[0] : rows[-1] + 1]
    picked: Any = itemgetter(*rows.tolist())(items)
    return picked if len(rows) > 1 else (picked,)
