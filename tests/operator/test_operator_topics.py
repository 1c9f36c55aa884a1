"""DelayTopics with kopf really running: of the cluster's namespace and of others, told what became of them, kept."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from delayapi.proto.delay.v1 import delay_pb2
from delayoperator.cluster.topic_deletion import FINALIZER
from delayoperator.kube import topic_loads
from delayoperator.kube.topic_deletion import TopicDeletions
from delayregistry.security import Operation, SecuritySpec, read_document

from tests.kube import fakekinds
from tests.operator.stage import NAMESPACE, Stage

Json = dict[str, Any]
TOPICS = fakekinds.find("delaytopics")
USERS = fakekinds.find("delayusers")
HOME = {"name": "shop", "namespace": NAMESPACE}
TEAMS: Json = {"from": "Selector", "selector": {"matchLabels": {"delay": "yes"}}}


def namespace(stage: Stage, name: str, **labels: str) -> None:
    stage.server.store.create(fakekinds.find("namespaces"), "", {"metadata": {"name": name, "labels": labels}})


def add(stage: Stage, called: str, at: str = NAMESPACE, **spec: Any) -> None:
    cluster = {"name": "shop"} if at == NAMESPACE else HOME
    made = {"cluster": cluster, "queues": 1, **spec}
    stage.server.store.create(TOPICS, at, {"metadata": {"name": called}, "spec": made}, "kubectl")


def user(stage: Stage, name: str, at: str, *rules: Json, **spec: Any) -> None:
    made = {"cluster": HOME, "serviceAccounts": [{"name": name}], "rules": list(rules), **spec}
    stage.server.store.create(USERS, at, {"metadata": {"name": name}, "spec": made}, "kubectl")


def remove(stage: Stage, name: str, at: str) -> None:
    stage.server.store.delete(TOPICS, at, name)


def ready(stage: Stage, name: str, at: str = NAMESPACE, plural: str = "delaytopics") -> Json:
    found: Json = ((stage.server.get(plural, name, at).get("status") or {}).get("conditions") or [{}])[0]
    return found


def until(stage: Stage, name: str, reason: str, at: str = NAMESPACE, plural: str = "delaytopics") -> Json:
    stage.until(
        lambda: ready(stage, name, at, plural).get("reason") == reason, lambda: ready(stage, name, at, plural), 30
    )
    return ready(stage, name, at, plural)


def begin(stage: Stage, **spec: Any) -> None:
    stage.create(topics=[{"name": "orders", "queues": 1}], **spec)
    stage.settled()


def shards(stage: Stage) -> set[str]:
    return {it.removeprefix("shop.") for it in stage.names("delayshards")}


def surplus(stage: Stage, shard: str) -> bool:
    found = stage.there("delayshards", f"shop.{shard}").get("status", {}).get("conditions") or []
    return any(it["type"] == "Surplus" for it in found)


def document(stage: Stage) -> SecuritySpec:
    return read_document(stage.there("configmaps", "shop-security")["data"]["security.json"])


def allowed(stage: Stage) -> set[tuple[str, str, str]]:
    """(account, operation, topic), each by its name."""
    return {
        (it.principal.removeprefix("system:serviceaccount:"), str(operation), str(rule.topic))
        for it in document(stage).users
        for rule in it.rules
        for operation in rule.operations
    }


def test_a_topic_comes_and_changes_and_goes_and_its_messages_stay(stage: Stage) -> None:
    stage.operator()
    begin(stage)
    add(stage, "mails", queues=2, maxDelay="2d")
    told = until(stage, "mails", "Serving")
    assert (told["status"], told["message"]) == ("True", "served: 2 of 2 shards")
    status = stage.there("delaytopics", "mails")["status"]
    assert (status["shards"], status["servedShards"]) == (2, 2)
    assert "finalizers" not in stage.there("delaytopics", "mails")["metadata"]
    assert shards(stage) == {"orders-0", "mails-0", "mails-1"}
    stage.patch("delaytopics", "mails", {"spec": {"queues": 3}})
    stage.until(lambda: shards(stage) == {"orders-0", "mails-0", "mails-1", "mails-2"})
    stage.until(lambda: stage.there("delaytopics", "mails")["status"]["observedGeneration"] == 2)
    remove(stage, "mails", NAMESPACE)
    stage.until(lambda: surplus(stage, "mails-1"))
    assert shards(stage) == {"orders-0", "mails-0", "mails-1", "mails-2"}
    add(stage, "mails", queues=2)
    assert "removed with 3 queues" in until(stage, "mails", "InvalidSpec")["message"]
    stage.patch("delaytopics", "mails", {"spec": {"queues": 3}})
    until(stage, "mails", "Serving")
    stage.until(lambda: not surplus(stage, "mails-1"))


def test_the_status_says_what_is_pending_due_soon_and_late(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two shards, each with 500 pending, of which half are due within the hour; one call to each node tells it."""
    monkeypatch.setattr(topic_loads, "ASK_MS", 5_000)  # a node that has not answered in time is asked again then
    stage.kubelet.pending, stage.kubelet.oldest_ms = 500, 1_700_000_000_000
    stage.operator()
    begin(stage)
    add(stage, "mails", queues=2)
    until(stage, "mails", "Serving")

    def figures() -> Json:
        status = stage.there("delaytopics", "mails")["status"]
        return {field: status.get(field) for field in ("pending", "dueWithinHour", "oldestUnfinished")}

    wanted = {"pending": 1_000, "dueWithinHour": 500, "oldestUnfinished": "2023-11-14T22:13:20Z"}
    stage.until(lambda: figures() == wanted, figures, 30)


