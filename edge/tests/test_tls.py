"""TLS: who gets in, who does not and how that ends, and certificates that change meanwhile."""

from __future__ import annotations

import queue
import socket
import ssl
import time

import grpc
import pytest
from authority import DAY, Authority
from calls import enqueue, request, stream, unary
from cryptography.hazmat.primitives.serialization import Encoding
from fakenode import FakeNode

NAME = "node.svc"
URI = "spiffe://delaycluster/ns/a/cluster/b/role/node"


@pytest.fixture(scope="module")
def ca() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def client_ca() -> Authority:
    return Authority("clients")


@pytest.fixture
def tls(start, ca: Authority, client_ca: Authority) -> FakeNode:
    """Its listeners are tls, and mtls, which asks for certificates of client_ca."""
    return with_tls(start(handshake_ms=1_000), ca, client_ca)


def with_tls(node: FakeNode, ca: Authority, client_ca: Authority) -> FakeNode:
    node.identities = {"": "somebody"}
    node.ports = {
        "tls": node.edge.listen("127.0.0.1:0", "tls", tls=True),
        "mtls": node.edge.listen("127.0.0.1:0", "mtls", tls=True, identifies=True),
    }
    certify(node, ca, client_ca.pem)
    return node


def certify(node: FakeNode, ca: Authority, client_roots: bytes):
    issued = ca.issue(NAME)
    node.edge.set_certificates("tls", issued.chain_pem, issued.key_pem)
    node.edge.set_certificates("mtls", issued.chain_pem, issued.key_pem, client_roots)
    return issued


def dial(node: FakeNode, ca: Authority | bytes, name: str = "tls", client=None) -> grpc.Channel:
    key, chain = (client.key_pem, client.chain_pem) if client else (None, None)
    credentials = grpc.ssl_channel_credentials(ca if isinstance(ca, bytes) else ca.pem, key, chain)
    options = [("grpc.ssl_target_name_override", NAME), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.secure_channel(f"127.0.0.1:{node.ports[name]}", credentials, options)


def echo(channel: grpc.Channel, seconds: float = 10.0) -> bytes:
    return unary(channel, "Echo")(b"x", timeout=seconds)


def is_refused(node: FakeNode, *how, **named) -> bool:
    with dial(node, *how, **named) as channel:
        try:
            echo(channel, 2.0)
        except grpc.RpcError as error:
            return error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    return False


def handshake(node: FakeNode, alpn=("h2",), most=ssl.TLSVersion.TLSv1_3, name: str = "tls") -> ssl.SSLSocket:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = most
    if alpn:
        context.set_alpn_protocols(list(alpn))
    plain = socket.create_connection(("127.0.0.1", node.ports[name]), timeout=10)
    return context.wrap_socket(plain)


def ends(connection: socket.socket, seconds: float = 10.0) -> bool:
    """Whether the other side ends the connection, whatever it says before."""
    connection.settimeout(seconds)
    try:
        while connection.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def test_calls_and_rows_come_over_tls_and_no_names_without_a_certificate(tls: FakeNode, ca: Authority) -> None:
    with dial(tls, ca) as channel:
        assert echo(channel) == b"x"
        assert unary(channel, "Big")(b"3000000", timeout=20) == bytes(3_000_000)
        assert enqueue(channel)(request(b"x" * 1_000_000), timeout=20).count == 1
        assert unary(channel, "Who")(b"", timeout=10) == b"tls None False"
    assert tls.edge.figures()["handshakes_failed"] == 0


def test_it_is_tls_1_3_with_http2(tls: FakeNode) -> None:
    with handshake(tls) as connection:
        assert (connection.version(), connection.selected_alpn_protocol()) == ("TLSv1.3", "h2")


def test_tls_1_2_is_refused(tls: FakeNode) -> None:
    with pytest.raises(ssl.SSLError, match=r"(?i)protocol.version"):
        handshake(tls, most=ssl.TLSVersion.TLSv1_2)
    tls.wait(lambda: "failed" in tls.kinds())
    (failed,) = [one for one in tls.events if one.kind == "failed"]
    assert "by listener tls: " in failed.reason


@pytest.mark.parametrize("alpn", [(), ("http/1.1",)])
def test_a_client_that_does_not_speak_http2_is_ended(tls: FakeNode, alpn: tuple) -> None:
    if alpn:
        with pytest.raises(ssl.SSLError, match="no application protocol"):
            handshake(tls, alpn)
    else:
        with handshake(tls, alpn) as connection:
            assert ends(connection)
    tls.wait(lambda: tls.edge.figures()["handshakes_failed"] == 1)


@pytest.mark.parametrize("name", ["tls", "mtls"])
def test_plain_text_to_tls_ends_at_once(start, ca: Authority, client_ca: Authority, name: str) -> None:
    tls = with_tls(start(handshake_ms=60_000), ca, client_ca)
    with socket.create_connection(("127.0.0.1", tls.ports[name])) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(50))
        assert ends(connection, 20.0)  # sooner than its handshake had to be done
    with grpc.insecure_channel(f"127.0.0.1:{tls.ports[name]}") as channel:
        with pytest.raises(grpc.RpcError) as raised:
            echo(channel, 5.0)
        assert raised.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def test_tls_to_plain_text_ends_at_once(tls: FakeNode, ca: Authority) -> None:
    tls.ports["plain"] = tls.edge.port
    with pytest.raises((ssl.SSLError, ConnectionError)):
        handshake(tls, name="plain")
    assert is_refused(tls, ca, "plain")


