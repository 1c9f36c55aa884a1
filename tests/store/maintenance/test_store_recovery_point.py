"""A checkpoint that is damaged, shortened or gone: the shard comes back from the one before it, or from its log.

Whatever takes the place of the checkpoint, the shard answers as one whose checkpoint is whole. Where that can't be
shown, the copy is refused, as any damaged one is.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from delayapi.units import HOUR_MS, MINUTE_MS
from delaynode.store.errors import Damaged
from delaynode.store.log.frames import FrameKind, parse_tick
from delaynode.store.maintenance import checkpoint as ck
from delaynode.store.maintenance import persist
from delaynode.store.maintenance.recovery_point import find_recovery_point
from delaynode.store.maintenance.stored_copy import read_stored_copy
from delaynode.store.verify import Finding, verify_shard
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.store.support.consuming import World
from tests.store.support.freeable import FREE, NEAR, consume_near, consumed, spared
from tests.store.support.lives import checkpoint_of, files_in, frames_of, lived, pieces_of
from tests.store.support.memory_files import MemoryFiles
from tests.store.support.producing import Item
from tests.store.support.steps import CONSUMERS, JOBS, MESSAGES, TIDYING, TROUBLE, Draw, finale
from tests.store.support.walks import Steps, tidy_world, times, walk, world_of
from tests.store.support.world import ROOT, SMALL, UID

CHECKPOINT = f"{ROOT}/checkpoint"


def previous_in(disk: MemoryFiles) -> list[str]:
    return files_in(disk, "previous.")


def flip(disk: MemoryFiles, draw: Draw) -> None:
    disk.flip(CHECKPOINT, draw(0, 8 * len(disk.files[CHECKPOINT].data) - 1))


def shorten(disk: MemoryFiles, draw: Draw) -> None:
    disk.truncate(CHECKPOINT, draw(0, len(disk.files[CHECKPOINT].data) - 1))


def lose(disk: MemoryFiles, draw: Draw) -> None:
    disk.remove(CHECKPOINT)


DAMAGES: list[Callable[[MemoryFiles, Draw], None]] = [flip, flip, shorten, lose]


def log_is_whole(world: World) -> bool:
    bounds = world.shard.log.file.segments()
    return bool(bounds) and bounds[0][0] == 0 and all(a[1] == b[0] for a, b in pairwise(bounds))


def first_ms(world: World) -> int:
    """When the shard was made, as far as its log tells: not after any time of its frames up to the first TICK."""
    times_ms: list[int] = []
    for frame in frames_of(world):
        times_ms.append(frame.wall_ms)
        if frame.kind is FrameKind.TICK:
            return min(*times_ms, parse_tick(frame).due)
    return min(times_ms)


# ---------------------------------------------------------------- at any moment of any life
def rot(world: World, draw: Draw) -> None:
    """The checkpoint is damaged and the process killed; it comes back as if nothing were wrong, and lives on.

    That must be: there is a checkpoint before it, or no frame of the log was freed.
    """
    disk = world.disk
    others = [path for path in previous_in(disk) if disk.files[path].data != disk.files[CHECKPOINT].data]
    if not others and not (log_is_whole(world) and world.shard.log.written):
        return
    disk.crash_after(None)
    DAMAGES[draw(0, len(DAMAGES) - 1)](disk, draw)
    if not find_recovery_point(disk, ROOT, UID, world.config.geometry).path:
        world.born = first_ms(world)
    world.kill()
    assert world.recovery.damage
    assert checkpoint_of(world.disk).uid == UID, "the next start has a checkpoint again"


def shortly_after_another(world: World, draw: Draw) -> None:
    """Two checkpoints, something between them, and something after them."""
    for _ in range(2):
        world.checkpoint()
        world.enqueue([Item(draw(0, 90_000_000), size=draw(1, 30)) for _ in range(draw(1, 4))])
        world.pump()
    rot(world, draw)


ROTTING: Steps = {
    **MESSAGES, **JOBS, **TIDYING, **CONSUMERS, **TROUBLE,
    "the checkpoint rots": (6, rot), "rots shortly after another": (2, shortly_after_another),
}  # fmt: skip
CHUNKS = 10
EACH_CHUNK = [0, *(pytest.param(chunk, marks=pytest.mark.long) for chunk in range(1, CHUNKS))]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("chunk", EACH_CHUNK)
@pytest.mark.parametrize("make", [world_of, tidy_world])
def test_a_shard_lives_on_rightly_through_any_damage_of_its_checkpoint(
    chunk: int, make: Callable[[int], World]
) -> None:
    for seed in range(5 * 10**6 + chunk, 5 * 10**6 + times(150), CHUNKS):
        walk(seed, ROTTING, length=(20, 60, 120)[seed % 3], make=make)


class RottingMachine(RuleBasedStateMachine):
    """One rule: a step of any kind, its choices drawn by hypothesis."""

    @initialize(seed=st.integers(0, 10_000))
    def a_new_shard(self, seed: int) -> None:
        self.world = tidy_world(seed) if seed % 2 else world_of(seed)

    @rule(step=st.sampled_from(sorted(ROTTING)), data=st.data())
    def something_happens(self, step: str, data: st.DataObject) -> None:
        ROTTING[step][1](self.world, lambda low, high: data.draw(st.integers(low, high)))

    def teardown(self) -> None:
        if hasattr(self, "world"):
            finale(self.world)


def test_hypothesis_finds_no_history_in_which_a_damaged_checkpoint_breaks_a_shard() -> None:
    few = settings(settings.get_profile("ci"), max_examples=times(30))
    run_state_machine_as_test(RottingMachine, settings=few)


@pytest.mark.parametrize("damage", DAMAGES[1:])
@pytest.mark.parametrize("replay", [True, False])
def test_it_is_the_undamaged_twin_to_the_last_byte_of_its_queue(
    damage: Callable[[MemoryFiles, Draw], None], replay: bool
) -> None:
    for seed in range(times(6)):
        world = lived(seed)
        disk = world.disk.copy()
        damage(disk, random.Random(seed).randint)
        whole, _ = persist.recover(world.disk.copy(), ROOT, SMALL)
        shard, recovery = persist.recover(disk, ROOT, SMALL, replay=replay)
        assert "previous" in recovery.origin
        assert "checkpoint" in recovery.damage
        if not replay:
            persist.replay(shard, shard.log.end)
        assert (shard.applied, shard.epochs, shard.next_seq) == (whole.applied, whole.epochs, whole.next_seq)
        assert shard.index.watermark == whole.index.watermark
        assert (shard.index.pending, shard.index.pending_bytes) == (whole.index.pending, whole.index.pending_bytes)
        queue, expected = (one.queue.read(0, one.queue.visible).tobytes() for one in (shard, whole))
        assert queue == expected
        assert shard.space.ledger.segments.tobytes() == whole.space.ledger.segments.tobytes()
        assert shard.consumers.snapshot()[0] == whole.consumers.snapshot()[0]


def test_a_shard_that_was_made_long_before_its_first_frame_comes_back_from_the_log_alone() -> None:
    """When it was made is in no frame: its watermark is the first frame's time, until there is a TICK."""
    world = World(1, SMALL)
    world.advance(30 * MINUTE_MS)
    world.power_cut()  # the first term's frame was not written
    world.pump()
    rot(world, random.Random(1).randint)
    finale(world)


