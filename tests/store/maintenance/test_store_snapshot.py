"""A whole copy is sent while it goes on; what comes of it elsewhere is a whole copy, or none."""

from __future__ import annotations

import json
import posixpath
import random
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest
from delaynode.store.errors import Damaged
from delaynode.store.log.files import DiskFiles, Files
from delaynode.store.maintenance import persist, snapshot
from delaynode.store.maintenance.snapshot import CheckpointSnapshot, IncomingCopy
from delaynode.store.maintenance.stored_copy import read_cluster
from delaynode.store.shard import Shard

from tests.store.support.consuming import World
from tests.store.support.lives import a_life, checkpoint_of, files_in, lived
from tests.store.support.memory_files import Crashed, MemoryFiles
from tests.store.support.producing import Item
from tests.store.support.replicating import check_well, state_of
from tests.store.support.walks import tidy_world, times
from tests.store.support.world import ROOT, SMALL, UID

SHARDS = posixpath.dirname(ROOT)


def disk_of(seed: int = 1) -> MemoryFiles:
    return MemoryFiles(random.Random(seed), 64)


def fetch(held: CheckpointSnapshot, files: Files, directory: str = ROOT, epoch: int = 100) -> None:
    incoming = IncomingCopy(files, directory, held.manifest)
    for file, offset, length in incoming.missing_chunks():
        incoming.write(file, offset, held.read(file, offset, length))
    incoming.finish(UID, "t", 0, epoch, "hello")


def opened(files: Files, directory: str = ROOT) -> Shard:
    return persist.recover(files, directory, SMALL, replay=False)[0]


def below(disk: MemoryFiles, name: str) -> list[str]:
    return [path for path in disk.files if path.startswith(f"{SHARDS}/{name}")]


def as_of_its_checkpoint(world: World) -> dict[str, object]:
    """The state of a shard whose log ends at its checkpoint."""
    disk = world.disk.copy()
    shard = opened(disk)
    shard.log.cut(shard.applied)
    return state_of(shard)


