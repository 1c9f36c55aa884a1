"""Idempotent producers: the table against a few-line model, its bounds, and its way through checkpoints and crashes."""

from __future__ import annotations

import random
import tracemalloc
from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from delayapi.units import DAY_MS, HOUR_MS, MINUTE_MS
from delaynode.store.errors import Refused
from delaynode.store.log.incoming_batch import IncomingBatch
from delaynode.store.maintenance import checkpoint as ck
from delaynode.store.queue.producers import ROW, FirstAnswer, Producers

from tests.store.support.consuming import World
from tests.store.support.producing import Item
from tests.store.support.world import ROOT, SMALL

START_MS = 1_700_000_000_000


@dataclass
class Model:
    """The rules of docs/protocol.md, in code too plain to be wrong."""

    limit: int
    known: dict[int, deque[FirstAnswer]] = field(default_factory=dict)

    def answers_to(self, producer: int, number: int, now_ms: int) -> str | FirstAnswer | None:
        answers = self.known.get(producer)
        if answers is None:
            if number:
                return "UNKNOWN_PRODUCER"
            fresh = sum(a[-1].wall_ms + DAY_MS > now_ms for a in self.known.values())
            return "TOO_MANY_PRODUCERS" if fresh >= self.limit else None
        if number == answers[-1].number + 1:
            return None
        return next((a for a in answers if a.number == number), "OUT_OF_ORDER")

    def store(self, producer: int, answer: FirstAnswer) -> None:
        if not answer.number:
            self.known[producer] = deque(maxlen=16)
        self.known[producer].append(answer)

    def expire(self, now_ms: int) -> None:
        self.known = {key: a for key, a in self.known.items() if a[-1].wall_ms + DAY_MS > now_ms}


def answer(producers: Producers, producer: int, number: int, now_ms: int) -> str | FirstAnswer | None:
    try:
        return producers.check(producer, number, now_ms)
    except Refused as refused:
        return refused.reason


def through_a_checkpoint(producers: Producers) -> Producers:
    """Save and restore the table through a checkpoint, as persist does."""
    empty = ck.Checkpoint(
        uid=1, log_offset=0, timer_start=0, timer_end=0, queue_start=0, queue_end=0, watermark_due=0, watermark_seq=0,
        minute_bound_ms=0, next_seq=0, pending=0, pending_bytes=0, epochs=[], wall_ms=0,
    )  # fmt: skip
    _, arrays = ck.decode(ck.encode(empty, {"producers": producers.rows().copy()}, "checkpoint"), "checkpoint")
    other = Producers(producers.limit)
    other.restore(arrays["producers"], producers.time_ms, producers.wall_ms)
    return other


@pytest.mark.parametrize("seed", range(6))
def test_the_table_does_what_the_model_does(seed: int) -> None:
    rng = random.Random(seed)
    producers, model, now, seq = Producers(limit=6), Model(limit=6), START_MS, 0
    producers.restore(np.zeros(0, ROW), now, now)
    ids = [1, 2, 3, 2**64 - 1, *(rng.getrandbits(64) for _ in range(5))]
    seen: set[str] = set()
    for _ in range(6_000):
        now += rng.choice((0, 1, MINUTE_MS, HOUR_MS) if rng.random() < 0.7 else (0, 1))
        producers.advance_time(now)
        producer = rng.choice(ids)
        known = model.known.get(producer)
        number = max(0, (known[-1].number if known else -1) + rng.choice((1, 1, 1, 1, 1, 0, -1, -14, -15, -16, 2)))
        if rng.random() < 0.02:
            number = rng.choice((0, 2**63, 2**64 - 1))
        expected = model.answers_to(producer, number, now)
        assert answer(producers, producer, number, now) == expected
        seen.add(expected if isinstance(expected, str) else type(expected).__name__)
        if expected is None:
            first = FirstAnswer(number, seq, rng.randint(1, 65_536), now)
            seq += first.messages
            if producer not in model.known and len(model.known) >= model.limit:
                model.expire(now)
            producers.store(producer, first)
            model.store(producer, first)
        if rng.random() < 0.01:
            producers.expire(producers.time_ms)
            model.expire(now)
        if rng.random() < 0.01:
            producers = through_a_checkpoint(producers)
    assert seen == {"NoneType", "FirstAnswer", "OUT_OF_ORDER", "UNKNOWN_PRODUCER", "TOO_MANY_PRODUCERS"}


def test_ten_thousand_producers_with_all_their_answers_take_ten_megabytes() -> None:
    tracemalloc.start()
    try:
        producers = Producers()
        for producer in range(1, 10_001):
            for number in range(20):
                producers.store(producer, FirstAnswer(number, number, 1, START_MS))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(producers) == 10_000
    assert taken < 10 << 20
    assert producers.rows().nbytes < 4 << 20  # of a checkpoint


