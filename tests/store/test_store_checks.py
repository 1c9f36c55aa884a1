"""A flipped bit in any file of a shard is noticed on read: Damaged that names the place, or it was not needed."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from delayapi.units import HOUR_MS
from delaynode.store.errors import Damaged, Unsynced
from delaynode.store.log import checks, commit_log
from delaynode.store.log.checks import FACTORS, checks_in, join_padded, record_checks
from delaynode.store.maintenance import checkpoint as ck
from delaynode.store.maintenance import persist
from delaynode.store.maintenance.marker import check_unmarked, clear_damaged, is_permanent, mark_damaged
from delaynode.store.queue.consume_queue import QUEUED, QUEUED_BYTES, ConsumeQueue
from delaynode.store.queue.consume_queue import own_checks as queue_checks
from delaynode.store.shard import Shard
from delaynode.store.timer import timer_log
from delaynode.store.timer.timer_log import STORED, UNIT_BYTES
from delaynode.store.timer.timer_log import own_checks as timer_checks
from delaynode.store.types import I64, U32, Pair
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.store.support.consuming import World
from tests.store.support.lives import checkpoint_of, lived, pieces_of
from tests.store.support.memory_files import MemoryFiles
from tests.store.support.producing import Item
from tests.store.support.walks import times
from tests.store.support.world import ROOT, SMALL, START_MS, UID

CI = settings(max_examples=times(60), deadline=None)

sizes = st.lists(st.integers(1, 40), min_size=1, max_size=12)
starts = st.integers(0, 2**50)
bodies = st.randoms(use_true_random=False)


@pytest.fixture(
    scope="module",
    autouse=True,
    params=sorted({False, checks.IS_COMPILED}),
    ids=["numpy", "compiled"][: 1 + checks.IS_COMPILED],
)
def is_compiled(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whose sums the checks are made of: NumPy's, and where there is compiled code its."""
    with patch.object(checks, "IS_COMPILED", request.param):
        yield


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def columns(size: list[int]) -> tuple[U32, I64]:
    return np.array(size, np.uint32), np.arange(7, 7 + len(size))


