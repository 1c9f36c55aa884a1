"""Who may write DelayShards, by the chart's admission policy and a real API server; tests/chart/test_shard_policy.py
has the table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.harness.delaycluster import ClusterUnderTest
from e2e.harness.helm import Release
from e2e.harness.kubectl import Kubectl, Object, wait_until

PERSON = "anna@example.com"
WIDE, ADMIN = "e2e-writes-shards", "e2e-administers-shards"
GROUP = "rbac.authorization.k8s.io"


def binding(name: str, kind: str, role: str) -> Object:
    subjects = [{"kind": "User", "apiGroup": GROUP, "name": PERSON}]
    reference = {"apiGroup": GROUP, "kind": kind, "name": role}
    meta = {"name": name}
    return {"apiVersion": f"{GROUP}/v1", "kind": "RoleBinding", "metadata": meta, "roleRef": reference,
            "subjects": subjects}  # fmt: skip


@pytest.fixture
def person(cluster: ClusterUnderTest) -> Iterator[str]:
    """May write DelayShards by RBAC, and not administer them."""
    resources = ["delayshards", "delayshards/status"]
    rules = [{"apiGroups": ["delaycluster.io"], "resources": resources, "verbs": ["get", "create", "patch", "delete"]}]
    role = {"apiVersion": f"{GROUP}/v1", "kind": "Role", "metadata": {"name": WIDE}, "rules": rules}
    cluster.kube.apply(role, binding(WIDE, "Role", WIDE), namespace=cluster.namespace)
    yield PERSON
    for kind, name in (("rolebinding", WIDE), ("rolebinding", ADMIN), ("role", WIDE)):
        cluster.kube.delete(kind, name, cluster.namespace)


def note(cluster: ClusterUnderTest, user: str, *more: str) -> tuple[str, ...]:
    """kubectl's words to write a DelayShard of the cluster as `user`."""
    patch = '{"metadata":{"annotations":{"example.com/e2e":"1"}}}'
    shard = cluster.shards()[0].name
    return "patch", "delayshard", shard, "-n", cluster.namespace, "--type=merge", "-p", patch, "--as", user, *more


def test_only_the_operator_the_nodes_and_who_may_administer_write_delayshards(
    kube: Kubectl, operator: Release, cluster: ClusterUnderTest, topic: str, person: str
) -> None:
    if not kube("get", "validatingadmissionpolicies", "-o", "name", check=False).strip():
        pytest.skip("this API server has no admission policies")
    (role,) = (
        it["metadata"]["name"] for it in kube.list("clusterroles") if it["metadata"]["name"].endswith("-shard-admin")
    )
    shard = cluster.shards()[0].name
    for refused in (
        note(cluster, person),
        note(cluster, person, "--subresource=status"),
        ("delete", "delayshard", shard, "-n", cluster.namespace, "--as", person),
    ):
        told = kube.refused(*refused)
        assert "is forbidden" in told
        assert f"{person} needs the verb administer on delayshards in namespace {cluster.namespace}" in told
        assert role in told

    # That nodes may write the status shows a cluster that is whole: kubectl would have to read it first.
    told = kube.refused(*note(cluster, f"system:serviceaccount:{cluster.namespace}:{cluster.name}-node"))
    assert "forbidden" in told, "RBAC lets it write no spec"

    kube.apply(binding(ADMIN, "ClusterRole", role), namespace=cluster.namespace)
    kube(*note(cluster, person))
    cluster.wait_whole()


def test_shards_go_with_their_delaycluster_though_only_few_may_delete_them(
    kube: Kubectl, operator: Release, namespace: str
) -> None:
    """Kubernetes' garbage collector does it."""
    made = ClusterUnderTest(kube, "gone", namespace)
    made.apply(nodes=1, replicas=1, topics=[{"name": "t", "queues": 2}], storage={"size": "1Gi"})
    made.wait_whole()
    assert len(made.shards()) == 2
    kube.delete("delaycluster", made.name, namespace)
    wait_until(
        "its shards are gone", lambda: [it["metadata"]["name"] for it in kube.list("delayshards", namespace)], 60
    )
