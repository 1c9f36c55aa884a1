"""Chains, wheels and rebuilding against plain lists of units per slot."""

from __future__ import annotations

import random

import numpy as np
import pytest
from delaynode.store.errors import Damaged
from delaynode.store.timer import timer_log
from delaynode.store.timer.timer_log import UNIT_BYTES, TimerLog, as_units, build_flush
from delaynode.store.timer.units import DEFAULT, DELETE, ROLL, UNIT, change_of, units
from delaynode.store.timer.wheel import NOWHERE, TimerWheel
from delaynode.store.types import Records

from tests.store.support.memory_files import MemoryFiles
from tests.store.support.walks import times

Slot = tuple[int, int]  # width, start


class LogAndModel:
    """Two small levels over one TimerLog: 20 slots of 10, 10 slots of 100; time moves on, so slots are laps apart."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.files = MemoryFiles(self.rng)
        self.log = TimerLog(self.files, "timerlog", 52 * self.rng.choice([1, 7, 1000]))
        self.minute, self.hour = TimerWheel(10, 20), TimerWheel(100, 10)
        self.now = 0
        self.bound = 100
        self.slots: dict[Slot, list[Records]] = {}
        self.flushes: list[int] = []  # positions
        self.seq = 0

    def flush(self) -> None:
        self.now += self.rng.choice([0, 5, 30, 100])
        self.bound = max(self.bound, self.now // 100 * 100 + 100)
        n = self.rng.choice([0, 1, 3, 40])
        due = np.array([self.rng.randrange(self.now, self.now + 700) for _ in range(n)], np.int64)
        due[due >= self.bound + 600] = self.bound
        rows = units(due, np.arange(self.seq, self.seq + n), 5, 10, 1, 2, DEFAULT)
        rows["magic"] = [self.rng.choice([DEFAULT, ROLL, DELETE, ROLL | DELETE]) for _ in range(n)]
        self.seq += n
        if not n:
            return
        self.flushes.append(self.log.end)
        flush = build_flush(rows, self.bound, self.log.end, self.minute, self.hour, (0, 0))
        self.log.write(flush)
        flush.minutes.hang(self.minute)
        flush.hours.hang(self.hour)
        for row in rows:
            width = 10 if row["due"] < self.bound else 100
            slot = width, int(row["due"]) // width * width
            span = 200 if width == 10 else 1000
            self.slots.pop((width, slot[1] - span), None)  # the lap before
            self.slots.setdefault(slot, []).append(row)

    def walked(self, wheel: TimerWheel, start: int) -> Records:
        """The units of a slot in TimerLog order."""
        last = int(wheel.last_positions(np.array([start]))[0])
        if last == NOWHERE:
            return np.empty(0, UNIT)
        blocks = list(self.log.walk(last, start, wheel.width_ms))
        return np.concatenate([as_units(block) for block in reversed(blocks)])

    def check(self) -> None:
        for (width, start), rows in self.slots.items():
            wheel = self.minute if width == 10 else self.hour
            got = self.walked(wheel, start)
            assert sorted(got.tolist()) == sorted(np.array(rows, UNIT).tolist())
            for due in set(got["due"].tolist()):  # among equals of one due, the order of arrival
                assert got["seq"][got["due"] == due].tolist() == [int(r["seq"]) for r in rows if r["due"] == due]
            count = wheel.slots["num"][start // width % len(wheel.slots)]
            assert count == int(change_of(np.array(rows, UNIT)["magic"]).sum())


@pytest.fixture(autouse=True)
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    first, largest = getattr(request, "param", (2, 4))
    monkeypatch.setattr(timer_log, "FIRST_BLOCK", first)
    monkeypatch.setattr(timer_log, "LARGEST_BLOCK", largest)


@pytest.mark.parametrize("blocks", [(1, 1), (2, 4), (3, 64), (256, 65536)], indirect=True)
def test_a_chain_holds_the_units_of_its_slot_in_order() -> None:
    for seed in range(times(30)):
        both = LogAndModel(seed)
        for _ in range(8):
            both.flush()
            both.check()


def test_wheels_rebuilt_from_any_flush_on_are_the_wheels() -> None:
    for seed in range(times(60)):
        both = LogAndModel(seed)
        copies = []
        for _ in range(8):
            copies.append((both.log.end, both.minute.dump(), both.hour.dump()))
            both.flush()
        for position, minutes, hours in copies:
            minute, hour = TimerWheel(10, 20), TimerWheel(100, 10)
            minute.slots[:], hour.slots[:] = minutes, hours
            both.log.rebuild(minute, hour, position)
            assert np.array_equal(minute.slots, both.minute.slots)
            assert np.array_equal(hour.slots, both.hour.slots)


def test_a_flipped_bit_anywhere_in_a_flush_is_damage() -> None:
    both = LogAndModel(3)
    while both.log.end < 40 * UNIT_BYTES:
        both.flush()
    rng = random.Random(3)
    for _ in range(times(300)):
        files = both.files.copy()
        path = rng.choice(sorted(files.files))
        files.flip(path, rng.randrange(8 * len(files.files[path].data)))
        broken = TimerLog(files, "timerlog", both.log.file.segment_bytes)
        with pytest.raises(Damaged):
            broken.rebuild(TimerWheel(10, 20), TimerWheel(100, 10), 0)


def test_a_chain_that_leads_astray_is_damage_and_ends() -> None:
    both = LogAndModel(5)
    for _ in range(10):
        both.flush()
    (width, start), rows = max(both.slots.items(), key=lambda item: len(item[1]))
    wheel = both.minute if width == 10 else both.hour
    last = int(wheel.last_positions(np.array([start]))[0])
    for wrong in (last + UNIT_BYTES * 10**6, last + 1, both.log.end, 0, -UNIT_BYTES, 2**62):
        with pytest.raises(Damaged):
            list(both.log.walk(wrong, start, width))
    for shift in (-1, 1):  # another slot's chain
        with pytest.raises(Damaged):
            list(both.log.walk(last, start + shift * width, width))
    assert len(rows) == len(both.walked(wheel, start))


def test_a_slot_of_another_lap_reads_as_empty_and_is_taken_over() -> None:
    wheel = TimerWheel(10, 20)
    one = np.array([1])
    wheel.extend(np.array([50]), one * 52, one * 104, one * 2)
    assert wheel.last_positions(np.array([50, 250, 60])).tolist() == [104, NOWHERE, NOWHERE]
    assert [column.tolist() for column in wheel.counts(0, 1000)] == [[50], [2]]
    wheel.extend(np.array([250]), one * 520, one * 572, one * 2)
    assert wheel.last_positions(np.array([50, 250])).tolist() == [NOWHERE, 572]
    assert wheel.slots["first"][5] == 520
    assert wheel.slots["num"][5] == 2
    wheel.extend(np.array([250]), one * 780, one * 780, -one)
    assert (wheel.slots["first"][5], wheel.slots["last"][5], wheel.slots["num"][5]) == (520, 780, 1)
    wheel.empty(50)  # another lap's: nothing happens
    assert wheel.last_positions(np.array([250])).tolist() == [780]
    wheel.empty(250)
    assert wheel.counts(0, 1000)[0].tolist() == []


def test_units_of_two_laps_in_one_flush_leave_the_later_lap() -> None:
    """A DELETE that waited for its flush while the shard caught up for days: its minute is another lap's by now."""
    both = LogAndModel(1)
    rows = units(np.array([55, 255]), np.array([1, 2]), 5, 10, 1, 2, DEFAULT)
    flush = build_flush(rows, 1000, 0, both.minute, both.hour, (0, 0))
    both.log.write(flush)
    flush.minutes.hang(both.minute)
    assert both.walked(both.minute, 250)["seq"].tolist() == [2]
    assert both.walked(both.minute, 50)["seq"].tolist() == []
