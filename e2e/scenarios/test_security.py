"""spec.security: from Off to Required step by step, under load, with certificates in Secrets and tokens of pods."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from delayapi.proto.delay.v1 import delay_pb2 as pb
from prometheus_client.parser import text_string_to_metric_families

from e2e.harness.delaycluster import API_VERSION, ClusterUnderTest
from e2e.harness.forwards import forwarded_port
from e2e.harness.helm import Release
from e2e.harness.kubectl import Failed, Kubectl, Object, wait_until
from e2e.harness.load import CALM_SECONDS, Load, Result, TokenPod
from tests.security.authority import Authority, Issued

QUEUES = 4
TOPICS = [{"name": name, "queues": QUEUES} for name in ("orders", "plain")]  # one for each load
CERTIFICATES = {"secrets": {"server": "web", "peers": "inner"}}
STEP_SECONDS = 240
IN_FORCE_SECONDS = 10.0  # what it is on a quiet machine the figures say
PAUSE_SECONDS = 5.0  # of a queue at a handover; what it is on a quiet machine the figures say


def secret(name: str, issued: Issued, ca: Authority) -> Object:
    content = {"tls.crt": issued.chain_pem, "tls.key": issued.key_pem, "ca.crt": ca.pem}
    data = {key: base64.b64encode(value).decode() for key, value in content.items()}
    return {
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": {"name": name}, "data": data,
    }  # fmt: skip


def user(account: str) -> Object:
    everything: list[Object] = [
        {"operations": ["Produce", "Cancel", "Browse"], "topic": {"literal": "orders"}},
        {"operations": ["Consume", "ManageGroup"], "topic": {"literal": "orders"}, "group": {"prefix": ""}},
    ]
    spec = {"cluster": {"name": "acts"}, "serviceAccounts": [{"name": account}], "rules": everything}
    return {"apiVersion": API_VERSION, "kind": "DelayUser", "metadata": {"name": account}, "spec": spec}


@pytest.fixture
def secured(operator: Release, kube: Kubectl, namespace: str) -> ClusterUnderTest:
    """A cluster without TLS, the Secrets that it may have it from, and two accounts: `shop` has rights."""
    cluster = ClusterUnderTest(kube, "acts", namespace)
    listeners, inner = Authority("listeners"), Authority("inner")
    name, node = f"acts-client.{namespace}.svc", f"spiffe://delaycluster/ns/{namespace}/cluster/acts/role/node"
    accounts = [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": it}} for it in ("shop", "stranger")]
    kube.apply(
        secret("web", listeners.issue(name), listeners),
        secret("inner", inner.issue(name, node), inner),
        *accounts,
        user("shop"),
        namespace=namespace,
    )
    cluster.apply(nodes=3, replicas=2, topics=TOPICS, storage={"size": "1Gi"})
    cluster.wait_whole()
    return cluster


def mode(cluster: ClusterUnderTest, wanted: str) -> float:
    """Waits until all nodes have it and the cluster is whole: seconds."""

    def lacks() -> list[str]:
        found = cluster.object.get("status", {}).get("security")
        return [f"status.security: {found}, not {wanted}"] if found != wanted else cluster.unwhole()

    return wait_until(f"security is {wanted}", lacks, STEP_SECONDS)


@pytest.fixture
def loads(secured: ClusterUnderTest, operator: Release, image: str) -> Iterator[Callable[..., Load]]:
    """Starts a load by a listener. shows: None: the plain one."""
    started: list[Load] = []

    def start(topic: str, shows: TokenPod | None) -> Load:
        port = 7070 if shows is None else 7071
        endpoint = f"acts-client.{secured.namespace}.svc:{port}"
        settings: dict[str, Any] = {"endpoints": [endpoint], "topic": topic, "queues": QUEUES, "rate": 200}
        load = Load.start(
            secured.kube, secured.namespace, f"load-{topic}", image, operator.node, shows=shows, **settings
        )
        started.append(load)
        return load

    yield start
    for load in started:
        load.remove()


def token_pod(cluster: ClusterUnderTest, account: str, secret: str = "web") -> TokenPod:
    """secret: whose ca.crt it trusts."""
    name = f"acts-client.{cluster.namespace}.svc"
    return TokenPod(account, f"delaycluster.io/{cluster.namespace}/acts", secret, name)


@pytest.mark.quick
def test_off_to_required_under_load_loses_nothing(
    secured: ClusterUnderTest, loads: Callable[..., Load], figure: Callable[..., None]
) -> None:
    """Clients come without TLS, then by TLS with tokens, and none notices that the nodes change over."""
    plain = loads("plain", None)
    time.sleep(CALM_SECONDS)
    secured.edit(security={"mode": "Permissive", "certificates": CERTIFICATES})
    permissive_s = mode(secured, "Permissive")
    first = plain.finish()
    by_token = loads("orders", token_pod(secured, "shop"))
    time.sleep(CALM_SECONDS)
    secured.edit(security={"mode": "Required"})
    required_s = mode(secured, "Required")
    time.sleep(CALM_SECONDS)
    second = by_token.finish()
    assert_unnoticed(figure, first, second, to_permissive_s=round(permissive_s, 1), to_required_s=round(required_s, 1))

    # Who comes without TLS, or without rights, is told why.
    with pytest.raises(Failed, match="by TLS alone"):
        secured.delayctl("pending", "orders")
    assert secured.delayctl("pending", "orders", "--service-account", "shop", "--json") is not None
    with pytest.raises(Failed, match="may not Describe on topic 'orders'"):
        secured.delayctl("pending", "orders", "--service-account", "stranger")
    # The operator reaches nodes by TLS too: a failover needs their answers.
    victim = secured.victim("orders")
    secured.kube("delete", "pod", f"acts-{victim[1:]}", "--namespace", secured.namespace, "--grace-period=0", "--force")
    secured.wait_whole()


def test_a_right_is_given_and_taken_on_a_connection_that_is_there(
    secured: ClusterUnderTest, figure: Callable[..., None]
) -> None:
    """From `kubectl patch delayuser` to what a node says, over operator and ConfigMap."""
    kube, namespace = secured.kube, secured.namespace
    secured.edit(security={"mode": "Required", "certificates": CERTIFICATES})
    mode(secured, "Required")
    name, audience = f"acts-client.{namespace}.svc", f"delaycluster.io/{namespace}/acts"
    token = kube("create", "token", "shop", "--namespace", namespace, "--audience", audience).strip()
    ca = base64.b64decode(kube.get("secret", "web", namespace)["data"]["ca.crt"])
    rules = user("shop")["spec"]["rules"]
    asked = pb.CheckAccessRequest(operation="Produce", topic="orders").SerializeToString()
    took: dict[bool, list[float]] = {False: [], True: []}
    with (
        forwarded_port(secured, "svc/acts-client", 7071) as port,
        grpc.secure_channel(
            f"127.0.0.1:{port}", grpc.ssl_channel_credentials(ca), [("grpc.ssl_target_name_override", name)]
        ) as channel,
    ):
        check = channel.unary_unary("/delay.v1.DelayService/CheckAccess")

        def allowed() -> bool:
            answer = check(asked, metadata=[("authorization", f"Bearer {token}")], timeout=10)
            return pb.CheckAccessResponse.FromString(answer).allowed

        assert allowed()
        for turn in range(10):
            wanted = turn % 2 == 1
            kube.patch("delayuser", "shop", {"spec": {"rules": rules if wanted else rules[1:]}}, namespace)
            began = time.monotonic()
            while allowed() is not wanted:
                assert time.monotonic() - began < IN_FORCE_SECONDS
                time.sleep(0.01)
            took[wanted].append(round(time.monotonic() - began, 2))
    figure(taken_s=took[False], given_s=took[True])


def test_required_to_off_goes_the_same_way_back_under_load(
    secured: ClusterUnderTest, loads: Callable[..., Load], figure: Callable[..., None]
) -> None:
    secured.edit(security={"mode": "Required", "certificates": CERTIFICATES})
    mode(secured, "Required")
    by_token = loads("orders", token_pod(secured, "shop"))
    time.sleep(CALM_SECONDS)
    secured.edit(security={"mode": "Permissive"})
    mode(secured, "Permissive")
    first = by_token.finish()
    plain = loads("plain", None)
    time.sleep(CALM_SECONDS)
    assert came_plain(secured) > 0, "who still comes without TLS is counted"
    secured.edit(security={"mode": "Off"})
    mode(secured, "Off")
    time.sleep(CALM_SECONDS)
    assert_unnoticed(figure, first, plain.finish())


def test_a_bad_secret_replaces_no_good_one_and_is_told_of(
    secured: ClusterUnderTest, loads: Callable[..., Load], figure: Callable[..., None]
) -> None:
    """A key that is not the certificate's; then a good pair, of another leaf of the same CA."""
    kube, namespace, ca = secured.kube, secured.namespace, Authority("listeners")
    name = f"acts-client.{namespace}.svc"
    good, other = ca.issue(name), ca.issue(name)
    kube.apply(secret("web", good, ca), namespace=namespace)
    secured.edit(security={"mode": "Required", "certificates": CERTIFICATES})
    mode(secured, "Required")
    load = loads("orders", token_pod(secured, "shop"))
    bad = secret("web", good, ca)
    bad["data"]["tls.key"] = secret("web", other, ca)["data"]["tls.key"]
    kube.apply(bad, namespace=namespace)

    def told(wanted: bool) -> list[str]:
        said = [f"{it['reason']}: {it['message']}" for it in secured.object["status"]["conditions"]]
        return [] if any("CertificateUnusable" in it for it in said) is wanted else said

    wait_until("the bad Secret is told of", lambda: told(True), STEP_SECONDS)
    secured.wait_whole()
    kube.apply(secret("web", other, ca), namespace=namespace)
    wait_until("a good one ends that", lambda: told(False), STEP_SECONDS)
    time.sleep(CALM_SECONDS)
    assert_unnoticed(figure, load.finish())


