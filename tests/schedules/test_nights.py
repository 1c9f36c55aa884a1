"""The nights on which the clock is put forward and back, on a simulated clock: the table of docs/schedules.md.

`UPDATE_DOCS=1 pytest tests/schedules/test_nights.py` writes the table.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from delayapi.proto.delay.v1 import schedules_pb2 as pb
from delayapi.schedule_times import first, step
from delayapi.units import HOUR_MS, MINUTE_MS

PAGE = Path(__file__).parents[2] / "docs" / "schedules.md"
BEGIN, END = "<!-- nights: made by tests/schedules/test_nights.py -->\n", "<!-- end of nights -->\n"
NIGHTS = (
    ("Europe/Berlin", "2027-03-28", "clock 02:00 → 03:00"),
    ("Europe/Berlin", "2027-10-31", "clock 03:00 → 02:00"),
    ("America/Santiago", "2027-09-05", "clock 00:00 → 01:00"),
    ("Australia/Lord_Howe", "2027-04-04", "clock 02:00 → 01:30"),
)
CRONS = ("30 2 * * *", "0,30 2 * * *", "0 0 * * *", "45 1 * * *", "30 * * * *", "*/30 2 * * *")
LITERAL = ("30 2 * * *", "0 0 * * *", "45 1 * * *")


def fires(cron: str, zone: str, day: str, literal: bool) -> str:
    """What the clock shows whenever the schedule fires until 04:00, by a clock that goes on by minutes."""
    here = ZoneInfo(zone)
    now_ms, end_ms = (
        int(datetime.fromisoformat(f"{day}T{at}").replace(tzinfo=here).timestamp() * 1_000) for at in ("00:00", "04:00")
    )
    now_ms -= HOUR_MS
    rule = pb.DAYLIGHT_SAVING_LITERAL if literal else pb.DAYLIGHT_SAVING_DEBIAN
    schedule = pb.Schedule(id="night", cron=[cron], zone=zone, daylight_saving=rule)
    armed, shown = first(schedule, now_ms), []
    while now_ms < end_ms:
        now_ms += MINUTE_MS
        while armed is not None and (found := step(schedule, armed, now_ms, 0)).fire is not None:
            at = datetime.fromtimestamp(now_ms / 1_000, UTC).astimezone(here)
            assert found.fire.due_ms == now_ms  # never early, and not a minute late
            if at.strftime("%F") == day:
                shown.append(f"{at:%H:%M}{at.utcoffset().total_seconds() / 3_600:+g}")
            armed = found.armed
    return ", ".join(shown) or "–"


def table() -> str:
    heads = [f"{zone}, {day}<br>{what}" for zone, day, what in NIGHTS]
    lines = ["| cron | rule | " + " | ".join(heads) + " |", "|---|---|" + "---|" * len(NIGHTS)]
    for cron, literal in [(one, False) for one in CRONS] + [(one, True) for one in LITERAL]:
        cells = [fires(cron, zone, day, literal) for zone, day, _ in NIGHTS]
        lines.append(f"| `{cron}` | {'literal' if literal else 'Debian'} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def test_the_page_shows_what_fires_on_the_nights_when_the_clock_is_changed():
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    shown, after = rest.split(END)
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(before + BEGIN + table() + END + after)
    else:
        assert shown == table()


@pytest.mark.parametrize(("cron", "literal", "spring", "autumn"), [
    ("30 2 * * *", False, "03:00+2", "02:30+2"),
    ("30 2 * * *", True, "–", "02:30+2, 02:30+1"),
    ("*/30 2 * * *", False, "–", "02:00+2, 02:30+2, 02:00+1, 02:30+1"),
])  # fmt: skip
def test_the_rules_hold_on_berlins_nights(cron, literal, spring, autumn):
    assert fires(cron, "Europe/Berlin", "2027-03-28", literal) == spring
    assert fires(cron, "Europe/Berlin", "2027-10-31", literal) == autumn
