"""Stored values come back as they were; what is stored wrongly is said, not guessed."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, TypeVar

import pytest
from delayapi.log_levels import LogLevel
from delayregistry.codec import BadRecord, dumps, loads, loads_tuple
from delayregistry.model import (
    MAX_QUOTA,
    BadSpec,
    BootstrapVolumes,
    ClusterSpec,
    Condition,
    ConditionType,
    Delivery,
    Durability,
    Handover,
    ListenerEndpoint,
    ListenerTrust,
    NodeLease,
    ShardSpec,
    ShardStatus,
    Switchover,
    TopicQuotas,
    TopicSpec,
    TopicType,
    VersionRange,
    copy_id_of,
    in_sync_replica_id,
)
from hypothesis import given, settings
from hypothesis import strategies as st

Value = TypeVar("Value")


def drawn(kind: type[Value], **strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[Value]:
    """Values of a dataclass; every field has to have a strategy, so that a new one is not left out."""
    assert strategies.keys() == {field.name for field in fields(kind)}, kind
    return st.builds(kind, **strategies)


text = st.text(max_size=20)
node = st.sampled_from(["n0", "n1", "n2"])
names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
quota = st.none() | st.integers(1, MAX_QUOTA)
topics = drawn(
    TopicSpec,
    name=names,
    queues=st.integers(1, 10_000),
    type=st.sampled_from(TopicType),
    retention_ms=st.integers(1, 10**9),
    dlq_retention_ms=st.integers(1, 10**9),
    max_attempts=st.integers(1, 1_000),
    max_delay_ms=st.none() | st.integers(1, 10**9),
    max_release_per_second=st.none() | st.integers(1, 10**9),
    quotas=st.none() | st.builds(TopicQuotas, quota, quota, quota),
    deduplicate=st.booleans(),
)
clusters = drawn(
    ClusterSpec,
    name=text,
    nodes=st.integers(7, 1_000),
    topics=st.lists(topics, unique_by=lambda topic: topic.name, max_size=4).map(tuple),
    replicas=st.just(7),
    min_in_sync=st.integers(1, 7),
    lease_seconds=st.integers(1, 3_600),
    lag_seconds=st.integers(1, 3_600),
    delivery=st.sampled_from(Delivery),
    durability=st.sampled_from(Durability),
    horizon_days=st.integers(1, 3_660),
    drained=st.lists(node, unique=True).map(tuple),
    allow_unclean_failover=st.booleans(),
    replace_after_seconds=st.integers(1, 10**6),
    bootstrap_volumes=st.sampled_from(BootstrapVolumes),
    log_level=st.none() | st.sampled_from(LogLevel),
    nodes_version=st.integers(1, 1_000),
)
specs = drawn(
    ShardSpec,
    uid=st.integers(1, 2**64 - 1),
    topic=names,
    queue=st.integers(0, 9_999),
    replicas=st.lists(node, unique=True, min_size=1).map(tuple),
    master=st.none() | node,
    epoch=st.integers(0, 2**63),
    incarnation=st.none() | text,
    switchover=st.none() | st.builds(Switchover, to=node),
    target=st.none() | st.lists(node, unique=True, min_size=1).map(tuple),
    leaving=st.lists(node, unique=True).map(tuple),
    vacant=st.booleans(),
    unclean_epoch=st.integers(0, 2**63),
    by_load=st.lists(node, unique=True).map(tuple),
)
statuses = drawn(
    ShardStatus,
    serving_epoch=st.integers(0, 2**63),
    incarnation=text,
    in_sync=st.lists(text, max_size=3).map(tuple),
    handover=st.none() | st.builds(Handover, epoch=st.integers(0), log_end=st.integers(0)),
    resigned=st.none() | text,
    revision=st.integers(0, 2**63),
)
conditions = drawn(
    Condition,
    type=st.sampled_from(ConditionType),
    reason=text,
    message=text,
    since_ms=st.integers(0, 2**50),
    epoch=st.integers(0, 2**50),
)
leases = drawn(
    NodeLease,
    node=node,
    incarnation=text,
    endpoint=text,
    http=text,
    renewals=st.integers(0, 2**50),
    peer=text,
    stopping=st.booleans(),
    zone=text,
    formats=st.none() | st.builds(VersionRange, st.integers(1, 9), st.integers(1, 9)),
    wire=st.none() | st.builds(VersionRange, st.integers(1, 9), st.integers(1, 9)),
    listeners=st.lists(st.builds(ListenerEndpoint, text, text), max_size=3).map(tuple),
    peer_tls=st.booleans(),
    trust=st.none() | st.builds(ListenerTrust, text, text),
    certificate_problem=text,
)


@settings(deadline=None)
@given(clusters | specs | statuses | conditions | leases)
def test_every_value_comes_back_from_json(value: ClusterSpec | ShardSpec | ShardStatus | Condition | NodeLease) -> None:
    assert loads(type(value), dumps(value)) == value


def test_a_lease_of_release_0_1_names_no_zone_and_no_versions() -> None:
    kept = '{"node":"n0","incarnation":"i","endpoint":"e","http":"h","renewals":7,"peer":"p","stopping":true}'
    assert loads(NodeLease, kept) == NodeLease("n0", "i", "e", "h", 7, "p", stopping=True, zone="")


@settings(deadline=None)
@given(st.lists(conditions, max_size=3).map(tuple))
def test_lists_come_back_from_json(value: tuple[Condition, ...]) -> None:
    assert loads_tuple(Condition, dumps(value)) == value


def test_json_speaks_the_names_of_the_design() -> None:
    status = json.loads(dumps(ShardStatus(3, "a", ("c1", "c2"), Handover(3, 77))))
    assert status == {
        "servingEpoch": 3,
        "incarnation": "a",
        "inSync": ["c1", "c2"],
        "handover": {"epoch": 3, "logEnd": 77},
        "revision": 0,
    }
    spec = json.loads(dumps(ShardSpec(2**64 - 1, "orders", 0, ("n0",))))
    assert spec == {
        "uid": "18446744073709551615",
        "topic": "orders",
        "queue": 0,
        "replicas": ["n0"],
        "epoch": 0,
        "leaving": [],
        "vacant": False,
        "uncleanEpoch": 0,
        "byLoad": [],
    }


def test_an_in_sync_entry_names_the_copy_and_with_async_the_kernel_that_ran() -> None:
    assert in_sync_replica_id("c1") == "c1"
    assert in_sync_replica_id("c1", "boot") == "c1@boot"
    assert [copy_id_of(entry) for entry in ("c1", "c1@boot")] == ["c1", "c1"]


def test_fields_of_a_later_release_are_ignored() -> None:
    assert loads(TopicSpec, '{"name": "orders", "queues": 8, "colour": "red"}') == TopicSpec("orders", 8)


@pytest.mark.parametrize(
    ("stored", "fault"),
    [
        ("{", "not JSON"),
        ("[]", "object was expected"),
        ('{"queues": 8}', "name"),
        ('{"name": "orders", "queues": "8"}', "TopicSpec.queues: a whole number"),
        ('{"name": "orders", "queues": true}', "whole number"),
        ('{"name": 7, "queues": 8}', "TopicSpec.name: text"),
        ('{"name": "orders", "queues": 8, "type": "Sometimes"}', "TopicSpec.type"),
        ('{"name": "orders", "queues": 0}', "allowed: 1 to"),
    ],
)
def test_wrong_json_says_what_is_wrong(stored: str, fault: str) -> None:
    with pytest.raises(BadRecord, match=fault):
        loads(TopicSpec, stored)


def test_a_flag_is_true_or_false_and_nothing_else() -> None:
    with pytest.raises(BadRecord, match=r"ClusterSpec\.allowUncleanFailover: true or false"):
        loads(ClusterSpec, '{"name": "local", "nodes": 1, "allowUncleanFailover": 1}')


@pytest.mark.parametrize("name", ["", "Orders", "a_b", "-a", "a-", "a" * 51, "a/b", "ä"])
def test_topic_names_that_kubernetes_would_refuse_are_refused(name: str) -> None:
    with pytest.raises(BadSpec, match="topic name"):
        TopicSpec(name, 1)


def test_nonsense_spec_are_refused_with_the_limit() -> None:
    with pytest.raises(BadSpec, match="replicas is 2; allowed: 1 to 1"):
        ClusterSpec("local", 1, replicas=2)
    with pytest.raises(BadSpec, match="min_in_sync is 2"):
        ClusterSpec("local", 3, min_in_sync=2)
    with pytest.raises(BadSpec, match="named twice"):
        ClusterSpec("local", 1, (TopicSpec("a", 1), TopicSpec("a", 2)))
