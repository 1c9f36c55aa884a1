"""A cluster whose pods have IPv6 addresses: listening, advertising, heartbeats, shipping, probes, clients."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from delayapi import address
from delayclient.routing.routing import split_endpoints
from delaylocal import LocalCluster
from delayregistry.model import TopicSpec

from tests.serve.support.client import Client, Msg, Shard, is_served, poll


class Ipv6Cluster(LocalCluster):
    """Its nodes are told where to listen and what to advertise as the operator tells pods, with $(POD_IP) = ::1."""

    def _command(self, number: int, node: str) -> tuple[str, ...]:
        command = list(super()._command(number, node))
        for option, advertised in (("--listen", "--advertise"), ("--http", "--advertise-http"), ("--peer", "")):
            at = command.index(option) + 1
            port = command[at].rpartition(":")[2]
            command[at] = f"[::]:{port}" if advertised else f"::1:{port}"
            command += [advertised, f"::1:{port}"] if advertised else []
        return tuple(command)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Ipv6Cluster]:
    with Ipv6Cluster(tmp_path, nodes=2, replicas=2, topics=[TopicSpec("t", 2)]) as cluster:
        cluster.wait_ready()
        yield cluster


def queues(client: Client) -> list[Any]:
    (topic,) = client.call("QueryRoute", topic="t").topics
    return list(topic.queues)


def test_nodes_with_ipv6_addresses_replicate_fail_over_and_are_reached(cluster: Ipv6Cluster) -> None:
    leases = {lease.node: lease for lease in cluster.registry.list_leases()}
    assert all(at.startswith("[::1]:") for it in leases.values() for at in (it.endpoint, it.http, it.peer))
    with Client(leases["n0"].endpoint) as client:
        shards = [Shard(client, "t", queue) for queue in range(2)]
        # A master may have begun a moment ago; then the other node may not know of it yet.
        poll("n0 knows both masters", lambda: all(it.endpoint and it.epoch for it in queues(client)))
        poll("both serve", lambda: all(is_served(shard) for shard in shards))
        for shard in shards:  # one of them is passed on to n1, by its advertised address
            assert shard.send(Msg(b"kept", delay_ms=3_000)).seqs == [0]
        with urllib.request.urlopen(f"http://{leases['n0'].http}/readyz", timeout=5) as answer:
            assert answer.read() == b"ok\n"
        cluster.kill("n1")
        poll("n0 leads", lambda: {it.spec.master for it in cluster.registry.list_shards()} == {"n0"}, 30)
        for shard in shards:
            assert [got.body for got in poll("it is served", lambda: took(shard), 30)] == [b"kept"]  # noqa: B023
    cluster.wait_ready()


def took(shard: Shard) -> list[object]:
    try:
        return list(shard.receive(wait_ms=1_000))
    except Exception:  # there is no master yet
        return []


@pytest.mark.parametrize(
    ("text", "host", "port", "normal"),
    [
        ("10.0.0.1:7070", "10.0.0.1", 7070, "10.0.0.1:7070"),
        ("[fd00::1]:7070", "fd00::1", 7070, "[fd00::1]:7070"),
        ("fd00::1:7070", "fd00::1", 7070, "[fd00::1]:7070"),
        ("[::]:0", "::", 0, "[::]:0"),
        ("node-0.nodes:7070", "node-0.nodes", 7070, "node-0.nodes:7070"),
        (":7070", "", 7070, ":7070"),
    ],
)
def test_an_address_is_read_with_and_without_brackets(text: str, host: str, port: int, normal: str) -> None:
    assert address.split(text) == (host, port)
    assert address.normal(text) == normal


@pytest.mark.parametrize("text", ["", "7070", "10.0.0.1", "10.0.0.1:", "10.0.0.1:x", "10.0.0.1:65536", "[fd00::1]"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        address.split(text)


def test_all_addresses_are_those_of_ipv4_and_of_ipv6() -> None:
    with address.listen("::", 0) as listener:
        port = listener.getsockname()[1]
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, port), 5).close()


def test_a_machine_without_ipv6_listens_on_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with address.listen("::", 0) as listener:
        assert listener.family == socket.AF_INET
        socket.create_connection(("127.0.0.1", listener.getsockname()[1]), 5).close()


def test_the_sdk_takes_an_ipv6_address_between_brackets_and_says_so_otherwise() -> None:
    assert split_endpoints("[fd00::1]:7070,10.0.0.1:7070") == ("[fd00::1]:7070", "10.0.0.1:7070")
    with pytest.raises(ValueError, match=r"'fd00::1:7070'.*between brackets.*\[fd00::1\]:7070"):
        split_endpoints("fd00::1:7070")
