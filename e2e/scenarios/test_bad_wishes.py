"""Every wish that can't be granted is refused in words that say what, where and which limit."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from e2e.harness.helm import Release
from e2e.harness.kubectl import Kubectl
from tests.crds.bad_clusters import BAD_CLUSTERS, GOOD, BadCluster, merged

NO_PODS = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "no-pods"},
    "spec": {"hard": {"pods": "0"}},  # the good cluster is only there to be changed
}


@pytest.fixture(scope="module")
def namespace(kube: Kubectl) -> Iterator[str]:
    name = "delaycluster-e2e-refusals"
    kube.delete("namespace", name)
    kube.namespace(name)
    kube.apply(NO_PODS, namespace=name)
    yield name
    kube.delete("namespace", name)


def in_namespace(body: dict[str, object], namespace: str) -> str:
    return json.dumps(merged(body, {"metadata": {"namespace": namespace}}))


@pytest.mark.quick
@pytest.mark.parametrize("bad", [pytest.param(one, id=one.name) for one in BAD_CLUSTERS])
def test_the_api_server_refuses_it_in_these_words(
    operator: Release, kube: Kubectl, namespace: str, bad: BadCluster
) -> None:
    if bad.update:
        kube("apply", "-f", "-", stdin=in_namespace(GOOD, namespace))
    body = in_namespace(bad.body, namespace)
    # strict validation would complain of an unknown field before the schema and its rules are asked
    way = ("apply" if bad.update else "create", "--dry-run=server", "--validate=ignore", "-f", "-")
    told = kube.refused(*way, stdin=body)
    assert bad.path in told
    assert bad.says in told
