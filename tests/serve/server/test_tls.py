"""TLS listeners of a running node, by both edges: who gets in, how others end, certificates that change meanwhile."""

from __future__ import annotations

import contextlib
import queue
import socket
import ssl
import threading
import urllib.request
from collections.abc import Iterator

import grpc
import pytest
from delayapi.proto.delay.v1 import delay_pb2 as pb

from tests.security.authority import DAY, Authority, write
from tests.serve.support.client import Failure, Msg, Shard, poll
from tests.serve.support.secured import CLUSTER, NAME, Secured

SPIFFE = "spiffe://example.org/shop"
NOT_CONNECTED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, edge: str) -> Iterator[Secured]:
    """One node. A test that changes its certificates leaves good ones behind."""
    with Secured(tmp_path_factory.mktemp("tls"), "permissive", nodes=1).run() as running:
        yield running


def refused(secured: Secured, listener: str, client=None, roots: bytes | None = None) -> grpc.StatusCode | None:
    with secured.dial(listener, client, roots=roots) as dialled:
        try:
            dialled.raw("QueryRoute", b"", 3.0)
        except Failure as failure:
            return failure.code
    return None


def handshake(
    secured: Secured, listener: str = "tls", most: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3, client=None
) -> ssl.SSLSocket:
    context = ssl.create_default_context(cadata=secured.ca.pem.decode())
    context.maximum_version = most
    context.set_alpn_protocols(["h2"])
    host, port = secured.endpoint(listener).split(":")
    return context.wrap_socket(socket.create_connection((host, int(port)), timeout=15), server_hostname=NAME)


def ends(connection: socket.socket, seconds: float) -> bool:
    """Whether the other side ends the connection in time, whatever it says before."""
    connection.settimeout(seconds)
    with contextlib.suppress(ConnectionError):
        try:
            while connection.recv(4096):
                pass
        except TimeoutError:
            return False
    return True


def serves(secured: Secured, listener: str, client=None, queue: int = 0) -> None:
    with secured.dial(listener, client) as dialled:
        shard = Shard(dialled, "t", queue)
        shard.send(Msg(b"x", delay_ms=3_600_000))
        shard.call("DescribeGroup")


def test_a_client_over_tls_is_served_as_one_in_plain_text(secured: Secured) -> None:
    serves(secured, "tls")
    with secured.dial("tls") as client:
        shard = Shard(client, "t", 1)
        sent = shard.send(*(Msg(bytes([n]) * 400_000, delay_ms=0) for n in range(5)))
        assert len(sent.seqs) == 5
        assert [one.body[0] for one in shard.receive_all(5)] == list(range(5))
        assert len(list(client.stream([shard.request(Msg(b"s", delay_ms=0)) for _ in range(20)]))) == 20


def test_handshakes_are_of_tls_1_3_and_http2(secured: Secured) -> None:
    with handshake(secured) as connection:
        assert (connection.version(), connection.selected_alpn_protocol()) == ("TLSv1.3", "h2")
    with pytest.raises(ssl.SSLError):
        handshake(secured, most=ssl.TLSVersion.TLSv1_2)


def test_a_node_of_another_ca_is_not_believed(secured: Secured) -> None:
    assert refused(secured, "tls", roots=Authority().pem) in NOT_CONNECTED


def test_who_comes_by_mtls_needs_a_certificate_that_counts(secured: Secured) -> None:
    serves(secured, "mtls", secured.client_ca.issue(SPIFFE))
    clients = {
        "none": None,
        "of another CA": Authority("clients").issue(SPIFFE),
        "of the server's CA": secured.ca.issue(SPIFFE),
        "expired": secured.client_ca.issue(SPIFFE, begins=-2 * DAY, ends=-DAY),
        "not yet valid": secured.client_ca.issue(SPIFFE, begins=DAY),
    }
    assert {how: refused(secured, "mtls", client) for how, client in clients.items()}.items() <= {
        (how, code) for how in clients for code in NOT_CONNECTED
    }


