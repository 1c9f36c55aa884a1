"""What is refused of a schedule, in a table: which field, what is wrong, which limit."""

from __future__ import annotations

import pytest
from delayapi.proto.delay.v1 import schedules_pb2 as pb
from delayapi.schedule_checks import BadSchedule, check, check_comes, check_note
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st

GOOD = {"id": "report", "topic": "orders", "cron": ["0 9 * * 1-5"], "zone": "Europe/Berlin", "bodyText": "now"}


def made(**fields) -> pb.Schedule:
    """A good schedule with other fields, as in JSON; None leaves one out."""
    found = {name: value for name, value in {**GOOD, **fields}.items() if value is not None}
    return json_format.ParseDict(found, pb.Schedule())


@pytest.mark.parametrize("fields", [
    {},
    {"cron": ["* * * * * *"], "end": "2036-01-01T00:00:00Z"},  # every second for ten years
    {"cron": ["0 0 L * *", "30 12 * * 5#2"], "zone": ""},
    {"cron": None, "zone": None, "every": {"interval": "1s", "phase": "0.999s"}, "jitter": "86400s"},
    {"cron": None, "zone": None, "at": ["2030-01-01T00:00:00.001Z"]},
    {"overlap": "OVERLAP_SKIP", "overlapGroup": "billing"},
    {"catchUp": "CATCH_UP_ALL", "catchUpWindow": "31622400s"},
    {"bodyText": "x" * 65_000},
    {"id": "ü" * 128},
])  # fmt: skip
def test_a_good_schedule_is_taken(fields):
    check(made(**fields))
    check_comes(made(**fields), 1_800_000_000_000)


@pytest.mark.parametrize(("fields", "says"), [
    ({"id": None}, "id: '' has 0 bytes; a schedule's id has 1 to 256"),
    ({"id": "x" * 10_000}, "has 10,000 bytes; a schedule's id has 1 to 256"),
    ({"id": "ü" * 129}, "has 258 bytes"),
    ({"id": "a\nb"}, "has a character that can't be printed"),
    ({"bodyText": "x" * 65_536}, "with its message, the limit is 64 KiB"),
    ({"properties": {"schedule-id": "x"}}, "each firing sets 'schedule-id' itself"),
    ({"cron": None, "zone": None}, "needs one of cron, every and at: it has none"),
    ({"at": ["2030-01-01T00:00:00Z"]}, "needs one of cron, every and at: it has cron and at"),
    ({"every": {"interval": "5s"}}, "it has cron and every"),
    ({"cron": ["0 0 31 2 *"]}, "no month that it names has that day"),
    ({"cron": ["0 0 * * *", "nightly"]}, "cron 'nightly' has 1 fields"),
    ({"cron": ["* * * * *"] * 17}, "17 expressions are more than the limit, 16"),
    ({"zone": "Europe/Belrin"}, "zone: 'Europe/Belrin' is not a zone of the IANA database"),
    ({"cron": None, "every": {"interval": "5s"}}, "zone: every goes by no clock on a wall"),
    ({"cron": None, "zone": None, "at": ["2030-01-01T00:00:00Z"] * 1_001}, "1,001 instants are more than the limit"),
    ({"cron": None, "zone": None, "at": ["2030-01-01T00:00:00.0000005Z"]}, "is not in whole milliseconds"),
    ({"cron": None, "zone": None, "at": ["0001-01-01T00:00:00Z"]}, "is no time between 1970 and 9000"),
    ({"cron": None, "zone": None, "every": {"interval": "0.5s"}}, "every.interval: 500 ms is not from 1.0 s to 366 d"),
    ({"cron": None, "zone": None, "every": {"interval": "-5s"}}, "every.interval: -5,000 ms is not from"),
    ({"cron": None, "zone": None, "every": {}}, "every.interval: 0 ms is not from"),
    ({"cron": None, "zone": None, "every": {"interval": "5s", "phase": "5s"}}, "every.phase: 5.0 s is not from 0 ms"),
    ({"jitter": "86401s"}, "jitter: 1 d"),
    ({"jitter": "0.0001s"}, "is not in whole milliseconds"),
    ({"catchUpWindow": "31622401s"}, "catch_up_window: 366 d"),
    ({"start": "2030-01-01T00:00:00Z", "end": "2030-01-01T00:00:00Z"}, "+00:00 is not after the start"),
    ({"overlap": "OVERLAP_SKIP"}, "overlap_group: OVERLAP_SKIP needs the group"),
    ({"overlapGroup": "billing"}, "overlap_group: it is only for OVERLAP_SKIP"),
    ({"catchUp": 7}, "catch_up: 7 is none of CATCH_UP_LATEST, CATCH_UP_NONE, CATCH_UP_ALL"),
])  # fmt: skip
def test_a_bad_schedule_is_refused_and_says_why(fields, says):
    with pytest.raises(BadSchedule) as refused:
        check(made(**fields))
    assert says in str(refused.value)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(("fields", "says"), [
    ({"end": "2020-01-01T00:00:00Z"}, "its end, 2020-01-01T00:00:00.000+00:00, has passed"),
    ({"cron": None, "zone": None, "at": ["2020-01-01T00:00:00Z"]}, "each of its 1 instants has passed"),
    ({"cron": ["0 0 29 2 *"], "start": "2029-01-01T00:00:00Z", "end": "2030-01-01T00:00:00Z"}, "between start and end"),
])  # fmt: skip
def test_a_schedule_of_which_no_time_comes_is_refused(fields, says):
    check(made(**fields))
    with pytest.raises(BadSchedule, match="would never fire") as refused:
        check_comes(made(**fields), 1_800_000_000_000)
    assert says in str(refused.value)


def test_a_long_note_is_refused():
    check_note("ü" * 512)
    with pytest.raises(BadSchedule, match="1,026 bytes are more than the limit, 1,024"):
        check_note("ü" * 513)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_that_are_a_schedule_are_taken_or_refused(data):
    for begin in (b"", made().SerializeToString()):
        try:
            found = pb.Schedule.FromString(begin + data)
        except Exception:
            continue
        try:
            check(found)
            check_comes(found, 1_800_000_000_000)
        except BadSchedule:
            pass
