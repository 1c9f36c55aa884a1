"""A program that was rolled back finds files of a newer one: they are not its own, and stay as they are."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from delaynode import verify
from delaynode.store import formats
from delaynode.store.errors import Impossible, NewerFormat
from delaynode.store.log import frames
from delaynode.store.log.frames import HEADER_BYTES, FrameKind, Unsealed
from delaynode.store.maintenance import checkpoint as ck
from delaynode.store.maintenance import persist, snapshot
from delaynode.store.maintenance.marker import is_permanent
from delaynode.store.maintenance.snapshot import IncomingCopy
from delaynode.store.shard import Shard

from tests.store.support.consuming import World
from tests.store.support.lives import files_in, lived
from tests.store.support.memory_files import MemoryFiles
from tests.store.support.producing import Item
from tests.store.support.world import ROOT, SMALL


def sealed(content: dict[str, Any]) -> bytes:
    text = json.dumps(content, indent=1).encode()
    return text + b"\n" + f"crc32 {zlib.crc32(text):08x}".encode()


def changed(change: Callable[[dict[str, Any]], object], file: str = "checkpoint") -> Callable[[MemoryFiles], None]:
    """A change of the JSON in the file; the file's crc32 is right afterwards."""

    def apply(disk: MemoryFiles) -> None:
        data = disk.read(f"{ROOT}/{file}", 0, 1 << 30)
        _, _, size, _ = ck.HEAD.unpack_from(data)
        content = json.loads(data[ck.HEAD.size : ck.HEAD.size + size])
        change(content)
        text = json.dumps(content).encode()
        body = ck.HEAD.pack(ck.MAGIC, 0, len(text), 0)[8:] + text + data[ck.HEAD.size + size :]
        disk.replace(f"{ROOT}/{file}", ck.HEAD.pack(ck.MAGIC, zlib.crc32(body), 0, 0)[:8] + body)

    return apply


def identity_with_a_new_field(disk: MemoryFiles) -> None:
    text, _, _ = disk.read(f"{ROOT}/shard.json", 0, 1 << 20).rpartition(b"\n")
    disk.replace(f"{ROOT}/shard.json", sealed({**json.loads(text), "compression": "zstd"}))


def frame_with(at: int, value: int) -> Callable[[MemoryFiles], None]:
    """The last one of the log, with this u16 at this place: a torn tail would be cut off there."""

    def apply(disk: MemoryFiles) -> None:
        shard, _ = persist.recover(disk.copy(), ROOT, SMALL)
        end = shard.log.end
        frame = Unsealed(FrameKind.TICK, 0, shard.identity.uid, shard.epoch, 0, 0, 0, end, (b"",), HEADER_BYTES)
        header = bytearray(frame.seal(end))
        header[at : at + 2] = value.to_bytes(2, "little")
        header[4:8] = zlib.crc32(header[8:]).to_bytes(4, "little")
        disk.append(max(path for path in disk.files if "/log/0" in path), [bytes(header)])

    return apply


NEWER: dict[str, Callable[[MemoryFiles], None]] = {
    "checkpoint of another version": changed(lambda content: content.update(version=formats.NEWEST + 1)),
    "checkpoint with a new field": changed(lambda content: content["state"].update(zones=["a"])),
    "identity with a new field": identity_with_a_new_field,
    "frame of an unknown kind": frame_with(12, 99),
    "frame with an unknown flag": frame_with(14, 1 << 9),
}


@pytest.mark.parametrize("what", NEWER)
def test_a_copy_in_a_newer_format_is_not_opened_and_not_changed(what: str) -> None:
    world = lived(3)
    disk = world.disk.copy()
    NEWER[what](disk)
    before = disk.copy()
    with pytest.raises(NewerFormat, match="written by a newer release") as caught:
        persist.recover(disk, ROOT, SMALL, replay=False)
    assert not is_permanent(caught.value), "it would be marked as damaged"
    for path in [*files_in(disk, "log/"), f"{ROOT}/checkpoint", f"{ROOT}/shard.json"]:
        assert disk.read(path, 0, 1 << 30) == before.read(path, 0, 1 << 30), "the newer program needs it"
    assert persist.read_copy_id(disk, ROOT) == (world.shard.identity.copy_id, world.shard.identity.epoch)


def test_a_copy_of_the_wheels_in_a_newer_format_is_left_aside() -> None:
    world = lived(3)
    disk = world.disk.copy()
    persist.copy_wheels(disk, ROOT, persist.recover(disk, ROOT, SMALL)[0])
    changed(lambda content: content.update(version=formats.NEWEST + 1), "wheels")(disk)
    shard, recovery = persist.recover(disk, ROOT, SMALL)
    assert shard.index.pending == world.shard.index.pending
    assert recovery.units > 0


def test_a_manifest_of_a_newer_program_is_refused_before_anything_is_thrown_away() -> None:
    disk = lived(3).disk.copy()
    held = snapshot.hold_checkpoint(disk, ROOT, "1")
    content = json.loads(held.manifest) | {"version": formats.NEWEST + 1}
    before = set(disk.files)
    with pytest.raises(NewerFormat, match="written by a newer release"):
        IncomingCopy(disk, ROOT, json.dumps(content).encode())
    assert set(disk.files) == before


