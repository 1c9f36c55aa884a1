"""Copies of one shard, each on a disk of its own that crashes: a master's World, and slaves that follow its log.

A slave receives frames as the master seals them, or out of the master's files. The master commits only frames that
all in-sync copies have acknowledged. Masters die, slaves are promoted, deposed masters follow.
"""

from __future__ import annotations

import random
from collections import deque

from delaynode.store.config import ShardConfig
from delaynode.store.log.batches import WriteBatch
from delaynode.store.log.frames import Frame
from delaynode.store.maintenance import persist, snapshot
from delaynode.store.queue.consume_queue import QUEUED_BYTES, ConsumeQueue
from delaynode.store.queue.groups import Group
from delaynode.store.shard import Shard
from delaynode.store.types import MAX_SEQ, Buffer
from delaynode.store.verify import Finding, verify_shard

from tests.store.support import model as m
from tests.store.support.consuming import World
from tests.store.support.memory_files import Crashed, MemoryFiles
from tests.store.support.model import Model
from tests.store.support.steps import Draw, finale
from tests.store.support.world import ROOT, UID, schedules_of


def check_well(disk: MemoryFiles) -> None:
    found: list[Finding] = []
    verify_shard(disk, ROOT, found.append)
    assert not [one for one in found if not one.note], "\n".join(map(str, found))


def state_of(shard: Shard) -> dict[str, object]:
    """All that frames decide, in a form that can be compared."""
    shard.producers.expire(shard.producers.time_ms)
    index = shard.index
    return {
        "watermark": index.watermark,
        "pending": (index.pending, index.pending_bytes),
        "next_seq": shard.next_seq,
        "wall_ms": shard.wall_ms,
        "epochs": [list(pair) for pair in shard.epochs[-persist.KEPT_EPOCHS :]],
        "log epochs": shard.log.epochs[-persist.KEPT_EPOCHS :],
        "ledger": shard.space.ledger.segments.tolist(),
        "release_times": shard.space.release_times,
        "producers' clock": (shard.producers.time_ms, shard.producers.wall_ms),
        "producers": sorted(row.tobytes() for row in shard.producers.rows()),
        "queue": (shard.queue.start, shard.queue.committed, shard.queue.end),
        "schedules": schedules_of(shard),
        "groups": {name: group_state(group, shard.queue) for name, group in sorted(shard.consumers.groups.items())},
    }


def group_state(group: Group, queue: ConsumeQueue) -> tuple[object, ...]:
    """The group's state as if this copy had looked at the whole queue: a master looks as far as it had to deliver."""
    twin = Group(group.name, group.tags, group.tag_hashes, group.first_unacked, group.max_unacked)
    twin.restore(group.window_end, group.snapshot()[1])
    twin._extend_window_to(queue.committed, queue)
    fields, arrays = twin.snapshot()
    return sorted(fields.items()), [(name, array.tobytes()) for name, array in sorted(arrays.items())]


