"""`delayctl console --kube` in a browser: nodes and objects through an API server, with the visitor's own identity."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from delayclient.sync import Producer
from delayconsole.pages.sinks import sink_row

from tests.console.support.browser import ConsoleBrowser, chromium, needs_browser, until
from tests.console.support.console_process import running
from tests.console.support.evil import every, harmless
from tests.console.support.kube_world import ALICE, NotingApiServer, PodCluster
from tests.kube.fakekinds import find
from tests.kube.nodes import CLUSTER, NAMESPACE

pytestmark = needs_browser()
PROGRAM = f"delayctl --kube {NAMESPACE}/{CLUSTER}"
REBALANCE = f"{CLUSTER}-rebalance"
HASH = "0123456789ab"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NotingApiServer]:
    """KUBECONFIG names it, as the nodes need it; whose has no token."""
    path = tmp_path_factory.mktemp("nodes") / "kubeconfig"
    with NotingApiServer() as made, pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(made.write_kubeconfig(path)))
        yield made


@pytest.fixture(scope="module")
def cluster(server: NotingApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PodCluster]:
    with PodCluster(tmp_path_factory.mktemp("pods"), server) as made:
        made.wait_ready()
        with Producer(made.endpoints[0]) as producer:
            for number in range(20):
                producer.send("orders", f"body {number}", delay="2h", key=f"k{number}")
        yield made


@pytest.fixture(scope="module")
def kubeconfig(server: NotingApiServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return server.write_kubeconfig(tmp_path_factory.mktemp("alice") / "kubeconfig", token=ALICE)


@pytest.fixture(scope="module")
def chrome() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def without_policy(cluster: PodCluster, kubeconfig: Path, pictures: Path, chrome: Any) -> Iterator[ConsoleBrowser]:
    """The browser heeds no Content-Security-Policy: a script that got into a page would run."""
    with running(["--kube", f"{NAMESPACE}/{CLUSTER}"], {"KUBECONFIG": str(kubeconfig)}) as link:
        made = ConsoleBrowser(chrome, link, pictures, bypass_csp=True)
        yield made
        made.close()


@pytest.fixture(scope="module")
def looking(cluster: PodCluster, kubeconfig: Path, pictures: Path, chrome: Any) -> Iterator[ConsoleBrowser]:
    """A console that is read-only."""
    with running(["--kube", f"{NAMESPACE}/{CLUSTER}"], {"KUBECONFIG": str(kubeconfig)}) as link:
        made = ConsoleBrowser(chrome, link, pictures)
        yield made
        made.close()


@pytest.fixture(scope="module")
def seen(cluster: PodCluster, kubeconfig: Path, pictures: Path, chrome: Any) -> Iterator[ConsoleBrowser]:
    options = ["--kube", f"{NAMESPACE}/{CLUSTER}", "--allow-changes"]
    with running(options, {"KUBECONFIG": str(kubeconfig)}) as link:
        made = ConsoleBrowser(chrome, link, pictures)
        yield made
        made.close()


def drained(server: NotingApiServer) -> dict[str, str]:
    found = server.get("delayclusters", CLUSTER)["metadata"].get("annotations") or {}
    return {name: text for name, text in found.items() if "drain" in name}


def test_pages_show_what_is_behind_the_api_server_and_ask_it_as_the_visitor(
    looking: ConsoleBrowser, server: NotingApiServer
) -> None:
    assert "read-only" in looking.page.inner_text("header")
    assert f"{NAMESPACE}/{CLUSTER}" in looking.page.inner_text("header")
    assert "20 messages wait" in looking.text()
    looking.check("kube-wheel")
    looking.open("/pending?topic=orders")
    assert "20 of orders" in looking.text()
    page = looking.open("/nodes")
    assert [it.inner_text() for it in page.locator("tbody th").all()] == ["n0", "n1", "n2"]
    looking.check("kube-nodes")
    looking.open("/shards/one?shard=orders-0")
    assert looking.command() == f"{PROGRAM} shards list orders"
    looking.check("kube-shard")
    for path in ("/rebalance", "/sinks", "/groups", "/schedules", "/dead-letters"):
        looking.open(path)
        assert looking.errors == []
    looking.open("/audit")
    assert "c-0:" in looking.text(), "whose logs could not be read"
    assert {shown for _, _, shown in server.asked} == {f"Bearer {ALICE}"}
    assert any(path.endswith("/portforward") for _, path, _ in server.asked)


def test_a_read_only_console_changes_nothing_behind_the_api_server(
    looking: ConsoleBrowser, server: NotingApiServer
) -> None:
    page, before = looking.open("/nodes"), len(server.writes)
    page.click("[aria-label='Drain n1']")
    assert "This console is read-only" in looking.text()
    assert looking.command() == f"{PROGRAM} nodes drain n1"
    assert page.locator("button[name=confirmed]").count() == 0
    looking.check("kube-read-only")
    looking.open("/nodes")
    status = page.evaluate(
        """async () => {
          const form = new FormData(document.querySelector("form[action='/nodes/drain']"));
          form.set("confirmed", "1");
          return (await fetch("/nodes/drain", {method: "POST", body: new URLSearchParams(form)})).status;
        }"""
    )
    looking.errors.clear()  # the browser's own line about the status
    assert (status, len(server.writes) - before, drained(server)) == (403, 0, {})


def test_a_shard_gets_another_master_and_a_node_is_emptied_as_the_visitor(
    seen: ConsoleBrowser, server: NotingApiServer
) -> None:
    def shard() -> dict[str, Any]:
        return server.get("delayshards", f"{CLUSTER}.orders-0")

    until(lambda: len(shard()["status"].get("inSync") or ()) == 2, "both copies are in sync")
    before = shard()["spec"]["master"]
    other = next(it for it in shard()["spec"]["replicas"] if it != before)
    seen.open("/shards/one?shard=orders-0").click("text=Switch over")
    done = seen.confirm(f"Let {other} lead orders-0", f"{PROGRAM} shards switchover orders-0")
    assert f"{other} has taken orders-0 over from {before}" in done
    assert shard()["spec"]["master"] == other
    seen.open("/nodes").click("[aria-label='Drain n1']")
    seen.confirm("Empty n1?", f"{PROGRAM} nodes drain n1")
    (asked,) = drained(server).values()
    assert asked.startswith(f"{getpass.getuser()}@"), "whoever runs the console asks for it"
    cluster_kind = find("delayclusters")
    server.store.patch(cluster_kind, NAMESPACE, CLUSTER, {"metadata": {"annotations": dict.fromkeys(drained(server))}})
    assert {identity for _, _, identity in server.asked} == {f"Bearer {ALICE}"}


def test_what_kubernetes_refuses_the_visitor_the_console_can_not_do(
    seen: ConsoleBrowser, server: NotingApiServer
) -> None:
    server.forbidden = {("PATCH", "/delayshards/"), ("GET", "/delayrebalances/"), ("GET", "/delaysinks")}
    try:
        before = server.get("delayshards", f"{CLUSTER}.orders-1")["spec"]["master"]
        page = seen.open("/shards/one?shard=orders-1")
        page.click("text=Switch over")
        page.click("button[name=confirmed]")
        assert "alice may not do that" in seen.text()
        assert server.get("delayshards", f"{CLUSTER}.orders-1")["spec"]["master"] == before
        seen.open("/rebalance")
        assert "may not get delayrebalances: alice may not do that" in seen.text()
        seen.open("/sinks")
        assert "may not list delaysinks: alice may not do that" in seen.text()
        seen.errors.clear()
        seen.check("kube-refused")
    finally:
        server.forbidden = set()


def test_a_plan_is_asked_for_approved_and_stopped_by_annotations(seen: ConsoleBrowser, server: NotingApiServer) -> None:
    """The operator, which takes them up, has its own tests."""
    kind = find("delayrebalances")

    def annotations() -> dict[str, str]:
        return dict(server.get("delayrebalances", REBALANCE)["metadata"].get("annotations") or {})

    def told(state: str) -> None:
        moves = [{"shard": "orders-0", "from": "n0", "to": "n1", "replicas": ["n0", "n1"], "bytes": 0, "messages": 7}]
        plan = {"hash": HASH, "expiresAt": "2100-01-01T00:00:00Z", "moves": moves}
        server.store.patch(kind, NAMESPACE, REBALANCE, {"status": {"state": state, "plan": plan}}, sub="status")

    seen.open("/rebalance").click("main button:text-is('Propose a plan')")
    seen.confirm("propose the moves that spread it?", f"{PROGRAM} rebalance")
    assert server.get("delayrebalances", REBALANCE)["spec"] == {"cluster": CLUSTER}
    told("ProposalReady")
    seen.open("/rebalance").click("main button:text-is('Approve')")
    assert "the operator carries it out" in seen.confirm(f"Carry out plan {HASH}: 1 move?", f"{PROGRAM} rebalance")
    assert annotations() == {"delaycluster.io/approve": HASH}
    told("Rebalancing")
    seen.open("/rebalance").click("main button:text-is('Stop')")
    seen.confirm("Start no more moves of the plan?", f"{PROGRAM} rebalance --stop")
    assert annotations()["delaycluster.io/rebalance"] == "stop"


@every
def test_a_plan_from_elsewhere(without_policy: ConsoleBrowser, server: NotingApiServer, text: str) -> None:
    kind, metadata = find("delayrebalances"), {"name": REBALANCE}
    if not server.list("delayrebalances", NAMESPACE):
        server.store.create(kind, NAMESPACE, {"metadata": metadata, "spec": {"cluster": CLUSTER}})
    move = {"shard": text, "from": text, "to": text, "replicas": [text, "n0"], "bytes": 1, "messages": 7}
    done = {**move, "state": "Failed", "message": text, "reason": text}
    plan = {"hash": text[:100], "expiresAt": "2100-01-01T00:00:00Z", "moves": [move, done]}
    conditions = [{"type": "Ready", "status": "False", "reason": text, "message": text}]
    status = {"state": "ProposalReady", "plan": plan, "conditions": conditions, "message": text}
    server.store.patch(kind, NAMESPACE, REBALANCE, {"status": status}, sub="status")
    without_policy.open("/rebalance")
    harmless(without_policy, text)
    without_policy.page.click("main button:text-is('Approve')")
    harmless(without_policy, text[:100])


def sink(name: str, target: dict[str, Any], reason: str, message: str, **spec: Any) -> dict[str, Any]:
    ready = "True" if reason == "Delivering" else "False"
    return {
        "metadata": {"name": name},
        "spec": {"cluster": {"name": CLUSTER}, "topic": "orders", **target, **spec},
        "status": {
            "replicas": 0 if reason == "Paused" else 1,
            "conditions": [{"type": "Ready", "status": ready, "reason": reason, "message": message}],
        },
    }


def test_sinks_are_shown_as_their_pods_say(seen: ConsoleBrowser, server: NotingApiServer) -> None:
    refused = "10 deliveries in a row failed; one is tried at a time. 503 Service Unavailable"
    sinks = [
        sink("hooks", {"http": {"url": "https://shop.example.com/hooks"}}, "Delivering", "12 a second"),
        sink("held", {"nats": {"subject": "orders.due"}}, "Paused", "spec.paused", paused=True),
        sink("each", {"nats": {"servers": ["nats://a:4222", "nats://b:4222"]}}, "Delivering", ""),
        sink("sick", {"kafka": {"topic": "due"}}, "CircuitOpen", refused, group="retries"),
        {**sink("other", {}, "Delivering", ""), "spec": {"cluster": {"name": "another"}, "topic": "orders"}},
    ]
    for it in sinks:
        status = {"status": it.pop("status")}
        server.store.create(find("delaysinks"), NAMESPACE, it)
        server.store.patch(find("delaysinks"), NAMESPACE, it["metadata"]["name"], status, sub="status")
    page = seen.open("/sinks")
    rows = {row.split("\t")[0]: row.split("\t")[1:] for row in page.locator("tbody tr").all_inner_texts()}
    assert rows == {
        "each": ["orders", "each", "NATS nats://a:4222, nats://b:4222", "yes", "1", "Delivering"],
        "held": ["orders", "held", "NATS orders.due", "no", "0", "Paused: spec.paused"],
        "hooks": ["orders", "hooks", "HTTP https://shop.example.com/hooks", "yes", "1", "Delivering: 12 a second"],
        "sick": ["orders", "retries", "Kafka due", "no", "1", f"CircuitOpen: {refused}"],
    }
    assert seen.command() == f"kubectl -n {NAMESPACE} get delaysinks"
    seen.check("sinks-of-kubernetes")
    page.click("text=retries")
    seen.errors.clear()
    assert "retries" in seen.text()


@every
def test_a_sink_from_elsewhere(without_policy: ConsoleBrowser, server: NotingApiServer, text: str) -> None:
    """Of whatever shape its fields are: the API server's schema is not the console's to trust."""
    kind = find("delaysinks")
    for target in ({"http": {"url": text}}, {"kafka": {"topic": text}}, {"nats": {"servers": [text], "subject": text}}):
        (of,) = target
        made = sink(f"evil-{of}", target, text, text, group=text)
        made["spec"]["topic"] = text
        status = made.pop("status")
        server.store.create(kind, NAMESPACE, made)
        server.store.patch(kind, NAMESPACE, f"evil-{of}", {"status": status}, sub="status")
    try:
        page = without_policy.open("/sinks")
        rows = [row for row in page.locator("tbody tr").all_inner_texts() if row.startswith("evil-")]
        assert len(rows) == 3
        assert all(row.count(text) >= 5 for row in rows), "topic, group, target, reason and message"
        harmless(without_policy, text)
    finally:
        for of in ("http", "kafka", "nats"):
            server.store.delete(kind, NAMESPACE, f"evil-{of}")
    odd = {"metadata": {"name": text}, "spec": {"http": {"url": text}, "topic": [text]}, "status": text}
    assert all(isinstance(it, str) for it in sink_row(odd).values())
