"""When a schedule fires: pure, of the schedule and of times that are passed in. The schedule has been checked.

A nominal time is one that `cron`, `every` or `at` names. It is due later by the jitter, which is a function of the
schedule's id and of that time, and always before the next nominal time: firings keep their order. All times are
milliseconds since 1970 UTC.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from google.protobuf.duration_pb2 import Duration

from delayapi import cron
from delayapi.durations import format_instant
from delayapi.proto.delay.v1 import delay_pb2, schedules_pb2
from delayapi.units import DAY_MS, HOUR_MS, MINUTE_MS

LATE_MS: Final = MINUTE_MS
"""A time that passed not longer ago is late, as after a change of master; one that passed before has been missed."""

RULES_MOVE_MS: Final = 3 * HOUR_MS
"""By how much newer rules of a zone move a clock at most, but for the date line."""

CATCH_UP_WINDOW_MS: Final = DAY_MS  # of a schedule that names none
END_OF_TIME_MS: Final = 221_845_392_000_000  # the year 9000: datetime ends in 9999, and cron looks ahead for 50 years
MAX_COUNTED: Final = 100  # missed times of one absence
MAX_BACKFILL: Final = 1_000

ID_PROPERTY: Final = "schedule-id"
TIME_PROPERTY: Final = "schedule-time"
NUMBER_PROPERTY: Final = "schedule-number"


class TooManyTimes(ValueError):
    """A range with more nominal times than may be fired at once."""


@dataclass(frozen=True, slots=True)
class Due:
    """A nominal time, and when its message is due."""

    nominal_ms: int
    due_ms: int


@dataclass(frozen=True, slots=True)
class Step:
    """What happens next: one firing, or none, and what is armed then. One log record."""

    fire: Due | None
    missed: int  # times that do not fire, at most MAX_COUNTED
    armed: Due | None  # None: the schedule is over


def following(schedule: schedules_pb2.Schedule, after_nominal_ms: int) -> Due | None:
    """The first nominal time after that one; None: none comes."""
    nominal_ms = _nominal(schedule, after_nominal_ms)
    return None if nominal_ms is None else _due(schedule, nominal_ms)


def first(schedule: schedules_pb2.Schedule, now_ms: int) -> Due | None:
    """What is armed when a schedule is made, changed or resumed: the first nominal time from now on."""
    return following(schedule, now_ms - 1)


def rearmed(schedule: schedules_pb2.Schedule, armed: Due, since_ms: int, now_ms: int) -> Due | None:
    """What is armed in place of that by the zones' rules as they are now: it may have been reckoned by others.

    since_ms: nominal times up to then are over. What is armed stays where by these rules its time has passed meanwhile:
    it stands for that one.
    """
    if armed.nominal_ms <= now_ms:
        return armed
    since_ms = min(since_ms, armed.nominal_ms - 1)
    found = following(schedule, max(since_ms, min(now_ms, armed.nominal_ms - RULES_MOVE_MS)))
    if found is not None and (found.nominal_ms <= now_ms or found.nominal_ms == armed.nominal_ms):
        return armed
    return found


def step(schedule: schedules_pb2.Schedule, armed: Due, now_ms: int, fired: int) -> Step:
    """What the master does about what is armed. Called again while the step fires, or arms what is due.

    fired: how many messages the schedule has had, this one not counted.
    """
    if armed.due_ms > now_ms:
        return Step(None, 0, armed)
    late_from_ms = now_ms - LATE_MS
    if armed.due_ms >= late_from_ms:
        return _firing(schedule, armed, 0, following(schedule, armed.nominal_ms), fired)
    window_ms = schedule.catch_up_window.ToMilliseconds() or CATCH_UP_WINDOW_MS
    every = schedule.catch_up == schedules_pb2.CATCH_UP_ALL
    latest, found = _first_due(schedule, armed, min(now_ms - window_ms, late_from_ms) if every else late_from_ms)
    if found is not None and found.due_ms <= now_ms:
        missed = _count(schedule, armed, found)
        return _firing(schedule, found, missed, following(schedule, found.nominal_ms), fired)
    missed = _count(schedule, armed, found)
    latest_fires = schedule.catch_up == schedules_pb2.CATCH_UP_LATEST
    if latest_fires and latest is not None and latest.due_ms >= now_ms - window_ms:
        return _firing(schedule, latest, missed - 1, found, fired)
    return Step(None, missed, found)


def upcoming(schedule: schedules_pb2.Schedule, after_nominal_ms: int, most: int = 10) -> list[Due]:
    """The next times after that one."""
    found: list[Due] = []
    while len(found) < most and (one := following(schedule, after_nominal_ms)) is not None:
        found.append(one)
        after_nominal_ms = one.nominal_ms
    return found


def between(schedule: schedules_pb2.Schedule, from_ms: int, to_ms: int) -> list[int]:
    """The nominal times of from <= time < to. Raises TooManyTimes."""
    found: list[int] = []
    at_ms = _nominal(schedule, from_ms - 1)
    while at_ms is not None and at_ms < to_ms:
        if len(found) == MAX_BACKFILL:
            raise TooManyTimes(
                f"schedule {schedule.id!r} has more than {MAX_BACKFILL:,} times from {format_instant(from_ms)} to "
                f"{format_instant(to_ms)}, the limit of one backfill: ask for a shorter range; the last that fits ends "
                f"before {format_instant(at_ms)}"
            )
        found.append(at_ms)
        at_ms = _nominal(schedule, at_ms)
    return found


def record(schedule: schedules_pb2.Schedule, nominal_ms: int, number: int, now_ms: int) -> bytes:
    """The message of one firing, as it is stored."""
    body = schedule.body_text.encode() if schedule.WhichOneof("content") == "body_text" else schedule.body
    message = delay_pb2.Message(
        key=schedule.key, tag=schedule.tag, properties=schedule.properties, body=body, born_ms=now_ms
    )
    message.properties[ID_PROPERTY] = schedule.id
    message.properties[TIME_PROPERTY] = _time_text(nominal_ms)
    message.properties[NUMBER_PROPERTY] = str(number)
    return message.SerializeToString(deterministic=True)


@lru_cache(256)
def _time_text(nominal_ms: int) -> str:
    return format_instant(nominal_ms).replace("+00:00", "Z")


def _firing(schedule: schedules_pb2.Schedule, fire: Due, missed: int, armed: Due | None, fired: int) -> Step:
    over = 0 < schedule.max_firings <= fired + 1
    return Step(fire, missed, None if over else armed)


def _nominal(schedule: schedules_pb2.Schedule, after_ms: int) -> int | None:
    if schedule.HasField("start"):
        after_ms = max(after_ms, schedule.start.ToMilliseconds() - 1)
    if after_ms >= END_OF_TIME_MS:
        return None
    if schedule.cron:
        literal = schedule.daylight_saving == schedules_pb2.DAYLIGHT_SAVING_LITERAL
        times = [cron.following(one, schedule.zone, literal, after_ms) for one in schedule.cron]
        nominal_ms = min((one for one in times if one is not None), default=END_OF_TIME_MS)
    elif schedule.HasField("every"):
        interval_ms, phase_ms = _ms(schedule.every.interval), _ms(schedule.every.phase)
        nominal_ms = ((after_ms - phase_ms) // interval_ms + 1) * interval_ms + phase_ms
    else:
        instants = (one.ToMilliseconds() for one in schedule.at)
        nominal_ms = min((one for one in instants if one > after_ms), default=END_OF_TIME_MS)
    end_ms = schedule.end.ToMilliseconds() if schedule.HasField("end") else END_OF_TIME_MS
    return nominal_ms if nominal_ms < min(end_ms, END_OF_TIME_MS) else None


def _due(schedule: schedules_pb2.Schedule, nominal_ms: int) -> Due:
    jitter_ms = _ms(schedule.jitter)
    if not jitter_ms:
        return Due(nominal_ms, nominal_ms)
    after_ms = _nominal(schedule, nominal_ms)
    if after_ms is not None:
        jitter_ms = min(jitter_ms, after_ms - nominal_ms - 1)
    seed = hashlib.blake2b(schedule.id.encode() + nominal_ms.to_bytes(8, "little", signed=True), digest_size=8).digest()
    return Due(nominal_ms, nominal_ms + int.from_bytes(seed, "little") % (jitter_ms + 1))


def _first_due(schedule: schedules_pb2.Schedule, armed: Due, from_ms: int) -> tuple[Due | None, Due | None]:
    """Of what is armed and what follows it: the last that is due before from_ms, and the first that is not."""
    if armed.due_ms >= from_ms:
        return None, armed
    last = _due(schedule, _latest(schedule, armed.nominal_ms, from_ms))
    if last.due_ms < from_ms:
        return last, following(schedule, last.nominal_ms)
    return _due(schedule, _latest(schedule, armed.nominal_ms, last.nominal_ms)), last


def _latest(schedule: schedules_pb2.Schedule, known_ms: int, before_ms: int) -> int:
    """The last nominal time before that, of which known_ms is one. By halves: a second of ten years takes 40 steps."""
    high_ms = before_ms
    while (after_ms := _nominal(schedule, known_ms)) is not None and after_ms < before_ms:
        known_ms = after_ms
        low_ms = known_ms
        while high_ms - low_ms > 1:
            middle_ms = (low_ms + high_ms) // 2
            found_ms = _nominal(schedule, middle_ms)
            if found_ms is not None and found_ms < before_ms:
                known_ms = low_ms = found_ms
                break
            high_ms = middle_ms
        else:
            return known_ms
    return known_ms


def _count(schedule: schedules_pb2.Schedule, armed: Due, until: Due | None) -> int:
    """How many nominal times there are from what is armed until that one, which does not count."""
    count, at_ms = 0, armed.nominal_ms
    while count < MAX_COUNTED and (until is None or at_ms < until.nominal_ms):
        count += 1
        after_ms = _nominal(schedule, at_ms)
        if after_ms is None:
            break
        at_ms = after_ms
    return count


def _ms(duration: Duration) -> int:
    return duration.seconds * 1_000 + duration.nanos // 1_000_000
