"""Flipped bits, missing and shortened files: Damaged or a right state, never another exception."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from delayapi.units import HOUR_MS
from delaynode.store.errors import Damaged, Refused
from delaynode.store.log.frames import BadFrame, Frame, FrameKind, parse, parse_group, parse_progress
from delaynode.store.maintenance import persist
from delaynode.store.shard import Shard

from tests.store.support.consuming import World
from tests.store.support.lives import checkpoint_of, files_in, lived
from tests.store.support.memory_files import MemoryFiles
from tests.store.support.walks import times
from tests.store.support.world import ROOT, SMALL, START_MS, UID


# ---------------------------------------------------------------- every kind of file
def flips(world: World, part: str, rng: random.Random, count: int) -> Iterator[MemoryFiles]:
    for _ in range(count):
        disk = world.disk.copy()
        path = rng.choice(files_in(disk, part))
        disk.flip(path, rng.randrange(8 * len(disk.files[path].data)))
        yield disk


def test_a_flip_in_the_identity_is_damage() -> None:
    world = lived(2)
    path = f"{ROOT}/shard.json"
    for bit in range(8 * len(world.disk.files[path].data)):
        disk = world.disk.copy()
        disk.flip(path, bit)
        with pytest.raises(Damaged):
            persist.recover(disk, ROOT, SMALL)


def test_a_flip_in_the_checkpoint_changes_nothing() -> None:
    world = lived(2)
    for disk in flips(world, "checkpoint", random.Random(1), times(300)):
        assert world.twin(disk, world.shard.log.end).recovery.damage


def test_a_flip_in_the_wheels_changes_nothing() -> None:
    world = lived(2)
    end = world.shard.log.end
    whole = world.twin(world.disk.copy(), end)
    for disk in flips(world, "wheels", random.Random(2), times(40)):
        twin = world.twin(disk, end)
        assert np.array_equal(twin.shard.index.minute.slots, whole.shard.index.minute.slots)


@pytest.mark.parametrize("part", ["log/", "timerlog/", "queue/", "checkpoint", "shard.json", "wheels"])
def test_no_flip_anywhere_raises_anything_but_damaged(part: str) -> None:
    """That no answer is wrong either is for test_store_file_fuzz.py, which knows what is right."""
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
    shard.begin_term(shard.identity.epoch, "n0", now)
    for _ in range(40):
        now += 4 * HOUR_MS
        while shard.index.cascade_due(now):
            cascade = shard.index.begin_cascade()
            if cascade is not None:
                cascade.run()
                shard.index.finish_cascade(cascade)
        if shard.loader.is_due(now):
            load = shard.index.begin_load(shard.loader.target_ms(now), 100)
            assert load is not None
            load.run()
            shard.index.finish_load(load)
        shard.tick(now)
        batch = shard.next_batch(sync=True)
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
    needed = {"log/": state.log_offset, "timerlog/": state.timer_end, "queue/": 40 * state.queue_end}
    for path in files_in(world.disk, part):
        disk = world.disk.copy()
        size = len(disk.files[path].data)
        cut = rng.randrange(size)
        if how == "missing":
            disk.remove(path)
            cut = 0
        else:
            disk.truncate(path, cut)
        if part in ("wheels", "checkpoint"):
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


# ---------------------------------------------------------------- frames
def test_random_bytes_are_no_frame_and_random_payloads_no_crash() -> None:
    rng = random.Random(1)
    for _ in range(times(2000)):
        data = memoryview(b"DLYF" + rng.randbytes(rng.randint(0, 200)))
        with pytest.raises(BadFrame):
            parse(data, 0, 0, UID)
    for _ in range(times(2000)):
        payload = memoryview(rng.randbytes(rng.randint(0, 60)))
        for kind in (FrameKind.GROUP, FrameKind.ACK, FrameKind.RETRY, FrameKind.DEAD, FrameKind.DEAD_REASON):
            frame = Frame(kind, 0, 1, rng.randint(0, 3), 0, START_MS, 0, 0, payload)
            try:
                (parse_group if kind is FrameKind.GROUP else parse_progress)(frame)
            except Damaged:
                continue
