"""A stream's generator and its tasks have ended when the call ends, also where the client can't be written to."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator
from typing import Any

import grpc
from delaynode.server.edge import Stream
from delaynode.server.grpc_edge import GrpcCallers, streamed

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


def main() -> None:
    asyncio.run(clients_go_while_they_are_written_to(streamed(answers, None, GrpcCallers(plain(), anybody())), 20))
