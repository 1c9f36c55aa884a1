"""kopf really runs, over the fake API server: what is refused, and by whom, stands in the status with its words."""

from __future__ import annotations

import re
import time
from typing import Any

from delayoperator.kube.events import event_name

from tests.kube import fakekinds
from tests.operator.stage import NAMESPACE, Stage

ORDERS = {"name": "orders", "queues": 2}
QUOTA = "exceeded quota: disks, requested: requests.storage=2Gi, limited: requests.storage=3Gi"


def degraded(stage: Stage, reason: str) -> str:
    stage.until(lambda: stage.reason("Degraded") == reason)
    return str(stage.condition("Degraded")["message"])


def test_an_object_that_the_api_server_refuses_is_named_with_its_words(stage: Stage) -> None:
    words = 'StatefulSet.apps "shop" is invalid: spec.template: Forbidden: privileged'
    fault = stage.server.fault(method="PATCH", path="/statefulsets/", code=422, message=words, times=None)
    stage.operator()
    stage.create(topics=[ORDERS])
    said = degraded(stage, "ObjectRefused")
    assert f"apply StatefulSet shop is refused: {words}" in said
    assert said.endswith("See docs/operations.md#objectrefused")
    stage.until(lambda: stage.names("services") == {"shop-client", "shop-nodes"})  # it holds up none of the others
    fault.times = 0
    stage.settled()


def test_a_pod_monitor_without_its_definition_is_said_and_all_else_goes_on(stage: Stage) -> None:
    fault = stage.server.fault(path="/podmonitors", code=404, times=None)
    stage.operator()
    stage.create(topics=[ORDERS], monitoring={"podMonitor": True})
    said = degraded(stage, "ObjectRefused")
    assert "PodMonitor shop is asked for, and the cluster knows no podmonitors.monitoring.coreos.com" in said
    stage.until(lambda: stage.reason("Ready") == "Serving")
    fault.times = 0
    stage.settled()
    assert stage.names("podmonitors") == {"shop"}


def test_a_volume_whose_growth_the_api_server_refuses_is_said_with_its_words(stage: Stage) -> None:
    stage.operator(resync_s=1.0)
    stage.create(storage={"size": "1Gi"})
    stage.settled()
    path = "/persistentvolumeclaims/data-shop-1"
    fault = stage.server.fault(method="PATCH", path=path, manager="delaycluster-operator", code=403, times=None)
    fault.message = QUOTA
    stage.edit(storage={"size": "2Gi"})
    said = degraded(stage, "VolumesCannotGrow")
    assert f"volumes are to grow and may not: data-shop-1 has 1 GiB, 2Gi is wished for ({QUOTA})" in said
    assert "allowVolumeExpansion" not in said, "the storage class allows it"
    fault.times = 0
    stage.settled()


def test_a_rebalance_that_cannot_be_read_is_refused_in_words(stage: Stage) -> None:
    stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    body: dict[str, Any] = {
        "metadata": {"name": "bad"},
        "spec": {"cluster": "shop", "moves": "all of them", "maxInFlight": 0, "coolDown": "soon"},
    }
    stage.server.store.create(fakekinds.find("delayrebalances"), NAMESPACE, body, "kubectl")
    stage.until(lambda: stage.events("InvalidSpec", "bad"))
    (event,) = stage.events("InvalidSpec", "bad")
    assert event["type"] == "Warning"
    assert event["message"] == (
        "spec.moves: is 'all of them'; a list is wanted; "
        "spec.maxInFlight: is 0; allowed: at least 1; "
        "spec.coolDown: is 'soon'; wanted: a duration such as 500ms, 30m, 2h30m or 3d, the largest unit first"
    )


def scheduled_run(stage: Stage, number: int, **condition: str) -> str:
    """A Job of the CronJob's, and what became of it."""
    name = f"shop-rebalance-{number}"
    cron = stage.there("cronjobs", "shop-rebalance")
    owner = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "shop-rebalance", "uid": cron["metadata"]["uid"]}
    labels = cron["spec"]["jobTemplate"]["metadata"]["labels"]
    kind = fakekinds.find("jobs")
    meta = {"name": name, "labels": labels, "ownerReferences": [owner]}
    stage.server.store.create(kind, NAMESPACE, {"metadata": meta, "spec": {}}, "cronjob-controller")
    if condition:
        status = {"conditions": [{"status": "True", **condition}]}
        stage.server.store.patch(kind, NAMESPACE, name, {"status": status}, "job-controller", "status")
    return name


def test_a_run_of_the_rebalance_job_that_failed_is_named_until_one_succeeds(stage: Stage) -> None:
    stage.operator(resync_s=1.0)
    stage.create(topics=[ORDERS], rebalance={"schedule": "0 3 * * *"})
    stage.until(lambda: stage.names("cronjobs") == {"shop-rebalance"})
    stage.settled()
    why = {"reason": "BackoffLimitExceeded", "message": "Job has reached the specified backoff limit"}
    name = scheduled_run(stage, 29_000_001, type="Failed", **why)
    said = degraded(stage, "RebalanceFailed")
    assert said == (
        f"Job {name} failed (BackoffLimitExceeded: Job has reached the specified backoff limit); "
        f"kubectl logs job/{name} says more. See docs/operations.md#rebalancefailed"
    )
    stage.until(lambda: [it["type"] for it in stage.events("RebalanceFailed")] == ["Warning"])
    assert stage.condition("Ready")["status"] == "True"
    scheduled_run(stage, 29_000_002)  # under way: what it will come to is not known
    since_s = time.monotonic()
    stage.until(lambda: len(stage.server.requests("GET", "/delayclusters/shop", since_s)) > 2)
    assert stage.reason("Degraded") == "RebalanceFailed"
    scheduled_run(stage, 29_000_003, type="Complete")
    stage.settled()


def test_an_eviction_that_a_busy_api_server_refuses_is_not_taken_for_the_disruption_budgets(stage: Stage) -> None:
    stage.operator()
    stage.create(topics=[{"name": "orders", "queues": 1}])
    stage.settled()
    busy = stage.server.fault(method="POST", path="/eviction", code=429, message="too many requests", times=None)
    stage.patch("delayclusters", "shop", {"metadata": {"annotations": {"delaycluster.io/restart": "1"}}})
    stage.until(lambda: "429 TooManyRequests: too many requests" in stage.condition("Progressing")["message"])
    assert stage.reason("Degraded") == "ApplyFailed"
    stage.server.fault(method="POST", path="/eviction", code=429, cause="DisruptionBudget", times=None)
    stage.server.faults.take_back(busy)
    stage.until(lambda: "the disruption budget shop does not allow it yet" in stage.condition("Progressing")["message"])
    stage.until(lambda: stage.reason("Degraded") == "Healthy")
    stage.server.faults.clear()
    stage.until(lambda: len(stage.kubelet.restarts) == 3)


def test_an_event_about_an_object_with_a_long_name_has_a_name_that_the_api_server_takes() -> None:
    assert event_name("shop", "0123") == "shop.0123"
    for name in ("x" * 253, "x" * 247 + "-xxxxx", "x" * 246 + ".-xxxxx"):
        made = event_name(name, "0123")
        assert len(made) <= 253
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", made)
