"""What the operator asks of a big API server, counted: requests and objects, never seconds."""

from __future__ import annotations

from tests.kube import fakekinds
from tests.operator.stage import NAMESPACE, Stage

FOREIGN = 1_000
ORDERS = {"name": "orders", "queues": 4}


def add_foreign(stage: Stage, plural: str) -> None:
    for number in range(FOREIGN):
        stage.server.store.create(fakekinds.find(plural), NAMESPACE, {"metadata": {"name": f"foreign-{number}"}})


def test_objects_of_others_are_never_sent_to_the_operator(stage: Stage) -> None:
    for plural in ("pods", "configmaps"):
        add_foreign(stage, plural)
    stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    for number in range(100):
        stage.patch("pods", f"foreign-{number}", {"metadata": {"annotations": {"changed": "yes"}}})
    stage.create("last")
    stage.settled("last")  # by a watch that would have told of the changes before
    sent = {plural: stage.server.delivered(plural) for plural in ("pods", "configmaps")}
    assert 3 <= sent["pods"] < 500
    assert 2 <= sent["configmaps"] < 500


def test_objects_are_listed_in_pages_when_the_operator_starts(stage: Stage) -> None:
    stage.operator()
    stage.create()
    stage.settled()
    listed = [it for it in stage.server.requests("LIST") if it.agent.startswith("kopf")]
    assert {it.path.rsplit("/", 1)[-1] for it in listed} >= {"pods", "configmaps", "delayclusters"}
    assert {it.query.get("limit") for it in listed} == {"500"}
