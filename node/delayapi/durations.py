"""Durations, instants, delay levels and spreads as people write them, to int milliseconds.

duration   '500ms', '30s', '1m', '2h30m', '40d', '1.5h'
instant    ISO 8601 ('2026-01-31T09:00:00+01:00'; without a zone it is UTC), or milliseconds since 1970 UTC
level      1 .. 18, RocketMQ 4.x's fixed delays
spread     '1m..30m', two durations
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from operator import index
from typing import Final

from delayapi.units import DAY_MS, HOUR_MS, MINUTE_MS

_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": MINUTE_MS, "h": HOUR_MS, "d": DAY_MS, "w": 7 * DAY_MS}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_DURATION: Final = re.compile(rf"(?:{_PART.pattern})+")

LEVELS_MS: Final = tuple(
    int(number) * _UNIT_MS[unit]
    for number, unit in _PART.findall("1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h")
)
"""RocketMQ 4.x's messageDelayLevel; level n is LEVELS_MS[n - 1]."""

MAX_MS: Final = 1 << 53
"""Larger than any sane time (the year 287,396) and still exact everywhere."""


def parse_duration_ms(text: str) -> int:
    """Milliseconds of '2h30m' and the like. Raises ValueError that says what a duration looks like."""
    compact = text.strip().lower().replace(" ", "")
    if not _DURATION.fullmatch(compact):
        raise ValueError(f"{text!r} is not a duration such as 500ms, 30s, 2h30m or 40d")
    total = sum((Decimal(number) * _UNIT_MS[unit] for number, unit in _PART.findall(compact)), Decimal(0))
    if total > MAX_MS:
        raise ValueError(f"{text!r} is longer than any time that can be kept")
    return int(total)


def duration_ms(value: int | str | timedelta) -> int:
    """Milliseconds of a duration given as int milliseconds (NumPy's too), text or timedelta."""
    if isinstance(value, str):
        return parse_duration_ms(value)
    if isinstance(value, timedelta):
        return value // timedelta(milliseconds=1)
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"a duration is int milliseconds, a text such as '30s' or a timedelta, not {value!r}")
    return index(value)


def parse_instant_ms(text: str) -> int:
    """Milliseconds since 1970 UTC of an ISO 8601 time or of digits. Raises ValueError."""
    stripped = text.strip()
    if re.fullmatch(r"-?\d{9,}", stripped):
        return _bounded(int(stripped), text)
    try:
        return _bounded(instant_ms(datetime.fromisoformat(stripped)), text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time: ISO 8601 such as 2026-01-31T09:00:00Z, or milliseconds since 1970"
        ) from None


def instant_ms(value: int | str | datetime) -> int:
    """Milliseconds since 1970 UTC of an int (NumPy's too), a text or a datetime (one without a zone is UTC)."""
    if isinstance(value, str):
        return parse_instant_ms(value)
    if isinstance(value, datetime):
        zoned = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        # Not timestamp(): its float would round a millisecond now and then.
        return (zoned - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"a time is int milliseconds since 1970, an ISO text or a datetime, not {value!r}")
    return index(value)


def level_ms(level: int) -> int:
    """The delay of a RocketMQ 4.x level. Raises ValueError outside 1 .. 18."""
    if not 1 <= level <= len(LEVELS_MS):
        raise ValueError(f"delay level {level} is not one of 1 .. {len(LEVELS_MS)}")
    return LEVELS_MS[level - 1]


def parse_spread_ms(text: str) -> tuple[int, int]:
    """The two ends of '1m..30m', in milliseconds. Raises ValueError."""
    low, dots, high = text.partition("..")
    if not dots:
        raise ValueError(f"{text!r} is not a spread such as 1m..30m")
    ends = parse_duration_ms(low), parse_duration_ms(high)
    if ends[0] > ends[1]:
        raise ValueError(f"the spread {text!r} ends before it starts")
    return ends


def format_ms(duration: int) -> str:
    """A duration for people: '1.5 s', '3 m 20 s', '2 d 4 h'; two units at most."""
    if duration < 1_000:
        return f"{duration} ms"
    if duration < 60_000:
        return f"{duration / 1_000:.1f} s"
    parts = []
    rest = duration
    for unit in ("d", "h", "m", "s"):
        amount, rest = divmod(rest, _UNIT_MS[unit])
        if amount:
            parts.append(f"{amount} {unit}")
        elif parts:
            break
    return " ".join(parts[:2])


def format_exactly_ms(duration: int) -> str:
    """All of it, for a figure beside its limit: '40 days 1 h', '40 days 1 ms', '1 day'."""
    days, rest = divmod(duration, DAY_MS)
    parts = [f"{days} day{'s' if days != 1 else ''}"] if days or not rest else []
    for unit in ("h", "m", "s", "ms"):
        amount, rest = divmod(rest, _UNIT_MS[unit])
        if amount:
            parts.append(f"{amount} {unit}")
    return " ".join(parts)


def format_instant(instant: int) -> str:
    """ISO 8601 UTC with milliseconds; the number itself when no calendar has it."""
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=instant)).isoformat(timespec="milliseconds")
    except OverflowError:
        return str(instant)


def _bounded(instant: int, text: str) -> int:
    if abs(instant) > MAX_MS:
        raise ValueError(f"{text!r} is out of range")
    return instant
