"""An append-only file made of segments, addressed by one logical offset.

    <directory>/00000000000000000000   bytes [0, 64 MiB)
    <directory>/00000000000067108864   bytes [64 MiB, ...)   named by its start offset

What is appended in one call never straddles two segments. A closed segment may be dropped, in any order: what it held
reads as Trimmed from then on, and the others stay where they are.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from delaynode.store.errors import Damaged, Trimmed, Unsynced
from delaynode.store.log.files import DiskFiles, Files
from delaynode.store.types import Buffers


class SegmentBounds(NamedTuple):
    """Where each segment begins and ends, by offset. The last one may have grown since."""

    bases: tuple[int, ...]
    ends: tuple[int, ...]


class SegmentedFile:
    """Appends by one thread, syncs and reads by any. After a failed fsync every append, sync and cut raises Unsynced.

    Linux reports a writeback error once for each open file, and all threads share that file. So the error that one
    thread is told must be kept here for the others: the one that acknowledges must not see its own fsync succeed.
    """

    def __init__(self, files: Files, directory: str, segment_bytes: int) -> None:
        self.files = files
        self.directory = directory
        self.segment_bytes = segment_bytes
        self._last_path = -1, ""  # replaced whole, by any thread
        names = [name for name in files.list(directory) if len(name) == 20 and name.isascii() and name.isdigit()]
        bases = tuple(map(int, names))
        ends = tuple(base + files.size(self._path(base)) for base in bases)
        self._segments = SegmentBounds(bases, ends)  # replaced whole: a reader on another thread sees one or the other
        self._dirty: dict[int, int] = {}  # base -> `end` after its last append that may not be on disk
        self._lock = threading.Lock()  # of _dirty and of replacing _segments: one thread appends, others sync or drop
        self._syncing = threading.Lock()  # one fsync at a time: its error must be in _failed before another one returns
        self._failed: Unsynced | None = None  # the first error of an fsync
        self.end = ends[-1] if ends else 0

    def _path(self, base: int) -> str:
        last, path = self._last_path  # mostly it is the segment that is appended to
        if base != last:
            path = f"{self.directory}/{base:020d}"
            self._last_path = base, path
        return path

    @property
    def bases(self) -> tuple[int, ...]:
        """Where each segment starts, ascending."""
        return self._segments.bases

    @property
    def start(self) -> int:
        """The first offset that is there; the end when nothing is."""
        return self._segments.bases[0] if self._segments.bases else self.end

    def append(self, buffers: Buffers, size: int, *, new_segment: bool | None = None) -> int:
        """Append `size` bytes; returns their offset.

        new_segment: whether they begin a segment; None: when the open one would grow above `segment_bytes`.
        """
        self._check_synced()
        offset = self.end
        bases, ends = self._segments
        if new_segment is None:
            new_segment = self.begins_segment(size)
        if new_segment or not bases:
            with self._lock:
                bases, ends = self._segments
                self._segments = SegmentBounds((*bases, offset), (*ends[:-1], offset, offset) if bases else (offset,))
            base = offset
        else:
            base = bases[-1]
        self.files.append(self._path(base), buffers)
        with self._lock:
            self._dirty[base] = offset + size
        self.end = offset + size
        return offset

    def begin_direct(self) -> int | None:
        """A descriptor for a caller that writes at the end of the open segment and syncs that itself, until it calls
        end_direct(). None where a file has to be made, or something else of this one has to be synced first or is.

        No other sync has its turn meanwhile: each would hear of an error that the other must hear of.
        """
        bases = self._segments.bases
        if not isinstance(self.files, DiskFiles) or self._failed is not None or not bases:
            return None
        if not self._syncing.acquire(blocking=False):
            return None
        descriptor = None if self._dirty else self.files.direct_descriptor(self._path(bases[-1]))
        if descriptor is None:
            self._syncing.release()
        return descriptor

    def end_direct(self, size: int, write_errno: int = 0, sync_errno: int = 0) -> None:
        """`size` bytes were written and synced, or were not: the errno of each call, 0 for none. Raises OSError."""
        try:
            path = self._path(self._segments.bases[-1])
            if write_errno:
                raise OSError(write_errno, os.strerror(write_errno), path)
            if sync_errno:
                self._failed = Unsynced(sync_errno, os.strerror(sync_errno), path)
                assert isinstance(self.files, DiskFiles)
                self.files.direct_failed(path, self._failed)
                raise self._failed
            self.end += size
        finally:
            self._syncing.release()

    def begins_segment(self, size: int) -> bool:
        """Whether `size` bytes more begin a segment."""
        bases = self._segments.bases
        return bool(bases) and self.end > bases[-1] and self.end + size - bases[-1] > self.segment_bytes

    def sync(self) -> None:
        """All that was appended before the call is on disk when it returns. Any thread."""
        with self._syncing:
            self._check_synced()
            with self._lock:
                dirty = sorted(self._dirty.items())
            for base, end in dirty:
                self._sync(base)
                with self._lock:
                    if self._dirty.get(base) == end:  # else it was appended to meanwhile, and that may not be on disk
                        del self._dirty[base]

    def _limit(self, segments: SegmentBounds, at: int) -> int:
        """Where segment `at` ends."""
        return segments.ends[at] if at + 1 < len(segments.bases) else self.end

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes at `offset`. Raises Trimmed when they were dropped, Damaged when they are missing."""
        parts: list[bytes] = []
        while length:
            base, limit = self._segment_of(offset)
            here = min(length, limit - offset)
            try:
                data = self.files.read(self._path(base), offset - base, here)
            except FileNotFoundError as error:
                raise Damaged(f"{self._path(base)}: missing") from error
            if len(data) != here:
                raise Damaged(f"{self._path(base)}: ends before offset {offset + here}")
            parts.append(data)
            offset += here
            length -= here
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_some(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes at `offset`: fewer where a segment is missing or ends before the next one starts."""
        bases = self._segments.bases
        parts: list[bytes] = []
        for at in range(max(0, bisect_right(bases, offset) - 1), len(bases)):
            if not length or offset < bases[at]:
                break
            here = min(length, bases[at + 1] - offset) if at + 1 < len(bases) else length
            data = self.files.read(self._path(bases[at]), offset - bases[at], here)
            parts.append(data)
            offset += len(data)
            length -= len(data)
            if len(data) < here:
                break
        return b"".join(parts)

    def segment_end(self, offset: int) -> int:
        """Where the segment that holds `offset` ends. Raises as read()."""
        return self._segment_of(offset)[1]

    def _segment_of(self, offset: int) -> tuple[int, int]:
        """[base, end) of the segment that holds `offset`."""
        segments = self._segments
        at = bisect_right(segments.bases, offset) - 1
        limit = self._limit(segments, at) if at >= 0 else offset
        if offset < limit:
            return segments.bases[at], limit
        if 0 <= offset < self.end:
            raise Trimmed(f"{self.directory}: what offset {offset} held is dropped")
        raise Damaged(f"{self.directory}: no segment holds offset {offset}, the end is {self.end}")

    def is_complete_from(self, offset: int) -> bool:
        """Whether everything from `offset` to the end is there."""
        at = self.end
        for base, end in reversed(self.segments()):
            if end != at or at <= offset:
                break
            at = base
        return at <= offset <= self.end

    def extents(self, offset: int) -> list[tuple[int, int]]:
        """[low, high) of what each segment holds at or after `offset`."""
        ends = [(base, base + self.files.size(self._path(base))) for base in self._segments.bases]
        return [(max(base, offset), end) for base, end in ends if end > offset]

    def segments(self) -> list[tuple[int, int]]:
        """[base, end) of each segment as it was written."""
        bases, ends = self._segments
        return list(zip(bases, (*ends[:-1], self.end), strict=True)) if bases else []

    def sync_all(self) -> None:
        """The same as sync(), also for what an earlier process wrote."""
        with self._syncing:
            self._check_synced()
            for base in self._segments.bases:
                self._sync(base)
            self._dirty.clear()

    def _sync(self, base: int) -> None:
        with self._keeping_failure():
            self.files.sync(self._path(base))

    @contextmanager
    def _keeping_failure(self) -> Iterator[None]:
        try:
            yield
        except Unsynced as error:
            self._failed = error
            raise

    def _check_synced(self) -> None:
        if self._failed is not None:
            first = self._failed
            raise Unsynced(first.errno, f"{first.strerror} (an earlier fsync failed)", first.filename) from first

    def segment_start(self) -> int:
        """Where the segment that is being appended to starts."""
        return self._segments.bases[-1] if self._segments.bases else self.end

    def read_cached(self, offset: int, length: int) -> bytes | None:
        """The bytes if they lie in one segment and no disk has to be waited for; else None."""
        segments = self._segments
        at = bisect_right(segments.bases, offset) - 1
        if at < 0 or offset + length > self._limit(segments, at):
            return None
        base = segments.bases[at]
        return self.files.read_cached(self._path(base), offset - base, length)

    # ------------------------------------------------------------ dropping
    def closed_below(self, offset: int) -> list[int]:
        """The segments, but for the one that is appended to, that end at or below `offset`."""
        bases, ends = self._segments
        return [base for base, end in zip(bases[:-1], ends[:-1], strict=True) if end <= offset]

    def drop(self, bases: Iterable[int]) -> list[str]:
        """Forget closed segments: from here on they read as Trimmed. Returns the paths, for the caller to remove."""
        gone = set(bases)
        with self._lock:
            kept = [pair for pair in zip(*self._segments, strict=True) if pair[0] not in gone]
            dropped = [base for base in self._segments.bases if base in gone]
            self._segments = SegmentBounds(tuple(base for base, _ in kept), tuple(end for _, end in kept))
            for base in dropped:
                self._dirty.pop(base, None)
        return [self._path(base) for base in dropped]

    def check_complete(self, start: int, end: int, expected: Sequence[tuple[int, int]] | None = None) -> None:
        """Raises Damaged unless all of [start, end) is there once, or just the `expected` (base, end) of it."""
        bases, ends = self._segments
        ends = (*ends[:-1], self.end) if ends else ()
        for base, before in zip(bases[1:], ends[:-1], strict=True):
            if base < before:
                raise Damaged(f"{self._path(base)}: the segment before ends at {before}")
        have = dict(zip(bases, ends, strict=True))
        if expected is None:
            at = max((base for base in have if base <= start), default=start)
            while at < end:
                if at not in have or have[at] <= at:
                    raise Damaged(f"{self._path(at)}: missing")
                at = have[at]
            return
        for base, to in expected:
            if base not in have:
                raise Damaged(f"{self._path(base)}: missing")
            if have[base] < min(to, end):
                raise Damaged(f"{self._path(base)}: ends at {have[base]}, {min(to, end)} was on disk")

    def truncate(self, end: int, start: int | None = 0) -> None:
        """Drop everything at and after `end`. Raises Damaged unless all of [start, end) is there.

        start: None when segments may have been dropped anywhere.
        """
        self._check_synced()
        if start is not None:
            self.check_complete(start, end)
        bases, ends = self._segments
        keep = tuple(base for base in bases if base < end)
        if end > (start or 0) and not keep:
            raise Damaged(f"{self.directory}: nothing of what lies below {end} is there")
        held = self._limit(self._segments, len(keep) - 1) if keep else end
        if held < end:
            raise Damaged(f"{self._path(keep[-1])}: ends before offset {end}")
        for base in reversed(bases[len(keep) :]):
            self.files.remove(self._path(base))
        if held > end:
            with self._keeping_failure():
                self.files.truncate(self._path(keep[-1]), end - keep[-1])
        self._segments = SegmentBounds(keep, (*ends[: len(keep) - 1], end) if keep else ())
        self._dirty = {base: at for base, at in self._dirty.items() if base in keep}
        self.end = end
