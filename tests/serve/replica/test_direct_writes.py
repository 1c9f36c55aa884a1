"""Small batches that compiled code writes and syncs: what goes that way, and what its errors do."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pytest
from delaynode.replica.hosts.sync_threads import SMALL_BYTES, DirectWrites, Syncer
from delaynode.replication.transport.until import wait_until
from delaynode.store.errors import Unsynced
from delaynode.store.log.commit_log import CommitLog, WriteBatch
from delaynode.store.log.files import DiskFiles
from delaynode.store.log.frames import FrameKind

SECONDS = 10.0
SEGMENT_BYTES = 256 << 10


class PythonWrites:
    """delayedge.Writes by one Python thread, whose calls can be made to fail and to wait."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.write_errno = self.sync_errno = 0
        self.submitted: list[int] = []  # bytes of each write
        self._signal = os.eventfd(0, os.EFD_NONBLOCK)
        self._done: list[tuple[int, int, int, float]] = []
        self._threads: list[threading.Thread] = []

    def fileno(self) -> int:
        return self._signal

    def submit(self, token: int, descriptor: int, data: bytes) -> None:
        self.submitted.append(len(data))
        self._threads.append(threading.Thread(target=self._write, args=(token, descriptor, data)))
        self._threads[-1].start()

    def _write(self, token: int, descriptor: int, data: bytes) -> None:
        assert self.gate.wait(SECONDS)
        if not self.write_errno:
            assert os.write(descriptor, data) == len(data)
            os.fdatasync(descriptor)
        self._done.append((token, self.write_errno, self.sync_errno, 0.001))
        os.eventfd_write(self._signal, 1)

    def take(self) -> Sequence[tuple[int, int, int, float]]:
        os.eventfd_read(self._signal)
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        for thread in self._threads:
            thread.join()
        os.close(self._signal)


@dataclass(eq=False)
class Shard:
    """A log that is written by the syncer."""

    log: CommitLog
    syncer: Syncer
    written: int = 0  # batches
    errors: list[Exception] = field(default_factory=list)

    def propose(self, size: int = 100) -> None:
        self.log.propose(FrameKind.EPOCH, self.written + 1, 1, 0, 0, (bytes(size),))
        self.syncer.mark(self)

    def next_batch(self) -> WriteBatch | None:
        return self.log.next_batch(sync=True)

    def on_written(self, batch: WriteBatch) -> None:
        self.log.finish(batch)
        self.written += 1
        if self.log.pending:
            self.syncer.mark(self)

    def on_write_failed(self, error: Exception) -> None:
        self.errors.append(error)

    async def store(self, size: int = 100) -> None:
        """Propose a frame, and wait until it is stored or has failed."""
        before = self.written + len(self.errors)
        self.propose(size)
        await until(lambda: self.written + len(self.errors) > before)


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.wait_for(wait_until(condition, 0.001), SECONDS)


def run(directory: Path, writes: DirectWrites, test: Callable[[Shard, DiskFiles], Awaitable[None]]) -> None:
    async def main() -> None:
        syncer, files = Syncer(direct=writes), DiskFiles()
        try:
            await test(Shard(CommitLog.open(files, str(directory / "log"), 1, SEGMENT_BYTES), syncer), files)
        finally:
            await syncer.close()
            files.close()

    asyncio.run(main())


def propose_and_fail(shard: Shard) -> None:
    """In one turn. Raises KeyError."""
    with shard.syncer.turn():
        shard.propose()
        raise KeyError


def compiled() -> DirectWrites:
    delayedge = pytest.importorskip("delayedge")
    writes: DirectWrites = delayedge.Writes(2)
    return writes


MAKERS = [PythonWrites, *([compiled] if find_spec("delayedge") is not None else [])]


@pytest.mark.parametrize("make", MAKERS)
def test_what_is_written_is_read_back(make: Callable[[], DirectWrites], tmp_path: Path) -> None:
    sizes = [100, 1, 30_000, SMALL_BYTES + 1, 50_000, 70_000, 60_000, 60_000, 60_000, 3]

    async def test(shard: Shard, files: DiskFiles) -> None:
        for size in sizes:
            await shard.store(size)
        assert not shard.errors
        assert shard.log.written == shard.log.synced == shard.log.end
        again = CommitLog.open(files, shard.log.file.directory, 1, SEGMENT_BYTES)
        assert [len(frame.payload) for frame in again.scan(0)] == sizes
        assert len(shard.log.file.bases) > 1

    run(tmp_path, make(), test)


def test_a_new_segment_and_a_large_batch_go_to_a_thread(tmp_path: Path) -> None:
    writes = PythonWrites()

    async def test(shard: Shard, _: DiskFiles) -> None:
        await shard.store()  # makes the file
        await shard.store(SMALL_BYTES)
        assert writes.submitted == []
        await shard.store()
        assert len(writes.submitted) == 1
        shard.log.begin_segment()
        await shard.store()
        assert len(writes.submitted) == 1
        await shard.store()
        assert len(writes.submitted) == 2

    run(tmp_path, writes, test)


