"""verify: healthy files are well, after a crash too; each kind of damage is found, and named by file and place."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from delayapi.units import DAY_MS, HOUR_MS
from delaynode.store.maintenance import checkpoint as ck
from delaynode.store.maintenance import persist
from delaynode.store.queue.consume_queue import QUEUED, QUEUED_BYTES
from delaynode.store.queue.consume_queue import own_checks as queue_checks
from delaynode.store.timer.timer_log import HEADER, STORED, UNIT_BYTES
from delaynode.store.types import Records
from delaynode.store.verify import Finding, Summary, verify_shard

from tests.store.support.consuming import World
from tests.store.support.damaging import content_of
from tests.store.support.histories import a_long_life
from tests.store.support.lives import checkpoint_of, files_in, lived, pieces_of
from tests.store.support.memory_files import Crashed, MemoryFiles
from tests.store.support.producing import Item
from tests.store.support.steps import CONSUMERS, JOBS, MESSAGES, TROUBLE
from tests.store.support.walks import times, world_of
from tests.store.support.world import ROOT, SMALL, UID


def look(disk: MemoryFiles) -> tuple[Summary, list[Finding]]:
    before = content_of(disk)
    found: list[Finding] = []
    summary = verify_shard(disk, ROOT, found.append)
    assert content_of(disk) == before, "verify changed a file"
    assert summary.damage >= sum(not finding.note for finding in found)
    return summary, found


def damage_in(disk: MemoryFiles) -> list[Finding]:
    return [finding for finding in look(disk)[1] if not finding.note]


def check_well(disk: MemoryFiles) -> Summary:
    summary, found = look(disk)
    assert not summary.damage, "\n".join(map(str, found))
    return summary


# ---------------------------------------------------------------- healthy
def test_a_healthy_shard_is_well_and_all_of_it_was_looked_at() -> None:
    world = lived(5)
    summary = check_well(world.disk)
    state = checkpoint_of(world.disk)
    assert summary.frames == len(world.entries)
    assert summary.messages == world.model.next_seq
    assert summary.pending == len(world.model.live)
    assert summary.entries == state.queue_end - state.queue_start
    assert summary.slots > 2000
    assert summary.bytes >= sum(len(file.data) for file in world.disk.files.values()) - 10_000


@pytest.mark.parametrize("chunk", range(4))
def test_whatever_a_shard_has_lived_through_it_is_well(chunk: int) -> None:
    """Long lives, walks through crashes, each killed at a random moment: a torn tail is a note."""
    steps = MESSAGES | JOBS | CONSUMERS | TROUBLE
    names = [name for name, (weight, _) in steps.items() for _ in range(weight)]
    for seed in range(chunk, times(120), 4):
        rng = random.Random(seed)
        world = world_of(seed)
        for _ in range(rng.choice((10, 50, 120))):
            steps[rng.choice(names)][1](world, rng.randint)
        disk = world.disk.copy()
        check_well(disk)  # kill -9
        world.disk.crash()  # a power cut
        check_well(world.disk)
    for seed in range(chunk, times(24), 4):
        check_well(a_long_life(seed).past.world.disk)


def test_a_torn_tail_is_a_note() -> None:
    world = lived(6)
    world.enqueue([Item(5000)] * 3)
    world.begin_write()
    world.disk.crash_after(0)
    assert world.batch is not None
    with pytest.raises(Crashed):
        world.batch.run()
    path, _ = pieces_of(world.disk, "log")[-1]
    world.disk.files[path].data += b"DLYF" + bytes(30)
    summary, found = look(world.disk)
    assert not summary.damage
    assert any("torn tail" in finding.what and finding.path == path for finding in found)


def test_a_new_shard_is_well() -> None:
    disk = MemoryFiles(random.Random(1))
    persist.create(disk, ROOT, 7, "t", 0, SMALL, 1_700_000_000_000)
    assert check_well(disk).frames == 0


# ---------------------------------------------------------------- frames and units
def at_offset(disk: MemoryFiles, part: str, offset: int) -> tuple[str, int]:
    """(path, byte in it) of a logical offset."""
    path, base = max((piece for piece in pieces_of(disk, part) if piece[1] <= offset), key=lambda piece: piece[1])
    return path, offset - base


@pytest.mark.parametrize("seed", range(6))
def test_a_flip_in_a_frame_is_found_at_its_offset(seed: int) -> None:
    world = lived(2)
    rng = random.Random(seed)
    end = checkpoint_of(world.disk).log_offset
    entry = rng.choice([entry for entry in world.entries if entry.end <= end])
    begin = max((e.end for e in world.entries if e.end < entry.end), default=0)
    path, byte = at_offset(world.disk, "log", begin)
    world.disk.flip(path, 8 * byte + rng.randrange(8 * (entry.end - begin)))
    found = damage_in(world.disk)
    assert any((f.path, f.offset, f.where) == (path, byte, f"log offset {begin}") for f in found), found


@pytest.mark.parametrize("seed", range(6))
def test_a_flip_in_the_timer_log_is_found_in_its_flush(seed: int) -> None:
    world = lived(3)
    at = random.Random(seed).randrange(checkpoint_of(world.disk).timer_end)
    path, byte = at_offset(world.disk, "timerlog", at)
    world.disk.flip(path, 8 * byte + seed)
    found = [f for f in damage_in(world.disk) if f.path == path and 0 <= f.offset <= byte]
    assert any("crc32" in f.what or "header" in f.what for f in found), found


@pytest.mark.parametrize("seed", range(6))
def test_a_flip_in_the_queue_is_found_at_its_unit(seed: int) -> None:
    world = lived(3)
    at = random.Random(seed).randrange(checkpoint_of(world.disk).queue_end * QUEUED_BYTES)
    path, byte = at_offset(world.disk, "queue", at)
    world.disk.flip(path, 8 * byte + seed)
    unit = at // QUEUED_BYTES
    found = damage_in(world.disk)
    assert any(f.path == path and f.where == f"queue offset {unit}" and "own check" in f.what for f in found), found


# ---------------------------------------------------------------- wrong, with checks that are right
def rewrite_queue(disk: MemoryFiles, change: Callable[[Records], None]) -> None:
    """Change the units up to the checkpoint's end, and their own checks with them."""
    end = checkpoint_of(disk).queue_end * QUEUED_BYTES
    pieces = pieces_of(disk, "queue")
    data = b"".join(bytes(disk.files[path].data) for path, _ in pieces)
    rows = np.frombuffer(data[:end], QUEUED).copy()
    change(rows)
    rows["own"] = queue_checks(rows, 0, UID)
    data = rows.tobytes() + data[end:]
    for path, base in pieces:
        size = len(disk.files[path].data)
        disk.files[path].data[:] = data[base : base + size]


