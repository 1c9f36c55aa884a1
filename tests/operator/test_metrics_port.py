"""The operator's /metrics by TLS: for whom, and with which certificates."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from delayoperator.metrics_port import MetricsPort, serve_metrics

from tests.security.authority import Authority, Issued, write

NAME = "operator.delaycluster-system.svc"


async def handler(_: web.Request) -> web.Response:
    return web.Response(text="delay_operator_leader 1.0\n")


async def get(port: MetricsPort, ca: Authority, client: Issued | None, place: Path) -> str:
    context = ssl.create_default_context(cadata=ca.pem.decode())
    if client is not None:
        write(place, client, None)
        context.load_cert_chain(place / "tls.crt", place / "tls.key")
    address = f"https://127.0.0.1:{port.address[1]}/metrics"
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(10)) as session,
        session.get(address, ssl=context, server_hostname=NAME) as answer,
    ):
        answer.raise_for_status()
        return await answer.text()


def test_only_who_has_a_certificate_of_the_ca_reads_them_and_newer_certificates_are_taken_up(tmp_path: Path) -> None:
    async def story() -> None:
        ca, events = Authority("metrics"), []
        place = write(tmp_path / "server", ca.issue(NAME), ca.pem)

        def log(event: Any) -> None:
            events.append(event)

        port = await serve_metrics(handler, "127.0.0.1:0", str(place), log)
        try:
            for bad in (None, Authority("metrics").issue("prometheus")):
                with pytest.raises(aiohttp.ClientError):
                    await get(port, ca, bad, tmp_path / "client")
            assert await get(port, ca, ca.issue("prometheus"), tmp_path / "client") == "delay_operator_leader 1.0\n"

            write(place, Authority("other").issue(NAME), ca.pem)  # a bad one replaces none
            await asyncio.to_thread(port._store.look)
            assert await get(port, ca, ca.issue("prometheus"), tmp_path / "client")
            assert [it["event"] for it in events] == ["certificate-unusable"]

            newer = Authority("metrics")
            write(place, newer.issue(NAME), newer.pem)
            await asyncio.to_thread(port._store.look)
            assert await get(port, newer, newer.issue("prometheus"), tmp_path / "client")
            with pytest.raises(aiohttp.ClientError):
                await get(port, newer, ca.issue("prometheus"), tmp_path / "client")
            assert [it["event"] for it in events] == ["certificate-unusable", "certificate-usable"]
        finally:
            await port.close()

    asyncio.run(story())


def test_of_a_ca_that_issues_more_only_the_clients_that_are_named_read_them(tmp_path: Path) -> None:
    async def story() -> None:
        ca, events = Authority("everything"), []
        place = write(tmp_path / "server", ca.issue(NAME), ca.pem)
        names = ("spiffe://example.org/prometheus", "dns:prometheus.svc")
        port = await serve_metrics(handler, "127.0.0.1:0", str(place), events.append, names)
        try:
            for good in ("spiffe://example.org/prometheus", "prometheus.svc"):
                assert await get(port, ca, ca.issue(good), tmp_path / "client")
            for bad in (("spiffe://example.org/prometheus/x",), ("dns.prometheus.svc", "spiffe://example.org"), ()):
                with pytest.raises(aiohttp.ClientResponseError, match="403"):
                    await get(port, ca, ca.issue(*bad), tmp_path / "client")
            assert [it["event"] for it in events] == ["metrics-refused"] * 3
            assert "expected one of: spiffe://example.org/prometheus, dns:prometheus.svc" in events[0]["reason"]
        finally:
            await port.close()

    asyncio.run(story())


def test_without_a_certificate_it_lets_nobody_in(tmp_path: Path) -> None:
    async def story() -> None:
        ca = Authority("metrics")
        port = await serve_metrics(handler, "127.0.0.1:0", str(tmp_path / "nothing"), lambda event: None)
        try:
            with pytest.raises(aiohttp.ClientError):
                await get(port, ca, ca.issue("prometheus"), tmp_path / "client")
        finally:
            await port.close()

    asyncio.run(story())


def test_plain_text_and_older_tls_are_refused(tmp_path: Path) -> None:
    async def story() -> None:
        ca = Authority("metrics")
        place = write(tmp_path / "server", ca.issue(NAME), ca.pem)
        port = await serve_metrics(handler, "127.0.0.1:0", str(place), lambda _: None)
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(10)) as session:
                with pytest.raises(aiohttp.ClientError):
                    await session.get(f"http://127.0.0.1:{port.address[1]}/metrics")
            write(tmp_path / "client", ca.issue("prometheus"), None)
            context = ssl.create_default_context(cadata=ca.pem.decode())
            context.load_cert_chain(tmp_path / "client" / "tls.crt", tmp_path / "client" / "tls.key")
            for most, version in ((ssl.TLSVersion.TLSv1_3, "TLSv1.3"), (ssl.TLSVersion.TLSv1_2, None)):
                context.maximum_version = most
                assert await asyncio.to_thread(spoken, port.address[1], context) == version
        finally:
            await port.close()

    asyncio.run(story())


def spoken(port: int, context: ssl.SSLContext) -> str | None:
    """The version of TLS; None: refused."""
    with socket.create_connection(("127.0.0.1", port), 10) as plain:
        try:
            with context.wrap_socket(plain, server_hostname=NAME) as secured:
                return secured.version()
        except ssl.SSLError:
            return None
