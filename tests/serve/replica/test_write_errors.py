"""A disk that fails: every file that a served shard writes, every call that can fail, on a node with another shard.

Failing system calls are put under DiskFiles, by the path of the file that they are for.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from delaynode.clock import wall_ms
from delaynode.replica.hosts.sync_threads import Syncer
from delaynode.replication.transport.until import wait_until
from delaynode.store.errors import Damaged, Refused
from delaynode.store.log import files as store_files
from delaynode.store.log.files import DiskFiles
from delaynode.store.maintenance import persist
from delaynode.store.shard import Shard
from delaynode.store.types import MAX_SEQ, Pair

from tests.serve.support.hosts import CONFIG, Key, Node, node


class FailingOs:
    """The module os, but for one call that fails once: the next one, asked again, would do it."""

    def __init__(self) -> None:
        self._armed: tuple[str, str, int, bool] | None = None
        self._short = False
        self.failed = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fail(self, call: str, path: str, error: int, *, short: bool = False) -> None:
        """The next `call` ("write" or "sync") on a file whose path contains `path` fails.

        short: a part of the bytes is written first, as the kernel does it: the call after it gets the error.
        """
        self._armed = (call, path, error, short)

    def _hit(self, call: str, fd: int) -> tuple[int, bool] | None:
        armed = self._armed
        if armed is None or armed[0] != call or armed[1] not in os.readlink(f"/proc/self/fd/{fd}"):
            return None
        return armed[2], armed[3]

    def _raise(self, error: int) -> None:
        self._armed = None
        self.failed += 1
        raise OSError(error, os.strerror(error))

    def _write(self, fd: int, data: bytes) -> int:
        hit = self._hit("write", fd)
        if hit is None:
            return os.write(fd, data)
        error, short = hit
        if short and not self._short:
            self._short = True
            return os.write(fd, data[: max(1, len(data) // 2)])
        self._raise(error)
        return 0

    def writev(self, fd: int, parts: Sequence[bytes]) -> int:
        return self._write(fd, b"".join(parts)) if self._hit("write", fd) else os.writev(fd, parts)

    def write(self, fd: int, data: bytes) -> int:
        return self._write(fd, bytes(data))

    def fdatasync(self, fd: int) -> None:
        self._sync(fd)
        os.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        self._sync(fd)
        os.fsync(fd)

    def _sync(self, fd: int) -> None:
        hit = self._hit("sync", fd)
        if hit is not None:
            self._raise(hit[0])


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> FailingOs:
    made = FailingOs()
    monkeypatch.setattr(store_files, "os", made)
    return made


def everything(shard: Shard) -> set[Key]:
    """(due, seq) of all that is released or pending."""
    rows = shard.queue.read(0, shard.queue.visible)
    job = shard.index.begin_scan(Pair(0, 0), Pair(1 << 60, MAX_SEQ), None, None)
    job.run()
    pending, live = job.result()
    shard.index.close_view(job.view)
    pending = pending[live]
    pending = pending[[Pair(int(r["due"]), int(r["seq"])) > shard.index.watermark for r in pending]]
    found = [*zip(rows["due"].tolist(), rows["seq"].tolist(), strict=True)]
    found += zip(pending["due"].tolist(), pending["seq"].tolist(), strict=True)
    assert len(found) == len(set(found))
    return set(found)


def came_back(directory: str, *, marked: bool) -> Shard:
    """The shard as the next process finds it. marked: the copy counts as damaged until a person clears the mark."""
    files = DiskFiles()
    if marked:
        with pytest.raises(Damaged, match="has failed before"):
            persist.recover(files, directory, CONFIG)
        persist.clear_damaged(files, directory)
    return persist.recover(files, directory, CONFIG)[0]


CALLS = [
    *(("write", path, error, short) for path in ("/log/", "/timerlog/", "/queue/", "/checkpoint.tmp", "/wheels.tmp")
      for error in (errno.EIO, errno.ENOSPC) for short in (False, True)),
    *(("sync", path, error, False) for path in ("/log/", "/timerlog/", "/queue/", "/checkpoint.tmp", "/wheels.tmp")
      for error in (errno.EIO, errno.ENOSPC)),
]  # fmt: skip


def named(call: tuple[str, str, int, bool]) -> str:
    what, path, error, short = call
    return f"{'short ' if short else ''}{what} {path.strip('/')} {errno.errorcode[error]}"


@pytest.mark.parametrize("call", CALLS, ids=named)
def test_a_failing_call_stops_its_shard_and_nothing_else(
    call: tuple[str, str, int, bool], tmp_path: Path, failing: FailingOs
) -> None:
    what, path, error, short = call

    async def story() -> Node:
        async with node(tmp_path) as made:
            for name in ("a", "b"):
                await made.mixed(name)
            failing.fail(what, "/a" + path, error, short=short)
            failed = made.hosts["a"]
            deadline = time.monotonic() + 20
            while failed.failure is None:
                assert time.monotonic() < deadline, "the failure was not noticed"
                with suppress(Refused):
                    await made.mixed("a")
                await asyncio.sleep(0.01)
            assert os.strerror(error) in failed.failure
            for asked in (
                made.mixed("a"),
                failed.fetch(0, 10, 1 << 20, 0),
                failed.wait_committed(failed.shard.log_end + 1),
            ):
                with pytest.raises(Refused, match="shard t-0 has stopped") as caught:
                    await asked
                assert caught.value.reason == "SHARD_DAMAGED"
            await made.mixed("b")
            await made.until_released("b", 8)  # of each of both four
            assert made.hosts["b"].serving
            return made

    made = asyncio.run(story())
    assert failing.failed == 1, "nothing is tried again after an error"
    assert [event["shard"] for event in made.events if event["event"] == "shard-damaged"] == ["t-0"]
    no_room = error == errno.ENOSPC and (what == "write" or path.endswith(".tmp"))
    kept = everything(came_back(made.path("a"), marked=not no_room))
    assert made.acknowledged["a"] <= kept <= made.offered["a"]
    assert everything(came_back(made.path("b"), marked=False)) == made.acknowledged["b"] == made.offered["b"]


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_an_epoch_that_can_not_be_persisted_is_not_begun(tmp_path: Path, failing: FailingOs, error: int) -> None:
    files = DiskFiles()
    shard = persist.create(files, str(tmp_path / "a"), 1, "t", 0, CONFIG, wall_ms())
    for what in ("write", "sync"):
        failing.fail(what, "/shard.json.tmp", error)
        with pytest.raises(OSError, match=os.strerror(error)):
            persist.accept_epoch(files, str(tmp_path / "a"), shard, 5)
        assert persist.recover(DiskFiles(), str(tmp_path / "a"), CONFIG)[0].identity.epoch == 0


def test_a_disk_that_hangs_holds_every_answer_back_and_says_so_and_then_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack A3, of a sole copy: nobody else can go on without it."""
    going = threading.Event()
    going.set()

    class HangingOs(FailingOs):
        def _sync(self, fd: int) -> None:
            if "/a/log/" in os.readlink(f"/proc/self/fd/{fd}"):
                going.wait(20)

    monkeypatch.setattr(store_files, "os", HangingOs())

    async def story() -> None:
        async with node(tmp_path) as made:
            await made.mixed("a")
            syncer = made.hosts["a"].resources.syncer
            assert isinstance(syncer, Syncer)
            going.clear()
            try:
                hanging = asyncio.create_task(made.mixed("a"))
                await asyncio.wait_for(wait_until(lambda: syncer.oldest_seconds() >= 0.4, 0.02), 20)
                assert len(made.released("a")) < 8  # of two times four that are due by now
                await made.mixed("b")
                await made.until_released("b", 4)
                assert not hanging.done()
            finally:
                going.set()
            await hanging
            await made.until_released("a", 8)
            await asyncio.wait_for(wait_until(lambda: syncer.oldest_seconds() < 0.4, 0.02), 20)
            assert made.hosts["a"].serving

    asyncio.run(story())
