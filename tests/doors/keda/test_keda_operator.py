"""KEDA's operator and Kubernetes' HorizontalPodAutoscaler scale a Deployment by what a node answers: from none to as
many as the herd takes, before it is due, and to none once it is done."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from delayclient.sync import Consumer, Producer
from delaylocal import LocalCluster
from delayregistry.model import TopicSpec

from tests.doors.support.keda_control_plane import ControlPlane, Json, control_plane_with_keda, what_lacks

NAME, MOST = "workers", 6
MESSAGES, WITHIN_S, HORIZON_S = 2_000, 110, 60
SECONDS = 300.0
DEPLOYMENT: Json = {
    "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": NAME},
    "spec": {
        "replicas": 0, "selector": {"matchLabels": {"app": NAME}},
        "template": {
            "metadata": {"labels": {"app": NAME}}, "spec": {"containers": [{"name": NAME, "image": "none"}]},
        },
    },
}  # fmt: skip


def scaled_object(endpoint: str) -> Json:
    """As docs/keda.md has it, but for how soon workers are sent home. 2,000 at once take 4 of 100/s in 5 s."""
    metadata = {
        "scalerAddress": endpoint, "topic": "herds", "group": "mail", "ratePerReplica": "100",
        "leadSeconds": "30", "horizonSeconds": str(HORIZON_S), "maxLatenessSeconds": "5",
    }  # fmt: skip
    behavior = {
        "scaleUp": {"policies": [{"type": "Pods", "value": 1000, "periodSeconds": 15}]},
        "scaleDown": {"stabilizationWindowSeconds": 15},
    }
    spec = {
        "scaleTargetRef": {"name": NAME}, "minReplicaCount": 0, "maxReplicaCount": MOST,
        "pollingInterval": 10, "cooldownPeriod": 10, "fallback": {"failureThreshold": 3, "replicas": 1},
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": behavior}},
        "triggers": [{"type": "external-push", "metadata": metadata}],
    }  # fmt: skip
    return {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"name": NAME}, "spec": spec}


@pytest.fixture
def kubernetes(tmp_path: Path) -> Iterator[ControlPlane]:
    if os.environ.get("DELAY_KEDA_TESTS") != "yes":
        pytest.skip("DELAY_KEDA_TESTS=yes: KEDA's operator beside an API server; minutes")
    if lacks := what_lacks():
        pytest.skip(lacks)
    with control_plane_with_keda(tmp_path) as made:
        yield made


def test_keda_scales_workers_before_a_herd_and_sends_them_home_after_it(
    kubernetes: ControlPlane, tmp_path: Path
) -> None:
    steps: list[tuple[float, int]] = []  # seconds after the herd is due, replicas that are asked for
    with LocalCluster(tmp_path / "nodes", nodes=1, topics=[TopicSpec("herds", 2)], port=0) as cluster:
        cluster.wait_ready()
        endpoint = cluster.endpoints[0]
        due_s = time.time() + WITHIN_S
        with Producer(endpoint) as producer:
            producer.send_batch("herds", [b"x"] * MESSAGES, due_ms=int(due_s * 1_000))
        kubernetes.apply(DEPLOYMENT, scaled_object(endpoint))

        def asked_for() -> int:
            found = int(kubernetes.get("deployment", NAME)["spec"].get("replicas", 0))
            if not steps or steps[-1][1] != found:
                steps.append((time.time() - due_s, found))
            return found

        kubernetes.wait("the herd's workers are asked for", lambda: asked_for() == 4, SECONDS)
        worker = threading.Thread(target=work, args=(endpoint,))  # they would have begun by now
        worker.start()
        kubernetes.wait("all are sent home", lambda: asked_for() == 0, SECONDS)
        worker.join(SECONDS)
    assert steps[0][1] == 0, "none while nothing comes"
    began, enough = (next(at for at, it in steps if it >= count) for count in (1, 4))
    assert -HORIZON_S - 5 < began < 0, f"a first one when the herd is in sight: {steps}"
    assert enough < 0, f"all before it is due: {steps}"
    assert max(count for _, count in steps) == 4, steps


def work(endpoint: str) -> None:
    done = 0
    with Consumer(endpoint, "herds", "mail") as consumer:
        while done < MESSAGES:
            batch = consumer.receive_batch(timeout_s=1.0)
            if batch is not None:
                done += len(batch)
                consumer.ack(batch)