def swap(rows: Records) -> None:
    rows[[0, 1]] = rows[[1, 0]]


def double(rows: Records) -> None:
    rows[1] = rows[0]


def other_record(rows: Records) -> None:
    rows["offset"][2] = rows["offset"][0]


def nowhere(rows: Records) -> None:
    rows["offset"][2] += 1


def longer(rows: Records) -> None:
    rows["size"][2] += 1


def late_due(rows: Records) -> None:
    rows["due"][-1] += 1


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (double, "released more than once"),
        (double, "neither pending nor released"),
        (other_record, "not of the record"),
        (nowhere, "no record begins"),
        (longer, "not of the record"),
        (late_due, "released, though cancelled, moved away or never stored"),
    ],
)
def test_a_queue_that_is_not_what_the_log_says_is_found(change: Callable[[Records], None], what: str) -> None:
    world = lived(8)
    rewrite_queue(world.disk, change)
    found = damage_in(world.disk)
    assert any(what in finding.what for finding in found), found


def test_a_tick_out_of_order_is_found() -> None:
    world = World(1, SMALL)
    world.enqueue([Item(10), Item(20), Item(30)])
    world.advance(1000)
    world.settle()
    world.checkpoint()
    check_well(world.disk)
    rewrite_queue(world.disk, swap)
    assert any("order within its tick" in finding.what for finding in damage_in(world.disk))


