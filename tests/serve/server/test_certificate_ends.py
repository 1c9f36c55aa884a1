"""A client's certificate that expires ends what came by it, whatever lasts longer: connections, streams, sessions."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import grpc
import pytest

from tests.security.authority import Authority, Issued, write
from tests.serve.support.client import Failure, poll
from tests.serve.support.secured import CLUSTER, NAME, Secured

SPIFFE = "spiffe://example.org/shop"
LASTS = timedelta(seconds=4)
UNKNOWN = grpc.StatusCode.UNAUTHENTICATED


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, edge: str) -> Iterator[Secured]:
    with Secured(tmp_path_factory.mktemp("ends"), "permissive", nodes=1).run() as running:
        yield running


@pytest.mark.parametrize("listener", ["mtls", "internal"])
def test_calls_and_streams_of_a_connection_end_with_its_certificate(secured: Secured, listener: str) -> None:
    ca, name = (secured.client_ca, SPIFFE) if listener == "mtls" else (secured.peer_ca, CLUSTER + "node")
    began = time.monotonic()
    short, long = ca.issue(name, ends=LASTS), ca.issue(name)
    roots = secured.peer_ca.pem if listener == "internal" else None
    with secured.dial(listener, short, roots=roots) as client, secured.dial(listener, long, roots=roots) as other:
        client.call("QueryRoute")
        other.call("QueryRoute")
        stream = client.channel.stream_stream("/delay.v1.DelayService/ReceiveStream")

        def nothing() -> Iterator[bytes]:
            time.sleep(10)
            yield from ()

        with pytest.raises(grpc.RpcError) as ended:
            list(stream(nothing(), timeout=20))
        assert ended.value.code() is UNKNOWN
        assert 2 < time.monotonic() - began < 8
        with pytest.raises(Failure) as refused:
            client.call("QueryRoute")
        assert (refused.value.code, refused.value.reason) == (UNKNOWN, "UNAUTHENTICATED")
        assert "the certificate has expired at" in refused.value.message
        other.call("QueryRoute")


def shake(secured: Secured, context: ssl.SSLContext, session: ssl.SSLSession | None) -> ssl.SSLSocket:
    """A connection that has said as much of HTTP/2 as it takes to be sent tickets."""
    host, port = secured.endpoint("mtls").split(":")
    plain = socket.create_connection((host, int(port)), timeout=5)
    made = context.wrap_socket(plain, server_hostname=NAME, session=session)
    made.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
    assert made.recv(4096)
    return made


def test_no_session_outlives_the_trust_in_its_ca(secured: Secured, tmp_path: Path) -> None:
    own: Issued = secured.client_ca.issue(SPIFFE)
    (tmp_path / "own.pem").write_bytes(own.key_pem + own.chain_pem)
    context = ssl.create_default_context(cadata=secured.ca.pem.decode())
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(tmp_path / "own.pem")
    first = shake(secured, context, None)
    session = first.session
    first.close()
    write(secured.clients, None, Authority("clients").pem)

    def is_refused(held: ssl.SSLSession | None) -> bool:
        try:
            shake(secured, context, held).close()
        except (OSError, AssertionError):
            return True
        return False

    poll("the CA counts no more", lambda: is_refused(None), 30.0)
    assert is_refused(session)
    write(secured.clients, None, secured.client_ca.pem)
    poll("it counts again", lambda: not is_refused(None), 30.0)
