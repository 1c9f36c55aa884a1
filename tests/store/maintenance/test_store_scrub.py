"""The scrub: a lap reads all that it should, finds any flipped bit and names it, and passes over what is freed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from delaynode.store.errors import Damaged
from delaynode.store.log.segments import SegmentedFile
from delaynode.store.maintenance import scrub
from delaynode.store.maintenance.scrub import Scrub, scrub_segment, size_of
from delaynode.store.queue.consume_queue import QUEUED_BYTES

from tests.store.support.consuming import World
from tests.store.support.freeable import spared
from tests.store.support.lives import a_life, lived, pieces_of
from tests.store.support.producing import Item
from tests.store.support.walks import times
from tests.store.support.world import SMALL


def lap(world: World, start: float = 0.0, between: Callable[[], None] = lambda: None) -> int:
    """Bytes read. Raises Damaged."""
    work = Scrub(world.shard, start)
    while (step := work.begin()) is not None:
        between()
        step.run()
        work.finish(step)
    return work.bytes


def lap_of_a_copy_in_service(world: World) -> list[str]:
    """What is wrong with files that the copy does without. Raises Damaged for others."""
    work, spare = Scrub(world.shard, 0.0), []
    while (step := work.begin()) is not None:
        try:
            step.run()
        except Damaged as error:
            if not work.pass_over_spare(step):
                raise
            spare.append(str(error))
        else:
            work.finish(step)
    return spare


def closed(world: World, part: str) -> list[tuple[str, int]]:
    """Segments that a lap reads: (path, size)."""
    pieces = [(path, len(world.disk.files[path].data)) for path, _ in pieces_of(world.disk, part)]
    return pieces[:-1] if part == "log" else pieces


@pytest.mark.parametrize("step_bytes", [1, 200, 1 << 20])
def test_a_lap_reads_everything_once_and_finds_nothing_wrong_in_a_healthy_shard(
    step_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub, "STEP_BYTES", max(step_bytes, 60))
    for seed in range(times(6)):
        world = lived(seed)
        expected = sum(size for part in ("log", "timerlog", "queue") for _, size in closed(world, part))
        for start in (0.0, 0.37, 0.99):
            assert expected <= lap(world, start) <= expected * (10 if step_bytes < 1000 else 1)
        assert size_of(world.shard) >= expected


@pytest.mark.parametrize("part", ["log", "timerlog", "queue"])
def test_any_flipped_bit_is_found_with_its_segment_and_place(part: str) -> None:
    world = lived(4)
    rng = random.Random(part)
    for _ in range(times(60)):
        path, size = rng.choice(closed(world, part))
        bit = rng.randrange(8 * size)
        world.disk.flip(path, bit)
        with pytest.raises(Damaged, match=path) as caught:
            lap(world, rng.random())
        at = int(str(caught.value).split("byte ")[1].split(" ")[0])
        assert at <= bit // 8
        if part == "queue":
            assert at == bit // 8 // QUEUED_BYTES * QUEUED_BYTES
        world.disk.flip(path, bit)
    lap(world)


@pytest.mark.parametrize("part", ["log", "timerlog", "queue"])
def test_rot_in_files_that_only_the_previous_checkpoint_needs_is_told_apart(part: str) -> None:
    world, spare = spared(part)
    assert lap_of_a_copy_in_service(world) == []
    for path in spare:
        world.disk.flip(path, 333)
    found = lap_of_a_copy_in_service(world)
    assert [error.split(": byte ")[0] for error in found] == spare
    needed = next(path for path, _ in closed(world, part) if path not in spare)
    world.disk.flip(needed, 333)
    with pytest.raises(Damaged, match=needed):
        lap_of_a_copy_in_service(world)


@pytest.mark.parametrize("part", ["log", "timerlog", "queue"])
def test_rot_in_a_file_that_went_before_the_owner_heard_of_it_is_passed_over(part: str) -> None:
    """run() is on another thread, and a checkpoint may end before the owner sees what it raised."""
    world, (path, *_) = spared(part)
    world.disk.flip(path, 333)
    work = Scrub(world.shard, 0.0)
    while (step := work.begin()) is not None:
        try:
            step.run()
        except Damaged:
            world.checkpoint()
            assert path not in world.disk.files
            assert work.pass_over_spare(step)
        else:
            work.finish(step)


def test_a_missing_or_shortened_segment_is_found() -> None:
    for part in ("log", "timerlog", "queue"):
        for how in ("missing", "short"):
            world = lived(4)
            path, size = closed(world, part)[0]
            if how == "missing":
                world.disk.remove(path)
            else:
                world.disk.truncate(path, size - 1)
            with pytest.raises(Damaged, match=path):
                lap(world)


def test_what_is_freed_meanwhile_is_passed_over() -> None:
    """At any step, a segment is dropped and its file removed, in the order in which the host does it."""
    for seed in range(times(30)):
        world, rng = lived(seed % 5), random.Random(seed)
        files = [world.shard.log.file, world.shard.index.log.file, world.shard.queue.file]

        def free(rng: random.Random = rng, world: World = world, files: list = files) -> None:  # type: ignore[type-arg]
            file = rng.choice(files)
            if rng.random() < 0.5 and len(file.bases) > 1:
                for path in file.drop([rng.choice(file.bases[:-1])]):
                    world.disk.remove(path)

        lap(world, rng.random(), free)


def test_a_segment_freed_in_the_middle_of_a_step_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    world = lived(3)
    file = world.shard.log.file
    work = Scrub(world.shard, 0.0)
    step = work.begin()
    assert step is not None
    path = step.scrub_range.path
    read = world.disk.read

    def freed_while_it_is_read(path_: str, offset: int, length: int) -> bytes:
        if path_ == path and step.scrub_range.base in file.bases:
            file.drop([step.scrub_range.base])
            return random.Random(1).randbytes(length)  # its descriptor is another file's by now
        return read(path_, offset, length)

    monkeypatch.setattr(world.disk, "read", freed_while_it_is_read)
    step.run()
    assert step.scrub_range.offset == step.scrub_range.end


def test_a_shard_that_goes_on_is_scrubbed_meanwhile_and_found_well() -> None:
    """Everything goes on between the steps: appends, ticks, checkpoints, what is freed."""
    for seed in range(times(8)):
        world = World(seed, replace(SMALL, log_segment_bytes=600, queue_segment_bytes=120))
        a_life(world, random.Random(seed))
        rng = random.Random(seed)

        def live_on(rng: random.Random = rng, world: World = world) -> None:
            world.enqueue([Item(rng.choice((0, 50, 70_000)))] * 3)
            world.advance(100)
            world.settle()
            if rng.random() < 0.2:
                world.checkpoint()

        for _ in range(3):
            lap(world, rng.random(), live_on)


@pytest.mark.parametrize("part", ["timerlog", "queue"])
def test_a_segment_that_is_cut_off_in_a_unit_is_damaged(part: str) -> None:
    """Of a copy that is not in use: `delaynode verify` looks at what only an older checkpoint needs."""
    world = lived(4)
    for path, size in closed(world, part):
        whole = bytes(world.disk.files[path].data)
        directory, _, base = path.rpartition("/")
        for cut in (1, 7, 47):
            world.disk.files[path].data[:] = whole[: size - cut]
            file = SegmentedFile(world.disk, directory, 1 << 30)
            with pytest.raises(Damaged, match=path):
                scrub_segment(part, file, int(base), world.shard.identity.uid)
        world.disk.files[path].data[:] = whole