class Copy(World):
    """One copy. It is a World while it leads; as a slave it has the entries of the frames that it was sent."""

    def __init__(self, cluster: Cluster, seed: int, config: ShardConfig, page: int = 64) -> None:
        self.cluster = cluster
        self.leads = True
        self.shipped: dict[int, bytes] = {}  # log offset -> a batch, as it was sealed
        self.session = -1  # the cluster's session in which it follows; -1: it follows no master
        self.cutting = MAX_SEQ  # log offset of a cut under way; MAX_SEQ: none
        super().__init__(seed, config, page=page)

    @classmethod
    def elsewhere(cls, master: Copy, seed: int) -> Copy:
        """Make another copy of the shard by file transfer."""
        made = cls.__new__(cls)
        made.__dict__.update(master.__dict__)
        made.rng = random.Random(seed)
        made.disk = MemoryFiles(made.rng, master.disk.page)
        made.leads, made.shipped, made.session = False, {}, -1
        made.entries, made.released_ms, made.queue_bytes = [], [], b""
        made.fetch(master)
        return made

    def _forget_jobs(self) -> None:
        super()._forget_jobs()
        self.frames: deque[Frame] = deque()  # received, not applied

    # ------------------------------------------------------------ as a master
    def next_epoch(self) -> int:
        self.cluster.epoch += 1
        return self.cluster.epoch

    def term(self) -> None:
        self.shipped.clear()
        self.cluster.in_sync = []
        self.cluster.session += 1
        super().term()

    def begin_write(self) -> None:
        before = self.batch
        super().begin_write()
        if self.batch is not None and self.batch is not before and self.leads:
            self.batch.on_sealed = self._sealed

    def _sealed(self, batch: WriteBatch, parts: list[Buffer]) -> None:
        self.shipped[batch.start] = b"".join(parts)
        assert len(self.shipped[batch.start]) == batch.end - batch.start

    def ready(self) -> int:
        return min([super().ready(), *(one.shard.log.synced for one in self.cluster.in_sync)])

    def commit(self, lag: int = 0) -> None:
        if self.leads:
            super().commit(lag)
            self.cluster.check_released(self)

    # ------------------------------------------------------------ trouble
    def power_cut(self) -> None:
        if self.leads:
            return super().power_cut()
        acknowledged = min(self.shard.log.synced, self.cutting)
        self.disk.crash()
        self.come_back(acknowledged)

    def kill(self) -> None:
        if self.leads:
            return super().kill()
        written = self.shard.log.written
        self.disk.kill()
        self.come_back(written)

    def come_back(self, must_have: int) -> None:
        """Recover from the disk, as a slave. must_have: log offset up to which the disk must hold the log."""
        self._forget_jobs()
        self.recoveries += 1
        self.leads, self.session, self.cutting = False, -1, MAX_SEQ
        while True:
            try:
                self.shard, self.recovery = persist.recover(self.disk, ROOT, self.config, replay=False)
                break
            except Crashed:
                self.disk.crash()
        shard = self.shard
        assert shard.log.end >= must_have, f"log ends at {shard.log.end}, acknowledged was {must_have}"
        assert shard.applied == shard.committed_offset == shard.checkpointed <= shard.log.end
        assert shard.log.synced_limit is None
        assert shard.queue.committed == shard.queue.end
        self.queue_bytes = self.queue_bytes[: QUEUED_BYTES * shard.queue.committed]
        self.keep_entries()
        terms = self.terms()
        assert shard.log.epochs == terms[len(terms) - len(shard.log.epochs) :]

    def terms(self) -> list[tuple[int, int]]:
        starts = [0, *(entry.end for entry in self.entries)]
        return [
            (e.event.epoch, at) for e, at in zip(self.entries, starts, strict=False) if isinstance(e.event, m.Epoch)
        ]

    def keep_entries(self) -> None:
        """Drop the entries of frames that this copy's log does not have."""
        end = self.shard.log.end
        self.entries = [entry for entry in self.entries if entry.end <= end]
        assert (self.entries[-1].end if self.entries else 0) == end, f"log end {end} is no frame's end"

    # ------------------------------------------------------------ as a slave
    def quiet(self) -> bool:
        """Finish all jobs that move the wheels. Returns False if the copy crashed meanwhile."""
        life = self.recoveries
        self._all_of(
            self.run_cascade, self.finish_cascade, self.run_clean, self.finish_clean, self.run_checkpoint,
            self.finish_checkpoint,
        )  # fmt: skip
        return self.recoveries == life

    def write(self) -> None:
        """Write all that was received."""
        for _ in range(2):
            self._all_of(self.begin_write, self.run_write, self.finish_write)

    def follow(self) -> None:
        """Begin to follow the master; on the wire: FOLLOW, STATE, START."""
        master = self.cluster.master
        mine, theirs = self.shard.log, master.shard.log
        life = self.recoveries
        self._all_of(self.run_write, self.finish_write)
        if self.recoveries != life:
            return
        at = common_end(theirs.epochs, theirs.end, mine.epochs, mine.end)
        assert at == 0 or at >= self.shard.committed_offset
        if at < self.shard.committed_offset or not theirs.holds_from(at):
            return self.fetch(master)
        with self.disk_trouble():
            if master.shard.identity.epoch > self.shard.identity.epoch:
                persist.accept_epoch(self.disk, ROOT, self.shard, master.shard.identity.epoch)
            if at < mine.end:
                self.cut_at(at)
        if self.recoveries == life:
            self.frames = deque(frame for frame in self.frames if frame.end <= at)
            self.keep_entries()
            self.session = self.cluster.session

    def cut(self, draw: Draw) -> None:
        """Cut the log at any frame's end above the committed offset; the master sends the cut frames again."""
        self._all_of(self.run_write, self.finish_write)
        ends = [self.shard.committed_offset, *(e.end for e in self.entries if e.end > self.shard.committed_offset)]
        end, life = ends[draw(0, len(ends) - 1)], self.recoveries
        if self in self.cluster.in_sync and end < self.shard.log.synced:
            return  # it has acknowledged what would go
        with self.disk_trouble():
            self.cut_at(end)
        if self.recoveries == life:
            assert self.shard.log.end == self.shard.log.synced == end
            self.frames = deque(frame for frame in self.frames if frame.end <= end)
            self.keep_entries()

    def cut_at(self, end: int) -> None:
        self.cutting = end  # a crash on the way may take what is above
        self.shard.log.cut(end)
        self.cutting = MAX_SEQ

    def feed(self, draw: Draw) -> None:
        """Receive the next frames: a batch as the master sealed it, or a piece of the master's files."""
        if self.session != self.cluster.session:
            self.follow()
            if self.session != self.cluster.session:
                return
        master, log = self.cluster.master, self.shard.log
        piece = master.shipped.get(log.end) if draw(0, 3) else None
        if piece is None:
            if not master.shard.log.holds_from(log.end):
                return self.fetch(master)
            most = (1, 100, 700, 5000, 100_000)[draw(0, 4)]
            piece = master.shard.log.read_raw(log.end, most)
            assert (not piece) == (log.end >= master.shard.log.written)
        if not piece:
            return
        start = log.end
        frames = log.receive(memoryview(piece))
        assert [frame.offset for frame in frames] == [start, *(frame.end for frame in frames[:-1])]
        assert log.end == frames[-1].end == start + len(piece)
        self.frames.extend(frames)
        self.entries, self.released_ms = list(master.entries), list(master.released_ms)
        self.keep_entries()

    def apply(self, draw: Draw) -> None:
        """Apply some of the frames that are committed and written here."""
        shard = self.shard
        if self.session != self.cluster.session:
            return
        limit = min(self.cluster.master.shard.committed_offset, shard.log.written)
        while self.frames and self.frames[0].offset < shard.applied:
            self.frames.popleft()
        life = self.recoveries
        with self.disk_trouble():
            if not self.frames or self.frames[0].offset != shard.applied or draw(0, 4) == 0:
                if limit > shard.applied and self.quiet():
                    persist.replay(shard, limit, (None, 1, 500)[draw(0, 2)])
            else:
                ready = [frame for frame in self.frames if frame.end <= limit][: draw(1, 9)]
                if not any(map(shard.loader.is_needed_by, ready)) or self.quiet():
                    shard.apply_committed(ready)
        if self.recoveries == life:
            self.note_released()

    def note_released(self) -> None:
        known = len(self.queue_bytes) // QUEUED_BYTES
        queue = self.shard.queue
        if known >= queue.start:
            self.queue_bytes += queue.read(known, queue.committed).tobytes()
        else:  # fetched, or trimmed before it was looked at
            rows = queue.read(queue.start, queue.committed).tobytes()
            self.queue_bytes = self.cluster.released[: QUEUED_BYTES * queue.start] + rows
        self.cluster.check_released(self)

    def know(self) -> None:
        """Build the model again from the frames that are applied here."""
        self.model = Model((self.born, MAX_SEQ))
        for entry in self.entries:
            if entry.end <= self.shard.applied:
                self.model.apply(entry.event)

    # ------------------------------------------------------------ a whole copy
    def fetch(self, master: Copy) -> None:
        """Fetch a whole copy from the master; on the wire: BOOTSTRAP, PULL, PIECE."""
        if self in self.cluster.in_sync:
            self.cluster.in_sync.remove(self)
        self.disk.kill()
        master.disk.kill()
        persist.discard(self.disk, ROOT)
        held = snapshot.hold_checkpoint(master.disk, ROOT, "n")
        incoming = snapshot.IncomingCopy(self.disk, ROOT, held.manifest)
        for file, offset, length in incoming.missing_chunks():
            incoming.write(file, offset, held.read(file, offset, length))
        identity = incoming.finish(UID, "t", 0, self.cluster.epoch)
        held.release()
        assert identity.copy_id not in {one.shard.identity.copy_id for one in self.cluster.copies}
        self.entries = [entry for entry in master.entries if entry.end <= held.log_offset]
        self.queue_bytes = b""
        self.come_back(held.log_offset)
        self.note_released()

    # ------------------------------------------------------------ promotion
    def promote(self, draw: Draw) -> None:
        """Make this in-sync copy the master, from where it stands: the old master is dead or deposed."""
        old, shard, life = self.cluster.master, self.shard, self.recoveries
        if draw(0, 1):
            self.write()
        self._all_of(self.run_write, self.finish_write)
        if self.recoveries != life or not self.quiet():
            return
        with self.disk_trouble():
            shard.log.forget_pending()
            shard.log.cut(shard.log.end)
            persist.replay(shard, shard.log.end)
        if self.recoveries != life:
            return
        assert shard.log.end >= old.shard.committed_offset, "an acknowledged frame is lost"
        self._forget_jobs_of_reading()
        self.keep_entries()
        self.note_released()
        self.know()
        self.released_ms = self.released_ms[: len(self.model.queue)]
        self.check_all()
        self.leads = True
        self.cluster.depose(old, self, draw)
        with self.disk_trouble():
            self.term()

    def _forget_jobs_of_reading(self) -> None:
        """Drop the frames that the slave received and did not apply. Its batch is written; other jobs may go on."""
        assert self.batch is None
        self.frames.clear()


