"""The guarded clock: what it follows, what it doubts, and what a restart of the process remembers of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from delayapi.units import DAY_MS, HOUR_MS
from delaynode.clock import GuardedClock, Trust, boot_ms, wall_ms
from delaynode.node.clock_watch import ClockWatch, boot_id, read_trust
from delaynode.node.conditions import ConditionLog, NodeCondition
from hypothesis import given, settings
from hypothesis import strategies as st

START_MS = 1_700_000_000_000


@dataclass
class Machine:
    """True time goes on; the wall clock is off by what somebody set it to."""

    true_ms: int = START_MS
    off_ms: int = 0
    booted_ms: int = START_MS - DAY_MS
    before_ms: int = 0  # that the thread is held up just before it reads the wall clock, once
    after_ms: int = 0  # and just after

    def wall(self) -> int:
        self.true_ms += self.before_ms
        now = self.true_ms + self.off_ms
        self.true_ms += self.after_ms
        self.before_ms = self.after_ms = 0
        return now

    def boot(self) -> int:
        return self.true_ms - self.booted_ms

    def clock(self, trust: Trust | None = None) -> GuardedClock:
        return GuardedClock(self.wall, self.boot, trust=trust)


@pytest.fixture
def machine() -> Machine:
    return Machine()


# ---------------------------------------------------------------- steps
def test_a_step_of_an_hour_ahead_is_not_believed_for_ever(machine: Machine) -> None:
    clock = machine.clock()
    machine.off_ms += HOUR_MS
    for _ in range(100):
        machine.true_ms += DAY_MS
        assert clock.now_ms() == machine.true_ms
        assert clock.disbelieved_ms == HOUR_MS


def test_a_step_ahead_that_is_taken_back_leaves_nothing(machine: Machine) -> None:
    clock = machine.clock()
    machine.off_ms += HOUR_MS
    assert clock.now_ms() == machine.true_ms
    machine.off_ms = 0
    machine.true_ms += 5
    assert (clock.now_ms(), clock.disbelieved_ms) == (machine.true_ms, 0)


def test_a_step_ahead_is_believed_once_it_is_accepted_and_the_next_one_is_not(machine: Machine) -> None:
    clock = machine.clock()
    machine.off_ms = HOUR_MS
    clock.now_ms()
    assert clock.accept() == HOUR_MS
    assert (clock.now_ms(), clock.disbelieved_ms) == (machine.true_ms + HOUR_MS, 0)
    machine.off_ms += HOUR_MS
    assert clock.now_ms() == machine.true_ms + HOUR_MS
    assert clock.disbelieved_ms == HOUR_MS


def test_a_step_back_is_followed_and_the_way_forth_again_is_a_step_ahead(machine: Machine) -> None:
    """A delay= that was counted from the earlier time must not end when the clock is set right."""
    clock = machine.clock()
    machine.off_ms = -HOUR_MS
    assert clock.now_ms() == machine.true_ms - HOUR_MS
    machine.off_ms = 0
    machine.true_ms += 10
    assert clock.now_ms() == machine.true_ms - HOUR_MS
    assert clock.disbelieved_ms == HOUR_MS


@pytest.mark.parametrize("step_ms", [2, 400, 1_000])
def test_a_small_step_ahead_is_followed(machine: Machine, step_ms: int) -> None:
    clock = machine.clock()
    machine.off_ms = step_ms
    assert (clock.now_ms(), clock.disbelieved_ms) == (machine.true_ms + step_ms, 0)


def test_a_leap_second_is_followed(machine: Machine) -> None:
    clock = machine.clock()
    for leap_ms in (-1_000, 1_000):
        machine.true_ms += DAY_MS
        machine.off_ms += leap_ms
        assert (clock.now_ms(), clock.disbelieved_ms) == (machine.true_ms + machine.off_ms, 0)


@pytest.mark.parametrize("step_ms", [2, 90, 900])
def test_a_staircase_of_small_steps_gets_a_second_ahead_and_500_ppm_more(machine: Machine, step_ms: int) -> None:
    clock = machine.clock()
    begin_ms = machine.true_ms
    for _ in range(5_000):
        machine.true_ms += 1_000
        machine.off_ms += step_ms
        assert clock.now_ms() - machine.true_ms <= 1_000 + (machine.true_ms - begin_ms) * 500 // 1_000_000
    assert clock.disbelieved_ms > 0


def test_steps_there_and_back_again_are_followed_for_ever(machine: Machine) -> None:
    clock = machine.clock()
    for number in range(1_000):
        machine.true_ms += 1_000
        machine.off_ms = 900 * (number % 2)
        assert (clock.now_ms(), clock.disbelieved_ms) == (machine.true_ms + machine.off_ms, 0)


def test_a_steady_500_ppm_is_followed_for_ever(machine: Machine) -> None:
    """Such a clock has an oscillator that is off, and a time service that steps it instead of slewing."""
    clock = machine.clock()
    for _ in range(2_000):
        machine.true_ms += 600_000
        machine.off_ms += 300
        assert (clock.now_ms(), clock.disbelieved_ms) == (machine.true_ms + machine.off_ms, 0)


def test_600_ppm_is_not(machine: Machine) -> None:
    clock = machine.clock()
    for _ in range(2_000):
        machine.true_ms += 600_000
        machine.off_ms += 360
        clock.now_ms()
    assert clock.disbelieved_ms > HOUR_MS // 10


def test_a_thread_held_up_between_two_readings_sees_no_step(machine: Machine) -> None:
    clock = machine.clock()
    trust = clock.trust
    for before_ms, after_ms in ((3_000, 0), (0, 3_000), (HOUR_MS, HOUR_MS)):
        machine.before_ms, machine.after_ms = before_ms, after_ms
        asked_ms = machine.true_ms
        assert asked_ms <= clock.now_ms() <= machine.true_ms
        assert clock.disbelieved_ms == 0
        assert clock.now_ms() == machine.true_ms
    assert clock.trust == trust


@given(st.lists(st.tuples(st.integers(0, DAY_MS), st.integers(-2 * HOUR_MS, 2 * HOUR_MS)), max_size=60))
@settings(deadline=None)
def test_whatever_the_wall_clock_does_time_gains_on_the_boot_clock_a_second_and_500_ppm_at_most(
    moves: list[tuple[int, int]],
) -> None:
    machine = Machine()
    clock = machine.clock()
    lowest, begin_ms = clock.now_ms() - machine.boot(), machine.boot()
    for elapsed_ms, step_ms in moves:
        machine.true_ms += elapsed_ms
        machine.off_ms += step_ms
        gained = clock.now_ms() - machine.boot() - lowest
        lowest += min(0, gained)
        assert gained <= 1_001 + (machine.boot() - begin_ms) // 2_000
        assert clock.now_ms() <= machine.wall()


def test_the_machines_own_clocks() -> None:
    clock = GuardedClock()
    assert abs(clock.now_ms() - wall_ms()) < 500
    assert boot_ms() <= boot_ms()


# ---------------------------------------------------------------- restarts
@dataclass
class Process:
    """A ClockWatch on a directory that outlives it."""

    machine: Machine
    directory: Path
    events: list[dict[str, object]] = field(default_factory=list)
    awake_ms: int = 0  # that the machine slept does not count in the loop's clock

    def log(self, event: str, **fields: object) -> None:
        self.events.append({"event": event, **fields})

    def start(self, *, accept: bool = False) -> ClockWatch:
        watch = ClockWatch(
            str(self.directory),
            self.log,
            accept=accept,
            make=self.machine.clock,
            steady=lambda: (self.machine.true_ms - self.awake_ms) / 1000,
        )
        if watch.changed:
            watch.save()
        return watch

    def named(self, name: str) -> list[dict[str, object]]:
        return [event for event in self.events if event["event"] == name]


@pytest.fixture
def process(machine: Machine, tmp_path: Path) -> Process:
    return Process(machine, tmp_path)


def test_a_restart_does_not_launder_a_step(machine: Machine, process: Process) -> None:
    process.start()
    machine.off_ms = HOUR_MS  # while the node was down, or while it ran: all the same
    machine.true_ms += 60_000
    for _ in range(3):
        watch = process.start()
        assert watch.clock.now_ms() == machine.true_ms
        assert watch.clock.disbelieved_ms == HOUR_MS


def test_restarts_do_not_refill_the_allowance_for_small_steps(machine: Machine, process: Process) -> None:
    process.start()
    for _ in range(20):
        machine.off_ms += 900
        machine.true_ms += 1_000
        watch = process.start()
        watch.poll()
        assert watch.clock.now_ms() - machine.true_ms <= 1_010


def test_the_flag_at_start_accepts_and_later_starts_remember(machine: Machine, process: Process) -> None:
    process.start()
    machine.off_ms = HOUR_MS
    for accept in (True, False):
        watch = process.start(accept=accept)
        assert (watch.clock.now_ms(), watch.clock.disbelieved_ms) == (machine.true_ms + HOUR_MS, 0)
    assert process.named("clock-accepted") == [{"event": "clock-accepted", "moved_ms": HOUR_MS}]


def test_another_boot_has_nothing_to_compare_with(
    machine: Machine, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    process.start()
    monkeypatch.setattr("delaynode.node.clock_watch.boot_id", lambda: "another")
    machine.booted_ms, machine.off_ms = machine.true_ms - 1_000, HOUR_MS
    assert process.start().clock.now_ms() == machine.true_ms + HOUR_MS


@pytest.mark.parametrize("text", ["", "{", "[]", '{"boot_id": 3}', "\0" * 100])
def test_a_file_that_says_nothing_is_no_file(machine: Machine, process: Process, text: str) -> None:
    process.start()
    (process.directory / "clock.json").write_text(text)
    assert process.start().clock.now_ms() == machine.true_ms


def test_no_flipped_bit_makes_another_time(machine: Machine, process: Process) -> None:
    process.start().save()
    path = process.directory / "clock.json"
    data, boot = path.read_bytes(), boot_id()
    kept = read_trust(path, boot)
    assert kept is not None
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(flipped)
        assert read_trust(path, boot) in (kept, None), f"bit {bit}"


def test_a_disk_that_takes_no_file_is_said_once_and_tried_again(machine: Machine, process: Process) -> None:
    blocked = process.directory / "clock.tmp"
    blocked.mkdir()
    watch = process.start()
    watch.save()
    assert len(process.named("clock-not-kept")) == 1
    assert watch.changed
    blocked.rmdir()
    watch.save()
    assert not watch.changed
    assert read_trust(process.directory / "clock.json", "") is None


def test_the_file_is_left_alone_while_nothing_changes(machine: Machine, process: Process) -> None:
    watch = process.start()
    for _ in range(1_000):
        machine.true_ms += 250
        machine.off_ms = 1 - machine.off_ms  # rounding
        watch.poll()
        assert not watch.changed


# ---------------------------------------------------------------- what is said and who is woken
def test_a_condition_is_logged_when_it_begins_and_when_it_ends() -> None:
    events: list[tuple[str, str]] = []
    log = ConditionLog(lambda event, text="": events.append((event, text)))
    slow, behind = NodeCondition("disk-slow", "11 s"), NodeCondition("clock-behind", "5 s")
    for found in ([], [slow], [slow, behind], [NodeCondition("disk-slow", "12 s")], [], []):
        log.update(found)
    assert events == [("disk-slow", "11 s"), ("clock-behind", "5 s"), ("clock-behind-over", ""), ("disk-slow-over", "")]


def test_sleepers_are_woken_when_time_moves_on_without_the_loops_clock(machine: Machine, process: Process) -> None:
    watch = process.start()
    machine.true_ms += 250
    assert not watch.poll()
    machine.true_ms += HOUR_MS  # the machine was suspended
    process.awake_ms += HOUR_MS
    assert watch.poll()
    machine.off_ms = 900
    assert watch.poll()
    assert not watch.poll()
    machine.off_ms = HOUR_MS
    assert not watch.poll()
    watch.accept()
    assert watch.poll()
    machine.off_ms = 0
    assert not watch.poll()  # back: they sleep long enough
