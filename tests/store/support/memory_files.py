"""A disk in memory that crashes like a real one: what was not synced may be lost, torn, or written out of order.

The rules, per file, at a power cut:
    bytes that a sync() covered           are there
    bytes appended after it               each page for itself: written, zeros or garbage; any length in between
    a name created and never synced       may be gone, whatever was written
    replace, truncate, remove, rename     have happened or not; durable once they returned
    a second name, one taken away         may be gone, or there again, until a sync() under it or a replace beside it
    remove_tree                           any of its files may be left
A killed process loses nothing that an append finished.
"""

from __future__ import annotations

import errno
import posixpath
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from delaynode.store.errors import Unsynced
from delaynode.store.types import Buffers


class Crashed(Exception):
    """The machine stopped in the middle of this call."""


@dataclass
class MemoryFile:
    data: bytearray = field(default_factory=bytearray)
    synced: int = 0  # bytes that are on disk for certain
    named: bool = False  # its directory entry is on disk for certain


class Names(dict[str, MemoryFile]):
    """Files by their path. Remembers what each directory lists for as long as no name comes or goes."""

    def __init__(self, files: Mapping[str, MemoryFile]) -> None:
        super().__init__(files)
        self._listed: dict[str, list[str]] = {}
        self._numbered: dict[str, list[int]] = {}

    def __setitem__(self, path: str, file: MemoryFile) -> None:
        if path not in self:
            self._forget()
        super().__setitem__(path, file)

    def __delitem__(self, path: str) -> None:
        self._forget()
        super().__delitem__(path)

    def pop(self, path: str, default: MemoryFile | None = None) -> MemoryFile | None:  # type: ignore[override]
        self._forget()
        return super().pop(path, default)

    def _forget(self) -> None:
        self._listed.clear()
        self._numbered.clear()

    def made(self, path: str) -> MemoryFile:
        """The file with this name; an empty one when there was none."""
        file = self.get(path)
        if file is None:
            file = self[path] = MemoryFile()
        return file

    def below(self, directory: str) -> list[str]:
        """The names in the directory, sorted. The caller must not change the list."""
        found = self._listed.get(directory)
        if found is None:
            start = f"{directory}/"
            names = {path[len(start) :].split("/")[0] for path in self if path.startswith(start)}
            found = self._listed[directory] = sorted(names)
        return found

    def numbered(self, directory: str) -> list[int]:
        """The names in the directory that are numbers: a log's segments. The caller must not change the list."""
        found = self._numbered.get(directory)
        if found is None:
            found = self._numbered[directory] = [int(name) for name in self.below(directory) if name.isdigit()]
        return found


