"""What a schedule must be to be stored. Each refusal says which field, what is wrong with it, and the limit."""

from __future__ import annotations

from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from delayapi import cron, zones
from delayapi.durations import format_instant, format_ms
from delayapi.proto.delay.v1 import schedules_pb2
from delayapi.schedule_times import END_OF_TIME_MS, ID_PROPERTY, NUMBER_PROPERTY, TIME_PROPERTY, first
from delayapi.units import DAY_MS, format_bytes

MAX_ID_BYTES: Final = 256
MAX_NOTE_BYTES: Final = 1_024
MAX_SCHEDULE_BYTES: Final = 64 << 10  # all of it: what a node keeps in memory of each
MAX_CRONS: Final = 16
MAX_INSTANTS: Final = 1_000
MIN_INTERVAL_MS: Final = 1_000
MAX_SPAN_MS: Final = 366 * DAY_MS
_CHOICES: Final = {
    "daylight_saving": schedules_pb2.DaylightSaving,
    "catch_up": schedules_pb2.CatchUp,
    "overlap": schedules_pb2.Overlap,
}
_OWN: Final = (ID_PROPERTY, TIME_PROPERTY, NUMBER_PROPERTY)


class BadSchedule(ValueError):
    """A schedule that can't be stored."""


def check(schedule: schedules_pb2.Schedule) -> None:
    """Raises BadSchedule. Says nothing of whether a time still comes: check_comes()."""
    check_id(schedule.id)
    size = schedule.ByteSize()
    if size > MAX_SCHEDULE_BYTES:
        raise BadSchedule(
            f"schedule {schedule.id!r} has {size:,} bytes with its message, the limit is "
            f"{format_bytes(MAX_SCHEDULE_BYTES)}"
        )
    for name in _OWN:
        if name in schedule.properties:
            raise BadSchedule(f"properties: each firing sets {name!r} itself")
    _check_when(schedule)
    start_ms = _instant("start", schedule.start) if schedule.HasField("start") else 0
    if schedule.HasField("end") and _instant("end", schedule.end) <= start_ms:
        raise BadSchedule(f"end: {format_instant(_instant('end', schedule.end))} is not after the start")
    _span("jitter", schedule.jitter, 0, DAY_MS)
    _span("catch_up_window", schedule.catch_up_window, 0, MAX_SPAN_MS)
    _check_choices(schedule)


def check_id(schedule_id: str) -> None:
    """Raises BadSchedule."""
    size = len(schedule_id.encode())
    if not 0 < size <= MAX_ID_BYTES:
        shown = f"{schedule_id[:24]!r}..." if size else "''"
        raise BadSchedule(f"id: {shown} has {size:,} bytes; a schedule's id has 1 to {MAX_ID_BYTES}")
    if not schedule_id.isprintable():
        raise BadSchedule(f"id: {schedule_id!r} has a character that can't be printed")


def check_note(note: str) -> None:
    """Raises BadSchedule."""
    if len(note.encode()) > MAX_NOTE_BYTES:
        raise BadSchedule(f"note: {len(note.encode()):,} bytes are more than the limit, {MAX_NOTE_BYTES:,}")


def check_comes(schedule: schedules_pb2.Schedule, now_ms: int) -> None:
    """Raises BadSchedule where no time of it comes from now on. The schedule has been checked."""
    if first(schedule, now_ms) is not None:
        return
    if schedule.HasField("end") and schedule.end.ToMilliseconds() <= now_ms:
        why = f"its end, {format_instant(schedule.end.ToMilliseconds())}, has passed"
    elif schedule.at:
        why = f"each of its {len(schedule.at):,} instants has passed, or is outside start and end"
    else:
        why = "no time lies between start and end"
    raise BadSchedule(f"schedule {schedule.id!r} would never fire: {why}")


def _check_when(schedule: schedules_pb2.Schedule) -> None:
    given = [name for name in ("cron", "at") if getattr(schedule, name)] + ["every"] * schedule.HasField("every")
    if len(given) != 1:
        said = f"it has {' and '.join(given)}" if given else "it has none"
        raise BadSchedule(f"schedule {schedule.id!r} needs one of cron, every and at: {said}")
    if len(schedule.cron) > MAX_CRONS:
        raise BadSchedule(f"cron: {len(schedule.cron):,} expressions are more than the limit, {MAX_CRONS}")
    if len(schedule.at) > MAX_INSTANTS:
        raise BadSchedule(f"at: {len(schedule.at):,} instants are more than the limit, {MAX_INSTANTS:,}")
    try:
        for expression in schedule.cron:
            cron.check(expression)
        zones.zone(schedule.zone)
    except cron.BadCron as error:
        raise BadSchedule(str(error)) from None
    except zones.UnknownZone as error:
        raise BadSchedule(f"zone: {error}") from None
    if schedule.zone and not schedule.cron:
        raise BadSchedule(f"zone: {given[0]} goes by no clock on a wall; leave the zone out")
    for instant in schedule.at:
        _instant("at", instant)
    if schedule.HasField("every"):
        interval_ms = _span("every.interval", schedule.every.interval, MIN_INTERVAL_MS, MAX_SPAN_MS)
        _span("every.phase", schedule.every.phase, 0, interval_ms - 1)


def _check_choices(schedule: schedules_pb2.Schedule) -> None:
    for name, kind in _CHOICES.items():
        if getattr(schedule, name) not in kind.values():
            raise BadSchedule(f"{name}: {getattr(schedule, name)} is none of {', '.join(kind.keys())}")
    skips = schedule.overlap == schedules_pb2.OVERLAP_SKIP
    if skips and not schedule.overlap_group:
        raise BadSchedule("overlap_group: OVERLAP_SKIP needs the group whose acknowledgement counts")
    if schedule.overlap_group and not skips:
        raise BadSchedule("overlap_group: it is only for OVERLAP_SKIP")


def _instant(name: str, instant: Timestamp) -> int:
    if not 0 <= instant.seconds * 1_000 < END_OF_TIME_MS or not 0 <= instant.nanos < 1_000_000_000:
        raise BadSchedule(f"{name}: {instant.seconds} s and {instant.nanos} ns is no time between 1970 and 9000")
    if instant.nanos % 1_000_000:
        raise BadSchedule(f"{name}: {instant.ToJsonString()} is not in whole milliseconds")
    return instant.seconds * 1_000 + instant.nanos // 1_000_000


def _span(name: str, duration: Duration, least_ms: int, most_ms: int) -> int:
    if abs(duration.nanos) >= 1_000_000_000 or duration.nanos % 1_000_000 or duration.seconds * duration.nanos < 0:
        raise BadSchedule(f"{name}: {duration.seconds} s and {duration.nanos} ns is not in whole milliseconds")
    ms = duration.seconds * 1_000 + duration.nanos // 1_000_000
    if not least_ms <= ms <= most_ms:
        shown = format_ms(ms) if ms >= 0 else f"{ms:,} ms"
        raise BadSchedule(f"{name}: {shown} is not from {format_ms(least_ms)} to {format_ms(most_ms)}")
    return ms
