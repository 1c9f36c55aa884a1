"""What messages by the row cost: one message a call, over gRPC, over HTTP in JSON, and as DelayService's columns.

    python -m benchmarks.rows --seconds 8 --clients 32

One local node, replicas 1, fsync. Each client is a connection of its own that waits for each answer. Microseconds are
the node's processor time, of all its threads, for each message.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import quantiles
from typing import Any

import aiohttp
import grpc
import numpy as np
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.proto.delay.v1 import messages_pb2 as rows
from delaylocal import LocalCluster
from delayregistry.model import TopicSpec
from google.protobuf.duration_pb2 import Duration

TOPIC, QUEUES, BODY = "rows", 8, "x" * 100
GROUP = "bench"
MESSAGE_SERVICE, DELAY_SERVICE = "/delay.v1.MessageService/", "/delay.v1.DelayService/"
Call = Callable[[], Awaitable[int]]
"""One call; returns how many messages it was about."""


class OverGrpc:
    def __init__(self, endpoint: str) -> None:
        self._channel = grpc.aio.insecure_channel(endpoint, [("grpc.use_local_subchannel_pool", 1)])

    async def _call(self, method: str, request: Any, kind: Any) -> Any:
        return kind.FromString(await self._channel.unary_unary(method)(request.SerializeToString(), timeout=30))

    async def send(self) -> int:
        message = rows.OutgoingMessage(body_text=BODY)
        answer = await self._call(MESSAGE_SERVICE + "Send", rows.SendRequest(topic=TOPIC, messages=[message]),
                                  rows.SendResponse)  # fmt: skip
        return len(answer.results)

    async def receive(self) -> int:
        asked = rows.ReceiveMessagesRequest(topic=TOPIC, group=GROUP, max_messages=32, wait=Duration(seconds=1))
        got = (await self._call(MESSAGE_SERVICE + "Receive", asked, rows.ReceiveMessagesResponse)).deliveries
        for one in got:
            acked = rows.AckMessagesRequest(receipts=[one.receipt])
            await self._call(MESSAGE_SERVICE + "Ack", acked, rows.SettleResponse)
        return len(got)

    async def close(self) -> None:
        await self._channel.close()


class OverColumns(OverGrpc):
    """What a client writes that packs its own columns and knows the queues."""

    _queue = 0

    async def send(self) -> int:
        self._queue = (self._queue + 1) % QUEUES
        record = pb.Message(body=BODY.encode()).SerializeToString()
        size = len(record).to_bytes(4, "little")
        asked = pb.EnqueueRequest(topic=TOPIC, queue=self._queue, count=1, time=bytes(8), size=size, records=record)
        return int((await self._call(DELAY_SERVICE + "Enqueue", asked, pb.EnqueueResponse)).count)

    async def receive(self) -> int:
        self._queue = (self._queue + 1) % QUEUES
        asked = pb.ReceiveRequest(topic=TOPIC, queue=self._queue, group=GROUP, max_messages=32, wait_ms=100)
        got = await self._call(DELAY_SERVICE + "Receive", asked, pb.MessageBatch)
        for at in np.frombuffer(got.offset, "<i8").tolist():
            start, end = at.to_bytes(8, "little"), (at + 1).to_bytes(8, "little")
            acked = pb.AckRequest(topic=TOPIC, queue=self._queue, group=GROUP, start=start, end=end)
            await self._call(DELAY_SERVICE + "Ack", acked, pb.AckResponse)
        return int(got.count)


class OverHttp:
    def __init__(self, address: str) -> None:
        self._url, self._session = f"http://{address}{MESSAGE_SERVICE}", aiohttp.ClientSession()

    async def _call(self, method: str, request: object) -> Any:
        headers = {"content-type": "application/json"}
        async with self._session.post(self._url + method, data=json.dumps(request), headers=headers) as answer:
            answer.raise_for_status()
            return json.loads(await answer.read())

    async def send(self) -> int:
        return len((await self._call("Send", {"topic": TOPIC, "messages": [{"bodyText": BODY}]}))["results"])

    async def receive(self) -> int:
        asked = {"topic": TOPIC, "group": GROUP, "maxMessages": 32, "wait": "1s"}
        got = (await self._call("Receive", asked)).get("deliveries", [])
        for one in got:
            await self._call("Ack", {"receipts": [one["receipt"]]})
        return len(got)

    async def close(self) -> None:
        await self._session.close()


DOORS: dict[str, Callable[[str, str], Any]] = {
    "rows, gRPC": lambda grpc_, http: OverGrpc(grpc_),
    "rows, HTTP with JSON": lambda grpc_, http: OverHttp(http),
    "columns, gRPC": lambda grpc_, http: OverColumns(grpc_),
}


async def _load(door: str, action: str, addresses: tuple[str, str], clients: int, seconds: float) -> dict[str, float]:
    made = [DOORS[door](*addresses) for _ in range(clients)]
    ends = time.monotonic() + seconds
    took: list[float] = []
    count = 0

    async def go_on(one: Any) -> None:
        nonlocal count
        call: Call = getattr(one, action)
        while (began := time.monotonic()) < ends:
            about = await call()
            if not about and action == "receive":
                return
            count += about
            took.append((time.monotonic() - began) * 1_000)

    began = time.monotonic()
    await asyncio.gather(*map(go_on, made))
    spent = time.monotonic() - began
    for one in made:
        await one.close()
    cuts = quantiles(took, n=100) if len(took) > 1 else [0.0] * 99
    return {"count": count, "per_second": count / spent, "p50_ms": cuts[49], "p99_ms": cuts[98]}


def _child(pipe: Any, *arguments: Any) -> None:
    pipe.send(asyncio.run(_load(*arguments)))


def measured(cluster: LocalCluster, door: str, action: str, clients: int, seconds: float) -> dict[str, float]:
    """By clients in a process of their own. node_us: of the node, for each message."""
    here, there = multiprocessing.Pipe()
    addresses = cluster.endpoints[0], cluster.http[0]
    before = processor_seconds(cluster.pids["n0"])
    child = multiprocessing.get_context("spawn").Process(
        target=_child, args=(there, door, action, addresses, clients, seconds)
    )
    child.start()
    found: dict[str, float] = here.recv()
    child.join()
    found["node_us"] = (processor_seconds(cluster.pids["n0"]) - before) * 1e6 / max(1, found["count"])
    return found


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description="rates and cost of messages by the row")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--turns", type=int, default=2)
    args = parser.parse_args()
    for turn in range(args.turns):
        for door in DOORS:
            with (
                tempfile.TemporaryDirectory() as directory,
                LocalCluster(Path(directory), nodes=1, topics=[TopicSpec(TOPIC, QUEUES)]) as cluster,
            ):
                cluster.wait_ready()
                for action in ("send", "receive"):
                    found = measured(cluster, door, action, args.clients, args.seconds)
                    print(
                        f"turn {turn + 1}  {door:21} {action:8} {found['per_second']:8,.0f}/s  node "
                        f"{found['node_us']:6,.0f} us  call p50 {found['p50_ms']:6.1f}, p99 {found['p99_ms']:6.1f} ms",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
