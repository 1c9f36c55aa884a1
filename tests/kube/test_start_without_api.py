"""A node that starts while the API server is out of reach waits, says for what, and goes on by itself."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from delaylocal import ports
from delayregistry.model import ClusterSpec

from tests.kube.desired import WritingRegistry, writing
from tests.kube.fakeapi import FakeApiServer
from tests.serve.support.client import poll

STOPPED_S = 15.0  # generous: a second for the threads that wait for an answer, and the process's own


class Starting:
    """A node's process."""

    def __init__(self, directory: Path) -> None:
        free = ports.choose(0, 1)
        listen, self.http = (f"{ports.HOST}:{port}" for port in (*free.grpc, *free.http))
        command = (sys.executable, "-P", "-m", "delaynode.main", "--node-id", "n0", "--registry", "kube:default/c")
        places = ("--data", str(directory / "data"), "--listen", listen, "--http", self.http)
        self.log = directory / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen((*command, *places), stderr=log)

    def asked(self, path: str) -> tuple[int, str]:
        """GET the path: (status, text). Status 0: no process listens."""
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def waits_for(self, what: str) -> bool:
        told = self.events("registry-awaited")
        return (
            self.asked("/readyz") == (503, "waiting-for-registry\n") and bool(told) and what in str(told[-1]["reason"])
        )

    def ready(self) -> bool:
        return self.asked("/readyz") == (200, "ok\n")

    def events(self, event: str) -> list[dict[str, object]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == event]

    def terminate(self) -> float:
        """Terminate it. Returns how long it took to end, s."""
        begin_s = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.log.read_text()
        return time.monotonic() - begin_s


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApiServer]:
    with FakeApiServer() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.write_kubeconfig(tmp_path / "kubeconfig")))
        yield server


@pytest.fixture
def operator(server: FakeApiServer) -> Iterator[WritingRegistry]:
    with writing(server) as registry:
        yield registry


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], Starting]]:
    started: list[Starting] = []

    def start() -> Starting:
        started.append(Starting(tmp_path))
        return started[-1]

    yield start
    for node in started:
        node.process.kill()
        node.process.wait()


def test_an_api_server_that_does_not_answer_is_waited_for(
    server: FakeApiServer, operator: WritingRegistry, start: Callable[[], Starting]
) -> None:
    operator.put_cluster(ClusterSpec("c", 1), None)
    operator.ensure_leases(["n0"])
    server.freeze()
    node = start()
    poll("it says so", lambda: node.waits_for("nothing was heard from the API server"), 30)
    assert node.asked("/healthz") == (200, "ok\n")
    assert node.asked("/metrics")[0] == 200
    server.thaw()
    poll("it goes on by itself", node.ready, 30)
    assert [event["node"] for event in node.events("registry-answered")] == ["n0"]
    assert operator.list_leases()[0].incarnation
    node.terminate()


def test_an_api_server_that_nobody_reaches_is_waited_for(
    server: FakeApiServer, operator: WritingRegistry, start: Callable[[], Starting], tmp_path: Path
) -> None:
    operator.put_cluster(ClusterSpec("c", 1), None)
    operator.ensure_leases(["n0"])
    config = Path(os.environ["KUBECONFIG"])
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, but not listening
        config.write_text(config.read_text().replace(server.url, f"http://127.0.0.1:{nobody.getsockname()[1]}"))
        node = start()
        poll("it says so", lambda: node.waits_for("refused"), 30)
        assert node.terminate() < STOPPED_S


def test_sigterm_ends_a_node_at_once_that_waits_for_a_frozen_api_server(
    server: FakeApiServer, start: Callable[[], Starting]
) -> None:
    server.freeze()
    node = start()
    poll("it listens", lambda: node.asked("/healthz")[0] == 200, 30)
    assert node.terminate() < STOPPED_S
    assert node.events("stopped")
    server.thaw()


def test_spec_and_a_lease_that_the_operator_has_not_made_yet_are_waited_for(
    operator: WritingRegistry, start: Callable[[], Starting]
) -> None:
    node = start()
    poll("it lacks the spec", lambda: node.waits_for("ConfigMap c-cluster is missing; the operator writes it"), 30)
    operator.put_cluster(ClusterSpec("c", 1), None)
    poll("it lacks its lease", lambda: node.waits_for("lease of n0 not renewed: 404"), 30)
    assert node.asked("/healthz") == (200, "ok\n")
    operator.ensure_leases(["n0"])
    poll("it is ready", node.ready, 30)


def test_sigterm_ends_a_node_at_once_that_can_not_register(
    operator: WritingRegistry, start: Callable[[], Starting]
) -> None:
    operator.put_cluster(ClusterSpec("c", 1), None)
    node = start()
    poll("it lacks its lease", lambda: node.waits_for("lease of n0 not renewed: 404"), 30)
    assert node.terminate() < STOPPED_S
