"""Nodes come before a herd and go after it: the operator advises, an autoscaler follows."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from e2e.harness.autoscaler import Autoscaler
from e2e.harness.delaycluster import ClusterUnderTest
from e2e.harness.helm import Release
from e2e.harness.herd import Herds
from e2e.harness.kubectl import Kubectl, wait_until

QUEUES = 10
MESSAGES = 20_000  # a herd: 333 a second of its minute, beside 44 that count as enqueued
EACH = 80  # what a node is said to do, so that five are needed: so small a herd is no load for the nodes that there are
SETTINGS = {"messagesPerSecond": EACH, "horizon": "10m", "settle": "1m", "podStart": "90s"}
NEAR_S, FAR_S = 100, 420  # until the first herd, nearer than a pod takes to start, and the second
STEP_SECONDS = 600.0
NEW = {"n3", "n4"}

Figure = Callable[..., None]


def test_nodes_come_before_a_herd_and_go_after_it(
    operator: Release, kube: Kubectl, namespace: str, image: str, figure: Figure
) -> None:
    """The first herd is too near to scale for, so that three nodes serve it; five serve the second."""
    cluster = ClusterUnderTest(kube, "herd", namespace)
    cluster.apply(
        replicas=2, storage={"size": "1Gi"}, topics=[{"name": "herd", "queues": QUEUES}], autoscaling=SETTINGS,
        resources={"requests": {"cpu": "50m", "memory": "128Mi"}},
    )  # fmt: skip
    cluster.wait_whole()
    reasons: dict[str, str] = {}

    def advised() -> float | None:
        found = cluster.object.get("status", {})
        scaling = next((it for it in found.get("conditions", ()) if it["type"] == "Scaling"), None)
        if scaling is not None:
            reasons.setdefault(scaling["reason"], scaling["message"])
        return (found.get("autoscaling") or {}).get("desired")

    began_s = time.time()
    near_ms, far_ms = (int((began_s + it) * 1_000) for it in (NEAR_S, FAR_S))
    herds = Herds.start(kube, namespace, image, cluster.endpoint, "herd", [(near_ms, MESSAGES), (far_ms, MESSAGES)])
    with Autoscaler(cluster, advised, least=3, most=6) as autoscaler:
        wait_until("there are five nodes", lambda: [] if len(cluster.pods()) == 5 else [str(reasons)], STEP_SECONDS)
        cluster.wait_whole(STEP_SECONDS)
        ready_s = far_ms / 1_000 - time.time()
        wait_until("shards have moved", lambda: sorted(NEW - {it.master for it in cluster.shards("herd")}), ready_s)
        near, far = herds.finish()
        wait_until("three are left", lambda: [] if len(cluster.pods()) == 3 else [str(reasons)], STEP_SECONDS)
    cluster.wait_whole(STEP_SECONDS)
    figure(steps=autoscaler.steps, ready_before_herd_s=round(ready_s), three_nodes=near, five_nodes=far, said=reasons)
    assert (near["missing"], near["early"], far["missing"], far["early"]) == (0, 0, 0, 0)
    assert ready_s > 0, "five nodes were whole only after the herd had come"
    assert [nodes for _, nodes in autoscaler.steps] == [5, 4, 3]
    assert {"HerdTooNear", "MoreNodes", "FewerNodes"} <= reasons.keys(), reasons
    events = {it["reason"] for it in cluster.events()}
    assert {"MoreNodes", "FewerNodes"} <= events, json.dumps(sorted(events))
