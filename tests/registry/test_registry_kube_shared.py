"""Registries that share their process's watches: one of a kind of objects, however many clusters there are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from delayregistry.kube import KubeRegistry, OwnerReference, SharedWatches
from delayregistry.kube.cluster_watches import SharedWatch
from delayregistry.kube.mirror import Mirror
from delayregistry.kube.names import CLUSTER_LABEL
from delayregistry.model import ClusterSpec, ShardSpec
from delayregistry.port import RegistryUnavailable

from tests.kube.desired import WritingRegistry
from tests.kube.fakekinds import find
from tests.registry.worlds import KubeWorld, until

SPEC = ShardSpec(uid=1, topic="orders", queue=0, replicas=("n0",))
PLACES = ("default", "a"), ("default", "b"), ("other", "a")


class SharedWorld(KubeWorld):
    """An operator's registries of several clusters; what a cluster has is written by others."""

    def __init__(self) -> None:
        super().__init__(bookmark_s=0.2)
        self.asked = self.client()
        self.shared = SharedWatches(self.asked, (), lambda event: self.events.append(dict(event)), 1.0, 0.5)

    def follow(self, namespace: str, cluster: str, on_change: Callable[[], None] = lambda: None) -> KubeRegistry:
        registry = KubeRegistry(
            self.asked, namespace, cluster, OwnerReference(cluster, "u"), log=lambda event: None, shared=self.shared,
            on_change=on_change,
        )  # fmt: skip
        self._open.append(registry)  # type: ignore[arg-type]
        return registry

    def writer(self, namespace: str, cluster: str) -> WritingRegistry:
        writer = WritingRegistry(self.client(), namespace, cluster, OwnerReference(cluster, "u"))
        self._open.append(writer)
        writer.ensure_leases(("n0",))
        writer.put_cluster(ClusterSpec(cluster, 1), None)
        return writer

    def close(self) -> None:
        super().close()
        self.shared.close()


@pytest.fixture
def world() -> Iterator[SharedWorld]:
    world = SharedWorld()
    yield world
    world.close()


def queues(registry: KubeRegistry) -> list[int]:
    return [shard.spec.queue for shard in registry.list_shards()]


def asked(world: SharedWorld, method: str, since_s: float = 0.0) -> list[str]:
    return [it.path.rsplit("/", 1)[-1] for it in world.server.requests(method, since_s=since_s)]


def test_each_cluster_has_its_own_objects_of_the_same_watches(world: SharedWorld) -> None:
    writers = [world.writer(*place) for place in PLACES]
    for number, writer in enumerate(writers):
        writer.create_shard(replace(SPEC, uid=number + 1, queue=number))
    registries = [world.follow(*place) for place in PLACES]
    assert [queues(it) for it in registries] == [[0], [1], [2]]
    for (_, cluster), registry in zip(PLACES, registries, strict=True):
        found = registry.read_cluster()
        assert found is not None
        assert found.spec.name == cluster
    changes: list[str] = []
    late = world.follow("default", "a", lambda: changes.append("a"))
    since_s = time.monotonic()
    assert queues(late) == [0], "it is filled with what is known"
    assert asked(world, "LIST", since_s) == []
    until(lambda: world.server.open_watches == 2)
    told = len(changes)
    writers[0].create_shard(replace(SPEC, uid=9, queue=9))
    until(lambda: queues(registries[0]) == [0, 9] and queues(late) == [0, 9])
    assert len(changes) > told
    assert [queues(it) for it in registries[1:]] == [[1], [2]]


def test_a_shard_that_is_given_to_another_cluster_leaves_the_first(world: SharedWorld) -> None:
    """By its label: what it is then is for that cluster's registry to say."""
    writer, other = world.writer("default", "a"), world.writer("default", "b")
    first, second = world.follow("default", "a"), world.follow("default", "b")
    writer.create_shard(SPEC)
    other.create_shard(replace(SPEC, uid=2, queue=3))
    until(lambda: queues(first) == [0] and queues(second) == [3])
    label = {"metadata": {"labels": {CLUSTER_LABEL: "b"}}}
    world.server.store.patch(find("delayshards"), "default", "a.orders-0", label, "somebody")
    until(lambda: queues(first) == [])
    world.server.store.delete(find("delayshards"), "default", "b.orders-3")
    until(lambda: queues(second) == [])


def test_a_spec_that_lost_its_label_is_the_clusters_until_it_is_gone(world: SharedWorld) -> None:
    """While a cluster is paused nobody gives the label back, and without a spec no shard would fail over."""
    world.writer("default", "a")
    registry = world.follow("default", "a")
    before = registry.read_cluster()
    assert before is not None
    label = {"metadata": {"labels": {CLUSTER_LABEL: None}}}
    world.server.store.patch(find("configmaps"), "default", "a-cluster", label, "somebody")
    until(lambda: not registry._settings.values())
    for follower in registry, world.follow("default", "a"):
        found = follower.read_cluster()
        assert found is not None
        assert found.spec == before.spec
    world.server.fault(method="GET", path="/configmaps/a-cluster", code=500)
    with pytest.raises(RegistryUnavailable, match="500"):  # not the same as gone
        registry.read_cluster()
    world.server.store.delete(find("configmaps"), "default", "a-cluster")
    assert registry.read_cluster() is None


