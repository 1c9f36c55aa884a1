"""Recovery: any prefix, torn or flipped tail gives a right state; damage of what was on disk is Damaged, never a wrong
answer and never another exception.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from delaynode.store import checkpoint as ck
from delaynode.store import persist
from delaynode.store.commitlog import CommitLog
from delaynode.store.errors import Damaged, Refused
from delaynode.store.frames import BadFrame, Frame, Kind, parse, parse_group, parse_progress
from delaynode.store.shard import Shard
from delaynode.store.timerindex import DAY_MS, HOUR_MS, MINUTE_MS

from tests.store.consuming import World
from tests.store.memory_files import MemoryFiles
from tests.store.producing import Item
from tests.store.steps import finale
from tests.store.walks import times
from tests.store.world import ROOT, SMALL, START_MS, UID


def some_items(rng: random.Random, count: int) -> list[Item]:
    delays = (-1, 1, 50, 1000, 70_000, HOUR_MS, 30 * HOUR_MS, 5 * DAY_MS)
    return [Item(rng.choice(delays) + rng.randint(0, 3), size=rng.randint(1, 40)) for _ in range(count)]


def a_life(world: World, rng: random.Random, *, wheels: bool = True) -> None:
    """A bit of everything: two checkpoints, a copy of the wheels at the first, frames after the second."""
    for part in range(3):
        world.join("g", ("red",) if part == 1 else ())
        for _ in range(3):
            world.enqueue(some_items(rng, 4), producer=rng.randint(1, 2) * (part > 0), number=0)
            world.pump()
        world.advance(1500)
        world.settle()
        live = sorted(world.model.live)
        if len(live) > 2:  # a crash may have taken them
            world.cancel(live[0], live[-1])
            world.reschedule(live[1], Item(3000))
        offsets = world.deliver("g", 3)
        world.ack("g", [(offset, offset + 1) for offset in sorted(offsets)[:1]])
        world.nack("g", [(offset, 1) for offset in offsets[1:]], 5000)
        world.advance(6 * HOUR_MS)  # an hour or two comes down to minutes
        world.settle()
        if part < 2:
            world.checkpoint()
        if part == 0 and wheels:
            world.copy_wheels()
    world.pump()


def lived(seed: int, *, wheels: bool = True) -> World:
    world = World(seed, SMALL)
    a_life(world, random.Random(seed), wheels=wheels)
    return world


def frames_of(world: World, disk: MemoryFiles | None = None) -> list[Frame]:
    log = CommitLog.open(disk or world.disk.copy(), f"{ROOT}/log", UID, SMALL.log_segment_bytes)
    return list(log.scan(0))


def checkpoint_of(disk: MemoryFiles) -> ck.Checkpoint:
    read = ck.read(disk, f"{ROOT}/checkpoint")
    assert read is not None
    return read[0]


def files_in(disk: MemoryFiles, part: str) -> list[str]:
    return sorted(path for path in disk.files if path.startswith(f"{ROOT}/{part}"))


def pieces_of(disk: MemoryFiles, part: str) -> list[tuple[str, int]]:
    """(path, start offset) of a segmented file's segments."""
    return [(path, int(path.rsplit("/", 1)[1])) for path in files_in(disk, f"{part}/")]


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
        twin = world.twin(world.disk.copy(), world.shard.committed)
        for crash_at in range(twin.disk.writes - before if twin.disk.writes > before else twin.disk.writes):
            disk = world.disk.copy()
            disk.crash_after(crash_at)
            world.twin(disk, world.shard.committed)


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


def test_a_flip_in_the_log_is_dropped_only_where_no_frame_says_it_was_on_disk() -> None:
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


def test_a_frame_of_another_shard_is_damage_or_dropped() -> None:
    other = World(3, SMALL)
    path = files_in(other.disk, "shard.json")[0]
    other.disk.files[path].data[:] = other.disk.files[path].data.replace(b": 183", b": 184")
    with pytest.raises(Damaged):
        persist.recover(other.disk, ROOT, SMALL)


def test_segments_of_an_unsynced_tail_may_reach_the_disk_in_any_order() -> None:
    """The first of two unsynced segments is short or missing, the second is whole: a torn tail, not damage."""
    for lost in ("all", "half", "name"):
        world = World(1, SMALL)
        world.pump()
        synced = world.shard.log.synced
        for _ in range(30):
            world.enqueue([Item(1000, size=200)])
        batch = world.shard.log.take(sync=False)
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
    batch = world.shard.log.take(sync=False)
    assert batch is not None
    batch.run()
    del world.disk.files[f"{ROOT}/log/{0:020d}"]
    assert world.twin(world.disk, 0).shard.log.end == 0


# ---------------------------------------------------------------- every kind of file
def flips(world: World, part: str, rng: random.Random, count: int) -> Iterator[MemoryFiles]:
    for _ in range(count):
        disk = world.disk.copy()
        path = rng.choice(files_in(disk, part))
        disk.flip(path, rng.randrange(8 * len(disk.files[path].data)))
        yield disk


@pytest.mark.parametrize("part", ["checkpoint", "shard.json"])
def test_a_flip_in_a_small_file_is_damage(part: str) -> None:
    world = lived(2)
    path = files_in(world.disk, part)[0]
    size = len(world.disk.files[path].data)
    rng = random.Random(part)
    bits = range(8 * size) if part == "shard.json" else [rng.randrange(8 * size) for _ in range(times(300))]
    for bit in bits:
        disk = world.disk.copy()
        disk.flip(path, bit)
        with pytest.raises(Damaged):
            persist.recover(disk, ROOT, SMALL)


