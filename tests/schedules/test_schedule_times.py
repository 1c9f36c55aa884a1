"""When a schedule fires: against a model that walks all nominal times one by one, and a table of absences."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from delayapi.proto.delay.v1 import delay_pb2
from delayapi.proto.delay.v1 import schedules_pb2 as pb
from delayapi.schedule_times import (
    LATE_MS,
    MAX_BACKFILL,
    MAX_COUNTED,
    Due,
    TooManyTimes,
    between,
    first,
    following,
    record,
    step,
    upcoming,
)  # fmt: skip
from delayapi.units import DAY_MS, HOUR_MS, MINUTE_MS
from hypothesis import given, settings
from hypothesis import strategies as st

NOON = int(datetime(2027, 3, 1, 12, tzinfo=UTC).timestamp() * 1_000)


def schedule(**fields) -> pb.Schedule:
    made = pb.Schedule(id="report", topic="orders", body_text="now")
    for name, value in fields.items():
        if name in ("start", "end") or name in ("jitter", "catch_up_window"):
            getattr(made, name).FromMilliseconds(value)
        elif name == "every":
            made.every.interval.FromMilliseconds(value)
        elif name == "phase":
            made.every.phase.FromMilliseconds(value)
        elif name == "at":
            for one in value:
                made.at.add().FromMilliseconds(one)
        elif name == "cron":
            made.cron.extend([value] if isinstance(value, str) else value)
        else:
            setattr(made, name, value)
    return made


schedules = st.builds(
    schedule,
    every=st.sampled_from([1_000, 7_500, MINUTE_MS, 7 * MINUTE_MS, HOUR_MS, DAY_MS]),
    jitter=st.sampled_from([0, 500, 90_000, DAY_MS]),
    catch_up=st.sampled_from([pb.CATCH_UP_LATEST, pb.CATCH_UP_NONE, pb.CATCH_UP_ALL]),
    catch_up_window=st.sampled_from([0, 1_000, 10 * MINUTE_MS, HOUR_MS]),
    start=st.sampled_from([0, NOON - 20 * MINUTE_MS]),
    end=st.sampled_from([NOON - MINUTE_MS, NOON + DAY_MS]),
)


def walk(made: pb.Schedule, armed: Due, now_ms: int) -> tuple[list[int], int, Due | None]:
    """What fires by now, how many times do not, and what is armed then: from the list of all times."""
    passed, rest = [], armed
    while rest is not None and rest.due_ms <= now_ms:
        passed.append(rest)
        rest = following(made, rest.nominal_ms)
    late = [one for one in passed if one.due_ms >= now_ms - LATE_MS]
    missed = passed[: len(passed) - len(late)]
    window_ms = made.catch_up_window.ToMilliseconds() or DAY_MS
    within = [one for one in missed if one.due_ms >= now_ms - window_ms]
    if made.catch_up == pb.CATCH_UP_NONE:
        within = []
    elif made.catch_up == pb.CATCH_UP_LATEST:
        within = [] if late else [one for one in within if one is missed[-1]]
    fires = [one.nominal_ms for one in within + late]
    return fires, len(passed) - len(fires), rest


def steps(made: pb.Schedule, armed: Due, now_ms: int) -> tuple[list[int], int, Due | None]:
    fires, missed, rest = [], 0, armed
    while rest is not None:
        found = step(made, rest, now_ms, len(fires))
        missed += found.missed
        if found.fire is None and found.armed == rest:
            break
        if found.fire:
            assert found.fire.due_ms <= now_ms  # none early
            fires.append(found.fire.nominal_ms)
        rest = found.armed
    return fires, missed, rest


@settings(max_examples=300, deadline=None)
@given(schedules, st.integers(0, 3 * HOUR_MS))
def test_what_fires_after_an_absence_is_as_the_model_says(made, absence_ms):
    armed = first(made, NOON - absence_ms)
    if armed is None:
        return
    fires, missed, rest = walk(made, armed, NOON)
    assert len(fires) < 20_000
    found = steps(made, armed, NOON)
    assert (found[0], found[2]) == (fires, rest)
    assert found[1] == missed if missed < MAX_COUNTED else found[1] >= MAX_COUNTED - 1


@settings(max_examples=100, deadline=None)
@given(schedules, st.lists(st.integers(0, 5 * MINUTE_MS), max_size=20), st.sampled_from([0, -1, 30]))
def test_each_time_fires_once_however_often_a_new_master_goes_on_from_what_is_armed(made, pauses, clock_step_s):
    """With CATCH_UP_ALL, over changes of master whose clocks differ: they go on from the record, not from the clock."""
    made.catch_up = pb.CATCH_UP_ALL
    made.catch_up_window.FromMilliseconds(DAY_MS)
    begin = NOON - 30 * MINUTE_MS
    armed, now_ms, fired = first(made, begin), begin, []
    for pause_ms in pauses:
        now_ms += pause_ms + clock_step_s * 1_000
        if armed is None:
            break
        fires, missed, armed = steps(made, armed, now_ms)
        assert missed == 0
        fired += fires
    expected = [one.nominal_ms for one in upcoming(made, begin - 1, len(fired))]
    assert fired == expected


@pytest.mark.parametrize(("catch_up", "window_ms", "absent_ms", "fires"), [
    (pb.CATCH_UP_NONE, 0, 30_000, 1),  # late, as after a change of master
    (pb.CATCH_UP_NONE, 0, 5 * MINUTE_MS, 0),
    (pb.CATCH_UP_LATEST, 0, 5 * MINUTE_MS, 1),
    (pb.CATCH_UP_LATEST, 0, 3 * HOUR_MS, 1),
    (pb.CATCH_UP_LATEST, MINUTE_MS * 2, 5 * MINUTE_MS, 0),
    (pb.CATCH_UP_ALL, 0, 3 * HOUR_MS + 5 * MINUTE_MS, 4),
    (pb.CATCH_UP_ALL, 2 * HOUR_MS, 3 * HOUR_MS + 5 * MINUTE_MS, 2),
])  # fmt: skip
def test_hourly_schedule_after_an_absence(catch_up, window_ms, absent_ms, fires):
    made = schedule(cron="0 * * * *", zone="Europe/Berlin", catch_up=catch_up, catch_up_window=window_ms)
    now = NOON + absent_ms % HOUR_MS  # the last time passed at noon
    armed = first(made, now - absent_ms)
    assert len(steps(made, armed, now)[0]) == fires


def test_every_second_of_ten_years_is_bounded_work():
    made = schedule(cron="* * * * * *", zone="Europe/Berlin", jitter=400)
    armed = first(made, NOON - 3_650 * DAY_MS)
    for choice in (pb.CATCH_UP_NONE, pb.CATCH_UP_LATEST, pb.CATCH_UP_ALL):
        made.catch_up = choice
        begin = time.process_time()
        found = step(made, armed, NOON, 0)
        assert time.process_time() - begin < 1
        assert found.missed == MAX_COUNTED
        assert found.fire.due_ms >= NOON - DAY_MS
    with pytest.raises(TooManyTimes, match="more than 1,000 times"):
        between(made, NOON - 3_650 * DAY_MS, NOON)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([1, 999, 30_000, HOUR_MS, DAY_MS]), st.text(min_size=1, max_size=9))
def test_jitter_is_a_function_of_id_and_time_and_ends_before_the_next_time(skip, jitter_ms, name):
    made = schedule(cron=("*/5 * * * *", "2 * * * *"), id=name, jitter=jitter_ms)
    times = upcoming(made, NOON + skip * MINUTE_MS, 20)
    assert times == upcoming(made, NOON + skip * MINUTE_MS, 20)
    assert [one.nominal_ms for one in times] == [
        one.nominal_ms for one in upcoming(schedule(cron=made.cron), NOON + skip * MINUTE_MS, 20)
    ]
    for one, after in pairwise(times):
        assert one.nominal_ms <= one.due_ms <= one.nominal_ms + jitter_ms
        assert one.due_ms < after.nominal_ms


def test_jitter_spreads_schedules_of_the_same_time_over_all_of_it():
    lateness = [first(schedule(cron="0 0 * * *", id=f"s{at}", jitter=HOUR_MS), NOON) for at in range(2_000)]
    minutes = [(one.due_ms - one.nominal_ms) // (10 * MINUTE_MS) for one in lateness]
    assert {minutes.count(ten) > 250 for ten in range(6)} == {True}


def test_several_expressions_are_one_schedule_and_a_time_of_two_comes_once():
    made = schedule(cron=("0 9 * * 1-5", "0 9,10 * * *"), zone="Asia/Tokyo")
    times = [one.nominal_ms for one in upcoming(made, NOON, 4)]
    assert times == [NOON + 12 * HOUR_MS, NOON + 13 * HOUR_MS, NOON + 36 * HOUR_MS, NOON + 37 * HOUR_MS]


def test_interval_with_phase_goes_by_the_epoch_whatever_the_clock_on_the_wall_does():
    made = schedule(every=90 * MINUTE_MS, phase=1_500)
    assert first(made, 0) == Due(1_500, 1_500)
    times = [one.nominal_ms for one in upcoming(made, NOON, 10)]
    assert all((at - 1_500) % (90 * MINUTE_MS) == 0 for at in times)
    assert [later - sooner for sooner, later in pairwise(times)] == [90 * MINUTE_MS] * 9


def test_instants_come_in_order_once_each_and_then_the_schedule_is_over():
    made = schedule(at=[NOON + 3_000, NOON + 1_001, NOON + 3_000, NOON - 5])
    assert [one.nominal_ms for one in upcoming(made, NOON)] == [NOON + 1_001, NOON + 3_000]
    assert step(made, Due(NOON + 3_000, NOON + 3_000), NOON + 3_000, 1).armed is None


def test_start_is_inside_and_end_is_not():
    made = schedule(cron="0 * * * *", start=NOON + HOUR_MS, end=NOON + 3 * HOUR_MS)
    assert [one.nominal_ms for one in upcoming(made, 0)] == [NOON + HOUR_MS, NOON + 2 * HOUR_MS]


def test_a_schedule_is_over_once_it_has_fired_as_often_as_it_may():
    made = schedule(cron="0 * * * *", max_firings=3)
    armed = first(made, NOON)
    assert step(made, armed, armed.due_ms, 1).armed is not None
    assert step(made, armed, armed.due_ms, 2) == step(made, armed, armed.due_ms, 7)
    assert step(made, armed, armed.due_ms, 2).armed is None


def test_a_clock_that_was_set_back_fires_nothing_twice():
    made = schedule(cron="0 * * * *", catch_up=pb.CATCH_UP_ALL)
    armed = first(made, NOON)
    fires, _, armed = steps(made, armed, NOON)
    assert (fires, armed.nominal_ms) == ([NOON], NOON + HOUR_MS)
    assert steps(made, armed, NOON - 2 * HOUR_MS) == ([], 0, armed)


def test_backfill_names_each_time_of_the_range_up_to_the_limit():
    made = schedule(every=MINUTE_MS)
    assert between(made, NOON, NOON + 3 * MINUTE_MS) == [NOON, NOON + MINUTE_MS, NOON + 2 * MINUTE_MS]
    assert between(made, NOON + 1, NOON + 1) == []
    assert len(between(made, NOON, NOON + MAX_BACKFILL * MINUTE_MS)) == MAX_BACKFILL
    with pytest.raises(TooManyTimes, match="2027-03-02T04:40:00"):
        between(made, NOON, NOON + MAX_BACKFILL * MINUTE_MS + 1)


def test_the_message_of_a_firing_tells_the_schedule_the_nominal_time_and_the_number():
    made = schedule(cron="0 * * * *", key="k", tag="t")
    made.properties["mine"] = "yes"
    found = delay_pb2.Message.FromString(record(made, NOON, 7, NOON + 3))
    assert (found.key, found.tag, found.body, found.born_ms) == ("k", "t", b"now", NOON + 3)
    assert dict(found.properties) == {
        "mine": "yes", "schedule-id": "report", "schedule-time": "2027-03-01T12:00:00.000Z", "schedule-number": "7",
    }  # fmt: skip
    made.body = b"\xff\x00"
    assert delay_pb2.Message.FromString(record(made, NOON, 7, NOON)).body == b"\xff\x00"


def test_the_last_times_that_a_calendar_has_end_a_schedule_without_an_error():
    made = schedule(cron="0 0 29 2 *", zone="Pacific/Kiritimati")
    end = int(datetime(8_999, 1, 1, tzinfo=UTC).timestamp() * 1_000)
    assert following(made, end) is None
    assert following(schedule(every=DAY_MS), end + 364 * DAY_MS) is None
    assert following(made, end - 40 * 366 * DAY_MS).nominal_ms < end
    assert datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=end) < datetime(9_000, 1, 1, tzinfo=UTC)
