from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from delayapi import durations
from delayapi.units import DAY_MS as DAY


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("500ms", 500),
        ("30s", 30_000),
        ("1m", 60_000),
        ("2h30m", 9_000_000),
        ("40d", 40 * 86_400_000),
        ("1.5h", 5_400_000),
        (" 1 h 5 s ", 3_605_000),
        ("0.1s", 100),
        ("0s", 0),
        ("2w", 14 * 86_400_000),
    ],
)
def test_duration(text: str, ms: int) -> None:
    assert durations.parse_duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "30", "s", "-5s", "1y", "5s!", "1..2s", "soon", "9" * 30 + "d"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        durations.parse_duration_ms(text)


def test_duration_of_each_type() -> None:
    assert durations.duration_ms(250) == 250
    assert durations.duration_ms("1s") == 1000
    assert durations.duration_ms(timedelta(seconds=1.5)) == 1500
    for wrong in (1.5, True, None):
        with pytest.raises(TypeError):
            durations.duration_ms(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00:01Z", 1000),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-02", 86_400_000),
        ("2026-01-31T09:00:00.123", 1769850000123),
        ("1769850000123", 1769850000123),
    ],
)
def test_instant(text: str, ms: int) -> None:
    assert durations.parse_instant_ms(text) == ms


@pytest.mark.parametrize("text", ["", "tomorrow", "2026-13-01", "12", "9" * 40, "2026-01-31T25:00"])
def test_what_is_no_instant_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a time|out of range"):
        durations.parse_instant_ms(text)


def test_instant_of_a_datetime_is_exact_and_utc_without_a_zone() -> None:
    assert durations.instant_ms(datetime(2026, 1, 1, 0, 0, 0, 1000)) == durations.instant_ms(
        datetime(2026, 1, 1, 0, 0, 0, 1000, UTC)
    )
    east = timezone(timedelta(hours=2))
    assert durations.instant_ms(datetime(1970, 1, 1, 2, tzinfo=east)) == 0
    each_ms = [datetime(2026, 5, 5, 5, 5, 5, ms * 1000) for ms in range(1000)]
    assert [durations.instant_ms(instant) % 1000 for instant in each_ms] == [*range(1000)]


def test_levels_are_those_of_rocketmq() -> None:
    assert (
        tuple(
            durations.parse_duration_ms(text)
            for text in [
                "1s",
                "5s",
                "10s",
                "30s",
                "1m",
                "2m",
                "3m",
                "4m",
                "5m",
                "6m",
                "7m",
                "8m",
                "9m",
                "10m",
                "20m",
                "30m",
                "1h",
                "2h",
            ]
        )
        == durations.LEVELS_MS
    )
    assert durations.level_ms(3) == 10_000
    for level in (0, 19, -1):
        with pytest.raises(ValueError, match=r"1 \.\. 18"):
            durations.level_ms(level)


def test_spread() -> None:
    assert durations.parse_spread_ms("1m..30m") == (60_000, 1_800_000)
    for wrong in ("1m", "30m..1m", "..", "1m..x"):
        with pytest.raises(ValueError):
            durations.parse_spread_ms(wrong)


def test_a_figure_beside_its_limit_is_told_whole() -> None:
    found = [
        durations.format_exactly_ms(ms) for ms in (0, 1, 3_600_000, DAY, 40 * DAY, 40 * DAY + 1, 41 * DAY + 61_000)
    ]
    assert found == ["0 days", "1 ms", "1 h", "1 day", "40 days", "40 days 1 ms", "41 days 1 m 1 s"]


def test_formats_for_people() -> None:
    assert [durations.format_ms(ms) for ms in (5, 1500, 200_000, 86_400_000 + 4 * 3_600_000 + 5000, 3_600_000)] == [
        "5 ms",
        "1.5 s",
        "3 m 20 s",
        "1 d 4 h",
        "1 h",
    ]
    assert durations.format_instant(1500) == "1970-01-01T00:00:01.500+00:00"
    assert durations.format_instant(1 << 62) == str(1 << 62)
