"""maxReleasePerSecond: the pace of a shard's releases (attack B7), on a clock of the test's own."""

from __future__ import annotations

import numpy as np
from delaynode.store.queue.rate_limit import BURST_MS, DEBT_MS, RateLimit, paced, share
from hypothesis import given
from hypothesis import strategies as st

START = 1_700_000_000_000


def drain(pace: RateLimit, from_ms: int, until_ms: int, waiting: int = 10**9) -> list[tuple[int, int]]:
    """Release as the tick loop does, whatever is allowed: (ms, messages) of each tick."""
    now, ticks = from_ms, []
    while waiting and (now := max(now, pace.ready_ms(now))) < until_ms:
        took = min(waiting, pace.available(now))
        assert took > 0, "ready, and nothing was allowed"
        pace.spend(took)
        waiting -= took
        ticks.append((now, took))
        now += 3
    return ticks


@given(st.integers(1, 10**9) | st.integers(1, 200), st.integers(1, 200))
def test_the_queues_of_a_topic_have_its_rate_together_and_none_has_nothing(rate: int, queues: int) -> None:
    parts = [share(rate, queues, queue) for queue in range(queues)]
    assert sum(parts) == max(rate, queues)
    assert min(parts) >= 1
    assert max(parts) - min(parts) <= 1


@given(st.integers(1, 10**4), st.lists(st.integers(0, 10**4), min_size=1, max_size=50), st.integers(1, 90))
def test_a_forecast_is_of_what_the_rate_lets_through(rate: int, coming: list[int], step_s: int) -> None:
    """Second by second: what is due waits for a token, which no second can save for the next."""
    after_ms = 1000 * step_s * np.arange(1, len(coming) + 1)
    waiting, released, expected = 0, 0, []
    for count in coming:
        waiting += count
        for _ in range(step_s):
            now = min(waiting, rate)
            waiting, released = waiting - now, released + now
        expected.append(released)
    assert paced(np.cumsum(coming), rate, after_ms).tolist() == expected


@given(st.integers(1, 10**6), st.integers(1, 20_000), st.lists(st.integers(0, 50), max_size=50))
def test_no_stretch_of_time_releases_more_than_its_rate_and_a_burst(rate: int, span: int, odd: list[int]) -> None:
    pace, now, released = RateLimit(rate, START), START, 0
    steps = [*odd, span]
    for step in steps:
        now += step
        took = pace.available(now)
        pace.spend(took)
        released += took
    assert released * 1000 <= rate * sum(steps) + max(1000, rate * BURST_MS)


def test_what_waits_is_released_at_the_rate_and_no_slower() -> None:
    for rate in (1, 7, 200, 12_345):
        ticks = drain(RateLimit(rate, START), START, START + 20_000)
        released = sum(took for _, took in ticks)
        assert 0.97 * 20 * rate - 1 <= released <= 20 * rate + max(1, rate * BURST_MS // 1000)


def test_a_shard_behind_its_cap_ticks_fifty_times_a_second_at_most() -> None:
    assert len(drain(RateLimit(100_000, START), START, START + 1_000)) <= 51


def test_a_single_message_of_a_shard_that_is_not_busy_waits_for_nothing() -> None:
    pace = RateLimit(10, START)
    assert pace.ready_ms(START + 60_000) == START + 60_000


def test_a_restart_is_no_way_round_the_cap() -> None:
    released = 0
    for start in range(0, 10_000, 50):  # killed and started again twenty times a second
        released += sum(took for _, took in drain(RateLimit(200, START + start), START + start, START + start + 50))
    assert released <= 2_000


def test_messages_that_were_due_when_they_came_delay_the_others_but_by_no_more_than_half_the_rate() -> None:
    alone = sum(took for _, took in drain(RateLimit(200, START), START, START + 10_000))
    pace, beside = RateLimit(200, START), 0
    for now in range(START, START + 10_000, 10):
        pace.owe(50, now)  # 5,000 a second pass by
        beside += sum(took for _, took in drain(pace, now, now + 10))
    assert 0.45 * alone <= beside <= 0.6 * alone


def test_a_debt_is_forgotten_above_a_seconds_worth() -> None:
    pace = RateLimit(100, START)
    pace.owe(10**6, START)
    after = START + 2 * DEBT_MS  # half of what comes pays
    ticks = drain(pace, START, after)
    assert 90 <= sum(took for _, took in ticks) <= 110
    assert sum(took for _, took in drain(pace, after, after + 1_000)) >= 95


def test_a_clock_that_steps_earns_no_more_than_a_burst() -> None:
    pace = RateLimit(100, START)
    assert pace.available(START - 3_600_000) == 0
    assert pace.available(START - 3_600_000 + 1_000) == 10
    assert pace.available(START + 86_400_000) == 10


def test_a_changed_rate_keeps_what_was_saved_and_owed() -> None:
    pace = RateLimit(1_000, START)
    assert pace.changed(10, START + 60_000).available(START + 60_000) == 1
    pace.owe(500, START + 60_000)
    slower = pace.changed(1_000, START + 60_000)
    assert sum(took for _, took in drain(slower, START + 60_000, START + 61_000)) <= 700
