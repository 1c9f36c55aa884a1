"""The due window against a dictionary."""

from __future__ import annotations

import random

import numpy as np
import pytest
from delaynode.store.timer.due_window import CANCELLED_AT, MOVED_AT, NEVER, DueWindow, ReleasedFew, after, before
from delaynode.store.timer.units import DEFAULT, DELETE, DELETE_MOVED, units
from delaynode.store.types import MAX_SEQ, Pair

from tests.store.support.walks import times

Key = tuple[int, int]


class WindowAndModel:
    """A window over dues 0..999 beside {key: offset}, dead ones with their mark."""

    def __init__(self, seed: int, far: int = 1, limit: int = NEVER) -> None:
        self.rng = random.Random(seed)
        self.far = far  # what dues are multiplied by: large ones leave the packed sort
        self.window = DueWindow(Pair(500 * far, 0), limit)
        self.live: dict[Key, int] = {}
        self.dead: dict[Key, int] = {}
        self.watermark = (-1, MAX_SEQ)
        self.next_seq = 0

    def some(self, keys: list[Key], most: int) -> list[Key]:
        return self.rng.sample(keys, min(len(keys), self.rng.randint(1, most))) if keys else []

    @staticmethod
    def columns(keys: list[Key]) -> tuple[np.ndarray, np.ndarray]:
        return np.array([k[0] for k in keys], np.int64), np.array([k[1] for k in keys], np.int64)

    def new_units(self, low: int, high: int) -> np.ndarray:
        n = self.rng.randint(1, 30)
        keys = [(self.rng.randrange(low, high) * self.far, self.next_seq + i) for i in range(n)]
        keys = [key for key in keys if key > self.watermark]
        self.next_seq += n
        due, seq = self.columns(keys)
        self.live |= {key: key[1] * 7 for key in keys}
        return units(due, seq, seq * 7, 10, 2, 3, DEFAULT)

    def step(self) -> None:
        choice = self.rng.randrange(8)
        if choice < 2:
            bound = self.window.bound.due // self.far
            if bound > 0:
                self.add(bound)
        elif choice == 2 and self.window.bound.due < 1000 * self.far:
            bound = self.window.bound.due // self.far
            self.window.extend(self.new_units(bound, bound + 100), Pair((bound + 100) * self.far, 0))
        elif choice == 3:
            mark = self.rng.choice([CANCELLED_AT, MOVED_AT])
            keys = self.some(sorted(self.live), 5)
            due, seq = self.columns([*keys, (7, 10**9)])
            self.window.kill(due, seq, mark)
            for key in keys:
                del self.live[key]
                self.dead[key] = mark
        elif choice == 4:
            keys = self.some(sorted(self.dead), 3)
            due, seq = self.columns([*keys, (3, 10**9)])
            back = units(due, seq, seq * 7 + 1, 10, 2, 3, DEFAULT)
            left = self.window.revive(back)
            assert left["seq"].tolist() == [10**9]
            for key in keys:
                del self.dead[key]
                self.live[key] = key[1] * 7 + 1
        elif choice == 5:
            self.find()
        elif choice == 6:
            end = self.rng.randrange(1100) * self.far
            assert self.window.count_below(end) == sum(key[0] < end for key in self.live)
        else:
            self.take()

    def add(self, bound: int) -> None:
        """Arrivals; where they do not fit, the latest rows are forgotten, but never more than half of what fits."""
        arrivals = self.new_units(0, bound)
        self.window.add(arrivals)
        rows = len(self.live) + len(self.dead)
        self.live, self.dead = ({k: v for k, v in d.items() if k < self.window.bound} for d in (self.live, self.dead))
        assert len(self.live) + len(self.dead) >= min(rows, self.window.limit // 2)
        assert len(self.window) <= self.window.limit or not len(arrivals)

    def find(self) -> None:
        every = self.live | self.dead
        keys = [*self.some(sorted(every), 8), (5, 10**9)]
        rows, found = self.window.find(*self.columns(keys))
        assert found.tolist() == [key in every for key in keys]
        for key, row in zip(keys[:-1], rows, strict=False):
            if key in self.live:
                assert (int(row["offset"]), int(row["magic"])) == (self.live[key], DEFAULT)
            else:
                assert int(row["magic"]) == (DELETE if self.dead[key] == CANCELLED_AT else DELETE_MOVED)

    def take(self) -> None:
        low = max(0, self.watermark[0] // self.far)
        target = Pair((low + self.rng.randrange(60)) * self.far, self.rng.choice([0, self.next_seq // 2, MAX_SEQ]))
        target = min(target, before(self.window.bound))
        if target < self.watermark:
            return
        most = self.rng.choice([1, 3, 50, 10**6])
        taken = self.window.drain(target, most)
        if isinstance(taken, ReleasedFew):
            got, offsets = [row[:2] for row in taken.rows], [row[2] for row in taken.rows]
        else:
            got, offsets = list(zip(taken.due.tolist(), taken.seq.tolist(), strict=True)), taken.offset.tolist()
        assert got == sorted(key for key in self.live if key <= taken.watermark)
        assert offsets == [self.live[key] for key in got]
        assert len(got) <= most
        assert self.watermark <= taken.watermark <= target
        rows = sum(key <= target for key in (*self.live, *self.dead))
        assert taken.watermark == target or rows > most
        self.watermark = taken.watermark
        self.live = {k: v for k, v in self.live.items() if k > self.watermark}
        self.dead = {k: v for k, v in self.dead.items() if k > self.watermark}

    def check(self) -> None:
        rows = (*self.live, *self.dead)
        assert len(self.window) == len(rows)
        assert self.window.next_due() == min((key[0] for key in rows), default=NEVER)


@pytest.mark.parametrize("far", [1, 1 << 50])
def test_a_window_is_a_sorted_dictionary(far: int) -> None:
    for seed in range(times(60)):
        both = WindowAndModel(seed, far)
        for _ in range(60):
            both.step()
            both.check()


def test_a_window_that_is_full_forgets_its_far_end_and_stays_a_sorted_dictionary() -> None:
    shed = 0
    for seed in range(times(60)):
        both = WindowAndModel(seed, limit=40)
        for _ in range(60):
            bound = both.window.bound
            both.step()
            both.check()
            shed += both.window.bound < bound
    assert shed > times(60)


def test_a_herd_that_does_not_fit_is_cut_within_its_millisecond() -> None:
    window = DueWindow(Pair(100, 0), 1000)
    for first in range(0, 5000, 500):
        seq = np.arange(first, first + 500)
        rows = units(np.full(500, 50, np.int64), seq, seq, 10, 0, 0, DEFAULT)
        window.add(rows[window.covers(rows["due"], rows["seq"])])
        assert len(window) <= 1000
    assert Pair(50, 500) < window.bound <= Pair(50, 1000)
    assert window.drain(Pair(50, window.bound.seq - 1), 10**6).seq.tolist() == list(range(window.bound.seq))


def test_after_and_before_are_neighbours() -> None:
    for pair in (Pair(5, 0), Pair(5, 7), Pair(5, MAX_SEQ)):
        assert before(after(pair)) == pair == after(before(pair))
        assert before(pair) < pair < after(pair)


def test_killing_a_row_leaves_the_arrivals_array_alone() -> None:
    """The same array is kept as an unflushed unit: a mark in it would reach the TimerLog."""
    window = DueWindow(Pair(100, 0))
    arrived = units(np.array([5]), np.array([1]), 70, 10, 0, 0, DEFAULT)
    window.add(arrived)
    window.kill(np.array([5]), np.array([1]), CANCELLED_AT)
    assert arrived["offset"].tolist() == [70]


def test_cancelled_rows_are_not_counted_as_the_load_to_come() -> None:
    window = DueWindow(Pair(1_000, 0))
    due, seq = np.array([10, 20, 30], np.int64), np.arange(3, dtype=np.int64)
    window.add(units(due, seq, seq * 100, 100, 0, 0, DEFAULT))
    window.kill(due[1:2], seq[1:2], CANCELLED_AT)
    assert window.count_below(31) == 2
    assert window.count_below(20) == 1


def test_a_backlog_that_is_released_slowly_gathers_no_runs() -> None:
    """Single messages come due behind it meanwhile, each at a release that is cut short."""
    window = DueWindow(Pair(10_000, 0))
    waiting = np.arange(1_000)
    window.add(units(waiting // 10, waiting, waiting, 10, 0, 0, DEFAULT))
    released = []
    for seq in range(1_000, 1_200):
        window.add(units(np.array([seq]), np.array([seq]), seq, 10, 0, 0, DEFAULT))
        released += window.drain(Pair(seq, MAX_SEQ), 4096, 2).seq.tolist()
        assert len(window._runs) < 12
    released += window.drain(Pair(2_000, MAX_SEQ), 4096).seq.tolist()
    assert released == list(range(1_200))


def test_what_says_that_its_record_lies_nowhere_is_not_released() -> None:
    """A RESCHEDULE that no master writes: it must not depend on where the row waits."""
    window = DueWindow(Pair(100, 0))
    for seq, offset in enumerate((70, CANCELLED_AT, -(2**63), 90)):
        window.add(units(np.array([5]), np.array([seq]), offset, 10, 0, 0, DEFAULT))
    assert window.drain(Pair(50, MAX_SEQ), 10).seq.tolist() == [0, 3]
