"""Three nodes that talk by TLS alone: calls are passed on by `internal`, and clients stay on their own listener."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from delaynode.replication.transport.connection import Hello

from tests.security.authority import Authority
from tests.serve.support.client import Failure, Msg, Shard, poll
from tests.serve.support.secured import CLUSTER, LISTENERS, NAME, Secured, TlsClient

QUEUES = 9  # of three nodes
FORWARDED = ("x-delay-forwarded", "1")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, edge: str) -> Iterator[Secured]:
    with Secured(tmp_path_factory.mktemp("internal"), "required", nodes=3).run() as running:
        yield running


def clients(secured: Secured, node: int = 0) -> dict[str, TlsClient]:
    own = secured.client_ca.issue("spiffe://example.org/shop")
    return {"tls": secured.dial("tls", node=node), "mtls": secured.dial("mtls", own, node=node)}


def test_every_listener_answers_where_the_same_one_is_at_other_nodes(secured: Secured) -> None:
    peer = secured.peer_ca.issue(CLUSTER + "operator", NAME)
    asked = clients(secured) | {"internal": secured.dial("internal", peer, roots=secured.peer_ca.pem)}
    for name, client in asked.items():
        with client:
            (topic,) = client.call("QueryRoute").topics
            found = {queue.node: queue.endpoint for queue in topic.queues}
            assert found == {f"n{node}": secured.endpoint(name, node) for node in range(3)}


def test_leases_say_which_listeners_there_are(secured: Secured) -> None:
    for lease in secured.running.registry.list_leases():
        node = int(lease.node.removeprefix("n"))
        at = secured.ports[node]
        assert {one.name: one.endpoint for one in lease.listeners} == {
            name: f"127.0.0.1:{at[name]}" for name in ("plain", *LISTENERS, "internal")
        }
        assert lease.endpoint == secured.endpoint("plain", node)


@pytest.mark.parametrize("listener", ["tls", "mtls"])
def test_any_node_takes_any_call_and_passes_it_on(secured: Secured, listener: str) -> None:
    with clients(secured)[listener] as client:
        for queue in range(QUEUES):
            shard = Shard(client, "t", queue)
            shard.send(Msg(b"x", delay_ms=0))
            assert len(shard.receive_all(1)) == 1
            (answer,) = client.stream([shard.request(Msg(b"y", delay_ms=3_600_000))])
            assert (answer.count, answer.error.code) == (1, 0)
        for node in range(3):
            assert client.call("DescribeNode", node=f"n{node}").node == f"n{node}"


def elsewhere(secured: Secured) -> int:
    """A queue that n0 does not serve."""
    with secured.dial("tls") as client:
        (topic,) = client.call("QueryRoute").topics
        return next(queue.queue for queue in topic.queues if queue.node != "n0")


def test_that_a_call_was_forwarded_is_believed_of_nodes_alone(secured: Secured) -> None:
    queue = elsewhere(secured)

    def ask(client, *metadata: tuple[str, str]) -> str:
        with client:
            try:
                shard = Shard(client, "t", queue)
                client.raw("Enqueue", shard.request(Msg(b"x")).SerializeToString(), metadata=(FORWARDED, *metadata))
            except Failure as failure:
                return failure.reason
            return "passed on"

    for client in clients(secured).values():
        assert ask(client) == "passed on"
    with_role = {
        role: secured.dial("internal", secured.peer_ca.issue(CLUSTER + role, NAME), roots=secured.peer_ca.pem)
        for role in ("operator", "node")
    }
    assert ask(with_role["operator"]) == "passed on"
    assert ask(with_role["node"], ("x-delay-principal", "token:a")) == "NOT_MASTER"
    other = secured.dial("internal", secured.peer_ca.issue(CLUSTER + "operator", NAME), roots=secured.peer_ca.pem)
    assert ask(other, ("x-delay-principal", "token:a")) == "UNAUTHENTICATED"


def test_peer_certificates_and_their_ca_are_replaced_with_no_failed_call(secured: Secured) -> None:
    queue, failures, stop = elsewhere(secured), [], threading.Event()

    def call_on_and_on() -> None:
        with secured.dial("tls") as client:
            try:
                while not stop.is_set():
                    Shard(client, "t", queue).call("DescribeGroup")
            except BaseException as error:
                failures.append(error)

    def is_of(ca: Authority) -> bool:
        """Whether all nodes show a certificate of this CA, and trust it."""
        for node in range(3):
            own = ca.issue(CLUSTER + "operator", NAME)
            with secured.dial("internal", own, node=node, roots=ca.pem) as client:
                try:
                    client.raw("QueryRoute", b"", 3.0)
                except Failure:
                    return False
        return True

    thread = threading.Thread(target=call_on_and_on)
    thread.start()
    older, newer = secured.peer_ca, Authority("peers")
    own = older.issue(CLUSTER + "node", NAME)
    secured.peers.swap(own, older.pem + newer.pem)
    threading.Event().wait(7.0)  # each node has looked
    secured.peers.swap(newer.issue(CLUSTER + "node", NAME), older.pem + newer.pem)
    poll("all show a certificate of the newer CA", lambda: is_of(newer), 30.0)
    secured.peers.swap(newer.issue(CLUSTER + "node", NAME), newer.pem)
    threading.Event().wait(7.0)
    assert is_of(newer)
    secured.peer_ca = newer
    stop.set()
    thread.join()
    assert failures == []
    assert all(secured.events("certificate-unusable", f"n{node}") == [] for node in range(3))


def test_the_peer_port_takes_tls_alone_and_links_and_heartbeats_go_by_it(secured: Secured) -> None:
    leases = secured.running.registry.list_leases()
    assert all(lease.peer_tls for lease in leases)
    for lease in leases:
        up = poll(f"{lease.node} has links", lambda node=lease.node: secured.events("link-up", node))
        assert {one["tls"] for one in up} == {True}
        assert not secured.events("heartbeat-unauthenticated", lease.node)
        host, _, port = lease.peer.rpartition(":")
        with socket.create_connection((host, int(port)), 10) as plain:
            plain.sendall(Hello("local", "n9", "0" * 16, lease.node, lease.incarnation).encode())
            assert b"this node takes TLS alone" in plain.recv(1_000)
