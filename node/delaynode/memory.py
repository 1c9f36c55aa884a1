"""glibc's allocator, told what this process does: large short-lived buffers, on a few threads."""

from __future__ import annotations

import ctypes

M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8
LARGE_BYTES = 1 << 20

try:
    _libc: ctypes.CDLL | None = ctypes.CDLL("libc.so.6")
except OSError:  # another C library: its defaults will do
    _libc = None


def tune_allocator() -> None:
    """Give large blocks pages of their own, which go back to the system when freed, and use few arenas.

    By default glibc raises the threshold with the first large block that is freed, and batches of megabytes then
    leave holes in the heaps of every thread: measured 660 MB resident after 4 million messages, against 230 MB.
    """
    if _libc is not None:
        _libc.mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        _libc.mallopt(M_ARENA_MAX, 2)


def give_back() -> None:
    """Return free heap pages to the system; a few milliseconds, on any thread."""
    if _libc is not None:
        _libc.malloc_trim(0)
