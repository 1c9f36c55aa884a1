"""W7: a shard with many pending messages moves to another node: `python -m benchmarks.moving --messages 1000000`.

Three nodes, two copies of one shard. While a producer sends a message each few milliseconds, the copies move to the two
other nodes' side: a new one is fetched, takes over, the old master's copy goes. Prints how long the move took and the
longest time that the producer waited for an answer meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
from delayapi.units import MINUTE_MS
from delayclient import Producer
from delaylocal import LocalCluster
from delayregistry.model import ShardObject, TopicSpec

BATCH = 50_000
PACE_S = 0.005
DEADLINE_S = 300.0


def moved(shard: ShardObject, to: str, former: str) -> bool:
    spec, status = shard.spec, shard.status
    at_work = status is not None and status.serving_epoch == spec.epoch and len(status.in_sync) == 2
    return at_work and spec.target is None and spec.master == to and former not in spec.replicas


async def fill(endpoint: str, messages: int, body: int) -> None:
    async with Producer(endpoint) as producer:
        for low in range(0, messages, BATCH):
            count = min(BATCH, messages - low)
            delays = np.linspace(30 * MINUTE_MS, 90 * MINUTE_MS, count).astype(np.int64)
            await producer.send_batch("t", np.zeros((count, body), np.uint8), delay_ms=delays)


async def probe(endpoint: str, stop: asyncio.Event) -> list[float]:
    """Seconds that each of a stream of single messages waited for its answer."""
    waits: list[float] = []
    async with Producer(endpoint) as producer:

        async def one() -> None:
            began = time.monotonic()
            await producer.send("t", b"x", delay="1h")
            waits.append(time.monotonic() - began)

        sent = []
        while not stop.is_set():
            sent.append(asyncio.ensure_future(one()))
            await asyncio.sleep(PACE_S)
        await asyncio.gather(*sent)
    return waits


async def measure(cluster: LocalCluster, messages: int, body: int) -> dict[str, object]:
    endpoint = cluster.endpoints[0]
    await fill(endpoint, messages, body)
    registry = cluster.registry
    (shard,) = registry.list_shards()
    former = shard.spec.master or ""
    to = next(node for node in cluster.desired.node_ids if node not in shard.spec.replicas)
    kept = [node for node in shard.spec.replicas if node != former]
    stop = asyncio.Event()
    probing = asyncio.create_task(probe(endpoint, stop))
    await asyncio.sleep(1.0)
    current = registry.get_shard(shard.name)
    assert current is not None
    began = time.monotonic()
    registry.write_spec(shard.name, replace(current.spec, target=(to, *kept)), current.version)
    while not moved(current, to, former):
        if time.monotonic() - began > DEADLINE_S:
            raise TimeoutError(f"not moved: {current}")
        await asyncio.sleep(0.02)
        found = await asyncio.to_thread(registry.get_shard, shard.name)
        current = found or current
    seconds = time.monotonic() - began
    await asyncio.sleep(1.0)
    stop.set()
    waits = np.array(await probing)
    return {
        "workload": "w7", "messages": messages, "body_bytes": body, "from": former, "to": to,
        "seconds": round(seconds, 2), "longest_wait_seconds": round(float(waits.max()), 3),
        "median_wait_ms": round(float(np.median(waits)) * 1000, 1), "probes": len(waits),
    }  # fmt: skip


@click.command()
@click.option("--messages", default=1_000_000, show_default=True, help="Pending in the shard.")
@click.option("--body", default=256, show_default=True, help="Bytes of a body.")
@click.option("--rounds", default=1, show_default=True)
def main(messages: int, body: int, rounds: int) -> None:
    """Move a shard under load."""
    for _ in range(rounds):
        with (
            tempfile.TemporaryDirectory(prefix="moving-") as root,
            LocalCluster(Path(root), nodes=3, replicas=2, topics=[TopicSpec("t", 1)]) as cluster,
        ):
            cluster.wait_ready(60.0)
            click.echo(json.dumps(asyncio.run(measure(cluster, messages, body))))


if __name__ == "__main__":
    main()
