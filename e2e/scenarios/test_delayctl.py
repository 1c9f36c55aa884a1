"""`delayctl --kube` from outside of the cluster, by port-forward."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from e2e.harness.delaycluster import ClusterUnderTest
from e2e.harness.kubectl import run

DELAYCTL = str(Path(sys.executable).with_name("delayctl"))
ROUNDS, EACH = 6, 300  # calls of `produce`, and messages of each
CONSUME_SECONDS = 400


def test_delayctl_goes_on_while_a_pod_is_deleted(
    cluster: ClusterUnderTest, topic: str, tmp_path: Path, figure: Callable[..., None]
) -> None:
    """The listener to a pod leads to its successor: everything that was acknowledged comes, and no call fails."""
    target = ("--kube", f"{cluster.kube.context}/{cluster.namespace}/{cluster.name}", "--json")
    consume = ("consume", topic, "--group", "me", "--count", str(ROUNDS * EACH), "--timeout", str(CONSUME_SECONDS))
    received, told = tmp_path / "received.jsonl", tmp_path / "told"
    with received.open("w") as output, told.open("w") as errors:
        consumer = subprocess.Popen([DELAYCTL, *consume, *target], stdout=output, stderr=errors)
    try:
        victim = cluster.victim(topic)
        pod = cluster.pods()[victim]["metadata"]
        for number in range(ROUNDS):
            if number == 2:
                cluster.kube("delete", "pod", pod["name"], "--namespace", cluster.namespace, "--wait=false")
            handles = ("--handles", str(tmp_path / f"handles-{number}"))
            spread = ("--count", str(EACH), "--spread", "1s..8s")
            run([DELAYCTL, "produce", topic, *spread, *handles, *target], seconds=90)
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
