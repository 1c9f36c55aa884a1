"""A program that was rolled back finds files of a newer one: they are not its own, and stay as they are."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from delaynode import verify
from delaynode.store.errors import NewerFormat
from delaynode.store.log.frames import HEADER_BYTES, FrameKind, Unsealed
from delaynode.store.maintenance import checkpoint as ck
from delaynode.store.maintenance import persist, snapshot
from delaynode.store.maintenance.marker import is_permanent
from delaynode.store.maintenance.snapshot import IncomingCopy

from tests.store.support.lives import files_in, lived
from tests.store.support.memory_files import MemoryFiles
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


def frame_of_an_unknown_kind(disk: MemoryFiles) -> None:
    """The last one of the log: a torn tail would be cut off there."""
    shard, _ = persist.recover(disk.copy(), ROOT, SMALL)
    end = shard.log.end
    frame = Unsealed(FrameKind.TICK, 0, shard.identity.uid, shard.epoch, 0, 0, 0, end, (b"",), HEADER_BYTES)
    header = bytearray(frame.seal(end))
    header[12:14] = (99).to_bytes(2, "little")
    header[4:8] = zlib.crc32(header[8:]).to_bytes(4, "little")
    disk.append(max(path for path in disk.files if "/log/0" in path), [bytes(header)])


NEWER: dict[str, Callable[[MemoryFiles], None]] = {
    "checkpoint of another version": changed(lambda content: content.update(version=ck.VERSION + 1)),
    "checkpoint with a new field": changed(lambda content: content["state"].update(zones=["a"])),
    "identity with a new field": identity_with_a_new_field,
    "frame of an unknown kind": frame_of_an_unknown_kind,
}


@pytest.mark.parametrize("what", NEWER)
def test_a_copy_in_a_newer_format_is_not_opened_and_not_changed(what: str) -> None:
    world = lived(3)
    disk = world.disk.copy()
    NEWER[what](disk)
    before = disk.copy()
    with pytest.raises(NewerFormat, match="newer") as caught:
        persist.recover(disk, ROOT, SMALL, replay=False)
    assert not is_permanent(caught.value), "it would be marked as damaged"
    for path in [*files_in(disk, "log/"), f"{ROOT}/checkpoint", f"{ROOT}/shard.json"]:
        assert disk.read(path, 0, 1 << 30) == before.read(path, 0, 1 << 30), "the newer program needs it"
    assert persist.read_copy_id(disk, ROOT) == (world.shard.identity.copy_id, world.shard.identity.epoch)


def test_a_copy_of_the_wheels_in_a_newer_format_is_left_aside() -> None:
    world = lived(3)
    disk = world.disk.copy()
    persist.copy_wheels(disk, ROOT, persist.recover(disk, ROOT, SMALL)[0])
    changed(lambda content: content.update(version=ck.VERSION + 1), "wheels")(disk)
    shard, recovery = persist.recover(disk, ROOT, SMALL)
    assert shard.index.pending == world.shard.index.pending
    assert recovery.units > 0


def test_a_manifest_of_a_newer_program_is_refused_before_anything_is_thrown_away() -> None:
    disk = lived(3).disk.copy()
    held = snapshot.hold_checkpoint(disk, ROOT, "1")
    content = json.loads(held.manifest) | {"version": snapshot.VERSION + 1}
    before = set(disk.files)
    with pytest.raises(ValueError, match="this program reads"):
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
