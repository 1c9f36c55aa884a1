"""`delayctl sinks run | check`, as processes, against a node of `delayctl local`."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from delayclient.admin.admin import Admin
from delayclient.producer.producer import Producer
from standardwebhooks import Webhook

from tests.sinks.support.receiver import Receiver, Request, status

DELAYCTL = [sys.executable, "-c", "from delayctl.main import main; main()"]
SECRET = "whsec_" + base64.b64encode(b"s" * 32).decode()
EXAMPLE = Path(__file__).parents[3] / "docs/examples/webhook/sink.yaml"
COUNT = 100
USAGE = 2


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("local")
    words = ["local", "--nodes", "1", "--port", "0", "--data", str(folder / "data")]
    names = [*(f"orders{at}" for at in range(4)), "order-timeouts"]
    topics = [word for name in names for word in ("--topic", f"{name}:2")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*DELAYCTL, *words, *topics], stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    try:
        ready = json.loads(process.stdout.readline())
        assert ready["event"] == "ready", ready
        yield ready["endpoints"][0]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        found: int = free.getsockname()[1]
        return found


def sink_file(folder: Path, topic: str, url: str, **more: Any) -> Path:
    """In YAML, as a user writes it, with its secret beside it."""
    (folder / "hook").mkdir(exist_ok=True)
    (folder / "hook/key").write_text(SECRET)
    http = {"url": url, "allow": ["127.0.0.1"], "timeout": "20s", "signing": {"secret": {"name": "hook", "key": "key"}}}
    path = folder / "sink.yaml"
    spec = json.dumps({"topic": topic, "http": http, **more}, indent=2).replace("\n", "\n  ")
    path.write_text(f"# Calls the shop.\nkind: DelaySink\nmetadata:\n  name: pay\nspec:\n  {spec}\n")
    return path


async def start(*words: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*DELAYCTL, "sinks", *words, stdout=pipe, stderr=pipe)


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str, str]:
    """Its exit code, and what it printed and said."""
    async with asyncio.timeout(90):
        printed, said = await process.communicate()
    assert process.returncode is not None
    return process.returncode, printed.decode(), said.decode()


def done(*words: str) -> tuple[int, str, str]:
    async def main() -> tuple[int, str, str]:
        return await ended(await start(*words))

    return asyncio.run(main())


def test_run_delivers_until_ctrl_c_and_what_was_not_delivered_is_the_next_one_s(endpoint: str, tmp_path: Path) -> None:
    """Ctrl-C comes while four requests have no answer yet: they end, and the others cost no attempt."""
    held, go_on = asyncio.Event(), asyncio.Event()

    async def when_told(request: Request, writer: asyncio.StreamWriter) -> None:
        held.set()
        await go_on.wait()
        await status(204)(request, writer)

    async def main() -> None:
        async with Receiver(lambda _: when_told) as receiver, Producer(endpoint) as producer:
            path = sink_file(tmp_path, "orders0", receiver.url, maxConcurrency=4)
            sent = await producer.send_batch("orders0", [b'{"n": %d}' % at for at in range(COUNT)])
            first = await start("run", str(path), "--endpoint", endpoint)
            await receiver.wait_for(4)
            first.send_signal(signal.SIGINT)
            with pytest.raises(TimeoutError):  # it waits for the four
                await asyncio.wait_for(first.wait(), 1)
            go_on.set()
            code, _, said = await ended(first)
            events = [json.loads(line) for line in said.splitlines()]
            assert code == 0
            assert [it["event"] for it in events] == ["sink-started", "sink-state", "sink-stopped"]
            assert events[-1]["delivered"] == len(receiver.requests) == 4
            async with Admin(endpoint) as admin:
                assert sum(it.lag for it in await admin.describe_group("orders0", "pay")) == COUNT - 4
            second = await start("run", str(path), "--endpoint", endpoint)
            await receiver.wait_for(COUNT)
            second.send_signal(signal.SIGTERM)
            assert (await ended(second))[0] == 0
            assert sorted(it.id for it in receiver.requests) == sorted(sent.handles), "each once"
            assert {it.headers["ce-delayattempt"] for it in receiver.requests} == {"1"}
            for request in receiver.requests:
                Webhook(SECRET).verify(request.body, {name.lower(): it for name, it in request.headers.items()})

    asyncio.run(main())


def test_the_example_delivers_as_it_stands_but_for_its_url(endpoint: str, tmp_path: Path) -> None:
    """Ten lines of YAML and no consumer; its secret is beside the file."""
    (tmp_path / "order-hook").mkdir()
    (tmp_path / "order-hook/key").write_text(SECRET)
    text = EXAMPLE.read_text()
    url = "https://shop.example.com/hooks/order-timeout"
    assert url in text

    async def main() -> None:
        async with Receiver(lambda _: status(204)) as receiver, Producer(endpoint) as producer:
            path = tmp_path / "sink.yaml"
            ours = f"http://127.0.0.1:{receiver.port}/hooks/order-timeout"
            path.write_text(text.replace(url, f"{ours}\n    allow: [127.0.0.1]"))
            sent = await producer.send("order-timeouts", b'{"order": 42}', delay="1s", key="order-42")
            sink = await start("run", str(path), "--endpoint", endpoint)
            await receiver.wait_for(1)
            sink.send_signal(signal.SIGINT)
            assert (await ended(sink))[0] == 0
            (request,) = receiver.requests
            headers = {name.lower(): it for name, it in request.headers.items()}
            Webhook(SECRET).verify(request.body, headers)
            assert (request.method, request.path, request.id) == ("POST", "/hooks/order-timeout", sent.handle)
            assert (headers["ce-subject"], headers["ce-source"]) == (
                "order-42",
                "urn:delaycluster:orders:order-timeouts",
            )

    asyncio.run(main())


def test_run_serves_its_state_where_it_is_told_and_says_a_port_that_is_taken(
    endpoint: str, tmp_path: Path, free_port: int
) -> None:
    async def main() -> None:
        path = sink_file(tmp_path, "orders1", "http://127.0.0.1:9/")
        words = ["run", str(path), "--endpoint", endpoint, "--listen", f"127.0.0.1:{free_port}"]
        first = await start(*words)
        assert first.stderr is not None
        async with asyncio.timeout(60):
            while b'"Delivering"' not in await first.stderr.readline():
                assert not first.stderr.at_eof()
        reader, writer = await asyncio.open_connection("127.0.0.1", free_port)
        writer.write(b"GET /status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        report = json.loads((await reader.read()).partition(b"\r\n\r\n")[2])
        writer.close()
        assert (report["sink"], report["topic"], report["state"]) == ("pay", "orders1", "Delivering")
        code, printed, said = await ended(await start(*words))
        assert (code, printed) == (USAGE, "")
        assert re.search(rf"127\.0\.0\.1.*{free_port}", said), said
        assert "Traceback" not in said
        first.send_signal(signal.SIGINT)
        assert (await ended(first))[0] == 0

    asyncio.run(main())


BAD: list[tuple[str, str]] = [
    ("{url: [", "it is not YAML"),
    ("kind: DelayUser\nmetadata: {name: a}\nspec: {}\n", "kind: it is a DelayUser"),
    ("metadata: {name: a}\nspec: {topic: orders0, htpp: {}}\n", "has none"),
    ("metadata: {name: a}\nspec: {topic: orders0, http: {url: 'http://u:p@shop/'}}\n", "a user name or a password"),
    ("metadata: {name: a}\nspec: {topic: orders0, http: {url: 'http://10.0.0.1/'}}\n", "10.0.0.1 is private"),
    ("metadata: {name: a}\nspec: {topic: orders0, http: {url: 'http://0x7f.1/'}}\n", "127.0.0.1 is loopback"),
    ("metadata: {name: a}\nspec: {topic: orders0, http: {url: 'ftp://shop/'}}\n", "neither https:// nor http://"),
    ("metadata: {name: a}\nspec: {topic: orders0, http: {url: 'https://exämple.com/'}}\n", "punycode"),
]


@pytest.mark.parametrize(("text", "says"), BAD)
@pytest.mark.parametrize("command", ["run", "check"])
def test_a_bad_file_or_url_is_said_with_the_file_s_name(command: str, text: str, says: str, tmp_path: Path) -> None:
    """Before anything is connected to: nobody listens at this endpoint."""
    path = tmp_path / "sink.yaml"
    path.write_text(text)
    code, printed, said = done(command, str(path), "--endpoint", "127.0.0.1:9")
    assert (code, printed) == (USAGE, "")
    assert str(path) in said
    assert says in said
    assert "Traceback" not in said


@pytest.mark.parametrize("command", ["run", "check"])
def test_a_file_that_is_not_there_is_said(command: str, tmp_path: Path) -> None:
    code, _, said = done(command, str(tmp_path / "none.yaml"))
    assert (code, "none.yaml: " in said, "No such file" in said) == (USAGE, True, True), said


@pytest.mark.parametrize("address", ["here", "127.0.0.1", "127.0.0.1:99999", "127.0.0.1:x"])
def test_a_bad_address_to_listen_on_is_said(endpoint: str, tmp_path: Path, address: str) -> None:
    path = sink_file(tmp_path, "orders2", "http://127.0.0.1:9/")
    code, _, said = done("run", str(path), "--endpoint", endpoint, "--listen", address)
    assert (code, "Traceback" in said, address in said) == (USAGE, False, True), said


def test_check_says_what_a_sink_is_and_which_secrets_are_missing(tmp_path: Path) -> None:
    path = sink_file(tmp_path, "orders3", "https://shop.example.com/hook", group="callers")
    words = ["check", str(path)]
    assert done(*words) == (0, f"{path}: sink pay of topic orders3, group callers\n", "")
    code, printed, _ = done(*words, "--json")
    assert (code, json.loads(printed)) == (0, {"sink": "pay", "topic": "orders3", "group": "callers"})
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    code, printed, said = done(*words, "--secrets", str(elsewhere))
    assert (code, printed) == (USAGE, "")
    assert "secrets that are not there: hook/key" in said
    (tmp_path / "hook/key").write_text("once-upon-a-time")
    code, printed, said = done(*words)
    assert (code, printed) == (USAGE, "")
    assert "does not begin with whsec_" in said
    assert "once-upon-a-time" not in said
