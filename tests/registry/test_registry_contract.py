"""What every Registry adapter promises, shown on the SQLite one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from delaynode.registry import open_registry
from delaynode.registry.model import (
    ClusterSpec,
    Condition,
    ConditionType,
    NodeLease,
    ShardSpec,
    ShardStatus,
    TopicSpec,
    Version,
)
from delaynode.registry.port import Conflict, Registry, RegistryError
from delaynode.registry.sqlite import SqliteRegistry

SPEC = ShardSpec(uid=2**64 - 1, topic="orders", queue=0, replicas=("n0",))
STATUS = ShardStatus(serving_epoch=1, incarnation="a", in_sync=("copy",), resigned="its disk fails")
CONDITION = Condition(ConditionType.BLOCKED, "NodeAway", "n0 is away", since_ms=5, epoch=1)


def test_each_part_of_a_shard_is_kept_beside_the_others(registry: Registry) -> None:
    version = registry.create_shard(SPEC)
    version = registry.write_status("orders-0", STATUS, version)
    version = registry.write_conditions("orders-0", (CONDITION,), version)
    spec = replace(SPEC, master="n0", epoch=1, incarnation="a", target=("n1", "n2"), leaving=("n0",))
    version = registry.write_spec("orders-0", spec, version)
    shard = registry.get_shard("orders-0")
    assert shard is not None
    assert (shard.version, shard.status, shard.conditions) == (version, STATUS, (CONDITION,))
    assert shard.spec == spec


def test_write_at_an_old_version_is_refused_and_changes_nothing(registry: Registry) -> None:
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


def test_a_version_is_opaque_and_a_foreign_one_is_a_conflict(registry: Registry) -> None:
    registry.create_shard(SPEC)
    with pytest.raises(Conflict):
        registry.write_spec("orders-0", SPEC, Version("not a version of this registry"))


def test_versions_never_return_to_an_earlier_value(registry: Registry) -> None:
    version = registry.create_shard(SPEC)
    seen = {version}
    for epoch in range(20):
        version = registry.write_spec("orders-0", replace(SPEC, epoch=epoch % 2), version)
        assert version not in seen
        seen.add(version)


def test_a_shard_is_created_once(registry: Registry) -> None:
    registry.create_shard(SPEC)
    with pytest.raises(Conflict, match="exists already"):
        registry.create_shard(replace(SPEC, uid=5))
    shard = registry.get_shard("orders-0")
    assert shard is not None
    assert shard.spec.uid == SPEC.uid


def test_writing_to_a_missing_shard_is_a_conflict(registry: Registry) -> None:
    assert registry.get_shard("orders-0") is None
    with pytest.raises(Conflict):
        registry.write_status("orders-0", STATUS, Version("1"))


def test_shards_are_listed_by_topic_and_queue_and_by_node(registry: Registry) -> None:
    for topic, queue, replicas in (("b", 10, ("n0", "n1")), ("b", 9, ("n1",)), ("a", 0, ("n10",)), ("b", 2, ("n0",))):
        registry.create_shard(ShardSpec(1, topic, queue, replicas))
    assert [shard.name for shard in registry.list_shards()] == ["a-0", "b-2", "b-9", "b-10"]
    assert [shard.name for shard in registry.list_shards("n1")] == ["b-9", "b-10"]
    assert [shard.name for shard in registry.list_shards("n10")] == ["a-0"]
    assert registry.list_shards("n2") == ()


def test_a_list_shows_what_others_have_written_meanwhile(registry: SqliteRegistry, path: Path) -> None:
    other = open_registry(f"sqlite:{path}")
    version = registry.create_shard(SPEC)
    assert [shard.version for shard in other.list_shards()] == [version]
    version = registry.write_status("orders-0", STATUS, version)
    registry.create_shard(ShardSpec(2, "orders", 1, ("n1",)))
    seen = other.list_shards()
    assert [(shard.name, shard.status) for shard in seen] == [("orders-0", STATUS), ("orders-1", None)]
    assert other.list_shards("n0") == seen[:1]
    other.write_spec("orders-0", replace(SPEC, replicas=("n1",)), version)
    assert registry.list_shards("n0") == ()
    assert [shard.name for shard in registry.list_shards("n1")] == ["orders-0", "orders-1"]
    other.close()


def test_version_moves_with_every_write_but_a_lease_or_a_probe(registry: Registry) -> None:
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


def test_leases_are_replaced_by_node(registry: Registry) -> None:
    registry.renew_lease(NodeLease("n1", "a", "e1", "h1", 1))
    registry.renew_lease(NodeLease("n0", "b", "e0", "h0", 1))
    registry.renew_lease(NodeLease("n1", "c", "e1", "h1", 2))
    assert registry.list_leases() == (NodeLease("n0", "b", "e0", "h0", 1), NodeLease("n1", "c", "e1", "h1", 2))


def test_a_lease_keeps_all_that_it_says(registry: Registry) -> None:
    lease = NodeLease("n1", "a", "host:1", "host:2", 7, peer="host:3", stopping=True)
    registry.renew_lease(lease)
    assert registry.list_leases() == (lease,)


def test_cluster_is_swapped_at_its_version(registry: Registry) -> None:
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


def test_everything_is_there_again_after_reopening(registry: SqliteRegistry, path: Path) -> None:
    registry.put_cluster(ClusterSpec("local", 3), None)
    version = registry.write_status("orders-0", STATUS, registry.create_shard(SPEC))
    registry.renew_lease(NodeLease("n0", "a", "e", "h", 1))
    registry.close()
    again = open_registry(f"sqlite:{path}")
    shard = again.get_shard("orders-0")
    assert shard is not None
    assert (shard.version, shard.spec, shard.status) == (version, SPEC, STATUS)
    assert again.read_cluster() is not None
    assert len(again.list_leases()) == 1
    again.close()


def test_a_missing_registry_and_a_strange_url_are_said_clearly(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match="no registry at"):
        open_registry(f"sqlite:{tmp_path / 'none.db'}")
    assert not (tmp_path / "none.db").exists()
    with pytest.raises(ValueError, match="expected sqlite:PATH"):
        open_registry("etcd:here")


def test_a_file_that_is_no_registry_is_said_clearly(tmp_path: Path) -> None:
    (tmp_path / "registry.db").write_bytes(b"something else entirely, and long enough" * 100)
    with pytest.raises(RegistryError, match="cannot open"):
        open_registry(f"sqlite:{tmp_path / 'registry.db'}")


def test_a_registry_of_a_newer_release_is_refused(registry: SqliteRegistry, path: Path) -> None:
    with registry._writes.transaction() as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(RegistryError, match="newer release"):
        open_registry(f"sqlite:{path}")


def test_a_registry_of_an_older_release_is_refused(registry: SqliteRegistry, path: Path) -> None:
    with registry._writes.transaction() as db:
        db.execute("PRAGMA user_version = 1")
    with pytest.raises(RegistryError, match="older release"):
        open_registry(f"sqlite:{path}")