def test_a_flip_in_the_wheels_changes_nothing() -> None:
    world = lived(2)
    for disk in flips(world, "wheels", random.Random(2), times(40)):
        twin = world.twin(disk, world.shard.log.end)
        assert np.array_equal(twin.shard.index.minute.slots, world.shard.index.minute.slots)


def test_a_flip_in_the_timer_log_is_damage_wherever_the_wheels_are_rebuilt_from_it() -> None:
    world = lived(3, wheels=False)
    end = checkpoint_of(world.disk).timer_end
    rng = random.Random(3)
    for _ in range(times(120)):
        at = rng.randrange(end)
        disk = world.disk.copy()
        path, base = max((s for s in pieces_of(disk, "timerlog") if s[1] <= at), key=lambda s: s[1])
        disk.flip(path, 8 * (at - base) + rng.randrange(8))
        with pytest.raises(Damaged):
            persist.recover(disk, ROOT, SMALL)


@pytest.mark.parametrize("part", ["log/", "timerlog/", "queue/", "checkpoint", "shard.json", "wheels"])
def test_no_flip_anywhere_raises_anything_but_damaged(part: str) -> None:
    """Bytes that recovery need not read again may give wrong answers here (a scrub is to find them), no other error."""
    world = lived(4)
    for disk in flips(world, part, random.Random(part), times(60)):
        try:
            shard, _ = persist.recover(disk, ROOT, SMALL)
            use(shard, disk, world.now)
        except (Damaged, Refused):
            continue


def use(shard: Shard, disk: MemoryFiles, now: int) -> None:
    """Release, read and hand out all that there is, compared with nothing."""
    persist.accept_epoch(disk, ROOT, shard, shard.identity.epoch + 1)
    shard.begin_reign(shard.identity.epoch, "n0", now)
    for _ in range(40):
        now += 4 * HOUR_MS
        while shard.index.cascade_due(now):
            cascade = shard.index.begin_cascade()
            if cascade is not None:
                cascade.run()
                shard.index.finish_cascade(cascade)
        if shard.wants_load(now):
            load = shard.index.begin_load(shard.load_target(now), 100)
            assert load is not None
            load.run()
            shard.index.finish_load(load)
        shard.tick(now)
        batch = shard.take_writes(sync=True)
        if batch is not None:
            batch.run()
            shard.finish_writes(batch)
        shard.commit(shard.log.synced)
    shard.read_records(shard.queue.read(0, shard.queue.visible))
    for name in shard.consumers.groups:
        delivery = shard.consumers.deliver(name, now, 1000, 100, 1 << 30)
        shard.consumers.nack(name, delivery.offset, delivery.attempt, 0, now)


@pytest.mark.parametrize("part", ["log/", "timerlog/", "queue/", "checkpoint", "shard.json", "wheels"])
@pytest.mark.parametrize("how", ["missing", "cut"])
def test_a_missing_or_shortened_file_is_damage_or_was_not_needed(part: str, how: str) -> None:
    world = lived(7)
    rng = random.Random(part)
    state = checkpoint_of(world.disk)
    needed = {"log/": state.log_offset, "timerlog/": state.timer_end, "queue/": 32 * state.queue_end}
    for path in files_in(world.disk, part):
        disk = world.disk.copy()
        size = len(disk.files[path].data)
        cut = rng.randrange(size)
        if how == "missing":
            disk.remove(path)
            cut = 0
        else:
            disk.truncate(path, cut)
        if part == "wheels":
            world.twin(disk, world.shard.log.end)
        elif part in needed and int(path.rsplit("/", 1)[1]) + cut >= needed[part]:
            # behind the checkpoint: the log must be whole there too, but for its last segment; the rest is made anew
            try:
                twin = world.twin(disk, 0)
            except Damaged:
                assert part == "log/"
            else:
                assert part == "log/" or twin.shard.log.end == world.shard.log.end
        else:
            with pytest.raises(Damaged):
                persist.recover(disk, ROOT, SMALL)


def test_a_clean_store_is_never_damaged_and_recovers_to_the_same_files_again_and_again() -> None:
    for seed in range(times(10)):
        world = lived(seed)
        twin = world.twin(world.disk.copy(), world.shard.log.end)
        again = world.twin(twin.disk.copy(), world.shard.log.end)
        assert {p: f.data for p, f in twin.disk.files.items()} == {p: f.data for p, f in again.disk.files.items()}
        assert again.recovery.dropped_bytes == 0


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


# ---------------------------------------------------------------- frames
def test_random_bytes_are_no_frame_and_random_payloads_no_crash() -> None:
    rng = random.Random(1)
    for _ in range(times(2000)):
        data = memoryview(b"DLYF" + rng.randbytes(rng.randint(0, 200)))
        with pytest.raises(BadFrame):
            parse(data, 0, 0, UID)
    for _ in range(times(2000)):
        payload = memoryview(rng.randbytes(rng.randint(0, 60)))
        for kind in (Kind.GROUP, Kind.ACK, Kind.RETRY, Kind.DEAD):
            frame = Frame(kind, 0, 1, rng.randint(0, 3), 0, START_MS, 0, 0, payload)
            try:
                (parse_group if kind is Kind.GROUP else parse_progress)(frame)
            except Damaged:
                continue


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
