"""From `helm install` with no values to `helm uninstall`, with docs/examples as they are in between."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.harness.delaycluster import API_VERSION, LABEL, ClusterUnderTest
from e2e.harness.helm import Release
from e2e.harness.kubectl import Kubectl, wait_until
from e2e.harness.load import CALM_SECONDS, Load, Result

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples"
READY_SECONDS = 180.0
AWAY_SECONDS = 10.0
OWNED = (
    *("delayshards", "statefulsets", "services", "configmaps", "poddisruptionbudgets", "pods"),
    *("serviceaccounts", "roles", "rolebindings", "leases"),
)
GONE_SECONDS = 120.0
DISPATCHED = re.compile(
    r'^apiserver_flowcontrol_dispatched_requests_total\{flow_schema="([^"]+)".*\} (\S+)$', re.MULTILINE
)
# Run in a pod, with its own account: the UID of the FlowSchema that a GET of each path matches.
WHICH_SCHEMA = """
import pathlib, ssl, sys, urllib.request
account = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount")
trust = ssl.create_default_context(cafile=account / "ca.crt")
headers = {"Authorization": "Bearer " + (account / "token").read_text()}
for path in sys.argv[1:]:
    asked = urllib.request.Request("https://kubernetes.default.svc" + path, headers=headers)
    print(urllib.request.urlopen(asked, context=trust).headers["X-Kubernetes-PF-FlowSchema-UID"])
"""
# Prints what a node's image must not have: what installs packages, and the operator.
FORBIDDEN = """
import os
forbidden = {"pip", "ensurepip", "setuptools", "kopf", "delayoperator", "delaylocal", "delayrebalance"}
for top in "/usr", "/opt":
    for folder, folders, _ in os.walk(top):
        for name in forbidden.intersection(folders):
            print(os.path.join(folder, name))
"""


def delayctl(kube: Kubectl, namespace: str, pod: str, *argv: str) -> str:
    return kube("exec", pod, "--namespace", namespace, "--", "delayctl", "--endpoint", *argv, seconds=90)


@pytest.mark.quick
def test_install_with_no_values_first_message_delete_uninstall(
    operator: Release, kube: Kubectl, namespace: str, figure: Callable[..., None]
) -> None:
    """The five-minute start: every command is the example's own, and nothing but volumes and definitions stays."""
    operator.test()
    began = time.monotonic()
    kube("apply", "--namespace", namespace, "-f", str(EXAMPLES / "minimal.yaml"))
    wait = ("wait", "--for=condition=Ready", "delaycluster/hello", f"--timeout={READY_SECONDS:g}s")
    kube(*wait, "--namespace", namespace, seconds=READY_SECONDS + 10)
    ready = time.monotonic() - began
    produce = ("produce", "greetings", "--delay", "2s", "--body", "hello, later")
    delayctl(kube, namespace, "hello-0", "hello-client:7070", *produce)
    consume = ("consume", "greetings", "--group", "me", "--count", "1", "--timeout", "30")
    told = delayctl(kube, namespace, "hello-0", "hello-client:7070", *consume)
    assert "hello, later" in told
    figure(ready_s=round(ready, 1))
    assert kube("exec", "hello-0", "--namespace", namespace, "--", "python", "-c", FORBIDDEN) == ""

    kube.delete("delaycluster", "hello", namespace)
    owned = "delaycluster.io/cluster=hello"

    def left() -> list[str]:
        return kube("get", ",".join(OWNED), "--namespace", namespace, "--selector", owned, "-o", "name").split()

    wait_until("everything that it owned is gone", left, GONE_SECONDS)
    volumes = kube("get", "pvc", "--namespace", namespace, "-o", "name").split()
    assert len(volumes) == 3, f"the volumes survive the cluster: {volumes}"

    operator.uninstall()
    wait_until(
        "the release is gone",
        lambda: kube("get", "all", "--namespace", operator.namespace, "-o", "name").split(),
        GONE_SECONDS,
    )
    assert kube.exists("crd", "delayclusters.delaycluster.io"), "the definitions, and so all DelayClusters, stay"


