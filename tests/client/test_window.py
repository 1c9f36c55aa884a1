"""The numbering of an idempotent producer's batches, against the shard's rules and a hostile network.

The world: streams that break at any moment, leave requests under way behind that reach the shard later, between those
of newer streams, and lose answers; a shard that is busy, refuses batches, or stores a batch and says NOT_SERVING.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from delayapi.codec import EnqueueResponseView
from delayclient import errors
from delayclient.errors import DelayError
from delayclient.producer.numbering import WINDOW, PendingSend, SendAction, SendWindow
from hypothesis import given, settings
from hypothesis import strategies as st

NO_DUE = memoryview(b"")


def ok(count: int = 1, first_seq: int = 0, duplicate: bool = False) -> EnqueueResponseView:
    return EnqueueResponseView(1, first_seq, count, NO_DUE, duplicate, None)


def refusal(reason: str, **metadata: object) -> DelayError:
    code = "INVALID_ARGUMENT" if reason == "DELAY_TOO_LONG" else "UNAVAILABLE"
    return errors.make_error(code, reason, reason.lower(), {key: str(value) for key, value in metadata.items()})


@dataclass(eq=False)
class FakeBatch:
    content: tuple[int, ...]
    deadline_s: float = float("inf")
    bad: frozenset[int] = frozenset()
    outcome: list[object] = field(default_factory=list)
    parts: list[FakeBatch] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.content)

    def succeed(self, answer: EnqueueResponseView) -> None:
        self.outcome.append(answer)

    def fail(self, error: DelayError) -> None:
        self.outcome.append(error)

    def split(self, error: DelayError) -> Sequence[FakeBatch]:
        if len(self.content) == 1:
            return ()
        middle = len(self.content) // 2
        halves = (self.content[:middle], self.content[middle:])
        self.parts = [FakeBatch(half, self.deadline_s, self.bad) for half in halves]
        return self.parts

    def leaves(self) -> list[FakeBatch]:
        return [leaf for part in self.parts for leaf in part.leaves()] if self.parts else [self]


class Shard:
    """The producer rules of the design, section 4: only last + 1 is stored, the last 16 get their first answer."""

    def __init__(self) -> None:
        self.stored: list[tuple[int, ...]] = []
        self.producers: dict[int, tuple[int, deque[tuple[int, EnqueueResponseView]]]] = {}

    def append(self, producer: int, number: int, batch: FakeBatch) -> tuple[EnqueueResponseView, DelayError | None]:
        last, answers = self.producers.get(producer, (-1, deque(maxlen=16)))
        for answered, answer in answers:
            if answered == number:
                return answer, None
        if number != last + 1:
            if last == -1:
                return ok(), refusal("UNKNOWN_PRODUCER")
            return ok(), refusal("OUT_OF_ORDER", expected=last + 1)
        if batch.bad & set(batch.content):
            return ok(), refusal("DELAY_TOO_LONG")
        answer = ok(batch.count, len(self.stored))
        self.stored.append(batch.content)
        answers.append((number, answer))
        self.producers[producer] = (number, answers)
        return answer, None


@dataclass(eq=False)
class Stream:
    requests: deque[tuple[int, int, FakeBatch]] = field(default_factory=deque)
    answers: deque[tuple[EnqueueResponseView, DelayError | None]] = field(default_factory=deque)


def new_window() -> SendWindow[FakeBatch]:
    ids = itertools.count(1)
    return SendWindow(lambda: next(ids))


def send(window: SendWindow[FakeBatch], stream: Stream) -> PendingSend[FakeBatch] | None:
    entry = window.next_to_send()
    if entry is not None:
        stream.requests.append((entry.producer_id, entry.number, entry.batch))
    return entry


def serve(shard: Shard, stream: Stream, fault: str = "") -> None:
    producer, number, batch = stream.requests.popleft()
    if fault == "busy":
        stream.answers.append((ok(), refusal("BUSY")))
        return
    answer, error = shard.append(producer, number, batch)
    if fault == "stored but not serving" and error is None:
        error = refusal("NOT_SERVING")
    stream.answers.append((answer, error))


class World:
    def __init__(self, rng: random.Random, bad: frozenset[int], fault_rate: float, timeouts: bool) -> None:
        self.rng = rng
        self.bad = bad
        self.fault_rate = fault_rate
        self.timeouts = timeouts
        self.window = new_window()
        self.shard = Shard()
        self.stream = Stream()
        self.left_behind: list[Stream] = []
        self.batches: list[FakeBatch] = []
        self.numbers = itertools.count()
        self.now = 0.0

    def add(self) -> None:
        content = tuple(itertools.islice(self.numbers, self.rng.randint(1, 4)))
        deadline = self.now + self.rng.randint(20, 200) if self.timeouts else float("inf")
        batch = FakeBatch(content, deadline, self.bad)
        self.batches.append(batch)
        self.window.add(batch)

    def break_stream(self) -> None:
        self.window.stream_ended()
        self.left_behind.append(self.stream)
        self.stream = Stream()

    def receive(self) -> None:
        if self.stream.answers and self.window.answered(*self.stream.answers.popleft()) is SendAction.REROUTE:
            self.break_stream()

    def step(self) -> None:
        self.now += 1
        if self.timeouts:
            self.window.expire(self.now, "test")
        faulty = self.rng.random() < self.fault_rate
        match self.rng.randint(0, 9):
            case 0 if faulty:
                self.break_stream()
            case 1:
                leftovers = [stream for stream in self.left_behind if stream.requests]
                if leftovers:
                    serve(self.shard, self.rng.choice(leftovers))
            case 2 | 3 | 4:
                if self.stream.requests:
                    faults = ["busy", "stored but not serving"]
                    serve(self.shard, self.stream, self.rng.choice(faults) if faulty else "")
            case 5 | 6 | 7:
                self.receive()
            case _:
                send(self.window, self.stream)

    def finish(self) -> None:
        for _ in range(100_000):
            if self.window.empty:
                break
            while send(self.window, self.stream):
                pass
            if self.stream.requests:
                serve(self.shard, self.stream)
            elif self.stream.answers:
                self.receive()
            else:
                self.now += 1
                self.window.expire(self.now, "test")
        assert self.window.empty, "the window never came to an end"
        for stream in self.left_behind:
            while stream.requests:
                serve(self.shard, stream)

    def check(self) -> None:
        stored = [number for content in self.shard.stored for number in content]
        times = {number: stored.count(number) for number in stored}
        for batch in self.batches:
            for leaf in batch.leaves():
                assert len(leaf.outcome) == 1, (leaf, "answered once")
                outcome = leaf.outcome[0]
                copies = {times.get(number, 0) for number in leaf.content}
                if isinstance(outcome, EnqueueResponseView):
                    assert copies == {1}, (leaf, copies)
                    assert self.shard.stored[outcome.first_seq] == leaf.content, "the answer is this batch's own"
                elif isinstance(outcome, errors.SendTimeout) and outcome.maybe_stored:
                    assert copies in ({0}, {1}), (leaf, copies)
                else:
                    assert copies == {0}, (leaf, copies)
        if not self.timeouts:
            assert stored == sorted(stored), "in the order in which they were sent"
            assert set(stored) == {n for b in self.batches for n in b.content} - self.bad


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**32), st.booleans(), st.sampled_from([0.0, 0.05, 0.3, 0.9]), st.sampled_from([0.0, 0.05, 0.4]))
def test_no_batch_is_lost_or_stored_twice(seed: int, timeouts: bool, fault_rate: float, bad_rate: float) -> None:
    rng = random.Random(seed)
    bad = frozenset(n for n in range(2000) if rng.random() < bad_rate)
    world = World(rng, bad, fault_rate, timeouts)
    for _ in range(400):
        if rng.random() < 0.3:
            world.add()
        world.step()
    world.finish()
    world.check()


def drained(window: SendWindow[FakeBatch], count: int) -> list[PendingSend[FakeBatch]]:
    return [entry for _ in range(count) if (entry := window.next_to_send()) is not None]


def filled(count: int) -> tuple[SendWindow[FakeBatch], list[FakeBatch]]:
    window = new_window()
    batches = [FakeBatch((number,)) for number in range(count)]
    for batch in batches:
        window.add(batch)
    return window, batches


def test_at_most_sixteen_numbers_are_unanswered() -> None:
    window, _ = filled(40)
    assert [entry.number for entry in drained(window, 40)] == [*range(WINDOW)]
    window.answered(ok(), None)
    assert [entry.number for entry in drained(window, 40)] == [WINDOW]


def test_broken_stream_is_followed_by_the_same_numbers_and_contents() -> None:
    window, _ = filled(5)
    before = drained(window, 3)
    window.answered(ok(), None)
    window.stream_ended()
    again = drained(window, 9)
    assert [(e.producer_id, e.number, e.batch.content) for e in again[:2]] == [
        (e.producer_id, e.number, e.batch.content) for e in before[1:]
    ]
    assert [entry.number for entry in again] == [1, 2, 3, 4]


def test_refused_number_is_used_again_when_all_later_answers_are_in() -> None:
    window, batches = filled(4)
    drained(window, 3)
    assert window.answered(ok(), refusal("DELAY_TOO_LONG")) is SendAction.DRAIN
    assert isinstance(batches[0].outcome[0], errors.DelayTooLong)
    assert window.next_to_send() is None
    window.answered(ok(), refusal("OUT_OF_ORDER", expected=0))
    assert window.next_to_send() is None
    window.answered(ok(), refusal("OUT_OF_ORDER", expected=0))
    again = drained(window, 9)
    assert [(e.producer_id, e.number, e.batch.content) for e in again] == [(1, 0, (1,)), (1, 1, (2,)), (1, 2, (3,))]


def test_refusal_after_a_broken_stream_leaves_the_producer_id_behind() -> None:
    window, _ = filled(3)
    drained(window, 3)
    window.stream_ended()
    drained(window, 3)
    window.answered(ok(), refusal("DELAY_TOO_LONG"))
    for _ in range(2):
        window.answered(ok(), refusal("OUT_OF_ORDER", expected=0))
    again = drained(window, 9)
    assert [(e.producer_id, e.number, e.batch.content) for e in again] == [(2, 0, (1,)), (2, 1, (2,))]


def test_busy_shard_is_sent_the_same_again_after_a_pause() -> None:
    window, _ = filled(2)
    drained(window, 2)
    assert window.answered(ok(), refusal("BUSY", retry_after_ms=5)) is SendAction.PAUSE
    assert window.answered(ok(), refusal("OUT_OF_ORDER", expected=0)) is SendAction.DRAIN
    assert [(e.producer_id, e.number, e.batch.content) for e in drained(window, 9)] == [(1, 0, (0,)), (1, 1, (1,))]


@pytest.mark.parametrize("reason", ["NOT_MASTER", "NOT_SERVING", "NOT_ENOUGH_REPLICAS", "SHARD_DAMAGED"])
def test_node_that_cannot_store_is_left(reason: str) -> None:
    window, _ = filled(1)
    drained(window, 1)
    assert window.answered(ok(), refusal(reason)) is SendAction.REROUTE


def test_forgotten_producer_starts_over() -> None:
    window, batches = filled(3)
    drained(window, 1)
    window.answered(ok(), None)
    drained(window, 2)
    assert window.answered(ok(), refusal("UNKNOWN_PRODUCER")) is SendAction.PAUSE
    window.answered(ok(), refusal("UNKNOWN_PRODUCER"))
    assert [(e.producer_id, e.number) for e in drained(window, 9)] == [(2, 0), (2, 1)]
    assert not batches[1].outcome


def test_answer_for_another_count_is_never_believed() -> None:
    window, batches = filled(1)
    drained(window, 1)
    window.answered(ok(count=7), None)
    assert isinstance(batches[0].outcome[0], DelayError)


def test_batch_given_up_keeps_its_place_until_those_after_it_are_settled() -> None:
    window = new_window()
    first, second = FakeBatch((0,), deadline_s=1.0), FakeBatch((1,), deadline_s=9.0)
    window.add(first)
    window.add(second)
    drained(window, 2)
    window.stream_ended()
    window.expire(2.0, "silence")
    error = first.outcome[0]
    assert isinstance(error, errors.SendTimeout)
    assert error.maybe_stored
    assert [(e.producer_id, e.number) for e in drained(window, 9)] == [(1, 0), (1, 1)]
    window.stream_ended()
    window.expire(10.0, "silence")
    assert window.empty
    window.add(FakeBatch((2,)))
    assert [(e.producer_id, e.number) for e in drained(window, 9)] == [(2, 0)]


def test_never_sent_batch_fails_as_certainly_not_stored() -> None:
    window = new_window()
    batch = FakeBatch((0,), deadline_s=1.0)
    window.add(batch)
    window.expire(1.0, "no master")
    error = batch.outcome[0]
    assert isinstance(error, errors.SendTimeout)
    assert not error.maybe_stored


def test_closing_fails_everything_once() -> None:
    window, batches = filled(20)
    drained(window, 20)
    window.fail_all(errors.Closed("producer"))
    assert window.empty
    assert [len(batch.outcome) for batch in batches] == [1] * 20