def test_a_certificate_that_names_nobody_gets_a_sentence(secured: Secured) -> None:
    with secured.dial("mtls", secured.client_ca.issue()) as client, pytest.raises(Failure) as raised:
        client.call("QueryRoute")
    assert (raised.value.code, raised.value.reason) == (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED")
    assert "the certificate names nobody" in raised.value.message


def test_tokens_are_asked_for_by_every_kind_of_call(secured: Secured) -> None:
    with secured.dial("tokens") as client:
        shard = Shard(client, "t", 2)
        asked = shard.request(Msg(b"x", delay_ms=0))
        for how in (
            lambda: client.call("QueryRoute"),
            lambda: client.raw("Enqueue", asked.SerializeToString()),
            lambda: list(client.stream([asked])),
            lambda: list(client.receive_stream([pb.ReceiveRequest(topic="t", queue=2, group="g")])),
            lambda: client.call_stream([pb.Call(id=1, method="Ack")]),
            lambda: client.channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=10),
        ):
            with pytest.raises((Failure, grpc.RpcError)) as raised:
                how()
            code = raised.value.code if isinstance(raised.value, Failure) else raised.value.code()
            assert code is grpc.StatusCode.UNAUTHENTICATED
        for said in ("Bearer no.such.token", "Basic abc"):
            with pytest.raises(Failure) as refusal:
                client.raw("QueryRoute", b"", metadata=(("authorization", said),))
            assert refusal.value.reason == "UNAUTHENTICATED"


def test_plain_text_to_tls_ends_in_a_clear_way_and_the_reverse(secured: Secured) -> None:
    for listener in ("tls", "mtls"):
        host, port = secured.endpoint(listener).split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(50))
            assert ends(connection, 5.0)
    secured.ports[0]["reverse"] = secured.ports[0]["plain"]
    with pytest.raises((ssl.SSLError, ConnectionError)):
        handshake(secured, "reverse")
    assert refused(secured, "reverse") in NOT_CONNECTED


def test_a_client_that_never_finishes_a_handshake_is_cut(secured: Secured) -> None:
    host, port = secured.endpoint("tls").split(":")
    with socket.create_connection((host, int(port))) as silent, socket.create_connection((host, int(port))) as begun:
        begun.sendall(b"\x16\x03\x01\x02\x00\x01")  # of a record of 512 bytes
        serves(secured, "tls")
        assert ends(silent, 20.0)
        assert ends(begun, 20.0)


def test_certificates_are_swapped_under_open_streams_with_no_failed_call(secured: Secured) -> None:
    failures: list[BaseException] = []
    stop = threading.Event()

    def call_on_and_on(client) -> None:
        try:
            while not stop.is_set():
                client.call("QueryRoute")
        except BaseException as error:
            failures.append(error)

    with secured.dial("tls") as old, secured.dial("mtls", secured.client_ca.issue(SPIFFE)) as mutual:
        threads = [threading.Thread(target=call_on_and_on, args=(client,)) for client in (old, mutual)]
        shard = Shard(old, "t", 0)
        sent: queue.Queue = queue.Queue()
        answers = old.stream(iter(sent.get, None), 60.0)
        for thread in threads:
            thread.start()
        for _ in range(2):
            sent.put(shard.request(Msg(b"x", delay_ms=3_600_000)))
            assert next(answers).count == 1
            newer = secured.ca.issue(NAME)
            secured.server.swap(newer, secured.ca.pem)
            der = ssl.PEM_cert_to_DER_cert(newer.chain_pem.decode())
            poll("the newer certificate", lambda: _leaf(secured) == der, 30.0)  # noqa: B023
        sent.put(shard.request(Msg(b"x", delay_ms=3_600_000)))
        assert next(answers).count == 1
        sent.put(None)
        assert list(answers) == []
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []


