"""Nodes come before a herd and go after it: the operator advises, an autoscaler follows what a node tells KEDA.

Beside it is a cluster that does not scale, with the same herd a minute later, so that neither takes the other's
processor. DELAY_E2E_HERD=100000 DELAY_E2E_NODE_CPU=400m is a larger one, for nodes with less processor.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable

from e2e.harness.autoscaler import Autoscaler
from e2e.harness.delaycluster import ClusterUnderTest
from e2e.harness.helm import Release
from e2e.harness.herd import Herds
from e2e.harness.kubectl import Kubectl, wait_until
from e2e.harness.scaler import node_scaler

QUEUES = 10
MESSAGES = int(os.environ.get("DELAY_E2E_HERD", "20000"))  # a herd: 333 a second of its minute, beside 44 enqueued
EACH = MESSAGES // 250  # what a node is said to do, so that five are needed
NODE_CPU = os.environ.get("DELAY_E2E_NODE_CPU")  # a node's limit; without one so small a herd is no load for three
SETTINGS = {"messagesPerSecond": EACH, "horizon": "10m", "settle": "1m", "podStart": "90s"}
NEAR_S, FAR_S = 100, 420  # until the first herd, nearer than a pod takes to start, and the second
BESIDE_S = 60  # after the second: the herd of the cluster that does not scale
STEP_SECONDS = 600.0
NEW = {"n3", "n4"}

Figure = Callable[..., None]


def test_nodes_come_before_a_herd_and_go_after_it(
    operator: Release, kube: Kubectl, namespace: str, image: str, figure: Figure
) -> None:
    """The first herd is too near to scale for, so that three nodes serve it; five serve the second."""
    requests, limits = {"cpu": "50m", "memory": "128Mi"}, {"cpu": NODE_CPU} if NODE_CPU else {}
    shape = {
        "replicas": 2, "storage": {"size": "1Gi"}, "topics": [{"name": "herd", "queues": QUEUES}],
        "resources": {"requests": requests, "limits": limits},
    }  # fmt: skip
    cluster, beside = ClusterUnderTest(kube, "herd", namespace), ClusterUnderTest(kube, "beside", namespace)
    cluster.apply(**shape, autoscaling=SETTINGS)
    beside.apply(**shape, nodes=3)
    cluster.wait_whole()
    beside.wait_whole()
    reasons: dict[str, str] = {}

    def look() -> None:
        found = cluster.condition("Scaling")
        if found:
            reasons.setdefault(found["reason"], found["message"])

    def nodes_are(count: int) -> list[str]:
        look()
        return [] if len(cluster.pods()) == count else [str(reasons)]

    began_s = time.time()
    near_ms, far_ms = (int((began_s + it) * 1_000) for it in (NEAR_S, FAR_S))
    herds = Herds.start(cluster, image, "herd", [(near_ms, MESSAGES), (far_ms, MESSAGES)])
    with node_scaler(cluster) as scaler, Autoscaler(cluster, scaler.nodes, least=3, most=6) as autoscaler:
        wait_until("there are five nodes", lambda: nodes_are(5), STEP_SECONDS)
        cluster.wait_whole(STEP_SECONDS)
        ready_s = far_ms / 1_000 - time.time()
        wait_until("shards have moved", lambda: sorted(NEW - {it.master for it in cluster.shards("herd")}), ready_s)
        others = Herds.start(beside, image, "herd", [(far_ms + 1_000 * BESIDE_S, MESSAGES)])
        near, far = herds.finish()
        (still,) = others.finish()
        wait_until("three are left", lambda: nodes_are(3), STEP_SECONDS)
    cluster.wait_whole(STEP_SECONDS)
    figure(
        messages=MESSAGES, node_cpu=NODE_CPU, steps=autoscaler.steps, ready_before_herd_s=round(ready_s),
        three_nodes_too_near=near, five_nodes=far, beside_not_scaled=still, said=reasons,
        scaler={"answers": scaler.asked, "errors": scaler.refused},
    )  # fmt: skip
    assert [(it["missing"], it["early"]) for it in (near, far, still)] == [(0, 0)] * 3
    assert len(beside.pods()) == 3
    assert ready_s > 0, "five nodes were whole only after the herd had come"
    assert [nodes for _, nodes in autoscaler.steps] == [5, 4, 3]
    assert {"HerdTooNear", "MoreNodes", "FewerNodes"} <= reasons.keys(), reasons
    events = {it["reason"] for it in cluster.events()}
    assert {"MoreNodes", "FewerNodes"} <= events, json.dumps(sorted(events))
