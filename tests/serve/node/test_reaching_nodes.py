"""Where calls are passed on to, and where clients are sent, by what each node's lease says of its listeners."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from delayapi.certificates import Certificates
from delayapi.node_client import token_client
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delaynode.auth.identity import ANONYMOUS
from delaynode.listener_options import ListenerConfig, Security
from delaynode.node.routes import RemoteNode, Routes, endpoint_for
from delaynode.node_certificates import PEER, NodeCertificates
from delaynode.server.forward import Forwarder
from delaynode.server.listeners import Listener
from delaynode.store.errors import Refused
from delayregistry.model import ListenerEndpoint, ListenerTrust, NodeLease

from tests.security.authority import Authority, Issued, write
from tests.serve.support.listening import NOTHING

OLD = NodeLease("n1", "i", "h:7070", "h:7170")  # of a release that knows of no listeners, or of a node with one
NEW = NodeLease(
    "n2", "i", "h:7070", "h:7170",
    listeners=tuple(ListenerEndpoint(*one) for one in (("plain", "h:7070"), ("tls", "h:7071"), ("internal", "h:7073"))),
)  # fmt: skip
URI = "spiffe://delaycluster/ns/a/cluster/b/role/"


@pytest.mark.parametrize(
    ("peers", "old", "new"),
    [
        ("off", "h:7070", RemoteNode("h:7070", False)),
        ("permissive", "h:7070", RemoteNode("h:7070", False)),
        ("preferred", "h:7070", RemoteNode("h:7073", True)),
        ("required", None, RemoteNode("h:7073", True)),
    ],
)
def test_nodes_dial_as_peers_says_and_as_the_other_can(peers: str, old: str | None, new: RemoteNode) -> None:
    routes = Routes(peers)
    assert routes.reach(NEW) == new
    if old is not None:
        assert routes.reach(OLD) == RemoteNode(old, False)
    else:
        with pytest.raises(Refused, match="node n1 has no listener for nodes, and this one asks for TLS"):
            routes.reach(OLD)


@pytest.mark.parametrize(
    ("lease", "listener", "endpoint"),
    [
        (OLD, "plain", "h:7070"),
        (OLD, "tls", ""),  # its one listener speaks no TLS
        (NEW, "plain", "h:7070"),
        (NEW, "tls", "h:7071"),
        (NEW, "tokens", ""),
    ],
)
def test_a_client_is_sent_to_the_listener_that_it_came_by(lease: NodeLease, listener: str, endpoint: str) -> None:
    assert endpoint_for(lease, listener) == endpoint


def certificates(directory, *names: str) -> NodeCertificates:
    ca = Authority()
    write(directory, ca.issue(*names), ca.pem)
    return NodeCertificates(Security("", "", str(directory), "required", 3_600))


def call(certificates: NodeCertificates) -> str:
    async def run() -> str:
        forwarder = Forwarder(certificates)
        try:
            await forwarder.call(RemoteNode("127.0.0.1:1", True), "Ack", b"", 5.0, ANONYMOUS)
        except Refused as refused:
            return f"{refused.reason}: {refused.message}"
        finally:
            await forwarder.close()
        return ""

    return asyncio.run(run())


def test_a_node_that_can_not_show_who_it_is_says_why(tmp_path) -> None:
    assert call(certificates(tmp_path, URI + "node")) == (
        "NOT_SERVING: this node's certificate has no DNS name, by which nodes know each other"
    )
    (tmp_path / "tls.key").unlink()
    broken = NodeCertificates(Security("", "", str(tmp_path), "required", 3_600))
    assert call(broken).startswith("NOT_SERVING: this node has no certificate to call others with: ")
    assert "tls.key can't be read" in call(broken)


@pytest.mark.parametrize(
    ("names", "uri"),
    [
        ((URI + "node", "b.a.svc"), URI),
        (("spiffe://other/ns/a", URI + "node"), URI),
        (("b.a.svc",), ""),
        (("spiffe://example.org/ns/a/cluster/b/role/node",), ""),
    ],
)
def test_the_cluster_is_that_of_the_nodes_own_certificate(tmp_path, names: tuple[str, ...], uri: str) -> None:
    assert certificates(tmp_path, *names).cluster_uri() == uri


@pytest.mark.parametrize(
    ("names", "host"),
    [
        (("*.shop.svc", "orders.shop.svc"), "orders.shop.svc"),
        (("spiffe://x", "*.shop.svc"), "any.shop.svc"),
        (("spiffe://x",), ""),
    ],
)
def test_whom_to_trust_is_said_by_a_name_that_the_certificate_covers(
    tmp_path, names: tuple[str, ...], host: str
) -> None:
    ca = Authority()
    place = write(tmp_path / "server", ca.issue(*names), ca.pem)
    trust = NodeCertificates(Security(str(place), "", "", "off", 3_600)).trust()
    assert (trust.server_name if trust else "") == host
    if trust is not None:
        assert serves(ca.issue(*names), trust, host)
        assert not serves(ca.issue("*.other.svc"), trust, host)


def serves(issued: Issued, trust: ListenerTrust, host: str) -> bool:
    """Whether a server with that certificate is believed by what a lease says."""
    server = grpc.server(ThreadPoolExecutor(1))
    credentials = grpc.ssl_server_credentials([(issued.key_pem, issued.chain_pem)])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        with token_client(f"127.0.0.1:{port}", trust.server_name, trust.roots, lambda: "token") as client:
            client.replica_status(pb.ReplicaStatusRequest(), timeout=10)
    except grpc.RpcError as error:
        return error.code() is grpc.StatusCode.UNIMPLEMENTED  # it was asked
    finally:
        server.stop(None)
    return True


def test_a_listener_has_its_certificates_once_all_of_them_are_good(tmp_path) -> None:
    ca, clients = Authority(), Authority("clients")
    write(tmp_path / "server", ca.issue("a"), ca.pem)
    write(tmp_path / "peer", ca.issue("b"), None)
    security = Security(str(tmp_path / "server"), str(tmp_path / "clients"), str(tmp_path / "peer"), "off", 3_600)
    held = NodeCertificates(security)

    def material(authentication: str):
        return Listener(ListenerConfig("l", "h:1", "h:1", True, authentication), held, False, None).material()

    server: Certificates = held.stores["server"].current
    assert (material("none").own, material("none").client_roots_pem) == (server, None)
    assert material("mtls") is None
    assert material("peer") is None  # nobody is trusted
    write(tmp_path / "clients", None, clients.pem)
    write(tmp_path / "peer", ca.issue("b"), ca.pem)
    for store in held.stores.values():
        store.look()
    assert material("mtls").client_roots_pem == clients.pem
    assert (material("peer").own.names, material("peer").client_roots_pem) == (("dns:b",), ca.pem)
    assert held.current(PEER) is material("peer").own


def test_what_is_wrong_on_disk_is_told_once_and_when_it_is_over(tmp_path) -> None:
    told: list[tuple[str, str]] = []
    held = certificates(tmp_path, "a")
    key = (tmp_path / "tls.key").read_bytes()
    (tmp_path / "tls.key").write_bytes(b"")
    for content in (b"", key):
        (tmp_path / "tls.key").write_bytes(content)
        for _ in range(2):
            held.stores[PEER].look()
            held.tell_changes(lambda event, **fields: told.append((event, fields["use"])))
    assert told == [("certificate-unusable", "peer"), ("certificate-usable", "peer")]
    assert NodeCertificates(NOTHING).problems() == {}