def test_one_too_many_is_refused_and_those_that_are_known_go_on_until_a_day_is_over() -> None:
    world = World(1, replace(SMALL, max_producers=3))
    for producer in (1, 2, 3):
        assert world.enqueue([Item(MINUTE_MS)], producer=producer) is not None
        world.advance(HOUR_MS)
        world.settle()
    checked = world.shard.producers
    before = world.shard.log_end
    for _ in range(2):
        assert answer(checked, 4, 0, world.now) == "TOO_MANY_PRODUCERS"
        assert answer(checked, 4, 1, world.now) == "UNKNOWN_PRODUCER"
    assert world.shard.log_end == before
    assert world.enqueue([Item(MINUTE_MS)], producer=1, number=1) is not None
    assert world.enqueue([Item(MINUTE_MS)]) is not None  # not idempotent: not remembered
    world.idle(22 * HOUR_MS + 30 * MINUTE_MS)  # 2 was last seen a day ago, 1 and 3 later
    assert world.enqueue([Item(MINUTE_MS)], producer=4) is not None
    assert answer(world.shard.producers, 2, 1, world.now) == "UNKNOWN_PRODUCER"
    assert answer(world.shard.producers, 5, 0, world.now) == "TOO_MANY_PRODUCERS"
    assert world.enqueue([Item(MINUTE_MS)], producer=3, number=1) is not None


def test_a_lower_limit_after_a_restart_forgets_nobody() -> None:
    world = World(1, SMALL)
    for producer in range(1, 6):
        world.enqueue([Item(MINUTE_MS)], producer=producer)
    world.pump()
    world.checkpoint()
    world.enqueue([Item(MINUTE_MS)], producer=6)  # after the checkpoint: replayed
    world.pump()
    world.config = replace(SMALL, max_producers=2)
    world.kill()
    for producer in range(1, 7):
        assert world.enqueue([Item(0)], producer=producer) == producer - 1
    assert answer(world.shard.producers, 7, 0, world.now) == "TOO_MANY_PRODUCERS"


def test_a_retrys_delays_count_from_the_first_arrival_also_when_its_frame_is_gone() -> None:
    world = World(1, SMALL)
    first_ms = world.now
    batch = [Item(5, relative=True), Item(7 * MINUTE_MS), Item(MINUTE_MS, relative=True)]
    world.enqueue(batch, producer=9)
    world.pump()
    world.stop()
    world.advance(HOUR_MS)
    world.settle()

    def unread(*_: object) -> bytes:
        raise AssertionError("a duplicate read the log: its segment may have been freed")

    world.shard.log.file.read = unread  # type: ignore[method-assign]
    zeros = np.zeros(3, np.uint32)
    times = np.array([5, first_ms + 7 * MINUTE_MS, MINUTE_MS])
    again = IncomingBatch(times, np.array([1, 0, 1], np.uint8), zeros + 1, zeros, zeros, b"abc", 9, 0)
    answered = world.shard.enqueue(again, world.now)
    assert (answered.duplicate, answered.first_seq, answered.count) == (True, 0, 3)
    assert answered.due is not None
    assert answered.due.tolist() == [first_ms + 5, first_ms + 7 * MINUTE_MS, first_ms + MINUTE_MS]


def test_an_unseen_producer_is_forgotten_after_a_day_of_frames_also_by_a_clock_that_went_back() -> None:
    world = World(1, SMALL)
    world.enqueue([Item(MINUTE_MS)], producer=9)
    world.idle(DAY_MS)
    world.pump()
    world.checkpoint()
    world.advance(-2 * DAY_MS)
    world.power_cut()
    assert answer(world.shard.producers, 9, 1, world.now) == "UNKNOWN_PRODUCER"


@pytest.mark.parametrize("life", ["goes on", "checkpoint", "restart", "power cut"])
def test_a_clock_that_was_days_ahead_makes_no_batch_stored_twice(life: str) -> None:
    """A machine boots with a wrong clock, writes a frame, and is set right (audit M8: number 0 was stored again)."""
    world = World(1, SMALL)
    lives = {"checkpoint": world.checkpoint, "restart": world.stop, "power cut": world.power_cut}
    after = lives.get(life, lambda: None)
    assert world.enqueue([Item(0)], producer=77) == 0
    right = world.now
    world.advance(2 * DAY_MS)
    assert world.enqueue([Item(0)]) == 1
    world.pump()
    after()
    world.now = right + 1_000
    assert answer(world.shard.producers, 77, 0, world.now) == FirstAnswer(0, 0, 1, right), "stored before the step"
    assert world.enqueue([Item(0)], producer=78) == 2
    world.pump()
    after()
    for producer in (77, 78):
        assert isinstance(answer(world.shard.producers, producer, 0, world.now), FirstAnswer)
        assert world.enqueue([Item(0)], producer=producer, number=1) is not None


def test_a_table_that_a_clock_far_ahead_had_expired_takes_producers_again_at_once() -> None:
    """A checkpoint from before frame time holds, as its time, the highest that any frame had."""
    producers = Producers()
    producers.restore(np.zeros(0, ROW), START_MS + 2 * DAY_MS, START_MS + 2 * DAY_MS)
    producers.advance_time(START_MS)
    producers.store(9, FirstAnswer(0, 0, 1, START_MS))
    producers.expire(producers.time_ms)
    assert answer(producers, 9, 0, START_MS) == FirstAnswer(0, 0, 1, START_MS)


def test_a_checkpoint_of_before_frame_time_knows_its_producers() -> None:
    world = World(1, SMALL)
    assert world.enqueue([Item(0)], producer=9) == 0
    world.pump()
    world.checkpoint()
    path = f"{ROOT}/checkpoint"
    read = ck.read(world.disk, path)
    assert read is not None
    state, arrays = read
    del arrays["producer_clock"]
    ck.write(world.disk, path, state, arrays)
    world.kill()
    assert isinstance(answer(world.shard.producers, 9, 0, world.now), FirstAnswer)
    world.idle(DAY_MS)
    world.pump()
    world.checkpoint()
    assert answer(world.shard.producers, 9, 1, world.now) == "UNKNOWN_PRODUCER"
