"""A slave's copy: it takes a master's frames as they are, applies what is committed, and can be led from there."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import pytest
from delaynode.store.errors import Damaged, Trimmed
from delaynode.store.log.batches import ReceivedFrames, WriteBatch
from delaynode.store.log.commit_log import CommitLog, frames_of
from delaynode.store.log.frame_chunk import SYNCED_LIMIT_FILE, write_synced_limit
from delaynode.store.log.frames import BadFrame, Frame, FrameKind, Tick, Unsealed
from delaynode.store.maintenance import persist
from delaynode.store.timer.due_window import before
from delaynode.store.types import Buffer

from tests.store.support.copywalks import all_steps, config_of, walk
from tests.store.support.lives import lived
from tests.store.support.memory_files import Crashed, MemoryFiles
from tests.store.support.producing import Item
from tests.store.support.replicating import Cluster, check_well, state_of
from tests.store.support.walks import times
from tests.store.support.world import ROOT, SMALL, UID

STEPS = all_steps()
CHUNKS = 8
LOG = f"{ROOT}/log"


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_copies_are_the_same_through_crashes_cuts_and_promotions(chunk: int) -> None:
    for seed in range(chunk, times(160), CHUNKS):
        walk(seed, (30, 60, 120)[seed % 3], STEPS)


# ---------------------------------------------------------------- a log and who receives it
def batches_of(count: int, *, segment_bytes: int = 900) -> tuple[CommitLog, list[bytes]]:
    """A master's log, and its batches as they were sealed: each after a sync of what came before."""
    files = MemoryFiles(random.Random(5))
    log = CommitLog.open(files, LOG, UID, segment_bytes)
    sealed: list[bytes] = []
    for number in range(count):
        if number % 7 == 0:
            log.propose(FrameKind.EPOCH, 1 + number // 7, 1, 0, 5, (b"n0",))
        for size in (3, 40)[: 1 + number % 2]:
            log.propose(FrameKind.ACK, log.last_epoch, 0, 0, 5, (bytes([number]) * size,))
        batch = log.next_batch(sync=True)
        assert batch is not None
        batch.on_sealed = lambda _, parts: sealed.append(b"".join(parts))
        batch.run()
        log.finish(batch)
    return log, sealed


class Receiver:
    """A CommitLog that receives, on a disk that crashes."""

    def __init__(self, seed: int = 1, page: int = 16) -> None:
        self.disk = MemoryFiles(random.Random(seed), page)
        self.syncs = 0
        self.disk.on_sync = self._count
        self.log = CommitLog.open(self.disk, LOG, UID, 1)  # what it thinks of a segment's size does not matter

    def _count(self, path: str) -> None:
        self.syncs += 1

    def write(self, *, sync: bool = True) -> None:
        batch = self.log.next_batch(sync=sync)
        if batch is not None:
            batch.run()
            self.log.finish(batch)

    def receive(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.log.receive(memoryview(piece))

    def come_back(self) -> int:
        """Recovery's part; returns where the log ends. Raises Damaged."""
        self.log = CommitLog.open(self.disk, LOG, UID, 1)
        end = 0
        for frame in self.log.scan(0):
            end = frame.end
        self.log.cut(end)
        return end

    def content(self) -> bytes:
        return b"".join(bytes(self.disk.files[f"{LOG}/{base:020d}"].data) for base in self.log.file.bases)

    @property
    def has_floor(self) -> bool:
        return f"{LOG}/{SYNCED_LIMIT_FILE}" in self.disk.files


def test_a_slaves_files_are_its_masters() -> None:
    log, sealed = batches_of(30)
    slave = Receiver()
    for piece in sealed:
        slave.receive(piece)
        slave.write()
    assert slave.log.file.segments() == log.file.segments()
    assert len(log.file.bases) > 4
    assert slave.content() == b"".join(sealed)
    assert slave.log.epochs == log.epochs
    assert slave.log.segment == log.segment
    assert (slave.log.end, slave.log.synced, slave.log.last_epoch) == (log.end, log.end, 5)


# ---------------------------------------------------------------- what frames prove of a slave's disk
def pieces_of(sealed: list[bytes], rng: random.Random, mode: str) -> Iterator[list[bytes]]:
    """The batches that arrive before each write: one, several, or pieces of the file that hold several each."""
    at = 0
    while at < len(sealed):
        some = sealed[at : at + {"live": 1, "two at a time": 2}.get(mode, rng.randint(1, 6))]
        at += len(some)
        joined = mode == "catching up" or (mode == "mixed" and rng.random() < 0.2)
        yield [b"".join(some)] if joined else some


def life_until_a_power_cut(seed: int, mode: str, calls: int) -> bool:
    """True when the crash came before its end."""
    _, sealed = batches_of(20)
    whole, rng, slave = b"".join(sealed), random.Random(seed), Receiver(seed)
    slave.disk.crash_after(calls)
    crashed = False
    try:
        for pieces in pieces_of(sealed, rng, mode):
            slave.receive(*pieces)
            slave.write()
    except Crashed:
        crashed = True
    acknowledged = slave.log.synced
    slave.disk.crash()
    end = slave.come_back()  # not Damaged
    assert end >= acknowledged
    assert slave.content() == whole[:end]
    assert not slave.has_floor
    return crashed


@pytest.mark.parametrize("mode", ["live", "two at a time", "behind", "catching up", "mixed"])
def test_a_slave_that_loses_power_has_all_that_it_acknowledged_and_is_not_damaged(mode: str) -> None:
    for seed in range(times(40)):
        for calls in range(1000):
            if not life_until_a_power_cut(seed, mode, calls):
                break


@contextmanager
def trusting_what_frames_say() -> Iterator[None]:
    def run(self: ReceivedFrames) -> None:
        for piece in self.chunks:
            for data, roll in piece.runs():
                self.log.file.append([data], len(data), new_segment=roll)
        if self.sync:
            self.log.file.sync()

    with patch.object(ReceivedFrames, "run", run):
        yield


def test_without_a_sync_or_a_floor_a_power_cut_would_look_like_damage() -> None:
    damaged = 0
    with trusting_what_frames_say():
        for seed in range(20):
            for calls in range(20):
                try:
                    life_until_a_power_cut(seed, "catching up", calls)
                except Damaged:
                    damaged += 1
    assert damaged


def test_following_live_costs_one_sync_a_batch() -> None:
    _, sealed = batches_of(20, segment_bytes=1 << 20)
    slave = Receiver()
    for number, piece in enumerate(sealed):
        slave.receive(piece)
        slave.write()
        assert (slave.syncs, slave.has_floor) == (number + 1, False)


def test_two_batches_at_once_cost_one_more_and_many_none_more() -> None:
    _, sealed = batches_of(20, segment_bytes=1 << 20)
    slave = Receiver()
    slave.receive(*sealed[:2])
    slave.write()
    assert (slave.syncs, slave.has_floor) == (2, False)
    slave.receive(*sealed[2:9])
    slave.write()
    assert (slave.syncs, slave.has_floor) == (3, True)
    slave.receive(b"".join(sealed[9:15]))
    slave.write()
    assert (slave.syncs, slave.has_floor) == (4, True)
    slave.receive(sealed[15])
    slave.write()
    assert (slave.syncs, slave.has_floor) == (5, False), "it follows live again"


def test_the_floor_follows_what_is_on_disk() -> None:
    _, sealed = batches_of(20)
    slave = Receiver()
    with patch("delaynode.store.log.batches.SYNCED_LIMIT_LAG_BYTES", 300):
        floors = []
        for at in range(0, 20, 4):
            slave.receive(b"".join(sealed[at : at + 4]))
            slave.write()
            floors.append(slave.log.synced_limit)
    assert floors == sorted(floors)
    assert floors[0] == 0
    assert floors[-1] is not None
    assert floors[-1] > slave.log.end - 1200


def test_rot_below_the_floor_is_damage_and_above_it_a_torn_tail() -> None:
    _, sealed = batches_of(20, segment_bytes=1 << 20)
    for low, damaged in ((10, True), (15, False)):
        slave = Receiver()
        slave.receive(*sealed[:1])
        slave.write()
        for piece in sealed[1:13]:
            slave.receive(piece)
            slave.write()
        slave.receive(b"".join(sealed[13:]))
        slave.write()
        assert slave.has_floor
        path = f"{LOG}/{0:020d}"
        slave.disk.flip(path, 8 * (len(b"".join(sealed[:low])) + 20))
        if damaged:
            with pytest.raises(Damaged):
                slave.come_back()
        else:
            assert slave.come_back() == len(b"".join(sealed[:low]))


def test_a_floor_that_is_not_whole_is_damage() -> None:
    disk = MemoryFiles(random.Random(1))
    write_synced_limit(disk, LOG, 4711)
    assert CommitLog.open(disk, LOG, UID, 1).synced_limit == 4711
    for bit in range(8 * len(disk.files[f"{LOG}/{SYNCED_LIMIT_FILE}"].data)):
        other = disk.copy()
        other.flip(f"{LOG}/{SYNCED_LIMIT_FILE}", bit)
        with pytest.raises(Damaged):
            CommitLog.open(other, LOG, UID, 1)


def test_with_async_nothing_is_synced_and_a_killed_slave_has_all_that_was_written() -> None:
    _, sealed = batches_of(20)
    slave = Receiver()
    for piece in sealed[:1]:
        slave.receive(piece)
        slave.write(sync=False)
    slave.receive(*sealed[1:])
    slave.write(sync=False)
    assert (slave.log.synced, slave.log.written) == (0, slave.log.end)
    slave.disk.kill()
    assert slave.come_back() == len(b"".join(sealed))


# ---------------------------------------------------------------- what is refused
def changed(piece: bytes, at: int) -> bytes:
    return piece[:at] + bytes([piece[at] ^ 1]) + piece[at + 1 :]


def sealed_frame(kind: FrameKind, epoch: int, offset: int, *, uid: int = UID, synced: int = 0, flags: int = 0) -> bytes:
    return Unsealed(kind, flags, uid, epoch, 0, 0, 5, offset, (), 64).seal(synced)


BAD: dict[str, Callable[[int], bytes]] = {
    "of another place": lambda end: sealed_frame(FrameKind.ACK, 1, end + 64),
    "of another shard": lambda end: sealed_frame(FrameKind.ACK, 1, end, uid=UID + 1),
    "of a lower epoch": lambda end: sealed_frame(FrameKind.ACK, 0, end),
    "of an epoch that has not begun": lambda end: sealed_frame(FrameKind.ACK, 2, end),
    "begins the epoch again": lambda end: sealed_frame(FrameKind.EPOCH, 1, end),
    "says that itself is on disk": lambda end: sealed_frame(FrameKind.ACK, 1, end, synced=end + 1),
    "changed on its way": lambda end: changed(sealed_frame(FrameKind.ACK, 1, end), 50),
    "cut short": lambda end: sealed_frame(FrameKind.ACK, 1, end)[:-1],
    "no frame": lambda end: b"no frame",
}


@pytest.mark.parametrize("what", BAD)
def test_frames_that_may_not_follow_are_refused_and_nothing_is_taken(what: str) -> None:
    _, sealed = batches_of(6)
    slave = Receiver()
    slave.receive(*sealed[:5])
    before = slave.log.end, list(slave.log.epochs), slave.log.segment, list(slave.log.pending)
    good = sealed[5]
    with pytest.raises(BadFrame):
        slave.receive(good + BAD[what](before[0] + len(good)))
    assert (slave.log.end, slave.log.epochs, slave.log.segment, slave.log.pending) == before
    slave.receive(good + sealed_frame(FrameKind.ACK, 1, before[0] + len(good), synced=before[0]))  # and this is right
    slave.write()


def test_a_log_begins_with_a_segment() -> None:
    with pytest.raises(BadFrame):
        Receiver().receive(sealed_frame(FrameKind.EPOCH, 1, 0))


# ---------------------------------------------------------------- cutting
def test_a_cut_drops_what_waits_and_keeps_what_lies_before_it() -> None:
    _, sealed = batches_of(20)
    reach = [len(b"".join(sealed[:n])) for n in range(21)]
    for written in (0, 5, 12):
        for kept in range(4, 20):
            slave = Receiver()
            slave.log.committed_offset = reach[4]
            slave.receive(*sealed[:written])
            slave.write()
            slave.receive(*sealed[written:10], b"".join(sealed[10:]) if written <= 10 else b"".join(sealed[written:]))
            slave.log.cut(reach[kept])
            log = slave.log
            assert (log.end, log.written, log.synced, log.pending) == (reach[kept], reach[kept], reach[kept], [])
            assert all(start < log.end for _, start in log.epochs)
            assert log.last_epoch == 1 + (kept - 1) // 7
            slave.disk.crash()
            assert slave.come_back() == reach[kept]
            slave.log.epochs = [(1 + n // 7, reach[n]) for n in range(0, kept, 7)]
            slave.receive(b"".join(sealed[kept:]))
            slave.write()
            assert slave.content() == b"".join(sealed)


def test_a_cut_below_what_is_committed_is_refused() -> None:
    _, sealed = batches_of(9)
    slave = Receiver()
    slave.receive(*sealed)
    slave.write()
    slave.log.committed_offset = len(b"".join(sealed[:5]))
    with pytest.raises(Damaged):
        slave.log.cut(slave.log.committed_offset - 1)
    assert slave.log.end == len(b"".join(sealed))


def test_what_waits_can_be_forgotten() -> None:
    _, sealed = batches_of(20)
    slave = Receiver()
    slave.receive(*sealed[:9])
    slave.write()
    before = slave.log.end, list(slave.log.epochs), slave.log.segment
    slave.receive(*sealed[9:])
    slave.log.forget_pending()
    assert (slave.log.end, slave.log.epochs, slave.log.segment) == before
    assert slave.log.next_batch(sync=True) is None
    slave.receive(*sealed[9:])
    slave.write()
    assert slave.content() == b"".join(sealed)


# ---------------------------------------------------------------- what a master gives away
def test_a_batch_is_told_when_sealed_and_before_it_is_written() -> None:
    world = lived(3)
    seen: list[tuple[int, int, bytes]] = []

    def sealed(batch: WriteBatch, parts: list[Buffer]) -> None:
        assert world.disk.writes == writes
        seen.append((batch.start, batch.end, b"".join(parts)))

    for _ in range(8):  # across segments too
        for _ in range(6):
            world.enqueue([Item(1000, size=40)] * 5)
        batch, writes = world.shard.next_batch(sync=True), world.disk.writes
        assert batch is not None
        batch.on_sealed = sealed
        batch.run()
        world.shard.finish_writes(batch)
    assert [start for start, _, _ in seen[1:]] == [end for _, end, _ in seen[:-1]]
    for start, end, data in seen:
        assert data == world.shard.log.file.read(start, end - start)


@pytest.mark.parametrize("most", [1, 100, 700, 5000, 1 << 20])
def test_raw_reads_are_whole_frames_that_join_up(most: int) -> None:
    log, sealed = batches_of(30)
    whole, parts, at = b"".join(sealed), [], 0
    while part := log.read_raw(at, most):
        frames = log.parse_all(memoryview(part), at)
        assert len(part) <= most or len(frames) == 1
        parts.append(part)
        at += len(part)
    assert b"".join(parts) == whole
    assert at == log.written


def test_raw_reads_end_where_all_is_written() -> None:
    log, _ = batches_of(3)
    end = log.end
    log.propose(FrameKind.ACK, 1, 0, 0, 5, ())
    assert log.read_raw(end, 1000) == b""
    batch = log.next_batch(sync=True)
    assert batch is not None
    batch.run()
    assert log.read_raw(end, 1000) == b""  # the owner does not know yet
    log.finish(batch)
    assert len(log.read_raw(end, 1000)) == 64


def test_raw_reads_tell_a_hole_from_a_wrong_place_and_from_rot() -> None:
    log, _ = batches_of(30)
    first, second = log.file.bases[1:3]
    with pytest.raises(BadFrame):
        log.read_raw(first + 1, 1000)
    for path in log.file.drop([second]):
        log.file.files.remove(path)
    assert log.holds_from(log.end)
    assert log.holds_from(log.file.bases[2])
    assert not log.holds_from(first)
    assert len(log.read_raw(first, 1 << 20)) == second - first
    with pytest.raises(Trimmed):
        log.read_raw(second, 1000)
    disk = log.file.files
    assert isinstance(disk, MemoryFiles)
    disk.flip(f"{LOG}/{first:020d}", 8 * 30)
    with pytest.raises(Damaged):
        log.read_raw(first, 1000)


# ---------------------------------------------------------------- coming back and being led
def test_a_copy_comes_back_as_of_its_checkpoint_and_is_brought_on_in_parts() -> None:
    world = lived(11)
    twin, at_once = world.disk.copy(), world.disk.copy()
    expected = persist.recover(at_once, ROOT, SMALL)[0]
    shard, recovery = persist.recover(twin, ROOT, SMALL, replay=False)
    assert recovery.frames == 0
    assert shard.applied == shard.committed_offset == shard.log.committed_offset == shard.checkpointed < shard.log.end
    assert shard.log.epochs == expected.log.epochs
    assert shard.log.end == expected.log.end == expected.applied
    some = [frame.end for frame in frames_of(shard.log, shard.applied, shard.log.end)]
    assert persist.replay(shard, some[2], 1) == 1
    assert (shard.applied, shard.committed_offset) == (some[0], some[0])
    assert persist.replay(shard, some[2]) == 2
    assert persist.replay(shard, some[2]) == 0
    assert persist.replay(shard, shard.log.end) == len(some) - 3
    assert shard.committed_offset == shard.log.end
    assert state_of(shard) == state_of(expected)


def test_only_what_is_applied_goes_into_a_checkpoint() -> None:
    """A slave's log may be cut above what is committed: nothing of that may be in any file but the log."""
    world = lived(12)
    disk = world.disk.copy()
    shard, _ = persist.recover(disk, ROOT, SMALL, replay=False)
    ends = [frame.end for frame in frames_of(shard.log, shard.applied, shard.log.end)]
    persist.replay(shard, ends[len(ends) // 2])
    before = state_of(shard)
    job = persist.begin_checkpoint(disk, ROOT, shard)
    job.run()
    persist.remove_files(disk, persist.finish_checkpoint(job))
    shard.log.cut(shard.applied)
    disk.crash()
    again, _ = persist.recover(disk, ROOT, SMALL)
    assert again.log.end == again.checkpointed == ends[len(ends) // 2]
    assert state_of(again) == before
    check_well(disk)


def test_frames_are_applied_in_order_only() -> None:
    world = lived(11)
    shard, _ = persist.recover(world.disk.copy(), ROOT, SMALL, replay=False)
    frames = list(frames_of(shard.log, shard.applied, shard.log.end))
    with pytest.raises(Damaged):
        shard.apply(frames[1])
    shard.apply_committed(frames[:1])
    with pytest.raises(Damaged):
        shard.apply(frames[0])
    with pytest.raises(Damaged):
        shard.begin_term(shard.log.last_epoch + 1, "n1", world.now)  # the rest of the log is not applied


def test_a_tick_beyond_the_loaded_window_is_known_before_it_is_applied() -> None:
    world = lived(11)
    shard, _ = persist.recover(world.disk.copy(), ROOT, SMALL, replay=False)
    asked = 0
    for frame in frames_of(shard.log, shard.applied, shard.log.end):
        needs = shard.loader.is_needed_by(frame)
        asked += needs
        with patch.object(shard.index, "begin_load", wraps=shard.index.begin_load) as load:
            shard.apply_committed([frame])
        assert bool(load.call_count) == needs
    assert asked
    bound = shard.index.window.bound  # the first that is not loaded
    for mark, needs in ((bound, True), (before(bound), False)):
        payload = b"".join(bytes(part) for part in Tick(mark.due, mark.seq, 0, 0).payload())
        frame = Frame(FrameKind.TICK, 0, 1, 0, 0, 0, shard.applied, 0, memoryview(payload))
        assert shard.loader.is_needed_by(frame) == needs
        assert not shard.loader.is_needed_by(replace(frame, kind=FrameKind.ACK))


def test_the_list_of_terms_is_as_long_as_the_log_or_the_last_few() -> None:
    """One term after the other, whose frames are freed: neither memory nor what is said to a master grows."""
    cluster = Cluster(4, config_of(random.Random(4)))
    world = cluster.master
    for _ in range(persist.KEPT_EPOCHS + 20):
        world.advance(60_000)
        world.settle()
        world.trim()
        world.checkpoint()
        world.trim()
        world.kill()
    world.checkpoint()
    shard = world.shard
    assert shard.log.file.start > 0
    epochs = shard.log.epochs
    assert epochs == [(epoch, start) for epoch, start in shard.epochs]
    assert epochs == world.terms()[-len(epochs) :]
    kept = [pair for pair in world.terms() if pair[1] >= shard.log.file.start]
    assert persist.KEPT_EPOCHS <= len(epochs) <= max(persist.KEPT_EPOCHS, len(kept) + 1)
    world.kill()
    assert world.shard.log.epochs[: len(epochs)] == epochs
    cluster.catch_up(random.Random(1).randint)