def rewrite_checkpoint(disk: MemoryFiles, **changes: object) -> None:
    read = ck.read(disk, f"{ROOT}/checkpoint")
    assert read is not None
    disk.replace(f"{ROOT}/checkpoint", ck.encode(replace(read[0], **changes), read[1]))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "by", "what"),
    [
        ("pending", 1, "pending is not what the TimerLog has"),
        ("pending_bytes", -1, "pending_bytes is not what the TimerLog has"),
        ("next_seq", -1, "next_seq is not what"),
        ("queue_end", 10_000, "queue_end lies behind"),
        ("queue_end", -1, "queue_end is not what"),
        ("timer_end", 52 * 10_000, "timer_end lies behind"),
        ("log_offset", 10**6, "log_offset lies behind"),
        ("log_offset", -1, "is not the end of a frame"),
        ("watermark_due", 1, "watermark is not what"),
        ("minute_bound_ms", 5, "no whole hour"),
        ("wall_ms", -(10**9), "wall_ms is before"),
    ],
)
def test_a_checkpoint_that_is_not_what_the_files_lead_to_is_found(field: str, by: int, what: str) -> None:
    world = lived(9)
    rewrite_checkpoint(world.disk, **{field: getattr(checkpoint_of(world.disk), field) + by})
    found = damage_in(world.disk)
    assert any(
        (what in finding.what and finding.path.endswith("checkpoint")) or what in finding.what for finding in found
    )


def test_live_counts_that_are_wrong_are_found() -> None:
    world = lived(9)
    read = ck.read(world.disk, f"{ROOT}/checkpoint")
    assert read is not None
    state, arrays = read
    arrays["ledger"] = arrays["ledger"].copy()
    arrays["ledger"]["count"][0] += 1
    world.disk.replace(f"{ROOT}/checkpoint", ck.encode(state, arrays))
    assert any("live messages and bytes of segment 0" in finding.what for finding in damage_in(world.disk))


def test_groups_outside_the_queue_are_found() -> None:
    world = lived(9)
    groups = [dict(group) for group in checkpoint_of(world.disk).groups]
    groups[0]["fresh"] = 10**6
    rewrite_checkpoint(world.disk, groups=groups)
    assert any("lies outside the queue" in finding.what for finding in damage_in(world.disk))


def test_an_epoch_below_the_logs_is_found() -> None:
    world = lived(9)
    identity, horizon_ms = persist.read_identity(world.disk, ROOT)
    persist.write_identity(world.disk, ROOT, replace(identity, epoch=0), horizon_ms)
    found = damage_in(world.disk)
    assert any(f.path.endswith("shard.json") and "epoch is lower" in f.what for f in found), found


def rewrite_wheels(disk: MemoryFiles) -> int:
    """Change one used slot of the copy; returns its index."""
    read = ck.read(disk, f"{ROOT}/wheels")
    assert read is not None
    state, arrays = read
    minute = arrays["minute"].copy()
    at = int(np.flatnonzero(minute["num"] > 0)[0])
    minute["num"][at] += 1
    disk.replace(f"{ROOT}/wheels", ck.encode(state, {**arrays, "minute": minute}, "wheels"))
    return at


def test_a_slot_that_is_not_what_the_timer_log_says_is_found() -> None:
    world = World(2, SMALL)
    world.enqueue([Item(HOUR_MS), Item(3 * HOUR_MS), Item(2 * DAY_MS)])
    world.pump()
    world.checkpoint()
    world.copy_wheels()
    check_well(world.disk)
    at = rewrite_wheels(world.disk)
    (finding,) = damage_in(world.disk)
    assert (finding.path, finding.what) == (f"{ROOT}/wheels", f"slot {at} of the minute wheel")


def test_a_chain_that_leads_elsewhere_is_found_though_the_flush_is_whole() -> None:
    """A bug would write such a chain: prevPos wrong, all checks right."""
    world = World(3, replace(SMALL, timer_segment_bytes=1 << 20))
    for _ in range(3):
        world.enqueue([Item(2 * HOUR_MS), Item(2 * HOUR_MS + 70_000)])
        world.pump()
        world.checkpoint()
    check_well(world.disk)
    path, _ = pieces_of(world.disk, "timerlog")[0]
    rows = np.frombuffer(bytes(world.disk.files[path].data), STORED).copy()
    (start,) = (int(at) for at in np.flatnonzero(rows["magic"] == HEADER)[2:3])
    rows["prev"][start + 1] -= UNIT_BYTES
    seal(rows[start:], start * UNIT_BYTES)
    world.disk.files[path].data[:] = rows.tobytes()
    found = damage_in(world.disk)
    assert any("prevPos" in f.what and f.where == f"TimerLog position {(start + 1) * UNIT_BYTES}" for f in found), found