# ---------------------------------------------------------------- the sender
@pytest.mark.parametrize("chunk", range(4))
def test_what_was_taken_stays_while_the_copy_goes_on(chunk: int) -> None:
    """Messages, ticks, TRIMs, checkpoints, a cleaned TimerLog: files go and grow, the snapshot is what it was."""
    for seed in range(chunk, times(24), 4):
        rng = random.Random(seed)
        world = tidy_world(seed)
        a_life(world, rng, wheels=False)
        world.checkpoint()
        expected = as_of_its_checkpoint(world)
        held = snapshot.hold_checkpoint(world.disk, ROOT, "one")
        assert held.log_offset == checkpoint_of(world.disk).log_offset
        here = disk_of(seed)
        incoming = IncomingCopy(here, ROOT, held.manifest)
        with patch.object(snapshot, "CHUNK_BYTES", 1 << rng.randint(5, 12)):
            wanted = list(incoming.missing_chunks())
        for at, (file, offset, length) in enumerate(wanted):
            incoming.write(file, offset, held.read(file, offset, length))
            if at % max(1, len(wanted) // 4) == 0:
                world.enqueue([Item(rng.randint(1, 3000), size=30)] * 5)
                world.advance(2000)
                world.settle()
                world.trim()
                world.empty_all()
                world.clean()
        assert set(world.shard.log.file.bases) != {base for base, _ in incoming_log(held)}
        identity = incoming.finish(UID, "t", 0, 100)
        assert (incoming.done_bytes, list(incoming.missing_chunks())) == (incoming.total_bytes, [])
        assert identity.copy_id != world.shard.identity.copy_id
        held.release()
        assert not below(world.disk, snapshot.SNAPSHOTS)
        shard = opened(here)
        assert shard.log.end == shard.applied == held.log_offset
        assert state_of(shard) == expected
        check_well(here)


def incoming_log(held: CheckpointSnapshot) -> list[tuple[int, int]]:
    return [(int(path[4:]), length) for path, length in held.parts if path.startswith("log/")]


def test_a_snapshot_has_its_checkpoints_files_and_no_more() -> None:
    world = lived(5)
    held = snapshot.hold_checkpoint(world.disk, ROOT, "one")
    state = checkpoint_of(world.disk)
    content = json.loads(held.manifest)
    assert (content["uid"], content["log_offset"], content["files"]) == (
        UID, state.log_offset, [list(part) for part in held.parts],
    )  # fmt: skip
    assert world.shard.log.end > state.log_offset
    assert sum(length for _, length in incoming_log(held)) == state.log_offset
    names = {posixpath.dirname(path) or path for path, _ in held.parts}
    assert names == {"checkpoint", "log", "timerlog", "queue"}


def test_two_snapshots_of_one_name_keep_out_of_each_others_way() -> None:
    world = lived(5)
    one, two = snapshot.hold_checkpoint(world.disk, ROOT, "n"), snapshot.hold_checkpoint(world.disk, ROOT, "n")
    one.release()
    here = disk_of()
    fetch(two, here)
    check_well(here)


def test_an_empty_copy_can_be_sent() -> None:
    there, here = disk_of(1), disk_of(2)
    persist.create(there, ROOT, UID, "t", 0, SMALL, 1000)
    fetch(snapshot.hold_checkpoint(there, ROOT, "n"), here)
    assert opened(here).log.end == 0


def test_a_checkpoint_that_comes_between_is_taken_instead() -> None:
    """A file that the checkpoint needs goes while the others are linked: its successor is there by then."""
    world = lived(5)
    link, later = MemoryFiles.link, []

    def slow(self: MemoryFiles, path: str, other: str) -> None:
        if "/log/" in path and not later:
            later.append(path)
            content = bytes(self.files.pop(path).data)
            try:
                link(self, path, other)
            finally:
                self.append(path, [content])
                self.sync(path)
        link(self, path, other)

    with patch.object(MemoryFiles, "link", slow):
        held = snapshot.hold_checkpoint(world.disk, ROOT, "n")
    assert later
    here = disk_of()
    fetch(held, here)
    check_well(here)


@pytest.mark.parametrize("part", ["log", "timerlog", "queue"])
def test_a_copy_that_lacks_a_file_is_not_sent(part: str) -> None:
    world = lived(5)
    path = next(path for path in world.disk.files if path.startswith(f"{ROOT}/{part}/"))
    del world.disk.files[path]
    with pytest.raises(Damaged):
        snapshot.hold_checkpoint(world.disk, ROOT, "n")
    assert not below(world.disk, snapshot.SNAPSHOTS)


def test_a_copy_with_a_file_cut_short_is_not_sent() -> None:
    world = lived(5)
    path = next(path for path in world.disk.files if path.startswith(f"{ROOT}/log/"))
    del world.disk.files[path].data[-1:]
    with pytest.raises(Damaged):
        snapshot.hold_checkpoint(world.disk, ROOT, "n")
    assert not below(world.disk, snapshot.SNAPSHOTS)


@pytest.mark.parametrize(("file", "offset", "length"), [(-1, 0, 1), (99, 0, 1), (0, -1, 5), (0, 0, 0), (0, 0, 1 << 40)])
def test_only_what_the_manifest_names_is_read(file: int, offset: int, length: int) -> None:
    held = snapshot.hold_checkpoint(lived(5).disk, ROOT, "n")
    with pytest.raises(ValueError, match=r"file|bytes"):
        held.read(file, offset, length)


# ---------------------------------------------------------------- the receiver
def test_pieces_may_come_a_little_out_of_order() -> None:
    held = snapshot.hold_checkpoint(lived(5).disk, ROOT, "n")
    for seed in range(5):
        here, rng = disk_of(seed), random.Random(seed)
        with patch.object(snapshot, "CHUNK_BYTES", 100):
            incoming = IncomingCopy(here, ROOT, held.manifest)
            wanted = list(incoming.missing_chunks())
        while wanted:
            file, offset, length = wanted.pop(rng.randrange(min(8, len(wanted))))
            incoming.write(file, offset, held.read(file, offset, length))
        incoming.finish(UID, "t", 0, 100)
        check_well(here)


def test_a_transfer_goes_on_where_it_was() -> None:
    held = snapshot.hold_checkpoint(lived(5).disk, ROOT, "n")
    here = disk_of()
    with patch.object(snapshot, "CHUNK_BYTES", 100):
        incoming = IncomingCopy(here, ROOT, held.manifest)
        for at, (file, offset, length) in enumerate(list(incoming.missing_chunks())):
            if at == 20:
                break
            incoming.write(file, offset, held.read(file, offset, length))
        done = incoming.done_bytes
        assert done == sum(length for _, _, length in list(incoming.missing_chunks())) * -1 + incoming.total_bytes > 0
        for file, offset, length in list(incoming.missing_chunks()):
            incoming.write(file, offset, held.read(file, offset, length))
    incoming.finish(UID, "t", 0, 100)
    check_well(here)


def test_pieces_that_are_not_what_was_sent_are_refused() -> None:
    held = snapshot.hold_checkpoint(lived(5).disk, ROOT, "n")
    incoming = IncomingCopy(disk_of(), ROOT, held.manifest)
    with patch.object(snapshot, "CHUNK_BYTES", 100):
        file, offset, length = next(incoming.missing_chunks())
    piece = held.read(file, offset, length)
    bad = [piece[:-1], b"", b"\0\0\0", bytes([piece[0] ^ 1]) + piece[1:]]
    for wrong in bad:
        with pytest.raises(ValueError, match="crc32"):
            incoming.write(file, offset, wrong)
    for where in ((99, 0), (-1, 0), (file, 1 << 40)):
        with pytest.raises(ValueError, match="wanted"):
            incoming.write(*where, piece)
    incoming.write(file, offset, piece)
    with pytest.raises(ValueError, match="wanted"):
        incoming.write(file, offset, piece)  # again
    with pytest.raises(ValueError, match="bytes are here"):
        incoming.finish(UID, "t", 0, 100)


def edited(change: Callable[[dict[str, object]], object]) -> Callable[[bytes], bytes]:
    def edit(manifest: bytes) -> bytes:
        content = json.loads(manifest)
        change(content)
        return json.dumps(content).encode()

    return edit


MANIFESTS: dict[str, Callable[[bytes], bytes]] = {
    "no JSON": lambda manifest: manifest[:-1],
    "no object": lambda manifest: b"7",
    "no version": edited(lambda c: c.pop("version")),
    "no uid": edited(lambda c: c.pop("uid")),
    "a negative offset": edited(lambda c: c.update(log_offset=-1)),
    "a way out": edited(lambda c: c.update(files=[["checkpoint", 5], ["log/../../x", 5]])),
    "another file": edited(lambda c: c.update(files=[["checkpoint", 5], ["shard.json", 5]])),
    "a file twice": edited(lambda c: c.update(files=[["checkpoint", 5], ["checkpoint", 5]])),
    "an empty file": edited(lambda c: c.update(files=[["checkpoint", 0]])),
    "no checkpoint": edited(lambda c: c.update(files=[["log/00000000000000000000", 5]])),
    "a length that is none": edited(lambda c: c.update(files=[["checkpoint", "5"]])),
}


@pytest.mark.parametrize("what", MANIFESTS)
def test_a_manifest_that_nobody_sends_is_refused(what: str) -> None:
    manifest = snapshot.hold_checkpoint(lived(5).disk, ROOT, "n").manifest
    IncomingCopy(disk_of(), ROOT, manifest)
    with pytest.raises(ValueError, match="manifest"):
        IncomingCopy(disk_of(), ROOT, MANIFESTS[what](manifest))


def test_a_copy_of_another_shard_or_of_a_later_epoch_is_not_put_in_place() -> None:
    world = lived(5)
    held = snapshot.hold_checkpoint(world.disk, ROOT, "n")
    for uid, epoch in ((UID + 1, 100), (UID, 0)):
        here = disk_of()
        incoming = IncomingCopy(here, ROOT, held.manifest)
        for file, offset, length in incoming.missing_chunks():
            incoming.write(file, offset, held.read(file, offset, length))
        with pytest.raises(ValueError, match=r"epoch|shard"):
            incoming.finish(uid, "t", 0, epoch)
        assert not persist.exists(here, ROOT)


def test_a_copy_that_is_there_is_not_written_over() -> None:
    world = lived(5)
    held = snapshot.hold_checkpoint(world.disk, ROOT, "n")
    with pytest.raises(FileExistsError):
        fetch(held, world.disk)
    assert opened(world.disk).log.end == world.shard.log.end


def test_after_a_power_cut_at_any_moment_of_a_transfer_there_is_a_whole_copy_or_none() -> None:
    world = lived(5)
    expected = as_of_its_checkpoint(world)
    held = snapshot.hold_checkpoint(world.disk, ROOT, "n")
    whole = 0
    for calls in range(10_000):
        here = disk_of(calls)
        with patch.object(snapshot, "CHUNK_BYTES", 2000):
            here.append(f"{ROOT}/log/{0:020d}", [b"half made"])  # what an earlier life has left
            here.replace(f"{ROOT}/shard.json", b"")
            here.crash_after(calls)
            try:
                fetch(held, here)
                here.crash_after(None)
                done = True
            except Crashed:
                done = False
        here.crash()
        assert persist.exists(here, ROOT) or not done
        snapshot.remove_leftovers(here, SHARDS)
        if persist.exists(here, ROOT):
            assert state_of(opened(here)) == expected
            assert read_cluster(here, ROOT) == "hello"
            check_well(here)
            whole += 1
        assert not below(here, ".")
        if done:
            break
    assert calls >= 15
    assert 1 <= whole <= 3


def test_after_a_power_cut_at_any_moment_of_a_discard_there_is_a_whole_copy_or_none() -> None:
    world = lived(5)
    expected = state_of(persist.recover(world.disk.copy(), ROOT, SMALL)[0])
    outcomes = set()
    for calls in [0] * 20 + list(range(10_000)):
        here = world.disk.copy()
        here.crash_after(calls)
        try:
            persist.discard(here, ROOT)
            done = True
        except Crashed:
            done = False
        here.crash()
        outcomes.add(persist.exists(here, ROOT))
        if persist.exists(here, ROOT):
            assert state_of(persist.recover(here, ROOT, SMALL)[0]) == expected
        else:
            snapshot.remove_leftovers(here, SHARDS)
            assert not here.files
        if done:
            break
    assert calls >= 8
    assert outcomes == {True, False}
    persist.discard(here, ROOT)  # nothing there: nothing happens


@pytest.mark.parametrize("empty", ["shard.json", "checkpoint", "both"])
def test_what_was_left_half_made_is_no_copy(empty: str) -> None:
    disk = disk_of()
    persist.create(disk, ROOT, UID, "t", 0, SMALL, 1000)
    for name in ("shard.json", "checkpoint"):
        if empty in (name, "both"):
            disk.replace(f"{ROOT}/{name}", b"")
    assert not persist.exists(disk, ROOT)
    persist.create(disk, ROOT, UID, "t", 0, SMALL, 1000)
    assert persist.exists(disk, ROOT)


def test_a_copy_that_has_lost_its_checkpoint_is_damaged_and_not_gone() -> None:
    world = lived(5)
    for part in ("checkpoint", "previous.", "log/00000000000000000000"):
        for path in files_in(world.disk, part):
            world.disk.remove(path)
    assert persist.exists(world.disk, ROOT)
    with pytest.raises(Damaged):
        opened(world.disk)


# ---------------------------------------------------------------- on a real disk
def test_a_copy_is_sent_from_disk_to_disk(tmp_path: Path) -> None:
    world = lived(5)
    files, there, here = DiskFiles(), f"{tmp_path}/a/shards/t-0", f"{tmp_path}/b/shards/t-0"
    for path, file in world.disk.files.items():
        files.append(path.replace(ROOT, there), [bytes(file.data)])
    held = snapshot.hold_checkpoint(files, there, "n")
    assert len(list(Path(tmp_path, "a/shards/.snapshots/n").rglob("*"))) > 5
    shard = persist.recover(files, there, SMALL)[0]
    expected = as_of_its_checkpoint(world)
    fetch(held, files, here)
    held.release()
    assert sorted(path.name for path in Path(tmp_path, "a/shards/.snapshots").iterdir()) == []
    assert state_of(opened(files, here)) == expected
    assert shard.log.end == world.shard.log.end
    for root in ("a", "b"):
        persist.discard(files, f"{tmp_path}/{root}/shards/t-0")
        snapshot.remove_leftovers(files, f"{tmp_path}/{root}/shards")
        assert list(Path(tmp_path, root, "shards").iterdir()) == []
    files.close()


@pytest.fixture(params=["disk", "memory"])
def any_files(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Files, str]:
    return (DiskFiles(), str(tmp_path)) if request.param == "disk" else (disk_of(), "/d")


def test_a_second_name_shares_what_is_appended_and_survives_the_first(any_files: tuple[Files, str]) -> None:
    files, d = any_files
    files.append(f"{d}/a/x", [b"one"])
    files.link(f"{d}/a/x", f"{d}/b/c/y")
    files.append(f"{d}/a/x", [b"two"])
    files.sync(f"{d}/b/c/y")
    assert files.read(f"{d}/b/c/y", 0, 10) == b"onetwo"
    files.replace(f"{d}/a/x", b"new")
    assert (files.read(f"{d}/a/x", 0, 10), files.read(f"{d}/b/c/y", 0, 10)) == (b"new", b"onetwo")
    files.remove(f"{d}/a/x")
    assert files.read(f"{d}/b/c/y", 0, 10) == b"onetwo"
    with pytest.raises(FileNotFoundError):
        files.link(f"{d}/a/x", f"{d}/z")
    files.append(f"{d}/a/x", [b"one"])
    with pytest.raises(FileExistsError):
        files.link(f"{d}/a/x", f"{d}/b/c/y")


def test_a_directory_is_renamed_with_all_that_is_in_it(any_files: tuple[Files, str]) -> None:
    files, d = any_files
    files.append(f"{d}/a/log/x", [b"one"])
    files.append(f"{d}/a/y", [b"two"])
    files.append(f"{d}/ab", [b"three"])
    assert files.list(d) == ["a", "ab"]
    files.rename(f"{d}/a", f"{d}/c/e")
    assert (files.list(d), files.list(f"{d}/c/e"), files.list(f"{d}/a")) == (["ab", "c"], ["log", "y"], [])
    assert files.read(f"{d}/c/e/log/x", 0, 10) == b"one"
    files.append(f"{d}/a/log/x", [b"new"])
    assert files.read(f"{d}/c/e/log/x", 0, 10) == b"one"
    with pytest.raises(OSError, match=r"not empty"):
        files.rename(f"{d}/a", f"{d}/c/e")
    with pytest.raises(FileNotFoundError):
        files.rename(f"{d}/nowhere", f"{d}/z")
    files.remove_tree(f"{d}/c")
    files.remove_tree(f"{d}/c")
    assert files.list(f"{d}/c/e") == []
    with pytest.raises(FileNotFoundError):
        files.read(f"{d}/c/e/log/x", 0, 10)
    assert files.read(f"{d}/ab", 0, 10) == b"three"
