"""DelayUsers with kopf really running: compiled into NAME-security, told what became of them, taken back."""

from __future__ import annotations

from typing import Any

import pytest
from delayoperator.crds import security_document
from delayregistry import security
from delayregistry.security import AuthorizationMode, SecuritySpec, read_document

from tests.kube import fakekinds
from tests.operator.stage import NAMESPACE, Stage

Json = dict[str, Any]
USERS = fakekinds.find("delayusers")
MAP = "shop-security"


def add(stage: Stage, name: str, cluster: str = "shop", **spec: Any) -> None:
    made = {"cluster": {"name": cluster}, "certificates": [f"dns:{name}"], "rules": [rule("orders")], **spec}
    stage.server.store.create(USERS, NAMESPACE, {"metadata": {"name": name}, "spec": made}, "kubectl")


def rule(topic: str) -> Json:
    return {"operations": ["Produce"], "topic": {"literal": topic}}


def ready(stage: Stage, name: str) -> Json:
    conditions = ((stage.get("delayusers", name) or {}).get("status") or {}).get("conditions") or [{}]
    found: Json = conditions[0]
    return found


def until(stage: Stage, name: str, reason: str) -> Json:
    stage.until(lambda: ready(stage, name).get("reason") == reason, lambda: ready(stage, name))
    return ready(stage, name)


def document(stage: Stage) -> SecuritySpec:
    return read_document(stage.there("configmaps", MAP)["data"]["security.json"])


def principals(stage: Stage) -> set[str]:
    return {it.principal for it in document(stage).users}


def settled(stage: Stage) -> None:
    stage.create(topics=[{"name": "orders", "queues": 2}])
    stage.settled()


def test_users_are_compiled_and_told_and_taken_away_again(stage: Stage) -> None:
    stage.operator()
    settled(stage)
    assert stage.get("configmaps", MAP) is None  # nobody asked for one
    add(stage, "till")
    add(stage, "elsewhere", cluster="billing")
    add(stage, "bad", rules=[{"operations": ["Consume"], "topic": {"prefix": ""}}])
    told = until(stage, "till", "InForce")
    assert (told["status"], told["observedGeneration"]) == ("True", 1)
    assert stage.there("delayusers", "till")["status"]["principals"] == ["dns:till"]
    assert "names no group" in until(stage, "bad", "InvalidSpec")["message"]
    assert document(stage).authorization is AuthorizationMode.OFF
    assert principals(stage) == {"dns:till"}
    assert "status" not in stage.there("delayusers", "elsewhere")

    stage.patch("delayusers", "bad", {"spec": {"rules": [rule("orders")]}})
    until(stage, "bad", "InForce")
    assert principals(stage) == {"dns:till", "dns:bad"}
    stage.delete("delayusers", "till")
    stage.until(lambda: principals(stage) == {"dns:bad"})
    stage.delete("delayusers", "bad")
    stage.until(lambda: principals(stage) == set())


def test_what_others_write_into_the_document_does_not_stay(stage: Stage) -> None:
    stage.operator()
    settled(stage)
    add(stage, "till")
    until(stage, "till", "InForce")
    before = stage.there("configmaps", MAP)["data"]["security.json"]
    stage.patch("configmaps", MAP, {"data": {"security.json": '{"authorization":"Off","superUsers":["dns:thief"]}'}})
    stage.until(lambda: stage.there("configmaps", MAP)["data"]["security.json"] == before)
    until(stage, "till", "InForce")


def test_a_config_map_of_somebody_else_is_left_alone_and_users_are_told(stage: Stage) -> None:
    theirs = {"metadata": {"name": MAP}, "data": {"mine": "1"}}
    stage.server.store.create(fakekinds.find("configmaps"), NAMESPACE, theirs, "kubectl")
    stage.operator()
    settled(stage)
    add(stage, "till")
    assert "does not have it yet" in until(stage, "till", "NotApplied")["message"]
    stage.until(lambda: stage.reason("Degraded") == "NameTaken")
    assert stage.there("configmaps", MAP)["data"] == {"mine": "1"}


def test_users_that_do_not_fit_leave_the_last_document_in_force(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.operator()
    settled(stage)
    add(stage, "first")
    until(stage, "first", "InForce")
    before = stage.there("configmaps", MAP)["data"]["security.json"]
    monkeypatch.setattr(security, "MAX_DOCUMENT_BYTES", len(before) + 10)
    add(stage, "second")
    assert "take users or rules away" in until(stage, "second", "DocumentTooLarge")["message"]
    assert ready(stage, "first")["reason"] == "InForce"
    stage.until(lambda: stage.reason("Degraded") == "SecurityTooLarge")
    assert stage.there("configmaps", MAP)["data"]["security.json"] == before
    stage.delete("delayusers", "second")
    stage.until(lambda: stage.reason("Degraded") != "SecurityTooLarge")


def test_an_operator_that_takes_over_writes_nothing_anew(stage: Stage) -> None:
    first = stage.operator()
    settled(stage)
    add(stage, "till")
    until(stage, "till", "InForce")
    first.close()
    versions = [stage.there(*it)["metadata"]["resourceVersion"] for it in (("configmaps", MAP), ("delayusers", "till"))]
    stage.operator()
    add(stage, "later")  # its condition says that the new one has looked
    until(stage, "later", "InForce")
    assert stage.there("delayusers", "till")["metadata"]["resourceVersion"] == versions[1]
    assert principals(stage) == {"dns:till", "dns:later"}


def test_a_paused_cluster_takes_no_users(stage: Stage) -> None:
    stage.operator()
    settled(stage)
    add(stage, "till")
    until(stage, "till", "InForce")
    stage.edit(paused=True)
    stage.until(lambda: stage.reason("Progressing") == "Paused")
    add(stage, "later")
    stage.edit(paused=False)
    until(stage, "later", "InForce")
    assert security_document.in_force(stage.there("configmaps", MAP)["data"]["security.json"]).users.keys() == {
        "dns:till", "dns:later",
    }  # fmt: skip


@pytest.mark.parametrize(("code", "reason"), [(403, "Forbidden"), (404, "ApplyFailed")])
def test_users_that_can_not_be_read_leave_the_document_in_force(stage: Stage, code: int, reason: str) -> None:
    first = stage.operator()
    settled(stage)
    add(stage, "till")
    until(stage, "till", "InForce")
    first.close()
    before = stage.there("configmaps", MAP)["data"]["security.json"]
    stage.server.fault(path="/delayusers", code=code, times=None)
    stage.operator()
    stage.until(lambda: stage.reason("Degraded") == reason)
    assert stage.there("configmaps", MAP)["data"]["security.json"] == before


@pytest.mark.parametrize("code", [403, 404])
def test_a_cluster_without_users_does_not_mind_that_they_can_not_be_read(stage: Stage, code: int) -> None:
    stage.server.fault(path="/delayusers", code=code, times=None)
    stage.operator()
    settled(stage)
    assert stage.reason("Degraded") == "Healthy"
    assert stage.get("configmaps", MAP) is None
