"""The promises of every Registry adapter, tested on each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from delayregistry.model import (
    ClusterSpec,
    Condition,
    ConditionType,
    ListenerEndpoint,
    NodeLease,
    ShardSpec,
    ShardStatus,
    TopicSpec,
    Version,
)
from delayregistry.port import Conflict
from delayregistry.security import (
    AccessRule,
    AuthorizationMode,
    Operation,
    SecurityObject,
    SecuritySpec,
    SecurityUser,
    write_document,
)

from tests.registry.worlds import KubeWorld, Openable, SqliteWorld, World, until

SPEC = ShardSpec(uid=2**64 - 1, topic="orders", queue=0, replicas=("n0",))
STATUS = ShardStatus(serving_epoch=1, incarnation="a", in_sync=("copy",), resigned="its disk fails")
CONDITION = Condition(ConditionType.BLOCKED, "NodeAway", "n0 is away", since_ms=5, epoch=1)


@pytest.fixture(params=["sqlite", "kube"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """Where registries are opened, several over one state."""
    world: World = SqliteWorld(tmp_path / "registry.db") if request.param == "sqlite" else KubeWorld()
    yield world
    world.close()


@pytest.fixture
def registry(world: World) -> Openable:
    return world.open()


def test_each_part_of_a_shard_is_kept_beside_the_others(registry: Openable) -> None:
    version = registry.create_shard(SPEC)
    version = registry.write_status("orders-0", STATUS, version)
    version = registry.write_conditions("orders-0", (CONDITION,), version)
    spec = replace(SPEC, master="n0", epoch=1, incarnation="a", target=("n1", "n2"), leaving=("n0",))
    version = registry.write_spec("orders-0", spec, version)
    shard = registry.get_shard("orders-0")
    assert shard is not None
    assert (shard.version, shard.status, shard.conditions) == (version, STATUS, (CONDITION,))
    assert shard.spec == spec


def test_write_at_an_old_version_is_refused_and_changes_nothing(registry: Openable) -> None:
    old = registry.create_shard(SPEC)
    registry.write_conditions("orders-0", (CONDITION,), old)
    before = registry.get_shard("orders-0"), registry.version()
    with pytest.raises(Conflict, match="orders-0 is not at version"):
        registry.write_spec("orders-0", replace(SPEC, epoch=7), old)
    with pytest.raises(Conflict):
        registry.write_status("orders-0", STATUS, old)
    with pytest.raises(Conflict):
        registry.write_conditions("orders-0", (), old)
    assert (registry.get_shard("orders-0"), registry.version()) == before


def test_a_shard_is_deleted_only_at_the_version_that_was_seen(registry: Openable) -> None:
    old = registry.create_shard(SPEC)
    version = registry.write_spec("orders-0", replace(SPEC, epoch=1), old)
    until(lambda: len(registry.list_shards()) == 1)
    with pytest.raises(Conflict, match="orders-0 is not at version"):
        registry.delete_shard("orders-0", old)
    before = registry.version()
    registry.delete_shard("orders-0", version)
    assert registry.get_shard("orders-0") is None
    with pytest.raises(Conflict):
        registry.delete_shard("orders-0", version)
    until(lambda: registry.list_shards() == () and registry.version() > before)
    assert registry.create_shard(SPEC) not in (old, version)


def test_a_version_is_opaque_and_a_foreign_one_is_a_conflict(registry: Openable) -> None:
    registry.create_shard(SPEC)
    with pytest.raises(Conflict):
        registry.write_spec("orders-0", SPEC, Version("not a version of this registry"))


def test_versions_never_return_to_an_earlier_value(registry: Openable) -> None:
    version = registry.create_shard(SPEC)
    seen = {version}
    for epoch in range(20):
        version = registry.write_spec("orders-0", replace(SPEC, epoch=(epoch + 1) % 2), version)
        assert version not in seen
        seen.add(version)


def test_a_shard_is_created_once(registry: Openable) -> None:
    registry.create_shard(SPEC)
    with pytest.raises(Conflict, match="exists already"):
        registry.create_shard(replace(SPEC, uid=5))
    shard = registry.get_shard("orders-0")
    assert shard is not None
    assert shard.spec.uid == SPEC.uid


def test_writing_to_a_missing_shard_is_a_conflict(registry: Openable) -> None:
    assert registry.get_shard("orders-0") is None
    with pytest.raises(Conflict):
        registry.write_status("orders-0", STATUS, Version("1"))


def test_shards_are_listed_by_topic_and_queue_and_by_node(registry: Openable) -> None:
    for topic, queue, replicas in (("b", 10, ("n0", "n1")), ("b", 9, ("n1",)), ("a", 0, ("n10",)), ("b", 2, ("n0",))):
        registry.create_shard(ShardSpec(1, topic, queue, replicas))
    assert [shard.name for shard in registry.list_shards()] == ["a-0", "b-2", "b-9", "b-10"]
    assert [shard.name for shard in registry.list_shards("n1")] == ["b-9", "b-10"]
    assert [shard.name for shard in registry.list_shards("n10")] == ["a-0"]
    assert registry.list_shards("n2") == ()


def test_a_list_shows_what_others_have_written_meanwhile(world: World, registry: Openable) -> None:
    other = world.open()
    version = registry.create_shard(SPEC)
    until(lambda: [shard.version for shard in other.list_shards()] == [version])
    version = registry.write_status("orders-0", STATUS, version)
    registry.create_shard(ShardSpec(2, "orders", 1, ("n1",)))
    until(lambda: len(other.list_shards()) == 2)
    seen = other.list_shards()
    assert [(shard.name, shard.status) for shard in seen] == [("orders-0", STATUS), ("orders-1", None)]
    assert other.list_shards("n0") == seen[:1]
    other.write_spec("orders-0", replace(SPEC, replicas=("n1",)), version)
    until(lambda: registry.list_shards("n0") == ())
    assert [shard.name for shard in registry.list_shards("n1")] == ["orders-0", "orders-1"]


def test_a_list_shows_at_once_what_this_one_has_written(registry: Openable) -> None:
    for epoch in range(20):
        if epoch == 0:
            version = registry.create_shard(SPEC)
        else:
            version = registry.write_spec("orders-0", replace(SPEC, epoch=epoch), version)
        assert [(shard.version, shard.spec.epoch) for shard in registry.list_shards()] == [(version, epoch)]


def test_the_version_moves_when_others_write_and_not_before_the_list_shows_it(world: World, registry: Openable) -> None:
    other = world.open()
    registry.list_shards()
    for queue in range(5):
        before = registry.version()
        other.create_shard(ShardSpec(1, "orders", queue, ("n0",)))
        until(lambda: registry.version() > before)  # noqa: B023
        assert len(registry.list_shards()) == queue + 1


def test_version_moves_with_every_write_but_a_lease_or_a_probe(registry: Openable) -> None:
    seen = [registry.version()]
    cluster = registry.put_cluster(ClusterSpec("local", 1), None)
    seen.append(registry.version())
    shard = registry.create_shard(SPEC)
    seen.append(registry.version())
    shard = registry.write_spec("orders-0", replace(SPEC, epoch=1), shard)
    seen.append(registry.version())
    shard = registry.write_status("orders-0", STATUS, shard)
    seen.append(registry.version())
    registry.write_conditions("orders-0", (), shard)
    seen.append(registry.version())
    registry.put_cluster(ClusterSpec("local", 2), cluster)
    seen.append(registry.version())
    assert seen == sorted(set(seen))
    registry.renew_lease(NodeLease("n0", "a", "e", "h", 1))
    registry.probe()
    assert registry.version() == seen[-1]


def test_leases_are_replaced_by_node(registry: Openable) -> None:
    registry.renew_lease(NodeLease("n1", "a", "e1", "h1", 1))
    registry.renew_lease(NodeLease("n0", "b", "e0", "h0", 1))
    registry.renew_lease(NodeLease("n1", "c", "e1", "h1", 2))
    assert registry.list_leases() == (NodeLease("n0", "b", "e0", "h0", 1), NodeLease("n1", "c", "e1", "h1", 2))


def test_a_lease_keeps_all_that_it_says(registry: Openable) -> None:
    lease = NodeLease("n1", "a", "host:1", "host:2", 7, peer="host:3", stopping=True, zone="east")
    listeners = (ListenerEndpoint("plain", "host:1"), ListenerEndpoint("tls", "[fd00::1]:7071"))
    lease = replace(lease, listeners=listeners)
    registry.renew_lease(lease)
    assert registry.list_leases() == (lease,)


def test_cluster_is_swapped_at_its_version(registry: Openable) -> None:
    assert registry.read_cluster() is None
    spec = ClusterSpec("local", 3, (TopicSpec("orders", 8, max_delay_ms=1000),), horizon_days=3_660)
    version = registry.put_cluster(spec, None)
    found = registry.read_cluster()
    assert found is not None
    assert (found.version, found.spec) == (version, spec)
    with pytest.raises(Conflict):
        registry.put_cluster(spec, None)
    registry.put_cluster(replace(spec, nodes=4), version)
    with pytest.raises(Conflict):
        registry.put_cluster(spec, version)


def test_the_security_document_is_swapped_at_its_version(registry: Openable) -> None:
    assert registry.read_security() is None
    spec = SecuritySpec(
        AuthorizationMode.REQUIRED, users=(SecurityUser("token:shop", (AccessRule((Operation.ADMIN,)),)),)
    )
    version = registry.put_security(spec, None)
    until(lambda: registry.read_security() == SecurityObject(version, write_document(spec)))
    with pytest.raises(Conflict):
        registry.put_security(spec, None)
    registry.put_security(SecuritySpec(AuthorizationMode.OFF), version)
    with pytest.raises(Conflict):
        registry.put_security(spec, version)


def test_another_process_sees_the_security_document_within_a_second(world: World, registry: Openable) -> None:
    reader = world.open()
    assert reader.read_security() is None
    before = reader.version()
    version = registry.put_security(SecuritySpec(AuthorizationMode.OFF), None)
    until(lambda: reader.version() > before, timeout_s=1)
    until(lambda: (found := reader.read_security()) is not None and found.version == version, timeout_s=1)


def test_everything_is_there_again_after_reopening(world: World, registry: Openable) -> None:
    registry.put_cluster(ClusterSpec("local", 3), None)
    version = registry.write_status("orders-0", STATUS, registry.create_shard(SPEC))
    registry.renew_lease(NodeLease("n0", "a", "e", "h", 1))
    registry.close()
    again = world.open()
    shard = again.get_shard("orders-0")
    assert shard is not None
    assert (shard.version, shard.spec, shard.status) == (version, SPEC, STATUS)
    assert again.list_shards() == (shard,)
    assert again.read_cluster() is not None
    assert len(again.list_leases()) == 1
