"""What the operator asks of a big API server, counted: requests and objects, never seconds."""

from __future__ import annotations

import threading
import time
from itertools import count
from typing import Any

import pytest
from delayoperator.kube.reconcile import ClusterReconciler, ReconcileResult
from delayoperator.kube.worker import MIN_PAUSE_S, Worker
from delayregistry.kube import KubeRegistry

from tests.kube import fakekinds
from tests.operator.stage import NAMESPACE, Stage

FOREIGN = 1_000
ORDERS = {"name": "orders", "queues": 4}


def add_foreign(stage: Stage, plural: str) -> None:
    for number in range(FOREIGN):
        stage.server.store.create(fakekinds.find(plural), NAMESPACE, {"metadata": {"name": f"foreign-{number}"}})


def test_objects_of_others_are_never_sent_to_the_operator(stage: Stage) -> None:
    for plural in ("pods", "configmaps"):
        add_foreign(stage, plural)
    stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    for number in range(100):
        stage.patch("pods", f"foreign-{number}", {"metadata": {"annotations": {"changed": "yes"}}})
    stage.create("last")
    stage.settled("last")  # by a watch that would have told of the changes before
    sent = {plural: stage.server.delivered(plural) for plural in ("pods", "configmaps")}
    assert 3 <= sent["pods"] < 500
    assert 2 <= sent["configmaps"] < 500


def test_objects_are_listed_in_pages_when_the_operator_starts(stage: Stage) -> None:
    stage.operator()
    stage.create()
    stage.settled()
    listed = stage.server.requests("LIST")
    assert {it.path.rsplit("/", 1)[-1] for it in listed} >= {"pods", "configmaps", "delayclusters", "delayrebalances"}
    # A cluster's leases are as few as its nodes.
    assert {it.query.get("limit") for it in listed if not it.path.endswith("/default/leases")} == {"500"}


def test_what_the_operator_writes_into_a_status_wakes_no_round(stage: Stage) -> None:
    running = stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    (worker,) = running.operator.clusters.workers()
    rounds = until_at_rest(stage, worker)
    # Somebody else's writing is seen, and mended.
    kind = fakekinds.find("delayclusters")
    stage.server.store.patch(kind, NAMESPACE, "shop", {"status": {"nodes": 77}}, "somebody", "status")
    stage.until(lambda: stage.there("delayclusters", "shop")["status"]["nodes"] == 3)
    assert until_at_rest(stage, worker) == rounds + 1, "the round that mended it, and none for its own writing"


def until_at_rest(stage: Stage, worker: Worker) -> int:
    """The number of rounds when none has begun for some seconds."""
    seen = (worker.rounds, time.monotonic())

    def at_rest() -> bool:
        nonlocal seen
        if worker.rounds != seen[0]:
            seen = (worker.rounds, time.monotonic())
        return time.monotonic() - seen[1] > 3 * MIN_PAUSE_S

    stage.until(at_rest)
    return seen[0]


def test_an_idle_minute_of_the_operator_is_a_few_requests(stage: Stage) -> None:
    """A third of a minute, and a round in it, which comes once in a minute by itself, and reads its DelayCluster."""
    running = stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    (worker,) = running.operator.clusters.workers()
    before = until_at_rest(stage, worker)
    since_s = time.monotonic()
    worker.wake()
    time.sleep(20)
    came = stage.server.requests(since_s=since_s)
    assert sum(it.method == "WATCH" for it in came) <= 2 * 20 / 8 + 2, "two watches begun anew each 8 to 10 s"
    read = [it.path.rsplit("/", 1)[-1] for it in came if it.method in ("GET", "LIST")]
    late = [it for it in read if it == "leases" or it.startswith("shop.n")]
    assert sorted(set(read) - set(late)) == ["shop"]
    assert 1 <= len(read) - len(late) <= worker.rounds - before, "a round reads its DelayCluster, and nothing else"
    assert len(late) <= 4, "two late leases at most"
    assert stage.server.writes(since_s, but=["/leases/"]) == 0, "that one is the election's, once for all clusters"


def test_what_changes_during_a_round_is_looked_at_after_it(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    running = stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    (worker,) = running.operator.clusters.workers()
    rounds = until_at_rest(stage, worker)
    reconcile = ClusterReconciler.reconcile

    def changing(reconciler: ClusterReconciler, *args: Any) -> ReconcileResult:
        monkeypatch.undo()
        result, version = reconcile(reconciler, *args), reconciler._registry.version()
        stage.patch("delayshards", "shop.orders-0", {"metadata": {"annotations": {"changed": "yes"}}})
        stage.until(lambda: reconciler._registry.version() != version)
        return result

    monkeypatch.setattr(ClusterReconciler, "reconcile", changing)
    worker.wake()
    stage.until(lambda: worker.rounds >= rounds + 2, timeout_s=20)


def test_a_further_cluster_costs_two_threads_and_no_watch(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worker and its failover loop, which is told of changes and does not look for them."""
    stage.operator()
    names = ["one", "two", "three"]
    stage.create(names[0], topics=[ORDERS])
    stage.settled(names[0])
    watches, threads = stage.server.open_watches, own_threads()
    for name in names[1:]:
        stage.create(name, topics=[ORDERS])
    for name in names[1:]:
        stage.settled(name)
    stage.until(lambda: stage.server.open_watches == watches)
    more = [f"cluster-default/{name}" for name in names[1:]] + ["shards"] * 2
    stage.until(lambda: own_threads() == sorted([*threads, *more]), own_threads)
    looks, version = count(), KubeRegistry.version

    def counted(registry: KubeRegistry) -> int:
        next(looks)
        return version(registry)

    monkeypatch.setattr(KubeRegistry, "version", counted)
    began_s = time.monotonic()
    time.sleep(3)
    a_second = next(looks) / (time.monotonic() - began_s)
    assert a_second <= 8 * len(names), "two a round of the loop, twice a second; one a second for the other objects"


def own_threads() -> list[str]:
    """The names of the operator's threads, gRPC's and the event loop's left out."""
    ours = ("cluster-", "shards", "watch ", "registry-write")
    return sorted(it.name for it in threading.enumerate() if it.name.startswith(ours))