Epochs = list[tuple[int, int]]


def common_end(one: Epochs, one_end: int, other: Epochs, other_end: int) -> int:
    """Log offset where two logs part: within the last epoch that began at one place in both; 0: no epoch did."""
    both = [pair for pair in one if pair in other]
    if not both:
        return 0
    after = [[start for epoch, start in log if epoch > both[-1][0]] for log in (one, other)]
    return min(*after[0], *after[1], one_end, other_end)


class Cluster:
    """The copies of a shard; one of them leads."""

    def __init__(self, seed: int, config: ShardConfig, slaves: int = 1) -> None:
        self.epoch = self.session = 0
        self.in_sync: list[Copy] = []  # besides the master
        self.released = b""  # the ConsumeQueue as far as any copy has shown it
        self.copies: list[Copy] = []
        self.master = Copy(self, seed, config, random.Random(seed).choice([16, 64, 512]))
        self.master.pump()
        self.copies.append(self.master)
        for number in range(slaves):
            self.copies.append(Copy.elsewhere(self.master, seed + 1 + number))

    @property
    def slaves(self) -> list[Copy]:
        return [one for one in self.copies if one is not self.master]

    def check_released(self, one: Copy) -> None:
        """The released messages are the same on all copies, byte for byte, for ever."""
        mine = one.queue_bytes
        common = min(len(mine), len(self.released))
        assert mine[:common] == self.released[:common], "two ConsumeQueues differ"
        self.released = max(self.released, mine, key=len)

    def depose(self, old: Copy, new: Copy, draw: Draw) -> None:
        self.master = new
        must_have = old.shard.committed_offset
        (old.disk.crash if draw(0, 1) else old.disk.kill)()
        old.come_back(must_have)
        new.now = max(one.now for one in self.copies)

    def grow(self, slave: Copy) -> None:
        """Add the slave to the in-sync copies if it has caught up: every commit waits for it from now on."""
        durable = slave.shard.log.synced
        if (
            slave.session == self.session
            and slave not in self.in_sync
            and durable >= self.master.shard.committed_offset
        ):
            self.in_sync.append(slave)

    def catch_up(self, draw: Draw) -> None:
        """Commit everything and apply it everywhere; then all copies must be the same."""
        for _ in range(2000):
            master = self.master
            master.pump()
            for slave in self.slaves:
                slave.feed(draw)
                slave.write()
                slave.apply(draw)
            if all(one.shard.applied == master.shard.log.end for one in self.copies):
                break
        else:
            raise AssertionError("the slaves never catch up")
        expected = state_of(master.shard)
        for slave in self.slaves:
            found = state_of(slave.shard)
            for name, value in expected.items():
                assert found[name] == value, f"{name}: {found[name]} is not the master's {value}"
            slave.know()
            slave.check_counters()
            slave.check_wheel()
            rows = slave.shard.queue.read(slave.shard.queue.start, slave.shard.queue.end)
            slave.check_bodies(rows, [q.msg for q in slave.model.queue[slave.shard.queue.start :]])

    def finale(self, draw: Draw, *, to_the_end: bool) -> None:
        """The copies must be the same, after a power cut too. to_the_end: the master releases all that it accepted."""
        for one in self.copies:
            one.disk.kill()  # no more trouble
        self.catch_up(draw)
        if to_the_end:
            self.in_sync.clear()
            finale(self.master)
            self.catch_up(draw)
        for slave in self.slaves:
            slave.quiet()
            slave.checkpoint()
            slave.power_cut()
            check_well(slave.disk.copy())
        self.catch_up(draw)
