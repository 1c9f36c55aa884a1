"""Under `--openshift` every scenario runs as on OpenShift; this one shows that it does: ids that no image knows, and
nothing has been set for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy

import pytest

from e2e.harness.delaycluster import ClusterUnderTest
from e2e.harness.kubectl import Kubectl, Object
from e2e.harness.openshift import USER
from e2e.scenarios.test_pods_of_ones_own import restricted

KINDS = ("operator", "node")
OWN = 10001  # of the images


@pytest.fixture(autouse=True)
def _as_openshift(pytestconfig: pytest.Config) -> None:
    if not pytestconfig.option.openshift:
        pytest.skip("pods get no ids here: `make e2e ARGS=--openshift`")


def test_the_constraint_is_there(kube: Kubectl, namespace: str, image: str) -> None:
    pod: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "plain", "namespace": namespace},
        "spec": {"containers": [restricted("it", image, command=["id", "-u"])]},
    }

    def changed(change: Callable[[Object], None]) -> str:
        other = deepcopy(pod)
        change(other)
        return kube.refused("create", "--dry-run=server", "-f", "-", stdin=json.dumps(other))

    made = json.loads(kube("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(pod)))
    assert made["spec"]["securityContext"]["fsGroup"] == USER
    assert made["spec"]["containers"][0]["securityContext"]["runAsUser"] == USER
    named: tuple[Callable[[Object], None], ...] = (
        lambda it: it["spec"].update(securityContext={"runAsUser": OWN}),
        lambda it: it["spec"].update(securityContext={"fsGroup": OWN}),
        lambda it: it["spec"]["containers"][0]["securityContext"].update(runAsUser=OWN),
        lambda it: it["spec"]["containers"][0]["securityContext"].update(runAsUser=USER, runAsGroup=OWN),
    )
    assert all("denied request: restricted-v2: " in changed(it) for it in named)


def test_all_pods_run_as_a_user_that_their_image_does_not_know(cluster: ClusterUnderTest, topic: str) -> None:
    kube = cluster.kube
    everywhere = json.loads(kube("get", "pods", "--all-namespaces", "-l", "app.kubernetes.io/component", "-o", "json"))
    seen = {}
    for pod in everywhere["items"]:
        component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        assert pod["spec"]["securityContext"].get("runAsUser") is None, pod["metadata"]["name"]
        assert pod["spec"]["securityContext"]["fsGroup"] == USER, pod["metadata"]["name"]
        assert {it["securityContext"]["runAsUser"] for it in pod["spec"]["containers"]} == {USER}
        seen[component] = pod["metadata"]
    assert set(KINDS) <= seen.keys(), seen.keys()
    node = ("exec", seen["node"]["name"], "--namespace", seen["node"]["namespace"], "--container=node", "--")
    assert kube(*node, "id", "-u").strip() == str(USER)
    assert str(USER) not in kube(*node, "cat", "/etc/passwd")
    cluster.delayctl("produce", topic, "--count", "100", "--spread", "0s..1s")
