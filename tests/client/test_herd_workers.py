"""Workers are there before the herd: on real nodes, with KEDA's and the HPA's part played."""

from __future__ import annotations

import asyncio
from pathlib import Path

from delaylocal import LocalCluster
from delayregistry.model import TopicSpec

from benchmarks.herd_workers import QUEUES, TOPIC, Autoscaler, Plan, meet


def test_the_stand_in_scales_as_an_hpa_does() -> None:
    scaler = Autoscaler(most=20, stable_s=60)
    assert scaler.decide(0, (0, False)) == 0
    assert scaler.decide(10, (0, True)) == 1, "active: one, whatever the metric"
    assert scaler.decide(20, (10, True)) == 10
    assert scaler.decide(30, (10.9, True)) == 10, "within the tolerance"
    assert scaler.decide(40, (50, True)) == 20, "no more than it may"
    assert scaler.decide(50, None) == 20, "an error changes nothing"
    assert scaler.decide(90, (2, True)) == 20, "what was needed a moment ago is kept"
    assert scaler.decide(101, (2, True)) == 2
    assert scaler.decide(110, (0, False)) == 2
    assert scaler.decide(171, (0, False)) == 0


def test_workers_are_there_before_the_herd_and_gone_after_it(tmp_path: Path) -> None:
    plan = Plan(
        messages=800, within_s=15, rate=25, start_s=2, lead_s=8, horizon_s=60, late_s=4, most=12, round_s=0.5,
        stable_s=4,
    )  # fmt: skip
    with LocalCluster(tmp_path / "herd", nodes=2, topics=[TopicSpec(TOPIC, QUEUES)]) as cluster:
        cluster.wait_ready()
        herd = asyncio.run(meet(cluster.endpoints[0], plan))
    assert herd.count() == 800, "each is done, by one worker"
    assert herd.lateness_s().min() >= 0
    assert herd.working_at(0.0) >= 8, "800 messages at 25/s and 4 s of lateness, before the first of them is due"
