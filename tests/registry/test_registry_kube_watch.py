"""Watches that break, come too late or fall silent; and what a mirror makes of events in a strange order."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from delayregistry.codec import BadRecord
from delayregistry.kube import KubeRegistry
from delayregistry.kube.mirror import Mirror
from delayregistry.model import ClusterSpec, ShardSpec
from delayregistry.port import RegistryUnavailable

from tests.kube.desired import WritingRegistry
from tests.kube.fakekinds import find
from tests.registry.worlds import CLUSTER, NAMESPACE, KubeWorld, until

SPEC = ShardSpec(uid=1, topic="orders", queue=0, replicas=("n0",))
SHARDS = "/delayshards"


@pytest.fixture
def world() -> Iterator[KubeWorld]:
    world = KubeWorld(bookmark_s=0.2)
    yield world
    world.close()


@pytest.fixture
def writer(world: KubeWorld) -> WritingRegistry:
    """A second registry client: the watching node hears of its writes by the watch alone."""
    return world.open()


@pytest.fixture
def node(world: KubeWorld, writer: WritingRegistry) -> KubeRegistry:
    """A node whose watches end after a second, and are given up after one and a half."""
    writer.put_cluster(ClusterSpec(CLUSTER, 3), None)
    node = world.open(owner=None, watch_s=1.0, grace_s=0.5)
    assert node.list_shards() == ()
    until(lambda: world.server.open_watches == 2)
    return node


def queues(registry: KubeRegistry) -> list[int]:
    return [shard.spec.queue for shard in registry.list_shards()]


def events(world: KubeWorld, name: str) -> list[dict[str, object]]:
    return [event for event in world.events if event["event"] == name]


def test_a_watch_that_is_cut_goes_on_where_it_was(
    world: KubeWorld, writer: WritingRegistry, node: KubeRegistry
) -> None:
    writer.create_shard(SPEC)
    until(lambda: queues(node) == [0])
    began_s = time.monotonic()
    world.server.break_watches()
    writer.create_shard(replace(SPEC, queue=1))
    until(lambda: queues(node) == [0, 1])
    assert world.server.requests("LIST", SHARDS, began_s) == []
    assert events(world, "watch-interrupted")
    until(lambda: len(events(world, "watch-resumed")) == len(events(world, "watch-interrupted")))


def test_a_watch_that_is_too_old_lists_again_and_misses_no_deletion(
    world: KubeWorld, writer: WritingRegistry, node: KubeRegistry
) -> None:
    for queue in range(3):
        writer.create_shard(replace(SPEC, queue=queue))
    until(lambda: queues(node) == [0, 1, 2])
    before = node.version()
    world.server.fault(method="WATCH", path=SHARDS, code=500, times=3)
    world.server.break_watches()
    until(lambda: node._watches[0].out_s() > 0)
    world.server.store.delete(find("delayshards"), NAMESPACE, "c.orders-1")
    writer.create_shard(replace(SPEC, queue=3))
    world.server.expire_watches()
    until(lambda: queues(node) == [0, 2, 3])
    assert node.version() > before


def test_a_store_that_was_restored_from_a_backup_is_followed_though_its_versions_went_back(
    world: KubeWorld, writer: WritingRegistry, node: KubeRegistry
) -> None:
    store, desired = world.server.store, writer.read_cluster()
    assert desired is not None
    for queue in range(2):
        writer.create_shard(replace(SPEC, queue=queue))
    until(lambda: queues(node) == [0, 1])
    backup = store.backup()
    first = node.get_shard("orders-0")
    assert first is not None
    version = writer.write_spec("orders-0", replace(SPEC, epoch=5), first.version)
    for epoch in range(6, 20):
        version = writer.write_spec("orders-0", replace(SPEC, epoch=epoch), version)
    writer.create_shard(replace(SPEC, queue=2))
    writer.put_cluster(replace(desired.spec, nodes=7), desired.version)
    until(lambda: queues(node) == [0, 1, 2] and node.list_shards()[0].spec.epoch == 19)
    until(lambda: (node.read_cluster() or desired).spec.nodes == 7)

    world.server.fault(method="WATCH", path=f"({SHARDS}|/configmaps)", code=500, times=12)
    world.server.break_watches()
    store.restore(backup)
    until(lambda: queues(node) == [0, 1] and node.list_shards()[0].spec.epoch == 0)
    until(lambda: (node.read_cluster() or desired).spec.nodes == 3)
    assert events(world, "registry-went-back")
    restored = node.get_shard("orders-0")
    assert restored is not None
    writer.write_spec("orders-0", replace(SPEC, epoch=2), restored.version)
    until(lambda: node.list_shards()[0].spec.epoch == 2)
    writer.put_cluster(replace(desired.spec, nodes=4), desired.version)
    until(lambda: (node.read_cluster() or desired).spec.nodes == 4)
    began_s = time.monotonic()
    until(lambda: world.server.requests("WATCH", SHARDS, began_s))  # the watch has been begun again
    writer.create_shard(replace(SPEC, queue=3))
    until(lambda: queues(node) == [0, 1, 3])


def test_a_restored_store_is_followed_though_its_versions_have_overtaken_what_was_heard(
    world: KubeWorld, writer: WritingRegistry, node: KubeRegistry
) -> None:
    """Others had written so much by the first list after the outage: on a real Kubernetes, within five seconds."""
    store = world.server.store
    writer.create_shard(SPEC)
    until(lambda: queues(node) == [0])
    backup = store.backup()
    first = node.get_shard("orders-0")
    assert first is not None
    writer.write_spec("orders-0", replace(SPEC, epoch=5), first.version)
    writer.create_shard(replace(SPEC, queue=1))
    until(lambda: queues(node) == [0, 1] and node.list_shards()[0].spec.epoch == 5)
    world.server.fault(method="WATCH", path=SHARDS, code=500, times=4)
    world.server.break_watches()
    newest = store.version
    with store.lock:
        store.restore(backup)
        while store.version <= newest:
            store.create(find("events"), NAMESPACE, {"metadata": {"name": f"of-others-{store.version}"}})
    until(lambda: queues(node) == [0] and node.list_shards()[0].spec.epoch == 0)


def test_a_watch_that_is_always_too_old_is_no_storm_of_lists(world: KubeWorld, node: KubeRegistry) -> None:
    world.server.fault(method="WATCH", path=SHARDS, code=410, times=None)
    world.server.break_watches()
    began_s = time.monotonic()
    time.sleep(2.0)
    assert 0 < len(world.server.requests("LIST", SHARDS, began_s)) < 15


def test_a_watch_that_falls_silent_is_noticed_and_begun_again(
    world: KubeWorld, writer: WritingRegistry, node: KubeRegistry
) -> None:
    silenced_s = time.monotonic()
    world.server.silence_watches()
    time.sleep(0.3)  # it has to come round to that
    began_s = time.monotonic()
    writer.create_shard(SPEC)
    until(lambda: queues(node) == [0], timeout_s=20)
    assert time.monotonic() - began_s < 10  # 1.5 s
    assert world.server.requests("WATCH", SHARDS, silenced_s), "not by the watch that is silent"
    assert node.version() > 0


def test_the_spec_are_followed_too_though_their_object_is_from_before_the_history(
    world: KubeWorld, writer: WritingRegistry, node: KubeRegistry
) -> None:
    world.server.expire_watches()
    late = world.open(owner=None)
    first = late.read_cluster()
    assert first is not None
    until(lambda: world.server.open_watches == 4)
    second = writer.put_cluster(replace(first.spec, nodes=5), first.version)
    for registry in (node, late):
        until(lambda: (registry.read_cluster() or first).version == second)  # noqa: B023
    # An object that nobody changes must not make the watch begin anew for ever.
    began_s = time.monotonic()
    time.sleep(1.5)
    assert len(world.server.requests("GET", "/configmaps", began_s)) <= 4


def test_deleted_spec_are_kept_by_nodes_and_put_again_by_the_operator(
    world: KubeWorld, writer: WritingRegistry, node: KubeRegistry
) -> None:
    known = node.read_cluster()
    assert known is not None
    other = world.open()
    stale = other.read_cluster()
    assert stale is not None
    before = node.version()
    world.server.store.delete(find("configmaps"), NAMESPACE, "c-cluster")
    until(lambda: node.version() > before)
    assert node.read_cluster() == known
    until(lambda: other.read_cluster() is None)
    other.put_cluster(replace(known.spec, nodes=7), None)
    until(lambda: (node.read_cluster() or known).spec.nodes == 7)


def test_spec_that_somebody_broke_are_said_and_the_last_good_ones_stand(
    world: KubeWorld, writer: WritingRegistry, node: KubeRegistry
) -> None:
    known = node.read_cluster()
    world.server.store.patch(find("configmaps"), NAMESPACE, "c-cluster", {"data": {"cluster.json": "{"}})
    until(lambda: bool(events(world, "object-unreadable")))
    assert node.read_cluster() == known


def test_while_the_watch_is_out_the_version_is_not_to_be_had(
    world: KubeWorld, node: KubeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayregistry.kube.adapter.OUT_S", 0.3)
    monkeypatch.setattr("delayregistry.kube.adapter.BACK_S", 0.1)
    fault = world.server.fault(method="WATCH", code=503, times=None)
    world.server.break_watches()
    until(lambda: node._watches[0].out_s() > 0.3)
    with pytest.raises(RegistryUnavailable, match=r"watch has been out for .*503"):
        node.version()
    world.server.faults.take_back(fault)
    until(lambda: node._watches[0].out_s() == 0.0)
    until(lambda: node._watches[1].out_s() == 0.0)
    assert node.version() > 0


def test_without_an_api_server_nothing_is_known_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delayregistry.kube.adapter.SYNC_S", 0.2)
    world = KubeWorld()
    world.server.close()
    registry = world.open()
    with pytest.raises(RegistryUnavailable, match="nothing was heard from the API server yet"):
        registry.list_shards()
    registry.close()


def test_closing_ends_the_watches_at_once(world: KubeWorld, node: KubeRegistry) -> None:
    began_s = time.monotonic()
    node.close()
    assert time.monotonic() - began_s < 0.9
    until(lambda: world.server.open_watches == 0)
    watches: list[Any] = list(node._watches)
    assert not [thread for thread in threading.enumerate() if thread in [it._thread for it in watches]]


def test_a_thousand_writes_of_others_all_arrive_while_watches_break(
    world: KubeWorld, writer: WritingRegistry, node: KubeRegistry
) -> None:
    versions = {queue: writer.create_shard(replace(SPEC, queue=queue)) for queue in range(20)}
    for epoch in range(1, 30):
        for queue in versions:
            spec = replace(SPEC, queue=queue, epoch=epoch)
            versions[queue] = writer.write_spec(spec.name, spec, versions[queue])
        if epoch % 7 == 0:
            world.server.break_watches()
        if epoch % 11 == 0:
            world.server.expire_watches()
    until(lambda: [shard.version for shard in node.list_shards()] == list(versions.values()), timeout_s=20)


# ------------------------------------------------------------ the mirror alone
def obj(name: str, version: int, value: object = "") -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}, "value": value or version}


def read(found: dict[str, Any]) -> object:
    if found["value"] == "bad":
        raise BadRecord("it is bad")
    return found["value"]


@pytest.fixture
def said() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def mirror(said: list[tuple[str, str]]) -> Mirror[object]:
    return Mirror(read, lambda name, version, why: said.append((name, version)))


def test_an_event_from_before_an_own_write_does_not_undo_it(mirror: Mirror[object]) -> None:
    mirror.apply_list([obj("a", 1)], "2")
    mirror.on_written(obj("a", 9))
    mirror.apply_event("MODIFIED", obj("a", 5))
    assert mirror.values() == {"a": 9}
    mirror.apply_event("DELETED", obj("a", 8))  # an earlier one of this name
    assert mirror.values() == {"a": 9}
    mirror.apply_event("DELETED", obj("a", 10))
    assert mirror.values() == {}


def test_an_own_write_that_is_answered_after_the_watch_told_of_the_deletion_brings_nothing_back(
    mirror: Mirror[object],
) -> None:
    mirror.apply_list([obj("a", 1)], "2")
    mirror.apply_event("DELETED", obj("a", 6))
    mirror.on_written(obj("a", 5))
    assert mirror.values() == {}


def test_a_list_drops_what_is_gone_and_keeps_what_was_written_since(mirror: Mirror[object]) -> None:
    mirror.apply_list([obj("a", 1), obj("b", 2)], "3")
    mirror.on_written(obj("new", 9))
    mirror.apply_list([obj("b", 2)], "7")
    assert mirror.values() == {"b": 2, "new": 9}
    assert mirror.resume_version == "7"


def test_bookmarks_move_the_place_to_go_on_from_and_change_nothing(mirror: Mirror[object]) -> None:
    mirror.apply_list([obj("a", 1)], "2")
    before = mirror.values(), mirror.changes
    mirror.apply_event("BOOKMARK", {"metadata": {"resourceVersion": "50"}})
    assert ((mirror.values(), mirror.changes), mirror.resume_version) == (before, "50")
    assert mirror.values() is before[0]


def test_an_unreadable_object_stays_as_it_was_and_is_said_once_a_version(
    mirror: Mirror[object], said: list[tuple[str, str]]
) -> None:
    mirror.apply_list([obj("a", 1), obj("b", 1, "bad")], "2")
    mirror.apply_event("MODIFIED", obj("a", 3, "bad"))
    mirror.apply_list([obj("a", 3, "bad"), obj("b", 1, "bad")], "4")
    assert mirror.values() == {"a": 1}
    assert said == [("b", "1"), ("a", "3")]
    assert mirror.knows("b")
    mirror.apply_event("MODIFIED", obj("b", 5))
    assert mirror.values() == {"a": 1, "b": 5}


def test_a_list_of_a_restored_store_counts_though_it_is_older_and_keeps_what_can_not_be_read(
    mirror: Mirror[object],
) -> None:
    mirror.apply_list([obj("a", 10), obj("b", 11), obj("c", 12)], "20")
    mirror.apply_list([obj("a", 4), obj("b", 5, "bad")], "6", anew=True)
    assert (mirror.values(), mirror.resume_version) == ({"a": 4, "b": 11}, "6")
    mirror.apply_event("MODIFIED", obj("b", 7))
    assert mirror.values() == {"a": 4, "b": 7}
    mirror.apply_list([obj("a", 3)], None, anew=True)
    assert (mirror.values(), mirror.resume_version) == ({"a": 3}, "3")
