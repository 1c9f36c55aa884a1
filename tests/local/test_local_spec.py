"""A start joins its options with the directory's spec, and refuses changes that can't be taken back."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from click.testing import CliRunner
from delayctl.main import main
from delaylocal.spec import LocalSpec, merge, unmet
from delaynode.store import formats
from delayregistry.model import (
    BadSpec,
    ClusterSpec,
    Condition,
    ConditionType,
    Delivery,
    Durability,
    NodeLease,
    ShardObject,
    ShardSpec,
    ShardStatus,
    TopicSpec,
    Version,
)

FOUND = ClusterSpec("local", 2, (TopicSpec("orders", 8),), durability=Durability.ASYNC, horizon_days=100)


def test_a_new_directory_gets_the_defaults() -> None:
    assert merge(None, LocalSpec(topics=(TopicSpec("orders", 8),))) == ClusterSpec(
        "local", 3, (TopicSpec("orders", 8),), nodes_version=formats.NEWEST
    )


def test_what_nodes_have_on_disk_may_be_of_an_earlier_release() -> None:
    assert merge(None, LocalSpec(), on_disk=1).nodes_version == formats.OLDEST
    assert merge(FOUND, LocalSpec()).nodes_version == FOUND.nodes_version == 1


def test_nodes_that_have_data_are_all_there_again_when_the_registry_is_lost() -> None:
    assert merge(None, LocalSpec(), on_disk=5).nodes == 5
    assert merge(None, LocalSpec(), on_disk=2).nodes == 3
    assert merge(None, LocalSpec(nodes=6), on_disk=5).nodes == 6
    with pytest.raises(BadSpec, match="nodes: 4 asked for, but this cluster has 5"):
        merge(None, LocalSpec(nodes=4), on_disk=5)


def test_a_start_without_spec_keeps_what_is_there() -> None:
    assert merge(FOUND, LocalSpec()) == FOUND


def test_topics_are_added_and_grown() -> None:
    topics = TopicSpec("orders", 9), TopicSpec("bills", 1)
    merged = merge(FOUND, LocalSpec(nodes=3, topics=topics, durability=Durability.FSYNC))
    assert merged.topics == (TopicSpec("orders", 9), TopicSpec("bills", 1))
    assert (merged.nodes, merged.durability, merged.horizon_days) == (3, Durability.FSYNC, 100)


def test_what_would_shrink_is_refused() -> None:
    with pytest.raises(BadSpec, match="nodes: 1 asked for, but this cluster has 2"):
        merge(FOUND, LocalSpec(nodes=1))
    with pytest.raises(BadSpec, match="queues of topic orders: 7 asked for"):
        merge(FOUND, LocalSpec(topics=(TopicSpec("orders", 7),)))
    with pytest.raises(BadSpec, match="horizon days: 99"):
        merge(FOUND, LocalSpec(horizon_days=99))


def test_copies_delivery_and_leases_may_be_wished_for_anew() -> None:
    asked = LocalSpec(replicas=2, min_in_sync=2, delivery=Delivery.MASTER_AND_SLAVE, lease_seconds=5)
    merged = merge(FOUND, asked)
    assert (merged.replicas, merged.min_in_sync, merged.lease_seconds) == (2, 2, 5)
    assert merged.delivery is Delivery.MASTER_AND_SLAVE
    assert merge(merged, LocalSpec(min_in_sync=1, replicas=1)).replicas == 1
    with pytest.raises(BadSpec, match="replicas is 3; allowed: 1 to 2"):
        merge(FOUND, LocalSpec(replicas=3))


def test_a_lease_that_living_nodes_could_not_keep_up_is_refused() -> None:
    with pytest.raises(BadSpec, match="lease seconds: 1 asked for; allowed: at least 2, since a node renews its lease"):
        merge(None, LocalSpec(lease_seconds=1))
    assert merge(None, LocalSpec(lease_seconds=2)).lease_seconds == 2
    run = CliRunner().invoke(main, ["local", "--topic", "orders", "--lease-seconds", "1"])
    assert run.exit_code == 2
    assert "1 is not in the range 2<=x<=3600" in run.output


def test_whoever_adds_a_field_decides_whether_a_local_cluster_has_it() -> None:
    left_out = {
        "name",
        "lag_seconds",
        "drained",
        "allow_unclean_failover",
        "replace_after_seconds",
        "bootstrap_volumes",
        "nodes_version",
        "log_level",
    }
    assert {field.name for field in fields(ClusterSpec)} - left_out == LocalSpec.__annotations__.keys()


DESIRED = ClusterSpec("local", 1, (TopicSpec("orders", 1),))
SPEC = ShardSpec(1, "orders", 0, ("n0",), master="n0", epoch=2, incarnation="now")
LEASE = NodeLease("n0", "now", "e", "h")


def ready(spec: ShardSpec | None, status: ShardStatus | None, lease: NodeLease = LEASE) -> list[str]:
    shards = [] if spec is None else [ShardObject("orders-0", Version("1"), spec, status)]
    return unmet(DESIRED, shards, [lease], {"n0": "before"})


def test_ready_means_served_by_the_present_process_in_the_present_epoch() -> None:
    assert ready(SPEC, ShardStatus(2, "now", ("c",))) == []
    pair = replace(SPEC, replicas=("n0", "n1"))
    assert ready(pair, ShardStatus(2, "now", ("c", "d"))) == []
    assert ready(pair, ShardStatus(2, "now", ("c",))) == ["shard orders-0 has 1 of 2 copies in sync"]


def test_a_blocked_shard_says_what_it_waits_for_rather_than_for_a_term() -> None:
    damaged = Condition(ConditionType.BLOCKED, "CopyDamaged", "n0: the log is torn")
    shard = ShardObject("orders-0", Version("1"), SPEC, ShardStatus(1, "then", ("c",)), (damaged,))
    assert unmet(DESIRED, [shard], [LEASE], {}) == ["shard orders-0 is blocked, CopyDamaged: n0: the log is torn"]
    served = replace(shard, status=ShardStatus(2, "now", ("c",)))
    assert unmet(DESIRED, [served], [LEASE], {}) == [], "it is said for a moment longer than it is so"


def test_what_is_missing_is_said() -> None:
    assert ready(None, None) == ["shard orders-0 does not exist yet"]
    assert ready(replace(SPEC, master=None), None) == ["shard orders-0 has no master yet"]
    assert ready(SPEC, None) == ["shard orders-0 is not yet served by n0 in epoch 2"]
    assert ready(SPEC, ShardStatus(1, "now", ("c",))) == ["shard orders-0 is not yet served by n0 in epoch 2"]
    assert ready(SPEC, ShardStatus(2, "then", ("c",))) == ["shard orders-0 is not yet served by n0 in epoch 2"]
    assert ready(replace(SPEC, incarnation="then"), ShardStatus(2, "then", ("c",))) == [
        "shard orders-0 waits for a new term on n0"
    ]


def test_the_lease_of_the_process_before_does_not_count() -> None:
    old = replace(SPEC, incarnation="before")
    assert ready(old, ShardStatus(2, "before", ("c",)), replace(LEASE, incarnation="before")) == [
        "n0 has not registered",
        "shard orders-0 waits for a new term on n0",
    ]
