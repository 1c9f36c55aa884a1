"""Two teams in two namespaces share a cluster: each has its own topics, and no object that it writes reaches the
other's."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial

import pytest

from e2e.harness.delaycluster import API_VERSION, ClusterUnderTest
from e2e.harness.helm import Release
from e2e.harness.kubectl import Failed, Kubectl, Object, wait_until
from e2e.scenarios.test_security import secret
from tests.security.authority import Authority

TOLD_SECONDS = 60.0
LABEL = "delaycluster-e2e-teams"
PENDING = 50


class Team:
    def __init__(self, kube: Kubectl, cluster: ClusterUnderTest, name: str, *, allowed: bool = True) -> None:
        self.kube, self.cluster, self.namespace = kube, cluster, f"delaycluster-e2e-{name}-{int(time.time()) % 100_000}"
        self.topic = f"{name}-mails-{int(time.time()) % 100_000}"
        kube.namespace(self.namespace)
        if allowed:
            kube("label", "namespace", self.namespace, f"{LABEL}=yes")

    def apply(self, kind: str, called: str, **spec: object) -> None:
        meta = {"name": called, "namespace": self.namespace}
        cluster = {"name": self.cluster.name, "namespace": self.cluster.namespace}
        body: Object = {"apiVersion": API_VERSION, "kind": kind, "metadata": meta, "spec": {"cluster": cluster, **spec}}
        self.kube.apply(body, namespace=self.namespace)

    def has_topic(self, called: str = "", **spec: object) -> None:
        quotas = {"pendingMessages": 1_000}
        self.apply("DelayTopic", called or self.topic, queues=2, quotas=quotas, **spec)

    def has_user(self, called: str, *rules: Object, **spec: object) -> None:
        accounts = [{"name": called}]
        self.apply("DelayUser", called, rules=list(rules), **{"serviceAccounts": accounts, **spec})

    def told(self, kind: str, name: str) -> Object:
        conditions = self.kube.get(kind, name, self.namespace).get("status", {}).get("conditions") or [{}]
        found: Object = conditions[0]
        return found

    def wait_told(self, kind: str, name: str, reason: str) -> None:
        def wrong() -> list[str]:
            said = self.told(kind, name)
            return [] if said.get("reason") == reason else [f"{kind} {name}: {said}, not {reason}"]

        wait_until(f"{kind} {name} is told {reason}", wrong, TOLD_SECONDS)


@pytest.fixture
def teams(kube: Kubectl, operator: Release, cluster: ClusterUnderTest) -> Iterator[tuple[Team, Team, Team]]:
    """Two that the cluster allows by a label of their namespaces, and one that it does not."""
    operator.install("rbac.readNamespaces=true")
    made = Team(kube, cluster, "a"), Team(kube, cluster, "b"), Team(kube, cluster, "c", allowed=False)
    allowed = {"from": "Selector", "selector": {"matchLabels": {LABEL: "yes"}}, "limits": {"queues": 4}}
    cluster.edit(allowedNamespaces=allowed)
    yield made
    for team in made:
        kube.delete("namespace", team.namespace)
    cluster.edit(allowedNamespaces=None)
    wait_until(
        "their topics are gone", lambda: [it.name for it in cluster.shards() if serves(it.topic, it.surplus)], 60
    )
    for topic in {shard.topic for shard in cluster.shards()}:
        if any(topic.startswith(team.topic) for team in made):
            cluster.delayctl("shards", "retire", "--topic", topic, "--pending", str(pending(cluster, topic)))
    operator.install()
    cluster.wait_whole()


def serves(topic: str, surplus: bool) -> bool:
    return "-mails-" in topic and not surplus


def pending(cluster: ClusterUnderTest, topic: str) -> int:
    return sum(json.loads(line)["pending"] for line in cluster.delayctl("wheel", topic, "--json").splitlines())


def rights(cluster: ClusterUnderTest) -> set[tuple[str, str, str]]:
    """(namespace of the account, operation, topic) of the security document."""
    text = cluster.kube.get("configmap", f"{cluster.name}-security", cluster.namespace)["data"]["security.json"]
    return {
        (user["principal"].split(":")[2], operation, rule["topic"].get("literal", "*"))
        for user in json.loads(text)["users"]
        for rule in user["rules"]
        for operation in rule["operations"]
    }


def test_two_teams_share_a_cluster_and_neither_reaches_the_other_s_topics(
    cluster: ClusterUnderTest, teams: tuple[Team, Team, Team]
) -> None:
    a, b, c = teams
    for team in (a, b):
        team.has_topic()
    for team in (a, b):
        team.wait_told("delaytopic", team.topic, "Serving")
    c.has_topic()
    c.wait_told("delaytopic", c.topic, "NamespaceNotAllowed")
    a.has_topic("thief", name=b.topic)
    a.wait_told("delaytopic", "thief", "NameTaken")
    a.has_topic("greedy", name=f"{a.topic}-more", dlqRetention="1d")
    a.wait_told("delaytopic", "greedy", "Serving")
    a.has_topic("greedier", name=f"{a.topic}-yet-more")
    a.wait_told("delaytopic", "greedier", "OverLimit")

    everything: Object = {
        "operations": ["Produce", "Consume", "Cancel", "Browse"], "topic": {"prefix": ""}, "group": {"prefix": ""},
    }  # fmt: skip
    for team in (a, b):
        team.has_user("worker", everything)
        team.wait_told("delayuser", "worker", "InForce")
    a.has_user("reader", everything, {"operations": ["Browse"], "topic": {"literal": b.topic}})
    a.wait_told("delayuser", "reader", "RulesLeftOut")
    a.has_user("posing", everything, serviceAccounts=[{"name": "worker", "namespace": b.namespace}])
    a.wait_told("delayuser", "posing", "IdentityNotAllowed")
    c.has_user("worker", everything)
    c.wait_told("delayuser", "worker", "NamespaceNotAllowed")
    reach = {(namespace, topic) for namespace, _, topic in rights(cluster)}
    assert reach == {
        (a.namespace, a.topic), (a.namespace, f"{a.topic}-more"), (b.namespace, b.topic),
    }  # fmt: skip


def test_a_topic_that_was_deleted_by_mistake_is_there_again_with_its_messages(
    cluster: ClusterUnderTest, teams: tuple[Team, Team, Team]
) -> None:
    a, b, _ = teams
    a.has_topic()
    a.wait_told("delaytopic", a.topic, "Serving")
    cluster.delayctl("produce", a.topic, "--delay", "30s", "--count", str(PENDING), "--json")
    cluster.kube.delete("delaytopic", a.topic, a.namespace)
    wait_until("it is surplus", lambda: [it.name for it in cluster.shards(a.topic) if not it.surplus], TOLD_SECONDS)
    b.has_topic("thief", name=a.topic)
    b.wait_told("delaytopic", "thief", "NameTaken")
    a.has_topic()
    a.wait_told("delaytopic", a.topic, "Serving")
    consumed = cluster.delayctl(
        "consume", a.topic, "--group", "me", "--count", str(PENDING), "--timeout", "60", "--json"
    )
    assert len(consumed.splitlines()) == PENDING


@pytest.fixture
def secured(operator: Release, kube: Kubectl, namespace: str) -> Iterator[tuple[ClusterUnderTest, Team, Team]]:
    """A cluster that asks who calls, from its first pod on, and two teams with an account, a user and a topic each."""
    cluster, ca = ClusterUnderTest(kube, "shared", namespace), Authority("shared")
    name, node = f"shared-client.{namespace}.svc", f"spiffe://delaycluster/ns/{namespace}/cluster/shared/role/node"
    kube.apply(secret("nodes", ca.issue(name, node), ca), namespace=namespace)
    certificates = {"secrets": {"server": "nodes"}}
    cluster.apply(
        nodes=2, replicas=2, storage={"size": "1Gi"}, allowedNamespaces={"from": "All"},
        security={"mode": "Required", "certificates": certificates},
    )  # fmt: skip
    cluster.wait_whole()
    teams = Team(kube, cluster, "a"), Team(kube, cluster, "b")
    everything: Object = {
        "operations": ["Produce", "Consume", "Cancel", "Browse"], "topic": {"prefix": ""}, "group": {"prefix": ""},
    }  # fmt: skip
    for team in teams:
        account: Object = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "worker"}}
        kube.apply(account, namespace=team.namespace)
        team.has_topic()
        team.has_user("worker", everything)
    for team in teams:
        team.wait_told("delaytopic", team.topic, "Serving")
        team.wait_told("delayuser", "worker", "InForce")
    yield cluster, *teams
    for team in teams:
        kube.delete("namespace", team.namespace)


@pytest.mark.quick
def test_a_team_s_account_can_not_see_send_to_or_fill_the_other_s_topic(
    secured: tuple[ClusterUnderTest, Team, Team],
) -> None:
    cluster, a, b = secured

    def by(team: Team, *argv: str) -> str:
        return cluster.delayctl(*argv, "--service-account", f"{team.namespace}/worker")

    def waits(team: Team) -> list[str]:
        """It is asked of all masters of the topic's queues: each reads the users later than they are in force."""
        by(team, "pending", team.topic, "--json")  # a refusal is what wait_until waits over
        return []

    for team in (a, b):
        wait_until(f"{team.namespace}/worker may browse its topic", partial(waits, team), TOLD_SECONDS)
    for team, other in ((a, b), (b, a)):
        by(team, "produce", team.topic, "--delay", "1h", "--count", str(PENDING))
        assert len(by(team, "pending", team.topic, "--json").splitlines()) == PENDING
        for argv in (
            ("produce", other.topic, "--delay", "1h"),
            ("pending", other.topic),
            ("consume", other.topic, "--group", "g", "--count", "1", "--timeout", "3"),
            ("groups", "describe", other.topic, "--group", "g"),
            ("pending", "no-such-topic"),
        ):
            with pytest.raises(Failed, match="may not"):
                by(team, *argv)
    with pytest.raises(Failed, match="QUOTA"):
        by(a, "produce", a.topic, "--delay", "1h", "--count", "3000")
    by(b, "produce", b.topic, "--delay", "1h", "--count", str(PENDING))
    assert len(by(b, "pending", b.topic, "--json").splitlines()) == 2 * PENDING


def test_a_namespace_with_a_cluster_and_a_topic_that_is_to_go_with_its_messages_is_deleted_whole(
    kube: Kubectl, operator: Release
) -> None:
    """The cluster goes with the namespace, so nobody can count or delete the topic's messages: it is let go."""
    name = f"delaycluster-e2e-going-{int(time.time()) % 100_000}"
    kube.namespace(name)
    cluster = ClusterUnderTest(kube, "going", name)
    cluster.apply(nodes=1, replicas=1, storage={"size": "1Gi"}, topics=[])
    topic = {"name": "mails", "namespace": name}
    spec = {"cluster": {"name": cluster.name}, "queues": 1, "deletionPolicy": "Delete"}
    kube.apply({"apiVersion": API_VERSION, "kind": "DelayTopic", "metadata": topic, "spec": spec}, namespace=name)

    def unheld() -> list[str]:
        finalizers = kube.get("delaytopic", "mails", name)["metadata"].get("finalizers") or []
        return [] if finalizers else ["it has no finalizer yet"]

    wait_until("the topic is held", unheld, TOLD_SECONDS)
    kube("delete", "namespace", name, "--timeout=150s", seconds=160)
    assert not kube.exists("namespace", name)
