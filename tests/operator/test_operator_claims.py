"""kopf really runs, over the fake API server, in operators of two releases that look after the same namespaces."""

from __future__ import annotations

import json
import re
import time

import pytest
from delayoperator import __main__ as process
from delayoperator.kube.status import RELEASE
from delayoperator.metrics import OperatorCollector, registry_of
from prometheus_client import generate_latest

from tests.chart.places import ROOT
from tests.kube import fakekinds
from tests.kube.fakekinds import Kind
from tests.operator.stage import DEAD_AFTER_MS, LEASE, NAMESPACE, Json, RunningOperator, Stage

ORDERS = {"name": "orders", "queues": 4}
STAGING = "staging/delaycluster"
ITS_IMAGE = "node:staging"


def claim(stage: Stage) -> tuple[str, str, str]:
    """Namespace, release and version of the operator that has the cluster."""
    found = (stage.get("delayclusters", "shop") or {}).get("status", {}).get("operator") or {}
    return str(found.get("namespace")), str(found.get("release")), str(found.get("version"))


OURS = ("operators", "delaycluster", RELEASE)
THEIRS = ("staging", "delaycluster", RELEASE)


def images(stage: Stage) -> set[str]:
    """Of every version of the StatefulSet that there has been."""
    kind = fakekinds.find("statefulsets")
    with stage.server.store.lock:
        bodies = [it.now for it in stage.server.store._events if it.kind is kind]
    return {it["spec"]["template"]["spec"]["containers"][0]["image"] for it in bodies}


def ours(stage: Stage) -> RunningOperator:
    running = stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    assert claim(stage) == OURS
    return running


def staging(stage: Stage) -> RunningOperator:
    return stage.operator(lease=STAGING, image=ITS_IMAGE)


def test_another_release_says_whose_the_cluster_is_and_touches_nothing(stage: Stage) -> None:
    first = ours(stage)
    since_s = time.monotonic()
    second = staging(stage)
    stage.until(lambda: stage.events("ManagedByAnother"))
    (event,) = stage.events("ManagedByAnother")
    assert f"release delaycluster in namespace operators, version {RELEASE}" in event["message"]
    assert "#managedbyanother" in event["message"]
    stage.edit(topics=[{**ORDERS, "queues": 5}])
    stage.until(lambda: len(stage.names("delayshards")) == 5)
    stage.settled()
    time.sleep(DEAD_AFTER_MS / 1000 + 2)  # long enough to be thought dead, were it silent
    assert claim(stage) == OURS
    assert images(stage) == {"node:1"}
    assert stage.kubelet.restarts == []
    others = [it for it in stage.server.requests("PATCH", "/delayshards/", since_s) if it.status == 409]
    assert not others, "two control loops wrote the same shards"
    (worker,) = second.operator.clusters.workers()
    assert worker._registry is None, "nor does it follow its shards"
    text = generate_latest(registry_of(OperatorCollector(
        second.operator.clusters, second.operator.api, second.operator.caches, lambda: True))).decode()  # fmt: skip
    assert 'delay_operator_managed_by_another{cluster="shop",namespace="default"} 1.0' in text
    assert "delay_operator_condition{" not in text
    assert not [it for it in first.events if it["event"] in ("round-failed", "control-loop-failed")]


def test_two_releases_that_find_a_new_cluster_at_once_agree_on_one(stage: Stage) -> None:
    both = stage.operator(), staging(stage)
    stage.until(lambda: all(it.operator.election.tenure() for it in both))
    stage.create(topics=[ORDERS])
    stage.settled()
    has = claim(stage)
    assert has in (OURS, THEIRS)
    stage.until(lambda: stage.events("ManagedByAnother"))
    assert images(stage) == {"node:1" if has == OURS else ITS_IMAGE}
    assert claim(stage) == has


