"""An HTTP server that does what a test tells it for each request: answers, hangs, lies, or breaks off."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from multidict import CIMultiDict


@dataclass(frozen=True, slots=True)
class Request:
    """began_ms: Unix time, when the whole request was there. peer: the connection's number."""

    method: str
    path: str
    headers: CIMultiDict[str]
    body: bytes
    began_ms: int
    peer: int

    @property
    def id(self) -> str:
        return self.headers.get("webhook-id", "")


Answer = Callable[[Request, asyncio.StreamWriter], Awaitable[None]]


def status(code: int, body: bytes = b"", **headers: str) -> Answer:
    """Keyword names have `_` for `-`."""

    async def answer(_: Request, writer: asyncio.StreamWriter) -> None:
        lines = [f"HTTP/1.1 {code} Status", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    return answer


async def hang(_: Request, writer: asyncio.StreamWriter) -> None:
    """Until the client has gone."""
    await asyncio.wait_for(writer.wait_closed(), 600)


async def cut(_: Request, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def garbage(_: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\xff\xfe\x00 this is no HTTP\r\n\r\n")
    writer.close()


async def half(_: Request, writer: asyncio.StreamWriter) -> None:
    """Fewer bytes than it has said, and the end."""
    writer.write(b"HTTP/1.1 500 No\r\nContent-Length: 100\r\n\r\nhalf of it")
    writer.close()


def drip(first: bytes, bit: bytes, pause_s: float) -> Answer:
    """`bit` again and again, until the client has gone."""

    async def answer(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        while not writer.is_closing():
            writer.write(bit)
            await writer.drain()
            await asyncio.sleep(pause_s)

    return answer


@dataclass(slots=True)
class Receiver:
    """choose: what is done about each request. port: 0: any that is free."""

    choose: Callable[[Request], Answer]
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    port: int = 0
    host: str = "127.0.0.1"
    _server: asyncio.Server | None = None
    _came: asyncio.Event = field(default_factory=asyncio.Event)

    async def __aenter__(self) -> Receiver:
        self._server = await asyncio.start_server(self._serve, self.host, self.port, limit=1 << 20)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/hook"

    async def wait_for(self, count: int, timeout_s: float = 60) -> None:
        async with asyncio.timeout(timeout_s):
            while len(self.requests) < count:
                self._came.clear()
                await self._came.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        peer = self.connections
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, path, _ = head[0].split(" ")
                pairs = (line.split(": ", 1) for line in head[1:] if line)
                headers = CIMultiDict((name, value) for name, value in pairs)
                body = await reader.readexactly(int(headers.get("Content-Length", 0)))
                request = Request(method, path, headers, body, time.time_ns() // 1_000_000, peer)
                self.requests.append(request)
                self._came.set()
                await self.choose(request)(request, writer)
                await writer.drain()
        writer.close()
