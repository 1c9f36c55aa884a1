"""The room that enqueues may take of a disk."""

from __future__ import annotations

import os
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from delayapi.units import HOUR_MS
from delaynode.node import disk
from delaynode.node.disk import CLEANING_BYTES, DiskSpace, needed_bytes
from delaynode.node.node import Node
from delaynode.store.config import ShardConfig
from delaynode.store.errors import Refused
from delaynode.store.log.incoming_batch import ID, IncomingBatch
from delaynode.store.maintenance import persist
from delaynode.store.shard import Shard
from delaynode.store.types import Ids

from tests.store.support.memory_files import MemoryFiles

FREE, RESERVE = 1_000, 400
MIB = 1 << 20
COPY = "/data/t-0"
NOW = 1_700_000_000_000


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock; the disk has FREE bytes, whatever is let in: nothing of it is written yet."""
    clock = [100.0]
    monkeypatch.setattr(disk, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(os, "statvfs", lambda directory: SimpleNamespace(f_bavail=FREE, f_frsize=1))
    return clock


def test_what_is_let_in_counts_as_used_until_the_disk_is_asked_again(now: list[float]) -> None:
    space = DiskSpace("/data", lambda: RESERVE)
    space.check(500)
    with pytest.raises(Refused, match="are kept for what is stored already"):
        space.check(101)
    now[0] += disk.CHECK_SECONDS
    space.check(600)


def test_what_is_not_written_when_the_disk_is_asked_counts_as_used_all_the_same(now: list[float]) -> None:
    space = DiskSpace("/data", lambda: RESERVE, lambda: 500)
    space.check(100)
    now[0] += disk.CHECK_SECONDS
    with pytest.raises(Refused):
        space.check(101)
    space.check(100)
    assert not space.full()


def test_a_whole_copy_must_leave_the_reserve_free(now: list[float]) -> None:
    """The room of the copy that it replaces counts: that one goes first."""
    space = DiskSpace("/data", lambda: RESERVE)
    with pytest.raises(Refused, match="the disk has no room for a copy of 1 MiB: 0 MiB are free"):
        space.check_copy(601, 0)
    with pytest.raises(Refused):
        space.check_copy(901, 300)
    space.check_copy(900, 300)
    with pytest.raises(Refused):
        space.check_copy(1, 0)  # another shard's, before the disk is asked again


def test_a_copy_that_does_not_fit_is_refused_in_figures_that_people_use(monkeypatch: pytest.MonkeyPatch) -> None:
    disk_of_3_gib = SimpleNamespace(f_bavail=3 << 18, f_frsize=4 << 10)
    monkeypatch.setattr(os, "statvfs", lambda directory: disk_of_3_gib)
    with pytest.raises(Refused) as refused:
        DiskSpace("/data", lambda: 834 << 20).check_copy(10 << 30, 1 << 30)
    assert str(refused.value) == (
        "the disk has no room for a copy of 10,240 MiB: 3,072 MiB are free, the copy that it "
        "replaces has 1,024 MiB, and 834 MiB are kept for what is stored already"
    )


def test_what_is_still_to_come_of_whole_copies_counts_as_used() -> None:
    copies = [SimpleNamespace(total_bytes=900, done_bytes=200), None, SimpleNamespace(total_bytes=50, done_bytes=0)]
    replicas = [SimpleNamespace(local=SimpleNamespace(storage=SimpleNamespace(fetching=one))) for one in copies]
    node: Any = SimpleNamespace(copies=list, _replicas=replicas)
    assert Node._unwritten_bytes(node) == 750


def test_a_full_disk_for_which_more_waits_has_nothing_free(now: list[float]) -> None:
    space = DiskSpace("/data", lambda: RESERVE, lambda: FREE + 96)
    assert space.poll() == (0, RESERVE)
    assert space.full()
    with pytest.raises(Refused, match="the node's disk has 0 MiB free"):
        space.check(1)


# ---------------------------------------------------------------- what the shards may still write
def checkpoint(files: MemoryFiles, shard: Shard) -> int:
    """Returns the file's size in bytes."""
    job = persist.begin_checkpoint(files, COPY, shard)
    job.run()
    persist.finish_checkpoint(job)
    return files.size(f"{COPY}/checkpoint")


def ids(count: int) -> Ids:
    return np.frombuffer(random.Random(count).randbytes(16 * count), ID)


def write(shard: Shard) -> None:
    batch = shard.next_batch(sync=True)
    assert batch is not None
    batch.run()
    shard.finish_writes(batch)
    shard.commit(shard.log.synced)


def test_a_checkpoint_with_all_ids_of_a_day_fits_into_what_is_kept_free() -> None:
    files, config = MemoryFiles(random.Random(1)), ShardConfig(format=7)
    shard = persist.create(files, COPY, 0x1234, "t", 0, config, NOW, 1)
    assert needed_bytes([shard], 0) < CLEANING_BYTES + 33 * MIB
    count = 1_500_000
    shard.message_ids.add(ids(count), np.arange(count), np.arange(count), shard.producers.time_ms)
    size = checkpoint(files, shard)
    assert size > 45 * MIB
    opened, _ = persist.recover(files, COPY, config)
    for one in (shard, opened):
        assert needed_bytes([one], 0) - CLEANING_BYTES >= size + 32 * MIB
    assert needed_bytes([shard, opened], 0) == needed_bytes([shard], 0), "one is written at a time"


def test_the_ids_that_the_next_checkpoint_has_more_are_kept_free_for() -> None:
    files, count = MemoryFiles(random.Random(1)), 60_000
    shard = persist.create(files, COPY, 0x1234, "t", 0, ShardConfig(format=7), NOW, 1)
    shard.begin_term(1, "n1", NOW)
    write(shard)
    size, needed = checkpoint(files, shard), needed_bytes([shard], 0)
    zeros = np.zeros(count, np.uint32)
    due = np.full(count, NOW + HOUR_MS)
    shard.enqueue(IncomingBatch(due, np.zeros(0, np.uint8), zeros + 1, zeros, zeros, bytes(count), ids=ids(count)), NOW)
    write(shard)
    kept = needed_bytes([shard], 0) - needed
    units_and_releases = count * (52 + 64)
    assert checkpoint(files, shard) - size > count * 32
    assert kept - units_and_releases == count * 32
