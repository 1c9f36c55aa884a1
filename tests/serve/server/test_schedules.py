"""Schedules over the wire: put, fired by the clock and by hand, paused, listed, deleted; and what is refused."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest
from delayapi.proto.delay.v1 import schedules_pb2 as pb
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from tests.serve.support.client import Failure, Got, Shard, now_ms, poll

NUMBERS = itertools.count()
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def scheduled(take: Callable[[str], Shard]) -> Shard:
    return take("scheduled")


@pytest.fixture
def name() -> str:
    return f"s{next(NUMBERS)}"


def every(seconds: float) -> pb.Every:
    made = pb.Every()
    made.interval.FromMilliseconds(round(seconds * 1000))
    return made


def hourly(**fields: Any) -> dict[str, Any]:
    return {"cron": ["0 * * * *"], **fields}


def put(shard: Shard, id_: str, schedule: dict[str, Any], **fields: Any) -> pb.PutScheduleResponse:
    made = pb.Schedule(id=id_, tag=id_, **{"body": b"tell them", **schedule})
    answer: pb.PutScheduleResponse = shard.call("PutSchedule", schedule=made, **fields)
    return answer


def at(ms: int) -> Timestamp:
    made = Timestamp()
    made.FromMilliseconds(ms)
    return made


def ms_of(stamp: Timestamp) -> int:
    return stamp.ToMilliseconds()


def received(shard: Shard, name: str, count: int, seconds: float = 20) -> list[tuple[dict[str, str], Got]]:
    """Firings of the schedule, acknowledged: their properties, and the messages."""
    found: list[tuple[dict[str, str], Got]] = []
    ends = time.monotonic() + seconds
    while len(found) < count and time.monotonic() < ends:
        got = shard.receive(f"of-{name}", tags=[name], wait_ms=2_000)
        found += [(dict(properties(one)), one) for one in got]
        if got:
            shard.ack_all(got, f"of-{name}")
    return found


def properties(got: Got) -> dict[str, str]:
    return dict(got.message.properties)


def refused(shard: Shard, method: str, reason: str, **fields: Any) -> str:
    with pytest.raises(Failure) as told:
        shard.call(method, **fields)
    assert told.value.reason == reason
    return str(told.value)


def test_an_interval_fires_each_of_its_times_once_and_none_early(scheduled: Shard, name: str) -> None:
    state = put(scheduled, name, {"every": every(1), "key": "k", "properties": {"a": "b"}}).state
    assert (state.version, state.fired, state.over, len(state.upcoming)) == (1, 0, False, 10)
    found = received(scheduled, name, 3)
    scheduled.call("DeleteSchedule", id=name)
    times = [pb.Firing(nominal=parsed(one["schedule-time"])).nominal.ToMilliseconds() for one, _ in found]
    assert times == [times[0] + 1_000 * k for k in range(len(times))]
    assert times[0] == ms_of(state.next_nominal)
    assert [one["schedule-number"] for one, _ in found] == [str(1 + k) for k in range(len(found))]
    assert all(one["a"] == "b" and one["schedule-id"] == name for one, _ in found)
    assert all(got.due_ms == due and due <= got.message.born_ms for due, (_, got) in zip(times, found, strict=True))
    assert {(got.message.key, got.message.body) for _, got in found} == {("k", b"tell them")}


def parsed(text: str) -> Timestamp:
    made = Timestamp()
    made.FromJsonString(text)
    return made


def test_the_state_says_what_has_fired_and_what_comes(scheduled: Shard, name: str) -> None:
    put(scheduled, name, {"every": every(1), "max_firings": 3})
    assert len(received(scheduled, name, 3)) == 3
    state = scheduled.call("GetSchedule", id=name)
    assert (state.fired, state.over, len(state.upcoming), state.HasField("next_due")) == (3, True, 0, False)
    assert [one.number for one in state.last] == [3, 2, 1]
    assert all(ms_of(one.due) <= ms_of(one.fired) for one in state.last)
    assert not received(scheduled, name, 1, 1.5)


def test_a_put_of_the_same_changes_nothing_and_one_of_another_message_keeps_the_next_time(
    scheduled: Shard, name: str
) -> None:
    first = put(scheduled, name, hourly())
    again = put(scheduled, name, hourly())
    assert (first.changed, again.changed, again.state.version) == (True, False, 1)
    other = put(scheduled, name, hourly(body=b"something else"), expected_version=1)
    assert (other.changed, other.state.version) == (True, 2)
    assert other.state.next_nominal == first.state.next_nominal
    half = put(scheduled, name, {"cron": ["30 * * * *"]})
    assert ms_of(half.state.next_nominal) % HOUR_MS == HOUR_MS // 2
    assert "at version 3, expected was 1" in refused(
        scheduled, "PutSchedule", "SCHEDULE_CHANGED", schedule=pb.Schedule(id=name, **hourly()), expected_version=1
    )
    refused(scheduled, "PutSchedule", "SCHEDULE_CHANGED", schedule=pb.Schedule(id=name, **hourly()), expected_version=0)


def test_a_paused_schedule_does_not_fire_until_it_is_resumed(scheduled: Shard, name: str) -> None:
    put(scheduled, name, {"every": every(1)}, paused=True, note="not yet")
    state = scheduled.call("GetSchedule", id=name)
    assert (state.paused, state.note, state.over, state.HasField("next_due")) == (True, "not yet", False, False)
    assert len(state.upcoming) == 10, "what would come"
    assert not received(scheduled, name, 1, 2.5)
    state = scheduled.call("ResumeSchedule", id=name, note="now")
    assert (state.paused, state.note, state.version) == (False, "now", 2)
    assert scheduled.call("ResumeSchedule", id=name).version == 2, "it is so already"
    (first, _), *_ = received(scheduled, name, 1)
    scheduled.call("PauseSchedule", id=name)
    assert ms_of(parsed(first["schedule-time"])) >= ms_of(state.changed) - 1, "nothing of the pause comes after it"
    assert scheduled.call("GetSchedule", id=name).missed == 0


def test_a_trigger_fires_now_and_leaves_the_next_time(scheduled: Shard, name: str) -> None:
    armed = put(scheduled, name, hourly(), paused=False).state.next_nominal
    fired = scheduled.call("TriggerSchedule", id=name, expected_fired=0)
    assert [(one.number, one.kind) for one in fired.firings] == [(1, pb.FIRING_KIND_TRIGGERED)]
    assert fired.state.next_nominal == armed
    assert len(received(scheduled, name, 1)) == 1
    assert "has fired 1 times, expected were 0" in refused(
        scheduled, "TriggerSchedule", "SCHEDULE_CHANGED", id=name, expected_fired=0
    )


def test_a_backfill_fires_each_time_of_the_range(scheduled: Shard, name: str) -> None:
    put(scheduled, name, hourly())
    end = now_ms() // HOUR_MS * HOUR_MS
    asked: dict[str, Any] = {"id": name, "from": at(end - 24 * HOUR_MS), "to": at(end)}
    fired = scheduled.call("BackfillSchedule", **asked, expected_fired=0)
    times = [end - hours * HOUR_MS for hours in range(24, 0, -1)]
    assert [ms_of(one.nominal) for one in fired.firings] == times
    assert [one.number for one in fired.firings] == [*range(1, 25)]
    assert [one.number for one in fired.state.last] == [*range(24, 14, -1)]
    found = received(scheduled, name, 24)
    assert [one["schedule-number"] for one, _ in found] == [str(number) for number in range(1, 25)]
    assert [got.due_ms for _, got in found] == times
    long = asked | {"from": at(end - 2_000 * HOUR_MS)}
    assert "more than 1,000 times" in refused(scheduled, "BackfillSchedule", "BAD_REQUEST", **long)
    early = asked | {"to": at(now_ms() + HOUR_MS)}
    assert "none fires early" in refused(scheduled, "BackfillSchedule", "BAD_REQUEST", **early)


def test_a_time_is_left_out_while_the_group_has_not_acknowledged_the_last(scheduled: Shard, name: str) -> None:
    put(scheduled, name, {"every": every(1), "overlap": pb.OVERLAP_SKIP, "overlap_group": f"of-{name}"})
    first = poll(
        "it has fired", lambda: scheduled.receive(f"of-{name}", tags=[name], wait_ms=500, invisible_ms=600_000), 20
    )

    def skipped() -> bool:
        state = scheduled.call("GetSchedule", id=name)
        return bool(state.skipped >= 2 and state.fired == 1)

    poll("times are skipped", skipped, 20)
    scheduled.ack_all(first, f"of-{name}")
    poll("it fires again", lambda: scheduled.call("GetSchedule", id=name).fired >= 2, 20)
    scheduled.call("DeleteSchedule", id=name)


def test_schedules_are_listed_by_id_a_page_at_a_time(scheduled: Shard) -> None:
    for number in range(5):
        put(scheduled, f"page-{number}", hourly())
    first = scheduled.call("ListSchedules", id_prefix="page-", page_size=3)
    assert [one.schedule.id for one in first.schedules] == ["page-0", "page-1", "page-2"]
    rest = scheduled.call("ListSchedules", id_prefix="page-", page_size=3, page_token=first.next_page_token)
    assert ([one.schedule.id for one in rest.schedules], rest.next_page_token) == (["page-3", "page-4"], "")
    scheduled.call("DeleteSchedule", id="page-3", expected_version=1)
    refused(scheduled, "GetSchedule", "UNKNOWN_SCHEDULE", id="page-3")
    refused(scheduled, "DeleteSchedule", "UNKNOWN_SCHEDULE", id="page-3")
    refused(scheduled, "DeleteSchedule", "SCHEDULE_CHANGED", id="page-4", expected_version=7)
    refused(scheduled, "ListSchedules", "BAD_REQUEST", page_size=101)


def test_a_page_of_large_schedules_is_one_that_every_client_takes(scheduled: Shard) -> None:
    """The largest has 64 KiB: a hundred of them have more than the 4 MiB that clients of gRPC take."""
    names = [f"large-{number:02}" for number in range(70)]
    for name in names:
        put(scheduled, name, hourly(body=bytes(65_000)))
    found: list[str] = []
    token, sizes = "", []
    while token or not found:
        page = scheduled.call("ListSchedules", id_prefix="large-", page_size=100, page_token=token)
        found += [one.schedule.id for one in page.schedules]
        token = page.next_page_token
        sizes.append(page.ByteSize())
    assert found == names
    assert max(sizes) <= 3 << 20
    assert sizes[0] > 2 << 20
    for name in names:
        scheduled.call("DeleteSchedule", id=name)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "31 February": ({"cron": ["0 0 31 2 *"]}, "cron"),
    "nothing to go by": ({}, "needs one of cron, every and at"),
    "two to go by": ({"cron": ["* * * * *"], "every": every(5)}, "cron and every"),
    "an unknown zone": (hourly(zone="Europe/Atlantis"), "Europe/Atlantis"),
    "too often": ({"every": every(0.2)}, "every.interval"),
    "only times that have passed": ({"at": [at(1_000)]}, "would never fire"),
    "a skip without a group": (hourly(overlap=pb.OVERLAP_SKIP), "overlap_group"),
    "a long body": (hourly(body=bytes(100_000)), "64 KiB"),
    "its own property": (hourly(properties={"schedule-id": "x"}), "schedule-id"),
    "another topic": (hourly(topic="t"), "the schedule says 't'"),
    "a long jitter": (hourly(jitter=Duration(seconds=10**6)), "jitter"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_schedule_is_refused_and_says_why(scheduled: Shard, what: str) -> None:
    fields, said = BAD[what]
    with pytest.raises(Failure) as told:
        put(scheduled, "bad", fields)
    assert told.value.reason == "BAD_SCHEDULE"
    assert said in str(told.value)
    refused(scheduled, "GetSchedule", "UNKNOWN_SCHEDULE", id="bad")


def test_ids_of_10_kb_and_other_queues_are_refused(scheduled: Shard, shard: Shard) -> None:
    with pytest.raises(Failure, match="10,000 bytes") as told:
        put(scheduled, "x" * 10_000, hourly())
    assert told.value.reason == "BAD_SCHEDULE"
    refused(scheduled, "GetSchedule", "UNKNOWN_SCHEDULE", id="x" * 10_000)
    if shard.queue:
        assert "queue 0" in refused(shard, "GetSchedule", "BAD_REQUEST", id="x")