def seal(flush: Records, position: int) -> None:
    """Give a changed flush right checks."""
    import zlib

    from delaynode.store.timer.timer_log import flush_crc, own_checks
    from delaynode.store.types import raw

    place = position + UNIT_BYTES * np.arange(1, len(flush), dtype=np.int64)
    flush["own"][1:] = own_checks(flush[1:], place, UID)
    flush["key"][0] = 0
    flush["key"][0] = zlib.crc32(raw(np.ascontiguousarray(flush)), flush_crc(position, UID))


# ---------------------------------------------------------------- files
@pytest.mark.parametrize("part", ["log", "timerlog", "queue"])
def test_a_missing_segment_is_found(part: str) -> None:
    world = lived(7)
    state = checkpoint_of(world.disk)
    ends = {"log": state.log_offset, "timerlog": state.timer_end, "queue": state.queue_end * QUEUED_BYTES}
    pieces = [piece for piece in pieces_of(world.disk, part) if piece[1] < ends[part]]
    for path, _ in pieces:
        disk = world.disk.copy()
        disk.remove(path)
        found = damage_in(disk)
        assert any(f.path.startswith(f"{ROOT}/{part}") for f in found), (path, found)


@pytest.mark.parametrize("name", ["checkpoint", "shard.json"])
def test_a_missing_small_file_is_found(name: str) -> None:
    """Damage only where nothing can take its place: see test_store_recovery_point.py."""
    world = lived(7)
    world.disk.remove(f"{ROOT}/{name}")
    (found,) = [finding for finding in look(world.disk)[1] if finding.path == f"{ROOT}/{name}"]
    assert found.note == (name == "checkpoint")


def test_files_that_nobody_knows_are_notes() -> None:
    world = lived(7)
    for name in ("notes.txt", "log/lost", "queue/12"):
        world.disk.replace(f"{ROOT}/{name}", b"x")
    summary, found = look(world.disk)
    assert not summary.damage
    assert {f.path for f in found} >= {f"{ROOT}/notes.txt", f"{ROOT}/log/lost", f"{ROOT}/queue/12"}


def test_it_goes_on_after_an_error_and_finds_the_next() -> None:
    world = lived(2)
    for part in ("log", "timerlog", "queue"):
        for path, _ in pieces_of(world.disk, part)[:2]:
            world.disk.flip(path, 8 * (len(world.disk.files[path].data) // 2))
    found = damage_in(world.disk)
    for part in ("log", "timerlog", "queue"):
        paths = {f.path for f in found if f.path.startswith(f"{ROOT}/{part}/") and f.offset >= 0}
        assert len(paths & set(files_in(world.disk, part))) >= 2, (part, found)


def test_many_findings_of_a_kind_are_counted_and_ten_are_told() -> None:
    world = World(4, replace(SMALL, queue_segment_bytes=1 << 20, max_tick=1000))
    for _ in range(6):
        world.enqueue([Item(0)] * 12)
    world.pump()
    world.checkpoint()
    path, _ = pieces_of(world.disk, "queue")[0]
    for unit in range(60):
        world.disk.flip(path, 8 * QUEUED_BYTES * unit + 3)
    summary, found = look(world.disk)
    told = [f for f in found if "own check differs" in f.what]
    assert len([f for f in told if not f.note]) == 10
    assert any("50 more" in f.what for f in told)
    assert summary.damage >= 60


def test_a_finding_names_what_was_expected_and_what_was_found_where_either_is_known() -> None:
    assert str(Finding("/a", -1, "", "is not there")) == "/a: is not there"
    assert str(Finding("/a", 6, "log offset 6", "differs", expected="a frame")) == (
        "/a at byte 6 (log offset 6): differs: expected a frame"
    )
    assert str(Finding("/a", 6, "", "differs", expected="7", found="8")) == "/a at byte 6: differs: expected 7, found 8"
