"""Asks a shard everything that can be asked, and compares each answer with the model's.

For lives whose files were damaged: whatever a shard answers must be right, or it must say that it is damaged.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import threading
from dataclasses import dataclass, field, replace

import numpy as np
from delayapi.units import DAY_MS, HOUR_MS
from delaynode.store.errors import Damaged
from delaynode.store.log.frames import BadFrame, parse
from delaynode.store.lookup import CANCELLED, MOVED_NOW
from delaynode.store.maintenance import checkpoint as ck
from delaynode.store.maintenance import persist
from delaynode.store.shard import Shard
from delaynode.store.types import I64, MAX_SEQ, Pair

from tests.store.support.consuming import World
from tests.store.support.damaging import Content
from tests.store.support.lives import pieces_of
from tests.store.support.memory_files import MemoryFiles
from tests.store.support.model import Key, Model, Queued
from tests.store.support.world import FAR_MS, ROOT, UID

_LOCK = type(threading.Lock())


class WrongAnswer(AssertionError):
    """The shard answered, and its answer is not what happened."""


def expect(true: bool, what: str) -> None:
    if not true:
        raise WrongAnswer(what)


def _keys(keys: list[Key]) -> tuple[I64, I64]:
    return np.array([k[0] for k in keys], np.int64), np.array([k[1] for k in keys], np.int64)


@dataclass
class GroupTruth:
    """A group once all is released: its dead letters, and the messages still to be delivered (offset -> attempt)."""

    dead: dict[int, int]
    reasons: list[str]
    dead_bodies: bytes
    to_come: dict[int, int]


@dataclass
class Truth:
    """The answers that a shard should give when its log ends at a given frame."""

    model: Model
    now: int
    allowed: dict[Key, set[int]] = field(default_factory=dict)  # outcomes that Cancel may give for gone messages
    groups: dict[str, GroupTruth] = field(default_factory=dict)

    def __post_init__(self) -> None:
        model = self.model
        self.live = sorted(model.live)
        self.live_bodies = b"".join(model.live[key].body for key in self.live)
        kept = model.queue[model.start :]
        self.queue = [(q.due, q.seq, len(q.msg.body), q.msg.tag) for q in kept]
        self.queue_bodies = b"".join(q.msg.body for q in kept)
        to_come = [Queued(*key, model.live[key]) for key in self.live]
        self.releases = [(q.due, q.seq, len(q.msg.body), q.msg.tag) for q in to_come]
        self.bodies = [q.msg.body for q in (*model.queue, *to_come)]
        queue = [*model.queue, *to_come]
        for name, group in model.groups.items():
            mine = (o for o in range(group.start, len(queue)) if group.takes(queue[o]) and o not in group.done)
            attempts = {o: group.open[o].attempt if o in group.open else 1 for o in mine}
            attempts |= {o: state.attempt for o, state in group.redriven.items()}
            dead = dict(sorted(group.dead.items()))
            reasons = [group.reasons[o] for o in dead]
            self.groups[name] = GroupTruth(dead, reasons, b"".join(model.queue[o].msg.body for o in dead), attempts)


@dataclass
class Past:
    """A life that was lived, the files that it left, and what is true at each frame of its log."""

    world: World
    content: Content
    truths: dict[int, Truth] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.end = self.world.entries[-1].end
        self.ends = {0, *(entry.end for entry in self.world.entries)}
        # few and large steps: the limits are tried elsewhere
        self.config = replace(self.world.config, window_budget=10**6, max_tick=10**6, max_unacked=10**4)

    def truth(self, end: int) -> Truth:
        found = self.truths.get(end)
        if found is None:
            world = self.world
            world.model = Model((world.born, MAX_SEQ))
            for entry in world.entries:
                if entry.end <= end:
                    world.model.apply(entry.event)
            found = self.truths[end] = Truth(world.model, world.now)
            found.allowed = {key: world.truth(key) for key in sorted(world.model.gone)}
        return found


def proven_end(disk: MemoryFiles) -> int:
    """The log offset that intact frames and the checkpoint say was on disk: what lies before must not be dropped."""
    known = 0
    try:
        read = ck.read(disk, f"{ROOT}/checkpoint")
        if read is not None and read[0].uid == UID:
            known = read[0].log_offset
    except Damaged:
        pass
    for path, base in pieces_of(disk, "log"):
        data = memoryview(bytes(disk.files[path].data))
        at = 0
        while at < len(data):
            try:
                frame = parse(data, at, base + at, UID)
            except BadFrame:
                at += 1
                continue
            known = max(known, frame.synced)
            at = frame.end - base
    return known


class _Looks(pickle.Pickler):
    """Everything that an object holds, but for locks and the disk."""

    def persistent_id(self, obj: object) -> str | None:
        return type(obj).__name__ if isinstance(obj, (MemoryFiles, _LOCK)) else None


def looks_of(shard: Shard, disk: MemoryFiles) -> bytes:
    """A digest of all that a recovered shard has in memory and in files that it may still read: two that look alike
    give the same answers.
    """
    state = io.BytesIO()
    _Looks(state).dump(shard)
    digest = hashlib.blake2b(state.getbuffer())
    for path, file in sorted(disk.files.items()):
        if path != f"{ROOT}/wheels":  # read by recover() and never again
            digest.update(f"{path} {len(file.data)} ".encode() + file.data)
    return digest.digest()


class Examination:
    """One shard on one disk. Raises Damaged as the shard does, WrongAnswer, or what should never be raised."""

    def __init__(self, past: Past, disk: MemoryFiles, passed: set[bytes] | None = None) -> None:
        self.past, self.disk = past, disk
        self.opened = self.cut_off = False
        self._passed = passed  # digests of shards that answered right: one that looks the same is not asked again

    def run(self) -> None:
        self.shard, _ = persist.recover(self.disk, ROOT, self.past.config)
        self.opened = True
        looks = looks_of(self.shard, self.disk) if self._passed is not None else b""
        self.cut_off = self.shard.log.end < self.past.end
        if self._passed is None or looks not in self._passed:
            self.ask()
            if self._passed is not None:
                self._passed.add(looks)

    def ask(self) -> None:
        end = self.shard.log.end
        expect(end in self.past.ends, f"the log ends at {end}, which is no frame's end")
        if end < self.past.end:
            proven = proven_end(self.disk)
            expect(end >= proven, f"the log was cut to {end}, known to be on disk was {proven}")
        self.truth = self.past.truth(end)
        self.now = self.truth.now
        self.check_counters()
        self.check_queue()
        self.check_pending()
        self.check_producers()
        self.check_dead_letters()
        self.check_the_gone()
        self.term()
        self.release_all()
        for name, group in self.truth.groups.items():
            self.drain(name, group)

    # ------------------------------------------------------------ before anything is released
    def check_counters(self) -> None:
        shard, model = self.shard, self.truth.model
        queue = shard.queue
        got = (shard.index.watermark, shard.index.pending, shard.next_seq, queue.start, queue.committed, shard.epoch)
        wanted = (model.watermark, len(model.live), model.next_seq, model.start, len(model.queue), model.epoch)
        expect(got == wanted, f"watermark, pending, next seq, queue start, its end, epoch: {got}, expected {wanted}")
        bytes_ = sum(len(msg.body) for msg in model.live.values())
        expect(shard.index.pending_bytes == bytes_, f"{shard.index.pending_bytes} bytes pending, expected {bytes_}")
        expect(sorted(shard.consumers.groups) == sorted(model.groups), "groups differ")

    def check_queue(self) -> None:
        self._check_rows(self.truth.model.start, self.truth.queue, self.truth.queue_bodies)

    def _check_rows(self, first: int, expected: list[tuple[int, int, int, int]], bodies: bytes) -> None:
        rows = self.shard.queue.read(first, len(expected))
        columns = (rows[name].tolist() for name in ("due", "seq", "size", "tag"))
        got = list(zip(*columns, strict=True))
        expect(got == expected, f"queue from {first} on: {got}, expected {expected}")
        expect(b"".join(self.shard.read_records(rows)) == bodies, f"bodies of the queue from {first} on differ")

    def check_pending(self) -> None:
        shard, truth = self.shard, self.truth
        last = truth.live[-1][0] if truth.live else self.now
        job = shard.index.begin_scan(Pair(shard.index.watermark.due, 0), Pair(last + HOUR_MS, 0))
        job.run()
        rows, live = job.result()
        shard.index.close_view(job.view)
        rows = rows[live]
        keys = list(zip(rows["due"].tolist(), rows["seq"].tolist(), strict=True))
        mark = tuple(shard.index.watermark)
        at = [n for n, key in enumerate(keys) if key > mark]
        keys = [keys[n] for n in at]
        expect(keys == truth.live, f"pending: {keys}, expected {truth.live}")
        expect(b"".join(shard.read_records(rows[at])) == truth.live_bodies, "bodies of pending messages differ")

    def check_producers(self) -> None:
        """A repeated batch gets its first answer."""
        for id_, producer in self.truth.model.producers.items():
            if producer.seen + DAY_MS <= self.shard.wall_ms:
                continue  # expired: with the next checkpoint, or the last
            for batch in producer.answers:
                first = self.shard.producers.check(id_, batch.number, self.shard.wall_ms)
                expect(first is not None, f"producer {id_:x}: batch {batch.number} would be stored twice")
                assert first is not None
                expect((first.first_seq, first.messages) == (batch.first_seq, len(batch.dues)), "first answer differs")
                expect(first.wall_ms == batch.wall, f"first answer's time {first.wall_ms}, expected {batch.wall}")

    def check_dead_letters(self) -> None:
        for name, group in self.truth.groups.items():
            listed = self.shard.consumers.dead_letters(name, -1, 10_000)
            dead = dict(zip(listed.offset.tolist(), listed.attempt.tolist(), strict=True))
            expect(dead == group.dead, f"dead letters of {name}: {dead}, expected {group.dead}")
            expect(list(listed.reasons) == group.reasons, f"reasons: {listed.reasons}, expected {group.reasons}")
            expect(b"".join(self.shard.read_records(listed.rows)) == group.dead_bodies, "dead letters' bodies differ")

    def check_the_gone(self) -> None:
        """Cancelled, moved and released ones can't be cancelled, and are told why."""
        allowed = self.truth.allowed
        if not allowed:
            return
        lookup = self.shard.begin_lookup(*_keys(list(allowed)))
        if lookup.job is not None:
            lookup.job.run()
        outcomes = self.shard.cancel(lookup, self.now).outcome.tolist()
        self.shard.end_lookup(lookup)
        for key, outcome in zip(allowed, outcomes, strict=True):
            expect(outcome in allowed[key], f"cancel of {key} answers {outcome}, expected one of {allowed[key]}")
            assert outcome not in (CANCELLED, MOVED_NOW)

    # ------------------------------------------------------------ releases and deliveries
    def term(self) -> None:
        epoch = self.shard.identity.epoch + 1
        persist.accept_epoch(self.disk, ROOT, self.shard, epoch)
        self.shard.begin_term(epoch, "n0", self.now)

    def release_all(self) -> None:
        """Release everything in three steps; no message comes early, is left, or comes twice."""
        truth, index = self.truth, self.shard.index
        if truth.live:
            dues = [key[0] for key in truth.live]
            middle = dues[len(dues) // 2]
            for now in (dues[0] - 1, middle - 1, dues[-1]):
                self.now = max(self.now, now)
                self._settle()
        done = len(truth.model.queue)
        expect(self.shard.queue.committed == done + len(truth.releases), "not all was released")
        self._check_rows(done, truth.releases, truth.live_bodies)
        expect((index.pending, index.pending_bytes) == (0, 0), f"{index.pending} still pending")

    def _settle(self) -> None:
        shard, truth = self.shard, self.truth
        for _ in range(10_000):
            while shard.index.cascade_due(self.now):
                cascade = shard.index.begin_cascade()
                if cascade is not None:
                    cascade.run()
                    shard.index.finish_cascade(cascade)
            if shard.loader.is_due(self.now):
                load = shard.index.begin_load(shard.loader.target_ms(self.now), shard.config.window_budget)
                if load is not None:
                    load.run()
                    shard.index.finish_load(load)
            if shard.tick(self.now) < 0:
                break
        else:
            raise WrongAnswer("never settles")
        self._pump()
        due = sum(row[0] <= self.now for row in truth.releases)
        got = shard.queue.committed - len(truth.model.queue)
        expect(got == due, f"at {self.now}: {got} released, expected {due}")

    def _pump(self) -> None:
        batch = self.shard.next_batch(sync=True)
        if batch is not None:
            batch.run()
            self.shard.finish_writes(batch)
        self.shard.commit(self.shard.log.synced, FAR_MS)

    def drain(self, name: str, group: GroupTruth) -> None:
        """All that was released and is not done comes, each once, with its attempt and its body."""
        consumers = self.shard.consumers
        got: dict[int, int] = {}
        self.now += DAY_MS  # every retry is visible
        while True:
            delivery = consumers.deliver(name, self.now, 1000, 10_000, 1 << 30)
            offsets = delivery.offset.tolist()
            if not offsets:
                break
            got |= zip(offsets, delivery.attempt.tolist(), strict=True)
            expect(got.keys() <= group.to_come.keys(), f"{name}: came again or is not {name}'s: {sorted(offsets)}")
            expected = b"".join(self.truth.bodies[o] for o in offsets)
            expect(b"".join(self.shard.read_records(delivery.rows)) == expected, f"{name}: bodies differ")
            consumers.acknowledge(name, delivery.offset, delivery.offset + 1, self.now)
        expect(got == group.to_come, f"{name}: received {got}, expected {group.to_come}")


def examine(past: Past, disk: MemoryFiles) -> Shard:
    """Ask the shard everything. Returns it after it has released all that it had."""
    examination = Examination(past, disk)
    examination.run()
    return examination.shard
