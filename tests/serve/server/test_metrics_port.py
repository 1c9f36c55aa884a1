"""/metrics on a port of its own: who gets them, what else the port answers, and that strangers harm nobody."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import aiohttp
import pytest
from delayapi import secured_http
from delayapi.secured_http import SecuredPort
from delaylocal import ports
from delaynode import config as configuration
from delaynode.auth.identity import ANONYMOUS
from delaynode.node.node import Node
from delaynode.server.health_port import serve_http
from delaynode.server.metrics_port import serve_metrics
from delayregistry.model import TopicSpec
from delayregistry.security import (
    AccessRule,
    AuthorizationMode,
    NamePattern,
    Operation,
    SecuritySpec,
    SecurityUser,
    StaticToken,
)

from tests.auth.serving import SecuredRegistry, until
from tests.security.authority import DAY, Authority, Issued, write

NAME = "shared.messages.svc"
PROMETHEUS, SHOP = "spiffe://example.org/prometheus", "spiffe://example.org/shop"
ALL, ORDERS = NamePattern(prefix=""), NamePattern(literal="orders")


def token(name: str) -> StaticToken:
    return StaticToken(name, hashlib.sha256(name.encode()).hexdigest())


def user(principal: str, topic: NamePattern) -> SecurityUser:
    return SecurityUser(principal, (AccessRule((Operation.DESCRIBE,), topic),))


DOCUMENT = SecuritySpec(
    AuthorizationMode.REQUIRED,
    tokens=(token("prometheus"), token("shop")),
    users=(
        user("token:prometheus", ALL), user("token:shop", ORDERS), user(PROMETHEUS, ALL), user(SHOP, ORDERS),
    ),
)  # fmt: skip


class Metrics:
    def __init__(self, directory: Path, how: str) -> None:
        self.ca, self.client_ca = Authority("server"), Authority("clients")
        self.server = write(directory / "server", self.ca.issue(NAME), self.ca.pem)
        self.clients = write(directory / "clients", None, self.client_ca.pem)
        (port,) = ports.choose(0, 1).grpc
        config = configuration.parse([
            "--node-id", "n0", "--data", str(directory / "data"), "--registry", "sqlite:none", "--durability", "async",
            "--listen", "127.0.0.1:1", "--http", "127.0.0.1:2", "--metrics-listener", f"{port},{how}",
            "--certificates", str(self.server), "--client-ca", str(self.clients),
        ])  # fmt: skip
        self.registry = SecuredRegistry((TopicSpec("orders", 1),))
        self.events: list[dict] = []
        self.audit: list[dict] = []
        self.node = Node(
            config,
            self.registry,  # type: ignore[arg-type]
            lambda event, **fields: self.events.append({"event": event, **fields}),
            lambda event, **fields: self.audit.append({"event": event, **fields}),
        )
        self.port: SecuredPort

    async def get(
        self, bearer: str = "", client: Issued | None = None, path: str = "/metrics", scheme: str = "https"
    ) -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
        address = f"{scheme}://127.0.0.1:{self.port.address[1]}{path}"
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(10)) as session,
            session.get(address, headers=headers, ssl=self.trust(client), server_hostname=NAME) as answer,
        ):
            return answer.status, await answer.text()

    def trust(self, client: Issued | None = None, most: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.ca.pem.decode())
        context.maximum_version = most
        if client is not None:
            write(self.server.parent / "client", client, None)
            context.load_cert_chain(
                self.server.parent / "client" / "tls.crt", self.server.parent / "client" / "tls.key"
            )
        return context

    def connect(self) -> socket.socket:
        return socket.create_connection(self.port.address, timeout=10)


@asynccontextmanager
async def metrics(directory: Path, how: str, document: SecuritySpec | None = DOCUMENT) -> AsyncIterator[Metrics]:
    directory.joinpath("data").mkdir()
    found = Metrics(directory, how)
    found.registry.put(document)
    port = await serve_metrics(found.node)
    assert port is not None
    found.port = port
    try:
        await found.node.read_cluster()
        await found.node.prepare()
        await found.node.start()
        await until(lambda: bool(found.node.hosts()) and found.node.not_ready() is None)
        yield found
    finally:
        await port.close()
        await found.node.stop()
        found.node._lock.close()


def run(story: Callable[[], object]) -> None:
    asyncio.run(story())  # type: ignore[arg-type]


def test_a_token_needs_the_right_to_describe_all_topics(tmp_path: Path) -> None:
    async def story() -> None:
        async with metrics(tmp_path, "tls,token") as it:
            status, text = await it.get("prometheus")
            assert (status, 'topic="orders"' in text) == (200, True)
            status, text = await it.get("shop")
            assert (status, text) == (
                403, "'token:shop' may not Describe on all topics: none of its rules allows that\n",
            )  # fmt: skip
            assert [one["principal"] for one in it.audit] == ["token:shop"]
            for bad in ("", "unknown", "x" * 7_000):
                status, text = await it.get(bad)
                assert (status, "delay_" in text) == (401, False), bad[:20]
            assert (await it.get("prometheus", path="/healthz"))[0] == 404

    run(story)


def test_without_a_document_no_token_counts_and_clients_are_served_all_the_same(tmp_path: Path) -> None:
    async def story() -> None:
        async with metrics(tmp_path, "tls,token", None) as it:
            assert (await it.get())[0] == 401
            status, told = await it.get("prometheus")
            assert status == 503
            assert "has not read the security document yet" in told
            await until(lambda: it.node.not_ready() is None)
            it.node.security.rights.check(ANONYMOUS, Operation.PRODUCE, "orders")
            it.registry.put(DOCUMENT)
            await until(lambda: it.node.security.rights.explain(ANONYMOUS, Operation.PRODUCE, "orders")[0] is False)
            assert (await it.get("prometheus"))[0] == 200

    run(story)


def test_a_certificate_does_too(tmp_path: Path) -> None:
    async def story() -> None:
        async with metrics(tmp_path, "tls,mtls") as it:
            assert (await it.get(client=it.client_ca.issue(PROMETHEUS)))[0] == 200
            assert (await it.get(client=it.client_ca.issue(SHOP)))[0] == 403
            assert (await it.get(client=it.client_ca.issue()))[0] == 401, "it names nobody"
            expired = it.client_ca.issue(PROMETHEUS, begins=-2 * DAY, ends=-DAY)
            for bad in (None, Authority("clients").issue(PROMETHEUS), it.ca.issue(PROMETHEUS), expired):
                with pytest.raises(aiohttp.ClientError):
                    await it.get(client=bad)

    run(story)


def test_the_common_port_has_them_only_where_there_is_no_other(tmp_path: Path) -> None:
    async def story() -> None:
        async with metrics(tmp_path, "plain,none") as it:
            assert (await it.get(scheme="http"))[0] == 200
            runner = await serve_http(it.node, "127.0.0.1:0")
            try:
                host, port = runner.address
                async with aiohttp.ClientSession() as session:
                    for path, status in (("metrics", 404), ("healthz", 200), ("readyz", 200)):
                        async with session.get(f"http://{host}:{port}/{path}") as answer:
                            assert answer.status == status, path
            finally:
                await runner.close()

    run(story)


def test_certificates_and_cas_that_were_replaced_count_for_the_next_connection(tmp_path: Path) -> None:
    async def story() -> None:
        async with metrics(tmp_path, "tls,mtls") as it:
            newer = Authority("clients")
            with pytest.raises(aiohttp.ClientError):
                await it.get(client=newer.issue(PROMETHEUS))
            write(it.clients, None, newer.pem)
            write(it.server, it.ca.issue(NAME, "other.svc"), it.ca.pem)
            for store in it.node.certificates.stores.values():
                await asyncio.to_thread(store.look)
            assert (await it.get(client=newer.issue(PROMETHEUS)))[0] == 200
            with pytest.raises(aiohttp.ClientError):
                await it.get(client=it.client_ca.issue(PROMETHEUS))
            write(it.server, Authority("other").issue(NAME), it.ca.pem)  # a bad one replaces none
            for store in it.node.certificates.stores.values():
                await asyncio.to_thread(store.look)
            assert (await it.get(client=newer.issue(PROMETHEUS)))[0] == 200

    run(story)


def test_plain_text_and_older_tls_are_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with metrics(tmp_path, "tls,token") as it:
            with pytest.raises(aiohttp.ClientError):
                await it.get("prometheus", scheme="http")

            def old() -> None:
                context = it.trust(most=ssl.TLSVersion.TLSv1_2)
                with it.connect() as plain, context.wrap_socket(plain, server_hostname=NAME):
                    pass

            with pytest.raises(ssl.SSLError):
                await asyncio.to_thread(old)
            assert (await it.get("prometheus"))[0] == 200

    run(story)


def test_strangers_who_fill_the_port_keep_nobody_out_for_long(tmp_path: Path) -> None:
    """They never begin a handshake, or end one and then say nothing."""

    async def story() -> None:
        async with metrics(tmp_path, "tls,token") as it:
            loop, context = asyncio.get_running_loop(), it.trust()
            idle = [await asyncio.open_connection(*it.port.address) for _ in range(secured_http.MAX_CONNECTIONS)]
            silent = [
                await asyncio.open_connection(*it.port.address, ssl=context, server_hostname=NAME) for _ in range(20)
            ]
            began = loop.time()
            assert (await it.get("prometheus"))[0] == 200
            assert loop.time() - began < 5
            assert len(it.port._open) <= secured_http.MAX_CONNECTIONS
            for _, writer in (*idle, *silent):
                writer.transport.abort()

    run(story)


@pytest.mark.parametrize("wrapped", [False, True], ids=["no handshake", "no request"])
def test_a_connection_on_which_nothing_comes_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrapped: bool
) -> None:
    monkeypatch.setattr(secured_http, "HANDSHAKE_SECONDS", 0.5)
    monkeypatch.setattr(secured_http, "CONNECTION_SECONDS", 1.0)

    async def story() -> None:
        async with metrics(tmp_path, "tls,token") as it:
            options = {"ssl": it.trust(), "server_hostname": NAME} if wrapped else {}
            reader, writer = await asyncio.open_connection(*it.port.address, **options)
            with closing(writer.transport), suppress(OSError):
                assert await asyncio.wait_for(reader.read(), 10) == b""

    run(story)
