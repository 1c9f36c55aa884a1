"""An append-only file made of segments, addressed by one logical offset.

    <directory>/00000000000000000000   bytes [0, 64 MiB)
    <directory>/00000000000067108864   bytes [64 MiB, ...)   named by its start offset

A segment ends where the next one starts; what is appended in one call never straddles two.
"""

from __future__ import annotations

import threading
from bisect import bisect_right

from delaynode.store.errors import Damaged
from delaynode.store.files import Files
from delaynode.store.types import Buffers


class SegmentedFile:
    """Appends by one thread, reads by any."""

    def __init__(self, files: Files, directory: str, segment_bytes: int) -> None:
        self.files = files
        self.directory = directory
        self.segment_bytes = segment_bytes
        self._bases = tuple(int(name) for name in files.list(directory) if name.isdigit())
        self._dirty: dict[int, int] = {}  # base -> `end` after its last append that may not be on disk
        self._lock = threading.Lock()  # of _dirty: one thread may append while another syncs
        self.start = self._bases[0] if self._bases else 0
        self.end = self._bases[-1] + files.size(self._path(self._bases[-1])) if self._bases else 0

    def _path(self, base: int) -> str:
        return f"{self.directory}/{base:020d}"

    def append(self, buffers: Buffers, size: int) -> int:
        """Append `size` bytes; returns their offset."""
        offset = self.end
        if not self._bases or (offset > self._bases[-1] and offset + size - self._bases[-1] > self.segment_bytes):
            self._bases = (*self._bases, offset)
        base = self._bases[-1]
        self.files.append(self._path(base), buffers)
        with self._lock:
            self._dirty[base] = offset + size
        self.end = offset + size
        return offset

    def sync(self) -> None:
        """All that was appended before the call is on disk when it returns. Any thread, several at once."""
        with self._lock:
            dirty = sorted(self._dirty.items())
        for base, end in dirty:
            self.files.sync(self._path(base))
            with self._lock:
                if self._dirty.get(base) == end:  # else it was appended to meanwhile, and that may not be on disk
                    del self._dirty[base]

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes at `offset`; Damaged when they are not there."""
        bases = self._bases
        at = bisect_right(bases, offset) - 1
        if at < 0:
            raise Damaged(f"{self.directory}: no segment holds offset {offset}")
        base = bases[at]
        limit = bases[at + 1] if at + 1 < len(bases) else offset + length
        here = min(length, limit - offset)
        try:
            data = self.files.read(self._path(base), offset - base, here)
        except FileNotFoundError as error:
            raise Damaged(f"{self._path(base)}: missing") from error
        if len(data) != here:
            raise Damaged(f"{self._path(base)}: ends before offset {offset + here}")
        return data if here == length else data + self.read(offset + here, length - here)

    def read_some(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes at `offset`: fewer where a segment is missing or ends before the next one starts."""
        bases = self._bases
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

    def extents(self, offset: int) -> list[tuple[int, int]]:
        """[low, high) of what each segment holds at or after `offset`."""
        ends = [(base, base + self.files.size(self._path(base))) for base in self._bases]
        return [(max(base, offset), end) for base, end in ends if end > offset]

    def sync_all(self) -> None:
        """As sync(), also for what an earlier process wrote."""
        for base in self._bases:
            self.files.sync(self._path(base))
        self._dirty.clear()

    def segment_start(self) -> int:
        """Where the segment that is being appended to starts."""
        return self._bases[-1] if self._bases else self.end

    def read_cached(self, offset: int, length: int) -> bytes | None:
        """The bytes if they lie in one segment and no disk has to be waited for; else None."""
        bases = self._bases
        at = bisect_right(bases, offset) - 1
        if at < 0 or (at + 1 < len(bases) and offset + length > bases[at + 1]):
            return None
        return self.files.read_cached(self._path(bases[at]), offset - bases[at], length)

    def truncate(self, end: int) -> None:
        """Drop everything at and after `end`. Raises Damaged when the file is shorter than that."""
        keep = tuple(base for base in self._bases if base < end)
        if end and not keep:
            raise Damaged(f"{self.directory}: nothing of what lies below {end} is there")
        for base, limit in zip(keep, (*keep[1:], end), strict=False):
            if self.files.size(self._path(base)) < limit - base:
                raise Damaged(f"{self._path(base)}: ends before offset {limit}")
        for base in reversed(self._bases[len(keep) :]):
            self.files.remove(self._path(base))
        if keep and self.files.size(self._path(keep[-1])) > end - keep[-1]:
            self.files.truncate(self._path(keep[-1]), end - keep[-1])
        self._bases = keep
        self._dirty = {base: at for base, at in self._dirty.items() if base in keep}
        self.start = keep[0] if keep else end
        self.end = end
