"""`delayctl local --secure`: TLS, tokens and rights on one machine, with real nodes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from delayclient import Tls, errors
from delayclient.sync import Producer
from delaylocal import LocalCluster
from delaylocal.own_keys import SERVER_NAME
from delayregistry.model import TopicSpec
from delayregistry.sqlite import SqliteRegistry

PRODUCE = ("produce", "t", "--body", "x", "--delay", "1ms")
ENTRY = "from delayctl.main import main; main()"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DELAYCTL_")}
    return {**kept, "XDG_CONFIG_HOME": str(tmp_path / "settings")}


@contextmanager
def local(environment: dict[str, str], data: Path, *options: str) -> Iterator[dict[str, Any]]:
    """What its line "ready" says."""
    command = (sys.executable, "-c", ENTRY, "local", "--nodes", "2", "--topic", "t:2", "--port", "0")
    process = subprocess.Popen(
        (*command, "--data", str(data), *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    try:
        assert process.stdout is not None
        text = process.stdout.readline()
        assert text, process.communicate()
        yield json.loads(text)
    finally:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 0, said


def delayctl(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-c", ENTRY, *arguments)
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def test_commands_go_there_by_its_context_and_nobody_else_comes_in(environment: dict[str, str], tmp_path: Path) -> None:
    data = tmp_path / "data"
    with local(environment, data, "--secure") as ready:
        assert ready["context"] == "local"
        assert not data.stat().st_mode & 0o077, "other users of the machine read the messages"
        for arguments in (
            PRODUCE,
            ("consume", "t", "--group", "g", "--count", "1", "--timeout", "20"),
            ("nodes", "list"),
            ("shards", "list"),
            ("nodes", "orphans", "--data", str(data)),
        ):
            done = delayctl(environment, *arguments)
            assert done.returncode == 0, done.stderr
        assert "no answer" not in delayctl(environment, "nodes", "list").stdout
        endpoint, ca = ready["endpoints"][0], str(data / "security/ca.crt")
        (tmp_path / "token").write_text("guessed")
        for options, code, says in (
            ((), 3, "speaks TLS, and this client does not"),
            (("--ca", ca), 1, "UNAUTHENTICATED"),
            (("--ca", ca, "--token-file", str(tmp_path / "token")), 1, "UNAUTHENTICATED"),
            (("--tls",), 3, "is of a CA that this client does not trust"),
        ):
            refused = delayctl(environment, *PRODUCE, "--endpoint", endpoint, *options)
            assert (refused.returncode, says in refused.stderr) == (code, True), refused.stderr
    token = (data / "security/admin/token").read_bytes()
    with local(environment, data) as ready:
        assert ready["context"] == "local", "it was secure before"
        assert delayctl(environment, *PRODUCE).returncode == 0
    assert (data / "security/admin/token").read_bytes() == token
    with local(environment, data, "--no-secure") as ready:
        assert "context" not in ready
        assert delayctl(environment, *PRODUCE, "--endpoint", ready["endpoints"][0]).returncode == 0


def test_stays_secure_when_its_keys_are_deleted(environment: dict[str, str], tmp_path: Path) -> None:
    data = tmp_path / "data"
    with local(environment, data, "--secure"):
        token = (data / "security/admin/token").read_bytes()
    shutil.rmtree(data / "security")
    with local(environment, data) as ready:
        assert ready["context"] == "local"
        assert delayctl(environment, *PRODUCE).returncode == 0
        assert delayctl(environment, *PRODUCE, "--endpoint", ready["endpoints"][0]).returncode == 3, "in plain text"
    assert (data / "security/admin/token").read_bytes() != token


def test_certificate_of_a_client_comes_in_where_certificates_are_asked_for_and_not_among_nodes(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, nodes=1, topics=[TopicSpec("t", 1)], secure=True) as cluster:
        cluster.wait_ready()
        assert cluster.keys is not None
        at, own = cluster.keys.admin, cluster.keys.operator
        client = Tls(cluster.keys.ca, at / "tls.crt", at / "tls.key")
        mtls, internal = f"127.0.0.1:{cluster._ports.mtls[0]}", f"127.0.0.1:{cluster._ports.internal[0]}"
        with Producer(mtls, tls=client) as producer:
            producer.send("t", b"x", delay=5)
        with Producer(mtls, tls=Tls(cluster.keys.ca)) as producer, pytest.raises(errors.TlsFailed) as wanted:
            producer.send("t", b"x", delay=5)
        assert wanted.value.reason == "CERTIFICATE_WANTED"
        stranger = Tls(own / "ca.crt", at / "tls.crt", at / "tls.key", SERVER_NAME)
        with Producer(internal, tls=stranger) as producer, pytest.raises(errors.TlsFailed) as refused:
            producer.send("t", b"x", delay=5)
        assert refused.value.reason == "CERTIFICATE_REFUSED"


def test_operator_asks_nodes_by_its_certificate_and_chooses_the_next_master(tmp_path: Path) -> None:
    topics = [TopicSpec("t", 2)]
    with LocalCluster(tmp_path, nodes=3, replicas=2, topics=topics, lease_seconds=2, secure=True) as cluster:
        cluster.wait_ready()
        assert cluster.keys is not None
        access: dict[str, Any] = {"tls": Tls(cluster.keys.ca), "token_file": cluster.keys.token_file}
        with Producer(",".join(cluster.endpoints), **access) as producer:
            producer.send_batch("t", [b"x"] * 100, delay_ms=[5] * 100)
            registry = SqliteRegistry(tmp_path / "registry.db")
            before = {shard.name: (shard.spec.master, shard.spec.epoch) for shard in registry.list_shards()}
            master = before["t-0"][0]
            cluster.kill(master, signal.SIGSTOP)
            deadline_s = time.monotonic() + 30
            while any(
                shard.spec.master == master and before[shard.name][0] == master for shard in registry.list_shards()
            ):
                assert time.monotonic() < deadline_s, "another node leads, which the operator has asked"
                time.sleep(0.05)
            producer.send_batch("t", [b"y"] * 100, delay_ms=[5] * 100)
            cluster.kill(master, signal.SIGCONT)
            registry.close()