def test_uninstalled_operator_leaves_the_data_plane_running(
    cluster: ClusterUnderTest, operator: Release, load: Load, kept: Callable[..., Result]
) -> None:
    """And so does the one that is installed after it: neither stops a message."""
    time.sleep(CALM_SECONDS)
    before = {node: pod["metadata"]["uid"] for node, pod in cluster.pods().items()}
    operator.uninstall()
    time.sleep(AWAY_SECONDS)
    assert not operator.pods()
    assert {node: pod["metadata"]["uid"] for node, pod in cluster.pods().items()} == before
    operator.install()
    cluster.wait_whole()
    assert {node: pod["metadata"]["uid"] for node, pod in cluster.pods().items()} == before, "nor does its return"
    stood = kept().longest("delivered", range(4))
    assert stood < AWAY_SECONDS / 2, f"deliveries stood still for {stood} s"


@pytest.mark.quick
def test_the_order_timeout_application_works_as_it_is(operator: Release, kube: Kubectl, namespace: str) -> None:
    kube("apply", "--namespace", namespace, "-k", str(EXAMPLES / "order-timeout"))
    wait = ("wait", "--for=condition=Ready", "delaycluster/orders", f"--timeout={READY_SECONDS:g}s")
    kube(*wait, "--namespace", namespace, seconds=READY_SECONDS + 10)
    faster = ("PAYMENT_TIMEOUT=3s", "ORDER_EVERY_S=0.2", "PAID_SHARE=0.5")
    kube("set", "env", "deployment/shop", "--namespace", namespace, *faster)

    def missing() -> list[str]:
        log = ("logs", "--namespace", namespace, "--tail=500")
        shop = kube(*log, "deployment/shop", check=False)
        timeouts = kube(*log, "--selector=app.kubernetes.io/name=timeouts", check=False)
        seen = {json.loads(line)["event"] for line in (shop + timeouts).splitlines() if line.startswith('{"event"')}
        return sorted({"placed", "paid", "cancelled"} - seen)

    wait_until("orders are placed, paid and cancelled", missing, 120)


def test_topics_of_several_owners_live_side_by_side(operator: Release, kube: Kubectl, namespace: str) -> None:
    folder = EXAMPLES / "two-owners"
    owners = {"platform": "cluster.yaml", "team-orders": "team-orders.yaml", "team-billing": "team-billing.yaml"}
    for owner, file in owners.items():
        way = ("apply", "--server-side", f"--field-manager={owner}", "--namespace", namespace)
        kube(*way, "-f", str(folder / file))
    topics = kube.get("delaycluster", "shared", namespace)["spec"]["topics"]
    assert [topic["name"] for topic in topics] == ["order-timeouts", "invoices", "dunning"]
    theirs = (folder / "team-orders.yaml").read_text().replace("queues: 8", "queues: 9")
    told = kube.refused(
        *("apply", "--server-side", "--field-manager=team-billing", "--namespace", namespace, "-f", "-"), stdin=theirs
    )
    assert 'conflict with "team-orders"' in told
    ClusterUnderTest(kube, "shared", namespace).wait_whole()


@pytest.mark.quick
def test_the_production_example_is_accepted(operator: Release, kube: Kubectl, namespace: str) -> None:
    kube("apply", "--dry-run=server", "--namespace", namespace, "-f", str(EXAMPLES / "production.yaml"))


