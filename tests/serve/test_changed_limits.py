"""A topic's limits are changed while it is used: nobody has to restart a node for them."""

from __future__ import annotations

import dataclasses
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from delayapi.log_levels import LogLevel
from delayapi.units import MINUTE_MS
from delaylocal import LocalCluster
from delayregistry.model import TopicSpec

from tests.serve.support.client import Client, Failure, Msg, Shard, poll, wait_served


@pytest.fixture
def own(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, nodes=2, replicas=2, topics=[TopicSpec("t", 1)]) as running:
        wait_served(running)
        yield running


def change(cluster: LocalCluster, *, min_in_sync: int = 1, log_level: LogLevel | None = None, **limits: Any) -> None:
    found = cluster.registry.read_cluster()
    assert found is not None
    topics = tuple(dataclasses.replace(topic, **limits) for topic in found.spec.topics)
    spec = dataclasses.replace(found.spec, topics=topics, min_in_sync=min_in_sync, log_level=log_level)
    cluster.registry.put_cluster(spec, found.version)


def levels(cluster: LocalCluster) -> set[str]:
    """The levels of what the nodes have logged."""
    logs = "".join((cluster.data / "logs" / f"{node}.log").read_text() for node in cluster.desired.node_ids)
    return {json.loads(line)["level"] for line in logs.splitlines() if line.startswith("{")}


def refusal(shard: Shard, delay_ms: int) -> str:
    try:
        shard.send(Msg(delay_ms=delay_ms))
    except Failure as failure:
        return str(failure.reason)
    return ""


def test_changed_limits_hold_at_once_and_a_failover_does_not_bring_the_old_ones_back(own: LocalCluster) -> None:
    with Client(own.endpoints[0]) as client:
        shard = Shard(client, "t", 0)
        assert refusal(shard, 10 * MINUTE_MS) == ""
        assert LogLevel.DEBUG not in levels(own), "though the copies have joined"
        change(own, max_delay_ms=5 * MINUTE_MS, max_attempts=2, log_level=LogLevel.DEBUG)
        poll("the shorter delay holds", lambda: refusal(shard, 10 * MINUTE_MS) == "DELAY_TOO_LONG", 10)
        shard.send(Msg(b"dies", delay_ms=0))
        for attempt in (1, 2):
            (got,) = shard.receive_all(1, seconds=20)
            assert got.attempt == attempt
            shard.nack([got], 0)
        assert shard.receive(wait_ms=500) == []

        master = own.registry.list_shards()[0].spec.master
        own.kill(str(master))
        poll("the other one serves", lambda: own.registry.list_shards()[0].spec.master != master, 30)
        poll("the limit stands", lambda: refusal(shard, 10 * MINUTE_MS) == "DELAY_TOO_LONG", 30)
        poll("the log's level holds too", lambda: LogLevel.DEBUG in levels(own), 30)
        change(own, max_delay_ms=None)
        poll("the limit is gone", lambda: refusal(shard, 10 * MINUTE_MS) == "", 10)


def test_a_higher_floor_of_copies_holds_at_once(own: LocalCluster) -> None:
    with Client(own.endpoints[0]) as client:
        shard = Shard(client, "t", 0)
        assert refusal(shard, MINUTE_MS) == ""
        spec = own.registry.list_shards()[0].spec
        (slave,) = {*spec.replicas} - {spec.master}
        change(own, min_in_sync=2)
        poll("both have it", lambda: refusal(shard, MINUTE_MS) == "", 10)
        own.kill(slave, signal.SIGSTOP)
        poll("too few", lambda: refusal(shard, MINUTE_MS) == "NOT_ENOUGH_REPLICAS", 30)
        own.kill(slave, signal.SIGCONT)
        poll("enough again", lambda: refusal(shard, MINUTE_MS) == "", 30)
