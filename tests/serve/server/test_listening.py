"""A TLS listener of grpcio's edge whose port is taken, or whose certificates are of no use."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from delayapi.address import split
from delayapi.certificates import Certificates
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


def test_a_node_whose_port_is_taken_ends_as_it_does_without_tls() -> None:
    async def main() -> None:
        listener = CertifiedLater()
        edge = edge_of(listener)
        async with stopped(edge):
            with listener.taken, pytest.raises(OSError, match=f"^can't listen on {listener.config.listen}: "):
                await edge.start()

    asyncio.run(main())


def test_a_port_that_is_taken_before_the_certificates_come_is_tried_until_it_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grpc_edge, "LISTEN_AGAIN_SECONDS", 0.1)
    told: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        listener, authority = CertifiedLater(), Authority("server")
        listener.taken.close()
        edge = edge_of(listener)
        async with stopped(edge):
            await edge.start()
            with socket.create_server(split(listener.config.listen)):
                listener.given = Material(authority.issue(NAME), None)  # type: ignore[arg-type]
                for _ in range(3):  # as of three stores of certificates
                    listener.told()
                await until(lambda: len(told) > 5)
                assert len(edge._again) == 1
            async with asyncio.timeout(30):
                while not await listener.answers(authority.pem):
                    pass
            assert not edge._again

    asyncio.run(main())
    assert all("can't listen on 127.0.0.1:" in one["message"] for one in told)


def test_certificates_that_grpc_cannot_use_end_no_node_and_the_next_are_used() -> None:
    told: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        listener, authority = CertifiedLater(), Authority("server")
        listener.taken.close()
        good, other = authority.issue(NAME), authority.issue(NAME)
        listener.given = Material(Certificates(good.chain_pem, other.key_pem, b"", 0, ()), None)
        edge = edge_of(listener)
        async with stopped(edge):
            await edge.start()
            await until(lambda: bool(told))
            listener.given = Material(good, None)  # type: ignore[arg-type]
            listener.told()
            async with asyncio.timeout(30):
                while not await listener.answers(authority.pem):
                    pass

    asyncio.run(main())
    assert ["gRPC can't use these certificates" in one["message"] for one in told] == [True]