def test_a_write_that_waits_for_the_disk_holds_up_its_own_shard_alone(tmp_path: Path) -> None:
    writes = PythonWrites()

    async def test(shard: Shard, files: DiskFiles) -> None:
        other = Shard(CommitLog.open(files, str(tmp_path / "other"), 2, SEGMENT_BYTES), shard.syncer)
        await shard.store()
        await other.store()
        writes.gate.clear()
        shard.propose()
        await until(lambda: shard.syncer.busy(shard))
        shard.propose()  # goes with the next one
        shard.propose()
        await asyncio.sleep(0.02)
        assert len(writes.submitted) == 1
        assert shard.syncer.busy_seconds(shard) >= 0.02
        assert shard.syncer.oldest_seconds() >= 0.02
        await other.store(SMALL_BYTES)  # a thread's: it does not wait
        writes.gate.set()
        await until(lambda: shard.written == 3)
        assert len(writes.submitted) == 2
        assert shard.syncer.oldest_seconds() == 0.0

    run(tmp_path, writes, test)


def test_what_is_marked_in_a_turn_is_taken_at_its_end(tmp_path: Path) -> None:
    writes = PythonWrites()

    async def test(shard: Shard, _: DiskFiles) -> None:
        await shard.store()
        writes.gate.clear()
        with shard.syncer.turn():
            shard.propose()
            shard.propose()
            assert writes.submitted == []
        assert len(writes.submitted) == 1
        with shard.syncer.turn():
            shard.propose()  # while those are written
        writes.gate.set()
        await until(lambda: shard.written == 3)
        assert len(writes.submitted) == 2
        with shard.syncer.turn(), shard.syncer.turn():  # what is known to be taken need not be taken earlier
            shard.propose()
        await until(lambda: shard.written == 4)
        with shard.syncer.turn(many=False):  # it is written by itself: no other shard's could go along
            shard.propose()
            taken = len(writes.submitted)
        assert len(writes.submitted) == taken + 1
        await until(lambda: shard.written == 5)
        with pytest.raises(KeyError):
            propose_and_fail(shard)
        await until(lambda: shard.written == 6)

    run(tmp_path, writes, test)


def test_a_writer_is_told_whether_its_batch_is_taken_now(tmp_path: Path) -> None:
    writes = PythonWrites()

    async def test(shard: Shard, _: DiskFiles) -> None:
        await shard.store()
        assert shard.syncer.mark(shard)
        shard.propose()
        writes.gate.clear()
        await until(lambda: shard.syncer.busy(shard))
        assert not shard.syncer.mark(shard)
        writes.gate.set()
        await until(lambda: shard.written == 2)

    run(tmp_path, writes, test)


def test_no_other_sync_of_the_file_has_its_turn_meanwhile(tmp_path: Path) -> None:
    """Linux tells one of them of an error: the other would take the bytes for stored."""
    writes = PythonWrites()

    async def test(shard: Shard, _: DiskFiles) -> None:
        await shard.store()
        writes.gate.clear()
        shard.propose()
        await until(lambda: bool(writes.submitted))
        syncing = threading.Thread(target=shard.log.file.sync)
        syncing.start()
        await asyncio.sleep(0.02)
        assert syncing.is_alive()
        writes.gate.set()
        await until(lambda: not syncing.is_alive())
        assert shard.written == 2

    run(tmp_path, writes, test)


@pytest.mark.parametrize("sync", [False, True], ids=["write", "sync"])
def test_an_error_is_the_shards(sync: bool, tmp_path: Path) -> None:
    writes = PythonWrites()

    async def test(shard: Shard, files: DiskFiles) -> None:
        await shard.store()
        stored = shard.log.synced
        writes.write_errno, writes.sync_errno = (0, errno.EIO) if sync else (errno.ENOSPC, 0)
        await shard.store()
        (error,) = shard.errors
        assert isinstance(error, OSError)
        assert error.errno == (errno.EIO if sync else errno.ENOSPC)
        assert isinstance(error, Unsynced) == sync
        assert str(error.filename).startswith(shard.log.file.directory)
        assert shard.log.synced == stored
        writes.write_errno = writes.sync_errno = 0
        if sync:  # the kernel tells of it once: whoever asks next must hear of it, in a process that opens it anew too
            for file in (shard.log.file, CommitLog.open(files, shard.log.file.directory, 1, SEGMENT_BYTES).file):
                with pytest.raises(Unsynced, match="an earlier fsync failed"):
                    file.sync_all()
            await shard.store()
            assert len(shard.errors) == 2
            assert shard.log.synced == stored

    run(tmp_path, writes, test)


def test_frames_that_cant_be_sealed_leave_the_file_to_others(tmp_path: Path) -> None:
    async def test(shard: Shard, _: DiskFiles) -> None:
        await shard.store()
        shard.log.propose(FrameKind.EPOCH, 2, 1, -1, 1 << 70, (b"a",))  # no such wall time fits a header
        shard.syncer.mark(shard)
        await until(lambda: bool(shard.errors))
        shard.log.file.sync()

    run(tmp_path, PythonWrites(), test)