class MemoryFiles:
    """Implements delaynode.store.log.files.Files.

    page: the unit of out-of-order writeback; small ones tear small files in more ways.
    """

    def __init__(self, rng: random.Random, page: int = 4096) -> None:
        self.rng = rng
        self.page = page
        self.files = Names({})
        self.links: set[str] = set()  # second names that are not on disk for certain
        self.unlinked: dict[str, MemoryFile] = {}  # second names that may still be on disk
        self.writes = 0  # changing calls so far: the crash points
        self.synced_bytes = 0
        self._countdown: int | None = None
        self._failure: tuple[str, str, int] | None = None
        self.on_sync: Callable[[str], None] = lambda path: None  # called while a sync is under way

    # ------------------------------------------------------------ trouble
    def crash_after(self, calls: int | None) -> None:
        """Raise Crashed in the middle of the changing call after the next `calls`; None: never."""
        self._countdown = calls

    def fail_next(self, operation: str, error: int = errno.EIO, path: str = "") -> None:
        """The next `operation` ("append", "sync" or "replace") on a path that contains `path` raises OSError."""
        self._failure = (operation, path, error)

    def crash(self) -> None:
        """The power is cut: each file becomes what the disk happens to hold."""
        for path, file in list(self.files.items()):
            if (not file.named or path in self.links) and self.rng.random() < 0.5:
                del self.files[path]
                continue
            if len(file.data) > file.synced:
                file.data = self._torn(file)
            file.synced, file.named = len(file.data), True
        for path, file in self.unlinked.items():
            if path not in self.files and self.rng.random() < 0.5:
                self.files[path] = file
        self.links.clear()
        self.unlinked.clear()
        self._countdown = self._failure = None

    def kill(self) -> None:
        """The process is killed: the page cache stays, what is on disk for certain does not grow."""
        self._countdown = self._failure = None

    def _torn(self, file: MemoryFile) -> bytearray:
        choice = self.rng.random()
        if choice < 0.2:
            return file.data
        if choice < 0.4:
            return file.data[: file.synced]
        if choice < 0.7:
            return file.data[: self.rng.randint(file.synced, len(file.data))]
        torn = file.data[: file.synced]
        end = file.synced
        for at in range(file.synced - file.synced % self.page, len(file.data), self.page):
            low, high = max(at, file.synced), min(at + self.page, len(file.data))
            fate = self.rng.random()
            if fate < 0.55:
                torn += file.data[low:high]
                end = high
            elif fate < 0.8:
                torn += bytes(high - low)
            else:
                torn += self.rng.randbytes(high - low)
                end = high
        return torn[: self.rng.randint(end, len(torn))]

    def flip(self, path: str, bit: int) -> None:
        self.files[path].data[bit // 8] ^= 1 << (bit % 8)

    def copy(self) -> MemoryFiles:
        """The same files on another disk, all of it durable."""
        other = MemoryFiles(random.Random(self.rng.random()), self.page)
        files = {path: MemoryFile(bytearray(f.data), len(f.data), True) for path, f in self.files.items()}
        other.files = Names(files)
        return other

    def _change(self, operation: str, path: str) -> bool:
        """Count a changing call; True when the machine stops in the middle of it."""
        self.writes += 1
        if self._failure is not None and self._failure[0] == operation and self._failure[1] in path:
            error, self._failure = self._failure[2], None
            raise (Unsynced if operation == "sync" else OSError)(error, errno.errorcode[error], path)
        if self._countdown is None:
            return False
        self._countdown -= 1
        return self._countdown < 0

    # ------------------------------------------------------------ Files
    def append(self, path: str, buffers: Buffers) -> None:
        data = b"".join(buffers)
        try:
            stop = self._change("append", path)
        except OSError:
            self.files.made(path).data += data[: self.rng.randint(0, len(data))]  # a short write, then the error
            raise
        if stop:
            self.files.made(path).data += data[: self.rng.randint(0, len(data))]
            raise Crashed(f"append {path}")
        self.files.made(path).data += data

    def read(self, path: str, offset: int, length: int) -> bytes:
        file = self.files.get(path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        if offset < 0 or length < 0:
            raise OSError(errno.EINVAL, "Invalid argument", path)
        return bytes(file.data[offset : offset + length])

    def read_cached(self, path: str, offset: int, length: int) -> bytes | None:
        data = self.read(path, offset, length)
        return data if len(data) == length and self.rng.random() < 0.5 else None

    def sync(self, path: str) -> None:
        file = self.files.get(path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        if self._change("sync", path):
            if self.rng.random() < 0.5:
                file.synced, file.named = len(file.data), True
            raise Crashed(f"sync {path}")
        reach = len(file.data)
        self.on_sync(path)
        self.links.discard(path)
        file.synced, file.named = max(file.synced, min(reach, len(file.data))), True

    def size(self, path: str) -> int:
        file = self.files.get(path)
        return 0 if file is None else len(file.data)

    def list(self, directory: str) -> Sequence[str]:
        return list(self.files.below(directory))

    def replace(self, path: str, data: bytes) -> None:
        stop = self._change("replace", path)
        if not stop or self.rng.random() < 0.5:
            self.files[path] = MemoryFile(bytearray(data), len(data), True)
            beside = posixpath.dirname(path)
            self.links = {name for name in self.links if posixpath.dirname(name) != beside}
            self.unlinked = {name: f for name, f in self.unlinked.items() if posixpath.dirname(name) != beside}
        if stop:
            raise Crashed(f"replace {path}")

    def truncate(self, path: str, size: int) -> None:
        file = self.files.get(path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        stop = self._change("truncate", path)
        if not stop or self.rng.random() < 0.5:
            del file.data[size:]
            file.synced = len(file.data)
        if stop:
            raise Crashed(f"truncate {path}")

    def remove(self, path: str) -> None:
        stop = self._change("remove", path)
        if not stop or self.rng.random() < 0.5:
            self.files.pop(path, None)
        if stop:
            raise Crashed(f"remove {path}")

    def link(self, path: str, other: str) -> None:
        file = self.files.get(path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        if other in self.files:
            raise FileExistsError(errno.EEXIST, "file exists", other)
        stop = self._change("link", other)
        if not stop or self.rng.random() < 0.5:
            self.files[other] = file
            self.links.add(other)
        if stop:
            raise Crashed(f"link {other}")

    def unlink(self, path: str) -> None:
        file = self.files.get(path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        stop = self._change("unlink", path)
        if not stop or self.rng.random() < 0.5:
            del self.files[path]
            self.links.discard(path)
            self.unlinked[path] = file
        if stop:
            raise Crashed(f"unlink {path}")

    def rename(self, path: str, other: str) -> None:
        if not self.list(path):
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        if self.list(other):
            raise OSError(errno.ENOTEMPTY, "directory not empty", other)
        stop = self._change("rename", path)
        if not stop or self.rng.random() < 0.5:
            below = f"{path}/"
            moved = {name: f"{other}/{name[len(below) :]}" for name in self.files if name.startswith(below)}
            self.files = Names({moved.get(name, name): file for name, file in self.files.items()})
            self.links = {moved.get(name, name) for name in self.links}
        if stop:
            raise Crashed(f"rename {path}")

    def remove_tree(self, directory: str) -> None:
        names = [path for path in self.files if path.startswith(f"{directory}/")]
        self.rng.shuffle(names)
        for path in names:
            self.remove(path)
