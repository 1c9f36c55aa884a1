"""Segments, scattered reads, and the disk itself."""

from __future__ import annotations

import errno
import os
import random
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from delaynode.store.errors import Damaged, Refused, Unsynced
from delaynode.store.log import commit_log, extents, files
from delaynode.store.log.checks import record_checks
from delaynode.store.log.commit_log import CommitLog
from delaynode.store.log.files import DiskFiles, Files
from delaynode.store.log.frames import MAX_FRAME_BYTES, FrameKind
from delaynode.store.log.segments import SegmentedFile
from delaynode.store.maintenance.marker import is_permanent
from delaynode.store.timer.units import DEFAULT, units
from delaynode.store.types import Buffers, Records

from tests.store.support.memory_files import Crashed, MemoryFiles
from tests.store.support.walks import times


def segmented(disk: Files, sizes: list[int], segment_bytes: int = 100) -> tuple[SegmentedFile, bytes]:
    file = SegmentedFile(disk, "/d/log", segment_bytes)
    content = b""
    for at, size in enumerate(sizes):
        part = random.Random(at).randbytes(size)
        assert file.append([part[: size // 2], part[size // 2 :]], size) == len(content)
        content += part
    return file, content


def test_a_read_may_cross_any_number_of_segments() -> None:
    disk = MemoryFiles(random.Random(1))
    file, content = segmented(disk, [100] * 2_000)
    assert len(file.bases) == 2_000
    assert file.read(50, len(content) - 100) == content[50:-50]


# ---------------------------------------------------------------- segments
def test_what_is_appended_is_read_back_over_segments_and_after_reopening() -> None:
    rng = random.Random(1)
    for _ in range(times(50)):
        disk = MemoryFiles(rng)
        file, content = segmented(disk, [rng.choice([1, 30, 60, 99, 100, 250]) for _ in range(rng.randint(1, 12))])
        for reader in (file, SegmentedFile(disk, "/d/log", 100)):
            assert reader.end == len(content)
            for _ in range(20):
                low = rng.randint(0, len(content))
                high = rng.randint(low, len(content))
                assert reader.read(low, high - low) == content[low:high]
                assert reader.read_some(low, high - low + 50) == content[low : high + 50]
        assert [end for _, end in file.extents(0)][-1] == len(content)
        with pytest.raises(Damaged):
            file.read(len(content) - 1, 2)


def test_an_append_never_straddles_two_segments() -> None:
    disk = MemoryFiles(random.Random(1))
    segmented(disk, [60, 60, 30, 200, 1])
    assert [len(f.data) for _, f in sorted(disk.files.items())] == [60, 90, 200, 1]


def test_truncate_at_every_offset_leaves_just_that_prefix() -> None:
    sizes = [60, 60, 30, 200, 1]
    for end in range(sum(sizes) + 1):
        disk = MemoryFiles(random.Random(end))
        file, content = segmented(disk, sizes)
        file.truncate(end)
        for reader in (file, SegmentedFile(disk, "/d/log", 100)):
            assert reader.end == end
            assert not end or reader.read(0, end) == content[:end]
        assert file.append([b"new"], 3) == end
        assert SegmentedFile(disk, "/d/log", 100).read(0, end + 3) == content[:end] + b"new"


@pytest.mark.parametrize("harm", ["first", "middle", "short", "short middle"])
def test_truncate_notices_that_what_it_keeps_is_not_whole(harm: str) -> None:
    disk = MemoryFiles(random.Random(1))
    _, content = segmented(disk, [60, 60, 60, 60])
    paths = sorted(disk.files)
    if harm == "first":
        disk.remove(paths[0])
        broken = SegmentedFile(disk, "/d/log", 100)
        with pytest.raises(Damaged):
            broken.truncate(60)
        return
    if harm == "middle":
        disk.remove(paths[1])
    elif harm == "short":
        disk.truncate(paths[3], 59)
    else:
        disk.truncate(paths[1], 10)
    broken = SegmentedFile(disk, "/d/log", 100)
    with pytest.raises(Damaged):
        broken.truncate(len(content))
    broken.truncate(60)
    assert broken.read(0, 60) == content[:60]


def test_cutting_at_the_start_of_the_file_drops_what_lies_behind_a_lost_segment() -> None:
    disk = MemoryFiles(random.Random(1))
    segmented(disk, [60, 60])
    disk.remove(min(disk.files))
    file = SegmentedFile(disk, "/d/log", 100)
    file.truncate(0)
    assert (file.start, file.end, disk.files) == (0, 0, {})


def test_bytes_appended_while_a_sync_runs_are_not_taken_for_synced() -> None:
    """A checkpoint syncs the log from its own thread: the writer's next sync must not find nothing to do."""
    disk = MemoryFiles(random.Random(1))
    file, _ = segmented(disk, [10])

    def append_once(path: str) -> None:
        disk.on_sync = lambda path: None
        file.append([b"y" * 10], 10)

    disk.on_sync = append_once
    file.sync()
    assert [f.synced for f in disk.files.values()] == [10]
    file.sync()
    assert [f.synced for f in disk.files.values()] == [20]


def test_a_sync_does_not_return_before_another_threads_sync_of_the_same_bytes() -> None:
    disk = MemoryFiles(random.Random(1))
    file, _ = segmented(disk, [10])
    inside, go_on = threading.Event(), threading.Event()
    seen: list[int] = []

    def wait_once(path: str) -> None:
        disk.on_sync = lambda path: None
        inside.set()
        assert go_on.wait(10)

    def sync() -> None:
        file.sync()
        seen.extend(f.synced for f in disk.files.values())

    disk.on_sync = wait_once
    first, second = threading.Thread(target=file.sync), threading.Thread(target=sync)
    first.start()
    assert inside.wait(10)
    second.start()
    second.join(0.1)
    go_on.set()
    first.join()
    second.join()
    assert seen == [10]


def test_an_fsync_error_told_to_the_checkpoints_thread_is_told_to_the_thread_that_acknowledges() -> None:
    """Linux reports a writeback error once for each open file, and both threads use the same one."""
    disk = MemoryFiles(random.Random(1))
    log = CommitLog.open(disk, "/d/log", 1, 1 << 20)
    log.propose(FrameKind.EPOCH, 1, 1, 0, 0, (b"acknowledged",))
    batch = log.next_batch(sync=True)
    assert batch is not None
    with patch.object(log.file, "append", partial(append_then_fail, log.file)), pytest.raises(Unsynced, match="EIO"):
        batch.run()
    assert log.synced == 0


def test_an_fsync_error_is_told_to_whoever_syncs_the_file_next_until_it_is_removed(tmp_path: Path) -> None:
    """A look at a copy and the host that has it open each have a SegmentedFile, and the same file handle."""
    files, path = DiskFiles(), str(tmp_path / "00")
    files.append(path, (b"one",))
    with patch("os.fdatasync", side_effect=OSError(errno.EIO, "Input/output error")), pytest.raises(Unsynced):
        files.sync(path)
    with pytest.raises(Unsynced, match="an earlier fsync failed"):
        files.sync(path)
    files.remove(path)
    files.append(path, (b"two",))
    files.sync(path)
    files.close()


def append_then_fail(file: SegmentedFile, buffers: Buffers, size: int, *, new_segment: bool | None = None) -> None:
    """Append; then the checkpoint's thread syncs, and is told that the bytes can't be written."""
    SegmentedFile.append(file, buffers, size, new_segment=new_segment)
    assert isinstance(file.files, MemoryFiles)
    file.files.fail_next("sync")
    with pytest.raises(Unsynced):
        file.sync()


def test_no_sync_returns_as_if_all_were_well_while_another_thread_has_been_told_an_error() -> None:
    """The kernel tells one of two calls that run at once."""
    disk = MemoryFiles(random.Random(1))
    file, _ = segmented(disk, [10])
    inside = threading.Event()
    told: list[str] = []
    told_meanwhile: list[str] = []

    def checkpoint() -> None:
        assert inside.wait(10)
        try:
            file.sync()
        except Unsynced:
            told.append("checkpoint")

    other = threading.Thread(target=checkpoint)

    def while_the_sync_runs(path: str) -> None:
        disk.on_sync = lambda path: None
        disk.fail_next("sync")
        inside.set()
        other.join(0.1)
        told_meanwhile.extend(told)

    disk.on_sync = while_the_sync_runs
    other.start()
    try:
        file.sync()
    except Unsynced:
        told_meanwhile.clear()
    other.join()
    assert not told_meanwhile


@pytest.mark.parametrize("call", ["sync", "sync_all", "append", "truncate"])
def test_a_file_whose_fsync_failed_once_takes_nothing_more(call: str) -> None:
    disk = MemoryFiles(random.Random(1))
    file, content = segmented(disk, [60, 60])
    disk.fail_next("sync")
    with pytest.raises(Unsynced):
        file.sync()
    calls = {"append": lambda: file.append([b"x"], 1), "truncate": lambda: file.truncate(60)}
    with pytest.raises(Unsynced, match="EIO"):
        calls.get(call, getattr(file, call))()
    assert disk.size("/d/log/00000000000000000000") == 60
    assert file.read(0, len(content)) == content


# ---------------------------------------------------------------- records
def rows_of(content: bytes, offset: list[int], size: list[int]) -> Records:
    """Index rows of records that lie at these offsets of `content`, with their checks."""
    row = np.arange(len(offset))
    rows = units(row, row, np.array(offset, np.int64), np.array(size, np.uint32), 0, 0, DEFAULT)
    for at, (begin, length) in enumerate(zip(offset, size, strict=True)):
        if 0 <= begin <= len(content) - length:
            one = slice(at, at + 1)
            rows["check"][one] = record_checks(content[begin : begin + length], begin, rows["size"][one], row[one])
    return rows


def test_scattered_overlapping_and_repeated_records_are_read_back_in_the_order_asked() -> None:
    rng = random.Random(2)
    for _ in range(times(150)):
        disk = MemoryFiles(rng)
        file, content = segmented(disk, [rng.choice([30, 60, 99, 250]) for _ in range(rng.randint(1, 12))])
        log = CommitLog(file, 1, file.end, file.end, file.end)
        n = rng.choice([0, 1, 2, 5, 40])
        offset = [rng.randrange(len(content)) for _ in range(n)]
        size = [rng.randint(1, min(60, len(content) - at)) for at in offset]
        if n and rng.random() < 0.3:  # one behind the other
            size = [1 + i % 3 for i in range(n)]
            offset = [sum(size[:i]) for i in range(n)]
            if offset[-1] + size[-1] > len(content):
                continue
        expected = b"".join(content[at : at + length] for at, length in zip(offset, size, strict=True))
        rows = rows_of(content, offset, size)
        with (
            patch.object(extents, "GAP_BYTES", rng.choice([0, 5, 4096])),
            patch.object(commit_log, "MAX_UNSORTED_RUNS", rng.choice([0, 3])),
            patch.object(commit_log, "LONG_RUN", rng.choice([1, 32])),
        ):
            assert b"".join(log.read_records(rows)) == expected
        cached = log.read_cached(rows)
        assert cached is None or b"".join(cached) == expected


def test_a_record_that_is_not_there_is_damage() -> None:
    file, content = segmented(MemoryFiles(random.Random(1)), [60, 60])
    log = CommitLog(file, 1, file.end, file.end, file.end)
    for offset, size in ((len(content), 1), (len(content) - 1, 2), (2**60, 5), (-5, 3)):
        with pytest.raises(Damaged):
            log.read_records(rows_of(content, [0, offset], [1, size]))


def test_a_frame_too_long_to_be_read_back_is_refused() -> None:
    log = CommitLog.open(MemoryFiles(random.Random(1)), "/d/log", 1, 1 << 20)
    with pytest.raises(Refused, match="at most"):
        log.propose(FrameKind.CANCEL, 1, 1, 0, 0, (bytes(MAX_FRAME_BYTES),))
    assert (log.end, log.pending) == (0, [])


# ---------------------------------------------------------------- the operating system's disk
@pytest.fixture
def disk(tmp_path: Path) -> DiskFiles:
    return DiskFiles()


def test_the_disk_does_what_the_memory_disk_does(tmp_path: Path, disk: DiskFiles) -> None:
    memory = MemoryFiles(random.Random(1))
    rng = random.Random(1)
    root = str(tmp_path / "s")
    paths = [f"{root}/log/{n:020d}" for n in range(3)] + [f"{root}/checkpoint"]
    for _ in range(300):
        path = rng.choice(paths)
        size = memory.size(path)
        choice = rng.randrange(7)
        for it in (memory, disk):
            if choice == 0:
                it.append(path, [b"ab", b"", memoryview(b"cde")] * (size % 3 + 1))
            elif choice == 1 and size:
                it.sync(path)
            elif choice == 2:
                it.replace(path, bytes(size % 7 + 1))
            elif choice == 3 and size:
                it.truncate(path, size // 2)
            elif choice == 4 and size % 5 == 0:
                it.remove(path)
        assert disk.size(path) == memory.size(path)
        assert disk.list(f"{root}/log") == memory.list(f"{root}/log")
        if memory.size(path):
            assert disk.read(path, size // 3, 1000) == memory.read(path, size // 3, 1000)
            assert disk.read_cached(path, 0, 1) in (None, memory.read(path, 0, 1))
    with pytest.raises(FileNotFoundError):
        disk.read(f"{root}/log/none", 0, 1)
    disk.close()
    assert disk.size(paths[0]) == memory.size(paths[0])


def test_more_buffers_than_a_writev_takes_are_written_in_order(tmp_path: Path, disk: DiskFiles) -> None:
    path = f"{tmp_path}/f"
    parts = [bytes([n % 251]) for n in range(2 * files.IOV_MAX + 5)]
    disk.append(path, parts)
    assert disk.read(path, 0, 10**6) == b"".join(parts)


def test_a_short_write_is_completed_and_a_full_disk_is_an_error(tmp_path: Path, disk: DiskFiles) -> None:
    path = f"{tmp_path}/f"
    with patch.object(os, "writev", lambda fd, parts: os.write(fd, b"".join(parts)[:3])):
        disk.append(path, [b"abcd", b"efgh"])
    assert disk.read(path, 0, 100) == b"abcdefgh"

    def full(fd: int, parts: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with patch.object(os, "writev", full), pytest.raises(OSError, match="No space"):
        disk.append(path, [b"more"])


@contextmanager
def handles_left(count: int) -> Iterator[None]:
    """This process may open so many files more, for real."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(count + 1)]  # the lowest numbers that are free
    for fd in held:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(held), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_no_file_handle_for_a_directory_is_no_failed_fsync(tmp_path: Path, disk: DiskFiles) -> None:
    """A node that is out of file handles has lost nothing: its copies must not be marked as damaged for good."""
    file = SegmentedFile(disk, f"{tmp_path}/log", 100)
    os.mkdir(f"{tmp_path}/log")
    with handles_left(1):
        file.append([b"x"], 1)  # the segment takes the last one
        with pytest.raises(OSError, match="Too many open files") as caught:
            file.sync()
    assert not is_permanent(caught.value)
    file.sync()
    assert SegmentedFile(DiskFiles(), f"{tmp_path}/log", 100).read(0, 1) == b"x"


@pytest.mark.parametrize("handles", [0, 1])
def test_without_a_file_handle_a_replace_changes_nothing(tmp_path: Path, disk: DiskFiles, handles: int) -> None:
    path = f"{tmp_path}/checkpoint"
    disk.replace(path, b"old")
    with handles_left(handles), pytest.raises(OSError, match="Too many open files") as caught:
        disk.replace(path, b"new")
    assert not is_permanent(caught.value)
    assert (disk.read(path, 0, 10), disk.list(str(tmp_path))) == (b"old", ["checkpoint"])


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.ENOMEM])
@pytest.mark.parametrize("call", ["sync", "directory", "truncate", "remove"])
def test_what_an_fsync_itself_raises_outlasts_a_restart(tmp_path: Path, disk: DiskFiles, call: str, error: int) -> None:
    path = f"{tmp_path}/f"
    disk.append(path, [b"xy"])

    def fail(fd: int) -> None:
        raise OSError(error, os.strerror(error))

    calls = {"truncate": lambda: disk.truncate(path, 1), "remove": lambda: disk.remove(path)}
    failing = "fdatasync" if call == "sync" else "fsync"
    with patch.object(os, failing, fail), pytest.raises(Unsynced, match=os.strerror(error)) as caught:
        calls.get(call, lambda: disk.sync(path))()
    assert is_permanent(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_replace_that_fails_leaves_nothing_behind(tmp_path: Path, disk: DiskFiles, call: str) -> None:
    """A checkpoint may have hundreds of MiB, and it fails just when there is no room."""
    path = f"{tmp_path}/checkpoint"
    disk.replace(path, b"old")

    def full(*args: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with patch.object(os, call, full), pytest.raises(OSError, match="No space"):
        disk.replace(path, bytes(1000))
    assert (disk.read(path, 0, 10), disk.list(str(tmp_path))) == (b"old", ["checkpoint"])


def synced_directories(disk: DiskFiles, action: Callable[[], None]) -> list[str]:
    """The directories that `action` syncs."""
    found: list[str] = []
    real = os.fsync

    def watch(fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if os.path.isdir(path):
            found.append(path)
        real(fd)

    with patch.object(os, "fsync", watch):
        action()
    return found


def test_a_name_is_on_disk_after_sync_with_every_directory_above_it(tmp_path: Path, disk: DiskFiles) -> None:
    path = f"{tmp_path}/a/b/c/f"

    def write() -> None:
        disk.append(path, [b"x"])
        disk.sync(path)

    above = [str(tmp_path), f"{tmp_path}/a", f"{tmp_path}/a/b", f"{tmp_path}/a/b/c"]
    assert synced_directories(disk, write) == above
    assert synced_directories(disk, write) == []


def test_a_name_that_an_earlier_process_made_is_synced_too(tmp_path: Path, disk: DiskFiles) -> None:
    path = f"{tmp_path}/f"
    disk.append(path, [b"x"])
    assert synced_directories(DiskFiles(), lambda: None) == []
    later = DiskFiles()
    assert synced_directories(later, lambda: later.sync(path)) == [str(tmp_path)]


def test_a_removed_name_is_gone_from_the_disk(tmp_path: Path, disk: DiskFiles) -> None:
    path = f"{tmp_path}/f"
    disk.append(path, [b"x"])
    assert synced_directories(disk, lambda: disk.remove(path)) == [str(tmp_path)]
    disk.remove(path)


def test_a_second_name_that_was_read_is_not_kept_open_when_it_is_taken_away(tmp_path: Path, disk: DiskFiles) -> None:
    path, other = f"{tmp_path}/f", f"{tmp_path}/g"
    disk.replace(path, b"one")
    disk.link(path, other)
    assert disk.read(other, 0, 9) == b"one"
    disk.replace(path, b"two")
    disk.unlink(other)
    disk.link(path, other)
    assert disk.read(other, 0, 9) == b"two"


@pytest.fixture
def impatient_threads() -> Iterator[None]:
    """Threads take turns five hundred times as often: what goes wrong once in 500 files does in 25."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(usual / 500)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("impatient_threads")
def test_files_are_synced_while_other_shards_directories_go(tmp_path: Path, disk: DiskFiles) -> None:
    """Found with a thousand shards a node: copies that were being fetched fell out of service."""
    done = threading.Event()
    failed: list[BaseException] = []

    def come_and_go() -> None:
        try:
            while not done.is_set():
                disk.remove_tree(f"{tmp_path}/other")
        except BaseException as error:
            failed.append(error)

    other = threading.Thread(target=come_and_go)
    other.start()
    for number in range(times(200)):
        disk.append(f"{tmp_path}/shard/{number}", [b"x"])
        disk.sync(f"{tmp_path}/shard/{number}")
    done.set()
    other.join()
    assert not failed


# ---------------------------------------------------------------- the memory disk is a bad disk
def test_the_memory_disk_loses_tears_and_reorders_what_was_not_synced_and_nothing_else() -> None:
    seen = set()
    for seed in range(300):
        bad = MemoryFiles(random.Random(seed), page=4)
        bad.append("/a/f", [b"synced00"])
        bad.sync("/a/f")
        bad.append("/a/f", [b"11112222"])
        bad.append("/a/g", [b"new"])
        bad.crash()
        data = bytes(bad.files["/a/f"].data)
        assert data.startswith(b"synced00")
        seen.add(data[8:])
        seen.add(b"g " + bytes(bad.files["/a/g"].data) if "/a/g" in bad.files else b"no g")
    assert {b"", b"11112222", b"1111", b"\0\0\0\x002222", b"no g", b"g new", b"g "} <= seen
    bad = MemoryFiles(random.Random(1))
    bad.crash_after(1)
    bad.append("/a/f", [b"x"])
    with pytest.raises(Crashed):
        bad.append("/a/f", [b"x"])
