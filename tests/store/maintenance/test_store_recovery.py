"""Recovery: any prefix and any torn tail gives a right state, and so does a crash anywhere."""

from __future__ import annotations

import random
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from delayapi.units import DAY_MS, HOUR_MS, MINUTE_MS
from delaynode.store.errors import Damaged
from delaynode.store.maintenance import persist

from tests.store.support.consuming import World
from tests.store.support.lives import a_life, checkpoint_of, files_in, frames_of, lived, pieces_of, some_items
from tests.store.support.producing import Item
from tests.store.support.steps import finale
from tests.store.support.walks import times
from tests.store.support.world import ROOT, SMALL


# ---------------------------------------------------------------- crash points
def test_a_crash_at_any_write_loses_nothing_committed() -> None:
    calm = World(1, SMALL)
    a_life(calm, random.Random(1))
    for crash_at in range(calm.disk.writes):
        for disk_seed in range(times(1)):
            world = World(crash_at + 1000 * disk_seed, SMALL)
            world.disk.crash_after(crash_at)
            a_life(world, random.Random(1))
            world.kill()


def test_a_crash_at_any_write_of_the_recovery_is_recovered_from() -> None:
    for seed in range(times(6)):
        world = lived(seed)
        before = world.disk.writes
        twin = world.twin(world.disk.copy(), world.shard.committed_offset)
        for crash_at in range(twin.disk.writes - before if twin.disk.writes > before else twin.disk.writes):
            disk = world.disk.copy()
            disk.crash_after(crash_at)
            world.twin(disk, world.shard.committed_offset)


JOBS = {
    "write": ("begin_write", "run_write", "finish_write", "commit"),
    "load": ("begin_load", "run_load", "finish_load"),
    "cascade": ("begin_cascade", "run_cascade", "finish_cascade"),
    "checkpoint": ("begin_checkpoint", "pump", "run_checkpoint", "finish_checkpoint", "copy_wheels"),
}


@pytest.mark.parametrize("end", ["power_cut", "kill"])
@pytest.mark.parametrize("job", JOBS)
def test_recovery_in_the_middle_of_every_job(job: str, end: str) -> None:
    for reached in range(len(JOBS[job]) + 1):
        world = World(reached, SMALL)
        world.enqueue([Item(delay) for delay in (1, 70_000, HOUR_MS, 25 * HOUR_MS + 5, 26 * HOUR_MS, 30 * HOUR_MS)])
        world.pump()
        world.checkpoint()
        world.advance(3 * HOUR_MS)
        world.enqueue([Item(10), Item(25 * HOUR_MS)])
        for step in JOBS[job][:reached]:
            getattr(world, step)()
        getattr(world, end)()
        world.advance(30 * HOUR_MS)
        world.settle()
        assert not world.model.live


# ---------------------------------------------------------------- the log
def test_any_prefix_of_the_log_is_a_right_state_or_damaged() -> None:
    for seed in range(times(3)):
        world = lived(seed)
        known = checkpoint_of(world.disk).log_offset
        segments = pieces_of(world.disk, "log")
        ends = [0, *(entry.end for entry in world.entries)]
        rng = random.Random(seed)
        near = [e + d for e in ends[-8:] for d in (-1, 0, 1, 63, 64) if 0 <= e + d <= ends[-1]]
        for length in sorted({*near, *(rng.randint(0, ends[-1]) for _ in range(40))}):
            disk = world.disk.copy()
            for path, base in segments:
                if base >= length:
                    disk.remove(path)
                else:
                    disk.truncate(path, min(length - base, disk.size(path)))
            if length < known:
                with pytest.raises(Damaged):
                    world.twin(disk, 0)
            else:
                twin = world.twin(disk, 0)
                assert twin.shard.log.end == max(end for end in ends if end <= length)


def test_b5_a_flip_in_the_log_is_dropped_only_where_no_frame_says_it_was_on_disk() -> None:
    for seed in range(times(4)):
        world = lived(seed)
        frames = frames_of(world)
        known = checkpoint_of(world.disk).log_offset
        segments = pieces_of(world.disk, "log")
        rng = random.Random(seed)
        for _ in range(60):
            at = rng.randint(known, world.shard.log.end - 1)
            hit = max((f for f in frames if f.offset <= at), key=lambda f: f.offset)
            disk = world.disk.copy()
            path, base = max((s for s in segments if s[1] <= at), key=lambda s: s[1])
            disk.flip(path, 8 * (at - base) + rng.randint(0, 7))
            if max(f.synced for f in frames if f is not hit) > hit.offset:
                with pytest.raises(Damaged):
                    world.twin(disk, 0)
            else:
                assert world.twin(disk, 0).shard.log.end == hit.offset


def test_garbage_behind_the_log_is_dropped() -> None:
    world = lived(5)
    path = files_in(world.disk, "log/")[-1]
    for garbage in (b"\0", b"\0" * 5000, b"DLYF" * 300, random.Random(1).randbytes(3000)):
        disk = world.disk.copy()
        disk.append(path, [garbage])
        twin = world.twin(disk, world.shard.log.end)
        assert twin.recovery.dropped_bytes == len(garbage)


def test_an_old_frame_behind_the_log_is_not_taken_for_a_new_one() -> None:
    """Bytes of this very log at another place, as a file system may leave them behind: their own offset differs."""
    world = lived(6)
    path = files_in(world.disk, "log/")[-1]
    disk = world.disk.copy()
    first = frames_of(world)[0]
    disk.append(path, [disk.read(f"{ROOT}/log/{0:020d}", 0, first.end)])
    assert world.twin(disk, world.shard.log.end).recovery.dropped_bytes == first.end


