"""The console's objects: what its pod has, and above all what it has not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from delayconsole.cluster_main import CERTIFICATE_S
from delayoperator.resources import ClusterView, build
from delayoperator.resources.console import OIDC_CA, console_objects
from delayoperator.resources.view import ConsoleProvider, ConsoleView, NetworkAccess

from tests.resources.clusters import MINIMAL, SECURED, one, stateful_set

Json = dict[str, Any]
OIDC = ConsoleProvider("https://login.example.com", "delay", ("provider", "client.secret"), ("groups",), "a PEM")
CONSOLE = ConsoleView("operator:1", hosts=("console.example.com",), oidc=OIDC)
SHOWN = replace(SECURED, console=CONSOLE)


def pod(view: ClusterView) -> Json:
    found: Json = one(build(view), "Deployment")["spec"]["template"]["spec"]
    return found


def test_it_has_no_token_and_no_rights_and_no_key_but_that_of_its_own_certificate() -> None:
    spec = pod(SHOWN)
    assert spec["automountServiceAccountToken"] is False
    assert one(build(SHOWN), "ServiceAccount", "orders-console")["automountServiceAccountToken"] is False
    bound = [it for it in build(SHOWN) if it["kind"] == "RoleBinding"]
    assert "orders-console" not in [subject["name"] for it in bound for subject in it["subjects"]]
    assert not [volume for volume in spec["volumes"] if "projected" in volume]
    secrets = {it["secret"]["secretName"]: [item["key"] for item in it["secret"]["items"]]
               for it in spec["volumes"] if "secret" in it}  # fmt: skip
    assert secrets == {
        "orders-console-tls": ["tls.crt", "tls.key"],
        "orders-server-tls": ["ca.crt"],
        "provider": ["client.secret"],
    }


def test_it_is_as_narrow_as_the_nodes_pods() -> None:
    nodes = stateful_set(SHOWN)["spec"]["template"]["spec"]
    spec = pod(SHOWN)
    assert spec["securityContext"] == nodes["securityContext"]
    assert spec["containers"][0]["securityContext"] == nodes["containers"][0]["securityContext"]
    assert spec["containers"][0]["resources"]["limits"]["memory"]


def test_it_is_not_restarted_while_it_waits_for_its_first_certificate() -> None:
    """cert-manager may be making it still: a probe that ends the pod meanwhile makes it come later, by its backoff."""
    (container,) = pod(SECURED)["containers"]
    probe = container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= CERTIFICATE_S + 60


def test_no_selector_of_the_nodes_takes_it_in() -> None:
    labels = one(build(SHOWN), "Deployment")["spec"]["template"]["metadata"]["labels"]
    for kind, name in (("Service", "orders-client"), ("Service", "orders-nodes"), ("PodDisruptionBudget", "orders")):
        selector = one(build(SHOWN), kind, name)["spec"]["selector"]
        assert not selector.get("matchLabels", selector).items() <= labels.items(), name
    assert one(build(SHOWN), "Service", "orders-console")["spec"]["selector"].items() <= labels.items()


def test_its_arguments_say_who_it_is_for_and_nothing_secret() -> None:
    (container,) = pod(SHOWN)["containers"]
    args = container["args"]
    assert "--cluster=default/orders" in args
    assert "--endpoint=orders-client.default.svc:7071" in args
    assert [it for it in args if it.startswith("--host=")] == [
        "--host=console.example.com", "--host=orders-console.default.svc", "--host=orders-console.default",
        "--host=localhost",
    ]  # fmt: skip
    assert "--oidc-client-secret=/etc/delayconsole/oidc/client.secret" in args
    assert "--allow-changes" not in args
    assert container["env"] == [{"name": OIDC_CA, "value": "a PEM"}]
    allowed = replace(SHOWN, console=replace(CONSOLE, allow_changes=True))
    assert "--allow-changes" in pod(allowed)["containers"][0]["args"]


def test_its_certificate_is_of_the_issuer_that_clients_trust_and_for_all_its_names() -> None:
    made = one(build(SHOWN), "Certificate", "orders-console-tls")["spec"]
    assert made["issuerRef"] == one(build(SHOWN), "Certificate", "orders-server-tls")["spec"]["issuerRef"]
    assert made["dnsNames"] == [
        "console.example.com", "orders-console.default.svc", "orders-console.default", "localhost",
    ]  # fmt: skip
    own = replace(SHOWN, console=replace(CONSOLE, certificate="web"))
    assert "orders-console-tls" not in [it["metadata"]["name"] for it in build(own)]
    assert "web" in [it["secret"]["secretName"] for it in pod(own)["volumes"] if "secret" in it]


@pytest.mark.parametrize(
    ("peers", "rules"),
    [
        (None, [{"ports": [{"port": 7190, "protocol": "TCP"}]}]),
        ((), []),
        (
            ({"ipBlock": {"cidr": "10.0.0.0/8"}},),
            [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": [{"port": 7190, "protocol": "TCP"}]}],
        ),
    ],
)
def test_who_reaches_it(peers: tuple[Json, ...] | None, rules: list[Json]) -> None:
    """Everybody, nobody, or who is named; an empty `from` would be everybody again."""
    view = replace(SHOWN, network=NetworkAccess(clients=(), console=peers))
    assert one(build(view), "NetworkPolicy", "orders-console")["spec"].get("ingress", []) == rules
    clients = one(build(view), "NetworkPolicy", "orders-nodes")["spec"]["ingress"][2]["from"]
    labels = one(build(view), "Deployment")["spec"]["template"]["metadata"]["labels"]
    ours = [it["podSelector"] for it in clients if "matchExpressions" in it.get("podSelector", {})]
    assert labels["app.kubernetes.io/component"] in ours[0]["matchExpressions"][0]["values"]


def test_without_tls_there_is_none_and_without_it_nothing_changes() -> None:
    assert console_objects(replace(MINIMAL, console=CONSOLE)) == []
    without = replace(SECURED, console=None)
    assert "Deployment" not in [it["kind"] for it in build(without)]
    template = stateful_set(without)["spec"]["template"]
    assert stateful_set(SHOWN)["spec"]["template"] == template, "no node restarts for a console"
