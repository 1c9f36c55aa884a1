"""Requests over HTTP that come a byte at a time: told so and cut when their time is over, and nobody waits for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from delayapi import http_port
from delaynode.server.doors import http_json
from delaynode.server.doors.http_json import PATH, HttpDoor
from delaynode.server.health_port import serve_http

from tests.doors.test_fuzz_rows import Served, served

SHORT_SECONDS = 3.0
STEP_SECONDS = 0.05
HEAD = f"POST {PATH}Send HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
BODY = b'{"topic":"fuzz","messages":[{"bodyText":"' + b"x" * 100_000
GOOD = b'{"topic":"fuzz","messages":[{"bodyText":"quick"}]}'


@asynccontextmanager
async def door(directory: Path) -> AsyncIterator[tuple[Served, tuple[str, int]]]:
    """A node, and where it serves HTTP."""
    async with served(directory) as node:
        http = HttpDoor(node.node)
        http.open(node.doors.messages.methods())
        port = await serve_http(node.node, "127.0.0.1:0", http.routes())
        try:
            yield node, port.address
        finally:
            await port.close()


async def quick(address: tuple[str, int]) -> None:
    """A request of another client, which is answered well."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(f"{HEAD}Content-Length: {len(GOOD)}\r\nConnection: close\r\n\r\n".encode() + GOOD)
    assert (await reader.read()).startswith(b"HTTP/1.1 200")
    writer.close()


async def slowly(address: tuple[str, int], first: bytes, rest: bytes) -> tuple[bytes, int]:
    """(all that is answered until the connection ends, how often others were meanwhile): `rest` comes byte by byte."""
    reader, writer = await asyncio.open_connection(*address)

    async def trickle() -> None:
        with suppress(ConnectionError):
            for at in range(len(rest)):
                writer.write(rest[at : at + 1])
                await writer.drain()
                await asyncio.sleep(STEP_SECONDS)

    async def others() -> None:
        nonlocal answered
        while not trickling.done():
            await quick(address)
            answered += 1

    answered, said = 0, b""
    writer.write(first)
    trickling = asyncio.create_task(trickle())
    asking = asyncio.create_task(others())
    with suppress(ConnectionError):  # what was sent on is answered by a reset
        while part := await reader.read(65_536):
            said += part
    trickling.cancel()
    await asking
    writer.transport.abort()
    return said, answered


def run(tmp_path: Path, story: Callable[[Served, tuple[str, int]], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(120), door(tmp_path) as (node, address):
            await story(node, address)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("head", "chunk"),
    [(f"Content-Length: {len(BODY) + 10}\r\n", b""), ("Transfer-Encoding: chunked\r\n", b"fffff\r\n")],
)
def test_a_body_that_does_not_come_in_time_is_refused_and_its_connection_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str, chunk: bytes
) -> None:
    monkeypatch.setattr(http_json, "BODY_SECONDS", SHORT_SECONDS)

    async def story(node: Served, address: tuple[str, int]) -> None:
        said, answered = await slowly(address, f"{HEAD}{head}\r\n".encode() + chunk, BODY)
        top, _, body = said.partition(b"\r\n\r\n")
        assert top.split(b"\r\n")[0].split(b" ")[1] == b"429", said
        assert b"retry-after: 1" in top.lower()
        refused = json.loads(body)
        assert refused["code"] == "resource_exhausted"
        assert refused["details"][0]["debug"]["reason"] == "BUSY"
        assert f"bytes of the request were here after {SHORT_SECONDS:.0f} s" in refused["message"]
        assert answered > 3, "others are answered meanwhile"
        assert node.node.metrics.http_calls == 0
        assert node.node.metrics.http_requests["Send", "resource_exhausted"] == 1

    run(tmp_path, story)


def test_a_head_that_does_not_come_in_time_ends_its_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_port, "FIRST_SECONDS", SHORT_SECONDS)

    async def story(node: Served, address: tuple[str, int]) -> None:
        said, answered = await slowly(address, HEAD.encode() + b"X-Slow: ", b"x" * 8_000)
        assert said == b""
        assert answered > 3, "others are answered meanwhile"
        assert node.node.metrics.http_calls == 0

    run(tmp_path, story)
