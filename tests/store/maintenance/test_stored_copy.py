"""A copy that nobody has opened is described as it would be opened, and not a byte of it changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from delaynode.store.errors import Damaged
from delaynode.store.maintenance import persist, stored_copy
from delaynode.store.maintenance.marker import mark_damaged
from delaynode.store.maintenance.stored_copy import directories, read_cluster, read_stored_copy, write_cluster

from tests.store.support.lives import lived
from tests.store.support.memory_files import MemoryFiles
from tests.store.support.world import ROOT, SMALL, UID

DIRECTORY = f"data/shards/orders-7-{UID:016x}"


def placed(disk: MemoryFiles) -> MemoryFiles:
    """The copy, where a node would have it."""
    moved = disk.copy()
    for path in list(moved.files):
        if path.startswith(f"{ROOT}/"):
            moved.files[DIRECTORY + path.removeprefix(ROOT)] = moved.files.pop(path)
    return moved


def contents(disk: MemoryFiles) -> dict[str, bytes]:
    return {path: bytes(file.data) for path, file in disk.files.items()}


@pytest.mark.parametrize("seed", range(6))
def test_it_says_what_a_recovery_finds(seed: int) -> None:
    world = lived(seed)
    disk = placed(world.disk)
    before = contents(disk)
    found = read_stored_copy(disk, DIRECTORY)
    assert contents(disk) == before
    shard, _ = persist.recover(placed(world.disk), DIRECTORY, SMALL)
    assert (found.uid, found.topic, found.queue, found.damage) == (UID, "orders", 7, None)
    assert (found.copy_id, found.epoch) == (shard.identity.copy_id, shard.identity.epoch)
    assert (found.log_epoch, found.log_end) == (shard.log.last_epoch, shard.log.end)
    assert (found.kept_epoch, found.kept_in_sync) == shard.known_status
    assert found.pending >= shard.index.pending
    assert found.disk_bytes >= shard.log.end - shard.log.file.start


@pytest.mark.parametrize("seed", range(6))
def test_what_it_tells_of_outlives_a_power_cut(seed: int) -> None:
    """Seed 89207: a copy was adopted into the in-sync set for frames that its ended process had written, not synced."""
    disk = placed(lived(seed).disk)
    for path in disk.files.below(f"{DIRECTORY}/log"):
        disk.files[f"{DIRECTORY}/log/{path}"].synced = 0
    found = read_stored_copy(disk, DIRECTORY)
    disk.crash()
    assert read_stored_copy(disk, DIRECTORY).log_end == found.log_end


def test_a_lost_write_that_it_is_told_of_marks_the_copy() -> None:
    """The kernel tells of it once: the process that opens the copy next would see its own sync succeed."""
    disk = placed(lived(1).disk)
    disk.fail_next("sync", path="/log/")
    assert read_stored_copy(disk, DIRECTORY).damage
    with pytest.raises(Damaged, match="has failed before: recovery"):
        persist.recover(disk, DIRECTORY, SMALL)


def test_a_copy_that_is_of_no_use_says_why_and_keeps_its_name() -> None:
    disk = placed(lived(1).disk)
    mark_damaged(disk, DIRECTORY, "a bit has rotted", 5, 0)
    found = read_stored_copy(disk, DIRECTORY)
    assert found.copy_id
    assert "a bit has rotted" in (found.damage or "")
    other = DIRECTORY.replace(f"{UID:016x}", f"{UID + 1:016x}")
    moved = MemoryFiles(disk.rng, 512)
    moved.files.update({other + path.removeprefix(DIRECTORY): file for path, file in disk.files.items()})
    assert f"of shard {UID:016x}" in (read_stored_copy(moved, other).damage or "")
    disk.remove(f"{DIRECTORY}/shard.json")
    assert "shard.json" in (read_stored_copy(disk, DIRECTORY).damage or "")


def test_only_directories_of_shards_that_hold_a_copy_are_found() -> None:
    disk = placed(lived(1).disk)
    disk.replace("data/shards/.trash/orders-7-00000000000000ab.1/shard.json", b"x")
    disk.replace("data/shards/orders-8-00000000000000ac/checkpoint", b"half made")
    disk.replace("data/shards/notes/shard.json", b"x")
    assert list(directories(disk, "data/shards")) == [(UID, DIRECTORY)]
    assert list(directories(disk, "elsewhere")) == []


def test_whose_copy_it_is_outlives_the_process() -> None:
    disk = placed(lived(1).disk)
    assert read_cluster(disk, DIRECTORY) == ""
    write_cluster(disk, DIRECTORY, "hello")
    assert read_stored_copy(disk, DIRECTORY).cluster == "hello"
    before = disk.files[f"{DIRECTORY}/cluster"]
    write_cluster(disk, DIRECTORY, "hello")
    assert disk.files[f"{DIRECTORY}/cluster"] is before, "nothing is written that stands there already"
    assert replace(stored_copy.unreadable(DIRECTORY, "x"), damage=None).uid == UID
