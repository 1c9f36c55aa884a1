"""The rebalance job with executors as pods of their own: asked for once, without a schedule."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from e2e.harness.delaycluster import ClusterUnderTest
from e2e.harness.helm import Release
from e2e.harness.kubectl import Object, wait_until
from e2e.harness.load import CALM_SECONDS, Load, Result
from e2e.scenarios.test_rebalance import (
    API_VERSION,
    JOB_SECONDS,
    JOBS,
    MOVES_SECONDS,
    WAITING,
    gather,
    led,
    state,
    wait_state,
)

BY_HAND, BY_JOB = "e2e-together-again", "e2e-executors"
EXECUTORS = f"{JOBS},spark-role=executor"
MASTER = "k8s://https://kubernetes.default.svc"
SMALL = {
    "spark.executor.instances": "1",
    "spark.executor.memory": "512m",
    "spark.executor.memoryOverhead": "512m",
    "spark.kubernetes.executor.request.cores": "100m",
}
DRIVER = {"requests": {"cpu": "100m", "memory": "512Mi"}}

Kept = Callable[..., Result]


@pytest.fixture
def granting(operator: Release) -> Iterator[None]:
    """The operator may let jobs make executors; by default it may not."""
    operator.install("rbac.sparkExecutors=true")
    yield
    operator.install()


def ask(cluster: ClusterUnderTest, name: str, **spec: object) -> None:
    names = {"name": name, "namespace": cluster.namespace}
    body = {"cluster": cluster.name, **spec}
    cluster.kube.apply({"apiVersion": API_VERSION, "kind": "DelayRebalance", "metadata": names, "spec": body})


@pytest.mark.machines
def test_executors_are_pods_as_restricted_as_their_driver_and_their_plan_is_carried_out(
    cluster: ClusterUnderTest,
    granting: None,
    topic: str,
    load: Load,
    job_image: str,
    tidy: None,
    kept: Kept,
) -> None:
    kube = cluster.kube
    time.sleep(CALM_SECONDS)
    ask(cluster, BY_HAND, moves=gather(cluster, topic, "n0"), approval="Automatic")
    wait_state(cluster, BY_HAND, "Ready", MOVES_SECONDS)
    assert led(cluster, topic) == Counter(n0=4)
    cluster.delayctl("produce", topic, "--count", str(WAITING), "--spread", "30m..60m")

    spark = {"image": job_image, "master": MASTER, "conf": SMALL, "resources": DRIVER}
    cluster.edit(rebalance={"threshold": 1.2, "horizon": "2h", "approval": "Automatic", "spark": spark})
    began = time.monotonic()
    ask(cluster, BY_JOB)  # without spec of its own: the cluster's approval holds
    seen: dict[str, Object] = {}

    def without_a_plan() -> list[str]:
        pods = kube.list("pods", cluster.namespace, JOBS)
        seen.update({it["metadata"]["name"]: it for it in kube.list("pods", cluster.namespace, EXECUTORS)})
        return [] if state(kube, cluster, BY_JOB).get("plan") else [str(pods)]

    wait_until("the job has written a plan", without_a_plan, JOB_SECONDS)
    proposed = time.monotonic() - began
    assert seen, "the work was done by executors"
    for pod in seen.values():
        assert pod["spec"]["securityContext"]["runAsNonRoot"]
        (container,) = pod["spec"]["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}

    wait_state(cluster, BY_JOB, "Ready", MOVES_SECONDS)
    done = state(kube, cluster, BY_JOB)
    assert done["progress"]["movesDone"] == done["progress"]["movesTotal"] > 0, done["progress"]
    assert led(cluster, topic)["n0"] < 4, "other topics' messages wait, too: where each shard goes depends on them"
    before, after = done["plan"]["before"], done["plan"]["after"]
    assert after["peakMessages"] <= 1.15 * before["lowerBoundMessages"] < before["peakMessages"]
    wait_until(
        "the executors have gone with their driver",
        lambda: [
            it["metadata"]["name"]
            for it in kube.list("pods", cluster.namespace, EXECUTORS)
            if (it.get("status") or {}).get("phase") in ("Pending", "Running")
        ],
        60,
    )
    kept(
        proposed_s=proposed,
        executors=len(seen),
        moves=done["progress"]["movesTotal"],
        peak_before=before["peakMessages"],
        peak_after=after["peakMessages"],
        lower_bound=before["lowerBoundMessages"],
    )
