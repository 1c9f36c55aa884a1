"""DelaySchedules with kopf really running: put to the topic's shard, told what became of them, and ended with it."""

from __future__ import annotations

import time
from typing import Any

import pytest
from delayapi.proto.delay.v1 import schedules_pb2 as pb
from delayoperator.kube import schedules as keeper

from tests.kube import fakekinds
from tests.operator.stage import NAMESPACE, Stage
from tests.operator.test_operator_topics import HOME, TEAMS, namespace, remove
from tests.operator.test_operator_topics import add as add_topic
from tests.operator.test_operator_topics import until as until_topic

Json = dict[str, Any]
SCHEDULES = fakekinds.find("delayschedules")
PLURAL = "delayschedules"


def add(stage: Stage, name: str, at: str = NAMESPACE, **spec: Any) -> None:
    made = {
        "cluster": {"name": "shop"} if at == NAMESPACE else HOME, "topic": "orders", "cron": ["0 9 * * 1-5"],
        "timeZone": "Europe/Berlin", "message": {"body": "now"}, **spec,
    }  # fmt: skip
    made = {key: value for key, value in made.items() if value is not None}
    stage.server.store.create(SCHEDULES, at, {"metadata": {"name": name}, "spec": made}, "kubectl")


def status(stage: Stage, name: str, at: str = NAMESPACE) -> Json:
    found: Json = stage.server.get(PLURAL, name, at).get("status") or {}
    return found


def until(stage: Stage, name: str, reason: str, at: str = NAMESPACE) -> Json:
    return until_topic(stage, name, reason, at, PLURAL)


def held(stage: Stage) -> dict[tuple[str, str], pb.ScheduleState]:
    return stage.kubelet.schedules


def begin(stage: Stage, **spec: Any) -> None:
    stage.operator()
    stage.create(topics=[{"name": "orders", "queues": 1}], **spec)
    stage.settled()


def test_a_schedule_comes_and_changes_and_ends_with_its_object(stage: Stage) -> None:
    begin(stage)
    held(stage)["orders", "somebody-else"] = pb.ScheduleState(schedule=pb.Schedule(id="somebody-else"))
    add(
        stage, "report", skipWhile="billing", jitter="5m", message={"body": "now", "key": "k", "properties": {"a": "b"}}
    )
    told = until(stage, "report", "Armed")
    assert told["status"] == "True"
    schedule = held(stage)["orders", f"kubernetes/{NAMESPACE}/report"].schedule
    assert (list(schedule.cron), schedule.zone, schedule.body_text) == (["0 9 * * 1-5"], "Europe/Berlin", "now")
    assert (schedule.overlap_group, schedule.jitter.seconds, schedule.key) == ("billing", 300, "k")
    said = status(stage, "report")
    assert (said["nextTime"], said["fired"], said["observedGeneration"]) == ("2100-01-01T00:00:00Z", 2, 1)
    stage.patch(PLURAL, "report", {"spec": {"paused": True, "note": "holidays"}})
    assert "holidays" in until(stage, "report", "Paused")["message"]
    stage.patch(PLURAL, "report", {"spec": {"paused": False, "note": None, "cron": ["0 10 * * *"]}})
    until(stage, "report", "Armed")
    assert list(held(stage)["orders", f"kubernetes/{NAMESPACE}/report"].schedule.cron) == ["0 10 * * *"]
    assert "finalizers" not in stage.there(PLURAL, "report")["metadata"]
    stage.delete(PLURAL, "report")
    stage.until(lambda: set(held(stage)) == {("orders", "somebody-else")}, lambda: set(held(stage)), 30)


def test_what_is_wrong_is_told_and_leaves_what_was_there(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "AGAIN_MS", 500)
    begin(stage)
    add(stage, "report")
    until(stage, "report", "Armed")
    stage.patch(PLURAL, "report", {"spec": {"cron": ["0 0 31 2 *"]}})
    message = until(stage, "report", "InvalidSpec")["message"]
    assert "no month that it names has that day" in message
    assert "what it had before stays in force" in message
    assert list(held(stage)["orders", f"kubernetes/{NAMESPACE}/report"].schedule.cron) == ["0 9 * * 1-5"]
    add(stage, "lost", topic="nothing")
    assert "no topic nothing" in until(stage, "lost", "TopicUnknown")["message"]
    stage.kubelet.refused_schedules = "the shard is changing hands"
    add(stage, "later")
    assert until(stage, "later", "NotApplied")["message"] == "the shard is changing hands"
    stage.kubelet.refused_schedules = ""
    until(stage, "later", "Armed")


def test_a_team_schedules_messages_of_its_own_topics_alone(stage: Stage) -> None:
    namespace(stage, "a", delay="yes")
    namespace(stage, "b", delay="no")
    begin(stage, allowedNamespaces=TEAMS)
    add_topic(stage, "mails", "a")
    until_topic(stage, "mails", "Serving", "a")
    add(stage, "mine", "a", topic="mails")
    until(stage, "mine", "Armed", "a")
    add(stage, "theirs", "a")
    assert "has no DelayTopic orders" in until(stage, "theirs", "TopicUnknown", "a")["message"]
    add(stage, "guest", "b")
    until(stage, "guest", "NamespaceNotAllowed", "b")
    assert set(held(stage)) == {("mails", "kubernetes/a/mine")}
    remove(stage, "mails", "a")
    until(stage, "mine", "TopicUnknown", "a")
    stage.until(lambda: not held(stage), lambda: set(held(stage)), 30)  # its shards are still there


def test_a_new_operator_ends_what_was_deleted_while_none_ran(stage: Stage) -> None:
    held(stage)["orders", "kubernetes/gone/old"] = pb.ScheduleState(schedule=pb.Schedule(id="kubernetes/gone/old"))
    begin(stage)
    stage.until(lambda: not held(stage), lambda: set(held(stage)), 90)


def test_a_kind_that_is_not_served_for_a_moment_ends_no_schedule(stage: Stage) -> None:
    first = stage.operator()
    stage.create(topics=[{"name": "orders", "queues": 1}])
    stage.settled()
    add(stage, "report")
    until(stage, "report", "Armed")
    first.close()
    stage.server.fault(path="/delayschedules", code=404, times=None)
    before = stage.kubelet.schedule_lists
    stage.operator()
    stage.until(lambda: stage.kubelet.schedule_lists > before, lambda: stage.kubelet.schedule_lists, 90)
    time.sleep(1)  # a schedule would be deleted right after it was listed
    assert set(held(stage)) == {("orders", f"kubernetes/{NAMESPACE}/report")}


def test_what_somebody_else_has_changed_is_put_right(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "LOOK_MS", 500)
    begin(stage)
    add(stage, "report", paused=False)
    until(stage, "report", "Armed")
    state = held(stage)["orders", f"kubernetes/{NAMESPACE}/report"]
    state.paused = True
    state.schedule.cron[:] = ["* * * * *"]
    stage.until(lambda: not state.paused and list(state.schedule.cron) == ["0 9 * * 1-5"], lambda: state, 60)
