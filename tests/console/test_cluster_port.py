"""The port of a console in a cluster, which everybody may reach: strangers hold neither it nor its memory."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from delayconsole import cluster_main, forms
from delayconsole.cluster_main import ClusterConsole, serve
from delayconsole.identities import ConsolePlace

from tests.security.authority import Authority, write

NAME, MOST = "localhost", 8


def test_strangers_who_hold_connections_or_send_slowly_keep_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_main, "MAX_CONNECTIONS", MOST)
    monkeypatch.setattr(forms, "FORM_S", 2.0)
    ca = Authority("ca")
    directory = write(tmp_path / "tls", ca.issue(NAME), ca.pem)
    trust = ssl.create_default_context(cadata=ca.pem.decode())
    said: list[dict[str, Any]] = []
    place = ConsolePlace("shop", "orders", "127.0.0.1:1", "", "")

    def log(event: dict[str, Any]) -> None:
        said.append(event)

    async def story() -> None:
        stopped = asyncio.Event()
        console = ClusterConsole(place, "127.0.0.1:0", str(directory), (NAME,), False, None)
        served = asyncio.create_task(serve(console, log, stopped))
        while not (listening := [one for one in said if one["event"] == "console-listening"]):
            await asyncio.sleep(0.05)
            assert not served.done()
        port = listening[0]["port"]
        own = {"Host": f"{NAME}:{port}", "Origin": f"https://{NAME}:{port}"}

        async def opened(head: str = "") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection(NAME, port, ssl=trust)
            writer.write(head.encode())
            return reader, writer

        held = [await opened("GET / HTTP/1.1\r\nX: " if at % 2 else "") for at in range(3 * MOST)]
        async with aiohttp.ClientSession(
            f"https://{NAME}:{port}", connector=aiohttp.TCPConnector(ssl=trust)
        ) as session:
            async with session.get("/wheel", headers=own) as answer:
                assert answer.status == 401
            assert await held[0][0].read() == b"", "the one that has asked for nothing the longest is gone"
            async with session.post("/sign-in", headers=own, data={"token": "x" * (64 << 10)}) as answer:
                assert answer.status == 413
        lines = [*(f"{name}: {text}" for name, text in own.items()), "Content-Length: 100"]
        kind = "Content-Type: application/x-www-form-urlencoded"
        reader, writer = await opened("\r\n".join(["POST /sign-in HTTP/1.1", *lines, kind, "", "token="]))
        assert (await reader.readline()).startswith(b"HTTP/1.1 408"), "a form that does not come"
        for _, one in [*held, (reader, writer)]:
            one.transport.abort()
        stopped.set()
        assert await served == 0

    asyncio.run(asyncio.wait_for(story(), 240))