def test_a_server_of_another_ca_is_not_believed(tls: FakeNode) -> None:
    assert is_refused(tls, Authority())


def test_a_client_gives_its_names(tls: FakeNode, ca: Authority, client_ca: Authority) -> None:
    middle = Authority("middle", client_ca)  # whose certificate the client sends along
    issued = middle.issue("shop.svc", URI, "spiffe://b")
    with dial(tls, ca, "mtls", issued) as channel:
        assert unary(channel, "Who")(b"", timeout=10) == b"mtls somebody False"
    (asked,) = [one for one in tls.events if one.kind == "identify"]
    assert asked.names == [URI, "spiffe://b", "dns:shop.svc"]
    assert asked.certificate == issued.certificate.public_bytes(Encoding.DER)


def test_a_connection_of_which_was_asked_is_told_to_have_left(
    tls: FakeNode, ca: Authority, client_ca: Authority
) -> None:
    with dial(tls, ca, "mtls", client_ca.issue(URI)) as channel:
        unary(channel, "Who")(b"", timeout=10)
        (asked,) = [one for one in tls.events if one.kind == "identify"]
        assert not [one for one in tls.events if one.kind == "left"]
    tls.wait(lambda: any(one.kind == "left" for one in tls.events))
    assert [(one.peer, one.listener) for one in tls.events if one.kind == "left"] == [(asked.peer, "mtls")]


def test_a_client_whose_certificate_does_not_count_is_refused(
    tls: FakeNode, ca: Authority, client_ca: Authority
) -> None:
    clients = {
        "none": None,
        "of another CA": Authority("clients").issue(URI),
        "expired": client_ca.issue(URI, begins=-2 * DAY, ends=-DAY),
        "not yet valid": client_ca.issue(URI, begins=DAY),
    }
    assert [how for how, client in clients.items() if not is_refused(tls, ca, "mtls", client)] == []
    assert not any(one.kind in ("identify", "call") for one in tls.events)
    # A client may know of the refusal before the edge has counted it.
    tls.wait(lambda: tls.edge.figures()["handshakes_failed"] >= len(clients))
    with dial(tls, ca, "mtls", client_ca.issue(URI)) as channel:
        assert echo(channel) == b"x"


def test_a_handshake_that_never_ends_is_cut(tls: FakeNode) -> None:
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", tls.ports["tls"])) as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00\x01")  # of a record of 512 bytes
        assert ends(connection, 5.0)
    assert 0.8 < time.monotonic() - began < 4.0
    tls.wait(lambda: tls.edge.figures()["connections_cut"] == 1)


def test_handshakes_under_way_are_bounded_and_others_come_after(start, ca: Authority, client_ca: Authority) -> None:
    node = with_tls(start(handshake_ms=1_000, max_handshakes=3), ca, client_ca)
    silent = [socket.create_connection(("127.0.0.1", node.ports["tls"])) for _ in range(10)]
    node.wait(lambda: node.edge.figures()["connections"] == 3)
    with node.channel() as plain, dial(node, ca, "mtls", client_ca.issue(URI)) as other:
        assert echo(plain) + echo(other) == b"xx"  # listeners do not share the bound
        node.wait(lambda: node.edge.figures()["connections"] == 5)  # for a moment fewer, when a silent one is cut
    with dial(node, ca) as channel:
        assert echo(channel, 20.0) == b"x"
    for one in silent:
        one.close()


