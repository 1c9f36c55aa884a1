"""When a cron expression comes: cronsim says which times on the wall it names, this module when they are.

wall times     all that the expression names; cronsim reckons them without a zone, where each day has 24 hours
fixed times    Debian's rule, where neither minutes nor hours begin with `*`: each wall time comes once, one that does
               not exist right after the gap
moving times   each instant at which the clock shows a time of the expression: the other expressions, and all by the
               literal rule
"""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import Final

from cronsim import CronSim, CronSimError

from delayapi.zones import SECOND, Zone, zone

MAX_CRON_BYTES: Final = 256
_FIELDS: Final = "minute hour day-of-month month day-of-week"
_SAMPLE: Final = datetime(2000, 1, 1)


class BadCron(ValueError):
    """A text that is not a cron expression, or one that never comes."""


def check(expression: str) -> None:
    """Raises BadCron, which says what is wrong."""
    if len(expression.encode()) > MAX_CRON_BYTES:
        raise BadCron(f"cron {expression[:20]!r}... has {len(expression.encode()):,} bytes, at most {MAX_CRON_BYTES}")
    fields = expression.split()
    if len(fields) not in (5, 6):
        raise BadCron(f"cron {expression!r} has {len(fields)} fields, not 5 ({_FIELDS}), or 6 with seconds first")
    try:
        found = _match(expression, _SAMPLE)
    except CronSimError as error:
        said = str(error).lower()
        why = "no month that it names has that day" if said == "bad day-of-month" and _days_are_numbers(fields) else ""
        raise BadCron(f"cron {expression!r}: {said}{f': {why}' if why else ''}") from None
    if found is None:
        raise BadCron(f"cron {expression!r} never comes: no day of 50 years is one that it names")


@lru_cache(4_096)
def following(expression: str, zone_name: str, literal: bool, after_ms: int) -> int | None:
    """The first time after that, in ms; None: none within 50 years. The expression has been checked.

    literal: not by Debian's rule. Cached, for the many schedules that fire at the same moment.
    """
    here = zone(zone_name)
    minute, hour = expression.split()[-5:-3]
    if literal or minute.startswith("*") or hour.startswith("*"):
        return _moving(expression, here, after_ms)
    return _fixed(expression, here, after_ms)


def _fixed(expression: str, here: Zone, after_ms: int) -> int | None:
    wall = _match(expression, here.wall(after_ms))
    while wall is not None:
        at_ms = here.first(wall)
        if at_ms is None:
            at_ms = here.gap_end(wall)
        if at_ms > after_ms:
            return at_ms
        wall = _match(expression, wall)  # the clock shows it for the second time, or it comes with another one
    return None


def _moving(expression: str, here: Zone, after_ms: int) -> int | None:
    wall = _match(expression, here.wall(after_ms))
    back_ms = here.put_back(after_ms)
    if back_ms is not None:
        before = here.wall(back_ms - 1_000)
        if wall is None or wall > before:  # nothing more before the clock is put back
            wall, after_ms = _match(expression, here.wall(back_ms) - SECOND), back_ms - 1
    while wall is not None:
        at_ms = here.first(wall)
        if at_ms is not None:
            return at_ms if at_ms > after_ms else here.second(wall)
        wall = _match(expression, here.wall(here.gap_end(wall)) - SECOND)
    return None


def _match(expression: str, after: datetime) -> datetime | None:
    """The first wall time of the expression after that one. Raises CronSimError."""
    try:
        return next(CronSim(expression, after))
    except StopIteration:
        return None


def _days_are_numbers(fields: list[str]) -> bool:
    return all(part.isdigit() and 1 <= int(part) <= 31 for part in fields[-3].replace("-", ",").split(","))
