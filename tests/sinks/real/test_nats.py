"""A sink to NATS JetStream, with the real server: $DELAY_NATS_SERVER, `nats-server` on the PATH, or, where Go is, the
one that Go builds from its module, which is kept in the cache."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from delayclient.admin.admin import Admin
from delayclient.producer.producer import Producer
from delaylocal import LocalCluster
from delaysink.nats_target import NatsTarget
from delaysink.settings import NatsSettings

from e2e.cluster.golang import go_command, go_environment
from tests.sinks.support.nats_keys import NatsOperator
from tests.sinks.support.processes import SinkProcess

pytestmark = pytest.mark.timeout(900)  # the first time in a cache it is built: 42 s of one core
VERSION = "v2.14.0"
MAX_PAYLOAD = 10_000


@pytest.fixture(scope="module")
def program() -> str:
    """The server's, which is built once for each cache."""
    if found := os.environ.get("DELAY_NATS_SERVER") or shutil.which("nats-server"):
        return found
    if shutil.which("go") is None:
        pytest.skip("there is neither a nats-server, which $DELAY_NATS_SERVER may name, nor Go to build it")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "delaycluster" / f"nats-server-{VERSION}"
    built = cache / "nats-server"
    if not built.exists():
        module = f"github.com/nats-io/nats-server/v2@{VERSION}"
        ours = {**go_environment(), "GOBIN": str(cache)}
        subprocess.run([go_command(), "install", module], env=ours, check=True, timeout=600)
    return str(built)


@contextmanager
def server(program: str, folder: Path, port: int, more: str = "") -> Iterator[str]:
    """more: of its configuration."""
    folder.mkdir(exist_ok=True)
    config = folder / "nats.conf"
    config.write_text(
        f"listen: 127.0.0.1:{port}\nmax_payload: {MAX_PAYLOAD}\njetstream {{ store_dir: '{folder}/store' }}\n" + more
    )
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen([program, "-c", str(config)], stderr=log, stdout=log)
    try:
        yield f"nats://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        found: int = free.getsockname()[1]
        return found


async def stored(url: str, count: int, timeout_s: float = 60, **access: Any) -> list[Any]:
    """All messages of the stream, once there are so many."""
    client = await nats.connect(url, **access)
    stream = client.jetstream()
    async with asyncio.timeout(timeout_s):
        while True:
            if (await stream.stream_info("orders")).state.messages >= count:
                break
            await asyncio.sleep(0.1)
    last = (await stream.stream_info("orders")).state.last_seq
    found = [await stream.get_msg("orders", seq) for seq in range(1, last + 1)]
    await client.close()
    return found


async def make_stream(url: str, **access: Any) -> None:
    client = await nats.connect(url, **access)
    await client.jetstream().add_stream(name="orders", subjects=["orders.due"])
    await client.close()


def test_each_message_is_stored_once_through_a_restart_of_nats(
    cluster: LocalCluster, topic: str, tmp_path: Path, port: int, program: str
) -> None:
    count = 300
    spec = {"topic": topic, "nats": {"servers": [f"nats://127.0.0.1:{port}"], "subject": "orders.due", "timeout": "3s"}}

    async def main() -> None:
        async with Producer(cluster.endpoints[0]) as producer:
            with server(program, tmp_path / "nats", port) as url:
                await make_stream(url)
            # Nobody listens at first; then NATS is killed in the middle.
            first = await producer.send_batch(topic, [b"%d" % at for at in range(count)], keys=["k"] * count)
            async with SinkProcess(tmp_path, cluster.endpoints[0], "n", spec) as sink:
                await sink.until(state="NotReachable")
                with server(program, tmp_path / "nats", port) as url:
                    await stored(url, 50)
                second = await producer.send_batch(topic, [b"more"] * 100)
                await asyncio.sleep(1)
                with server(program, tmp_path / "nats", port) as url:
                    found = await stored(url, count + 100, 180)
                    await sink.until(120, delivered=count + 100)
                    ids = [it.headers["Nats-Msg-Id"] for it in found]
                    assert sorted(ids) == sorted([*first.handles, *second.handles])
                    by_id = dict(zip(ids, found, strict=True))
                    one = by_id[first.handles[7]]
                    assert (one.data, one.subject, one.headers["ce-subject"]) == (b"7", "orders.due", "k")
                    assert one.headers["ce-specversion"] == "1.0"

    asyncio.run(main())


def test_what_nats_never_takes_is_a_dead_letter_and_no_stream_is_said(
    cluster: LocalCluster, topic: str, tmp_path: Path, port: int, program: str
) -> None:
    spec = {"topic": topic, "nats": {"servers": [f"nats://127.0.0.1:{port}"], "subject": "orders.due", "timeout": "2s"}}

    async def main() -> None:
        async with Producer(cluster.endpoints[0]) as producer:
            with server(program, tmp_path / "nats", port):
                await producer.send(topic, b"x" * (MAX_PAYLOAD + 1))
                async with SinkProcess(tmp_path, cluster.endpoints[0], "n", spec) as sink:
                    report = await sink.until(dead=1)
                    assert "NATS takes 10,000 bytes at most" in report["failures"][-1]["why"]
                    await producer.send(topic, b"small")
                    report = await sink.until(failures=2)
                    assert "no response from stream" in report["failures"][1]["why"]
                    assert await sink.end() == 0
            async with Admin(cluster.endpoints[0]) as admin:
                assert sum(it.dead for it in await admin.describe_group(topic, "n")) == 1

    asyncio.run(main())


