"""`delayctl --kube` from outside of the cluster, by port-forward."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from e2e.harness.delaycluster import DELAYCTL, ClusterUnderTest
from e2e.harness.kubectl import run
from e2e.harness.load import CALM_SECONDS, Load, Result

ROUNDS, EACH = 6, 300  # calls of `produce`, and messages of each
CONSUME_SECONDS = 400


def test_delayctl_goes_on_while_a_pod_is_deleted(
    cluster: ClusterUnderTest, topic: str, tmp_path: Path, figure: Callable[..., None]
) -> None:
    """The listener to a pod leads to its successor: everything that was acknowledged comes, and no call fails."""
    consume = ("consume", topic, "--group", "me", "--count", str(ROUNDS * EACH), "--timeout", str(CONSUME_SECONDS))
    received, told = tmp_path / "received.jsonl", tmp_path / "told"
    with received.open("w") as output, told.open("w") as errors:
        consumer = subprocess.Popen([DELAYCTL, *consume, *cluster.target, "--json"], stdout=output, stderr=errors)
    try:
        victim = cluster.victim(topic)
        pod = cluster.pods()[victim]["metadata"]
        for number in range(ROUNDS):
            if number == 2:
                cluster.kube("delete", "pod", pod["name"], "--namespace", cluster.namespace, "--wait=false")
            handles = ("--handles", str(tmp_path / f"handles-{number}"))
            spread = ("--count", str(EACH), "--spread", "1s..8s")
            cluster.delayctl("produce", topic, *spread, *handles, "--json", seconds=90)
        code = consumer.wait(CONSUME_SECONDS + 30)
    finally:
        consumer.kill()
    assert code == 0, f"consume ended with {code}: {told.read_text()[-2_000:]}"
    acknowledged = {line for file in tmp_path.glob("handles-*") for line in file.read_text().split()}
    delivered = [json.loads(line)["handle"] for line in received.read_text().splitlines()]
    assert len(acknowledged) == ROUNDS * EACH
    assert set(delivered) == acknowledged
    assert cluster.pods()[victim]["metadata"]["uid"] != pod["uid"], "the pod was replaced meanwhile"
    figure(acknowledged=len(acknowledged), delivered=len(delivered))
    cluster.wait_whole()


def test_a_drained_node_is_emptied_and_a_shard_switched_over_under_load(
    cluster: ClusterUnderTest, topic: str, load: Load, kept: Callable[..., Result]
) -> None:
    """People drain a node before they take its machine away, and choose a master by hand."""
    time.sleep(CALM_SECONDS)
    node = cluster.victim(topic)
    began = time.monotonic()
    assert f"{node} is empty" in cluster.delayctl("nodes", "drain", node, "--wait")
    emptied = time.monotonic() - began
    try:
        assert node not in holders(cluster), "it was said to be empty"
        assert {pod["status"]["phase"] for pod in cluster.pods().values()} == {"Running"}, "its pod stays"
        cluster.wait_whole()
        shard = cluster.shards(topic)[0]
        (other,) = set(shard.replicas) - {shard.master}
        told = cluster.delayctl("shards", "switchover", f"{shard.topic}-{shard.queue}")
        assert f"{other} took over from {shard.master} in epoch {shard.epoch + 1}" in told
        after = cluster.shards(topic)[0]
        assert (after.master, after.serving_epoch) == (other, shard.epoch + 1)
        time.sleep(CALM_SECONDS)
        assert node not in holders(cluster), "something was placed there again"
    finally:
        cluster.delayctl("nodes", "drain", node, "--undo")
    cluster.wait_whole()
    kept(emptied_s=emptied)


def test_kubectl_runs_the_plugin(cluster: ClusterUnderTest, topic: str) -> None:
    """`kubectl delay`, found by kubectl on the PATH, does against a cluster what `delayctl --kube` does."""
    path = os.pathsep.join([str(Path(DELAYCTL).parent), os.environ["PATH"]])

    def delay(*words: str) -> str:
        place = ("--context", cluster.kube.context, "-n", cluster.namespace, "-c", cluster.name)
        return run(("env", f"PATH={path}", "kubectl", "delay", *place, *words), seconds=90)

    delay("produce", topic, "--count", "3", "--delay", "1h", "--key", "by-kubectl")
    pending = [json.loads(line) for line in delay("--json", "pending", topic, "--bodies").splitlines()]
    assert [one["key"] for one in pending] == ["by-kubectl"] * 3
    (seen,) = (json.loads(line) for line in delay("--json", "top", topic, "--count", "1").splitlines())
    assert (seen["topic"], seen["pending"]) == (topic, 3)


def holders(cluster: ClusterUnderTest) -> set[str]:
    """The nodes that have copies."""
    return {node for shard in cluster.shards() for node in shard.replicas}
