"""What a start asks for is joined with what the directory holds; what can't be taken back is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from delaynode.registry.model import (
    BadSpec,
    ClusterSpec,
    Durability,
    NodeLease,
    ShardObject,
    ShardSpec,
    ShardStatus,
    TopicSpec,
    Version,
)
from delayoperator.local.wishes import merge, unmet

FOUND = ClusterSpec("local", 2, (TopicSpec("orders", 8),), durability=Durability.ASYNC, horizon_days=100)


def test_a_new_directory_gets_the_defaults() -> None:
    assert merge(None, topics=[TopicSpec("orders", 8)]) == ClusterSpec("local", 3, (TopicSpec("orders", 8),))


def test_a_start_without_wishes_keeps_what_is_there() -> None:
    assert merge(FOUND) == FOUND


def test_topics_are_added_and_grown() -> None:
    merged = merge(FOUND, topics=[TopicSpec("orders", 9), TopicSpec("bills", 1)], nodes=3, durability=Durability.FSYNC)
    assert merged.topics == (TopicSpec("orders", 9), TopicSpec("bills", 1))
    assert (merged.nodes, merged.durability, merged.horizon_days) == (3, Durability.FSYNC, 100)


def test_what_would_shrink_is_refused() -> None:
    with pytest.raises(BadSpec, match="nodes: 1 asked for, but this cluster has 2"):
        merge(FOUND, nodes=1)
    with pytest.raises(BadSpec, match="queues of topic orders: 7 asked for"):
        merge(FOUND, topics=[TopicSpec("orders", 7)])
    with pytest.raises(BadSpec, match="horizon days: 99"):
        merge(FOUND, horizon_days=99)


WISHES = ClusterSpec("local", 1, (TopicSpec("orders", 1),))
SPEC = ShardSpec(1, "orders", 0, ("n0",), master="n0", epoch=2, incarnation="now")
LEASE = NodeLease("n0", "now", "e", "h")


def ready(spec: ShardSpec | None, status: ShardStatus | None, lease: NodeLease = LEASE) -> list[str]:
    shards = [] if spec is None else [ShardObject("orders-0", Version("1"), spec, status)]
    return unmet(WISHES, shards, [lease], {"n0": "before"})


def test_ready_means_served_by_the_present_process_in_the_present_epoch() -> None:
    assert ready(SPEC, ShardStatus(2, "now", ("c",))) == []


def test_what_is_missing_is_said() -> None:
    assert ready(None, None) == ["shard orders-0 does not exist yet"]
    assert ready(replace(SPEC, master=None), None) == ["shard orders-0 has no master yet"]
    assert ready(SPEC, None) == ["shard orders-0 is not yet served by n0 in epoch 2"]
    assert ready(SPEC, ShardStatus(1, "now", ("c",))) == ["shard orders-0 is not yet served by n0 in epoch 2"]
    assert ready(SPEC, ShardStatus(2, "then", ("c",))) == ["shard orders-0 is not yet served by n0 in epoch 2"]
    assert ready(replace(SPEC, incarnation="then"), ShardStatus(2, "then", ("c",))) == [
        "shard orders-0 waits for a new reign on n0"
    ]


def test_the_lease_of_the_process_before_does_not_count() -> None:
    old = replace(SPEC, incarnation="before")
    assert ready(old, ShardStatus(2, "before", ("c",)), replace(LEASE, incarnation="before")) == [
        "n0 has not registered",
        "shard orders-0 waits for a new reign on n0",
    ]
