"""Cron in time zones, against an independent reckoning of five years, and against cronsim's own handling of zones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from delayapi import cron, zones
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedules.reckoning import Years

ZONES = ("Europe/Berlin", "America/New_York", "America/Santiago", "Australia/Lord_Howe")
"""By Central European and American rules, at midnight in the south, and by half an hour."""

FIXED = (
    "30 2 * * *", "0 0 * * *", "0,30 1,2 * * 0", "15 23 L * *", "0 12 13 * 5L", "0 2 1-7/2 3,4,10,11 *",
    *(pytest.param(one, marks=pytest.mark.long) for one in (
        "0,30 0-3 * * *", "45 1,2 * * 0", "0 9 * * 1-5", "59 23 31 * 1", "10 2 * * 0#1", "5 0 29 2 *", "0 3 * */5 7",
        "7,37 0-23 * * *",
    )),
)  # fmt: skip
MOVING = ("0 * * * *", "*/20 1-3 * * *", "* 2 * * 0", "*/30 * L * *", "17 */2 * * *", "*/45 0 * 3-4 0,6")
FIRST, END = 2024, 2029


@pytest.fixture(scope="module", params=ZONES)
def years(request) -> tuple[str, Years]:
    return request.param, Years(request.param, FIRST, END)


def next_ms(expression: str, zone: str, literal: bool, after_ms: int) -> int:
    found = cron.following(expression, zone, literal, after_ms)
    assert found is not None
    return found


def chain(expression: str, zone: str, literal: bool, begin: int, end: int) -> list[int]:
    """All its times of begin <= minute < end, in minutes since 1970."""
    found, at_ms = [], begin * 60_000 - 1
    while (at_ms := cron.following(expression, zone, literal, at_ms)) is not None and at_ms < end * 60_000:
        assert at_ms % 60_000 == 0
        found.append(at_ms // 60_000)
    return found


@pytest.mark.parametrize("expression", FIXED)
def test_fixed_times_of_five_years_come_once_each_as_reckoned(years, expression):
    zone, of = years
    begin, end = int(of.at[0]) + 1_440, int(of.at[-1]) - 1_440
    expected = of.fixed(expression)
    expected = expected[(expected >= begin) & (expected < end)]
    assert chain(expression, zone, False, begin, end) == expected.tolist()


@pytest.mark.parametrize("expression", FIXED)
def test_by_the_letter_five_years_have_each_minute_that_the_clock_shows(years, expression):
    zone, of = years
    assert chain(expression, zone, True, int(of.at[0]), int(of.at[-1]) + 1) == of.moving(expression).tolist()


@pytest.mark.parametrize("expression", MOVING)
def test_moving_times_around_each_change_of_the_clock_are_those_that_it_shows(years, expression):
    zone, of = years
    expected = of.moving(expression)
    assert len(of.changes()) == 2 * (END - FIRST)
    for change in of.changes().tolist():
        begin, end = change - 3_000, change + 3_000
        wanted = expected[(expected >= begin) & (expected < end)].tolist()
        assert chain(expression, zone, False, begin, end) == wanted
        assert chain(expression, zone, True, begin, end) == wanted


@pytest.mark.parametrize("expression", FIXED)
def test_fixed_times_are_those_of_cronsim(years, expression):
    zone, _ = years
    begin = datetime(FIRST, 1, 1, tzinfo=ZoneInfo(zone))
    ours, theirs, at_ms = [], [], int(begin.timestamp() * 1_000)
    sim = CronSim(expression, begin)
    while (one := next(sim)) < datetime(END, 1, 1, tzinfo=UTC):
        theirs.append(int(one.timestamp() * 1_000))
    while (at_ms := next_ms(expression, zone, False, at_ms)) <= theirs[-1]:
        ours.append(at_ms)
    assert ours == theirs


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(ZONES),
    st.sampled_from(("30 2 * * *", "0 0 L * *", "0,30 0-3 * * *", *MOVING)),
    st.booleans(),
    st.integers(0, 5 * 366 * 86_400_000),
    st.integers(0, 86_400_000),
)
def test_no_instant_is_skipped_or_early_wherever_one_starts(zone, expression, literal, since, more):
    """From any moment the next time is later, and the same from each moment between."""
    after = int(datetime(FIRST, 1, 1, tzinfo=UTC).timestamp() * 1_000) + since
    found = next_ms(expression, zone, literal, after)
    assert found > after
    between = min(after + more, found - 1)
    assert next_ms(expression, zone, literal, between) == found


def test_with_seconds_the_rule_is_the_same():
    begin = int(datetime(2027, 3, 27, 12, tzinfo=UTC).timestamp() * 1_000)
    gap_end = int(datetime(2027, 3, 28, 1, tzinfo=UTC).timestamp() * 1_000)
    assert next_ms("15 30 2 * * *", "Europe/Berlin", False, begin) == gap_end
    assert next_ms("*/20 * * * * *", "Europe/Berlin", False, gap_end - 1) == gap_end
    assert next_ms("*/20 * * * * *", "Europe/Berlin", False, gap_end) == gap_end + 20_000


def test_in_the_hour_that_comes_twice_every_second_counts_by_what_the_clock_shows():
    begin = int(datetime(2027, 10, 31, 0, 0, tzinfo=UTC).timestamp() * 1_000)  # 02:00 summer time
    times, at_ms = [], begin - 1
    while (at_ms := next_ms("0 */10 * * * *", "Europe/Berlin", False, at_ms)) < begin + 7_200_000:
        times.append((at_ms - begin) // 60_000)
    assert times == list(range(0, 120, 10))


@pytest.mark.parametrize(("expression", "says"), [
    ("0 0 31 2 *", "bad day-of-month: no month that it names has that day"),
    ("0 0 31 4,6,9,11 *", "no month that it names has that day"),
    ("0 0 0 1 *", "cron '0 0 0 1 *': bad day-of-month"),
    ("60 * * * *", "bad minute"),
    ("* 24 * * *", "bad hour"),
    ("* * * 13 *", "bad month"),
    ("* * * * 8", "bad day-of-week"),
    ("60 * * * * *", "bad second"),
    ("*/0 * * * *", "bad minute"),
    ("5-1 * * * *", "bad minute"),
    ("0 0 ? * *", "bad day-of-month"),
    ("0 0 * * MON#6", "bad day-of-week"),
    ("@daily", "has 1 fields, not 5 (minute hour day-of-month month day-of-week), or 6 with seconds first"),
    ("", "has 0 fields"),
    ("0 0 1 1 * 2027 *", "has 7 fields"),
    ("0 " * 5_000, "has 10,000 bytes, at most 256"),
])  # fmt: skip
def test_a_bad_expression_is_refused_and_says_why(expression, says):
    with pytest.raises(cron.BadCron) as refused:
        cron.check(expression)
    assert says in str(refused.value)
    assert len(str(refused.value)) < 400


def test_a_day_that_is_rare_is_found_and_one_that_never_comes_is_refused():
    cron.check("0 0 29 2 */7")  # the 29th of February on a Sunday
    begin = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1_000)
    found = next_ms("0 0 29 2 */7", "UTC", False, begin)
    assert datetime.fromtimestamp(found / 1_000, UTC) == datetime(2032, 2, 29, tzinfo=UTC)
    with pytest.raises(cron.BadCron, match="never comes"):
        cron.check("0 0 */31 * 1#5")  # the first is never a fifth Monday


@settings(max_examples=500, deadline=timedelta(seconds=5))
@given(st.text("0123456789*/-,#LW? \tMONß²٣", max_size=30))
def test_any_text_is_an_expression_or_refused(text):
    try:
        cron.check(text)
    except cron.BadCron:
        return
    after = cron.following(text, "Europe/Berlin", False, 1_800_000_000_000)
    assert after is None or after > 1_800_000_000_000


@pytest.mark.parametrize(
    "name", ["Europe/Belrin", "../../etc/passwd", "europe/berlin", "posixrules", "+01:00", "x" * 9_999]
)
def test_an_unknown_zone_is_refused(name):
    with pytest.raises(zones.UnknownZone) as refused:
        zones.zone(name)
    assert zones.RULES in str(refused.value)
    assert len(str(refused.value)) < 250
