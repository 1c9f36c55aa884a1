"""What may be asked of a process's watches without a request, and when they don't know."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from delayregistry.kube.cluster_watches import SharedWatch
from delayregistry.kube.names import CLUSTER_LABEL

from tests.kube.fakekinds import find
from tests.registry.worlds import KubeWorld, until

A, B = ("default", "a"), ("default", "b")
PATH = "/apis/apps/v1/statefulsets"
Json = dict[str, Any]


class ObjectsWorld(KubeWorld):
    """A SharedWatch of the StatefulSets, whose watches end after a second and are given up after one and a half."""

    def __init__(self) -> None:
        super().__init__(bookmark_s=0.2)
        self.told: list[tuple[str, list[str]]] = []
        self.watch = self.new_watch()
        self.watch.listen(self.on_change)

    def new_watch(self, *, optional: bool = False) -> SharedWatch:
        return SharedWatch(
            self.client(), PATH, lambda event: self.events.append(dict(event)), 1.0, 0.5,
            optional=optional, forbidden_s=10.0,
        )  # fmt: skip

    def on_change(self, namespace: str, cluster: str, objects: Sequence[Json]) -> None:
        self.told.append((cluster, [str(it["metadata"]["name"]) for it in objects]))

    def create(self, name: str, cluster: str = "a") -> Json:
        body = {"metadata": {"name": name, "labels": {CLUSTER_LABEL: cluster}}}
        return self.server.store.create(find("statefulsets"), "default", body)

    def patch(self, name: str, replicas: int) -> Json:
        return self.server.store.patch(find("statefulsets"), "default", name, {"spec": {"replicas": replicas}}, "me")

    def names(self, key: tuple[str, str] = A) -> list[str] | None:
        found = self.watch.objects(key)
        return None if found is None else sorted(str(it["metadata"]["name"]) for it in found)

    def close(self) -> None:
        self.watch.close()
        super().close()


@pytest.fixture
def world() -> Iterator[ObjectsWorld]:
    world = ObjectsWorld()
    yield world
    world.close()


def replicas(world: ObjectsWorld) -> int:
    (found,) = world.watch.objects(A) or ()
    return int(found["spec"]["replicas"])


def test_nothing_is_known_before_the_first_list(world: ObjectsWorld) -> None:
    world.create("one")
    assert world.names() is None
    world.watch.start()
    until(lambda: world.names() == ["one"] and world.names(B) == [])
    world.create("two", "b")
    until(lambda: world.names(B) == ["two"])
    world.server.store.delete(find("statefulsets"), "default", "one")
    until(lambda: world.names() == [])
    assert [it for it in world.told if it != ("a", ["one"])] == [("b", ["two"])]


def test_an_own_write_is_there_before_its_event_and_no_older_event_takes_it_back(world: ObjectsWorld) -> None:
    world.create("one")
    world.watch.start()
    until(lambda: world.names() == ["one"])
    world.server.watching.lag_s = 1.0
    world.patch("one", 3)
    world.watch.on_written(world.patch("one", 5))
    assert replicas(world) == 5
    told = len(world.told)
    last = world.create("last", "b")
    until(lambda: world.names(B) == ["last"])
    assert replicas(world) == 5
    assert world.told[told:] == [("b", ["last"])], "nobody is woken by what this process wrote itself"
    world.watch.on_written({**last, "metadata": {**last["metadata"], "name": "gone-since"}})
    assert world.names(B) == ["last"]


def test_an_own_deletion_is_seen_before_its_event(world: ObjectsWorld) -> None:
    uid = world.create("one")["metadata"]["uid"]
    world.watch.start()
    until(lambda: world.names() == ["one"])
    world.watch.on_deleted("default", "one", "another-uid")
    world.watch.on_deleted("default", "none", uid)
    assert ["deletionTimestamp" in it["metadata"] for it in world.watch.objects(A) or ()] == [False]
    world.watch.on_deleted("default", "one", uid)
    assert ["deletionTimestamp" in it["metadata"] for it in world.watch.objects(A) or ()] == [True]


def test_what_a_silent_watch_has_told_is_not_the_present(world: ObjectsWorld) -> None:
    world.create("one")
    world.watch.start()
    until(lambda: world.names() == ["one"])
    world.server.freeze()
    try:
        until(lambda: world.names() is None)
    finally:
        world.server.thaw()
    until(lambda: world.names() == ["one"])


def test_what_came_and_went_in_a_gap_is_told_when_it_is_over(world: ObjectsWorld) -> None:
    for name in "one", "two":
        world.create(name)
    world.watch.start()
    until(lambda: world.names() == ["one", "two"])
    outage = world.server.fault(method="WATCH", path=PATH, code=500, times=None)
    world.server.break_watches()
    until(lambda: world.names() is None)
    assert [it["path"] for it in world.events if it["event"] == "watch-interrupted"] == [PATH]
    world.server.store.delete(find("statefulsets"), "default", "one")
    world.create("three")
    world.server.expire_watches()
    told = len(world.told)
    world.server.faults.take_back(outage)
    until(lambda: world.names() == ["three", "two"])
    assert ("a", ["three"]) in world.told[told:]


def test_a_store_that_was_restored_is_listed_anew(world: ObjectsWorld) -> None:
    world.create("one")
    world.watch.start()
    until(lambda: world.names() == ["one"])
    backup = world.server.store.backup()
    world.create("two")
    until(lambda: world.names() == ["one", "two"])
    world.server.silence_watches()
    world.server.store.restore(backup)
    world.watch.watch.list_again()
    until(lambda: world.names() == ["one"])


def test_a_watch_that_is_forbidden_wakes_nobody_again_and_again(world: ObjectsWorld) -> None:
    world.create("one")
    world.watch.start()
    until(lambda: world.names() == ["one"])
    world.server.fault(method="WATCH", path=PATH, code=403, times=None)
    world.server.break_watches()
    until(lambda: world.names() is None)
    told, since_s = len(world.told), time.monotonic()
    time.sleep(3.0)
    assert world.told[told:] == []
    assert len(world.server.requests("LIST", PATH, since_s)) <= 1


def test_a_listener_that_fails_is_said_and_harms_no_other(world: ObjectsWorld) -> None:
    def fails(namespace: str, cluster: str, objects: Sequence[Json]) -> None:
        raise ValueError("a fault of ours")

    world.watch._listeners.insert(0, fails)
    world.watch.start()
    world.create("one")
    until(lambda: ("a", ["one"]) in world.told)
    assert "listener-failed" in {it["event"] for it in world.events}


def test_a_kind_that_is_not_installed_has_no_objects_and_is_looked_for_again(
    world: ObjectsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayregistry.kube.watch.ABSENT_S", 0.2)
    absent = world.server.fault(path=PATH, code=404, times=None)
    watch = world.new_watch(optional=True)
    watch.start()
    until(lambda: watch.objects(A) == ())
    assert world.events == [], "that is no fault"
    world.create("one")
    world.server.faults.take_back(absent)
    until(lambda: len(watch.objects(A) or ()) == 1)
    watch.close()
