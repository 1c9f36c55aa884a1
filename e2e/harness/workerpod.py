"""The programs of pods around a herd that a worker Deployment meets. Their one argument is JSON.

control  sends `messages`, all due at `due_ms`; tells every `poll_s` how many workers are needed, as the node's
         external scaler says, or with `lag` by what waits alone: {"wanted": REPLICAS, "active": BOOL}, null for an
         error. Once all are done: {"late_ms": {...}, "done": ..., "again": ..., "early": ...}.
work     a worker: is done with `rate` messages a second, and says so in the topic TOPIC-done.
"""

from __future__ import annotations

import asyncio
import json
import math
import signal
import sys
import time
from typing import Any

import grpc
import numpy as np
from delayapi.proto.externalscaler import externalscaler_pb2 as keda
from delayclient import Admin, Consumer, Producer

GROUP = "workers"
CHUNK = 2_000
SERVICE = "/externalscaler.ExternalScaler/"


def now_ms() -> float:
    return time.time() * 1_000


def tell(**found: Any) -> None:
    print(json.dumps(found), flush=True)


async def control(endpoint: str, topic: str, messages: int, due_ms: int, poll_s: float, metadata: dict[str, str],
                  *, lag: bool) -> None:  # fmt: skip
    async with Producer(endpoint) as producer:
        for start in range(0, messages, CHUNK):
            bodies = [str(number).encode() for number in range(start, min(start + CHUNK, messages))]
            await producer.send_batch(topic, bodies, due_ms=due_ms)
    tell(sent=True)
    asking = asyncio.create_task(ask_for_ever(endpoint, topic, poll_s, metadata, lag=lag))
    done: dict[int, float] = {}
    again = 0
    async with Consumer(endpoint, f"{topic}-done", "control") as consumer:
        while len(done) < messages:
            batch = await consumer.receive_batch(timeout_s=1.0)
            if batch is None:
                continue
            for body in batch.bodies():
                for number, at_ms in json.loads(body):
                    again += number in done
                    done.setdefault(number, at_ms)
            await batch.ack()
    late = np.array(list(done.values())) - due_ms
    p50, p99, most = (int(np.percentile(late, it)) for it in (50, 99, 100))
    tell(late_ms={"p50": p50, "p99": p99, "max": most}, done=len(done), again=again, early=int((late < 0).sum()))
    await asking  # until it is taken away: workers go once nothing waits


async def ask_for_ever(endpoint: str, topic: str, poll_s: float, metadata: dict[str, str], *, lag: bool) -> None:
    rate, late_s = float(metadata["ratePerReplica"]), float(metadata["maxLatenessSeconds"])
    async with Admin(endpoint) as admin, grpc.aio.insecure_channel(endpoint) as channel:
        while True:
            try:
                wanted, active = await (
                    by_lag(admin, topic, rate * late_s) if lag else by_scaler(channel, {**metadata, "topic": topic})
                )
                tell(wanted=wanted, active=active)
            except Exception as error:
                tell(wanted=None, error=str(error)[:300])
            await asyncio.sleep(poll_s)


async def by_scaler(channel: Any, metadata: dict[str, str]) -> tuple[float, bool]:
    """As KEDA asks: the metric, then whether there is anything to do."""
    ref = keda.ScaledObjectRef(name="worker", namespace="herd", scalerMetadata={**metadata, "group": GROUP})
    request = keda.GetMetricsRequest(scaledObjectRef=ref, metricName="replicas")
    metrics = await channel.unary_unary(SERVICE + "GetMetrics")(request.SerializeToString(), timeout=10)
    active = await channel.unary_unary(SERVICE + "IsActive")(ref.SerializeToString(), timeout=10)
    (value,) = keda.GetMetricsResponse.FromString(metrics).metricValues
    return value.metricValueFloat, keda.IsActiveResponse.FromString(active).result


async def by_lag(admin: Admin, topic: str, each: float) -> tuple[float, bool]:
    """As a scaler does that knows what waits: enough to be done with that within the lateness."""
    (found,) = await admin.forecast(topic, GROUP)
    waiting = found.groups[GROUP].lag + found.groups[GROUP].unseen
    return math.ceil(waiting / each), waiting > 0


async def work(endpoint: str, topic: str, rate: float) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with Consumer(endpoint, topic, GROUP, prefetch=max(1, int(rate))) as consumer, Producer(endpoint) as producer:
        while not stopped.is_set():
            batch = await consumer.receive_batch(timeout_s=0.5)
            if batch is None:
                continue
            ends_ms = now_ms() + 1_000 * np.arange(1, len(batch) + 1) / rate
            await asyncio.sleep(len(batch) / rate)
            done = [[int(body), round(at)] for body, at in zip(batch.bodies(), ends_ms.tolist(), strict=True)]
            await producer.send(f"{topic}-done", json.dumps(done).encode())
            await batch.ack()


if __name__ == "__main__":
    settings = json.loads(sys.argv[2])
    asyncio.run(work(**settings) if sys.argv[1] == "work" else control(**settings))
