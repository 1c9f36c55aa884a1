"""The numbering of a producer's batches through failovers: the shard forgets what it had not committed.

The world: a master appends, commits later and answers only then; refusals it tells at once. It dies with a tail that
no other copy has, and requests that were under way to it are gone. Its successor goes on from the committed log, or
from more of it.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from dataclasses import dataclass, field

from delayapi.codec import EnqueueResponseView
from delayclient.errors import DelayError
from delayclient.producer.numbering import SendAction
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client.test_window import FakeBatch, new_window, ok, refusal, send

KEPT = 16
"""Answers that a shard keeps for a producer."""


@dataclass
class ReplicatedShard:
    log: list[tuple[int, int, tuple[int, ...]]] = field(default_factory=list)
    """(producer, number, content), one seq each."""
    committed: int = 0

    def append(
        self, producer: int, number: int, batch: FakeBatch
    ) -> tuple[int, EnqueueResponseView, DelayError | None]:
        """(how long the log must be committed before the answer may leave, answer, refusal)."""
        mine = {n: seq for seq, (p, n, _) in enumerate(self.log) if p == producer}
        last = max(mine, default=-1)
        if number in mine and number > last - KEPT:
            seq = mine[number]
            return len(self.log), ok(len(self.log[seq][2]), seq, duplicate=True), None
        if number != last + 1:
            if not mine:
                return 0, ok(), refusal("UNKNOWN_PRODUCER")
            return 0, ok(), refusal("OUT_OF_ORDER", expected=last + 1)
        if batch.bad & set(batch.content):
            return 0, ok(), refusal("DELAY_TOO_LONG")
        self.log.append((producer, number, batch.content))
        return len(self.log), ok(batch.count, len(self.log) - 1), None


@dataclass(eq=False)
class Stream:
    requests: deque[tuple[int, int, FakeBatch]] = field(default_factory=deque)
    answers: deque[tuple[int, EnqueueResponseView, DelayError | None]] = field(default_factory=deque)


class World:
    def __init__(self, rng: random.Random, bad: frozenset[int]) -> None:
        self.rng = rng
        self.bad = bad
        self.window = new_window()
        self.shard = ReplicatedShard()
        self.stream = Stream()
        self.left_behind: list[Stream] = []
        self.batches: list[FakeBatch] = []
        self.numbers = itertools.count()
        self.failovers = 0

    def add(self) -> None:
        content = tuple(itertools.islice(self.numbers, self.rng.randint(1, 4)))
        self.batches.append(FakeBatch(content, bad=self.bad))
        self.window.add(self.batches[-1])

    def break_stream(self) -> None:
        self.window.stream_ended()
        self.left_behind.append(self.stream)
        self.stream = Stream()

    def fail_over(self) -> None:
        kept = self.rng.randint(self.shard.committed, len(self.shard.log))
        del self.shard.log[kept:]
        self.shard.committed = kept
        self.break_stream()
        self.left_behind.clear()
        self.failovers += 1

    def serve(self, stream: Stream) -> None:
        if stream.requests:
            stream.answers.append(self.shard.append(*stream.requests.popleft()))

    def receive(self) -> bool:
        if not self.stream.answers or self.stream.answers[0][0] > self.shard.committed:
            return False
        _, answer, error = self.stream.answers.popleft()
        if self.window.answered(answer, error) is SendAction.REROUTE:
            self.break_stream()
        return True

    def step(self) -> None:
        match self.rng.randint(0, 40):
            case 0:
                self.fail_over()
            case 1:
                self.break_stream()
            case n if n < 5 and self.left_behind:
                self.serve(self.rng.choice(self.left_behind))
            case n if n < 15:
                self.serve(self.stream)
            case n if n < 22:
                self.shard.committed = self.rng.randint(self.shard.committed, len(self.shard.log))
            case n if n < 32:
                self.receive()
            case _:
                send(self.window, self.stream)

    def finish(self) -> None:
        for _ in range(100_000):
            if self.window.empty:
                break
            while send(self.window, self.stream):
                pass
            while self.stream.requests:
                self.serve(self.stream)
            self.shard.committed = len(self.shard.log)
            while self.receive():
                pass
        assert self.window.empty, "the window never came to an end"

    def check(self) -> None:
        stored = [number for _, _, content in self.shard.log for number in content]
        assert stored == sorted(stored), "in the order in which they were sent"
        assert len(stored) == len(set(stored)), "none twice"
        assert set(stored) == {n for batch in self.batches for n in batch.content} - self.bad, "none lost"
        for batch in self.batches:
            for leaf in batch.leaves():
                assert len(leaf.outcome) == 1, "answered once"
                outcome = leaf.outcome[0]
                if isinstance(outcome, EnqueueResponseView):
                    assert self.shard.log[outcome.first_seq][2] == leaf.content, "what was acknowledged is there"
                else:
                    assert self.bad & set(leaf.content), "an error only for what is wrong itself"


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.0, 0.05, 0.3]))
def test_failovers_lose_nothing_acknowledged_store_nothing_twice_and_keep_the_order(seed: int, bad_rate: float) -> None:
    rng = random.Random(seed)
    world = World(rng, frozenset(n for n in range(2000) if rng.random() < bad_rate))
    for _ in range(500):
        if rng.random() < 0.3:
            world.add()
        world.step()
    world.finish()
    world.check()
