"""W8: lateness and failover against the number of shards: `python -m benchmarks.manyshards --shards 10,100,1000`.

Three nodes, two copies of each shard, `shards` masters on each node. A steady flow over all of them gives the lateness;
then one node is killed (kill -9), and the failover lasts until the last of its shards is served elsewhere. `--alone`:
one node without others, and no failover.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from pathlib import Path

import click
from delaylocal import LocalCluster
from delayregistry.model import TopicSpec

from benchmarks.workloads import w3
from benchmarks.workloads.ledger import Verdict
from benchmarks.workloads.target import Target

DEADLINE_S = 120.0


def failover(cluster: LocalCluster, node: str) -> tuple[int, float]:
    """Kill the node; returns how many shards it led, and the seconds until all are served by others."""
    led = {shard.name for shard in cluster.registry.list_shards() if shard.spec.master == node}
    began = time.monotonic()
    cluster.kill(node)
    waiting = set(led)
    while waiting:
        if time.monotonic() - began > DEADLINE_S:
            raise TimeoutError(f"{len(waiting)} shards have no master after {DEADLINE_S:.0f} s")
        time.sleep(0.02)
        for shard in cluster.registry.list_shards():
            status = shard.status
            served = status is not None and status.serving_epoch == shard.spec.epoch and shard.spec.epoch > 1
            if served and shard.spec.master != node:
                waiting.discard(shard.name)
    return len(led), time.monotonic() - began


async def steady(target: Target, queues: int, rate: int, seconds: int) -> Verdict:
    """A shard's first message makes files: two for each go before what is measured."""
    for messages in (2 * queues, rate * seconds):
        verdict = await w3.run(w3.W3Settings(messages, 256, rate), target, lambda *_: None)
    return verdict


def measure(shards: int, rate: int, seconds: int, nodes: int) -> dict[str, object]:
    queues = nodes * shards
    with tempfile.TemporaryDirectory(prefix="manyshards-") as root:
        topic = TopicSpec("t", queues)
        with LocalCluster(Path(root), nodes=nodes, replicas=min(2, nodes), topics=[topic]) as cluster:
            began = time.monotonic()
            cluster.wait_ready(300.0)
            ready = time.monotonic() - began
            verdict = asyncio.run(steady(Target(cluster.endpoints[0], "t", queues), queues, rate, seconds))
            led, took = failover(cluster, "n0") if nodes > 1 else (0, 0.0)
    return {
        "workload": "w8", "nodes": nodes, "shards_a_node": shards, "rate": rate, "ready_seconds": round(ready, 1),
        "lateness_p50_ms": verdict.lateness_ms.p50, "lateness_p99_ms": verdict.lateness_ms.p99,
        "missing": verdict.missing, "early": verdict.early,
        "failed_over": led, "failover_seconds": round(took, 2),
    }  # fmt: skip


@click.command()
@click.option("--shards", default="10,100,1000", show_default=True, help="Masters on each of three nodes.")
@click.option("--rate", default=1_000, show_default=True, help="Messages/s, over all shards.")
@click.option("--seconds", default=15, show_default=True)
@click.option("--alone", is_flag=True, help="One node, one copy of each shard.")
def main(shards: str, rate: int, seconds: int, alone: bool) -> None:
    """Lateness and failover time against the number of shards."""
    for count in map(int, shards.split(",")):
        click.echo(json.dumps(measure(count, rate, seconds, 1 if alone else 3)))


if __name__ == "__main__":
    main()