def came_plain(cluster: ClusterUnderTest) -> float:
    """The calls without TLS that no rule allows, which Permissive allows all the same."""
    wanted, count = {"allowed": "true", "reason": "Anonymous"}, 0.0
    for pod in cluster.pods().values():
        path = f"/api/v1/namespaces/{cluster.namespace}/pods/{pod['metadata']['name']}:7170/proxy/metrics"
        for family in text_string_to_metric_families(cluster.kube("get", "--raw", path)):
            found = (it for it in family.samples if it.name == "delay_denied_total")
            count += sum(it.value for it in found if wanted.items() <= it.labels.items())
    return count


def assert_unnoticed(figure: Callable[..., None], *loads: Result, **more: float) -> None:
    """Nothing lost, no error, no pause. Prints the figures."""
    queues = range(QUEUES)
    pauses = {
        f"{name}_s": [it.longest(which, queues) for it in loads]
        for name, which in (("sends", "acknowledged"), ("deliveries", "delivered"))
    }
    acknowledged = [it.totals["acknowledged"] for it in loads]
    figure(**more, **pauses, acknowledged=acknowledged, errors=[it.errors for it in loads])
    for result in loads:
        result.assert_kept()
        assert not result.errors
    assert max(map(max, pauses.values())) < PAUSE_SECONDS
