"""kopf really runs, over the fake API server: what a DelayCluster becomes, and that it stays so."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest
from delayoperator.kube.shards import ShardsThread

from tests.kube import fakekinds
from tests.operator.stage import LEASE, NAMESPACE, Stage

OWNED = {
    "statefulsets": {"shop"},
    "services": {"shop-client", "shop-nodes"},
    "poddisruptionbudgets": {"shop"},
    "serviceaccounts": {"shop-node"},
    "roles": {"shop-node"},
    "rolebindings": {"shop-node"},
    "configmaps": {"shop-cluster"},
    "leases": {"shop.n0", "shop.n1", "shop.n2"},
    "delayshards": {"shop.orders-0", "shop.orders-1"},
}
ORDERS = {"name": "orders", "queues": 2}


def test_all_objects_appear_and_belong_to_the_cluster(stage: Stage) -> None:
    stage.operator()
    cluster = stage.create(topics=[ORDERS])
    stage.settled()
    for plural, names in OWNED.items():
        assert stage.names(plural) == names
        for name in names:
            owners = stage.there(plural, name)["metadata"]["ownerReferences"]
            assert [(it["uid"], it["controller"]) for it in owners] == [(cluster["metadata"]["uid"], True)]
    assert stage.condition("Ready")["message"] == "served: 2 of 2 shards; ready: 3 of 3 nodes"
    status = stage.there("delayclusters", "shop")["status"]
    assert (status["nodes"], status["readyNodes"]) == (3, 3)
    assert (status["shards"], status["servedShards"], status["inSyncShards"]) == (2, 2, 2)
    assert "delaycluster.io/cluster=shop" in status["selector"]


def test_a_quiet_cluster_causes_no_write(stage: Stage) -> None:
    stage.operator(resync_s=1.0)
    stage.create(topics=[ORDERS])
    stage.settled()
    stage.until(lambda: stage.writes(time.monotonic() - 2) == 0)
    since_s = time.monotonic()
    time.sleep(6)
    came = stage.server.requests("GET", "/delayclusters/shop", since_s)
    assert len(came) >= 3, "the operator looks again and again"
    assert stage.writes(since_s) == 0


def test_edits_flow_through(stage: Stage) -> None:
    stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    stage.edit(topics=[{"name": "orders", "queues": 4}, {"name": "mails", "queues": 1}], minInSync=2)
    stage.until(lambda: {"shop.orders-3", "shop.mails-0"} <= stage.names("delayshards"))
    stage.settled()
    desired = json.loads(stage.there("configmaps", "shop-cluster")["data"]["cluster.json"])
    assert desired["minInSync"] == 2
    role = stage.there("roles", "shop-node")
    named = {name for rule in role["rules"] for name in rule.get("resourceNames", [])}
    assert "shop.mails-0" in named, "the nodes may write the status of shards that were made later"


def test_a_network_policy_comes_changes_and_goes(stage: Stage) -> None:
    stage.operator()
    stage.create(topics=[ORDERS], networkPolicy={})
    stage.settled()
    ports = [[port["port"] for port in rule["ports"]] for rule in network_rules(stage)]
    assert ports == [[7270, 7270], [7070, 7170], [7170]]
    stage.edit(networkPolicy={"clients": [{"podSelector": {"matchLabels": {"uses": "shop"}}}]})
    stage.until(lambda: {"podSelector": {"matchLabels": {"uses": "shop"}}} in network_rules(stage)[1].get("from", []))
    stage.settled()
    operator = {"matchLabels": {"kubernetes.io/metadata.name": LEASE.partition("/")[0]}}
    assert operator in [peer.get("namespaceSelector") for peer in network_rules(stage)[1]["from"]]
    stage.edit(networkPolicy=None)
    stage.until(lambda: not stage.names("networkpolicies"))
    stage.settled()


def network_rules(stage: Stage) -> list[dict[str, Any]]:
    return stage.there("networkpolicies", "shop-nodes")["spec"]["ingress"]


def test_topics_of_two_owners_are_both_there(stage: Stage) -> None:
    stage.operator()
    stage.create()
    stage.apply("orders-team", topics=[ORDERS])
    stage.apply("mail-team", topics=[{"name": "mails", "queues": 1}])
    stage.until(lambda: stage.names("delayshards") == {"shop.orders-0", "shop.orders-1", "shop.mails-0"})
    stage.settled()


@pytest.mark.parametrize("plural", ["statefulsets", "services", "roles", "configmaps", "poddisruptionbudgets"])
def test_a_deleted_object_is_made_again(stage: Stage, plural: str) -> None:
    stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    name = sorted(OWNED[plural])[0]
    before = stage.there(plural, name)["metadata"]["uid"]
    stage.delete(plural, name)
    stage.until(lambda: (found := stage.get(plural, name)) is not None and found["metadata"]["uid"] != before)
    stage.until(lambda: len([it for it in stage.events("ObjectApplied") if name in it["message"]]) > 1)
    stage.settled()


def test_edited_objects_are_put_right_and_others_fields_stay(stage: Stage) -> None:
    stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    was = stage.there("services", "shop-client")["spec"]["selector"]
    stage.patch(
        "services", "shop-client", {"spec": {"selector": {"app": "mine"}}, "metadata": {"annotations": {"a": "b"}}}
    )
    stage.patch("statefulsets", "shop", {"spec": {"replicas": 1}})
    stage.patch("configmaps", "shop-cluster", {"data": {"cluster.json": "{}"}})
    stage.until(lambda: stage.there("services", "shop-client")["spec"]["selector"].items() >= was.items())
    stage.until(lambda: stage.there("statefulsets", "shop")["spec"]["replicas"] == 3)
    stage.until(lambda: "orders" in stage.there("configmaps", "shop-cluster")["data"]["cluster.json"])
    stage.settled()
    assert stage.there("services", "shop-client")["metadata"]["annotations"]["a"] == "b"
    said = "StatefulSet shop: spec.replicas: 1 -> 3"
    stage.until(lambda: any(said in it["message"] for it in stage.events("ObjectApplied")))


def test_a_change_that_no_watch_tells_of_is_found(stage: Stage) -> None:
    """Leases are not watched: nodes renew them each second."""
    stage.operator(resync_s=1.0)
    stage.create()
    stage.settled()
    stage.delete("leases", "shop.n1")
    stage.until(lambda: stage.get("leases", "shop.n1"))


def test_what_belongs_to_somebody_else_is_left_alone(stage: Stage) -> None:
    kind = fakekinds.find("services")
    body = {"metadata": {"name": "shop-client"}, "spec": {"selector": {"app": "web"}}}
    stage.server.store.create(kind, "default", body, "helm")
    stage.operator()
    stage.create(topics=[ORDERS])
    stage.until(lambda: stage.reason("Degraded") == "NameTaken")
    stage.until(lambda: stage.reason("Ready") == "Serving")
    said = stage.condition("Degraded")["message"]
    assert "Service shop-client is needed by this cluster and is left alone" in said
    assert said.endswith("See docs/operations.md#nametaken")
    assert stage.there("services", "shop-client")["spec"] == {"selector": {"app": "web"}}
    stage.delete("services", "shop-client")
    stage.settled()


def test_spec_that_cannot_be_granted_are_refused_with_words_and_the_last_good_ones_stand(stage: Stage) -> None:
    stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    stage.edit(topics=[{"name": "orders", "queues": 1}], horizonDays=0, nodes=5)
    stage.until(lambda: stage.reason("Degraded") == "InvalidSpec")
    said = stage.condition("Progressing")
    assert (said["status"], said["reason"]) == ("False", "InvalidSpec")
    assert "spec.horizonDays" in said["message"]
    assert "the last good spec stands" in said["message"]
    assert said["observedGeneration"] == stage.there("delayclusters", "shop")["metadata"]["generation"]
    assert stage.condition("Ready")["status"] == "True"
    stage.until(lambda: any("spec.horizonDays" in it["message"] for it in stage.events("InvalidSpec")))
    assert {it["type"] for it in stage.events("InvalidSpec")} == {"Warning"}
    stage.delete("statefulsets", "shop")  # what stands is looked after
    stage.until(lambda: stage.get("statefulsets", "shop"))
    assert stage.there("statefulsets", "shop")["spec"]["replicas"] == 3
    stage.edit(topics=[{"name": "orders", "queues": 1}], horizonDays=40)
    stage.until(lambda: "spec.topics[orders].queues" in stage.condition("Progressing").get("message", ""))
    stage.edit(topics=[{"name": "orders", "queues": 3}])
    stage.settled()
    assert "shop.orders-2" in stage.names("delayshards")
    assert len(stage.pods()) == 5


def test_a_first_spec_that_is_bad_makes_nothing(stage: Stage) -> None:
    stage.operator()
    stage.create(replicas=5)
    stage.until(lambda: stage.reason("Ready") == "InvalidSpec")
    assert "spec.replicas: is 5, but nodes is 3" in stage.condition("Ready")["message"]
    assert stage.names("statefulsets") == set()
    stage.edit(replicas=2)
    stage.settled()


def test_deleting_the_cluster_leaves_the_volumes(stage: Stage) -> None:
    stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    uids = {shard["spec"]["uid"] for shard in stage.server.list("delayshards", NAMESPACE)}
    stage.delete("delayclusters", "shop")
    stage.until(lambda: not any(stage.names(plural) for plural in OWNED), lambda: "something is left")
    time.sleep(2)
    assert not any(stage.names(plural) for plural in OWNED), "nothing is made again"
    stage.until(lambda: not stage.pods())
    assert stage.names("persistentvolumeclaims") == {"data-shop-0", "data-shop-1", "data-shop-2"}
    stage.create(topics=[ORDERS])
    stage.settled()
    assert {shard["spec"]["uid"] for shard in stage.server.list("delayshards", NAMESPACE)} == uids, (
        "with what is on them"
    )


def test_a_cluster_that_is_made_again_while_the_former_is_being_closed_is_not_forgotten(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker has seen that there is none any more, and takes some seconds to end."""
    running = stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    clusters = running.operator.clusters
    closing, deleted, made, told = (threading.Event() for _ in range(4))
    stop, gone, seen = ShardsThread.stop, clusters.gone, clusters.seen
    at_a_time: list[int] = []

    def slow(shards: ShardsThread, timeout_s: float = 15.0) -> None:
        stop(shards, timeout_s)
        closing.set()
        assert told.wait(20)

    def heard_of_its_end(namespace: str, name: str) -> None:
        gone(namespace, name)
        deleted.set()

    def heard(namespace: str, name: str, version: str) -> None:
        seen(namespace, name, version)
        if made.is_set():
            at_a_time.append(sum(it.name == "cluster-default/shop" for it in threading.enumerate()))
            told.set()

    with monkeypatch.context() as patch:
        patch.setattr(ShardsThread, "stop", slow)
        patch.setattr(clusters, "gone", heard_of_its_end)
        patch.setattr(clusters, "seen", heard)
        stage.delete("delayclusters", "shop")
        assert closing.wait(20)
        assert deleted.wait(20)
        made.set()
        stage.create(topics=[ORDERS])
        assert told.wait(20)
    assert at_a_time[0] == 1
    stage.settled()


