"""Schedules by MessageService: any node answers, over gRPC and HTTP."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from delayapi.proto.delay.v1 import messages_pb2 as rows

from tests.doors.support.asking import Asking, CallFailed, Wire

Ask = Callable[..., Asking]
WIRES: list[Wire] = ["grpc", "json", "proto"]


def yearly(topic: str, id: str = "new-year") -> rows.Schedule:
    return rows.Schedule(id=id, topic=topic, cron=["0 0 1 1 *"], zone="Asia/Tokyo", body_text="happy")


@pytest.mark.parametrize("wire", WIRES)
def test_every_call_about_schedules_is_answered_by_each_node(ask: Ask, topic: str, wire: Wire) -> None:
    for node in range(3):
        client, other = ask(node, wire), ask((node + 1) % 3, wire)
        put = client.call("PutSchedule", topic=topic, schedule=yearly(topic), note="")
        assert (put.changed, put.state.version) == (True, 1)
        assert not other.call("PutSchedule", topic=topic, schedule=yearly(topic)).changed
        state = other.call("GetSchedule", topic=topic, id="new-year")
        assert state.schedule == yearly(topic)
        assert len(state.upcoming) == 10
        assert state.upcoming[0].ToDatetime().strftime("%m-%d %H:%M") == "12-31 15:00"
        client.call("PutSchedule", topic=topic, schedule=yearly(topic, "other"))
        page = client.call("ListSchedules", topic=topic, page_size=1)
        assert [one.schedule.id for one in page.schedules] == ["new-year"]
        page = other.call("ListSchedules", topic=topic, page_token=page.next_page_token)
        assert [one.schedule.id for one in page.schedules] == ["other"]
        assert client.call("PauseSchedule", topic=topic, id="new-year", note="why").note == "why"
        assert not other.call("ResumeSchedule", topic=topic, id="new-year").paused
        fired = client.call("TriggerSchedule", topic=topic, id="new-year", expected_fired=0)
        assert [one.number for one in fired.firings] == [1]
        with pytest.raises(CallFailed) as refused:
            other.call("TriggerSchedule", topic=topic, id="new-year", expected_fired=0)
        assert (refused.value.code, refused.value.reason) == ("failed_precondition", "SCHEDULE_CHANGED")
        (delivery,) = client.call("Receive", topic=topic, group="g", wait={"seconds": 10}).deliveries
        assert (delivery.body, delivery.properties["schedule-number"]) == (b"happy", "1")
        client.call("Ack", receipts=[delivery.receipt])
        for id in ("new-year", "other"):
            other.call("DeleteSchedule", topic=topic, id=id)
        with pytest.raises(CallFailed) as refused:
            client.call("GetSchedule", topic=topic, id="new-year")
        assert (refused.value.code, refused.value.reason) == ("not_found", "UNKNOWN_SCHEDULE")


def test_a_schedule_in_json_as_a_person_writes_it(ask: Ask, topic: str) -> None:
    client = ask(0, "json")
    schedule = {
        "id": "report", "cron": ["0 9 * * 1-5"], "zone": "Europe/Berlin", "jitter": "60s", "catchUp": "CATCH_UP_ALL",
        "bodyJson": {"kind": "daily", "parts": [1, 2]},
    }  # fmt: skip
    answer = client.json("PutSchedule", {"topic": topic, "schedule": schedule})
    assert answer["changed"] is True
    assert answer["state"]["schedule"]["bodyText"] == '{"kind":"daily","parts":[1,2]}'
    assert answer["state"]["nextDue"] == answer["state"]["upcoming"][0]
    fired = client.json("TriggerSchedule", {"topic": topic, "id": "report"})
    assert fired["firings"][0]["kind"] == "FIRING_KIND_TRIGGERED"
    ask_json = {"topic": topic, "group": "g", "wait": "10s", "bodyFormat": "BODY_FORMAT_JSON"}
    (delivery,) = client.json("Receive", ask_json)["deliveries"]
    assert delivery["bodyJson"] == {"kind": "daily", "parts": [1, 2]}


@pytest.mark.parametrize(("schedule", "says"), [
    ({"id": "a", "corn": ["0 9 * * *"]}, "corn"),
    ({"id": "a", "cron": ["0 0 31 2 *"]}, "no month that it names has that day"),
    ({"id": "a", "cron": ["0 9 * * *"], "zone": "Mars/Olympus"}, "zone: 'Mars/Olympus' is not a zone"),
    ({"id": "a", "every": {"interval": "1s"}, "body": "no base64!"}, "PutScheduleRequest in JSON"),
    ({"id": "a", "every": {"interval": "1s"}, "catchUp": "SOME"}, "catchUp"),
    ({"every": {"interval": "1s"}}, "a schedule's id has 1 to 256"),
])  # fmt: skip
def test_a_bad_schedule_in_json_is_refused_and_says_why(ask: Ask, topic: str, schedule: object, says: str) -> None:
    with pytest.raises(CallFailed) as refused:
        ask(1, "json").json("PutSchedule", {"topic": topic, "schedule": schedule})
    assert refused.value.status == 400
    assert says in refused.value.message
