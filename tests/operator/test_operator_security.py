"""spec.security with kopf really running: step by step to Required and back, with certificates and the document."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from cryptography import x509
from delayregistry.security import AuthorizationMode, IssuerKind, SecuritySpec, read_document

from tests.kube import fakekinds
from tests.operator.stage import LEASE, NAMESPACE, Stage

ORDERS = {"name": "orders", "queues": 2}
SECRETS = {"secrets": {"server": "web", "peers": "inner"}}
OPERATOR = f"system:serviceaccount:{LEASE.partition('/')[0]}:operator"


def mode(stage: Stage) -> str:
    return str(stage.there("delayclusters", "shop")["status"].get("security"))


def document(stage: Stage) -> SecuritySpec:
    return read_document(stage.there("configmaps", "shop-security")["data"]["security.json"])


def template(stage: Stage) -> dict[str, Any]:
    found: dict[str, Any] = stage.there("statefulsets", "shop")["spec"]["template"]
    return found


def peers(stage: Stage) -> str:
    arguments = template(stage)["spec"]["containers"][0]["args"]
    return next((it.partition("=")[2] for it in arguments if it.startswith("--peers=")), "off")


def ports(stage: Stage) -> list[str]:
    return [it["name"] for it in stage.there("services", "shop-client")["spec"]["ports"]]


def test_off_to_required_and_back_goes_by_permissive(stage: Stage) -> None:
    stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    assert (mode(stage), peers(stage), ports(stage)) == ("Off", "off", ["grpc", "http"])
    before = len(stage.kubelet.restarts)
    stage.edit(security={"mode": "Required", "certificates": SECRETS})
    stage.until(lambda: peers(stage) == "preferred")
    assert "grpc" in ports(stage)
    stage.until(lambda: mode(stage) == "Required")
    stage.settled()
    assert (peers(stage), ports(stage)) == ("required", ["tokens", "http-tokens"])
    assert len(stage.kubelet.restarts) - before == 2 * 3, "each node once for each step"
    found = document(stage)
    assert (found.authorization, found.super_users) == (AuthorizationMode.REQUIRED, (OPERATOR,))
    assert [(it.kind, it.audience) for it in found.issuers] == [
        (IssuerKind.SERVICE_ACCOUNTS, f"delaycluster.io/{NAMESPACE}/shop")
    ]

    stage.edit(security=None)  # says nothing: it stays as it is
    stage.settled()
    assert (mode(stage), peers(stage)) == ("Required", "required")
    stage.edit(security={"mode": "Off"})  # nobody says any more which Secrets they are
    stage.until(lambda: peers(stage) == "preferred")
    assert {it["secret"]["secretName"] for it in template(stage)["spec"]["volumes"] if "secret" in it} == {
        "web", "inner",
    }  # fmt: skip
    stage.until(lambda: mode(stage) == "Off")
    stage.settled()
    assert (peers(stage), ports(stage)) == ("off", ["grpc", "http"])
    assert document(stage).authorization is AuthorizationMode.OFF


def test_without_certificates_plain_text_stays_and_the_condition_says_why(stage: Stage) -> None:
    stage.kubelet.certificates_lack = True
    stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    stage.edit(security={"mode": "Required", "certificates": SECRETS})
    stage.until(lambda: mode(stage) == "Permissive")
    stage.until(lambda: stage.reason("Degraded") == "SecurityWaits")
    assert "does not offer TLS to other nodes yet" in stage.condition("Degraded")["message"]
    assert (peers(stage), ports(stage)) == ("preferred", ["grpc", "http", "tokens", "http-tokens"])
    stage.edit(security={"mode": "Off"})
    stage.until(lambda: mode(stage) == "Off")
    stage.settled()


def test_cert_manager_is_asked_for_certificates_as_long_as_they_are_wanted(stage: Stage) -> None:
    stage.operator()
    stage.create(topics=[ORDERS], security={"mode": "Permissive", "certificates": {"certManager": {}}})
    stage.settled()
    assert mode(stage) == "Permissive"
    assert stage.names("issuers") == {"shop-ca", "shop-self-signed"}
    assert stage.names("certificates") == {"shop-ca", "shop-server-tls", "shop-peers-tls"}
    stage.edit(security={"mode": "Permissive", "certificates": {"certManager": {"issuerRef": {"name": "public"}}}})
    stage.until(lambda: stage.there("certificates", "shop-server-tls")["spec"]["issuerRef"]["name"] == "public")
    assert stage.there("certificates", "shop-peers-tls")["spec"]["issuerRef"]["name"] == "shop-ca"
    stage.edit(security={"mode": "Off", "certificates": None})
    stage.until(lambda: not stage.names("certificates") | stage.names("issuers"))
    stage.settled()


def _say_ready(plural: str, name: str, ready: str, message: str, stage: Stage) -> None:
    condition = {"type": "Ready", "status": ready, "message": message}
    stage.patch(plural, name, {"status": {"conditions": [condition]}}, "status")


def test_what_cert_manager_says_of_a_certificate_that_nodes_lack_is_in_the_condition(stage: Stage) -> None:
    missing = 'Referenced "Issuer" not found: issuer.cert-manager.io "public" not found'
    stage.kubelet.certificate_problem = "server: tls.crt can't be read"
    stage.operator()
    issuer = {"certManager": {"issuerRef": {"name": "public"}}}
    stage.create(topics=[ORDERS], security={"mode": "Permissive", "certificates": issuer})
    stage.until(lambda: "shop-peers-tls" in stage.names("certificates"))
    for name, ready in (("shop-ca", "True"), ("shop-server-tls", "False"), ("shop-peers-tls", "False")):
        _say_ready("certificates", name, ready, "Issuing certificate as Secret does not exist", stage)
    for revision, why in (("10", missing), ("9", "an older request's")):
        said = {"name": "shop-server-tls", "revision": revision}
        about = {f"cert-manager.io/certificate-{key}": value for key, value in said.items()}
        name = f"shop-server-tls-{revision}"
        made = {"metadata": {"name": name, "annotations": about}, "spec": {}}
        stage.server.store.create(fakekinds.find("certificaterequests"), NAMESPACE, made)
        _say_ready("certificaterequests", name, "False", why, stage)
    stage.until(lambda: missing in stage.condition("Degraded").get("message", ""), lambda: stage.condition("Degraded"))
    said = stage.condition("Degraded")
    assert said["reason"] == "CertificateUnusable"
    assert said["message"].startswith(
        f"Certificate shop-server-tls is not issued: {missing}; "
        "Certificate shop-peers-tls is not issued: Issuing certificate as Secret does not exist; "
    )
    assert "older" not in said["message"]
    assert "shop-ca" not in said["message"]


def test_who_takes_the_jobs_name_is_refused(stage: Stage) -> None:
    stage.operator()
    stage.create(topics=[ORDERS], security={"mode": "Permissive", "certificates": SECRETS}, rebalance={})
    stage.settled()
    job = f"system:serviceaccount:{NAMESPACE}:shop-rebalance"
    assert [it.principal for it in document(stage).users] == [job]


def test_a_new_cluster_that_says_nothing_is_secured_where_cert_manager_is_there(stage: Stage) -> None:
    stage.operator(secure_by_default=True)
    stage.create(topics=[ORDERS])
    stage.settled()
    assert (mode(stage), peers(stage), ports(stage)) == ("Required", "required", ["tokens", "http-tokens"])
    stage.delete("certificates", "shop-server-tls")
    stage.until(lambda: "shop-server-tls" in stage.names("certificates"))
    stage.settled()
    stage.edit(security={"mode": "Off"})
    stage.until(lambda: mode(stage) == "Off")
    stage.edit(security=None)
    stage.settled()
    assert (mode(stage), peers(stage)) == ("Off", "off"), "one that is there stays as it is"


@pytest.mark.parametrize("may_keep_secrets", [True, False], ids=["own CA", "no keys"])
def test_without_cert_manager_a_new_cluster_is_secured_where_the_operator_may_keep_keys(
    stage: Stage, may_keep_secrets: bool
) -> None:
    stage.server.fault(path="/certificates", code=404, times=None)
    stage.operator(secure_by_default=True, may_keep_secrets=may_keep_secrets)
    stage.create(topics=[ORDERS])
    stage.settled()
    wanted = (
        ("Required", "required", ["tokens", "http-tokens"]) if may_keep_secrets else ("Off", "off", ["grpc", "http"])
    )
    assert (mode(stage), peers(stage), ports(stage)) == wanted
    keys = {"shop-ca", "shop-server-tls", "shop-peers-tls"} if may_keep_secrets else set()
    assert stage.names("secrets") == keys
    if not may_keep_secrets:
        return
    authority = x509.load_pem_x509_certificate(content(stage, "shop-ca", "tls.crt"))
    for name in ("shop-server-tls", "shop-peers-tls"):
        assert content(stage, name, "ca.crt") == content(stage, "shop-ca", "tls.crt")
        x509.load_pem_x509_certificate(content(stage, name, "tls.crt")).verify_directly_issued_by(authority)


def content(stage: Stage, secret: str, key: str) -> bytes:
    return base64.b64decode(stage.there("secrets", secret)["data"][key])