def test_a_name_that_is_taken_and_a_spec_that_is_wrong_are_told_and_harm_nobody(stage: Stage) -> None:
    stage.operator()
    begin(stage)
    add(stage, "orders")
    assert "spec.topics" in until(stage, "orders", "NameTaken")["message"]
    add(stage, "bad", maxDelay="90d")
    assert until(stage, "bad", "InvalidSpec")["message"].startswith("spec.maxDelay: is 90d")
    add(stage, "good")
    until(stage, "good", "Serving")
    stage.settled()
    assert shards(stage) == {"orders-0", "good-0"}


def test_two_teams_in_two_namespaces_have_topics_of_one_cluster(stage: Stage) -> None:
    """Neither can see, send to or take over what is the other's, whatever it writes in its own namespace."""
    for name in ("a", "b"):
        namespace(stage, name, delay="yes")
    namespace(stage, "c")
    stage.operator()
    begin(stage, allowedNamespaces=TEAMS)
    add(stage, "a-mails", "a")
    add(stage, "b-mails", "b")
    add(stage, "c-mails", "c")
    until(stage, "a-mails", "Serving", "a")
    until(stage, "b-mails", "Serving", "b")
    until(stage, "c-mails", "NamespaceNotAllowed", "c")
    add(stage, "thief", "a", name="b-mails")
    assert "another namespace" in until(stage, "thief", "NameTaken", "a")["message"]

    everything = {"operations": ["Produce", "Consume", "Browse"], "topic": {"prefix": ""}, "group": {"prefix": ""}}
    theirs = {"operations": ["Produce"], "topic": {"literal": "b-mails"}}
    user(stage, "worker", "a", everything, theirs, {"operations": ["Admin"]})
    user(stage, "worker", "b", everything)
    user(stage, "posing", "a", everything, serviceAccounts=[{"name": "worker", "namespace": "b"}])
    user(stage, "guest", "c", everything)
    told = until(stage, "worker", "RulesLeftOut", "a", "delayusers")
    assert "spec.rules[1]: topic 'b-mails'" in told["message"]
    assert "spec.rules[2]: Admin" in told["message"]
    until(stage, "worker", "InForce", "b", "delayusers")
    until(stage, "posing", "IdentityNotAllowed", "a", "delayusers")
    until(stage, "guest", "NamespaceNotAllowed", "c", "delayusers")
    operations = [str(it) for it in (Operation.PRODUCE, Operation.CONSUME, Operation.BROWSE)]
    assert allowed(stage) == {
        (f"{team}:worker", operation, f"'{team}-mails'") for team in "ab" for operation in operations
    }

    # What a team leaves behind it may consume, and nobody may send to, or have.
    remove(stage, "b-mails", "b")
    stage.until(lambda: surplus(stage, "b-mails-0"))
    stage.until(lambda: ("b:worker", "Produce", "'b-mails'") not in allowed(stage))
    assert ("b:worker", "Consume", "'b-mails'") in allowed(stage)
    assert not any(who.startswith("a:") and "b-mails" in topic for who, _, topic in allowed(stage))
    assert ready(stage, "thief", "a")["reason"] == "NameTaken"
    stage.patch("delayclusters", "shop", {"metadata": {"annotations": {"delaycluster.io/owner-b-mails": "a"}}})
    until(stage, "thief", "Serving", "a")