def test_kopf_stores_nothing_on_any_object(stage: Stage) -> None:
    stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    for plural in (*OWNED, "delayclusters"):
        for body in stage.server.list(plural, "default"):
            meta = body["metadata"]
            assert not [key for key in meta.get("annotations", {}) if "kopf" in key]
            assert "finalizers" not in meta
            assert "kopf" not in body.get("status", {})


def test_namespaces_that_are_not_ours_are_left_alone(stage: Stage) -> None:
    stage.server.store.create(fakekinds.find("namespaces"), "", {"metadata": {"name": "other"}})
    stage.operator(namespaces=("default",))
    body = {"metadata": {"name": "theirs"}, "spec": {"nodes": 1, "replicas": 1}}
    stage.server.store.create(fakekinds.find("delayclusters"), "other", body)
    stage.create()
    stage.settled()
    assert stage.server.list("statefulsets", "other") == []


def test_an_application_of_the_clusters_name_keeps_its_service(stage: Stage) -> None:
    stage.server.store.create(
        fakekinds.find("services"), "default", {"metadata": {"name": "shop"}, "spec": {"selector": {"app": "web"}}}
    )
    stage.operator()
    stage.create(topics=[{"name": "orders", "queues": 2}])
    stage.settled()
    assert stage.reason("Degraded") == "Healthy"
    assert stage.there("services", "shop")["spec"] == {"selector": {"app": "web"}}
    assert stage.there("services", "shop-client")["spec"]["ports"][0]["port"] == 7070


def test_a_cluster_that_has_a_service_of_its_bare_name_keeps_it_and_gets_the_other_one(stage: Stage) -> None:
    """Made by an earlier release; its clients know no other name."""
    running = stage.operator()
    stage.create(topics=[{"name": "orders", "queues": 2}])
    stage.settled()
    running.close()
    made = stage.there("services", "shop-client")
    meta = {key: made["metadata"][key] for key in ("labels", "ownerReferences")}
    stage.server.store.create(
        fakekinds.find("services"), "default", {"metadata": {"name": "shop", **meta}, "spec": made["spec"]}
    )
    stage.delete("services", "shop-client")
    stage.operator()
    stage.until(lambda: stage.get("services", "shop-client"))
    stage.patch("services", "shop", {"spec": {"selector": {"app": "mine"}}})
    stage.until(lambda: stage.there("services", "shop")["spec"]["selector"].items() >= made["spec"]["selector"].items())
    stage.delete("services", "shop")
    stage.edit(replicas=3)  # somebody whose clients have all moved deletes it: it is not made again
    stage.settled()
    assert stage.names("services") == {"shop-client", "shop-nodes"}