def test_a_dead_operators_clusters_are_taken_over(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "RELEASE", "99.0")
    first = ours_in_version(stage, "99.0")
    monkeypatch.setattr(process, "RELEASE", RELEASE)
    staging(stage)
    stage.until(lambda: stage.events("ManagedByAnother"))
    first.close()
    # its last word: it gives its Lease up, some way before it has ended
    given_up_s = max(it.at_s for it in stage.server.requests("PATCH", "/namespaces/operators/leases/"))
    stage.until(lambda: claim(stage) == THEIRS)
    assert time.monotonic() - given_up_s > DEAD_AFTER_MS / 1000 - 2, "a restart of it is no death"
    stage.until(lambda: {it["spec"]["containers"][0]["image"] for it in stage.server.list("pods")} == {ITS_IMAGE})
    stage.settled()
    assert images(stage) == {"node:1", ITS_IMAGE}


def ours_in_version(stage: Stage, version: str) -> RunningOperator:
    running = stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    assert claim(stage) == ("operators", "delaycluster", version)
    return running


def test_a_newer_operator_takes_the_cluster_once_and_for_all(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ours(stage)
    monkeypatch.setattr(process, "RELEASE", "99.0")
    staging(stage)
    stage.until(lambda: claim(stage) == ("staging", "delaycluster", "99.0"))
    stage.until(lambda: {it["spec"]["containers"][0]["image"] for it in stage.server.list("pods")} == {ITS_IMAGE})
    stage.settled()
    (worker,) = first.operator.clusters.workers()
    stage.until(lambda: worker.managed_by is not None)
    kind = fakekinds.find("statefulsets")
    with stage.server.store.lock:
        told = [it.now["spec"]["template"]["spec"]["containers"][0]["image"]
                for it in stage.server.store._events if it.kind is kind]  # fmt: skip
    assert told == sorted(told), "it was ours, then theirs, and never ours again"


def test_an_operator_that_was_rolled_back_has_its_clusters_at_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "RELEASE", "99.0")
    newer = ours_in_version(stage, "99.0")
    newer.close()
    monkeypatch.setattr(process, "RELEASE", RELEASE)
    stage.operator()
    began_s = time.monotonic()
    stage.until(lambda: claim(stage) == OURS)
    assert time.monotonic() - began_s < DEAD_AFTER_MS / 1000
    stage.edit(topics=[{**ORDERS, "queues": 5}])
    stage.until(lambda: len(stage.names("delayshards")) == 5)
    stage.settled()


def test_the_page_hands_a_cluster_over_as_it_is_written(stage: Stage) -> None:
    """docs/operations.md: whose it is, its operator stopped, the claim taken away."""
    page = (ROOT / "docs" / "operations.md").read_text()
    section = page.partition("### ManagedByAnother")[2].partition("\n### ")[0]
    (patch,) = re.findall(r"kubectl patch delaycluster NAME [^\n]*--subresource status [^\n]*-p '([^']+)'", section)
    first = ours(stage)
    staging(stage)
    stage.until(lambda: stage.events("ManagedByAnother"))
    first.close()  # kubectl scale deployment RELEASE --replicas 0
    store, kind = stage.server.store, fakekinds.find("delayclusters")
    store.patch(kind, NAMESPACE, "shop", json.loads(patch), "kubectl", "status")
    taken_s = time.monotonic()
    stage.until(lambda: claim(stage) == THEIRS)
    assert time.monotonic() - taken_s < DEAD_AFTER_MS / 1000 - 1, "without waiting for its death"
    assert stage.leader(LEASE) == ""


def test_a_cluster_whose_definition_drops_claims_is_looked_after(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """crds.create is false, and nobody has applied the definitions of this release yet."""
    store = stage.server.store
    patch = store.patch

    def older(kind: Kind, namespace: str, name: str, body: Json, *rest: str) -> Json:
        (body.get("status") or {}).pop("operator", None)
        return patch(kind, namespace, name, body, *rest)

    monkeypatch.setattr(store, "patch", older)
    running = stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    (event,) = [it for it in running.events if it["event"] == "claim-dropped"]
    assert "drops status.operator" in event["error"]
    monkeypatch.undo()  # they are applied
    stage.edit(topics=[{**ORDERS, "queues": 5}])
    stage.until(lambda: claim(stage) == OURS)
    stage.until(lambda: len(stage.names("delayshards")) == 5)
