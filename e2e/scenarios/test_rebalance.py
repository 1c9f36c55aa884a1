"""Shards are rebalanced under load: by hand, and by the job that a CronJob runs in a pod of its own."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest

from e2e.harness.delaycluster import ClusterUnderTest
from e2e.harness.helm import Release
from e2e.harness.kubectl import Kubectl, Object, wait_until
from e2e.harness.load import CALM_SECONDS, Load, Result

MOVES_SECONDS = 300.0
JOB_SECONDS = 600.0  # a pod, a Java machine and Spark, on two cores that all share
WAITING = 20_000  # messages that make the load to come
BY_HAND, BY_JOB = "e2e-together", "e2e-rebalance"  # the second: as the CronJob's runs name it
KIND = "delayrebalance"
API_VERSION = "delaycluster.io/v1alpha1"
JOBS = "app.kubernetes.io/component=rebalance"

Kept = Callable[..., Result]


def state(kube: Kubectl, cluster: ClusterUnderTest, name: str) -> Object:
    """Its status; empty while there is none."""
    if not kube.exists(KIND, name, cluster.namespace):
        return {}
    found: Object = kube.get(KIND, name, cluster.namespace).get("status") or {}
    return found


def wait_state(cluster: ClusterUnderTest, name: str, wanted: str, seconds: float) -> float:
    def other() -> list[str]:
        found = state(cluster.kube, cluster, name)
        told = {key: found.get(key) for key in ("state", "conditions", "progress")}
        return [] if found.get("state") == wanted else [f"DelayRebalance {name}: {told}"]

    return wait_until(f"DelayRebalance {name} is {wanted}", other, seconds)


def led(cluster: ClusterUnderTest, topic: str) -> Counter[str]:
    """How many of the topic's shards each node leads."""
    return Counter(shard.master or "" for shard in cluster.shards(topic))


def gather(cluster: ClusterUnderTest, topic: str, node: str) -> list[Object]:
    """The moves by which `node` leads every shard of the topic."""
    found = []
    for shard in cluster.shards(topic):
        first = shard.replicas[0]
        if first != node:
            found.append({"shard": f"{shard.topic}-{shard.queue}", "from": first, "to": node})
    return found


@pytest.mark.machines
def test_a_plan_by_hand_and_then_the_jobs_are_carried_out_under_load(
    cluster: ClusterUnderTest,
    operator: Release,
    topic: str,
    load: Load,
    job_image: str,
    tidy: None,
    kept: Kept,
) -> None:
    kube = cluster.kube
    time.sleep(CALM_SECONDS)

    # All of the topic is gathered on one node: by hand, approved by the plan's hash.
    moves = gather(cluster, topic, "n0")
    names = {"name": BY_HAND, "namespace": cluster.namespace}
    spec = {"cluster": cluster.name, "moves": moves}
    kube.apply({"apiVersion": API_VERSION, "kind": "DelayRebalance", "metadata": names, "spec": spec})
    wait_state(cluster, BY_HAND, "ProposalReady", 60)
    plan = state(kube, cluster, BY_HAND)["plan"]["hash"]
    kube("annotate", KIND, BY_HAND, f"delaycluster.io/approve={plan}", "--namespace", cluster.namespace)
    gathered = wait_state(cluster, BY_HAND, "Ready", MOVES_SECONDS)
    assert led(cluster, topic) == Counter(n0=4)

    # Messages that will fall due there make the node hot; the job sees that before they do.
    cluster.delayctl("produce", topic, "--count", str(WAITING), "--spread", "30m..60m")
    began = time.monotonic()
    cluster.edit(
        rebalance={
            "schedule": "* * * * *",
            "threshold": 1.2,
            "horizon": "2h",
            "approval": "Automatic",
            "spark": {"image": job_image, "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}}},
        }
    )
    wait_until(
        "the job has written a plan",
        lambda: [] if state(kube, cluster, BY_JOB).get("plan") else [str(kube.list("pods", cluster.namespace, JOBS))],
        JOB_SECONDS,
    )
    proposed = time.monotonic() - began
    wait_state(cluster, BY_JOB, "Ready", MOVES_SECONDS)
    carried_out = time.monotonic() - began - proposed
    done = state(kube, cluster, BY_JOB)
    assert done["progress"]["movesDone"] > 0, done["progress"]
    assert max(led(cluster, topic).values()) <= 2, f"four shards of equal load over three nodes: {led(cluster, topic)}"
    kept(
        gathered_s=gathered,
        proposed_s=proposed,
        carried_out_s=carried_out,
        moves=done["progress"]["movesTotal"],
        peak_before=done["plan"]["before"]["peakMessages"],
        peak_after=done["plan"]["after"]["peakMessages"],
        lower_bound=done["plan"]["before"].get("lowerBoundMessages"),
    )
