"""MessageService over HTTP where nodes ask who calls: by TLS and token or certificate, and nowhere else."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from delaylocal import LocalCluster, ports
from delayregistry.model import TopicSpec
from delayregistry.security import (
    AccessRule,
    AuthorizationMode,
    NamePattern,
    Operation,
    SecuritySpec,
    SecurityUser,
    StaticToken,
    UserQuotas,
    read_document,
)

from tests.chart.places import ROOT
from tests.doors.support.asking import SERVICE, Asking, CallFailed, Node
from tests.security.authority import Authority, Issued
from tests.serve.support.secured import Secured

MOST = 3  # connections of a user
MAIL = "spiffe://example.org/mail"


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


def test_connections_that_have_ended_count_in_no_quota(secured: LocalCluster) -> None:
    """Those that their client ends, too: the node may read nothing of them any more."""
    found = secured.registry.read_security()
    assert found is not None
    quick = StaticToken("quick", hashlib.sha256(b"quick").hexdigest())
    rules = (AccessRule((Operation.PRODUCE,), NamePattern("t")),)
    users = (SecurityUser("token:quick", rules, UserQuotas(connections=MOST)),)
    document = read_document(found.text)
    spec = replace(document, tokens=(*document.tokens, quick), users=users)
    secured.registry.put_security(spec, found.version)

    def send(client: Asking) -> str:
        try:
            client.json("Send", {"topic": "t", "messages": [{"bodyText": "x"}]})
        except CallFailed as failed:
            return failed.reason
        return ""

    def comes(what: str, wanted: str) -> None:
        deadline = time.monotonic() + 60
        while True:
            one = asking(secured, "quick")
            told = send(one)
            one.close()
            if told == wanted:
                return
            assert time.monotonic() < deadline, f"{what}: {told}"
            time.sleep(0.1)

    comes("the document is in force", "")
    for number in range(4 * MOST):
        comes(f"connection {number}", "")
    held = []
    while (told := send(one := asking(secured, "quick"))) == "":
        held.append(one)
        assert len(held) <= MOST, "the control: there is a quota"
    one.close()
    assert told == "QUOTA"
    for client in held:
        client.close()
    comes("they have left", "")


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


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl command; Debian has it in curl")
def test_the_pages_curl_comes_in_by_tls_and_token(secured: LocalCluster) -> None:
    text = (ROOT / "docs" / "http.md").read_text()
    (command,) = re.findall(r"^curl --cacert .*$", text, re.MULTILINE)
    call = f"""https://{secured.http_tokens[1]}{SERVICE}ListGroups -s --json '{{"topic": "t"}}'"""
    typed = ["sh", "-c", command.removesuffix("...") + call]
    environment = {**os.environ, "DIR": str(secured.data)}
    ended = subprocess.run(typed, env=environment, capture_output=True, timeout=60, check=True)
    assert "code" not in json.loads(ended.stdout)


@pytest.fixture(scope="module")
def by_certificate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Secured, str]]:
    """A node with an HTTP listener that asks for certificates, and its address. MAIL may send."""
    directory, (port,) = tmp_path_factory.mktemp("by-certificate"), ports.choose(0, 1).grpc
    sends = AccessRule((Operation.PRODUCE,), NamePattern("t"))
    # The local cluster's operator, and the wait for it, come by the plain listener.
    operator = AccessRule((Operation.ADMIN,)), AccessRule((Operation.DESCRIBE,), NamePattern("t"))
    users = SecurityUser(MAIL, (sends,)), SecurityUser("anonymous", operator)
    document = SecuritySpec(AuthorizationMode.REQUIRED, users=users)
    listener = f"--http-listener=mtls={port},tls,mtls"
    with Secured(directory, "permissive", listener, nodes=1, document=document).run() as running:
        yield running, f"127.0.0.1:{port}"


def asking_by(
    secured: Secured, address: str, client: Issued | None, directory: Path,
    most: ssl.TLSVersion = ssl.TLSVersion.MAXIMUM_SUPPORTED,
) -> Asking:  # fmt: skip
    context = ssl.create_default_context(cadata=secured.ca.pem.decode())
    context.maximum_version = most
    context.check_hostname = False
    if client is not None:
        pair = directory / "pair.pem"
        pair.write_bytes(client.chain_pem + client.key_pem)
        context.load_cert_chain(pair)
    return Asking(Node("", address), "json", context=context)


def test_who_has_a_certificate_sends_with_the_rights_of_its_name(
    by_certificate: tuple[Secured, str], tmp_path: Path
) -> None:
    secured, address = by_certificate
    message = {"topic": "t", "messages": [{"bodyText": "x", "delay": "3600s"}]}
    mail = asking_by(secured, address, secured.client_ca.issue(MAIL), tmp_path)
    (sent,) = mail.json("Send", message)["results"]
    assert "handle" in sent
    for caller, method, request in (
        (mail, "Receive", {"topic": "t", "group": "g"}),
        (asking_by(secured, address, secured.client_ca.issue(MAIL + "/other"), tmp_path), "Send", message),
    ):
        with pytest.raises(CallFailed) as refused:
            caller.json(method, request)
        assert (refused.value.status, refused.value.reason) == (403, "PERMISSION_DENIED")


def test_who_has_none_that_counts_does_not_get_in(by_certificate: tuple[Secured, str], tmp_path: Path) -> None:
    secured, address = by_certificate
    day = timedelta(days=1)
    for client in (
        None,
        Authority("others").issue(MAIL),
        secured.peer_ca.issue(MAIL),
        secured.client_ca.issue(MAIL, begins=-2 * day, ends=-day),
    ):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            asking_by(secured, address, client, tmp_path).json("ListGroups", {"topic": "t"})
    plain = Asking(Node("", address), "json")
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        plain.json("ListGroups", {"topic": "t"})
    good = secured.client_ca.issue(MAIL)
    with pytest.raises(ssl.SSLError):
        asking_by(secured, address, good, tmp_path, ssl.TLSVersion.TLSv1_2).json("ListGroups", {"topic": "t"})