def test_files_of_another_shard_are_damage() -> None:
    world = lived(3)
    disk = world.disk.copy()
    persist.write_identity(disk, ROOT, replace(world.shard.identity, uid=5), SMALL.horizon_ms)
    with pytest.raises(Damaged, match="of shard"):
        persist.recover(disk, ROOT, SMALL)


def test_frames_of_another_shard_are_not_applied() -> None:
    world = lived(3)
    disk = world.disk.copy()
    first = next(f for f in frames_of(world) if f.offset >= checkpoint_of(disk).log_offset)
    path, base = max((s for s in pieces_of(disk, "log") if s[1] <= first.offset), key=lambda s: s[1])
    frame = memoryview(disk.files[path].data)[first.offset - base : first.end - base]
    frame[16:24] = bytes(8)  # the shard's uid; and a crc that fits
    frame[4:8] = zlib.crc32(frame[8:]).to_bytes(4, "little")
    with pytest.raises(Damaged, match="frame of shard 0"):
        world.twin(disk, 0)


def test_b5_segments_of_an_unsynced_tail_may_reach_the_disk_in_any_order() -> None:
    """The first of two unsynced segments is short or missing, the second is whole: a torn tail, not damage."""
    for lost in ("all", "half", "name"):
        world = World(1, SMALL)
        world.pump()
        synced = world.shard.log.synced
        for _ in range(30):
            world.enqueue([Item(1000, size=200)])
        batch = world.shard.log.next_batch(sync=False)
        assert batch is not None
        batch.run()
        segments = pieces_of(world.disk, "log")
        assert len(segments) > 3
        for path, base in segments[:2] if lost != "name" else segments[1:2]:
            keep = max(0, synced - base)
            if lost == "name":
                del world.disk.files[path]
            else:
                data = world.disk.files[path].data
                del data[keep + (len(data) - keep) // 2 * (lost == "half") :]
        twin = world.twin(world.disk, synced)
        assert twin.shard.log.end >= synced


def test_the_first_segment_of_a_new_log_may_be_the_one_that_is_lost() -> None:
    world = World(1, SMALL)
    for _ in range(30):
        world.enqueue([Item(1000, size=200)])
    batch = world.shard.log.next_batch(sync=False)
    assert batch is not None
    batch.run()
    del world.disk.files[f"{ROOT}/log/{0:020d}"]
    assert world.twin(world.disk, 0).shard.log.end == 0


# ---------------------------------------------------------------- wheels and checkpoint
def test_the_wheels_rebuilt_from_the_timer_log_are_the_wheels() -> None:
    for seed in range(times(10)):
        world = lived(seed)
        world.checkpoint()
        bare = world.disk.copy()
        bare.remove(f"{ROOT}/wheels")
        twins = [world.twin(disk, world.shard.log.end) for disk in (world.disk.copy(), bare)]
        for twin in twins:
            for level in ("minute", "hour"):
                mine, its = (getattr(w.shard.index, level).slots for w in (world, twin))
                assert np.array_equal(mine, its)
        assert twins[1].recovery.units > twins[0].recovery.units


def test_a_copy_of_the_wheels_newer_than_the_checkpoint_is_not_used() -> None:
    """Between checkpoint and copy an hour was cascaded: its ROLL units are in no file yet."""
    world = World(1, SMALL)
    world.enqueue([Item(25 * HOUR_MS + MINUTE_MS)])
    world.pump()
    world.checkpoint()
    world.advance(3 * HOUR_MS)
    world.settle()  # cascades
    world.copy_wheels()
    world.power_cut()
    world.advance(25 * HOUR_MS)
    world.settle()
    assert len(world.model.queue) == 1


def test_a_checkpoint_that_never_reached_the_disk_leaves_the_one_before() -> None:
    world = lived(9)
    before = world.disk.files[f"{ROOT}/checkpoint"].data
    world.begin_checkpoint()
    assert world.checkpointing is not None
    world.checkpointing.flush.run()  # the TimerLog has its units, the checkpoint does not name them
    world.power_cut()
    assert world.disk.files[f"{ROOT}/checkpoint"].data == before
    world.advance(6 * DAY_MS)
    world.settle()


# ---------------------------------------------------------------- threads
def test_jobs_run_on_other_threads_while_the_owner_goes_on() -> None:
    world = World(1, SMALL)
    rng = random.Random(1)
    with ThreadPoolExecutor(4) as pool:
        for _ in range(times(60)):
            world.enqueue(some_items(rng, 5))
            world.begin_checkpoint()
            world.pump()
            world.enqueue(some_items(rng, 5))
            world.begin_write()
            world.begin_load()
            world.begin_lookup(rng.sample(sorted(world.model.live), min(3, len(world.model.live))))
            running = []
            for job in (world.batch, world.checkpointing, world.loading, world.lookups[-1].lookup.job):
                if job is not None:
                    running.append(pool.submit(job.run))
            world.enqueue(some_items(rng, 5))
            world.cancel(*rng.sample(sorted(world.model.live), 2))
            world.tick()
            for each in running:
                each.result()
            world.ran |= {"write", "checkpoint", "load"}
            for finish in (world.finish_write, world.finish_checkpoint, world.finish_load):
                finish()
            world.lookups[-1].ran = True
            world.finish_cancel(-1)
            world.ran.clear()
            world.advance(rng.choice([1, 1000, 20 * MINUTE_MS]))
            while world.shard.index.cascade_due(world.now):
                world.begin_cascade()
                world.run_cascade()
                world.finish_cascade()
    world.pump()
    world.power_cut()
    finale(world)
