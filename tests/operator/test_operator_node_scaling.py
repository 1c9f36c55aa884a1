"""spec.autoscaling with kopf really running: what the status says, and that an autoscaler's step is followed."""

from __future__ import annotations

from typing import Any

from tests.operator.stage import Stage

Json = dict[str, Any]
PENDING = 30_000  # of each of two shards; half of it is due in the horizon's last minute: 500 messages a second


def autoscaling(stage: Stage) -> Json:
    found: Json = stage.there("delayclusters", "shop")["status"].get("autoscaling") or {}
    return found


def test_the_status_says_how_many_nodes_there_should_be_until_nobody_asks(stage: Stage) -> None:
    stage.kubelet.pending = PENDING
    stage.operator()
    stage.create(topics=[{"name": "orders", "queues": 8}], autoscaling={"messagesPerSecond": 400, "horizon": "1h"})
    stage.until(lambda: stage.reason("Scaling") == "MoreNodes", lambda: stage.condition("Scaling"))
    assert autoscaling(stage)["desired"] == 5, "8 shards: 2,000 messages a second"
    assert autoscaling(stage)["because"].startswith("2,000 messages a second at ")
    assert stage.condition("Scaling")["status"] == "True"
    assert stage.there("delayclusters", "shop")["spec"]["nodes"] == 3, "the number is not the operator's"
    stage.until(lambda: stage.events("MoreNodes"))
    assert stage.events("MoreNodes")[0]["message"] == stage.condition("Scaling")["message"]

    stage.edit(nodes=5)
    stage.until(lambda: stage.reason("Scaling") == "NodesSuffice", lambda: stage.condition("Scaling"))
    assert (autoscaling(stage)["desired"], stage.condition("Scaling")["status"]) == (5, "False")

    stage.edit(autoscaling=None)
    stage.until(lambda: not stage.condition("Scaling"), lambda: stage.condition("Scaling"))
    assert autoscaling(stage) == {}