def test_verify_says_that_a_newer_program_wrote_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    disk = lived(3).disk.copy()
    NEWER["checkpoint with a new field"](disk)
    for path, file in disk.files.items():
        target = tmp_path / "shard" / path.removeprefix(f"{ROOT}/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.data)
    (tmp_path / "shard" / "damaged").write_text("{}")
    assert verify.main([str(tmp_path / "shard"), "--clear-damaged"]) == verify.DAMAGED
    assert "newer" in capsys.readouterr().out
    assert (tmp_path / "shard" / "damaged").exists()


def test_an_older_checkpoint_without_what_came_later_is_opened() -> None:
    disk = lived(3).disk.copy()
    changed(lambda content: content["state"].pop("kept_in_sync"))(disk)
    persist.recover(disk, ROOT, SMALL)


# ---------------------------------------------------------------- a release that knows one format more
NEXT = formats.NEWEST + 1


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> MemoryFiles:
    """What this release has left, for a program that knows the next format too."""
    left = lived(3).disk.copy()
    monkeypatch.setattr(formats, "NEWEST", NEXT)
    return left


def format_of(disk: MemoryFiles, file: str = "checkpoint") -> int:
    data = disk.read(f"{ROOT}/{file}", 0, 1 << 30)
    _, _, size, _ = ck.HEAD.unpack_from(data)
    return int(json.loads(data[ck.HEAD.size : ck.HEAD.size + size])["version"])


def checkpointed(disk: MemoryFiles, shard: Shard) -> None:
    job = persist.begin_checkpoint(disk, ROOT, shard)
    job.run()
    persist.finish_checkpoint(job)


def opened(disk: MemoryFiles, format_: int) -> Shard:
    shard, _ = persist.recover(disk, ROOT, replace(SMALL, format=format_))
    return shard


def test_message_ids_are_stored_once_all_nodes_read_their_format(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(1, replace(SMALL, format=2))
    end = world.shard.log_end
    world.enqueue_ids([Item(1000)], [bytes(16)])  # refused, as the world checks
    assert (world.shard.log_end, world.shard.format) == (end, 2)
    world.shard.raise_format(3)
    world.enqueue_ids([Item(1000)], [bytes(16)])
    world.stop()
    assert format_of(world.disk) == 3
    assert len(world.shard.message_ids) == 1
    monkeypatch.setattr(formats, "NEWEST", 2)
    with pytest.raises(NewerFormat, match=r"format 3.* reads up to 2"):
        persist.recover(world.disk, ROOT, world.config)


def test_a_newer_release_writes_the_format_that_all_nodes_read(disk: MemoryFiles) -> None:
    shard = opened(disk, formats.OLDEST)
    checkpointed(disk, shard)
    persist.copy_wheels(disk, ROOT, shard)
    assert [format_of(disk), format_of(disk, "wheels")] == [formats.OLDEST] * 2
    shard.raise_format(NEXT)
    checkpointed(disk, shard)
    persist.copy_wheels(disk, ROOT, shard)
    assert [format_of(disk), format_of(disk, "wheels")] == [NEXT] * 2
    assert json.loads(snapshot.hold_checkpoint(disk, ROOT, "1").manifest)["version"] == NEXT


def test_a_frame_of_a_newer_kind_is_not_written_before_all_nodes_read_it(
    disk: MemoryFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = opened(disk, formats.OLDEST)
    monkeypatch.setitem(frames.SINCE_FORMAT, FrameKind.EPOCH, NEXT)
    end = shard.log.end
    with pytest.raises(Impossible, match=f"a EPOCH frame is of format {NEXT}, all nodes read {formats.OLDEST}"):
        shard.begin_term(shard.epoch + 1, "n0", shard.wall_ms)
    assert shard.log.end == end
    shard.raise_format(NEXT)
    shard.begin_term(shard.epoch + 1, "n0", shard.wall_ms)
    assert shard.log.end > end


def test_a_copy_never_goes_back_to_an_older_format(disk: MemoryFiles) -> None:
    """Its log has what only the newer format names, whatever the operator of an older release says meanwhile."""
    checkpointed(disk, opened(disk, NEXT))
    checkpointed(disk, opened(disk, formats.OLDEST))
    assert format_of(disk) == NEXT


def test_a_newer_frame_makes_the_next_checkpoint_of_its_format(
    disk: MemoryFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slave may hear of the nodes' version later than of the frame."""
    shard, _ = persist.recover(disk, ROOT, SMALL, replay=False)
    monkeypatch.setitem(frames.SINCE_FORMAT, FrameKind.TICK, NEXT)
    assert shard.format == formats.OLDEST
    replayed = [frame.kind for frame in shard.log.scan(shard.applied)]
    assert FrameKind.TICK in replayed
    persist.replay(shard, shard.log.end)
    assert shard.format == NEXT
