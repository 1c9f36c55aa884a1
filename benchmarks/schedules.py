"""100,000 schedules of one topic that fire at the same instant: lateness, and the node's memory before and after.

.venv/bin/python -m benchmarks.schedules --schedules 100000
.venv/bin/python -m benchmarks.schedules --midnight   # the next full hour, in the zone where that is midnight
"""

from __future__ import annotations

import asyncio
import itertools
import re
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import click
import grpc
import numpy as np
from delayapi.proto.delay.v1 import delay_pb2, schedules_pb2
from delaylocal import LocalCluster
from delayregistry.model import TopicSpec

ZONES = ("Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe")
UNDER_WAY = 128
SERVICE = "/delay.v1.DelayService/"


def memory_mib(pid: int) -> tuple[int, int]:
    """(what the process has now, what it had at most)."""
    status = Path(f"/proc/{pid}/status").read_text()
    now, peak = (int(re.findall(rf"{name}:\s+(\d+) kB", status)[0]) for name in ("VmRSS", "VmHWM"))
    return now >> 10, peak >> 10


def zone_of_midnight(at: datetime) -> str:
    """Where it is midnight at this full hour. Etc/GMT-7 is seven hours ahead of UTC."""
    return f"Etc/GMT{at.hour - 24 if at.hour >= 12 else at.hour:+d}"


def schedule(number: int, at: datetime, body: bytes, zones: Sequence[str]) -> schedules_pb2.Schedule:
    """Each day at that instant, by a clock in one of the zones."""
    zone = zones[number % len(zones)]
    wall = at.astimezone(ZoneInfo(zone))
    cron = f"{wall.second} {wall.minute} {wall.hour} * * *"
    return schedules_pb2.Schedule(id=f"schedule-{number}", key=f"k{number}", body=body, cron=[cron], zone=zone)


class Node:
    def __init__(self, endpoint: str) -> None:
        self.channel = grpc.aio.insecure_channel(endpoint, [("grpc.max_receive_message_length", 64 << 20)])

    async def call(self, method: str, request: Any, answer: Any) -> Any:
        data = await self.channel.unary_unary(SERVICE + method)(request.SerializeToString(), timeout=60)
        return answer.FromString(data)

    async def wheel(self) -> delay_pb2.ShardWheel:
        request = delay_pb2.GetWheelRequest(topic="t", queue=0)
        return (await self.call("GetWheel", request, delay_pb2.GetWheelResponse)).shards[0]


async def put(node: Node, count: int, at: datetime, size: int, zones: Sequence[str] = ZONES) -> None:
    numbers = itertools.count()

    async def some() -> None:
        while (number := next(numbers)) < count:
            request = schedules_pb2.PutScheduleRequest(topic="t", schedule=schedule(number, at, bytes(size), zones))
            await node.call("PutSchedule", request, schedules_pb2.PutScheduleResponse)

    await asyncio.gather(*(some() for _ in range(UNDER_WAY)))


async def lateness(node: Node, count: int, due_ms: int) -> tuple[np.ndarray, float]:
    """By how much each message was stored after its due, ms; and when the last could be consumed."""
    while (released := (await node.wheel()).released) < count:
        assert time.time() * 1000 < due_ms + 60_000, f"{released:,} of {count:,} have fired"
        await asyncio.sleep(0.02)
    last_ms, found = time.time() * 1000 - due_ms, []
    while len(found) < count:
        request = delay_pb2.FetchRequest(topic="t", queue=0, offset=len(found), max_messages=10_000)
        batch = await node.call("Fetch", request, delay_pb2.MessageBatch)
        at = 0
        for length in np.frombuffer(batch.size, "<u4").tolist():
            found.append(delay_pb2.Message.FromString(batch.records[at : at + length]).born_ms)
            at += length
    return np.array(found) - due_ms, last_ms


def next_hour(seconds: int) -> datetime:
    """The first full hour that is at least so far away."""
    return (datetime.now(UTC) + timedelta(seconds=seconds, hours=1)).replace(minute=0, second=0, microsecond=0)


async def measure(endpoint: str, pid: int, count: int, size: int, seconds: int, midnight: bool) -> None:
    node = Node(endpoint)
    while True:
        try:
            await put(node, 1, datetime.now(UTC) + timedelta(hours=12), 1)
            break
        except grpc.aio.AioRpcError:
            await asyncio.sleep(0.2)
    before, _ = memory_mib(pid)
    at = (datetime.now(UTC) + timedelta(seconds=seconds)).replace(microsecond=0)
    zones: Sequence[str] = ZONES
    if midnight:
        at = next_hour(seconds)
        zones = (zone_of_midnight(at),)
        click.echo(f"midnight of {zones[0]} is at {at:%H:%M} UTC")
    started = time.perf_counter()
    await put(node, count, at, size, zones)
    took = time.perf_counter() - started
    after, _ = memory_mib(pid)
    assert datetime.now(UTC) < at, f"to put them took {took:.0f} s: give it more --seconds"
    click.echo(
        f"put: {count / took:,.0f} a second; memory {before} MiB before, {after} MiB after: "
        f"{(after - before) * 1024 / count:.2f} KiB a schedule"
    )
    await asyncio.sleep(max(0.0, at.timestamp() - time.time() - 1))
    late, last_ms = await lateness(node, count, int(at.timestamp() * 1000))
    p50, p99 = np.percentile(late, [50, 99])
    now, peak = memory_mib(pid)
    click.echo(
        f"fired: {len(late):,} at one instant, p50 {p50:,.0f} ms, p99 {p99:,.0f} ms, the last stored {late.max():,} ms "
        f"late and to be consumed {last_ms:,.0f} ms late, none early ({late.min():,} ms); memory {now} MiB, {peak} MiB "
        "at most"
    )


@click.command()
@click.option("--schedules", "count", type=int, default=100_000, show_default=True)
@click.option("--size", type=int, default=64, show_default=True, help="Bytes of each body.")
@click.option("--seconds", type=int, default=90, show_default=True, help="From the first put to the instant.")
@click.option("--midnight", is_flag=True, help="At the first full hour after --seconds, in the zone of midnight.")
def main(count: int, size: int, seconds: int, midnight: bool) -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        LocalCluster(Path(directory), nodes=1, topics=[TopicSpec("t", 1)]) as cluster,
    ):
        cluster.wait_ready()
        asyncio.run(measure(cluster.endpoints[0], cluster.pids["n0"], count, size, seconds, midnight))


if __name__ == "__main__":
    main()
