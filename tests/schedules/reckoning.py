"""When cron expressions come, reckoned another way: every minute of the years is asked what the clock shows.

It knows no more than *, numbers, ranges, lists, steps, `L` and `#`, and goes by the zones of the standard library.
"""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

MINUTES_OF_DAY = 1_440
_STEP = 15  # minutes: offsets change at whole quarters of an hour


class Years:
    """The minutes of some years in one zone: when they are, and what the clock shows, as minutes since 1970."""

    def __init__(self, zone: str, first_year: int, end_year: int) -> None:
        here = ZoneInfo(zone)
        begin, end = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) // 60 for year in (first_year, end_year))
        quarters = range(begin, end, _STEP)
        offsets = [here.utcoffset(datetime.fromtimestamp(at * 60, here)).total_seconds() / 60 for at in quarters]
        self.at = np.arange(begin, end, dtype=np.int64)
        self.shown = self.at + np.repeat(np.array(offsets, np.int64), _STEP)

    def changes(self) -> NDArray[np.int64]:
        """The minutes at which the clock is put forward or back."""
        return self.at[1:][np.diff(self.shown) != 1]

    def moving(self, expression: str) -> NDArray[np.int64]:
        """Every minute at which the clock shows a time of the expression."""
        return self.at[named(expression, self.shown)]

    def fixed(self, expression: str) -> NDArray[np.int64]:
        """For each time of the expression the first minute at which the clock shows it, or has gone past it."""
        walls = np.arange(self.shown[0], self.shown[-1] + 1)
        walls = walls[named(expression, walls)]
        farthest = np.maximum.accumulate(self.shown)
        return np.unique(self.at[np.searchsorted(farthest, walls)])


def named(expression: str, shown: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of the minutes that a clock shows the expression names."""
    minute, hour, day, month, weekday = expression.split()
    day_of, minute_of = np.divmod(shown, MINUTES_OF_DAY)
    first, of_day = int(day_of.min()), np.arange(MINUTES_OF_DAY)
    times = np.isin(of_day % 60, _numbers(minute, 0, 59)) & np.isin(of_day // 60, _numbers(hour, 0, 23))
    return times[minute_of] & _days(np.arange(first, int(day_of.max()) + 1), day, month, weekday)[day_of - first]


def _days(numbers: NDArray[np.int64], day: str, month: str, weekday: str) -> NDArray[np.bool_]:
    days = numbers.astype("datetime64[D]")
    months = days.astype("datetime64[M]")
    day_of_month = (days - months.astype("datetime64[D]")).astype(int) + 1
    length = ((months + 1).astype("datetime64[D]") - months.astype("datetime64[D]")).astype(int)
    day_of_week = (days.astype(int) + 4) % 7
    by_day = np.isin(day_of_month, _numbers(day, 1, 31)) | ("L" in day.split(",")) & (day_of_month == length)
    by_weekday = np.isin(day_of_week, [one % 7 for one in _numbers(weekday, 0, 7)])
    for one in weekday.split(","):
        if "#" in one:
            wanted, nth = map(int, one.split("#"))
            by_weekday |= (day_of_week == wanted) & ((day_of_month - 1) // 7 + 1 == nth)
        elif one.endswith("L"):
            by_weekday |= (day_of_week == int(one[:-1])) & (day_of_month + 7 > length)
    both = day.startswith("*") or weekday.startswith("*")
    by = by_day & by_weekday if both else by_day | by_weekday
    return by & np.isin(months.astype(int) % 12 + 1, _numbers(month, 1, 12))


def _numbers(field: str, low: int, high: int) -> list[int]:
    found: list[int] = []
    for part in field.split(","):
        if "#" in part or "L" in part:
            continue
        span, _, step = part.partition("/")
        begin, _, end = (f"{low}-{high}" if span == "*" else span).partition("-")
        found += range(int(begin), int(end or (high if step else begin)) + 1, int(step or 1))
    return found
