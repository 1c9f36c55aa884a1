"""Calls about a node: what it says of itself, and what it does not let itself be told."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import grpc
import pytest
from click.testing import CliRunner
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayctl.main import main
from delaylocal import LocalCluster
from delayregistry.model import NodeLease, TopicSpec

from tests.serve.support.client import NODE_METHODS, Client, Failure, now_ms, poll, wait_served


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, edge: str) -> Iterator[LocalCluster]:
    topics, zones = [TopicSpec("t", 1)], ["east", "west"]
    with LocalCluster(tmp_path_factory.mktemp("pair"), nodes=2, topics=topics, zones=zones) as running:
        wait_served(running)
        yield running


@pytest.fixture
def client(pair: LocalCluster) -> Iterator[Client]:
    with Client(pair.endpoints[0]) as made:
        yield made


def test_a_node_says_how_it_is(client: Client, pair: LocalCluster) -> None:
    poll("both are known", lambda: list(client.call("DescribeNode").nodes) == ["n0", "n1"])
    state = client.call("DescribeNode")
    assert (state.node, state.endpoint, state.not_ready, list(state.conditions)) == ("n0", pair.endpoints[0], "", [])
    assert abs(state.now_ms - now_ms()) < 5_000
    assert (state.clock_disbelieved_ms, state.clock_behind_ms) == (0, 0)
    assert state.disk_free_bytes > state.disk_reserve_bytes >= 256 << 20


@pytest.mark.parametrize("node", ["n0", "n1"])
def test_any_node_can_be_asked_about_any_other(client: Client, pair: LocalCluster, node: str) -> None:
    poll("both are known", lambda: len(client.call("DescribeNode").nodes) == 2)
    state = client.call("DescribeNode", node=node)
    assert (state.node, state.endpoint) == (node, pair.endpoints[int(node[1])])
    assert abs(client.call("AcceptClock", node=node).moved_ms) <= 1  # rounding: nothing was disbelieved


@pytest.mark.parametrize("node", ["n7", "N0", "x" * 5_000, "\0"])
def test_a_node_that_nobody_knows_is_refused(client: Client, node: str) -> None:
    for method in NODE_METHODS:
        with pytest.raises(Failure) as caught:
            client.call(method, node=node)
        assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_NODE")


@pytest.mark.parametrize("seen_ms", [3_600_000, -3_600_000, 2**63 - 1, -(2**63)])
def test_a_step_that_is_not_there_is_not_accepted(client: Client, seen_ms: int) -> None:
    with pytest.raises(Failure) as caught:
        client.call("AcceptClock", disbelieved_ms=seen_ms)
    assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "CLOCK_CHANGED")


@pytest.mark.parametrize("method", NODE_METHODS)
def test_bytes_that_are_no_request(method: str, client: Client) -> None:
    choose = random.Random(method)
    valid = pb.AcceptClockRequest(node="n0", disbelieved_ms=5_000_000).SerializeToString()
    for _ in range(200):
        data = bytearray(valid)
        for _ in range(choose.randrange(1, 4)):
            data[choose.randrange(len(data))] = choose.randrange(256)
        answer = client.attempt(method, bytes(data[: choose.randrange(len(data) + 1)]))
        if isinstance(answer, Failure):
            assert answer.reason in ("BAD_REQUEST", "UNKNOWN_NODE", "CLOCK_CHANGED"), answer


def test_delayctl_lists_the_nodes_those_included_that_do_not_answer(pair: LocalCluster) -> None:
    pair.registry.renew_lease(NodeLease("n2", "gone", "127.0.0.1:1", "127.0.0.1:1", 1))
    with Client(pair.endpoints[1]) as client:
        poll("all are known", lambda: len(client.call("DescribeNode").nodes) == 3)
    asked = ["nodes", "list", "--endpoint", pair.endpoints[1]]
    listed = CliRunner().invoke(main, [*asked, "--json"], catch_exceptions=False)
    rows = [json.loads(line) for line in listed.stdout.splitlines()]
    assert [(row["node"], bool(row["problem"])) for row in rows] == [("n0", False), ("n1", False), ("n2", True)]
    assert [row["endpoint"] for row in rows[:2]] == pair.endpoints
    assert [row["zone"] for row in rows] == ["east", "west", ""]
    assert [lease.zone for lease in pair.registry.list_leases()] == ["east", "west", ""]
    table = CliRunner().invoke(main, asked, catch_exceptions=False)
    assert table.exit_code == 0
    assert [line.split()[0] for line in table.stdout.splitlines() if line[:1] in "Nn"] == ["NODE", "n0", "n1", "n2"]
    assert [line.split()[1] for line in table.stdout.splitlines() if line[:1] in "Nn"] == ["ZONE", "east", "west", "?"]


@pytest.mark.parametrize(("node", "code", "text"), [("n0", 1, "n0 believes its clock"), ("n7", 1, "no node 'n7'")])
def test_delayctl_accepts_no_clock_that_is_believed(pair: LocalCluster, node: str, code: int, text: str) -> None:
    asked = ["nodes", "accept-clock", node, "--yes", "--endpoint", pair.endpoints[0]]
    ended = CliRunner().invoke(main, asked, catch_exceptions=False)
    assert ended.exit_code == code
    assert text in ended.stderr
