"""Rounds read what the watches hold, and the API server where these do not know."""

from __future__ import annotations

import time
from typing import Any

from delayoperator.kube.caches import ObjectCaches
from delayoperator.kube.worker import Worker
from delayregistry.kube import SharedWatches

from scripts.names import ROOT
from tests.operator.stage import NAMESPACE, Stage
from tests.operator.test_operator_load import ORDERS, until_at_rest


def listed(stage: Stage, since_s: float) -> set[str]:
    return {it.path.rsplit("/", 1)[-1] for it in stage.server.requests("LIST", since_s=since_s)} - {"leases"}


def round_of(stage: Stage, worker: Worker) -> None:
    rounds = worker.rounds
    worker.wake()
    stage.until(lambda: worker.rounds > rounds and worker.round_began_s is None)


def test_a_round_lists_what_its_watch_does_not_tell_and_mends_it(stage: Stage) -> None:
    running = stage.operator(resync_s=1.0)
    stage.create(topics=[ORDERS])
    stage.settled()
    (worker,) = running.operator.clusters.workers()
    outage = stage.server.fault(method="WATCH", path="/statefulsets", code=500, times=None)
    stage.server.break_watches()
    stage.until(lambda: any("/statefulsets" in str(it.get("path")) for it in running.events))
    since_s = time.monotonic()
    stage.patch("statefulsets", "shop", {"spec": {"replicas": 7}})
    stage.until(lambda: stage.there("statefulsets", "shop")["spec"]["replicas"] == 3)
    assert "statefulsets" in listed(stage, since_s)
    said = [it for it in running.events if it["event"] == "watch-interrupted" and "/statefulsets" in str(it["path"])]
    assert said, "the log names the watch that is out"
    stage.server.faults.take_back(outage)
    caches = running.operator.caches
    stage.until(lambda: len(caches.of_cluster(NAMESPACE, "shop")) == len(caches._watches))
    round_of(stage, worker)  # one that is under way may have begun before, and list
    since_s = time.monotonic()
    round_of(stage, worker)
    assert listed(stage, since_s) == set(), "then it needs no lists any more"


def test_what_is_held_may_be_old_and_a_conflict_ends_that(stage: Stage) -> None:
    """Watches that stay open and silent, as after a store was restored to before the versions that they go on from."""
    stage.operator(resync_s=1.0)
    stage.create(topics=[ORDERS])
    stage.settled()
    stage.server.silence_watches()
    stage.patch("statefulsets", "shop", {"metadata": {"annotations": {"seen": "by-nobody"}}})
    stage.edit(nodes=4)
    stage.until(lambda: stage.there("statefulsets", "shop")["spec"]["replicas"] == 4, timeout_s=30)


def test_a_round_does_not_do_again_what_the_watches_have_not_told_of_yet(stage: Stage) -> None:
    running = stage.operator()
    stage.create(topics=[ORDERS], rebalance={"schedule": "0 3 * * *"})
    stage.settled()
    (worker,) = running.operator.clusters.workers()
    until_at_rest(stage, worker)
    stage.server.watching.lag_s = 2.0
    since_s = time.monotonic()
    stage.edit(rebalance=None, minInSync=2)
    stage.until(lambda: stage.names("cronjobs") == set())
    for _ in range(3):
        round_of(stage, worker)
    writes = [it for it in stage.server.requests(since_s=since_s) if it.method in ("PATCH", "DELETE", "POST")]
    owned = [(it.method, it.path) for it in writes if "/status" not in it.path and "/events" not in it.path]
    ours = [it for it in owned if "lease" not in it[1] and "delayshards" not in it[1]]
    assert len(ours) == len(set(ours)), ours
    assert [it.status for it in writes if it.status == 409] == []


def test_the_limits_page_counts_the_watches() -> None:
    """By them people size API servers."""
    nobody: Any = None
    shared = SharedWatches(nobody, (), print)
    caches = ObjectCaches(nobody, (), shared, print)
    watches = {
        watch.path for watch in [*caches._watches.values(), *(it for scope in shared._scopes.values() for it in scope)]
    }
    page = (ROOT / "docs/limits.md").read_text()
    assert f"An operator that is given namespaces has {len(watches)} watches" in page
    assert f"One\n  that looks after all namespaces has {len(watches)}." in page