def test_credentials_are_shown_to_nats_and_what_is_wrong_with_them_is_said(
    cluster: LocalCluster, topic: str, tmp_path: Path, port: int, program: str
) -> None:
    """A server with an operator, as NATS in production has: it knows a user by a JWT and a signature."""
    operator, stranger = NatsOperator(), NatsOperator()
    credentials = {"secret": {"name": "orders-nats", "key": "user.creds"}}
    spec = {
        "topic": topic,
        "nats": {
            "servers": [f"nats://127.0.0.1:{port}"], "subject": "orders.due", "timeout": "3s",
            "credentials": credentials,
        },
    }  # fmt: skip
    path = tmp_path / "orders-nats" / "user.creds"

    async def main() -> None:
        more = operator.configuration
        async with Producer(cluster.endpoints[0]) as producer:
            with server(program, tmp_path / "nats", port, more) as url:
                await make_stream(url, **operator.access)
                await producer.send_batch(topic, [b"first"] * 5)
                async with SinkProcess(tmp_path, cluster.endpoints[0], "n", spec) as sink:
                    await sink.until(state="SecretUnusable")
                    path.parent.mkdir()
                    path.write_text(stranger.credentials)
                    await sink.until(state="NotReachable", says="Authorization Violation")
                    path.write_text(operator.credentials)
                    await sink.until(delivered=5)
                    path.write_text("no credentials")  # replaces none that was good
                    await sink.until(says="user.creds has no NATS USER JWT")
                    await producer.send_batch(topic, [b"second"] * 5)
                    report = await sink.until(delivered=10)
                    assert report["state"] == "Delivering"
                    shown = sink.log_text() + await sink.get("/status") + await sink.get("/metrics")
                    for key in (operator, stranger):
                        assert key.user.seed not in shown
                        assert key.user_jwt not in shown
                    found = await stored(url, 10, **operator.access)
                    assert [it.data for it in found] == [b"first"] * 5 + [b"second"] * 5
                    assert await sink.end() == 0

    asyncio.run(main())


def test_credentials_that_expire_while_connected_are_replaced_without_a_restart(
    cluster: LocalCluster, topic: str, tmp_path: Path, port: int, program: str
) -> None:
    operator = NatsOperator()
    nats_spec = {
        "servers": [f"nats://127.0.0.1:{port}"], "subject": "orders.due", "timeout": "3s",
        "credentials": {"secret": {"name": "orders-nats", "key": "user.creds"}},
    }  # fmt: skip
    spec = {"topic": topic, "nats": nats_spec}
    path = tmp_path / "orders-nats" / "user.creds"
    path.parent.mkdir()

    async def main() -> None:
        async with Producer(cluster.endpoints[0]) as producer:
            with server(program, tmp_path / "nats", port, operator.configuration) as url:
                await make_stream(url, **operator.access)
                expire_s = int(time.time()) + 20
                path.write_text(operator.credentials_until(expire_s))
                async with SinkProcess(tmp_path, cluster.endpoints[0], "n", spec) as sink:
                    await producer.send(topic, b"in time")
                    await sink.until(delivered=1)
                    await asyncio.sleep(max(0.0, expire_s + 2 - time.time()))
                    await producer.send(topic, b"too late")
                    report = await sink.until(failures=1)
                    why = report["failures"][0]["why"]
                    assert "xpired" in why or "Auth" in why
                    path.write_text(operator.credentials)
                    await sink.until(delivered=2)
                    assert [it.data for it in await stored(url, 2, **operator.access)] == [b"in time", b"too late"]

    asyncio.run(main())


@pytest.mark.parametrize("rude", [True, False])
def test_a_connection_that_nats_ends_without_a_word_is_no_connection(tmp_path: Path, rude: bool) -> None:
    """As when it closes a refused one before it has read all that the client sent."""
    refusals = iter([b"-ERR 'Authorization Violation'\r\n"])

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"auth_required": true}\r\n')
        await reader.readuntil(b"PING\r\n")
        writer.write(next(refusals, b""))
        await writer.drain()
        if rude:
            writer.transport.abort()
        writer.close()

    async def main() -> str:
        async with await asyncio.start_server(refuse, "127.0.0.1", 0) as listener:
            port = listener.sockets[0].getsockname()[1]
            target = NatsTarget(NatsSettings((f"nats://127.0.0.1:{port}",), "due", "", "", None, 3_500), tmp_path)
            with pytest.raises(ConnectionError) as refused:
                await target.open()
            with pytest.raises(StopIteration):
                next(refusals)
            return str(refused.value)

    assert "'Authorization Violation'" in asyncio.run(main())