def test_a_copy_of_the_wheels_that_is_later_than_what_is_used_is_never_read_again() -> None:
    """Its TimerLog went on differently: once that is as long again, nothing else would tell."""
    world = lived(4, wheels=False)
    for _ in range(2):
        world.enqueue([Item(30 * HOUR_MS + 60_000 * n) for n in range(5)])
        world.pump()
        world.checkpoint()
    world.copy_wheels()
    lose(world.disk, random.randint)
    world.kill()
    world.enqueue([Item(40 * HOUR_MS + 60_000 * n) for n in range(9)])
    world.pump()
    world.checkpoint()
    world.kill()
    world.check_wheel()
    finale(world)


# ---------------------------------------------------------------- what is used
def freed_world() -> World:
    """Its log's start has gone, and it has had many checkpoints."""
    world = consumed()
    for _ in range(4):
        world.checkpoint()
        world.trim()
        world.pump()
    world.enqueue([Item(5 * HOUR_MS)] * 3)
    world.pump()
    world.checkpoint()
    assert pieces_of(world.disk, "log")[0][1] > 0
    return world


def findings(disk: MemoryFiles) -> list[Finding]:
    found: list[Finding] = []
    verify_shard(disk, ROOT, found.append)
    return found


def test_verify_and_an_inventory_say_which_checkpoint_the_next_start_uses() -> None:
    world = freed_world()
    disk = world.disk
    before = ck.decode(bytes(disk.files[previous_in(disk)[0]].data), "previous", "checkpoint")[0]
    disk.flip(CHECKPOINT, 777)
    damaged = [finding for finding in findings(disk) if not finding.note]
    assert damaged == [], "the next start serves the shard"
    (note,) = [finding for finding in findings(disk) if finding.path == CHECKPOINT]
    assert f"the next start uses the previous checkpoint, of log offset {before.log_offset}" in note.what
    twin = world.twin(disk.copy(), world.shard.log.end)
    assert twin.recovery.origin == f"the previous checkpoint, of log offset {before.log_offset}"


def test_a_shard_whose_log_was_never_freed_comes_back_from_the_log_alone() -> None:
    world = lived(3)
    disk = world.disk
    for path in [CHECKPOINT, *previous_in(disk), *files_in(disk, "timerlog/"), *files_in(disk, "queue/")]:
        disk.remove(path)
    (note,) = [finding for finding in findings(disk) if finding.path == CHECKPOINT]
    assert note.note
    assert "the next start uses the log from its start" in note.what
    twin = world.twin(disk, world.shard.log.end)
    assert twin.recovery.origin == "the log from its start"
    finale(twin)


