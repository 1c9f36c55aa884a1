"""spec.security.certificates.certManager with cert-manager itself: from nothing to Required, renewal, no Issuer.

cert-manager is there for these scenarios alone: with it, a cluster that says nothing is Required.
"""

from __future__ import annotations

import base64
import os
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest
from cryptography import x509

from e2e.cluster.cert_manager import BINARY
from e2e.harness.delaycluster import ClusterUnderTest
from e2e.harness.helm import Release
from e2e.harness.kubectl import Kubectl, Object, wait_until
from e2e.harness.load import CALM_SECONDS, Load
from e2e.scenarios.test_security import QUEUES, STEP_SECONDS, mode, token_pod, user

CERTIFICATES = "certificates.cert-manager.io"
KUBELET_SECONDS = 150.0  # until a Secret that has changed is on the nodes' disks
SERVER, PEERS = "acts-server-tls", "acts-peers-tls"
STORAGE = {"size": "1Gi"}


@pytest.fixture(scope="module", autouse=True)
def cert_manager(kube: Kubectl) -> Iterator[None]:
    if kube.exists("crd", CERTIFICATES):  # somebody else's, who keeps it
        yield
        return
    kubelab = os.environ.get("KUBELAB", "")
    if not kubelab or not BINARY.exists():
        pytest.skip("cert-manager is not there: `make e2e ARGS='--on kubelab --cert-manager'` builds it")
    subprocess.run([kubelab, "cert-manager", "install"], check=True, timeout=300)
    yield
    subprocess.run([kubelab, "cert-manager", "remove"], check=True, timeout=300)


@pytest.fixture
def made(operator: Release, kube: Kubectl, namespace: str) -> Callable[..., ClusterUnderTest]:
    """A cluster of the scenario's own, not waited for."""

    def make(**spec: object) -> ClusterUnderTest:
        cluster = ClusterUnderTest(kube, "acts", namespace)
        topics = [{"name": "orders", "queues": QUEUES}]
        cluster.apply(**{"nodes": 3, "replicas": 2, "topics": topics, "storage": STORAGE, **spec})
        return cluster

    return make


def issued(cluster: ClusterUnderTest, secret: str) -> int:
    """The serial number of the certificate in a Secret."""
    found = cluster.kube.get("secret", secret, cluster.namespace)["data"]["tls.crt"]
    return x509.load_pem_x509_certificate(base64.b64decode(found)).serial_number


def served(cluster: ClusterUnderTest) -> dict[str, int]:
    """By node, the serial number of what its listener for tokens shows."""
    found = {}
    for node, pod in cluster.pods().items():
        pem = ssl.get_server_certificate((pod["status"]["podIP"], 7071), timeout=5)
        found[node] = x509.load_pem_x509_certificate(pem.encode()).serial_number
    return found


def renew(cluster: ClusterUnderTest, name: str) -> None:
    """As `cmctl renew` asks for it."""
    condition: Object = {
        "type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "by the scenario",
        "lastTransitionTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }  # fmt: skip
    there = cluster.kube.get(CERTIFICATES, name, cluster.namespace)["status"]["conditions"]
    patch = {"status": {"conditions": [*(it for it in there if it["type"] != "Issuing"), condition]}}
    cluster.kube.patch(CERTIFICATES, name, patch, cluster.namespace, "status")


def test_a_cluster_that_says_nothing_is_required_and_renewal_loses_nothing(
    made: Callable[..., ClusterUnderTest], operator: Release, image: str, figure: Callable[..., None]
) -> None:
    """No spec.security: cert-manager's keys from the first pod on. It issues them anew under load, without a restart,
    and no client notices."""
    began = time.monotonic()
    cluster = made()
    mode(cluster, "Required")
    required_s = time.monotonic() - began
    account: Object = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "shop"}}
    cluster.kube.apply(account, user("shop"), namespace=cluster.namespace)
    pods = {node: pod["metadata"]["uid"] for node, pod in cluster.pods().items()}
    endpoint = f"acts-client.{cluster.namespace}.svc:7071"
    load = Load.start(
        cluster.kube, cluster.namespace, "load", image, operator.node,
        shows=token_pod(cluster, "shop", SERVER), endpoints=[endpoint], topic="orders", queues=QUEUES, rate=200,
    )  # fmt: skip
    try:
        time.sleep(CALM_SECONDS)
        before = {name: issued(cluster, name) for name in (SERVER, PEERS)}
        for name in before:
            renew(cluster, name)

        def old() -> list[str]:
            kept = [f"{name} is the old one" for name, serial in before.items() if issued(cluster, name) == serial]
            new = issued(cluster, SERVER)
            return kept + [f"{node} shows another" for node, serial in served(cluster).items() if serial != new]

        rotated_s = wait_until("nodes show what cert-manager has issued anew", old, KUBELET_SECONDS)
        time.sleep(CALM_SECONDS)
        result = load.finish()
    finally:
        load.remove()
    queues = range(QUEUES)
    figure(
        required_s=round(required_s, 1), rotated_s=round(rotated_s, 1), acknowledged=result.totals["acknowledged"],
        errors=result.errors, pause_of_sends_s=result.longest("acknowledged", queues),
        pause_of_deliveries_s=result.longest("delivered", queues),
    )  # fmt: skip
    result.assert_kept()
    assert not result.errors
    assert {node: pod["metadata"]["uid"] for node, pod in cluster.pods().items()} == pods, "nothing was restarted"
    cluster.wait_whole()


def test_describe_names_the_issuer_that_is_missing(made: Callable[..., ClusterUnderTest]) -> None:
    """Until it is there; then the cluster serves, and nothing else is to be done."""
    asked = {"mode": "Required", "certificates": {"certManager": {"issuerRef": {"name": "company"}}}}
    cluster = made(nodes=1, replicas=1, security=asked)
    missing = f'Certificate {SERVER} is not issued: Referenced "Issuer" not found'

    def silent() -> list[str]:
        told = cluster.kube("describe", "delaycluster", cluster.name, "--namespace", cluster.namespace)
        return [] if missing in told and '"company" not found' in told else [str(cluster.condition("Degraded"))]

    wait_until("`kubectl describe` says which Issuer is missing", silent, STEP_SECONDS)
    issuer = {"apiVersion": "cert-manager.io/v1", "kind": "Issuer", "metadata": {"name": "company"}}
    cluster.kube.apply({**issuer, "spec": {"ca": {"secretName": "acts-ca"}}}, namespace=cluster.namespace)
    cluster.wait_whole()
    assert cluster.condition("Degraded")["status"] == "False"
