"""How many deliveries go on at once, and when there are none: on a clock that is passed in."""

from __future__ import annotations

from delaysink.outcome import Verdict, backoff_ms
from delaysink.pace import FAILURES, FIRST_LIMIT, LONGEST_OPEN_S, Pace
from hypothesis import given
from hypothesis import strategies as st

OK, FAILED, OVERLOADED, REJECTED = Verdict.DELIVERED, Verdict.FAILED, Verdict.OVERLOADED, Verdict.REJECTED


def one(pace: Pace, verdict: Verdict, now_s: float = 0.0, retry_after_ms: int | None = None) -> None:
    pace.ended(pace.start(), verdict, now_s, retry_after_ms)


def test_a_round_of_successes_adds_one_up_to_the_most() -> None:
    pace = Pace(10)
    assert pace.limit == FIRST_LIMIT == 8
    for _ in range(8):
        one(pace, OK)
    assert pace.limit == 9
    for _ in range(1_000):
        one(pace, OK)
    assert pace.limit == 10


def test_what_was_under_way_together_halves_the_limit_once() -> None:
    pace = Pace(100)
    rounds = [pace.start() for _ in range(8)]
    assert pace.wait_s(0.0) is None
    for it in rounds:
        pace.ended(it, OVERLOADED, 0.0)
    assert pace.limit == 4
    one(pace, OK)
    one(pace, OVERLOADED)
    assert pace.limit == 2


def test_retry_after_stops_all_until_then() -> None:
    pace = Pace(10)
    one(pace, OVERLOADED, 100.0, 7_000)
    assert pace.wait_s(100.0) == 7.0
    assert pace.wait_s(107.0) == 0.0


def test_the_circuit_opens_after_failures_in_a_row_and_one_probe_closes_it() -> None:
    pace, now_s = Pace(50), 0.0
    for _ in range(FAILURES - 1):
        one(pace, FAILED, now_s)
    one(pace, REJECTED, now_s)  # an answer: the receiver is there
    for _ in range(FAILURES):
        assert not pace.is_open
        one(pace, FAILED, now_s)
    waits = []
    for _ in range(9):
        assert pace.is_open
        wait_s = pace.wait_s(now_s)
        assert wait_s
        waits.append(wait_s)
        now_s += wait_s
        assert pace.wait_s(now_s) == 0.0
        started = pace.start()
        assert pace.wait_s(now_s) is None, "one probe at a time"
        pace.ended(started, FAILED, now_s)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    now_s += LONGEST_OPEN_S
    one(pace, OK, now_s)
    assert (pace.is_open, pace.limit, pace.wait_s(now_s)) == (False, 1, 0.0)


def test_failures_that_were_under_way_as_it_opened_do_not_open_it_for_longer() -> None:
    pace = Pace(64)
    for _ in range(1_000):
        one(pace, OK)
    rounds = [pace.start() for _ in range(40)]
    for it in rounds:
        pace.ended(it, FAILED, 5.0)
    assert pace.wait_s(5.0) == 1.0


STEP = st.tuples(st.sampled_from(list(Verdict)), st.floats(0, 5), st.none() | st.integers(0, 10_000))


@given(st.lists(STEP, max_size=300))
def test_it_never_stops_for_ever_and_never_exceeds_the_most(steps: list[tuple[Verdict, float, int | None]]) -> None:
    pace, now_s, under_way = Pace(16), 0.0, []
    for verdict, seconds, retry_after_ms in steps:
        now_s += seconds
        while pace.wait_s(now_s) == 0.0 and len(under_way) < 40:
            under_way.append(pace.start())
        assert pace.in_flight == len(under_way) <= 16
        assert 1 <= pace.limit <= 16
        if under_way:
            pace.ended(under_way.pop(0), verdict, now_s, retry_after_ms)
    while under_way:
        pace.ended(under_way.pop(), OK, now_s)
    assert pace.wait_s(now_s + 70.0) == 0.0


def test_a_longer_retry_after_wins_over_the_groups_backoff() -> None:
    assert backoff_ms(3, None) == -1
    assert backoff_ms(1, 0) == 1_000
    assert backoff_ms(4, 1_000) == 8_000
    assert backoff_ms(4, 60_000) == 60_000
    assert backoff_ms(1_000, 0) == 300_000