def test_where_neither_is_there_the_copy_is_refused_and_says_why() -> None:
    world = freed_world()
    for path in previous_in(world.disk):
        world.disk.remove(path)
    world.disk.flip(CHECKPOINT, 777)
    with pytest.raises(Damaged, match=r"checkpoint: magic or crc32 differs; the log can't be read from its start"):
        persist.recover(world.disk, ROOT, FREE)
    assert any(finding.path == CHECKPOINT and not finding.note for finding in findings(world.disk))


def test_a_previous_checkpoint_that_rots_is_a_note_and_harms_nothing() -> None:
    world = freed_world()
    (path,) = previous_in(world.disk)
    world.disk.flip(path, 777)
    (found,) = [finding for finding in findings(world.disk) if finding.path == path]
    assert found.note
    assert world.twin(world.disk.copy(), world.shard.log.end).recovery.damage == ""


@pytest.mark.parametrize("part", ["log", "timerlog", "queue"])
def test_verify_notes_rot_in_a_file_that_only_the_previous_checkpoint_needs(part: str) -> None:
    world, (path, *_) = spared(part)
    (previous,) = previous_in(world.disk)
    assert not any(finding.path == previous for finding in findings(world.disk))
    world.disk.flip(path, 333)
    found = findings(world.disk)
    assert all(finding.note for finding in found), "the copy does without it"
    (note,) = [finding for finding in found if finding.path == previous]
    assert f"{path}: byte " in note.what
    assert "of no use, should the checkpoint be lost" in note.what


# ---------------------------------------------------------------- what is refused
def test_a_log_that_ends_before_the_lost_checkpoint_is_damaged_and_no_torn_tail() -> None:
    """The previous checkpoint's name says how far the log was on disk."""
    world = lived(2)
    world.checkpoint()
    assert checkpoint_of(world.disk).log_offset == world.shard.log.end
    last = world.entries[-2].end
    path, base = pieces_of(world.disk, "log")[-1]
    disk = world.disk.copy()
    disk.flip(path, 8 * (last - base) + 90)
    disk.flip(CHECKPOINT, 777)
    with pytest.raises(Damaged, match="though synced to"):
        persist.recover(disk, ROOT, SMALL)
    disk = world.disk.copy()
    disk.truncate(path, last - base)
    disk.flip(CHECKPOINT, 777)
    with pytest.raises(Damaged, match="was on disk"):
        persist.recover(disk, ROOT, SMALL)


def test_a_previous_checkpoint_of_which_something_was_freed_is_not_used() -> None:
    """As one is that was left behind by this release while an older one, which knows nothing of it, went on."""
    world = World(1, FREE)
    world.join("g")
    for _ in range(6):
        world.enqueue([NEAR] * 6)
        world.pump()
    world.checkpoint()
    stale = bytes(world.disk.files[CHECKPOINT].data)
    consume_near(world)
    for _ in range(4):
        world.checkpoint()
        world.trim()
        world.pump()
    for path in previous_in(world.disk):
        world.disk.remove(path)
    world.disk.replace(f"{ROOT}/previous.{checkpoint_of(world.disk).log_offset:020d}", stale)
    world.disk.flip(CHECKPOINT, 777)
    with pytest.raises(Damaged, match=r"the previous checkpoint can't be used: .*log/0{20}: missing"):
        persist.recover(world.disk, ROOT, FREE)


def test_a_checkpoint_of_another_shard_takes_no_ones_place() -> None:
    world = freed_world()
    (path,) = previous_in(world.disk)
    state, arrays = ck.decode(bytes(world.disk.files[path].data), path, "checkpoint")
    world.disk.replace(path, ck.encode(replace(state, uid=state.uid + 1), arrays))
    world.disk.flip(CHECKPOINT, 777)
    with pytest.raises(Damaged):
        persist.recover(world.disk, ROOT, FREE)


# ---------------------------------------------------------------- what is kept
def test_segments_go_with_the_second_checkpoint_that_does_without_them() -> None:
    world = consumed()
    world.checkpoint()
    world.trim()
    world.trim()
    world.pump()
    before = files_in(world.disk, "log/")
    world.checkpoint()
    assert world.shard.has_spare_files()
    assert files_in(world.disk, "log/")[: len(before)] == before, "the previous checkpoint names them"
    world.kill()
    assert files_in(world.disk, "log/")[: len(before)] == before, "and a start removes none of them"
    world.checkpoint()
    assert not world.shard.has_spare_files()
    assert len(previous_in(world.disk)) == 1
    assert len(files_in(world.disk, "log/")) < len(before)


def test_an_inventory_reads_a_copy_with_a_damaged_checkpoint() -> None:
    world = freed_world()
    directory = f"data/shards/t-0-{UID:016x}"
    moved = world.disk.copy()
    for path in list(moved.files):
        moved.files[directory + path.removeprefix(ROOT)] = moved.files.pop(path)
    before = read_stored_copy(moved, directory)
    moved.flip(f"{directory}/checkpoint", 777)
    found = read_stored_copy(moved, directory)
    assert (found.damage, found.log_end, found.log_epoch) == (None, before.log_end, before.log_epoch)
    assert found.pending >= before.pending
