"""MessageService over HTTP where nodes ask who calls: by TLS and token, and nowhere else."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from delaylocal import LocalCluster
from delayregistry.model import TopicSpec

from tests.doors.support.asking import SERVICE, Asking, CallFailed, Node


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("secured")
    with LocalCluster(directory, nodes=2, topics=[TopicSpec("t", 4)], secure=True) as running:
        running.wait_ready()
        yield running
        for node in running.pids:
            assert "Traceback" not in (running.data / "logs" / f"{node}.log").read_text(), node


def context(cluster: LocalCluster) -> ssl.SSLContext:
    assert cluster.keys is not None
    return ssl.create_default_context(cafile=str(cluster.keys.ca))


def asking(cluster: LocalCluster, token: str, node: int = 0) -> Asking:
    return Asking(Node("", cluster.http_tokens[node]), "json", context=context(cluster), token=token)


def token(cluster: LocalCluster) -> str:
    assert cluster.keys is not None
    return Path(cluster.keys.token_file).read_text().strip()


def test_who_has_a_token_sends_at_one_node_and_receives_at_the_other(secured: LocalCluster) -> None:
    sender, receiver = asking(secured, token(secured)), asking(secured, token(secured), 1)
    messages = [{"bodyText": str(at), "key": str(at), "delay": "0.1s"} for at in range(12)]
    assert all("handle" in one for one in sender.json("Send", {"topic": "t", "messages": messages})["results"])
    found: list[str] = []
    while len(found) < len(messages):
        asked = {"topic": "t", "group": "g", "wait": "10s", "bodyFormat": "BODY_FORMAT_TEXT"}
        deliveries = receiver.json("Receive", asked)["deliveries"]
        found += [one["bodyText"] for one in deliveries]
        settled = sender.json("Ack", {"receipts": [one["receipt"] for one in deliveries]})["results"]
        assert all(one["settled"] for one in settled)
    assert sorted(found, key=int) == [str(at) for at in range(12)]


@pytest.mark.parametrize("shown", ["", "nonsense", "x" * 8_000])
def test_who_has_none_or_a_wrong_one_is_refused(secured: LocalCluster, shown: str) -> None:
    with pytest.raises(CallFailed) as refused:
        asking(secured, shown).json("Send", {"topic": "t", "messages": [{"bodyText": "x"}]})
    assert (refused.value.status, refused.value.reason) == (401, "UNAUTHENTICATED")


def test_the_port_of_health_serves_no_messages(secured: LocalCluster) -> None:
    for path in (SERVICE + "Send", "/openapi.json"):
        host, _, port = secured.http[0].rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=10)
        connection.request("POST", path, "{}", {"content-type": "application/json"})
        assert connection.getresponse().status == 404
        connection.close()


def test_plain_text_and_old_tls_get_nowhere(secured: LocalCluster) -> None:
    host, _, port = secured.http_tokens[0].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as plain:
        plain.sendall(f"POST {SERVICE}Send HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n".encode())
        assert not plain.recv(100).startswith(b"HTTP")
    old = context(secured)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        http.client.HTTPSConnection(host, int(port), timeout=10, context=old).connect()
