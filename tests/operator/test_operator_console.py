"""spec.console with kopf really running: it comes, changes and goes; what it lacks is said."""

from __future__ import annotations

from tests.operator.stage import Stage

ORDERS = {"name": "orders", "queues": 2}
CERT_MANAGER = {"mode": "Permissive", "certificates": {"certManager": {}}}
SECRETS = {"mode": "Permissive", "certificates": {"secrets": {"server": "web", "peers": "inner"}}}
KINDS = ("deployments", "services", "serviceaccounts", "networkpolicies", "certificates")


def consoles(stage: Stage) -> dict[str, set[str]]:
    return {plural: {it for it in stage.names(plural) if it.startswith("shop-console")} for plural in KINDS}


def test_a_console_comes_changes_and_goes(stage: Stage) -> None:
    stage.operator()
    stage.create(topics=[ORDERS], security=CERT_MANAGER, networkPolicy={}, console={"image": "console:1"})
    stage.settled()
    restarts = len(stage.kubelet.restarts)
    assert consoles(stage) == {
        **{plural: {"shop-console"} for plural in KINDS}, "certificates": {"shop-console-tls"},
    }  # fmt: skip
    template = stage.there("deployments", "shop-console")["spec"]["template"]["spec"]
    assert template["containers"][0]["image"] == "console:1"
    assert "--allow-changes" not in template["containers"][0]["args"]
    stage.edit(console={"allowChanges": True, "image": None})

    def changed() -> bool:
        (container,) = stage.there("deployments", "shop-console")["spec"]["template"]["spec"]["containers"]
        return "--allow-changes" in container["args"] and container["image"] == "delaycluster-operator:latest"

    stage.until(changed)
    stage.edit(console=None)
    stage.until(lambda: not any(consoles(stage).values()), lambda: consoles(stage))
    stage.settled()
    assert stage.names("services") == {"shop-client", "shop-nodes"}, "no other Service went with it"
    assert len(stage.kubelet.restarts) == restarts


def test_what_a_console_lacks_is_said_and_mended(stage: Stage) -> None:
    stage.operator()
    stage.create(topics=[ORDERS], console={})
    stage.until(lambda: stage.reason("Degraded") == "ConsoleWaits")
    assert "this cluster is Off" in stage.condition("Degraded")["message"]
    stage.edit(security=SECRETS)
    stage.until(lambda: "spec.console.certificateSecret" in stage.condition("Degraded").get("message", ""))
    assert not any(consoles(stage).values())
    stage.edit(console={"certificateSecret": "browsers"})
    stage.until(lambda: bool(stage.names("deployments")))
    stage.until(lambda: stage.reason("Degraded") == "Healthy")


def test_a_provider_that_the_nodes_do_not_know_is_refused_and_a_known_one_is_its_client(stage: Stage) -> None:
    stage.operator()
    issuer = {"issuer": "https://login.example.com", "audience": "delay", "jwksURL": "https://login.example.com/keys"}
    stage.create(
        topics=[ORDERS],
        security={**CERT_MANAGER, "tokens": {"oidc": [issuer]}},
        console={"oidc": {"issuer": "https://login.example.com", "scopes": ["groups"]}},
    )
    stage.until(lambda: bool(stage.names("deployments")))
    (container,) = stage.there("deployments", "shop-console")["spec"]["template"]["spec"]["containers"]
    assert [it for it in container["args"] if "oidc" in it] == [
        "--oidc-issuer=https://login.example.com", "--oidc-client-id=delay", "--oidc-scope=groups",
    ]  # fmt: skip
