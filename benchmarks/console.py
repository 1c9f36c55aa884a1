"""How long the console's pages take: `python -m benchmarks.console`, with 10,000,000 pending messages in 1,000 shards.

Three nodes and a console on this machine. Messages are spread over 38 days, half of them over the first one; some have
a key. Each topic has groups with lag on all of its queues, and dead letters; one has schedules. A cluster on one
machine has no DelaySinks: their page says so. Each page is asked for some times over
HTTP, by a client that draws nothing, and its median and slowest are printed; one that fails, with its status.
`--pending 200000 --shards 100` is a quick one, `--viewers 10` has so many look at the live wheel of shards at once for
half a minute, each every five seconds, as its browser would.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from aiohttp import ClientSession, CookieJar
from delayapi.proto.delay.v1 import delay_pb2
from delayapi.units import DAY_MS, HOUR_MS, MINUTE_MS
from delayclient.admin.admin import Admin
from delayclient.admin.schedules import Schedule
from delayclient.producer.producer import Producer
from delaylocal import LocalCluster
from delayregistry.model import Durability, TopicSpec

from tests.console.support.console_process import running_console

TOPICS = 10
BATCH = 50_000
KEYED = 1_000
GROUPS = ("billing", "mail")
SCHEDULES = 1_000
DEAD = 5
"""Dead letters of a group, a queue."""
RELEASED = 20_000
"""Messages of a topic that are due at once, for its groups."""
LIVE_S, LOOKS = 5.0, 6
ALL_AT_ONCE = 4
"""Batches at a time."""


async def fill(endpoint: str, pending: int) -> float:
    """Sends the messages; returns how many a second."""
    random, now_ms = np.random.default_rng(1), time.time_ns() // 1_000_000
    started_s = time.monotonic()
    async with Producer(endpoint) as producer:
        slots = asyncio.Semaphore(ALL_AT_ONCE)

        async def batch(topic: str, n: int, keys: Sequence[str] | None = None) -> None:
            async with slots:
                delays = random.integers(10 * MINUTE_MS, DAY_MS, n, dtype=np.int64)
                late = random.random(n) < 0.5
                delays[late] = random.integers(DAY_MS, 38 * DAY_MS, int(late.sum()), dtype=np.int64)
                await producer.send_batch(topic, np.zeros((n, 64), np.uint8), due_ms=now_ms + delays, keys=keys)

        starts = range(0, pending, BATCH)
        await asyncio.gather(
            *(batch(f"topic{at // BATCH % TOPICS}", min(BATCH, pending - at)) for at in starts),
            batch("topic0", KEYED, ["dentist"] * KEYED),
        )
    return pending / (time.monotonic() - started_s)


async def use(endpoint: str) -> None:
    """Gives each topic its groups: some messages of each queue become dead letters, the rest is lag."""
    now = np.full(RELEASED, time.time_ns() // 1_000_000)
    async with Producer(endpoint) as producer:
        for n in range(TOPICS):
            await producer.send_batch(f"topic{n}", np.zeros((RELEASED, 64), np.uint8), due_ms=now)

    async with Admin(endpoint) as admin:
        slots = asyncio.Semaphore(64)

        async def queue(topic: str, number: int, group: str) -> None:
            asked = delay_pb2.ReceiveRequest(topic=topic, queue=number, group=group, max_messages=DEAD, wait_ms=5_000)
            async with slots:
                got = await admin.cluster.call(
                    "Receive", topic, number, asked, delay_pb2.MessageBatch.FromString, attempt_s=60, timeout_s=120
                )
                given_up = delay_pb2.NackRequest(
                    topic=topic, queue=number, group=group, offset=got.offset, dead=True,
                    attempt=got.attempt or np.ones(got.count, "<u4").tobytes(),
                )  # fmt: skip
                await admin.cluster.call("Nack", topic, number, given_up, delay_pb2.NackResponse.FromString)

        await asyncio.gather(
            *(queue(route.topic, it.queue, name) for route in await admin.topics() for it in route.queues
              for name in GROUPS)
        )  # fmt: skip


async def schedule(endpoint: str) -> str:
    """Gives topic0 its schedules. Returns the handle of a message that is pending there."""
    async with Producer(endpoint) as producer, Admin(endpoint) as admin:
        slots = asyncio.Semaphore(64)

        async def put(number: int) -> None:
            cron = f"{number % 60} {number // 60 % 24} * * 1-5"
            async with slots:
                await admin.schedules.put(Schedule("topic0", f"report-{number}", b"x" * 64, cron=[cron]))

        await asyncio.gather(*map(put, range(SCHEDULES)))
        return (await producer.send("topic0", b"x" * 64, delay="20h", key="dentist")).handle


async def measure(link: str, times: int, viewers: int, handle: str) -> list[dict[str, Any]]:
    base = link.partition("/sign-in")[0]
    soon = time.time_ns() // 1_000_000 + 12 * HOUR_MS
    pages = {
        "wheel, nodes, a day": "/wheel",
        "wheel, shards, a day": "/wheel?by=shard",
        "wheel, topics, all": "/wheel?by=topic&span=all",
        "wheel, one topic, an hour": f"/wheel?by=shard&topic=topic0&from={soon}&to={soon + HOUR_MS}",
        "pending, first page": "/pending?topic=topic0",
        "pending, in half a day": f"/pending?topic=topic0&from={soon}",
        "pending, by key": "/pending?topic=topic0&key=dentist",
        "a message": f"/pending/message?handle={quote(handle)}",
        "groups of a topic": "/groups?topic=topic0",
        "a group": "/groups/one?topic=topic0&group=billing",
        "dead letters of a topic": "/dead-letters?topic=topic0",
        "dead letters of a group": "/dead-letters/group?topic=topic0&group=billing",
        f"schedules, {SCHEDULES:,} in a topic": "/schedules?topic=topic0",
        "a schedule": "/schedules/one?topic=topic0&id=report-7",
        "sinks, none here": "/sinks",
        "nodes": "/nodes",
        "shards, first page": "/shards",
        "shards of a node": "/shards?node=n0&first=200",
        "a shard": "/shards/one?shard=topic0-0",
        "rebalance": "/rebalance",
        "audit": "/audit",
    }
    found = []
    async with ClientSession(cookie_jar=CookieJar(unsafe=True)) as session:
        await (await session.get(link)).read()
        for name, path in pages.items():
            taken_s, size = [], 0
            for _ in range(times):
                started_s = time.monotonic()
                async with session.get(base + path) as answer:
                    size, status = len(await answer.read()), answer.status
                taken_s.append(time.monotonic() - started_s)
                if status != 200:
                    name = f"{name}: {status}"
                    break
            found.append(_row(name, taken_s, size))
        if viewers:
            taken_s = []

            async def viewer(number: int) -> None:
                await asyncio.sleep(number * LIVE_S / viewers)
                for _ in range(LOOKS):
                    started_s = time.monotonic()
                    async with session.get(f"{base}/wheel?by=shard", headers={"HX-Request": "true"}) as answer:
                        await answer.read()
                    taken_s.append(time.monotonic() - started_s)
                    await asyncio.sleep(max(0.0, LIVE_S - taken_s[-1]))

            await asyncio.gather(*map(viewer, range(viewers)))
            found.append(_row(f"live wheel, {viewers} viewers", taken_s, 0))
    return found


def _row(name: str, taken_s: Sequence[float], size: int) -> dict[str, Any]:
    median, slowest = statistics.median(taken_s), max(taken_s)
    return {"page": name, "median_ms": median * 1e3, "slowest_ms": slowest * 1e3, "kib": size / 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pending", type=int, default=10_000_000)
    parser.add_argument("--shards", type=int, default=1_000)
    parser.add_argument("--times", type=int, default=9, help="looks at each page")
    parser.add_argument("--viewers", type=int, default=0, help="of the live wheel, at once")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    topics = [TopicSpec(f"topic{n}", -(-arguments.shards // TOPICS)) for n in range(TOPICS)]
    with (
        tempfile.TemporaryDirectory(prefix="delay-console-") as directory,
        LocalCluster(Path(directory), nodes=3, topics=topics, port=0, durability=Durability.ASYNC) as cluster,
    ):
        cluster.wait_ready(300)
        rate = asyncio.run(fill(cluster.endpoints[0], arguments.pending))
        asyncio.run(use(cluster.endpoints[0]))
        handle = asyncio.run(schedule(cluster.endpoints[0]))
        with running_console(cluster.endpoints[0], "--data", directory) as link:
            rows = asyncio.run(measure(link, arguments.times, arguments.viewers, handle))
    if arguments.json:
        print(json.dumps({"pending": arguments.pending, "shards": arguments.shards, "pages": rows}))
        return
    print(f"{arguments.pending:,} pending in {arguments.shards:,} shards (sent at {rate:,.0f}/s)")
    print(f"{'page':<30}{'median ms':>10}{'slowest ms':>12}{'KiB':>7}")
    for row in rows:
        print(f"{row['page']:<30}{row['median_ms']:>10,.0f}{row['slowest_ms']:>12,.0f}{row['kib']:>7,.0f}")


if __name__ == "__main__":
    main()
