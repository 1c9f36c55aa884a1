"""The store's only door to a disk. Tests put a disk that crashes behind it."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from delaynode.store.errors import Unsynced
from delaynode.store.types import Buffer, Buffers

IOV_MAX = 1000  # buffers a writev takes at most (the kernel's limit is 1,024)


class Files(Protocol):
    """Files by path. Every method raises OSError; after one from `append` or `sync` the file must not be used.

    Only what fsync() or fdatasync() itself raised is Unsynced: then what was written may not be on disk. A call that
    found no file handle, say, has lost nothing.
    """

    def append(self, path: str, buffers: Buffers) -> None:
        """Write at the file's end, creating it; all or an error."""

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Up to `length` bytes; fewer at the file's end."""

    def read_cached(self, path: str, offset: int, length: int) -> bytes | None:
        """The same as read(), if it can be done without waiting for a disk; else None."""

    def sync(self, path: str) -> None:
        """The file's bytes, length and name are on disk when this returns."""

    def size(self, path: str) -> int:
        """Bytes in the file; 0 when there is none."""

    def list(self, directory: str) -> Sequence[str]:
        """Names in the directory, sorted; empty when there is none."""

    def replace(self, path: str, data: bytes) -> None:
        """Put `data` in place of the file's content, atomically and on disk when this returns."""

    def truncate(self, path: str, size: int) -> None:
        """Cut the file to `size` bytes, on disk when this returns."""

    def remove(self, path: str) -> None:
        """Delete the file, if it is there; its name is gone from the disk when this returns."""

    def link(self, path: str, other: str) -> None:
        """Give the file a second name, for this process: after a crash it may be gone. Raises FileNotFoundError,
        FileExistsError.

        What is appended, cut or synced under one name is so under both; replace and remove change one of them only.
        """

    def unlink(self, path: str) -> None:
        """Take a second name away, which nobody reads just now: after a crash it may be there again.

        It is gone from the disk, as a new second name is there, once a file beside it was replaced.
        """

    def rename(self, path: str, other: str) -> None:
        """Give a directory that nobody uses another name, atomically and on disk when this returns.

        Raises OSError when `other` is there and holds something.
        """

    def remove_tree(self, directory: str) -> None:
        """Delete the directory, if it is there, with all that is in it, one after the other; nobody may use it.

        After a crash any of it may be there again.
        """


class ReadFiles(ABC):
    """The reading half of Files, for files of the operating system."""

    @abstractmethod
    def _descriptor(self, path: str) -> int:
        """The file, open."""

    def read(self, path: str, offset: int, length: int) -> bytes:
        fd = self._descriptor(path)
        data = os.pread(fd, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]
        have = len(data)
        while have < length:
            more = os.pread(fd, length - have, offset + have)
            if not more:
                break
            parts.append(more)
            have += len(more)
        return b"".join(parts)

    def size(self, path: str) -> int:
        try:
            return os.stat(path).st_size
        except FileNotFoundError:
            return 0

    def list(self, directory: str) -> Sequence[str]:
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []


