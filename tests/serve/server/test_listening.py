"""A TLS listener of grpcio's edge whose port is taken."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from delaynode import config as configuration
from delaynode.limits.flow import Flow
from delaynode.listener_options import ListenerConfig
from delaynode.server import grpc_edge
from delaynode.server.grpc_edge import GrpcEdge
from delaynode.server.listeners import Material

from tests.security.authority import Authority

NAME = "shared.messages.svc"


class CertifiedLater:
    """A listener `tls` at a port of its own, which has the certificates that it was given last."""

    name, identifies, max_age_ms, forwards = "tls", False, None, False

    def __init__(self) -> None:
        self.taken = socket.create_server(("127.0.0.1", 0))
        listen = f"127.0.0.1:{self.taken.getsockname()[1]}"
        self.config = ListenerConfig("tls", listen, listen, True, "none")
        self.given: Material | None = None
        self.told: Callable[[], object] = lambda: None

    def material(self) -> Material | None:
        return self.given

    def subscribe(self, told: Callable[[], object]) -> None:
        self.told = told
        told()

    async def answers(self, roots: bytes) -> bool:
        credentials = grpc.ssl_channel_credentials(roots)
        options = [("grpc.ssl_target_name_override", NAME)]
        async with grpc.aio.secure_channel(self.config.listen, credentials, options) as channel:
            try:
                await asyncio.wait_for(channel.channel_ready(), 1)
            except TimeoutError:
                return False
            return True


@asynccontextmanager
async def stopped(edge: GrpcEdge) -> AsyncIterator[None]:
    try:
        yield
    finally:

        async def nothing() -> None:
            pass

        await edge.stop(nothing)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def edge_of(listener: CertifiedLater) -> GrpcEdge:
    config = configuration.parse(["--node-id", "n", "--data", "d", "--registry", "sqlite:r", "--edge", "grpcio"])
    return GrpcEdge(100, Flow(config, lambda *_, **__: None), {}, [listener], None)  # type: ignore[list-item,arg-type]


def test_with_certificates_the_node_ends_as_it_does_for_a_port_without_tls() -> None:
    async def main() -> None:
        listener, authority = CertifiedLater(), Authority("server")
        listener.given = Material(authority.issue(NAME), None)  # type: ignore[arg-type]
        edge = edge_of(listener)
        async with stopped(edge):
            with (
                listener.taken,
                pytest.raises(RuntimeError, match=f"Failed to bind to address {listener.config.listen}"),
            ):
                await edge.start()

    asyncio.run(main())


def test_with_certificates_that_come_later_it_is_tried_until_the_port_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_edge, "LISTEN_AGAIN_SECONDS", 0.1)
    told: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        listener, authority = CertifiedLater(), Authority("server")
        edge = edge_of(listener)
        async with stopped(edge):
            await edge.start()
            with listener.taken:
                listener.given = Material(authority.issue(NAME), None)  # type: ignore[arg-type]
                listener.told()
                await until(lambda: len(told) > 1)
            async with asyncio.timeout(30):
                while not await listener.answers(authority.pem):
                    pass

    asyncio.run(main())
    assert {one["message"] for one in told} == {"can't listen, which is tried again"}
