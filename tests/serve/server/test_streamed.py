"""A stream's generator and its tasks have ended when the call ends, also where the client can't be written to."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import grpc
from delaynode.server.edge import Stream
from delaynode.server.grpc_edge import GrpcCallers, streamed
from delayregistry.model import TopicSpec

from tests.serve.support.client import Msg, now_ms, request
from tests.serve.support.fuzz_inside import FakeContext, Inside, OneNode
from tests.serve.support.listening import anybody, plain

LARGE = bytes(1 << 20)


async def answers(stream: Stream) -> AsyncGenerator[bytes, None]:
    """A task beside it asks gRPC about the call again and again, as one that reads requests does."""

    async def ask() -> None:
        while True:
            stream.peer()
            await asyncio.sleep(0)

    asking = asyncio.create_task(ask())
    try:
        while True:
            yield LARGE
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def clients_go_while_they_are_written_to(handler: Any, times: int) -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("t.T", {"Stream": handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    for _ in range(times):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.stream_stream("/t.T/Stream")()
            await call.read()
            await asyncio.sleep(0.05)  # the next ones fill the window
            call.cancel()
        await asyncio.sleep(0.05)
    await server.stop(None)


def test_clients_that_go_while_they_are_written_to_do_no_harm() -> None:
    """In a process of its own, which is gone if the call is used after its end."""
    command = [sys.executable, "-c", "from tests.serve.server.test_streamed import main; main()"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


class Leaving(FakeContext):
    """Of a client that reads its first answer when it has sent its second request, and leaves at once."""

    def __init__(self, requests: list[bytes]) -> None:
        super().__init__(requests)
        self._wrote, self._read_answer = asyncio.Event(), asyncio.Event()
        self.stream: asyncio.Task[None] | None = None

    async def write(self, message: bytes) -> None:
        await super().write(message)
        self._wrote.set()
        await self._read_answer.wait()

    async def read(self) -> Any:
        if len(self._requests) == 2:
            return await super().read()
        await self._wrote.wait()
        assert self.stream is not None
        self._read_answer.set()  # the stream goes on to the answer to this request, whose task has not begun yet,
        asyncio.get_running_loop().call_soon(self.stream.cancel)  # and then it is cancelled
        return await super().read()


def test_a_client_that_leaves_before_its_request_is_looked_at_leaves_nothing_behind(tmp_path: Path) -> None:
    """The room that the request takes in the node's budget was taken for ever, and its refusal was nobody's."""
    faults: list[Any] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
        inside = await Inside.start(tmp_path, OneNode((TopicSpec("t", 1),)))
        try:
            sent = [request("t", 0, [Msg(at_ms=now_ms() + 60_000)], 4, number) for number in (0, 9)]
            context = Leaving([one.SerializeToString() for one in sent])
            context.stream = asyncio.ensure_future(inside.handler("EnqueueStream").stream_stream(None, context))
            await asyncio.wait([context.stream])
            assert context.stream.cancelled()
            assert len(context.written) == 1
            context.done()
        finally:
            await inside.stop()
        context.stream = None
        gc.collect()
        assert not faults
        assert inside.node.flow.coming_in.used == 0

    asyncio.run(run())


def main() -> None:
    asyncio.run(clients_go_while_they_are_written_to(streamed(answers, None, GrpcCallers(plain(), anybody())), 20))
