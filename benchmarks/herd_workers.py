"""A herd that workers meet: `python -m benchmarks.herd_workers [--messages 200000] [--within 600] [--lag]`.

Workers of one group, from none, as many as KEDA and an HPA would have by the node's external scaler, or with --lag by
what waits alone. A worker is a consumer in this process that begins so long after it was asked for, and is done with so
many messages a second. The HPA is a stand-in with its formula, tolerance, stabilization and rounds. Says when how many
worked, and how late each message was done.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

import click
import grpc
import numpy as np
from delayapi.proto.externalscaler import externalscaler_pb2 as keda
from delayclient.admin.admin import Admin
from delayclient.consumer.consumer import Consumer
from delayclient.consumer.received import ReceivedBatch
from delayclient.producer.producer import Producer
from delaylocal import LocalCluster
from delayregistry.model import TopicSpec

from benchmarks.workloads.machine import describe

TOPIC, GROUP, QUEUES = "herd", "workers", 8
TOLERANCE = 0.1  # the HPA's: nothing is done about less
PATIENCE_S = 600.0


@dataclass(frozen=True)
class Plan:
    """messages: due at one instant, in within_s. A worker: rate a second, after start_s. The scaler's metadata: lead_s,
    horizon_s, late_s. The HPA asks every round_s, keeps what was needed for stable_s, and allows `most`."""

    messages: int
    within_s: float
    rate: float
    start_s: float
    lead_s: float
    horizon_s: float
    late_s: float
    most: int
    round_s: float = 15.0
    stable_s: float = 60.0
    lag: bool = False  # by what waits alone

    def metadata(self) -> dict[str, str]:
        return {
            "topic": TOPIC, "group": GROUP, "ratePerReplica": f"{self.rate:g}", "leadSeconds": f"{self.lead_s:g}",
            "horizonSeconds": f"{self.horizon_s:g}", "maxLatenessSeconds": f"{self.late_s:g}",
        }  # fmt: skip


@dataclass
class Autoscaler:
    """What KEDA (0 to 1, and back) and the HPA (1 to `most`) make of each answer; None: the scaler has given an error.
    Scaling out is as fast as the ScaledObject of docs/keda.md allows: to all that is asked for in one round."""

    most: int
    stable_s: float
    replicas: int = 0
    _recent: deque[tuple[float, int]] = field(default_factory=deque)

    def decide(self, now_s: float, answer: tuple[float, bool] | None) -> int:
        if answer is None:
            return self.replicas
        value, active = answer
        wanted = ceil(value) if active else 0
        if active:
            wanted = max(1, min(self.most, wanted))
            if self.replicas and abs(value / self.replicas - 1) <= TOLERANCE:
                wanted = self.replicas
        self._recent.append((now_s, wanted))
        while self._recent[0][0] < now_s - self.stable_s:
            self._recent.popleft()
        self.replicas = max(wanted, min(self.replicas, max(one for _, one in self._recent)))
        return self.replicas


@dataclass
class Herd:
    """What was seen. done: (due ms, done ms) of each message; working: (s after the due, workers)."""

    due_ms: int = 0
    done: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    working: list[tuple[float, int]] = field(default_factory=list)
    errors: int = 0
    settling: set[asyncio.Task[None]] = field(default_factory=set)

    async def settle(self, batch: ReceivedBatch, due: np.ndarray, done: np.ndarray) -> None:
        await batch.ack()
        self.done.append((due, done))

    def count(self) -> int:
        return sum(len(due) for due, _ in self.done)

    def lateness_s(self) -> np.ndarray:
        return np.concatenate([done - due for due, done in self.done]) / 1000

    def working_at(self, second: float) -> int:
        return max((count for at, count in self.working if at <= second), default=0)


def now_ms() -> float:
    return time.time() * 1000


async def work(endpoint: str, plan: Plan, herd: Herd, began: Callable[[], None]) -> None:
    """One worker: until it is cancelled."""
    await asyncio.sleep(plan.start_s)
    async with Consumer(endpoint, TOPIC, GROUP, prefetch=max(1, int(plan.rate))) as consumer:
        began()
        while True:
            batch = await consumer.receive_batch(0.5)
            if batch is None:
                continue
            due = np.array(batch.due_ms)
            done = now_ms() + 1000 * np.arange(1, len(due) + 1) / plan.rate
            await asyncio.sleep(len(due) / plan.rate)
            settled = asyncio.create_task(herd.settle(batch, due, done))
            herd.settling.add(settled)  # also when the worker is ended meanwhile
            await asyncio.shield(settled)


async def ask_scaler(channel: Any, plan: Plan) -> tuple[float, bool] | None:
    """As KEDA does: the metric, then whether to be active. None: an error."""
    ref = keda.ScaledObjectRef(name="worker", namespace="herd", scalerMetadata=plan.metadata())
    request = keda.GetMetricsRequest(scaledObjectRef=ref, metricName="replicas")
    service = "/externalscaler.ExternalScaler/"
    try:
        metrics = await channel.unary_unary(service + "GetMetrics")(request.SerializeToString(), timeout=10)
        active = await channel.unary_unary(service + "IsActive")(ref.SerializeToString(), timeout=10)
    except grpc.aio.AioRpcError:
        return None
    (value,) = keda.GetMetricsResponse.FromString(metrics).metricValues
    return value.metricValueFloat, keda.IsActiveResponse.FromString(active).result


async def ask_lag(admin: Admin, plan: Plan) -> tuple[float, bool]:
    """As a scaler does that knows what waits: enough to be done with that within the lateness."""
    (found,) = await admin.forecast(TOPIC, GROUP)
    group = found.groups[GROUP]
    waiting = group.lag + group.unseen
    return ceil(waiting / (plan.rate * plan.late_s)), waiting > 0


async def meet(endpoint: str, plan: Plan, say: Callable[[str], None] = lambda _: None) -> Herd:
    """Until every message is done and no worker is left."""
    herd, scaler, workers = Herd(), Autoscaler(plan.most, plan.stable_s), []
    running = 0

    def began() -> None:
        nonlocal running
        running += 1
        herd.working.append((since(), running))

    def since() -> float:
        return (now_ms() - herd.due_ms) / 1000

    async with Producer(endpoint) as producer, Admin(endpoint) as admin, grpc.aio.insecure_channel(endpoint) as channel:
        herd.due_ms = int(now_ms() + 1000 * plan.within_s)
        for first in range(0, plan.messages, 10_000):
            count = min(10_000, plan.messages - first)
            await producer.send_batch(TOPIC, [b"x"] * count, due_ms=[herd.due_ms] * count)
        ends = time.monotonic() + plan.within_s + PATIENCE_S
        while herd.count() < plan.messages or workers:
            if time.monotonic() > ends:
                raise TimeoutError(f"{herd.count():,} of {plan.messages:,} done, {len(workers)} workers left")
            answer = await (ask_lag(admin, plan) if plan.lag else ask_scaler(channel, plan))
            herd.errors += answer is None
            wanted = scaler.decide(time.monotonic(), answer)
            if wanted != len(workers):
                say(f"{since():+7.1f} s  {wanted} workers, asked for {answer}; {herd.count():,} done")
            while len(workers) < wanted:
                workers.append(asyncio.create_task(work(endpoint, plan, herd, began)))
            left = workers[wanted:]
            del workers[wanted:]
            for one in left:
                one.cancel()
            for end in await asyncio.gather(*left, return_exceptions=True):
                if not isinstance(end, asyncio.CancelledError):
                    raise end if isinstance(end, BaseException) else AssertionError("a worker has ended")
            running -= len(left)
            await asyncio.sleep(plan.round_s)
    return herd


@click.command(help=__doc__)
@click.option("--messages", type=click.IntRange(1), default=20_000, show_default=True)
@click.option("--within", type=click.FloatRange(1), default=60.0, show_default=True, help="s until they are due.")
@click.option("--rate", type=click.FloatRange(1), default=200.0, show_default=True, help="Of a worker, messages/s.")
@click.option("--start", type=click.FloatRange(0), default=20.0, show_default=True, help="s until a worker works.")
@click.option("--late", type=click.FloatRange(1), default=5.0, show_default=True, help="maxLatenessSeconds.")
@click.option("--most", type=click.IntRange(1), default=60, show_default=True, help="maxReplicaCount.")
@click.option("--lag", is_flag=True, help="Scale by what waits alone.")
def main(messages: int, within: float, rate: float, start: float, late: float, most: int, lag: bool) -> None:
    lead_s = start + 15.0 + late
    plan = Plan(messages, within, rate, start, lead_s, max(within, lead_s), late, most, lag=lag)
    click.echo(describe(Path(tempfile.gettempdir())))
    with (
        tempfile.TemporaryDirectory(prefix="delay-herd-") as data,
        LocalCluster(Path(data), nodes=1, topics=[TopicSpec(TOPIC, QUEUES)]) as cluster,
    ):
        cluster.wait_ready()
        herd = asyncio.run(meet(cluster.endpoints[0], plan, click.echo))
    late_s = herd.lateness_s()
    figures = {
        "by": "lag" if lag else "forecast", "messages": len(late_s), "early": int((late_s < 0).sum()),
        "workers_at_due": herd.working_at(0.0), "p50_s": round(float(np.percentile(late_s, 50)), 2),
        "p99_s": round(float(np.percentile(late_s, 99)), 2), "max_s": round(float(late_s.max()), 2),
        "errors": herd.errors,
    }  # fmt: skip
    click.echo(json.dumps(figures))


if __name__ == "__main__":
    main()
