"""Every request that can't be granted is refused in words that say what, where and which limit."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from e2e.harness.delaycluster import ClusterUnderTest
from e2e.harness.helm import Release
from e2e.harness.kubectl import Kubectl, wait_until
from tests.crds.bad_clusters import BAD_CLUSTERS, GOOD, UNSEEN, BadCluster, merged

NO_PODS = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "no-pods"},
    "spec": {"hard": {"pods": "0"}},  # the good cluster is only there to be changed
}
TOLD_SECONDS = 60.0


@pytest.fixture(scope="module")
def namespace(release: Release, kube: Kubectl) -> Iterator[str]:
    """A namespace with the good cluster in it: updates to bad ones start from it."""
    name = "delaycluster-e2e-refusals"
    release.ensure()
    kube.delete("namespace", name)
    kube.namespace(name)
    kube.apply(NO_PODS, namespace=name)
    kube("apply", "-f", "-", stdin=in_namespace(GOOD, name))
    yield name
    kube.delete("namespace", name)


def in_namespace(body: dict[str, object], namespace: str) -> str:
    return json.dumps(merged(body, {"metadata": {"namespace": namespace}}))


@pytest.mark.quick
@pytest.mark.parametrize("bad", [pytest.param(one, id=one.name) for one in BAD_CLUSTERS])
def test_the_api_server_refuses_it_in_these_words(kube: Kubectl, namespace: str, bad: BadCluster) -> None:
    body = bad.body if bad.update else merged(bad.body, {"metadata": {"name": other_name(bad)}})
    # strict validation would complain of an unknown field before the schema and its rules are asked
    way = ("apply" if bad.update else "create", "--dry-run=server", "--validate=ignore", "-f", "-")
    told = kube.refused(*way, stdin=in_namespace(body, namespace))
    assert bad.path in told
    assert bad.says in told


def other_name(bad: BadCluster) -> str:
    """A name other than the good cluster's, which exists already."""
    name: str = bad.body["metadata"]["name"]
    return "bad" if name == GOOD["metadata"]["name"] else name


@pytest.mark.quick
@pytest.mark.parametrize("bad", [pytest.param(one, id=one.name) for one in UNSEEN])
def test_what_only_the_operator_sees_it_refuses_by_a_condition_and_an_event(
    kube: Kubectl, namespace: str, bad: BadCluster
) -> None:
    cluster = ClusterUnderTest(kube, "unseen", namespace)
    kube.apply(merged(bad.body, {"metadata": {"name": cluster.name, "namespace": namespace}}), namespace=namespace)

    def untold() -> list[str]:
        ready = cluster.condition("Ready")
        told = ready.get("reason") == "InvalidSpec" and bad.path in ready["message"] and bad.says in ready["message"]
        warned = any(one["reason"] == "InvalidSpec" and bad.says in one["message"] for one in cluster.events())
        return [] if told and warned else [f"Ready: {ready}; events: {[one['message'] for one in cluster.events()]}"]

    wait_until("the operator says what is wrong", untold, TOLD_SECONDS)
    assert not cluster.shards(), "nothing of it is made"
    assert not kube.exists("statefulset", cluster.name, namespace), "nothing of it is made"
    cluster.delete()
