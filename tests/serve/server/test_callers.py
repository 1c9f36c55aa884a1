"""Who calls, by both edges: asked once, before anything is taken, and for as long as the answer holds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delaylocal import ports
from delaynode import config as configuration
from delaynode.auth.identity import Identity, IdentityKind
from delaynode.limits import connections
from delaynode.limits.budget import Answers
from delaynode.limits.flow import Flow
from delaynode.listener_options import ListenerConfig
from delaynode.node_certificates import NodeCertificates
from delaynode.replication.transport.until import wait_until
from delaynode.server import callers as callers_module
from delaynode.server.callers import Callers, Said
from delaynode.server.compiled_edge import CompiledEdge
from delaynode.server.edge import Call, Methods, Stream
from delaynode.server.grpc_edge import GrpcEdge
from delaynode.server.listeners import Listener
from delaynode.store.errors import Refused

from tests.serve.support.client import Msg, request
from tests.serve.support.listening import NOTHING

S = "delay.v1.DelayService"
CLUSTER = "spiffe://delaycluster/ns/a/cluster/b/role/"


class Known:
    """Identities: those of these tokens. asked: what was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[str, ...], str | None]] = []
        self.expires_s: float | None = None
        self.hangs = False
        self.gate: asyncio.Event | None = None  # until which nobody is known

    async def resolve(
        self, listener: str, names: tuple[str, ...], authorization: str | None, ends_ms: int | None = None
    ) -> Identity:
        self.asked.append((listener, names, authorization))
        if self.hangs:
            await asyncio.Event().wait()
        if self.gate is not None:
            await self.gate.wait()
        if names:
            role = names[0].removeprefix(CLUSTER)
            return Identity(names[0], IdentityKind.PEER, role=role)
        if authorization is None:
            raise Refused("UNAUTHENTICATED", "who are you?")
        expires_ms = None if self.expires_s is None else int((time.time() + self.expires_s) * 1_000)
        return Identity("token:" + authorization, IdentityKind.TOKEN, expires_ms)


async def who(_: bytes, call: Call, __: Answers) -> bytes:
    return f"{call.listener()} {call.identity().principal} {call.forwarded()}".encode()


async def wait(stream: Stream) -> AsyncGenerator[bytes, None]:
    yield stream.identity().principal.encode()
    while (data := await stream.read()) is not None:
        yield data