def test_handshakes_that_never_end_keep_nobody_out(start, ca: Authority, client_ca: Authority) -> None:
    """While many are under way each has less time: a client waits for none that has all of it."""
    node = with_tls(start(handshake_ms=120_000, crowded_ms=100, max_handshakes=8), ca, client_ca)
    silent = [socket.create_connection(("127.0.0.1", node.ports["tls"])) for _ in range(40)]
    with dial(node, ca) as channel:
        assert echo(channel, 60.0) == b"x"
    for one in silent:
        one.close()


def test_certificates_are_swapped_under_open_streams(tls: FakeNode, ca: Authority, client_ca: Authority) -> None:
    with dial(tls, ca) as channel:
        sent: queue.Queue = queue.Queue()
        answers = stream(channel, "Chat")(iter(sent.get, None), timeout=60)
        for number in range(10):
            issued = certify(tls, ca, client_ca.pem)
            sent.put(b"%d" % number)
            assert next(answers) == b"%d" % number
            with handshake(tls) as connection:
                assert connection.getpeercert(True) == ssl.PEM_cert_to_DER_cert(issued.chain_pem.decode())
        sent.put(None)
        assert list(answers) == []
    assert tls.edge.figures()["handshakes_failed"] == 0


def test_a_ca_rolls_over_with_old_and_new_trusted_together(tls: FakeNode, ca: Authority, client_ca: Authority) -> None:
    newer = Authority("newer clients")
    old, new = client_ca.issue(URI), newer.issue(URI)
    with dial(tls, ca, "mtls", old) as before:
        assert echo(before) == b"x"
        assert is_refused(tls, ca, "mtls", new)
        certify(tls, ca, client_ca.pem + newer.pem)
        for client in (old, new):
            with dial(tls, ca, "mtls", client) as channel:
                assert echo(channel) == b"x"
        certify(tls, ca, newer.pem)
        assert is_refused(tls, ca, "mtls", old)
        assert echo(before) == b"x"  # until it is too old
    next_ca = Authority()
    with dial(tls, ca.pem + next_ca.pem) as channel:
        assert echo(channel) == b"x"
    certify(tls, next_ca, newer.pem)
    with dial(tls, ca.pem + next_ca.pem) as channel:
        assert echo(channel) == b"x"


def test_a_session_is_not_resumed(tls: FakeNode) -> None:
    """A client that is trusted no longer must not come in by a ticket."""
    with handshake(tls) as connection:
        connection.settimeout(10)
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
        assert connection.recv(100)  # its tickets would have been before this
        assert connection.session is None or not connection.session.has_ticket


def test_a_listener_without_certificates_lets_nobody_in(start, ca: Authority) -> None:
    node = start()
    node.ports = {"tls": node.edge.listen("127.0.0.1:0", "tls", tls=True)}
    assert is_refused(node, ca)
    issued = ca.issue(NAME)
    node.edge.set_certificates("tls", issued.chain_pem, issued.key_pem)
    with dial(node, ca) as channel:
        assert echo(channel) == b"x"


def test_bad_certificates_are_said_to_be_so_and_the_good_ones_stay(
    tls: FakeNode, ca: Authority, client_ca: Authority
) -> None:
    good, swap = ca.issue(NAME), tls.edge.set_certificates
    for how, said in [
        (("tls", b"", good.key_pem), "the chain has no certificate"),
        (("tls", good.chain_pem, b"none"), "the key can't be read"),
        (("tls", good.chain_pem, ca.issue(NAME).key_pem), "the certificate can't be used"),
        (("tls", good.chain_pem, good.key_pem, b""), "the CA of clients has no certificate"),
        (("plain", good.chain_pem, good.key_pem), "there is no listener plain with TLS"),
        (("other", good.chain_pem, good.key_pem), "there is no listener other with TLS"),
    ]:
        with pytest.raises(ValueError, match=said):
            swap(*how)
    with dial(tls, ca) as channel:
        assert echo(channel) == b"x"


def test_connections_end_at_the_age_of_their_listener(start, ca: Authority) -> None:
    node = start(age_grace_ms=20_000)
    issued = ca.issue(NAME)
    node.ports = {"tls": node.edge.listen("127.0.0.1:0", "tls", tls=True, max_age_ms=500)}
    node.edge.set_certificates("tls", issued.chain_pem, issued.key_pem)
    with dial(node, ca) as channel, node.channel() as plain:
        assert echo(channel) + echo(plain) == b"xx"
        taken = node.edge.figures()["connections_taken"]
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            assert echo(channel) + echo(plain) == b"xx"
            time.sleep(0.05)
        assert 1 <= node.edge.figures()["connections_taken"] - taken <= 4