def test_a_label_that_is_taken_away_takes_the_topics_away_and_their_messages_stay(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayoperator.kube.namespace_labels.REREAD_S", 0.2)
    namespace(stage, "a", delay="yes")
    stage.operator(resync_s=1.0)
    begin(stage, allowedNamespaces=TEAMS)
    add(stage, "mails", "a")
    until(stage, "mails", "Serving", "a")
    stage.server.store.patch(fakekinds.find("namespaces"), "", "a", {"metadata": {"labels": {"delay": None}}}, "admin")
    until(stage, "mails", "NamespaceNotAllowed", "a")
    stage.until(lambda: surplus(stage, "mails-0"))
    stage.server.store.patch(fakekinds.find("namespaces"), "", "a", {"metadata": {"labels": {"delay": "yes"}}}, "admin")
    until(stage, "mails", "Serving", "a")


def test_without_the_right_to_read_namespaces_a_selector_takes_none_and_loses_none(stage: Stage) -> None:
    for name in ("a", "b"):
        namespace(stage, name, delay="yes")
    first = stage.operator()
    begin(stage, allowedNamespaces=TEAMS)
    add(stage, "a-mails", "a")
    until(stage, "a-mails", "Serving", "a")
    first.close()
    for name in ("a", "b"):
        stage.server.fault(path=f"/api/v1/namespaces/{name}", code=403, times=None)
    stage.operator()
    add(stage, "b-mails", "b")
    assert "can't read the labels" in until(stage, "b-mails", "NamespaceUnknown", "b")["message"]
    assert ready(stage, "a-mails", "a")["reason"] == "Serving"
    assert shards(stage) == {"orders-0", "a-mails-0"}
    assert not surplus(stage, "a-mails-0")


# ------------------------------------------------------------ deletionPolicy: Delete
def deletable(stage: Stage, **spec: Any) -> None:
    """A DelayTopic `mails` that goes with its messages, served."""
    begin(stage)
    add(stage, "mails", queues=2, deletionPolicy="Delete", **spec)
    until(stage, "mails", "Serving")
    stage.until(lambda: stage.there("delaytopics", "mails")["metadata"].get("finalizers"))


def gone(stage: Stage) -> bool:
    return stage.get("delaytopics", "mails") is None


def copies(stage: Stage) -> list[str]:
    """Of mails, on the nodes' disks."""
    known = [uid for uid, (topic, _, _) in stage.kubelet.names.items() if topic == "mails"]
    return [uid for disk in list(stage.kubelet.disks.values()) for uid in known if uid in disk]


def finished(**counts: int) -> Any:
    return delay_pb2.GroupState(group="g", end_offset=9, **counts)


def test_a_topic_that_goes_with_its_messages_waits_until_nothing_is_left_to_lose(stage: Stage) -> None:
    stage.operator()
    deletable(stage)
    assert len(copies(stage)) == 4
    remove(stage, "mails", NAMESPACE)
    stage.until(lambda: surplus(stage, "mails-0"))
    told = until(stage, "mails", "DeletionWaits")["message"]
    assert told.startswith("14 messages pending")
    assert "delete-messages=14" in told
    stage.kubelet.pending, stage.kubelet.released = 0, 3
    stage.until(lambda: "released and not done: mails-0: 3" in ready(stage, "mails")["message"])
    stage.kubelet.groups = [finished(), finished(waiting_retry=1)]
    stage.until(lambda: "released and not done: mails-0: 1" in ready(stage, "mails")["message"])
    assert shards(stage) == {"orders-0", "mails-0", "mails-1"}
    stage.kubelet.groups = [finished()]
    stage.until(lambda: gone(stage))
    assert shards(stage) == {"orders-0"}
    assert copies(stage) == []
    stage.until(lambda: stage.there("configmaps", "shop-cluster")["data"]["topics.json"] == "[]", timeout_s=10)
    stage.settled()


def test_what_a_person_says_in_words_goes_and_another_number_is_no_word(stage: Stage) -> None:
    stage.operator()
    deletable(stage)
    confirm = {"metadata": {"annotations": {"delaycluster.io/delete-messages": "13"}}}
    remove(stage, "mails", NAMESPACE)
    until(stage, "mails", "DeletionWaits")
    stage.patch("delaytopics", "mails", confirm)
    time.sleep(2)
    assert not gone(stage)
    assert shards(stage) == {"orders-0", "mails-0", "mails-1"}
    confirm["metadata"]["annotations"]["delaycluster.io/delete-messages"] = "14"
    stage.patch("delaytopics", "mails", confirm)
    stage.until(lambda: gone(stage))
    assert shards(stage) == {"orders-0"}
    assert copies(stage) == []


def test_a_topic_with_a_damaged_copy_goes_by_the_command_that_its_message_has(stage: Stage) -> None:
    stage.operator()
    deletable(stage)
    uid = next(uid for uid, (topic, *_) in stage.kubelet.names.items() if topic == "mails")
    node = next(node for (_, node), disk in stage.kubelet.disks.items() if uid in disk)
    stage.kubelet.damaged[uid, node] = "checksum"
    remove(stage, "mails", NAMESPACE)
    stage.until(lambda: "can't be counted" in ready(stage, "mails").get("message", ""))
    (command,) = re.findall(r"`(.+?)`, which asks for -1", ready(stage, "mails")["message"])
    stage.follow(command, "-1\n")
    stage.until(lambda: gone(stage))
    assert shards(stage) == {"orders-0"}
    assert copies(stage) == []


def test_a_deletion_is_taken_back_by_retain(stage: Stage) -> None:
    stage.operator()
    deletable(stage)
    remove(stage, "mails", NAMESPACE)
    until(stage, "mails", "DeletionWaits")
    stage.patch("delaytopics", "mails", {"spec": {"deletionPolicy": "Retain"}})
    stage.until(lambda: gone(stage))
    assert len(copies(stage)) == 4
    add(stage, "mails", queues=2)
    until(stage, "mails", "Serving")
    assert "finalizers" not in stage.there("delaytopics", "mails")["metadata"]


def test_a_copy_that_was_written_to_since_it_was_looked_at_stays(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that came between the look and the deletion of the DelayShard."""
    stage.operator()
    deletable(stage)
    stage.kubelet.pending = 0
    real = TopicDeletions._delete

    def later(self: TopicDeletions, *given: Any) -> Any:
        found = real(self, *given)
        stage.kubelet.log_end = 101
        return found

    monkeypatch.setattr(TopicDeletions, "_delete", later)
    remove(stage, "mails", NAMESPACE)
    stage.until(lambda: "are left: mails-" in ready(stage, "mails").get("message", ""))
    stage.kubelet.log_end = 100
    assert copies(stage)
    assert not gone(stage)
    namespace(stage, "b")
    stage.edit(allowedNamespaces={"from": "All"})
    add(stage, "thief", "b", name="mails")
    until(stage, "thief", "NameTaken", "b")


# ------------------------------------------------------------ deletionPolicy: Delete, without the DelayCluster
def without_cluster(stage: Stage) -> None:
    stage.delete("delayclusters", "shop")
    stage.until(lambda: not stage.operators[-1].operator.clusters.workers())


def kept(stage: Stage) -> bool:
    """It is gone, its copies are not, and an Event says so."""
    (event,) = stage.events("MessagesKept", "mails") or [{}]
    return gone(stage) and len(copies(stage)) == 4 and "they stay on its volumes" in event.get("message", "")


def test_a_topic_whose_cluster_is_gone_goes_and_its_messages_stay(stage: Stage) -> None:
    stage.operator()
    deletable(stage)
    before = set(copies(stage))
    without_cluster(stage)
    remove(stage, "mails", NAMESPACE)
    stage.until(lambda: kept(stage), timeout_s=20)
    stage.until(lambda: not stage.operators[0].operator.clusters.workers())
    stage.create(topics=[{"name": "orders", "queues": 1}])
    stage.until(lambda: stage.reason("Degraded") == "OrphanedCopies")
    add(stage, "mails", queues=2)
    until(stage, "mails", "Serving")
    assert set(copies(stage)) == before, "the cluster that was applied again has found them"


def test_a_topic_that_waits_goes_when_its_cluster_does(stage: Stage) -> None:
    stage.operator()
    deletable(stage)
    remove(stage, "mails", NAMESPACE)
    until(stage, "mails", "DeletionWaits")
    without_cluster(stage)
    assert kept(stage)


def test_a_topic_that_waits_goes_while_kubernetes_deletes_what_its_cluster_owns(stage: Stage) -> None:
    stage.operator()
    deletable(stage)
    stage.patch("delayclusters", "shop", {"metadata": {"finalizers": ["foregroundDeletion"]}})
    stage.delete("delayclusters", "shop")
    remove(stage, "mails", NAMESPACE)
    stage.until(lambda: kept(stage), timeout_s=20)
    assert stage.get("delayclusters", "shop") is not None


def test_an_operator_that_comes_later_finds_the_topics_whose_cluster_is_gone(stage: Stage) -> None:
    first = stage.operator()
    deletable(stage)
    first.close()
    remove(stage, "mails", NAMESPACE)
    stage.delete("delayclusters", "shop")
    stage.operator()
    stage.until(lambda: kept(stage), timeout_s=20)


def test_an_operator_that_stands_by_does_what_the_leader_could_not(stage: Stage) -> None:
    first = stage.operator()
    deletable(stage)
    stage.operator()
    stage.server.fault(method="PATCH", path="/delaytopics/mails", code=500, times=None)
    remove(stage, "mails", NAMESPACE)
    stage.delete("delayclusters", "shop")
    stage.until(lambda: any(it["event"] == "api-error" and "mails" in it["error"] for it in first.events))
    time.sleep(1)  # the other one has looked too
    first.close()
    stage.server.faults.clear()
    stage.until(lambda: kept(stage), timeout_s=20)


def test_a_cluster_that_no_watch_has_shown_yet_is_not_taken_for_one_that_is_gone(stage: Stage) -> None:
    first = stage.operator()
    deletable(stage)
    first.close()
    remove(stage, "mails", NAMESPACE)
    stage.server.fault(path="/v1alpha1/delayclusters", code=500, times=None)  # lists and watches, not one by its name
    stage.operator()
    until(stage, "mails", "DeletionWaits")
    assert not any(it["event"] == "cluster-found" for it in stage.operators[-1].events)
    assert not stage.events("MessagesKept", "mails")


def test_a_cluster_that_was_applied_again_meanwhile_deletes_nothing(stage: Stage) -> None:
    first = stage.operator()
    deletable(stage)
    first.close()
    remove(stage, "mails", NAMESPACE)
    stage.delete("delayclusters", "shop")
    stage.kubelet.pending = 0
    stage.operator()
    stage.create(topics=[{"name": "orders", "queues": 1}])
    stage.until(lambda: gone(stage), timeout_s=20)
    time.sleep(1)
    assert len(copies(stage)) == 4


def test_an_operator_of_some_namespaces_leaves_topics_of_others_clusters_alone(stage: Stage) -> None:
    """It may not ask whether these are gone."""
    for name in ("a", "b"):
        namespace(stage, name)
    spec = {"cluster": {"name": "shop", "namespace": "b"}, "queues": 1, "deletionPolicy": "Delete"}
    meta = {"name": "mails", "finalizers": [FINALIZER]}
    stage.server.store.create(TOPICS, "a", {"metadata": meta, "spec": spec}, "kubectl")
    remove(stage, "mails", "a")
    running = stage.operator(namespaces=(NAMESPACE, "a"))
    begin(stage)
    assert {it.namespace for it in running.operator.clusters.workers()} == {NAMESPACE}
    assert "deletionTimestamp" in stage.server.get("delaytopics", "mails", "a")["metadata"]


@pytest.mark.parametrize(("code", "reason"), [(403, "Forbidden"), (404, "ApplyFailed"), (500, "ApplyFailed")])
def test_topics_that_can_not_be_read_are_kept(stage: Stage, code: int, reason: str) -> None:
    first = stage.operator()
    begin(stage)
    add(stage, "mails")
    until(stage, "mails", "Serving")
    first.close()
    before = stage.there("configmaps", "shop-cluster")["data"]
    stage.server.fault(path="/delaytopics", code=code, times=None)
    stage.operator()
    stage.until(lambda: stage.reason("Degraded") == reason, timeout_s=30)
    assert stage.there("configmaps", "shop-cluster")["data"] == before
    assert not surplus(stage, "mails-0")


@pytest.mark.parametrize("code", [403, 404])
def test_a_cluster_without_delay_topics_does_not_mind_that_they_can_not_be_read(stage: Stage, code: int) -> None:
    stage.server.fault(path="/delaytopics", code=code, times=None)
    stage.operator()
    begin(stage)
    assert stage.reason("Degraded") == "Healthy"
    assert stage.there("configmaps", "shop-cluster")["data"]["topics.json"] == "[]"


def test_an_operator_of_some_namespaces_sees_the_topics_of_those(stage: Stage) -> None:
    for name in ("a", "b"):
        namespace(stage, name)
    stage.operator(namespaces=(NAMESPACE, "a"))
    begin(stage, allowedNamespaces={"from": "All"})
    add(stage, "seen", "a")
    add(stage, "unseen", "b")
    until(stage, "seen", "Serving", "a")
    assert "status" not in stage.server.get("delaytopics", "unseen", "b")


def test_an_operator_that_takes_over_writes_nothing_anew(stage: Stage) -> None:
    first = stage.operator()
    begin(stage)
    add(stage, "mails")
    until(stage, "mails", "Serving")
    stage.settled()
    first.close()
    before = [stage.there(*it)["metadata"]["resourceVersion"] for it in (("configmaps", "shop-cluster"),)]
    stage.operator()
    add(stage, "orders")  # its condition says that the new one has looked
    until(stage, "orders", "NameTaken")
    assert [stage.there("configmaps", "shop-cluster")["metadata"]["resourceVersion"]] == before
