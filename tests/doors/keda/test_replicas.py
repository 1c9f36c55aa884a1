"""The formula of the scaler, against a queue that is simulated message by message."""

from __future__ import annotations

from math import ceil

import numpy as np
from delaynode.server.doors.keda.replicas import MAX_REPLICAS, replicas_needed
from hypothesis import given, settings
from hypothesis import strategies as st

STEP_S = 0.5


def arrivals(times_s: list[float], now_s: float, bucket_s: float, buckets: int) -> np.ndarray:
    """As a forecast has them: those due until the end of each bucket."""
    edges = now_s + bucket_s * np.arange(1, buckets + 1)
    released = np.searchsorted(np.sort(times_s), now_s, "right")
    return np.searchsorted(np.sort(times_s), edges, "right") - released


def lateness(times_s: list[float], workers_from: list[tuple[float, int]], rate: float) -> list[tuple[float, float]]:
    """(due, how late it is done) of each message, with so many workers from each of these times on."""
    waiting, done, late, now = sorted(times_s), 0.0, [], 0.0
    while len(late) < len(waiting):
        count = max((n for since, n in workers_from if since <= now), default=0)
        due = int(np.searchsorted(waiting, now, "right"))
        done = min(done + count * rate * STEP_S, float(due))
        now += STEP_S
        late += [(one, max(0.0, now - one)) for one in waiting[len(late) : int(done + 1e-9)]]
        assert now < 10_000, "it is never done"
    return late


times = st.lists(
    st.one_of(st.floats(0, 300), st.sampled_from([0.0, 60.0, 60.5, 200.0])), min_size=1, max_size=200
)  # scattered, and herds


@settings(max_examples=60, deadline=None)
@given(times, st.integers(1, 20), st.sampled_from([0.0, 10.0, 45.0]), st.sampled_from([5.0, 20.0]))
def test_workers_that_are_asked_for_in_time_are_late_by_no_more_than_they_may(
    times_s: list[float], rate: int, lead_s: float, late_s: float
) -> None:
    """Asked every half bucket, from nothing. Each answer works lead_s later, and nobody is sent home."""
    times_s = [one + lead_s + late_s for one in times_s]  # before that nothing can be there
    asked_s = late_s / 2
    orders, most = [], 0
    for at in np.arange(0, max(times_s), asked_s):
        wanted = replicas_needed(
            0, arrivals(times_s, at, late_s, ceil(400 / late_s)), late_s, rate=rate, lead_s=lead_s + asked_s,
            late_s=late_s,
        )  # fmt: skip
        most = max(most, wanted)
        orders.append((at + lead_s, most))
    worst = max(late for _, late in lateness(times_s, orders, rate))
    assert worst <= late_s + 2 * STEP_S


@given(st.integers(0, 10**6), st.integers(1, 1000), st.sampled_from([1.0, 5.0, 60.0]))
def test_what_waits_is_done_within_the_lateness(waiting: int, rate: int, late_s: float) -> None:
    found = replicas_needed(waiting, np.zeros(20, np.int64), late_s, rate=rate, lead_s=30, late_s=late_s)
    assert found == min(MAX_REPLICAS, ceil(round(waiting / (rate * late_s), 6)))


@given(st.integers(1, 10_000), st.integers(1, 1000))
def test_an_even_stream_needs_as_many_as_its_rate(per_second: int, rate: int) -> None:
    stream = 5 * per_second * np.arange(1, 121)
    assert replicas_needed(0, stream, 5.0, rate=rate, lead_s=45, late_s=5) == ceil(round(per_second / rate, 6))


def test_a_herd_needs_all_of_them_a_lead_before_it_and_few_long_before() -> None:
    def needed(seconds_to_come: int) -> int:
        herd = np.where(5 * np.arange(1, 121) > seconds_to_come, 200_000, 0)
        return replicas_needed(0, herd, 5.0, rate=200, lead_s=45, late_s=5)

    assert needed(600) == 0
    assert needed(590) == 2
    assert needed(45) == needed(5) == needed(0) == 200
    assert needed(120) == 13
    found = [needed(seconds) for seconds in range(0, 600, 5)]
    assert found == sorted(found, reverse=True), "it only grows while the herd comes near"


def test_nothing_needs_nobody_and_one_message_needs_one() -> None:
    nothing = np.zeros(10, np.int64)
    assert replicas_needed(0, nothing, 5.0, rate=200, lead_s=45, late_s=5) == 0
    assert replicas_needed(1, nothing, 5.0, rate=200, lead_s=45, late_s=5) == 1
    assert replicas_needed(10**15, nothing, 5.0, rate=0.001, lead_s=45, late_s=5) == MAX_REPLICAS