# ---------------------------------------------------------------- records
@CI
@given(sizes, starts, bodies)
def test_any_flipped_bit_changes_the_check_of_its_record_and_of_no_other(
    size: list[int], start: int, rng: random.Random
) -> None:
    data, (sized, seq) = rng.randbytes(sum(size)), columns(size)
    right = record_checks(data, start, sized, seq)
    owner = np.repeat(np.arange(len(size)), size)
    for bit in range(8 * len(data)):
        differs = np.flatnonzero(record_checks(flipped(data, bit), start, sized, seq) != right)
        assert differs.tolist() == [owner[bit // 8]]


def test_two_flipped_bits_in_a_record_are_noticed_wherever_they_are() -> None:
    rng = random.Random(1)
    for _ in range(times(3000)):
        size = rng.choice([1, 2, 9, 64, 300])
        data, start = rng.randbytes(size), rng.randrange(2**40)
        sized, seq = columns([size])
        one, other = rng.sample(range(8 * size), 2)
        changed = flipped(flipped(data, one), other)
        assert record_checks(changed, start, sized, seq) != record_checks(data, start, sized, seq)


@pytest.mark.parametrize("content", [bytes(1024), b"\xff" * 1024, random.Random(1).randbytes(1024)])
def test_one_line_of_memory_that_flips_in_two_words_is_noticed(content: bytes) -> None:
    """The same bit of two words: what a plain sum or xor of the words cancels out."""
    sized, seq = columns([1024])
    right = record_checks(content, 3, sized, seq)
    rng = random.Random(2)
    for _ in range(times(2000)):
        bit, one, other = rng.randrange(64), *rng.sample(range(128), 2)
        changed = flipped(flipped(content, 64 * one + bit), 64 * other + bit)
        assert record_checks(changed, 3, sized, seq) != right


def test_words_that_change_places_zeros_and_the_body_of_another_message_are_noticed() -> None:
    data = random.Random(1).randbytes(4096)
    sized, seq = columns([4096])
    right = record_checks(data, 8, sized, seq)
    assert record_checks(data[512:1024] + data[:512] + data[1024:], 8, sized, seq) != right
    assert record_checks(bytes(512) + data[512:], 8, sized, seq) != right
    assert record_checks(data, 8, sized, seq + 1) != right
    assert record_checks(data[:4095], 8, sized - np.uint32(1), seq) != right


@CI
@given(sizes, starts, bodies)
def test_a_check_is_the_same_however_the_log_is_cut_into_buffers(
    size: list[int], start: int, rng: random.Random
) -> None:
    data, (sized, seq) = rng.randbytes(sum(size)), columns(size)
    whole = record_checks(data, start, sized, seq).tolist()
    stop = np.cumsum(sized, dtype=np.int64)
    low = stop - sized
    parts = [data[a:b] for a, b in zip(low.tolist(), stop.tolist(), strict=True)]
    one_by_one = [
        int(record_checks(part, start + at, sized[i : i + 1], seq[i : i + 1])[0])
        for i, (part, at) in enumerate(zip(parts, low.tolist(), strict=True))
    ]
    assert one_by_one == whole
    with patch.object(checks, "CHUNK_BYTES", rng.choice([1, 20, 64])):
        assert record_checks(data, start, sized, seq).tolist() == whole
    order = np.array(rng.sample(range(len(size)), len(size)))
    begin, end = start + low[order], start + stop[order]
    joined = join_padded(begin.tolist(), [parts[i] for i in order])
    which = np.arange(len(size))
    scattered = checks_in(joined, begin, end, which, begin, end - begin, seq[order])
    assert scattered.tolist() == [whole[i] for i in order]
    cut = rng.randint(1, len(size))  # two extents, the records of each one after the other
    lows, highs = np.array([start, start + low[cut - 1]]), np.array([start + stop[cut - 1], start + stop[-1]])
    joined = join_padded(lows.tolist(), [data[a - start : b - start] for a, b in zip(lows, highs, strict=True)])
    which = (np.arange(len(size)) >= cut).astype(np.int64)
    assert checks_in(joined, lows, highs, which, start + low, stop - low, seq).tolist() == whole


def test_records_larger_than_what_is_looked_at_together_have_checks_too() -> None:
    size = [3, 400_000, 5, 131_072, 131_073, 1]
    data, (sized, seq) = random.Random(1).randbytes(sum(size)), columns(size)
    whole = record_checks(data, 1001, sized, seq)
    with patch.object(checks, "CHUNK_BYTES", 1):
        assert record_checks(data, 1001, sized, seq).tolist() == whole.tolist()
    assert (record_checks(flipped(data, 8 * 300_000), 1001, sized, seq) != whole).tolist() == [0, 1, 0, 0, 0, 0]


# ---------------------------------------------------------------- units
def test_no_flip_in_a_unit_can_miss_the_bits_that_are_kept() -> None:
    """The claim behind unit_checks(): a flip adds or takes 2^b times a factor, and that reaches the highest 16 bits."""
    for factor in FACTORS.tolist():
        for bit in range(32):
            change = factor << bit & 2**64 - 1
            assert 2**48 <= change < 2**64 - 2**48


UNITS = [
    (STORED, lambda rows, at: timer_checks(rows, at, UID), UNIT_BYTES, 16),
    (QUEUED, lambda rows, at: queue_checks(rows, int(at[0]), UID), 1, 32),
]


@pytest.mark.parametrize(("dtype", "check", "step", "bits"), UNITS)
def test_any_flipped_bit_in_a_unit_is_noticed_and_so_is_another_place(dtype, check, step, bits) -> None:  # type: ignore[no-untyped-def]
    rng = random.Random(1)
    for _ in range(times(5)):
        data = rng.randbytes(3 * dtype.itemsize)
        place = step * np.arange(5, 8)
        rows = np.frombuffer(bytearray(data), dtype)
        rows["own"] = check(rows, place)
        whole = rows.tobytes()
        assert np.array_equal(np.frombuffer(whole, dtype)["own"], check(np.frombuffer(whole, dtype), place))
        for bit in range(8 * len(whole)):
            rows = np.frombuffer(flipped(whole, bit), dtype)
            assert (rows["own"] != check(rows, place)).tolist() == [bit // 8 // dtype.itemsize == i for i in range(3)]
        rows = np.frombuffer(whole, dtype)
        missed = sum(int((rows["own"] == check(rows, place + step * shift)).sum()) for shift in range(1, 200))
        assert missed <= (2 if bits == 16 else 0)


# ---------------------------------------------------------------- through a shard
@pytest.fixture(params=[(0, 32), (64, 1), (64, 32)], ids=["extents", "runs", "joined"])
def reading(request: pytest.FixtureRequest) -> Iterator[None]:
    """The three ways in which records are read."""
    few, long = request.param
    with patch.object(commit_log, "MAX_UNSORTED_RUNS", few), patch.object(commit_log, "LONG_RUN", long):
        yield


def opened(disk: MemoryFiles) -> Shard:
    return persist.recover(disk, ROOT, SMALL)[0]


def flip_at(disk: MemoryFiles, part: str, at: int, bit: int) -> None:
    """Flip a bit of the byte at this offset of a segmented file."""
    path, base = max((piece for piece in pieces_of(disk, part) if piece[1] <= at), key=lambda piece: piece[1])
    disk.flip(path, 8 * (at - base) + bit)


@pytest.mark.usefixtures("reading")
def test_a_flip_in_an_old_body_is_damage_that_names_its_message() -> None:
    world = lived(11)
    queued = world.shard.queue.read(0, world.shard.queue.visible)
    old = queued[queued["offset"] < checkpoint_of(world.disk).log_offset]
    rng = random.Random(11)
    for _ in range(times(60)):
        row = old[rng.randrange(len(old))]
        disk = world.disk.copy()
        flip_at(disk, "log", int(row["offset"]) + rng.randrange(int(row["size"])), rng.randrange(8))
        shard = opened(disk)
        rows = shard.queue.read(0, shard.queue.visible)
        message = (
            f"log: the record at {row['offset']}, .* seq {row['seq']}, due {row['due']} is not what its check says"
        )
        with pytest.raises(Damaged, match=message):
            shard.read_records(rows)
        others = rows[rows["offset"] != row["offset"]]
        assert b"".join(shard.read_records(others)) == b"".join(world.shard.read_records(others))
        one = rows[rows["offset"] == row["offset"]][:1]
        disk.rng = random.Random(1)  # 0.13: it is in the page cache
        with pytest.raises(Damaged, match=message):
            shard.read_cached(one)


def test_a_flip_in_a_queue_unit_is_damage_that_names_its_offset() -> None:
    world = lived(12)
    end = checkpoint_of(world.disk).queue_end
    rng = random.Random(12)
    for _ in range(times(100)):
        at = rng.randrange(end)
        disk = world.disk.copy()
        flip_at(disk, "queue", QUEUED_BYTES * at + rng.randrange(QUEUED_BYTES), rng.randrange(8))
        found = f"queue: the check of the unit at queue offset {at} differs"
        with pytest.raises(Damaged, match=found):  # where a group has a tag filter, recovery reads it already
            opened(disk).queue.read(0, end)
        queue = ConsumeQueue(disk, f"{ROOT}/queue", SMALL.queue_segment_bytes, UID)
        assert queue.read(0, at).tobytes() == world.shard.queue.read(0, at).tobytes()


def test_queue_units_that_changed_places_are_damage() -> None:
    disk = lived(12).disk.copy()
    data = disk.files[pieces_of(disk, "queue")[0][0]].data
    data[: 2 * QUEUED_BYTES] = data[QUEUED_BYTES : 2 * QUEUED_BYTES] + data[:QUEUED_BYTES]
    with pytest.raises(Damaged, match="queue offset 0 differs"):
        opened(disk).queue.read(0, 2)


def all_pending(shard: Shard) -> list[tuple[object, ...]]:
    """Every live row that wheel and arrivals have above the watermark."""
    index = shard.index
    job = index.begin_scan(Pair(index.watermark.due + 1, 0), Pair(index.last_due_ms(), 0))
    try:
        job.run()
        rows, live = job.result()
    finally:
        index.close_view(job.view)
    wanted = rows[live][["due", "seq", "offset", "size", "key", "tag", "check"]]
    return [tuple(row) for row in wanted.tolist()]


def test_a_flip_in_a_timer_unit_below_the_wheels_copy_is_damage_or_was_not_needed() -> None:
    world = lived(13)
    copy = ck.read(world.disk, f"{ROOT}/wheels")
    assert copy is not None
    end = copy[0].timer_end
    assert end > 10 * UNIT_BYTES
    truth = all_pending(opened(world.disk.copy()))
    rng, found = random.Random(13), 0
    for _ in range(times(150)):
        at = rng.randrange(end)
        disk = world.disk.copy()
        flip_at(disk, "timerlog", at, rng.randrange(8))
        reason = ""
        try:
            assert all_pending(opened(disk)) == truth
        except Damaged as error:
            reason = str(error)
        assert reason in ("", f"{ROOT}/timerlog: the check of the unit at {at - at % UNIT_BYTES} differs")
        found += bool(reason)
    assert found


@pytest.mark.parametrize("blocks", [(1, 1), (2, 4), (256, 65536)])
def test_a_chain_is_checked_in_whatever_blocks_it_is_read(blocks: tuple[int, int]) -> None:
    world = World(14, replace(SMALL, window_budget=1, chunk_units=1000))
    for _ in range(3):
        world.enqueue(items_of(30))
        world.pump()
        world.checkpoint()
    world.copy_wheels()
    with patch.object(timer_log, "FIRST_BLOCK", blocks[0]), patch.object(timer_log, "LARGEST_BLOCK", blocks[1]):
        truth = all_pending(opened(world.disk.copy()))
        assert len(truth) == 90
        for unit in range(93):
            disk = world.disk.copy()
            flip_at(disk, "timerlog", unit * UNIT_BYTES + unit % UNIT_BYTES, unit % 8)
            if unit % 31 == 0:  # a header: of no chain
                assert all_pending(opened(disk)) == truth
                continue
            with pytest.raises(Damaged, match=f"the unit at {unit * UNIT_BYTES} differs"):
                all_pending(opened(disk))


def items_of(count: int) -> list[Item]:
    return [Item(HOUR_MS + at) for at in range(count)]


# ---------------------------------------------------------------- the marker
def test_a_copy_that_is_marked_damaged_is_not_opened_until_the_mark_is_cleared() -> None:
    world = lived(15)
    mark_damaged(world.disk, ROOT, "CommitLog: EIO", START_MS, world.shard.committed_offset)
    mark_damaged(world.disk, ROOT, "a later trouble", START_MS, 0)
    world.disk.crash()
    for _ in range(2):
        with pytest.raises(Damaged, match="has failed before: CommitLog: EIO"):
            opened(world.disk.copy())
    clear_damaged(world.disk, ROOT)
    world.twin(world.disk, world.shard.log.end)


@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"[]", b"{}"])
def test_a_mark_counts_whatever_is_left_of_it(content: bytes) -> None:
    disk = MemoryFiles(random.Random(1))
    disk.replace(f"{ROOT}/damaged", content)
    with pytest.raises(Damaged, match="failed before"):
        check_unmarked(disk, ROOT)


def test_a_recovery_whose_fsync_fails_is_not_tried_again() -> None:
    """The second fsync would succeed: the error is reported once, and the pages count as written."""
    world = lived(16)
    world.enqueue(items_of(2))
    world.begin_write()
    world.run_write()
    world.disk.fail_next("sync", path="/log/")
    with pytest.raises(Unsynced):
        opened(world.disk)
    with pytest.raises(Damaged, match="has failed before: recovery"):
        opened(world.disk)


def test_no_room_is_no_damage_and_a_failed_fsync_is_whatever_it_says() -> None:
    assert not is_permanent(OSError(errno.ENOSPC, "No space left on device"))
    assert is_permanent(Unsynced(errno.ENOSPC, "No space left on device"))
    assert is_permanent(OSError(errno.EIO, "Input/output error"))
    assert is_permanent(Damaged("a bit"))
    assert not is_permanent(TimeoutError())
    assert not is_permanent(KeyError("a mistake in the program"))


def test_a_committed_frame_is_never_cut() -> None:
    world = lived(17)
    log = world.shard.log
    with pytest.raises(Damaged, match=f"not cut at {world.shard.committed_offset - 1}"):
        log.cut(world.shard.committed_offset - 1)
    assert log.end == world.shard.log_end
    log.cut(world.shard.committed_offset)
