"""Files that are only read: what is written stays in memory, so that a recovery can be tried on a stopped copy."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence

from delaynode.store.log.files import Files, ReadFiles
from delaynode.store.types import Buffers

Changes = list[tuple[str, int, bytes | None]]


class ReadOnlyFiles(ReadFiles):
    """Files of the operating system, opened for reading only."""

    def __init__(self) -> None:
        self._descriptors: dict[str, int] = {}

    def _descriptor(self, path: str) -> int:
        fd = self._descriptors.get(path)
        if fd is None:
            fd = self._descriptors[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return fd

    def read_cached(self, path: str, offset: int, length: int) -> bytes | None:
        return None

    def close(self) -> None:
        for fd in self._descriptors.values():
            os.close(fd)
        self._descriptors.clear()

    # ------------------------------------------------------------ not here
    def _refuse(self, path: str) -> OSError:
        return PermissionError(f"{path}: opened for reading only")

    def append(self, path: str, buffers: Buffers) -> None:
        raise self._refuse(path)

    def sync(self, path: str) -> None:
        raise self._refuse(path)

    def replace(self, path: str, data: bytes) -> None:
        raise self._refuse(path)

    def truncate(self, path: str, size: int) -> None:
        raise self._refuse(path)

    def remove(self, path: str) -> None:
        raise self._refuse(path)

    def link(self, path: str, other: str) -> None:
        raise self._refuse(other)

    def unlink(self, path: str) -> None:
        raise self._refuse(path)

    def rename(self, path: str, other: str) -> None:
        raise self._refuse(path)

    def remove_tree(self, directory: str) -> None:
        raise self._refuse(directory)


class Overlay:
    """Implements Files over others that it never changes: files are cut, replaced and removed in memory only."""

    def __init__(self, below: Files) -> None:
        self._below = below
        self._mine: dict[str, bytes | None] = {}  # None: removed
        self._cut: dict[str, int] = {}  # size of a file that is below, but shorter

    def _rest(self, path: str) -> int:
        """Bytes of the file that are still below."""
        size = self._below.size(path)
        return min(size, self._cut.get(path, size))

    def append(self, path: str, buffers: Buffers) -> None:
        mine = self._mine.get(path, b"") or b""
        self._mine[path] = mine + b"".join(buffers)
        self._cut.setdefault(path, self._below.size(path))

    def read(self, path: str, offset: int, length: int) -> bytes:
        if path not in self._mine and path not in self._cut:
            return self._below.read(path, offset, length)
        mine = self._mine.get(path, b"")
        if mine is None:
            raise FileNotFoundError(path)
        rest = self._rest(path)
        data = self._below.read(path, offset, min(length, rest - offset)) if offset < rest else b""
        low = max(0, offset + len(data) - rest)
        return data + mine[low : low + length - len(data)]

    def read_cached(self, path: str, offset: int, length: int) -> bytes | None:
        return None

    def sync(self, path: str) -> None:
        if self._mine.get(path, b"") is None:
            raise FileNotFoundError(path)

    def size(self, path: str) -> int:
        mine = self._mine.get(path, b"")
        return 0 if mine is None else self._rest(path) + len(mine)

    def list(self, directory: str) -> Sequence[str]:
        below = self._below.list(directory)
        names = {name for name in below if self._mine.get(f"{directory}/{name}", b"") is not None}
        names |= {
            posixpath.basename(p) for p, m in self._mine.items() if m is not None and posixpath.dirname(p) == directory
        }
        return sorted(names)

    def replace(self, path: str, data: bytes) -> None:
        self._mine[path], self._cut[path] = data, 0

    def truncate(self, path: str, size: int) -> None:
        rest = self._rest(path)
        mine = self._mine.get(path, b"") or b""
        self._cut[path] = min(rest, size)
        self._mine[path] = mine[: max(0, size - rest)]

    def remove(self, path: str) -> None:
        self._mine[path], self._cut[path] = None, 0

    def changes(self) -> Changes:
        """(path, how many of its bytes below stay, what follows them) of each file that is other than below; None for
        one that is removed. By path."""
        found: Changes = []
        for path in sorted({*self._mine, *self._cut}):
            mine, rest = self._mine.get(path, b""), self._rest(path)
            if mine is None:
                if self._below.size(path):
                    found.append((path, 0, None))
            elif mine or rest < self._below.size(path):
                found.append((path, rest, mine))
        return found

    def link(self, path: str, other: str) -> None:
        """As a copy: what is changed under one name is not changed under the other."""
        self.replace(other, self.read(path, 0, self.size(path)))

    def unlink(self, path: str) -> None:
        self.remove(path)

    # ------------------------------------------------------------ no recovery needs these
    def rename(self, path: str, other: str) -> None:
        raise PermissionError(f"{path}: no directory is renamed here")

    def remove_tree(self, directory: str) -> None:
        raise PermissionError(f"{directory}: no directory is removed here")
