"""Measurements of the machine and of a process: memory, disk use, the disk's sequential rate."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

CHUNK_BYTES = 4 << 20
WATCH_S = 0.05
SYNC_EVERY_BYTES = 64 << 20  # the size of a CommitLog segment


@dataclass(frozen=True, slots=True)
class Memory:
    """A process's resident memory, bytes: now, at most so far, and the part now that does not belong to a file."""

    rss_bytes: int
    peak_bytes: int
    anon_bytes: int


def memory(pid: int) -> Memory:
    """From /proc. Raises FileNotFoundError when there is no such process."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())

    def bytes_of(name: str) -> int:
        return int(fields[name].split()[0]) * 1024

    return Memory(bytes_of("VmRSS"), bytes_of("VmHWM"), bytes_of("RssAnon"))


class MemoryWatch:
    """A process's largest memory between two looks, sampled every 50 ms by a thread."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._lock = threading.Lock()
        self._peak = memory(pid)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-watch", daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def peak(self) -> Memory:
        """The largest sizes since the last call; peak_bytes: of the process's whole life."""
        now = memory(self._pid)
        with self._lock:
            found, self._peak = _larger(self._peak, now), now
        return found

    def _run(self) -> None:
        while not self._ended.wait(WATCH_S):
            try:
                now = memory(self._pid)
            except (FileNotFoundError, ProcessLookupError):
                return
            with self._lock:
                self._peak = _larger(self._peak, now)


def _larger(one: Memory, other: Memory) -> Memory:
    return Memory(
        max(one.rss_bytes, other.rss_bytes),
        max(one.peak_bytes, other.peak_bytes),
        max(one.anon_bytes, other.anon_bytes),
    )


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used, all its threads, from /proc."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system = int(after_name[11]), int(after_name[12])
    return (user + system) / os.sysconf("SC_CLK_TCK")


def written_bytes(pid: int) -> int:
    """Bytes that a process has caused to be written to disks, from /proc."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("write_bytes:")).split()[1])


def disk_bytes(directory: Path) -> int:
    """Bytes allocated to the files below `directory`; a file that goes meanwhile counts as gone."""
    total = 0
    for root, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


class StallWatch:
    """How long the machine stood still at most: virtual machines are frozen for seconds at times, clocks and all.

    A thread sleeps briefly again and again, and sees when it is woken late.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stall-watch", daemon=True)

    def __enter__(self) -> StallWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        before_s = time.monotonic()
        while not self._ended.wait(WATCH_S):
            now_s = time.monotonic()
            self.longest_s = max(self.longest_s, now_s - before_s - WATCH_S)
            before_s = now_s


def sequential_write(directory: Path, size: int) -> float:
    """Bytes/s of writing one new file of `size` bytes, synced like a log: every 64 MiB. The file is removed."""
    path = directory / "sequential-write"
    chunk = memoryview(os.urandom(min(size, CHUNK_BYTES)))
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        began_s = time.perf_counter()
        unsynced = 0
        left = size
        while left:
            wrote = os.write(fd, chunk[:left])
            left -= wrote
            unsynced += wrote
            if unsynced >= SYNC_EVERY_BYTES or not left:
                os.fdatasync(fd)
                unsynced = 0
        return size / (time.perf_counter() - began_s)
    finally:
        os.close(fd)
        path.unlink()


def describe(directory: Path) -> str:
    """One line: processor, cores, memory, kernel, and the file system of `directory`."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = " ".join(line.split(":", 1)[1].split())
            break
    memory_kib = int(Path("/proc/meminfo").read_text().split(maxsplit=2)[1])
    cores = len(os.sched_getaffinity(0))
    system = os.uname()
    return (
        f"{model}, {cores} cores, {memory_kib / (1 << 20):.0f} GiB memory, {system.sysname} {system.release}, "
        f"{file_system(directory)}"
    )


def file_system(directory: Path) -> str:
    """The type of the file system that holds `directory`, as in /proc/mounts."""
    place = str(directory.resolve())
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, type_, *_ = line.split()
        inside = place == mount or place.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, type_
    return kind
