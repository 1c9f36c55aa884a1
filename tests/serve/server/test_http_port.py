"""Ports for HTTP: who holds connections, or never ends a handshake, keeps nobody out, and no memory."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from delayapi import http_port
from delayapi.http_port import HttpPort

from tests.security.authority import Authority
from tests.serve.support.machine import Machine

NAME = "localhost"
MOST = 20


@asynccontextmanager
async def port(
    context: Callable[[], ssl.SSLContext] | None = None, address: str = "127.0.0.1:0", *more: web.RouteDef
) -> AsyncIterator[HttpPort]:
    async def ok(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def slow(_: web.Request) -> web.Response:
        await asyncio.sleep(3)
        return web.Response(text="slow")

    app = web.Application()
    app.add_routes([web.get("/healthz", ok), web.get("/slow", slow), *more])
    found = HttpPort(app, address, MOST, lambda event, **fields: None, context=context)
    await found.start()
    try:
        yield found
    finally:
        await found.close()


def run(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 120))


def test_who_holds_connections_keeps_nobody_out() -> None:
    """They say nothing, or never end a request's head; a request that is under way goes on."""

    async def story() -> None:
        async with port() as it, aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{it.address[1]}"
            busy = asyncio.create_task(session.get(f"{url}/slow"))
            await asyncio.sleep(0.1)
            held = [await asyncio.open_connection(*it.address) for _ in range(5 * MOST)]
            for _, writer in held[::2]:
                writer.write(b"GET /healthz HTTP/1.1\r\nX: ")
            async with session.get(f"{url}/healthz") as answer:
                assert await answer.text() == "ok"
            assert len(it._open) <= MOST
            assert await held[0][0].read() == b"", "the one that has asked for nothing the longest is gone"
            assert await (await busy).text() == "slow"
            for _, writer in held:
                writer.transport.abort()

    run(story)


@pytest.mark.parametrize("path", ["/healthz", "/nowhere"])
@pytest.mark.parametrize("expect", [b"100-con\xa8inue", b"\xff", b"200-ok"])
def test_what_is_expected_that_is_no_continue_is_refused_and_no_fault(
    path: str, expect: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with port() as it:
            reader, writer = await asyncio.open_connection(*it.address)
            writer.write(b"GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" % path.encode())
            writer.write(b"Expect: %s\r\n\r\n" % expect)
            assert (await reader.read()).startswith(b"HTTP/1.1 417 ")
            writer.close()

    run(story)
    assert not caplog.records


def test_a_connection_on_which_nothing_comes_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_port, "FIRST_SECONDS", 0.5)

    async def story() -> None:
        async with port() as it:
            reader, writer = await asyncio.open_connection(*it.address)
            writer.write(b"GET /healthz HTTP/1.1\r\nX: ")
            assert await reader.read() == b""
            writer.transport.abort()

    run(story)


def test_handshakes_that_never_end_keep_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all places taken a client waits CROWDED_SECONDS, not HANDSHAKE_SECONDS times the queue before it."""
    monkeypatch.setattr(http_port, "MAX_HANDSHAKES", 8)
    monkeypatch.setattr(http_port, "CROWDED_SECONDS", 0.1)
    monkeypatch.setattr(http_port, "HANDSHAKE_SECONDS", 60.0)
    ca = Authority("ca")
    issued = ca.issue(NAME)
    (tmp_path / "both.pem").write_bytes(issued.key_pem + issued.chain_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "both.pem")
    trust = ssl.create_default_context(cadata=ca.pem.decode())

    async def story() -> None:
        async with port(lambda: context) as it, aiohttp.ClientSession() as session:
            held = [await asyncio.open_connection(*it.address) for _ in range(MOST - 4)]
            began = time.monotonic()
            async with session.get(f"https://{NAME}:{it.address[1]}/healthz", ssl=trust) as answer:
                assert await answer.text() == "ok"
            assert time.monotonic() - began < 30, "half of the time that one handshake has where few are under way"
            for _, writer in held:
                writer.transport.abort()

    run(story)


@pytest.mark.parametrize("sends", [False, True], ids=["waiting", "sending"])
def test_what_is_under_way_ends_when_its_client_is_unplugged(monkeypatch: pytest.MonkeyPatch, sends: bool) -> None:
    """A client on another machine that is there no more, and says nothing of it; and one that only says nothing."""
    for name, seconds in (("PROBE_SECONDS", 1), ("UNREAD_SECONDS", 3)):
        monkeypatch.setattr(http_port, name, seconds)
    begun, ended = asyncio.Queue[str](), asyncio.Queue[str]()

    async def stream(request: web.Request) -> web.StreamResponse:
        begun.put_nowait(request.query["by"])
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b"." * sends)
                await asyncio.sleep(0.2)
        finally:
            ended.put_nowait(request.query["by"])

    async def story() -> None:
        async with (
            port(None, f"{machine.router}:0", web.get("/stream", stream)) as it,
            asyncio.timeout(60),
            aiohttp.ClientSession() as session,
            session.get(f"http://{machine.router}:{it.address[1]}/stream?by=quiet") as quiet,
        ):
            client = machine.connect(*it.address, "GET /stream?by=gone HTTP/1.1\r\nHost: x\r\n\r\n")
            assert {await begun.get(), await begun.get()} == {"quiet", "gone"}
            await asyncio.sleep(4)
            assert ended.empty()
            machine.unplug()
            assert await ended.get() == "gone"
            assert not quiet.content.at_eof()
            client.kill()

    with Machine() as machine:
        run(story)
