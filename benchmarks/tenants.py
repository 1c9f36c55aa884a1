"""A quiet tenant beside one that floods: `python -m benchmarks.tenants [--seconds 10] [--turns 3] [--directory DIR]`.

One node with a topic for each. The quiet tenant sends a message every 5 ms, due in 200 ms, and receives it. In turns:

    alone      nobody else sends
    quota      another process keeps a stream to each queue of the other topic full, far over that topic's quota
    no quota   the same, without the quota

A line for each: the quiet one's time to the acknowledgement and lateness, p50 and p99 of the turns' (ms, median and
range); the other's messages stored and requests refused a second.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import grpc
import numpy as np
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayclient import Consumer, Producer
from delaylocal import LocalCluster
from delayregistry.model import TopicQuotas, TopicSpec

from benchmarks.workloads.machine import describe

QUIET, FLOOD, QUEUES = "quiet", "flood", 2
QUOTA = TopicQuotas(enqueue_per_second=1_000)
PERIOD_S, DELAY_MS = 0.005, 200
MESSAGES, BODY_BYTES, WINDOW = 100, 100, 16  # of the flood's requests; unanswered ones of each stream
CONTEXT = multiprocessing.get_context("spawn")


@dataclass
class Turn:
    """ack_ms, late_ms: of the quiet one's messages. stored, refused: the other's messages and requests a second."""

    ack_ms: list[float] = field(default_factory=list)
    late_ms: list[float] = field(default_factory=list)
    stored: float = 0.0
    refused: float = 0.0


def flood_request(queue: int) -> bytes:
    record = pb.Message(body=bytes(BODY_BYTES)).SerializeToString()
    columns = {"time": np.full(MESSAGES, 3_600_000, "<i8"), "size": np.full(MESSAGES, len(record), "<u4")}
    return pb.EnqueueRequest(
        topic=FLOOD, queue=queue, count=MESSAGES, relative=b"\1" * MESSAGES, records=record * MESSAGES,
        **{name: column.tobytes() for name, column in columns.items()},
    ).SerializeToString()  # fmt: skip


def flood(endpoint: str, pipe: Connection) -> None:
    """Flood until told to stop; tells the messages stored and the requests refused a second."""

    async def main() -> None:
        stop = asyncio.get_running_loop().run_in_executor(None, pipe.recv)
        began, stored, refused = time.monotonic(), 0, 0

        async def one(channel: grpc.aio.Channel, queue: int) -> None:
            nonlocal stored, refused
            call, request = channel.stream_stream("/delay.v1.DelayService/EnqueueStream")(), flood_request(queue)
            for _ in range(WINDOW):
                await call.write(request)
            while not stop.done():
                answer = pb.EnqueueResponse.FromString(await call.read())
                stored += answer.count
                refused += answer.HasField("error")
                await call.write(request)
            call.cancel()

        async with grpc.aio.insecure_channel(endpoint) as channel:
            await asyncio.gather(*(one(channel, queue) for queue in range(QUEUES)))
        seconds = time.monotonic() - began
        pipe.send((stored / seconds, refused / seconds))

    asyncio.run(main())


@contextmanager
def flooding(endpoint: str, turn: Turn, *, asked: bool) -> Iterator[None]:
    if not asked:
        yield
        return
    here, there = CONTEXT.Pipe()
    process = CONTEXT.Process(target=flood, args=(endpoint, there))
    process.start()
    time.sleep(1.0)  # it starts an interpreter
    yield
    here.send(None)
    turn.stored, turn.refused = here.recv()
    process.join()


async def be_quiet(endpoint: str, seconds: float, turn: Turn) -> None:
    loop, count = asyncio.get_running_loop(), round(seconds / PERIOD_S)
    async with Producer(endpoint) as producer, Consumer(endpoint, QUIET, "g", auto_ack=True) as consumer:

        async def receive() -> None:
            while len(turn.late_ms) < count:
                message = await consumer.receive(30.0)
                assert message is not None, f"{len(turn.late_ms)} of {count} came"
                turn.late_ms.append(time.time() * 1_000 - message.due_ms)

        async def send() -> None:
            began = loop.time()
            await producer.send(QUIET, b"m", delay=DELAY_MS)
            turn.ack_ms.append((loop.time() - began) * 1_000)

        receiving, start, sent = asyncio.create_task(receive()), loop.time(), []
        for number in range(count):
            await asyncio.sleep(max(0.0, start + number * PERIOD_S - loop.time()))
            sent.append(asyncio.create_task(send()))
        await asyncio.gather(*sent)
        await receiving


def set_quotas(cluster: LocalCluster, quotas: TopicQuotas | None) -> None:
    found = cluster.registry.read_cluster()
    assert found is not None
    topics = tuple(replace(one, quotas=quotas) if one.name == FLOOD else one for one in found.spec.topics)
    cluster.registry.put_cluster(replace(found.spec, topics=topics), found.version)
    time.sleep(2.0)  # nodes look each second


def spread(values: list[float]) -> str:
    return f"{median(values):7.1f} ({min(values):.1f}-{max(values):.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()
    cases: dict[str, list[Turn]] = {"alone": [], "quota": [], "no quota": []}
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        print(describe(Path(directory)))
        topics = [TopicSpec(QUIET, QUEUES), TopicSpec(FLOOD, QUEUES)]
        with LocalCluster(Path(directory) / "own", nodes=1, topics=topics) as cluster:
            cluster.wait_ready()
            endpoint = cluster.endpoints[0]
            for _ in range(options.turns):
                for name, turns in cases.items():
                    set_quotas(cluster, None if name == "no quota" else QUOTA)
                    turn = Turn()
                    with flooding(endpoint, turn, asked=name != "alone"):
                        asyncio.run(be_quiet(endpoint, options.seconds, turn))
                    turns.append(turn)
    for name, turns in cases.items():
        figures = [
            f"{what} p{percent} {spread([float(np.percentile(getattr(turn, column), percent)) for turn in turns])}"
            for what, column in (("ack", "ack_ms"), ("late", "late_ms"))
            for percent in (50, 99)
        ]
        stored, refused = (median(getattr(turn, column) for turn in turns) for column in ("stored", "refused"))
        print(f"{name:9}", *figures, f"other stored {stored:,.0f}/s, refused {refused:,.0f}/s", sep="  ")


if __name__ == "__main__":
    main()
