"""What people ask for by annotations: pure, and with kopf over the fake API server, where the spec stays as it was."""

from __future__ import annotations

import json
from typing import Any

import pytest
from delayoperator.cluster.annotations import cluster_verbs, drains, paused_by
from delayregistry.model import ClusterSpec

from tests.kube import fakekinds
from tests.operator.runbook import commands
from tests.operator.stage import Stage

KIM = "kim: new disks"
TOPICS = [{"name": "orders", "queues": 6}]


def annotated(spec: Any = None, **annotations: Any) -> dict[str, Any]:
    said = {f"delaycluster.io/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return {"metadata": {"name": "shop", "annotations": said}, "spec": spec or {}}


def drained(spec: ClusterSpec, **annotations: str) -> dict[str, str]:
    return dict(drains(spec, cluster_verbs(annotated(**annotations))).drained)


@pytest.mark.parametrize("value", ["", " ", "false", "False"])
def test_an_empty_word_asks_for_nothing(value: str) -> None:
    body = annotated(paused=value, drain_n1=value)
    assert (paused_by(body), dict(cluster_verbs(body).drained)) == ("", {})


@pytest.mark.parametrize("body", [None, 7, [], {"metadata": None}, {"metadata": {"annotations": [1]}, "spec": "x"}])
def test_what_is_no_object_asks_for_nothing(body: object) -> None:
    assert paused_by(body) == ""
    assert cluster_verbs(body) == cluster_verbs({})


def test_paused_is_seen_whatever_else_is_wrong_and_says_who_asked() -> None:
    assert paused_by(annotated({"paused": True, "nodes": "many"})) == "spec.paused"
    assert paused_by(annotated({"paused": "true"})) == ""
    assert paused_by(annotated("nonsense", paused=KIM)) == f"annotation delaycluster.io/paused: {KIM}"


def test_spec_and_annotations_drain_together() -> None:
    spec = ClusterSpec("shop", 4, replicas=2, drained=("n3",))
    assert drained(spec, drain_n1=KIM) == {"n3": "spec.drained", "n1": f"annotation delaycluster.io/drain-n1: {KIM}"}
    assert drained(spec, drain_n3=KIM) == {"n3": "spec.drained"}, "once"
    assert drained(spec, drain_n9=KIM) == {"n3": "spec.drained"}, "a node that was scaled in"


def test_a_drain_that_leaves_too_few_nodes_is_refused_and_the_spec_stands() -> None:
    found = drains(ClusterSpec("shop", 3, replicas=2), cluster_verbs(annotated(drain_n2="kim", drain_n0="lee")))
    assert list(found.drained) == ["n0"]
    assert found.refused == (
        "annotation delaycluster.io/drain-n2: kim: 2 copies are wanted of each shard, and 1 other nodes would be left",
    )


@pytest.mark.parametrize("key", ["drain-2", "drain-shop-2", "drain-", "drain-n02"])
def test_a_key_that_names_no_node_is_said(key: str) -> None:
    body = {"metadata": {"annotations": {f"delaycluster.io/{key}": "kim"}}}
    found = drains(ClusterSpec("shop", 3), cluster_verbs(body))
    assert (dict(found.drained), len(found.refused)) == ({}, 1)
    assert f"delaycluster.io/{key} names no node" in found.refused[0]


def test_a_long_word_is_cut() -> None:
    assert len(paused_by(annotated(paused="x" * 10_000))) < 300


def annotate(stage: Stage, kind: str = "delayclusters", name: str = "shop", **annotations: str | None) -> None:
    said = {f"delaycluster.io/{key.replace('_', '-')}": value for key, value in annotations.items()}
    stage.patch(kind, name, {"metadata": {"annotations": said}})


def copies(stage: Stage, node: str) -> int:
    return sum(node in it["spec"]["replicas"] for it in stage.server.list("delayshards", "default"))


def test_a_drain_by_annotation_empties_the_node_says_who_asked_and_leaves_the_spec_alone(stage: Stage) -> None:
    stage.operator()
    stage.create(topics=TOPICS)
    stage.settled()
    spec = stage.there("delayclusters", "shop")["spec"]
    assert copies(stage, "n2")
    annotate(stage, drain_n2=KIM)
    stage.until(lambda: stage.reason("Progressing") == "Draining")
    assert f"annotation delaycluster.io/drain-n2: {KIM}" in stage.condition("Progressing")["message"]
    stage.until(lambda: copies(stage, "n2") == 0)
    stage.until(lambda: f"drained: n2 (annotation delaycluster.io/drain-n2: {KIM})" in _progress(stage))
    stage.edit(nodes=3)  # GitOps applies what it has
    assert stage.there("delayclusters", "shop")["spec"] == spec
    annotate(stage, drain_n2=None)
    stage.until(lambda: _settings(stage).get("drained", []) == [])


def test_a_drain_that_cannot_be_is_degraded_and_all_else_of_the_spec_is_followed(stage: Stage) -> None:
    stage.operator()
    stage.create(topics=TOPICS, replicas=3)
    stage.settled()
    annotate(stage, drain_n2=KIM)
    stage.until(lambda: stage.reason("Degraded") == "AnnotationRefused")
    said = stage.condition("Degraded")["message"]
    assert "3 copies are wanted of each shard, and 2 other nodes would be left" in said
    assert "docs/operations.md#annotationrefused" in said
    stage.edit(topics=[*TOPICS, {"name": "more", "queues": 1}])
    stage.until(lambda: "shop.more-0" in stage.names("delayshards"))
    (taken_away,) = commands("AnnotationRefused", "kubectl annotate")
    stage.follow(taken_away, NAME="shop")
    stage.until(lambda: stage.reason("Degraded") == "Healthy")


def test_a_restart_by_annotation_restarts_each_pod_once_and_taking_it_away_restarts_nothing(stage: Stage) -> None:
    stage.operator()
    stage.create(topics=TOPICS)
    stage.settled()
    annotate(stage, restart="1")
    stage.until(lambda: sorted(stage.kubelet.restarts) == ["shop-0", "shop-1", "shop-2"])
    stage.settled()
    annotate(stage, restart=None, drain_n2="kim")  # the drain shows that the operator has looked
    stage.until(lambda: copies(stage, "n2") == 0)
    stage.settled()
    assert len(stage.kubelet.restarts) == 3


def test_a_restart_of_one_pod_is_that_pods_alone(stage: Stage) -> None:
    stage.operator()
    stage.create(topics=TOPICS)
    stage.settled()
    annotate(stage, "pods", "shop-1", restart=KIM)
    stage.until(lambda: stage.kubelet.restarts == ["shop-1"])
    stage.settled()
    assert stage.kubelet.restarts == ["shop-1"]
    stage.until(lambda: [it for it in stage.events("PodRestarted") if f"restarted ({KIM})" in it["message"]])


def test_a_pause_by_annotation_holds_the_operator_and_says_who_asked(stage: Stage) -> None:
    stage.operator()
    stage.create(topics=TOPICS)
    stage.settled()
    annotate(stage, paused=KIM)
    stage.until(lambda: stage.reason("Progressing") == "Paused")
    assert KIM in _progress(stage)
    stage.edit(image="node:2", paused=True)
    (annotation,), (field,) = commands("Paused", "kubectl annotate"), commands("Paused", "kubectl patch")
    stage.follow(annotation, NAME="shop")
    stage.until(lambda: "spec.paused" in _progress(stage) and KIM not in _progress(stage))
    stage.follow(field, NAME="shop")
    stage.until(lambda: len(stage.kubelet.restarts) == 3)
    stage.settled()


def test_an_unclean_failover_is_allowed_for_one_shard_once(stage: Stage) -> None:
    stage.operator()
    stage.create(topics=TOPICS, failover={"replaceAfterSeconds": 3600})
    stage.settled()
    before = {it["metadata"]["name"]: it["spec"] for it in stage.server.list("delayshards", "default")}
    one, other = [name for name, spec in before.items() if spec["master"] == before["shop.orders-0"]["master"]][:2]
    with stage.kubelet.lock:
        for name in (one, other):
            stage.server.store.patch(
                fakekinds.find("delayshards"), "default", name, {"status": {"inSync": ["lost"]}}, "somebody", "status"
            )
        stage.kubelet.kill(before[one]["master"].replace("n", "shop-"))
    stage.until(lambda: f"{one.removeprefix('shop.')}: NoInSyncReplica" in stage.condition("Degraded")["message"])
    (allowed,) = commands("NoInSyncReplica", "kubectl annotate")
    stage.follow(allowed, NAME="shop", SHARD=one.removeprefix("shop."))
    stage.until(lambda: stage.there("delayshards", one)["spec"]["epoch"] > before[one]["epoch"])
    shard = stage.there("delayshards", one)
    assert "delaycluster.io/allow-unclean-failover" not in shard["metadata"].get("annotations", {})
    assert shard["spec"]["uncleanEpoch"] == shard["spec"]["epoch"]
    stage.until(lambda: "WHO and why" in str(stage.there("delayshards", one)["status"].get("conditions")))
    stage.until(lambda: stage.there("delayshards", one)["status"].get("servingEpoch") == shard["spec"]["epoch"])
    assert stage.there("delayshards", other)["spec"]["epoch"] == before[other]["epoch"], "it waits for its own word"


def _progress(stage: Stage) -> str:
    return str(stage.condition("Progressing").get("message", ""))


def _settings(stage: Stage) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(stage.there("configmaps", "shop-cluster")["data"]["cluster.json"])
    return found
