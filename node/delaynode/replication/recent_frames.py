"""RecentFrames: the last frames of a log, kept in memory for members that are up to date."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass

from delaynode.store.types import Buffer

RECENT_BYTES = 16 << 20
LARGE_BYTES = 8 << 20  # a batch above this is sent from the file: a message has its limit


@dataclass(frozen=True, slots=True)
class LogChunk:
    start: int
    end: int
    parts: tuple[Buffer, ...]


class RecentFrames:
    """Each chunk begins where the one before it ends."""

    def __init__(self) -> None:
        self._chunks: deque[LogChunk] = deque()
        self._bytes = 0

    def add(self, start: int, end: int, parts: tuple[Buffer, ...]) -> bool:
        """False where there is no room: the files will have them."""
        if end - start > LARGE_BYTES or self._bytes + end - start > RECENT_BYTES:
            return False
        if self._chunks and self._chunks[-1].end != start:
            self.clear()
        self._chunks.append(LogChunk(start, end, parts))
        self._bytes += end - start
        return True

    def starting_at(self, offset: int) -> LogChunk | None:
        chunks = self._chunks
        if not chunks or not chunks[0].start <= offset < chunks[-1].end:
            return None
        if chunks[-1].start == offset:
            return chunks[-1]
        chunk = chunks[bisect_right(chunks, offset, key=lambda chunk: chunk.start) - 1]
        return chunk if chunk.start == offset else None

    def drop_before(self, offset: int) -> None:
        """No member needs what lies before this log offset."""
        while self._chunks and self._chunks[0].end <= offset:
            chunk = self._chunks.popleft()
            self._bytes -= chunk.end - chunk.start

    def clear(self) -> None:
        self._chunks.clear()
        self._bytes = 0
