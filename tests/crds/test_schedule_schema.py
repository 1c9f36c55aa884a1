"""DelaySchedule: what the API server refuses, and how what it takes becomes what the topic's shard is told."""

from __future__ import annotations

from typing import Any

import pytest
from delayapi.proto.delay.v1 import schedules_pb2 as pb
from delayapi.schedule_checks import BadSchedule
from delayoperator.crds.definitions import SCHEDULE
from delayoperator.crds.schedule_convert import wanted
from google.protobuf import json_format

from tests.crds import apiserver

Json = dict[str, Any]
SCHEMA = SCHEDULE.manifest()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
WHOLE: Json = {
    "cluster": {"name": "shop"}, "topic": "orders", "cron": ["0 9 * * 1-5"], "timeZone": "Europe/Berlin",
    "daylightSaving": "Literal", "start": "2027-01-01T00:00:00+01:00", "end": "2030-01-01T00:00:00Z", "maxFirings": 9,
    "jitter": "1m30s", "catchUp": "None", "catchUpWindow": "2h", "skipWhile": "billing", "paused": True, "note": "why",
    "message": {"bodyBase64": "/wA=", "key": "k", "tag": "t", "properties": {"a": "b"}},
}  # fmt: skip


def spec(**fields: Any) -> Json:
    """A small one with other fields; None leaves one out."""
    small = {"cluster": {"name": "shop"}, "topic": "orders", "cron": ["0 9 * * 1-5"], **fields}
    return {name: value for name, value in small.items() if value is not None}


def body(spec: Json, name: str = "report") -> Json:
    return {"metadata": {"namespace": "shop", "name": name}, "spec": spec}


@pytest.mark.parametrize(("fields", "says"), [
    ({"cron": None}, "spec: it has one of cron, every and at"),
    ({"every": "5m"}, "spec: it has one of cron, every and at"),
    ({"topic": "other"}, "spec.topic: topic can't be changed"),
    ({"cluster": {"name": "other"}}, "spec.cluster: cluster can't be changed"),
])  # fmt: skip
def test_the_rules_refuse_what_makes_no_sense(fields: Json, says: str) -> None:
    _, schema, cel = apiserver.refusals(SCHEMA, body(spec(**fields)), body(spec()))
    assert schema == []
    assert [line[: len(says)] for line in cel] == [says]


@pytest.mark.parametrize("fields", [
    {"cron": ["0 9 * * *"] * 17}, {"cron": ["x" * 300]}, {"topic": "Orders"}, {"catchUp": "Some"},
    {"cron": None, "every": "soon"}, {"maxFirings": 0}, {"topic": None}, {"message": {"key": "k" * 2_000}},
])  # fmt: skip
def test_the_schema_refuses_what_is_of_the_wrong_shape(fields: Json) -> None:
    assert apiserver.refusals(SCHEMA, body(spec(**fields)))[1]


def test_a_long_name_is_refused() -> None:
    assert apiserver.refusals(SCHEMA, body(spec(), "x" * 63))[1:] == ([], [])
    (line,) = apiserver.refusals(SCHEMA, body(spec(), "x" * 64))[2]
    assert "at most 63 characters" in line


def test_every_field_comes_to_the_shard() -> None:
    stored, *faults = apiserver.refusals(SCHEMA, body(WHOLE))
    assert faults == [[], []]
    request = wanted(stored)
    assert (request.topic, request.paused, request.note) == ("orders", True, "why")
    assert json_format.MessageToDict(request.schedule) == {
        "id": "kubernetes/shop/report", "topic": "orders", "cron": ["0 9 * * 1-5"], "zone": "Europe/Berlin",
        "daylightSaving": "DAYLIGHT_SAVING_LITERAL", "start": "2026-12-31T23:00:00Z", "end": "2030-01-01T00:00:00Z",
        "maxFirings": "9", "jitter": "90s", "catchUp": "CATCH_UP_NONE", "catchUpWindow": "7200s",
        "overlap": "OVERLAP_SKIP", "overlapGroup": "billing", "body": "/wA=", "key": "k", "tag": "t",
        "properties": {"a": "b"},
    }  # fmt: skip


def test_what_is_not_said_is_as_the_shard_has_it() -> None:
    request = wanted(body(spec(cron=None, every="90m", phase="1m")))
    assert not request.HasField("paused")
    assert request.schedule == pb.Schedule(
        id="kubernetes/shop/report", topic="orders", every={"interval": {"seconds": 5_400}, "phase": {"seconds": 60}}
    )  # fmt: skip
    instants = wanted(body(spec(cron=None, at=["2030-01-01T00:00:00Z"]))).schedule.at
    assert [one.ToJsonString() for one in instants] == ["2030-01-01T00:00:00Z"]


@pytest.mark.parametrize(("fields", "says"), [
    ({"cron": ["0 0 31 2 *"]}, "no month that it names has that day"),
    ({"timeZone": "Europe/Belrin"}, "did you mean Europe/Berlin"),
    ({"cron": None, "every": "500ms"}, "every.interval: 500 ms is not from 1.0 s"),
    ({"phase": "5m"}, "spec.phase: it is of every"),
    ({"message": {"body": "a", "bodyBase64": "YQ=="}}, "spec.message: it has body or bodyBase64"),
    ({"message": {"bodyBase64": "no base64"}}, "spec.message.bodyBase64: "),
    ({"message": {"body": "x" * 65_536}}, "the limit is 64 KiB"),
    ({"cron": []}, "spec.cron: List should have at least 1 item"),
    ({"cron": 7}, "spec.cron: "),
    ({"topic": None}, "spec.topic: Field required"),
])  # fmt: skip
def test_what_the_api_server_can_not_know_is_refused_by_the_operator(fields: Json, says: str) -> None:
    with pytest.raises(BadSchedule) as refused:
        wanted(body(spec(**fields)))
    assert says in str(refused.value)