def test_what_was_deleted_while_the_watch_was_out_is_gone_everywhere(world: SharedWorld) -> None:
    writers = [world.writer(*place) for place in PLACES]
    registries = [world.follow(*place) for place in PLACES]
    for writer in writers:
        writer.create_shard(SPEC)
    until(lambda: [queues(it) for it in registries] == [[0]] * 3)
    world.server.fault(method="WATCH", path="/delayshards", code=500, times=3)
    world.server.break_watches()
    until(lambda: registries[0]._watches[0].out_s() > 0)
    for namespace, cluster in PLACES:
        world.server.store.delete(find("delayshards"), namespace, f"{cluster}.orders-0")
    world.server.expire_watches()
    until(lambda: [queues(it) for it in registries] == [[]] * 3)


def test_an_outage_is_one_of_all_clusters(world: SharedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delayregistry.kube.adapter.OUT_S", 0.2)
    monkeypatch.setattr("delayregistry.kube.adapter.BACK_S", 0.1)
    registries = [world.follow(*place) for place in PLACES]
    assert [queues(it) for it in registries] == [[]] * 3
    outage = world.server.fault(method="WATCH", path="/delayshards", code=500, times=None)
    world.server.break_watches()
    for registry in registries:
        until(lambda registry=registry: refuses(registry))  # type: ignore[misc]
    outage.times = 0
    until(lambda: not any(refuses(registry) for registry in registries))


def refuses(registry: KubeRegistry) -> bool:
    try:
        registry.version()
    except RegistryUnavailable:
        return True
    return False


def test_a_mirror_that_fails_harms_no_other_and_is_filled_anew(
    world: SharedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers = [world.writer(*place) for place in PLACES[:2]]
    first, second = (world.follow(*place) for place in PLACES[:2])
    assert queues(first) == queues(second) == []
    tell, failing = Mirror.apply_event, [True]

    def failed(mirror: Mirror[Any], kind: str, obj: dict[str, Any]) -> None:
        if failing[0] and mirror is first._shards:
            raise RuntimeError("a fault of ours")
        tell(mirror, kind, obj)

    monkeypatch.setattr(Mirror, "apply_event", failed)
    monkeypatch.setattr(first._shards, "apply_list", lambda *args, **options: failed(first._shards, "", {}))
    for writer in writers:
        writer.create_shard(SPEC)
    until(lambda: queues(second) == [0])
    assert queues(first) == []
    assert "a fault of ours" in first._watches[0].fault
    assert first._watches[0].out_s() > 0
    assert second._watches[0].out_s() == 0
    failing[0] = False
    monkeypatch.undo()
    until(lambda: queues(first) == [0])
    assert first._watches[0].out_s() == 0


def test_a_watch_that_waited_for_its_first_cluster_was_not_out_meanwhile(world: SharedWorld) -> None:
    """An operator may have no cluster for hours; then a first list that takes a moment is no outage of hours."""
    registry = world.follow("default", "a")
    watch = registry._watches[0]._shared.watch  # type: ignore[attr-defined]
    watch._out_since_s -= 7_200.0
    world.server.freeze()
    try:
        registry._start()
        assert watch.out_s() < 60.0
    finally:
        world.server.thaw()


def test_a_mirror_that_could_not_be_filled_is_no_empty_cluster(
    world: SharedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is known of it: an operator that took it for empty would make shards that there are."""
    monkeypatch.setattr("delayregistry.kube.adapter.SYNC_S", 0.2)
    writer, other = world.writer("default", "a"), world.follow("other", "a")
    writer.create_shard(SPEC)
    assert queues(other) == []
    registry = world.follow("default", "a")

    def failed(*args: object, **options: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(registry._shards, "apply_list", failed)
    with pytest.raises(RegistryUnavailable, match="a fault of ours"):
        registry.list_shards()
    said = [it for it in world.events if it.get("reason") == "RuntimeError: a fault of ours"]
    assert [(it["event"], it["namespace"], it["cluster"]) for it in said] == [("watch-interrupted", "default", "a")]
    monkeypatch.undo()
    writer.create_shard(replace(SPEC, uid=2, queue=1))
    until(lambda: not unsynced(registry) and queues(registry) == [0, 1])
    assert [it["namespace"] for it in world.events if it["event"] == "watch-resumed" and "cluster" in it] == ["default"]


def unsynced(registry: KubeRegistry) -> bool:
    return not all(watch.wait_synced(0.0) for watch in registry._watches)


def test_who_wrote_which_field_is_not_kept(world: SharedWorld) -> None:
    """It is more than half of what a shard's object takes, and an operator may have ten thousand."""
    watch = SharedWatch(world.asked, "/delayshards", lambda event: None)
    for version, tell in enumerate((lambda it: watch.apply_list([it], "1"), lambda it: watch.apply_event("ADDED", it))):
        meta = {"name": f"a.{version}", "namespace": "default", "labels": {CLUSTER_LABEL: "a"}}
        tell({"metadata": {**meta, "resourceVersion": str(version), "managedFields": [{"manager": "somebody"}]}})
    kept = watch._known(("default", "a"))
    assert [it["metadata"].get("managedFields") for it in kept] == [None, None]
