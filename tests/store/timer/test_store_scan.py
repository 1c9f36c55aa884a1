"""Scans and lookups of the timer index against a dict, while units are flushed, cascaded, cleaned and moved about.

Slots are read in pieces of a few units and folded pieces are kept, so that a page begins in the middle of one.
"""

from __future__ import annotations

import random
from contextlib import nullcontext

import numpy as np
import pytest
from delayapi.units import DAY_MS, HOUR_MS, MINUTE_MS
from delaynode.store.errors import Damaged
from delaynode.store.timer import scan
from delaynode.store.timer.index import TimerIndex
from delaynode.store.timer.scan import KeyFilter, ScanJob, SlotSnapshotCache
from delaynode.store.timer.timer_log import UNIT_BYTES, TimerLog
from delaynode.store.timer.units import DEFAULT, DELETE, MOVED, ROLL, SAME, UNIT, units
from delaynode.store.types import MAX_SEQ, Pair

from tests.store.support.memory_files import MemoryFiles

START_MS = 1_700_000_000_000 - 1_700_000_000_000 % HOUR_MS
KEYS = 3
Key = tuple[int, int]


class Indexed:
    """An index, and what it should say: (due, seq) -> (offset, key) of the live, and why others are dead."""

    def __init__(self, seed: int, slot_cache: SlotSnapshotCache) -> None:
        self.choose = random.Random(seed)
        self.slot_cache = slot_cache
        self.files = MemoryFiles(random.Random(seed))
        log = TimerLog(self.files, "timerlog", 4096)
        self.index = TimerIndex(log, 5 * DAY_MS, Pair(START_MS - 1, MAX_SEQ), START_MS + 2 * HOUR_MS)
        self.live: dict[Key, tuple[int, int]] = {}
        self.dead: dict[Key, int] = {}
        self.seq = self.offset = 0
        minutes = [START_MS + n * MINUTE_MS for n in (1, 2, 130, 131)]
        self.places = [*minutes, START_MS + 5 * HOUR_MS]

    def due(self) -> int:
        return self.choose.choice(self.places) + self.choose.choice((0, 0, 1, 2, 500, 59_999))

    # ------------------------------------------------------------ changes
    def insert(self) -> None:
        n = self.choose.choice((1, 1, 3, 20))
        rows = [(self.due(), self.seq + at, self.offset + 10 * at, self.choose.randrange(KEYS)) for at in range(n)]
        due, seq, offset, key = (np.array(column, np.int64) for column in zip(*rows, strict=True))
        self.index.insert(units(due, seq, offset, 10, key.astype(np.uint32), 0, DEFAULT))
        self.live |= {(d, s): (o, k) for d, s, o, k in rows}
        self.seq, self.offset = self.seq + n, self.offset + 10 * n

    def some(self, most: int) -> list[Key]:
        return self.choose.sample(sorted(self.live), min(most, len(self.live)))

    def columns(self, keys: list[Key]) -> tuple[np.ndarray, np.ndarray]:
        return np.array([k[0] for k in keys], np.int64), np.array([k[1] for k in keys], np.int64)

    def delete(self) -> None:
        if keys := self.some(self.choose.choice((1, 5, 40))):
            due, seq = self.columns(keys)
            self.index.delete(due, seq, np.full(len(keys), 10, np.uint32), moved=False)
            for key in keys:
                del self.live[key]
                self.dead[key] = DELETE

    def move(self) -> None:
        """Away, or back to a due that it has had."""
        for key in self.some(3):
            offset, hashed = self.live.pop(key)
            self.dead[key] = DELETE | MOVED
            new = (self.choose.choice([d for d, s in self.dead if s == key[1]] + [self.due()]), key[1])
            due, seq = self.columns([key])
            self.index.delete(due, seq, np.full(1, 10, np.uint32), moved=True)
            due, seq = self.columns([new])
            self.index.reinsert(units(due, seq, offset, 10, hashed, 0, DEFAULT))
            self.dead.pop(new, None)
            self.live[new] = (offset, hashed)

    def relocate(self) -> None:
        for key in self.some(3):
            _, hashed = self.live[key]
            due, seq = self.columns([key])
            self.index.relocate(units(due, seq, self.offset, 10, hashed, 0, ROLL | SAME))
            self.live[key] = (self.offset, hashed)
            self.offset += 10

    def flush(self) -> None:
        job = self.index.begin_flush((0, 0))
        job.run()
        self.index.finish_flush(job)

    def cascade(self) -> None:
        job = self.index.begin_cascade() if self.index.minute_bound_ms < START_MS + 6 * HOUR_MS else None
        if job is not None:
            job.run()
            self.maybe()
            self.index.finish_cascade(job)

    def maybe(self) -> None:
        """Something else, while a job is under way."""
        for _ in range(self.choose.randrange(3)):
            self.choose.choice((self.insert, self.delete, self.move, self.relocate))()

    # ------------------------------------------------------------ questions
    def ended(self, job: ScanJob) -> list[tuple[Key, bool, int, int, int]]:
        self.maybe()
        job.run()
        self.maybe()
        rows, live = job.result()
        self.index.close_view(job.view)
        keys = list(zip(rows["due"].tolist(), rows["seq"].tolist(), strict=True))
        assert keys == sorted(set(keys))
        columns = (live.tolist(), rows["offset"].tolist(), rows["key"].tolist(), rows["magic"].tolist())
        return list(zip(keys, *columns, strict=True))

    def range(self) -> tuple[Pair, Pair]:
        low, high = sorted((self.due(), self.due() + self.choose.choice((1, MINUTE_MS))))
        return Pair(low, self.choose.choice((0, 0, self.seq // 2))), Pair(high + 1, 0)

    def expected(self, low: Pair, high: Pair) -> list[tuple[Key, int]]:
        return sorted((key, said[0]) for key, said in self.live.items() if low <= key < high)

    def list_range(self) -> None:
        low, high = self.range()
        most = self.choose.choice((None, 1, 4, 30))
        job = self.index.begin_scan(low, high, None, most, self.slot_cache)
        found = [(key, offset) for key, live, offset, _, _ in self.ended(job) if live]
        assert found == self.expected(low, Pair(*job.high))
        assert job.high == high or len(found) + 40 * 9 >= (most or 0)

    def page_through(self) -> None:
        """Pages of a range in which nothing changes are all of it, each full but the last."""
        low, high = self.range()
        most = self.choose.choice((5, 30))
        found: list[tuple[Key, int]] = []
        begin = low
        while low < high:
            job = self.index.begin_scan(low, high, None, most, self.slot_cache)
            job.run()
            rows, live = job.result()
            self.index.close_view(job.view)
            page = zip(
                rows["due"][live].tolist(), rows["seq"][live].tolist(), rows["offset"][live].tolist(), strict=True
            )
            found += [((due, seq), offset) for due, seq, offset in page]
            assert int(live.sum()) == most or job.high == high
            low = job.high
        assert found == self.expected(begin, high)

    def by_key(self) -> None:
        low, high = self.range()
        key = self.choose.randrange(KEYS)
        found = self.ended(self.index.begin_scan(low, high, KeyFilter(key), None, self.slot_cache))
        assert all(live and hashed == key for _, live, _, hashed, _ in found)
        wanted = sorted((k, said[0]) for k, said in self.live.items() if low <= k < high and said[1] == key)
        assert [(k, offset) for k, _, offset, _, _ in found] == wanted

    def look_up(self) -> None:
        known = sorted(self.live) + sorted(self.dead)
        if not known:
            return
        asked = self.choose.choices(known, k=self.choose.choice((1, 1, 7)))
        due, seq = self.columns(asked)
        job = self.index.begin_lookup(due, seq, np.ones(len(asked), bool), np.empty(0, UNIT), self.slot_cache)
        found = {key: (live, offset, magic) for key, live, offset, _, magic in self.ended(job)}
        for key in asked:
            live, offset, magic = found[key]
            assert live == (key in self.live)
            if live:
                assert offset == self.live[key][0]
            else:
                assert magic & (DELETE | MOVED) == self.dead[key]


def reads(both: Indexed, job: ScanJob) -> int:
    """How often a job reads the TimerLog."""
    log, count = both.index.log, 0
    read = log._read

    def counted(position: int, n: int) -> np.ndarray:
        nonlocal count
        count += 1
        return read(position, n)

    log._read = counted  # type: ignore[method-assign]
    try:
        job.run()
        assert len(job.result()[0])
    finally:
        del log._read  # type: ignore[attr-defined]
        both.index.close_view(job.view)
    return count


def with_one_slot(messages: int, flushes: int) -> Indexed:
    """A slot whose chain has as many runs as flushes."""
    both = Indexed(1, SlotSnapshotCache(1000, min_units=10, chunk_units=500))
    both.places = [START_MS + MINUTE_MS]
    for _ in range(flushes):
        for _ in range(messages // flushes):
            both.index.insert(units(np.array([both.due()]), np.array([both.seq]), both.seq * 10, 10, 0, 0, DEFAULT))
            both.seq += 1
        both.flush()
    return both


def test_p4_the_next_page_of_a_large_slot_reads_only_what_the_slot_has_gained() -> None:
    both = with_one_slot(200, 10)
    low, high = Pair(START_MS, 0), Pair(START_MS + 2 * MINUTE_MS, 0)
    costs = []
    while low < high:
        job = both.index.begin_scan(low, high, None, 20, both.slot_cache)
        costs.append(reads(both, job))
        low = job.high
    assert costs[0] >= 10
    assert costs[1:] == [0] * (len(costs) - 1)
    assert len(costs) >= 10
    both.insert()
    both.flush()
    assert reads(both, both.index.begin_scan(Pair(START_MS, 0), high, None, 20, both.slot_cache)) == 1


def test_p4_one_cancel_after_the_other_in_a_large_slot_reads_it_only_twice() -> None:
    both = with_one_slot(200, 10)
    job = both.index.begin_scan(Pair(START_MS, 0), Pair(START_MS + 2 * MINUTE_MS, 0))
    job.run()
    rows, _ = job.result()
    both.index.close_view(job.view)
    costs = []
    for row in rows[:5]:
        due, seq = np.array([row["due"]]), np.array([row["seq"]])
        job = both.index.begin_lookup(due, seq, np.ones(1, bool), np.empty(0, UNIT), both.slot_cache)
        costs.append(reads(both, job))
    assert min(costs[:2]) >= 10
    assert costs[2:] == [0, 0, 0]


def with_many_slots(flushes: int) -> Indexed:
    """110 slots of a minute, each with a message of each flush; in one of fifty it has the key 1, else 0."""
    both = Indexed(1, SlotSnapshotCache())
    minute = np.arange(110)
    due, key = START_MS + (minute + 1) * MINUTE_MS, (minute % 50 == 49).astype(np.uint32)
    for _ in range(flushes):
        seq = both.seq + minute
        both.index.insert(units(due, seq, seq * 10, 10, key, 0, DEFAULT))
        for d, s, k in zip(due.tolist(), seq.tolist(), key.tolist(), strict=True):
            both.live[d, s] = s * 10, k
        both.seq += len(seq)
        both.flush()
    return both


END = Pair(START_MS + 5 * DAY_MS, 0)


def test_p4_a_search_by_key_walks_only_the_slots_that_hold_it() -> None:
    both = with_many_slots(3)
    everything = reads(both, both.index.begin_scan(Pair(START_MS, 0), END, None, None, both.slot_cache))
    assert everything >= 330
    assert reads(both, both.index.begin_scan(Pair(START_MS, 0), END, KeyFilter(1), None, both.slot_cache)) < 70


@pytest.mark.parametrize("bad", [False, True])
def test_a_search_by_key_finds_all_beside_a_flush_that_is_damaged_elsewhere(bad: bool) -> None:
    """Then the slots are walked, one by one: the bad unit is in none of them."""
    both = with_many_slots(2)
    if bad:
        first = min(path for path in both.files.files if path.startswith("timerlog/"))
        both.files.files[first].data[2 * UNIT_BYTES - 1] ^= 1  # the seq of the first unit
    found = both.ended(both.index.begin_scan(Pair(START_MS + HOUR_MS, 0), END, KeyFilter(1), None, both.slot_cache))
    wanted = sorted((key, said[0]) for key, said in both.live.items() if said[1] == 1 and key[0] > START_MS + HOUR_MS)
    assert [(key, offset) for key, _, offset, _, _ in found] == wanted
    assert len(wanted) >= 2
    job = both.index.begin_scan(Pair(START_MS, 0), END, KeyFilter(1), None, both.slot_cache)
    with pytest.raises(Damaged) if bad else nullcontext():
        job.run()


FOLDS = [
    SlotSnapshotCache(0),
    SlotSnapshotCache(40, min_units=1, chunk_units=6),
    SlotSnapshotCache(1000, min_units=1, chunk_units=50),
]


@pytest.mark.parametrize("walked", [scan.WALKED_SLOTS, 0])
@pytest.mark.parametrize("seed", range(6))
def test_scans_and_lookups_find_what_is_there_whatever_was_folded_before(
    seed: int, walked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """walked: slots, before a search by key looks which of the others have the key."""
    monkeypatch.setattr(scan, "WALKED_SLOTS", walked)
    both = Indexed(seed, FOLDS[seed % 3])
    changes = (both.insert, both.insert, both.delete, both.move, both.relocate, both.flush, both.cascade)
    questions = (both.list_range, both.page_through, both.by_key, both.look_up, both.look_up)
    for _ in range(70):
        both.choose.choice(changes)()
        for _ in range(both.choose.randrange(3)):
            both.choose.choice(questions)()
    assert len(both.slot_cache) <= both.slot_cache.limit
    assert both.slot_cache.limit == 0 or len(both.slot_cache) > 0
