"""Workers that an autoscaler starts by what a node tells KEDA, beside others that it starts by what waits.

DELAY_E2E_HERD=200000 DELAY_E2E_RATE=2000 DELAY_E2E_WITHIN=600 is the large sample.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from e2e.harness.autoscaler import Autoscaler
from e2e.harness.delaycluster import ClusterUnderTest
from e2e.harness.kubectl import Kubectl, wait_until
from e2e.harness.workers import Workers

MESSAGES = int(os.environ.get("DELAY_E2E_HERD", "20000"))
RATE = float(os.environ.get("DELAY_E2E_RATE", "200"))  # of a worker, messages a second
WITHIN_S = float(os.environ.get("DELAY_E2E_WITHIN", "120"))  # until the herd, which is stored meanwhile
LATE_S, LEAD_S, POLL_S = 25.0, 60.0, 3.0
MOST = 6
DONE_SECONDS = WITHIN_S + 600.0

Figure = Callable[..., None]


@pytest.mark.parametrize("by", ["forecast", "lag"])
def test_workers_meet_a_herd(
    cluster: ClusterUnderTest, kube: Kubectl, topic: str, image: str, figure: Figure, by: str
) -> None:
    cluster.add_topic(f"{topic}-done", 2)
    cluster.wait_whole()
    due_ms = int((time.time() + WITHIN_S) * 1_000)
    metadata = {
        "ratePerReplica": f"{RATE:g}", "leadSeconds": f"{LEAD_S:g}", "horizonSeconds": "90",
        "maxLatenessSeconds": f"{LATE_S:g}",
    }  # fmt: skip
    to = {"endpoint": cluster.endpoint, "topic": topic}
    control = {**to, "messages": MESSAGES, "due_ms": due_ms, "poll_s": POLL_S, "metadata": metadata, "lag": by == "lag"}
    workers = Workers.start(kube, cluster.namespace, f"workers-{by}", image, control, {**to, "rate": RATE})
    assert time.time() * 1_000 < due_ms - 1_000 * LEAD_S, "storing the herd has taken too long"
    at_due: dict[str, int] = {}

    def metric() -> float | None:
        if not at_due and time.time() * 1_000 >= due_ms:
            at_due["ready"] = workers.ready
        return workers.wanted()

    try:
        with Autoscaler(workers, metric, least=0, most=MOST, window_s=30.0) as autoscaler:
            found: Any = workers.finish(DONE_SECONDS)
            wait_until("no worker is left", lambda: [] if workers.replicas == 0 else [str(autoscaler.steps)], 300.0)
    finally:
        workers.delete()
    figure(
        by=by, messages=MESSAGES, rate=RATE, workers_ready_at_due=at_due.get("ready"), steps=autoscaler.steps, **found
    )
    assert (found["done"], found["early"]) == (MESSAGES, 0)
    if by == "forecast":
        assert at_due["ready"] > 0, "workers were there before the herd"
    else:
        assert at_due["ready"] == 0, "what waits tells of no herd before it is there"
