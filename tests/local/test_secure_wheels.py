"""What the rebalance job and the operator read of nodes that take TLS and tokens alone, by what the leases say."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from delayapi.units import MINUTE_MS
from delayclient import Tls
from delayclient.sync import Consumer, Producer
from delaylocal import LocalCluster
from delaylocal.own_keys import SERVER_NAME, OwnKeys
from delayoperator.control_loop.loop import LoopClock
from delayoperator.control_loop.node_access import OperatorAccess
from delayoperator.control_loop.probe import GrpcProber
from delayoperator.kube.rebalance.shard_sizes import ShardSizes, weigh
from delayoperator.kube.topic_loads import TopicBacklog, TopicLoads
from delayrebalance.forecast.wheels import NodeUnanswered, TokenAccess, read_wheel, silent
from delayrebalance.maps import read_map
from delayregistry.model import TopicSpec

MESSAGES, QUEUES, LATE = 20, 4, 6


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """With MESSAGES pending in topic `t`, due in an hour and a half."""
    topics = (TopicSpec("t", QUEUES), TopicSpec("lag", QUEUES))
    with LocalCluster(tmp_path_factory.mktemp("secure") / "data", nodes=2, topics=topics, secure=True) as cluster:
        with Producer(cluster.endpoints[0], **identity(cluster)) as producer:
            for number in range(MESSAGES):
                producer.send("t", str(number).encode(), delay="90m")
        yield cluster


def keys_of(cluster: LocalCluster) -> OwnKeys:
    assert cluster.keys is not None
    return cluster.keys


def identity(cluster: LocalCluster) -> dict[str, Any]:
    keys = keys_of(cluster)
    return {"tls": Tls(keys.ca, server_name=SERVER_NAME), "token_file": keys.token_file}


def test_the_job_reads_the_wheels_by_tls_with_its_token(local: LocalCluster, tmp_path: Path) -> None:
    place, token_file = f"sqlite:{local.data}/registry.db", keys_of(local).token_file
    nodes = read_map(place, by_token=True).nodes
    trusts = [node.trust for node in nodes if node.trust is not None]
    assert len(trusts) == len(nodes) == 2
    access = TokenAccess(trusts[0].server_name, trusts[0].roots, str(token_file))
    endpoints = [node.endpoint for node in nodes]
    assert silent(endpoints, 10, access) == {}
    found = [slots for endpoint in endpoints for slots in read_wheel(endpoint, access=access)]
    assert sum(int(slots.messages.sum()) for slots in found) == MESSAGES

    (tmp_path / "token").write_text("guessed")
    stranger = TokenAccess(trusts[0].server_name, trusts[0].roots, str(tmp_path / "token"))
    with pytest.raises(NodeUnanswered, match="UNAUTHENTICATED"):
        list(read_wheel(endpoints[0], access=stranger))
    with pytest.raises(NodeUnanswered):
        list(read_wheel(endpoints[0]))
    assert all(node.trust is None for node in read_map(place).nodes), "nobody asked for TLS"


@pytest.mark.parametrize("by", ["token", "certificate"])
def test_the_operator_weighs_the_shards_of_a_plan_by_hand(local: LocalCluster, by: str) -> None:
    keys = keys_of(local)
    token = keys.token_file.read_text().strip()
    access = OperatorAccess(token=lambda: token) if by == "token" else keys.operator_access()
    shards = {shard.name: shard for shard in local.registry.list_shards()}
    names, leases = {f"t-{queue}" for queue in range(QUEUES)}, local.registry.list_leases()
    now_ms = time.time_ns() // 1_000_000
    found = weigh(names, shards, leases, access, now_ms, timeout_s=30)
    assert found.sizes.keys() == names
    assert sum(size.messages for size in found.sizes.values()) == MESSAGES
    assert found.coming is not None
    assert found.coming.whole
    assert round(found.coming.loads.sum()) == MESSAGES
    assert weigh(names, shards, leases, OperatorAccess(), now_ms, timeout_s=5) == ShardSizes(), "the control: no token"


def test_a_delay_topics_figures_are_those_of_its_messages(local: LocalCluster) -> None:
    """The oldest lag is that of the oldest message which the group is not done with, at most a minute too early."""
    with (
        Consumer(local.endpoints[0], "lag", "g", **identity(local)) as consumer,
        Producer(local.endpoints[0], **identity(local)) as producer,
    ):
        for delay in ("1s", "30m", "90m"):
            for number in range(LATE):
                producer.send("lag", f"{delay} {number}".encode(), delay=delay)
        came = [message for _ in range(LATE) if (message := consumer.receive(60)) is not None]
        assert len(came) == LATE
        late = wait_for(local, lambda it: it.oldest_ms > 0)
        assert (late.pending, late.due) == (2 * LATE, LATE)
        assert abs(late.oldest_ms - min(message.due_ms for message in came)) <= MINUTE_MS
        for message in came:
            consumer.ack(message)
        consumer.flush()
        assert wait_for(local, lambda it: it.oldest_ms == 0).pending == 2 * LATE


def wait_for(local: LocalCluster, true: Callable[[TopicBacklog], bool], seconds: float = 60.0) -> TopicBacklog:
    deadline = time.monotonic() + seconds
    while True:
        loads = TopicLoads(LoopClock())
        prober = GrpcProber(keys_of(local).operator_access())
        loads.look(local.registry.list_leases(), prober)
        prober.close()
        found = loads.of("lag", QUEUES)
        if found is not None and true(found):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