def _leaf(secured: Secured) -> bytes | None:
    with handshake(secured) as connection:
        return connection.getpeercert(binary_form=True)


def _asked(secured: Secured, path: str) -> list[str]:
    with urllib.request.urlopen(f"http://{secured.running.http[0]}/{path}", timeout=20) as answer:
        return answer.read().decode().splitlines()


def _figure(secured: Secured, name: str, use: str) -> float:
    start = f'delay_certificate_{name}{{use="{use}"}} '
    (line,) = [one for one in _asked(secured, "metrics") if one.startswith(start)]
    return float(line.removeprefix(start))


def test_a_bad_certificate_replaces_none_and_is_told_of(secured: Secured) -> None:
    good = _leaf(secured)
    secured.server.swap(Authority("other").issue(NAME), secured.ca.pem)
    poll("it is told of", lambda: secured.events("certificate-unusable"), 30.0)
    (told,) = secured.events("certificate-unusable")
    assert told["use"] == "server"
    assert "ca.crt does not verify it" in told["reason"]
    assert _asked(secured, "readyz") == ["ok", "certificate-unusable"]
    assert _figure(secured, "unusable", "server") == 1
    assert 0 < _figure(secured, "expiry_seconds", "server") < 400 * 86_400, "of the one that is still in use"
    assert _leaf(secured) == good
    serves(secured, "tls")
    secured.server.swap(secured.ca.issue(NAME), secured.ca.pem)
    poll("it is good again", lambda: secured.events("certificate-usable"), 30.0)
    assert _asked(secured, "readyz") == ["ok"]
    assert {_figure(secured, "unusable", use) for use in ("server", "client-ca", "peer")} == {0}


def test_cas_roll_over_with_old_and_new_trusted_together(secured: Secured) -> None:
    newer = Authority("clients")  # of the same name
    old_client, new_client = secured.client_ca.issue(SPIFFE), newer.issue(SPIFFE)
    assert refused(secured, "mtls", new_client) in NOT_CONNECTED
    write(secured.clients, None, secured.client_ca.pem + newer.pem)
    poll("the newer CA counts", lambda: refused(secured, "mtls", new_client) is None, 30.0)
    with secured.dial("mtls", old_client) as open_before:
        open_before.call("QueryRoute")
        write(secured.clients, None, newer.pem)
        poll("the older one does not", lambda: refused(secured, "mtls", old_client) in NOT_CONNECTED, 30.0)
        serves(secured, "mtls", new_client)
        open_before.call("QueryRoute")  # until its connection has its age
    write(secured.clients, None, secured.client_ca.pem)
    poll("it is back", lambda: refused(secured, "mtls", old_client) is None, 30.0)
    next_ca = Authority("server")
    both = secured.ca.pem + next_ca.pem
    assert refused(secured, "tls", roots=both) is None
    secured.server.swap(next_ca.issue(NAME), both)
    poll("it is of the next CA", lambda: refused(secured, "tls", roots=next_ca.pem) is None, 30.0)
    assert refused(secured, "tls", roots=both) is None
    secured.ca = next_ca


def test_the_internal_listener_is_for_the_clusters_own(secured: Secured) -> None:
    for role in ("node", "operator", "rebalance"):
        own = secured.peer_ca.issue(CLUSTER + role, NAME)
        assert refused(secured, "internal", own, secured.peer_ca.pem) is None
    for uri in (CLUSTER + "admin", CLUSTER.replace("shared", "other") + "node", SPIFFE):
        other = secured.peer_ca.issue(uri, NAME)
        assert refused(secured, "internal", other, secured.peer_ca.pem) is grpc.StatusCode.UNAUTHENTICATED
    assert refused(secured, "internal", secured.client_ca.issue(CLUSTER + "node"), secured.peer_ca.pem) in NOT_CONNECTED
    assert refused(secured, "internal", None, secured.peer_ca.pem) in NOT_CONNECTED