class Counted:
    """UserConnections that notes its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    async def admit(self, identity: Identity, connection: tuple[str, str]) -> None:
        self.calls.append(("admit", identity.principal))

    def left(self, connection: tuple[str, str]) -> None:
        self.calls.append(("left", connection[0]))


class World:
    """An edge in this process with the listeners `plain` and `tokens`, neither with TLS."""

    def __init__(self, kind: str) -> None:
        free = ports.choose(0, 2).grpc
        asked = [
            ListenerConfig(name, f"127.0.0.1:{port}", f"127.0.0.1:{port}", False, how)
            for (name, how), port in zip((("plain", "none"), ("tokens", "token")), free, strict=True)
        ]
        self.at = {one.name: one.listen for one in asked}
        base = ["--node-id", "n", "--data", "d", "--registry", "sqlite:r", "--edge", "grpcio"]
        config = replace(configuration.parse(base), listeners=tuple(asked))
        certificates = NodeCertificates(NOTHING)
        listeners = [Listener(one, certificates, one.name == "plain", None) for one in asked]
        self.known, self.groups = Known(), []
        self.counted = Counted()
        callers = Callers(self.known, listeners, self.counted)
        flow = Flow(config, lambda *_, **__: None)
        services = {S: Methods({"Who": who}, {"Enqueue": self.enqueue}, {"Wait": wait, "EnqueueStream": wait})}
        if kind == "grpcio":
            self.edge: Any = GrpcEdge(100, flow, services, listeners, callers)
        else:
            rows: Any = SimpleNamespace(take=self.take, close=self.close, turn=nullcontext)
            self.edge = CompiledEdge(
                config, flow, rows, f"/{S}/Enqueue", f"/{S}/EnqueueStream", services, listeners, callers, print
            )

    async def enqueue(self, data: bytes, call: Call, _: Answers) -> bytes:
        self.groups.append(call.identity())
        raise Refused("DISK_FULL", "no")

    def take(self, group: Any) -> None:
        self.groups.append(group.identity())
        group.answers.refused(0, len(group.runs), Refused("DISK_FULL", "no"))

    async def close(self) -> None:
        pass

    def channel(self, listener: str = "tokens") -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(self.at[listener], [("grpc.use_local_subchannel_pool", 1)])


def run(edge: str, claim: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        world = World(edge)
        await world.edge.start()
        try:
            await claim(world)
        finally:

            async def meanwhile() -> None:
                pass

            await world.edge.stop(meanwhile)

    asyncio.run(main())


def said(token: str, *more: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    return (("authorization", token), *more)


def test_each_connection_and_token_is_asked_for_once(edge: str) -> None:
    async def claim(world: World) -> None:
        for _ in range(2):
            async with world.channel() as channel:
                ask = channel.unary_unary(f"/{S}/Who")
                for token in ("a", "b", "a", "b"):
                    assert await ask(b"", metadata=said(token), timeout=20) == f"tokens token:{token} False".encode()
        assert world.known.asked == [("tokens", (), "a"), ("tokens", (), "b")] * 2
        async with world.channel("plain") as channel:
            assert (
                await channel.unary_unary(f"/{S}/Who")(b"", metadata=said("a"), timeout=20) == b"plain anonymous False"
            )
        assert len(world.known.asked) == 4

    run(edge, claim)


def test_a_connection_that_ends_before_its_caller_is_known_is_nobodys_afterwards(edge: str) -> None:
    if edge != "compiled":
        pytest.skip("gRPC does not tell of ends")

    async def claim(world: World) -> None:
        world.known.gate = asyncio.Event()
        async with world.channel() as channel:
            call = asyncio.ensure_future(channel.unary_unary(f"/{S}/Who")(b"", metadata=said("a"), timeout=20))
            await wait_until(lambda: bool(world.known.asked), 0.01)
            ((_, peer),) = world.edge._identifying
            assert connections.cut({connections.address_of(peer)}) == 1
            await asyncio.wait([call])
            assert world.counted.calls == []
            world.known.gate.set()
            async with asyncio.timeout(10):
                await wait_until(lambda: len(world.counted.calls) == 2, 0.01)
        assert world.counted.calls == [("admit", "token:a"), ("left", "tokens")]

    run(edge, claim)


def test_nobody_is_refused_before_anything_is_taken(edge: str) -> None:
    async def claim(world: World) -> None:
        async with world.channel() as channel:
            for call in (
                channel.unary_unary(f"/{S}/Who")(b"", timeout=20),
                channel.unary_unary(f"/{S}/Enqueue")(request("t", 0, [Msg()]).SerializeToString(), timeout=20),
                channel.stream_stream(f"/{S}/Wait")(
                    timeout=20
                ).read(),  # a write might come too late, an error by itself
                channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=20),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    await call
                assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
                assert raised.value.details() == "who are you?"
        assert world.groups == []

    run(edge, claim)


def test_a_stream_ends_when_the_identity_expires_and_not_before(edge: str) -> None:
    async def claim(world: World) -> None:
        world.known.expires_s = 4.0
        async with world.channel() as channel:
            stream = channel.stream_stream(f"/{S}/Wait")(metadata=said("a"), timeout=30)
            began = time.monotonic()
            assert await stream.read() == b"token:a"
            await stream.write(b"x")
            assert await stream.read() == b"x"
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await stream.read()
            assert time.monotonic() - began > 3.8
            assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert "expired" in raised.value.details()
            trailing = dict(raised.value.trailing_metadata())
            assert b"UNAUTHENTICATED" in trailing["grpc-status-details-bin"]
            world.known.expires_s = None
            again = channel.stream_stream(f"/{S}/Wait")(metadata=said("a"), timeout=30)
            assert await again.read() == b"token:a"
            assert len(world.known.asked) == 2

    run(edge, claim)


def test_enqueued_rows_have_their_callers_identity(edge: str) -> None:
    async def claim(world: World) -> None:
        data = request("t", 0, [Msg()]).SerializeToString()
        bad = pb.EnqueueRequest(topic="t", count=3).SerializeToString()  # columns that don't fit
        async with world.channel() as channel, world.channel("plain") as plain:
            calls = [
                channel.unary_unary(f"/{S}/Enqueue")(one, metadata=said(token), timeout=20)
                for token in ("a", "b")
                for one in (data, data, bad)
            ]
            calls.append(plain.unary_unary(f"/{S}/Enqueue")(data, timeout=20))
            found = await asyncio.gather(*calls, return_exceptions=True)
        assert {one.code() for one in found} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert {one.principal for one in world.groups} == {"token:a", "token:b", "anonymous"}

    run(edge, claim)


@pytest.mark.parametrize(("listener", "counts"), [("plain", True), ("tokens", False)])
def test_that_a_call_was_forwarded_is_not_believed_of_a_client_with_a_token(
    edge: str, listener: str, counts: bool
) -> None:
    async def claim(world: World) -> None:
        metadata = said("a", ("x-delay-forwarded", "1"), ("x-delay-principal", "token:root"))
        async with world.channel(listener) as channel:
            answer = await channel.unary_unary(f"/{S}/Who")(b"", metadata=metadata, timeout=20)
        assert answer.decode().split()[1:] == ["token:a" if listener == "tokens" else "anonymous", str(counts)]

    run(edge, claim)


# ---------------------------------------------------------------- without an edge
def peers() -> Callers:
    config = ListenerConfig("internal", "h:1", "h:1", True, "peer")
    return Callers(Known(), [Listener(config, NodeCertificates(NOTHING), False, None)])


def find(said: Said) -> Any:
    return asyncio.run(peers().find("internal", said))


def test_a_node_says_whose_call_it_passes_on_and_that_it_does() -> None:
    node = (CLUSTER + "node",)
    passed_on = find(Said(node, None, "oidc:x%23%C3%A9"))
    assert (passed_on.identity.principal, passed_on.identity.kind) == ("oidc:x#é", IdentityKind.FORWARDED)
    assert passed_on.forwards
    own = find(Said(node, None, None))
    assert (own.identity.role, own.forwards) == ("node", True)


def test_the_operator_passes_on_nobodys_calls() -> None:
    operator = (CLUSTER + "operator",)
    assert not find(Said(operator, None, None)).forwards
    with pytest.raises(Refused, match="x-delay-principal counts only from a node"):
        find(Said(operator, None, "token:a"))


def test_who_can_not_be_found_out_in_time_is_asked_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers_module, "RESOLVE_SECONDS", 0.01)
    known = Known()
    known.hangs = True
    with pytest.raises(Refused) as raised:
        asyncio.run(Callers(known, []).find("tokens", Said((), "a", None)))
    assert raised.value.reason == "NOT_SERVING"


def test_what_is_kept_is_of_a_connection_a_certificate_and_a_token() -> None:
    async def claim() -> None:
        known = Known()
        callers = Callers(known, [])
        for _ in range(2):
            for peer in ("ipv4:1", "ipv4:2"):
                for token in ("a", "b"):
                    found = await callers.find_kept("tokens", peer, Said((), token, None))
                    assert found.identity.principal == "token:" + token
        assert len(known.asked) == 4
        await callers.find_kept("tokens", "ipv4:1", Said((CLUSTER + "node",), "a", None))
        assert len(known.asked) == 5
        known.expires_s = -1
        for _ in range(2):
            await callers.find_kept("tokens", "ipv4:3", Said((), "a", None))
        assert len(known.asked) == 7

    asyncio.run(claim())