def test_the_production_example_runs_as_it_is_on_five_machines(
    operator: Release, kube: Kubectl, namespace: str, figure: Callable[..., None]
) -> None:
    if (workers := len(kube.workers())) < 5:
        pytest.skip(f"it wants five machines, here are {workers}")
    cluster = ClusterUnderTest(kube, "production", namespace)
    kube("apply", "--namespace", namespace, "-f", str(EXAMPLES / "production.yaml"))
    ready = cluster.wait_whole()
    assert len({pod["spec"]["nodeName"] for pod in cluster.pods().values()}) == 5, "no two on one machine"
    assert {len(shard.replicas) for shard in cluster.shards()} == {3}
    delayctl(kube, namespace, "production-0", cluster.endpoint, "produce", "webhooks", "--body", "order paid")
    consume = ("consume", "webhooks", "--group", "me", "--count", "1", "--timeout", "30")
    assert "order paid" in delayctl(kube, namespace, "production-0", cluster.endpoint, *consume)
    figure(ready_s=round(ready, 1), shards=len(cluster.shards()))
    cluster.delete()
    wait_until("its pods are gone", lambda: sorted(cluster.pods()), GONE_SECONDS)
    assert len(cluster.claims()) == 5, "its volumes are kept"


def test_volumes_go_with_the_cluster_where_that_is_wished(operator: Release, kube: Kubectl, namespace: str) -> None:
    cluster = ClusterUnderTest(kube, "passing", namespace)
    cluster.apply(nodes=1, replicas=1, storage={"size": "1Gi", "deleteWithCluster": True}, topics=[{"name": "t"}])
    cluster.wait_whole()
    assert set(cluster.claims()) == {"n0"}
    cluster.delete()
    wait_until("its volume is gone", lambda: sorted(cluster.claims()), GONE_SECONDS)


@pytest.fixture
def flow_schema(operator: Release, kube: Kubectl) -> Iterator[str]:
    """The name of the chart's FlowSchema, which the API server has accepted with a priority level that it knows."""
    operator.install("flowSchema.create=true")
    name = f"{operator.deployment['metadata']['name']}-{operator.namespace}"

    def dangling() -> list[str]:
        conditions = kube.get("flowschema", name).get("status", {}).get("conditions", ())
        return [] if {"Dangling": "False"} in [{it["type"]: it["status"]} for it in conditions] else [str(conditions)]

    try:
        wait_until("the API server knows its priority level", dangling, AWAY_SECONDS)
        yield name
    finally:
        operator.install()


def dispatched(kube: Kubectl) -> Counter[str]:
    """Requests so far, by the FlowSchema that they matched."""
    found: Counter[str] = Counter()
    for schema, count in DISPATCHED.findall(kube("get", "--raw", "/metrics")):
        found[schema] += int(float(count))
    return found


def test_the_flow_schema_takes_the_requests_of_the_operator_and_what_failovers_wait_for_of_the_nodes(
    flow_schema: str, operator: Release, cluster: ClusterUnderTest, kube: Kubectl, figure: Callable[..., None]
) -> None:
    ours = kube.get("flowschema", flow_schema)["metadata"]["uid"]
    lease = kube.list("leases", cluster.namespace, f"{LABEL}={cluster.name}")[0]["metadata"]["name"]
    asked = {
        (operator.namespace, operator.leader): ("/api/v1/configmaps", f"/apis/{API_VERSION}/delayclusters", "/apis"),
        (cluster.namespace, f"{cluster.name}-0"): (
            f"/apis/coordination.k8s.io/v1/namespaces/{cluster.namespace}/leases/{lease}",
            f"/apis/{API_VERSION}/namespaces/{cluster.namespace}/delayshards",
        ),
    }
    for (namespace, pod), paths in asked.items():
        told = kube("exec", pod, "--namespace", namespace, "--", "python", "-c", WHICH_SCHEMA, *paths).split()
        assert told == [ours] * len(paths), f"{pod}: {paths} match {told}, not {flow_schema}, {ours}"

    before = dispatched(kube)
    operator.restart()
    time.sleep(AWAY_SECONDS)
    found = dispatched(kube) - before
    figure(requests_of_a_restart=found)
    assert found[flow_schema] > found["service-accounts"], "most of what accounts of pods asked for was ours"
