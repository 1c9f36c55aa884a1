"""How many messages a second one process of a webhook sink delivers, beside a plain consumer of the same topic.

    consumer   receives each message by itself and acknowledges it: `async for message in consumer`
    sink       a DelaySink's process, signed CloudEvents, to a receiver on this machine that answers 204 at once
    post       aiohttp alone: the same requests in a loop, with no cluster, no fence and no signature

.venv/bin/python -m benchmarks.sinks --messages 20000 --concurrency 32

Processor time is the process's own, so other work on the machine changes it little; time on the clock is not.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from subprocess import DEVNULL

import aiohttp
import click
from delayclient.consumer.consumer import Consumer
from delayclient.producer.producer import Producer
from delaylocal import LocalCluster
from delayregistry.model import TopicSpec

TOPICS, QUEUES = ("consumer", "sink"), 4  # each has its own: what a group has acknowledged may be gone
TIMEOUT_S = 300.0
SECRET = "whsec_" + base64.b64encode(bytes(32)).decode()
ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"


class Receiver(asyncio.Protocol):
    """Answers each request when its last byte is there; says on standard output where it listens."""

    def __init__(self) -> None:
        self._held = b""
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._held += data
        while (head := self._held.find(b"\r\n\r\n")) >= 0:
            lengths = [it[15:] for it in self._held[:head].lower().split(b"\r\n") if it.startswith(b"content-length:")]
            end = head + 4 + int(lengths[0] if lengths else 0)
            if len(self._held) < end:
                return
            self._held = self._held[end:]
            self._transport.write(ANSWER)


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Receiver, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def cpu_s(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def report(name: str, count: int, seconds: float, cpu: float) -> None:
    click.echo(f"{name:<20} {count / seconds:>9,.0f} a second {cpu / count * 1e6:>7.0f} us of processor each")


async def consume(endpoint: str, count: int) -> None:
    async with Consumer(endpoint, TOPICS[0], "consumer") as consumer:
        await consumer.receive(TIMEOUT_S)
        began_s, began_cpu_s = time.perf_counter(), cpu_s(os.getpid())
        for _ in range(count - 1):
            message = await consumer.receive(TIMEOUT_S)
            assert message is not None
            assert len(message.body) > 0
            message.ack()
        report("consumer", count, time.perf_counter() - began_s, cpu_s(os.getpid()) - began_cpu_s)


async def post(url: str, count: int, size: int, concurrency: int) -> None:
    left = iter(range(count))
    body, headers = bytes(size), {f"ce-name{at}": "x" * 40 for at in range(10)}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=concurrency)) as session:

        async def some() -> None:
            for _ in left:
                async with session.post(url, data=body, headers=headers) as answer:
                    await answer.read()

        began_s, began_cpu_s = time.perf_counter(), cpu_s(os.getpid())
        await asyncio.gather(*(some() for _ in range(concurrency)))
        report("post", count, time.perf_counter() - began_s, cpu_s(os.getpid()) - began_cpu_s)


async def deliver(endpoint: str, url: str, folder: Path, count: int, concurrency: int, profile: str) -> None:
    (folder / "hook").mkdir()
    (folder / "hook" / "key").write_text(SECRET)
    http = {"url": url, "allow": ["127.0.0.1"], "signing": {"secret": {"name": "hook", "key": "key"}}}
    spec = {"topic": TOPICS[1], "maxConcurrency": concurrency, "http": http}
    path = folder / "sink.json"
    path.write_text(json.dumps({"kind": "DelaySink", "metadata": {"name": "sink"}, "spec": spec}))
    words = ["-m", "cProfile", "-o", profile] if profile else []
    words += [str(Path(sys.executable).parent / "delaysink")]
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = [f"--sink={path}", f"--endpoint={endpoint}", f"--secrets={folder}", f"--listen={address}"]
    process = await asyncio.create_subprocess_exec(sys.executable, *words, *options, stderr=DEVNULL, stdout=DEVNULL)
    try:
        before = await delivered(address, count // 20)  # it has found its pace
        began_s, began_cpu_s = time.perf_counter(), cpu_s(process.pid)
        await delivered(address, count)
        took_s, cpu = time.perf_counter() - began_s, cpu_s(process.pid) - began_cpu_s
        report(f"sink, {concurrency} at once", count - before, took_s, cpu)
    finally:
        process.terminate()
        await process.wait()


async def delivered(address: str, least: int) -> int:
    """How many the sink has delivered, once they are so many."""
    async with asyncio.timeout(TIMEOUT_S), aiohttp.ClientSession() as session:
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"http://{address}/status") as answer:
                    if (found := int((await answer.json())["delivered"])) >= least:
                        return found
            await asyncio.sleep(0.05)


async def measure(endpoint: str, url: str, folder: Path, size: int, count: int, concurrency: int, profile: str) -> None:
    async with Producer(endpoint) as producer:
        for topic in TOPICS:
            for _ in range(0, count, 1_000):
                await producer.send_batch(topic, [bytes(size)] * 1_000)
    await consume(endpoint, count)
    await deliver(endpoint, url, folder, count, concurrency, profile)
    await post(url, count, size, concurrency)


@click.command()
@click.option("--messages", type=int, default=20_000, show_default=True, help="A multiple of 1,000.")
@click.option("--size", type=int, default=256, show_default=True, help="Bytes of each body.")
@click.option("--concurrency", type=int, default=32, show_default=True, help="The sink's maxConcurrency.")
@click.option("--profile", default="", metavar="FILE", help="Profile the sink's process into this file.")
@click.option("--receiver", is_flag=True, hidden=True)
def main(messages: int, size: int, concurrency: int, profile: str, receiver: bool) -> None:
    if receiver:
        asyncio.run(serve())
        return
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        words = [sys.executable, "-m", "benchmarks.sinks", "--receiver"]
        other = stack.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
        stack.callback(other.terminate)
        assert other.stdout is not None
        url = f"http://127.0.0.1:{int(other.stdout.readline())}/hook"
        cluster = stack.enter_context(
            LocalCluster(folder / "data", nodes=1, topics=[TopicSpec(it, QUEUES) for it in TOPICS])
        )
        cluster.wait_ready()
        asyncio.run(measure(cluster.endpoints[0], url, folder, size, messages, concurrency, profile))


if __name__ == "__main__":
    main()