class DiskFiles(ReadFiles):
    """Files of the operating system. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._descriptors: dict[str, int] = {}
        self._named: set[str] = set()  # directory entry synced by this process; an earlier one may not have
        self._unsynced: dict[str, Unsynced] = {}  # the kernel tells of a lost write once: whoever asks next hears of it

    def append(self, path: str, buffers: Buffers) -> None:
        fd = self._open(path, create=True)
        for at in range(0, len(buffers), IOV_MAX):
            self._write_all(fd, list(buffers[at : at + IOV_MAX]), path)

    def _write_all(self, fd: int, parts: list[Buffer], path: str) -> None:
        wanted = sum(len(part) for part in parts)
        written = os.writev(fd, parts)
        while written < wanted:  # a short write: at a signal, or just before the disk is full
            rest = b"".join(parts)[written:]
            more = os.write(fd, rest)
            if more == 0:
                raise OSError(f"{path}: wrote {written} of {wanted} bytes")
            written += more

    def read_cached(self, path: str, offset: int, length: int) -> bytes | None:
        data = bytearray(length)
        try:
            got = os.preadv(self._open(path, create=False), [data], offset, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
                return None
            raise
        return bytes(data) if got == length else None

    def sync(self, path: str) -> None:
        if (failed := self._unsynced.get(path)) is not None:
            raise Unsynced(failed.errno, f"{failed.strerror} (an earlier fsync failed)", path) from failed
        try:
            _on_disk(os.fdatasync, self._open(path, create=False), path)
        except Unsynced as error:
            self._unsynced[path] = error
            raise
        if path not in self._named:
            self._sync_directory(os.path.dirname(path))
            with self._lock:
                self._named.add(path)

    def direct_descriptor(self, path: str) -> int | None:
        """A descriptor to append to the file and to sync it by other means, where its name is on disk; else None."""
        return self._descriptors.get(path) if path in self._named and path not in self._unsynced else None

    def direct_failed(self, path: str, error: Unsynced) -> None:
        """Such a sync has failed."""
        self._unsynced[path] = error

    def replace(self, path: str, data: bytes) -> None:
        self._make_directory(Path(path).parent)
        with _opened_directory(os.path.dirname(path)) as directory:  # first: without a file handle nothing is changed
            temporary = f"{path}.tmp"
            fd = os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                self._write_synced(fd, data)
                with self._lock:
                    stale = self._descriptors.pop(path, None)
                    if stale is not None:
                        os.close(stale)
                    os.replace(temporary, path)
            except OSError:
                with suppress(OSError):
                    os.unlink(temporary)  # where there is no room it would keep up to a checkpoint's size of it
                raise
            _on_disk(os.fsync, directory, path)

    @staticmethod
    def _write_synced(fd: int, data: bytes) -> None:
        """Write and close a new file. An error of its fsync is no Unsynced: nothing of use was in it."""
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)

    def truncate(self, path: str, size: int) -> None:
        fd = self._open(path, create=False)
        os.ftruncate(fd, size)
        _on_disk(os.fsync, fd, path)

    def remove(self, path: str) -> None:
        try:
            self.unlink(path)
        except FileNotFoundError:
            return
        self._sync_directory(os.path.dirname(path))

    def link(self, path: str, other: str) -> None:
        Path(other).parent.mkdir(parents=True, exist_ok=True)
        os.link(path, other)

    def unlink(self, path: str) -> None:
        with self._lock:
            fd = self._descriptors.pop(path, None)
            self._named.discard(path)
            self._unsynced.pop(path, None)
        if fd is not None:
            os.close(fd)
        os.unlink(path)

    def rename(self, path: str, other: str) -> None:
        self._make_directory(Path(other).parent)
        self._forget(path)
        os.rename(path, other)
        for directory in {os.path.dirname(path): None, os.path.dirname(other): None}:
            self._sync_directory(directory)

    def remove_tree(self, directory: str) -> None:
        self._forget(directory)
        with suppress(FileNotFoundError):
            shutil.rmtree(directory)

    def _forget(self, directory: str) -> None:
        """Close the descriptors of the files below the directory."""
        below = f"{directory}/"
        with self._lock:
            dropped = [path for path in self._descriptors if path.startswith(below)]
            descriptors = [self._descriptors.pop(path) for path in dropped]
            self._named = {path for path in self._named if not path.startswith(below)}
            self._unsynced = {path: error for path, error in self._unsynced.items() if not path.startswith(below)}
        for fd in descriptors:
            os.close(fd)

    def close(self) -> None:
        """Close every descriptor; the object may be used again afterwards."""
        with self._lock:
            descriptors, self._descriptors = self._descriptors, {}
        for fd in descriptors.values():
            os.close(fd)

    def _descriptor(self, path: str) -> int:
        return self._open(path, create=False)

    def _open(self, path: str, *, create: bool) -> int:
        fd = self._descriptors.get(path)
        if fd is not None:
            return fd
        with self._lock:
            fd = self._descriptors.get(path)
            if fd is not None:
                return fd
            flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
            try:
                fd = os.open(path, flags)
            except FileNotFoundError:
                if not create:
                    raise
                self._make_directory(Path(path).parent)
                fd = os.open(path, flags | os.O_CREAT, 0o644)
            self._descriptors[path] = fd
            return fd

    @classmethod
    def _make_directory(cls, directory: Path) -> None:
        """With its parents, each of whose new entries is on disk when this returns."""
        if directory.is_dir():
            return
        cls._make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
        cls._sync_directory(directory.parent)

    @staticmethod
    def _sync_directory(directory: str | Path) -> None:
        with _opened_directory(directory) as fd:
            _on_disk(os.fsync, fd, str(directory))


def _on_disk(sync: Callable[[int], None], fd: int, path: str) -> None:
    """Call fsync() or fdatasync(). Raises Unsynced."""
    try:
        sync(fd)
    except OSError as error:
        raise Unsynced(error.errno, error.strerror, path) from error


@contextmanager
def _opened_directory(path: str | Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
