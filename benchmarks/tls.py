"""W1 to W3 with TLS and tokens beside without: `python -m benchmarks.tls [--copies 1 --copies 2] [--turns 3]`.

Clusters of as many nodes as each shard has copies, by turns in plain text and as `delayctl local --secure` makes them:
clients come by TLS 1.3 with a token, calls, replication and heartbeats between nodes are secured (`--peers required`).
A line for each workload and number of copies: medians with their ranges, and what TLS leaves of it. W2's herd is over
in a sixth of a second, and one differs from the next by a third: each turn has five.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import TypeAlias

import click
from delayapi.credentials import Tls
from delayclient.routing.access import Access
from delaylocal import LocalCluster
from delaylocal.own_keys import SERVER_NAME
from delayregistry.model import TopicSpec

from benchmarks.workloads import w1, w2, w3
from benchmarks.workloads.machine import describe
from benchmarks.workloads.target import TOPIC, Target

BODY_BYTES, BATCH, QUEUES = 256, 65_536, 8
HERDS = 5
Figures: TypeAlias = dict[str, list[float]]


async def enqueue(target: Target) -> Figures:
    settings = w1.W1Settings(2_000_000, BODY_BYTES, BATCH, w1.at_once(BATCH))
    return {"W1, messages/s": [(await w1.run(settings, target, lambda _: None)).messages_per_second]}


async def herd(target: Target) -> Figures:
    settings = w2.W2Settings(200_000, BODY_BYTES, False, 60.0)
    found = [await w2.run(settings, target, lambda _: None) for _ in range(HERDS)]
    return {
        "W2, messages/s": [herd.messages_per_second for herd in found],
        "W2, late p99 ms": [herd.lateness_ms.p99 for herd in found],
    }


async def steady(target: Target) -> Figures:
    found = await w3.run(w3.W3Settings(15_000, BODY_BYTES, 1_000), target, lambda _: None)
    return {"W3, late p50 ms": [found.lateness_ms.p50], "W3, late p99 ms": [found.lateness_ms.p99]}


WORKLOADS: tuple[Callable[[Target], Awaitable[Figures]], ...] = (enqueue, herd, steady)


async def measure(copies: int, directory: Path | None, *, secure: bool) -> Figures:
    found: Figures = {}
    for workload in WORKLOADS:
        with tempfile.TemporaryDirectory(prefix="delay-tls-", dir=directory) as data:
            topics = [TopicSpec(TOPIC, QUEUES)]
            with LocalCluster(Path(data), nodes=copies, replicas=copies, topics=topics, secure=secure) as cluster:
                cluster.wait_ready(60.0)
                access = Access()
                if cluster.keys is not None:
                    tls = Tls(cluster.keys.ca, server_name=SERVER_NAME)
                    access = Access(tls=tls, token_file=str(cluster.keys.token_file))
                target = Target(",".join(cluster.endpoints), TOPIC, QUEUES, access=access)
                found |= await workload(target)
    return found


def spread(values: list[float]) -> str:
    low, middle, high = (f"{value:,.0f}" if value >= 1_000 else f"{value:.1f}" for value in
                         (min(values), median(values), max(values)))  # fmt: skip
    return f"{middle} ({low} .. {high})"


@click.command(help=__doc__)
@click.option("--copies", "numbers", multiple=True, type=click.IntRange(1, 7), default=(1, 2), show_default=True)
@click.option("--turns", type=click.IntRange(1), default=3, show_default=True)
@click.option("--directory", type=click.Path(exists=True, file_okay=False, path_type=Path), help="On the disk to use.")
def main(numbers: tuple[int, ...], turns: int, directory: Path | None) -> None:
    asyncio.run(run(numbers, turns, directory))  # one loop for all: grpc.aio keeps the first one's for ever


async def run(numbers: tuple[int, ...], turns: int, directory: Path | None) -> None:
    click.echo(describe(directory or Path(tempfile.gettempdir())))
    click.echo("| Copies | | plain text | TLS | TLS / plain text |\n| --- | --- | --- | --- | ---: |")
    for copies in numbers:
        plain, secured = [], []
        for _ in range(turns):
            plain.append(await measure(copies, directory, secure=False))
            secured.append(await measure(copies, directory, secure=True))
        for name in plain[0]:
            before, after = ([value for turn in taken for value in turn[name]] for taken in (plain, secured))
            ratio = median(after) / median(before)
            click.echo(f"| {copies} | {name} | {spread(before)} | {spread(after)} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
