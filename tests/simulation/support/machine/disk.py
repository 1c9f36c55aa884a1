"""A machine's disk: memory_files.py with time, and with the troubles that disks have.

A job's calls change the page cache at once, but each takes its time: one that is under way at a kill has happened in
part or not at all, and those that would have come after it have not happened.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from delaynode.store.types import Buffers

from tests.simulation.support.machine.loop import MICRO, MILLI, Scheduler
from tests.store.support.memory_files import MemoryFile, MemoryFiles

PAGE = 512
KEPT_OPS = 64
LONGEST_NS = 8_000 * MILLI  # longest call on a slow disk: it has to end within the time that a healed cluster is given


class Fenced(BaseException):
    """Code of a dead process has called the disk."""


@dataclass(slots=True)
class Sync:
    """A sync of a file: the number of bytes certainly on disk before it, and after it."""

    file: MemoryFile
    before: int
    after: int


@dataclass(slots=True)
class Op:
    path: str
    start_ns: int
    end_ns: int
    undo: Callable[[], None]
    partly: Callable[[], None] | None
    sync: Sync | None = None


class Disk:
    """Outlives the processes that use it."""

    def __init__(self, scheduler: Scheduler, rng: random.Random) -> None:
        self._scheduler = scheduler
        self.rng = rng
        self.files = MemoryFiles(rng, PAGE)
        self.full = False
        self.hung_until_ns = 0
        self.slow = 1.0
        self._ops: list[Op] = []

    # ------------------------------------------------------------ trouble
    def kill(self, at_ns: int) -> None:
        """Kill the process that uses the disk: its calls under way stop in the middle."""
        self._undo(at_ns)
        self.files.kill()

    def power_loss(self, at_ns: int) -> None:
        self._undo(at_ns)
        self.files.crash()
        self.hung_until_ns = 0

    def _undo(self, at_ns: int) -> None:
        for op in reversed(self._ops):
            if op.end_ns > at_ns:
                op.undo()
                if op.start_ns <= at_ns and op.partly is not None and self.rng.random() < 0.5:
                    op.partly()
        for op in self._ops:  # a call that began later may have ended sooner than one that is undone
            if op.sync is not None and op.end_ns <= at_ns:
                file = op.sync.file
                file.synced, file.named = max(file.synced, min(op.sync.after, len(file.data))), True
        self._ops.clear()

    def durable(self, path: str, start: int, end: int) -> bytes:
        """The bytes of [start, end) of a file that would certainly be there after a power cut."""
        file = self.files.files.get(path)
        if file is None:
            return b""
        now, ended, before = self._scheduler.now_ns, 0, file.synced
        under_way = False
        for op in self._ops:
            sync = op.sync
            if sync is None or sync.file is not file:
                continue
            if op.end_ns <= now:
                ended = max(ended, sync.after)
            else:
                before, under_way = min(before, sync.before) if under_way else sync.before, True
        return bytes(file.data[start : min(end, file.synced, max(before, ended))])

    def cached(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        file = self.files.files.get(path)
        return b"" if file is None else bytes(file.data[start:end])

    # ------------------------------------------------------------ time
    def spend(self, cost_ns: int) -> tuple[int, int] | None:
        """Charge a call to the job under way. Returns its start and end; None on a loop, which no disk holds up."""
        job = self._scheduler.job
        if job is None:
            return None
        start = job.now_ns
        job.now_ns = max(start, self.hung_until_ns) + int(min(cost_ns * self.slow, LONGEST_NS))
        return start, job.now_ns

    def note(self, op: Op) -> None:
        if len(self._ops) >= KEPT_OPS:
            now = self._scheduler.now_ns
            under_way = {one.path for one in self._ops if one.end_ns > now}
            self._ops = [one for one in self._ops if one.end_ns > now or (one.sync and one.path in under_way)]
        self._ops.append(op)

    def shortened(self, file: MemoryFile | None, size: int) -> None:
        """The file was truncated: earlier syncs say nothing of bytes that are written there from now on."""
        for op in self._ops:
            if op.sync is not None and op.sync.file is file:
                op.sync.after = min(op.sync.after, size)

    def sync_ns(self) -> int:
        chance = self.rng.random()
        if chance < 0.9:
            return self.rng.randint(200, 1_500) * MICRO
        return self.rng.randint(2, 12) * MILLI if chance < 0.995 else self.rng.randint(50, 400) * MILLI


class ProcessFiles:
    """A process's door to its machine's disk. Implements delaynode.store.log.files.Files."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.dead = False

    def _files(self) -> MemoryFiles:
        if self.dead:
            raise Fenced
        return self.disk.files

    def append(self, path: str, buffers: Buffers) -> None:
        files, disk = self._files(), self.disk
        if disk.full:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        before = files.size(path)
        known = path in files.files
        times = disk.spend(15 * MICRO)
        tail = b"".join(buffers)
        files.append(path, (tail,))
        if times is None:
            return

        def undo() -> None:
            if not known:
                files.files.pop(path, None)
            elif path in files.files:
                del files.files[path].data[before:]

        def partly() -> None:
            files.files.made(path).data += tail[: disk.rng.randint(0, len(tail))]

        disk.note(Op(path, *times, undo, partly))

    def sync(self, path: str) -> None:
        files, disk = self._files(), self.disk
        times = disk.spend(disk.sync_ns())
        file = files.files.get(path)
        before = (file.synced, file.named) if file is not None else (0, False)
        files.sync(path)
        if times is None or file is None:
            return
        after = file.synced

        def put(synced: int, named: bool) -> None:
            if path in files.files:
                found = files.files[path]
                found.synced, found.named = min(synced, len(found.data)), named

        disk.note(Op(path, *times, lambda: put(*before), lambda: put(after, True), Sync(file, before[0], after)))

    def replace(self, path: str, data: bytes) -> None:
        if self.disk.full:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        self._rename([path], lambda files: files.replace(path, data))

    def remove(self, path: str) -> None:
        self._rename([path], lambda files: files.remove(path))

    def link(self, path: str, other: str) -> None:
        self._rename([other], lambda files: files.link(path, other))

    def unlink(self, path: str) -> None:
        self._rename([path], lambda files: files.unlink(path))

    def rename(self, path: str, other: str) -> None:
        self._rename(self._below(path) + self._below(other), lambda files: files.rename(path, other))

    def remove_tree(self, directory: str) -> None:
        self._rename(self._below(directory), lambda files: files.remove_tree(directory))

    def _below(self, directory: str) -> list[str]:
        return [path for path in self._files().files if path.startswith(f"{directory}/")]

    def _rename(self, paths: list[str], change: Callable[[MemoryFiles], None]) -> None:
        """A change of names that happens whole or not at all."""
        files, disk = self._files(), self.disk
        times = disk.spend(disk.sync_ns())
        names = dict(files.files) if len(paths) != 1 else {paths[0]: files.files.get(paths[0])}
        change(files)
        if times is None:
            return
        if len(paths) != 1:
            after = dict(files.files)
            changed = {name for name in {*names, *after} if names.get(name) is not after.get(name)}
            before = {name: names.get(name) for name in sorted(changed)}
        else:
            before = {paths[0]: names[paths[0]]}
        then = {name: files.files.get(name) for name in before}
        disk.note(Op(paths[0] if paths else "", *times, lambda: _put(files, before), lambda: _put(files, then)))

    def truncate(self, path: str, size: int) -> None:
        files, disk = self._files(), self.disk
        times = disk.spend(disk.sync_ns())
        file = files.files.get(path)
        before = (bytes(file.data), file.synced) if file is not None else (b"", 0)
        files.truncate(path, size)
        disk.shortened(file, size)

        def undo() -> None:
            if path in files.files:
                found = files.files[path]
                found.data[:] = before[0]
                found.synced = before[1]

        def redo() -> None:
            if path in files.files:
                found = files.files[path]
                del found.data[size:]
                found.synced = min(found.synced, size)

        if times is not None:
            disk.note(Op(path, *times, undo, redo))

    def read(self, path: str, offset: int, length: int) -> bytes:
        files = self._files()
        self.disk.spend(20 * MICRO)
        return files.read(path, offset, length)

    def read_cached(self, path: str, offset: int, length: int) -> bytes | None:
        return self._files().read_cached(path, offset, length)

    def size(self, path: str) -> int:
        return self._files().size(path)

    def list(self, directory: str) -> Sequence[str]:
        return self._files().list(directory)

    def close(self) -> None:
        pass


def _put(files: MemoryFiles, names: Mapping[str, MemoryFile | None]) -> None:
    for name, file in names.items():
        if file is None:
            files.files.pop(name, None)
        else:
            files.files[name] = file
