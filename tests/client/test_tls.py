"""Clients of listeners with TLS and tokens: rotation that no caller sees, and failures that say what is wrong."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from delayapi.connections import Connections
from delayapi.credentials import LOOK_S
from delayclient import Tls, errors, sync
from delayclient.admin.admin import Admin
from delayclient.consumer.consumer import Consumer
from delayclient.producer.producer import Producer
from delayclient.routing import access, diagnosis
from delayclient.routing.routing import Cluster

from tests.client.support.authority import NAME, serving, write_ca, write_client
from tests.client.support.fakegroup import Groups
from tests.client.support.fakes import FakeCluster, FakeNode, Refusal, until
from tests.security.authority import DAY, Authority


@dataclass
class World:
    """A node with TLS, whose certificate is for NAME."""

    node: FakeNode
    authority: Authority
    directory: Path

    @property
    def tls(self) -> Tls:
        return Tls(ca=write_ca(self.authority, self.directory / "ca.crt"), server_name=NAME)

    def token_file(self, token: str) -> Path:
        file = self.directory / "token"
        file.write_text(token)
        return file


@asynccontextmanager
async def world(directory: Path, *, queues: int = 1, tokens: set[str] | None = None) -> AsyncIterator[World]:
    authority, node = Authority(), FakeNode(FakeCluster(queues=queues))
    node.credentials, node.tokens = serving(authority), tokens
    async with node:
        yield World(node, authority, directory)


def test_nodes_that_routes_name_by_address_are_verified_by_the_clusters_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as it:
            groups = Groups(it.node)
            groups.queues[0].release([b"x"])
            async with Producer(it.node.endpoint, tls=it.tls) as producer:
                await producer.send("t", b"y", delay=5)
            async with Consumer(it.node.endpoint, "t", "g", tls=it.tls, auto_ack=True) as consumer:
                assert (await consumer.receive(5)).body == b"x"

    asyncio.run(main())


def test_name_that_the_user_gave_is_the_name_of_all_nodes(tmp_path: Path) -> None:
    async def main() -> None:
        cluster, authority = FakeCluster(), Authority()
        first, master = FakeNode(cluster), FakeNode(cluster)
        for node in (first, master):
            node.credentials = serving(authority, "localhost")
        async with first, master:
            endpoint = first.endpoint.replace("127.0.0.1", "localhost")
            async with Producer(endpoint, tls=Tls(write_ca(authority, tmp_path / "ca.crt"))) as producer:
                await producer.send("t", b"y", delay=5)
            assert master.came["EnqueueStream"] == 1

    asyncio.run(main())


def test_sync_clients_take_tls_and_a_token(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path, tokens={"secret"}) as it:

            def send() -> None:
                with sync.Producer(it.node.endpoint, tls=it.tls, token="secret") as producer:
                    producer.send("t", b"y", delay=5)

            await asyncio.to_thread(send)
            assert set(it.node.came_with) == {"Bearer secret"}

    asyncio.run(main())


def test_access_is_that_of_the_connection_that_is_given() -> None:
    async def main() -> None:
        async with Cluster("127.0.0.1:1") as cluster:
            with pytest.raises(ValueError, match="tls: the connection that is given has its own"):
                Producer(cluster, tls=Tls())

    asyncio.run(main())


# ------------------------------------------------------------------------------------------------ what went wrong


def silent() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


async def failure(endpoint: str, ask: str = "topics", **options: Any) -> errors.DelayError:
    began = time.monotonic()
    with pytest.raises(errors.DelayError) as raised:
        async with Admin(endpoint, timeout="30s", **options) as admin:
            await getattr(admin, ask)()
    assert time.monotonic() - began < 5.0
    return raised.value


@pytest.mark.parametrize("ask", ["topics", "nodes"])
@pytest.mark.parametrize(
    "case",
    [
        "UNTRUSTED_SERVER",
        "SERVER_CERTIFICATE_EXPIRED",
        "WRONG_SERVER_NAME",
        "SERVER_WANTS_TLS",
        "SERVER_IS_PLAIN",
        "CERTIFICATE_WANTED",
        "CERTIFICATE_REFUSED",
    ],
)
def test_connection_that_tls_is_in_the_way_of_fails_at_once_and_says_why(tmp_path: Path, case: str, ask: str) -> None:
    own, other = Authority(), Authority()
    ca = write_ca(own, tmp_path / "ca.crt")
    certificate, key = write_client(other, tmp_path)
    tls: Tls | None = Tls(ca, server_name=NAME)
    server, says = serving(own), ""
    if case == "UNTRUSTED_SERVER":
        server, says = serving(other), "is of a CA that this client does not trust"
    elif case == "SERVER_CERTIFICATE_EXPIRED":
        server, says = serving(own, ends=-DAY), "has expired"
    elif case == "WRONG_SERVER_NAME":
        server, says = serving(own, "a.svc", "b.svc"), f"is not for '{NAME}' but for a.svc, b.svc"
    elif case == "SERVER_WANTS_TLS":
        tls, says = None, "speaks TLS, and this client does not"
    elif case == "SERVER_IS_PLAIN":
        server, says = None, "does not speak TLS"
    elif case == "CERTIFICATE_WANTED":
        server, says = serving(own, clients=own.pem), "asks for a client's certificate"
    elif case == "CERTIFICATE_REFUSED":
        server, says = serving(own, clients=own.pem), "refuses this client's certificate"
        tls = Tls(ca, certificate, key, NAME)

    async def main() -> None:
        node = FakeNode(FakeCluster())
        node.credentials = server
        async with node:
            error = await failure(node.endpoint, ask, tls=tls)
            assert isinstance(error, errors.TlsFailed), error
            assert error.reason == case, error
            assert says in error.message
            assert node.endpoint in error.message
            assert not error.retryable

    asyncio.run(main())


def test_endpoint_that_cannot_be_reached_for_another_reason_is_not_called_a_matter_of_tls(tmp_path: Path) -> None:
    async def main() -> None:
        tls = Tls(write_ca(Authority(), tmp_path / "ca.crt"), server_name=NAME)
        with silent() as listener:
            endpoints = ["127.0.0.1:1", f"127.0.0.1:{listener.getsockname()[1]}"]
            for endpoint in endpoints:
                for options in ({}, {"tls": tls}):
                    assert diagnosis.diagnose(endpoint, endpoint, NAME, options.get("tls")) is None, endpoint
        assert type(await failure("127.0.0.1:1", tls=tls)) is errors.Unreachable
        assert type(await failure("127.0.0.1:1", "nodes", tls=tls)) is errors.Unavailable

    asyncio.run(main())


def test_cluster_that_has_answered_before_is_waited_for_and_the_reason_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as it, Cluster(it.node.endpoint, tls=it.tls) as cluster:
            await cluster.topics()
            await it.node.stop()
            it.node.credentials = serving(Authority())
            await it.node.start()
            with pytest.raises(errors.Unreachable, match="CA that this client does not trust") as raised:
                await cluster.topics()
            assert raised.value.retryable
            await it.node.stop()
            it.node.credentials = serving(it.authority)
            await it.node.start()
            async with Producer(cluster) as producer:
                await producer.send("t", b"y", delay=5)

    asyncio.run(main())


# ------------------------------------------------------------------------------------------------------- tokens


def test_calls_and_streams_carry_the_token_of_now(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path, tokens={"one", "two"}) as it:
            Groups(it.node)
            file = it.token_file("one")
            async with Cluster(it.node.endpoint, tls=it.tls, token_file=file) as cluster, Admin(cluster) as admin:
                await admin.topics()
                async with Producer(cluster) as producer:
                    await producer.send("t", b"y", delay=5)
                assert set(it.node.came_with) == {"Bearer one"}
                file.write_text("two")
                await asyncio.sleep(LOOK_S)
                it.node.came_with.clear()
                await admin.topics()
                async with Producer(cluster) as producer:
                    await producer.send("t", b"y", delay=5)
                assert set(it.node.came_with) == {"Bearer two"}

    asyncio.run(main())


def test_streams_that_end_with_their_token_go_on_with_the_next_one_and_no_caller_sees_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path, queues=2, tokens={"0"}) as it:
            groups = Groups(it.node)
            file = it.token_file("0")
            got: list[bytes] = []
            async with (
                Cluster(it.node.endpoint, tls=it.tls, token_file=file) as cluster,
                Producer(cluster) as producer,
                Consumer(cluster, "t", "g") as consumer,
            ):

                async def receive() -> None:
                    async for message in consumer:
                        got.append(message.body)
                        message.ack()

                receiving = asyncio.create_task(receive())
                for turn in range(1, 6):
                    groups.queues[turn % 2].release([f"{turn}".encode()])
                    sent = [producer.send("t", f"{turn}.{i}", delay=5) for i in range(20)]
                    await until("it has come", lambda turn=turn: len(got) == turn)
                    file.write_text(str(turn))
                    it.node.tokens = {str(turn)}
                    it.node.expired.set()
                    sent += [producer.send("t", f"{turn}.{i}", delay=5) for i in range(20)]
                    await asyncio.sleep(0)
                    it.node.expired = asyncio.Event()
                    await asyncio.gather(*sent)
                groups.queues[0].release([b"last"])
                await until("the last one has come", lambda: len(got) == 6)
                await consumer.flush()
                assert not receiving.done()
                receiving.cancel()
            assert groups.all_acked()
            bodies = [body for shard in it.node.cluster.shards for body in shard.bodies()]
            assert len(bodies) == len({*bodies}) + 100 == 200, "each twice in a turn, and none once more"

    asyncio.run(main())


def test_stream_whose_certificate_has_expired_is_opened_again_with_the_newer_one(tmp_path: Path) -> None:
    """Nodes end what came by it; nobody who waits for an answer is told."""

    async def main() -> None:
        async with world(tmp_path, tokens={""}) as it:  # the certificate is enough
            certificate, key = write_client(it.authority, tmp_path)
            tls = replace(it.tls, certificate=certificate, key=key)
            async with Producer(it.node.endpoint, tls=tls) as producer:
                await producer.send("t", b"0", delay=5)
                sent = [producer.send("t", f"{turn}", delay=5) for turn in range(20)]
                await asyncio.sleep(0)
                it.node.expired.set()
                write_client(it.authority, tmp_path)
                await asyncio.sleep(0.05)
                it.node.expired = asyncio.Event()
                await asyncio.gather(*sent)
            async with Producer(it.node.endpoint, tls=it.tls) as nobody:
                await nobody.send("t", b"0", delay=5)
                it.node.expired.set()
                with pytest.raises(errors.NotAuthenticated):
                    await nobody.send("t", b"1", delay=5)

    asyncio.run(main())


def test_token_that_is_wrong_from_the_start_is_an_error_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path, tokens={"right"}) as it:
            for options in ({"token": "wrong"}, {"token_file": it.token_file("wrong")}, {}):
                error = await failure(it.node.endpoint, tls=it.tls, **options)
                assert type(error) is errors.NotAuthenticated
                assert error.message == "the token is not valid"

    asyncio.run(main())


@pytest.mark.parametrize("method", ["Ack", "ListPending"])
def test_token_that_is_not_renewed_in_time_is_an_error_of_calls(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "RENEWAL_S", 0.5)

    async def main() -> None:
        async with world(tmp_path, tokens={"0"}) as it:
            file = it.token_file("0")
            async with Admin(it.node.endpoint, tls=it.tls, token_file=file) as admin:
                await admin.topics()
                it.node.tokens = set()
                began = time.monotonic()
                with pytest.raises(errors.NotAuthenticated):
                    await admin.cluster.call(method, "t", 0, _request(method), lambda answer: answer)
                assert 0.4 < time.monotonic() - began < 3.0

    asyncio.run(main())


def _request(method: str) -> Any:
    from delayapi.proto.delay.v1 import delay_pb2

    return getattr(delay_pb2, f"{method}Request")(topic="t", queue=0)


def test_consumer_hears_that_its_token_is_not_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "RENEWAL_S", 0.5)

    async def main() -> None:
        async with world(tmp_path, tokens={"0"}) as it:
            Groups(it.node)
            async with Consumer(it.node.endpoint, "t", "g", tls=it.tls, token_file=it.token_file("0")) as consumer:
                await until("it polls", lambda: it.node.came["Receive"])
                it.node.tokens = set()
                it.node.expired.set()
                with pytest.raises(errors.NotAuthenticated):
                    await consumer.receive(5.0)

    asyncio.run(main())


def test_what_the_caller_may_not_do_is_an_error_of_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as it, Producer(it.node.endpoint, tls=it.tls) as producer:

            async def fault(request: Any) -> str:
                return "PERMISSION_DENIED"

            it.node.fault = fault
            with pytest.raises(errors.NotAllowed):
                await producer.send("t", b"y", delay=5)

            def refuse(request: Any) -> Any:
                raise Refusal("PERMISSION_DENIED", principal="token:shop", operation="Consume")

            it.node.unary["Receive"] = refuse
            async with Consumer(it.node.endpoint, "t", "g", tls=it.tls) as consumer:
                with pytest.raises(errors.NotAllowed) as raised:
                    await consumer.receive(5.0)
            assert raised.value.metadata["operation"] == "Consume"

    asyncio.run(main())


# ------------------------------------------------------------------------------------------------- certificates


def test_new_certificates_make_new_channels_and_the_old_ones_end_with_their_calls(tmp_path: Path) -> None:
    """CA and certificate are rolled over while streams are open: none breaks."""

    def pair(authority: Authority) -> tuple[bytes, bytes]:
        issued = authority.issue(NAME)
        return issued.key_pem, issued.chain_pem

    async def main() -> None:
        old, new = Authority("old"), Authority("new")
        ca, (certificate, key) = write_ca(old, tmp_path / "ca.crt"), write_client(old, tmp_path)
        served = grpc.ssl_server_certificate_configuration([pair(old)], old.pem)
        node = FakeNode(FakeCluster())
        node.credentials = grpc.dynamic_ssl_server_credentials(served, lambda: served, True)
        async with node, Cluster(node.endpoint, tls=Tls(ca, certificate, key, NAME)) as cluster:
            async with Producer(cluster) as producer:
                await producer.send("t", b"0", delay=5)
                connections: Connections = cluster._connections[node.endpoint]
                ca.write_bytes(old.pem + new.pem)
                write_client(new, tmp_path)
                served = grpc.ssl_server_certificate_configuration([pair(new)], old.pem + new.pem)
                await asyncio.sleep(LOOK_S)
                await cluster.topics()
                assert (len(connections), connections.draining) == (1, 1), "the producer's stream is on the old one"
                served = grpc.ssl_server_certificate_configuration([pair(new)], new.pem)
                await producer.send("t", b"1", delay=5)
                assert node.streams == 1
            await until("the old channel is closed", lambda: not connections.draining)
            async with Producer(cluster) as producer:
                await producer.send("t", b"2", delay=5)
        assert node.cluster.shards[0].bodies() == [b"0", b"1", b"2"]

    asyncio.run(main())
