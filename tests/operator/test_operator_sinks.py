"""DelaySinks with kopf really running: their objects, what their pods say, 410, and bad specs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from delayoperator.kube import sinks
from delayoperator.metrics import OperatorCollector, registry_of
from delayoperator.resources.names import SINK_PORT
from delayoperator.resources.sink import FILE, selector
from delaysink.settings import read_document
from prometheus_client import generate_latest

from tests.kube import fakekinds
from tests.operator.stage import NAMESPACE, RunningOperator, Stage

Json = dict[str, Any]
SINKS = fakekinds.find("delaysinks")
HTTP = {"url": "https://example.com/hook", "signing": {"secret": {"name": "hook", "key": "key"}}}


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "ASKED_S", 0.4)


def add(stage: Stage, name: str, **spec: Any) -> None:
    made = {"cluster": {"name": "shop"}, "topic": "orders", "http": HTTP, **spec}
    stage.server.store.create(SINKS, NAMESPACE, {"metadata": {"name": name}, "spec": made}, "kubectl")


def ready(stage: Stage, name: str) -> Json:
    conditions = ((stage.get("delaysinks", name) or {}).get("status") or {}).get("conditions") or [{}]
    found: Json = conditions[0]
    return found


def until(stage: Stage, name: str, reason: str) -> Json:
    stage.until(lambda: ready(stage, name).get("reason") == reason, lambda: ready(stage, name))
    return ready(stage, name)


def pod(stage: Stage, sink: str, ip: str, number: int = 0) -> None:
    """As the Deployment's controller and the kubelet would make it."""
    labels = selector("shop", sink)
    body = {"metadata": {"name": f"{sink}-sink-{number}", "labels": labels}, "spec": {"containers": [{"name": "sink"}]}}
    made = stage.server.store.create(fakekinds.find("pods"), NAMESPACE, body, "kubelet")
    stage.patch("pods", made["metadata"]["name"], {"status": {"podIP": ip}}, "status")


@contextmanager
def reporting(ip: str, report: Json) -> Iterator[Json]:
    """What listens at a pod's address and says this."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(report).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer((ip, SINK_PORT), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield report
    finally:
        server.shutdown()
        server.server_close()


def settled(stage: Stage) -> None:
    stage.create(topics=[{"name": "orders", "queues": 2}])
    stage.settled()


def exposed(running: RunningOperator) -> str:
    it = running.operator
    collector = OperatorCollector(it.clusters, it.api, it.caches, lambda: True)
    return generate_latest(registry_of(collector)).decode()


def test_a_sink_gets_its_objects_and_says_what_its_pods_say(stage: Stage) -> None:
    operator = stage.operator()
    settled(stage)
    add(stage, "hooks", replicas=2, deadLetters={"topic": "dead"})
    assert until(stage, "hooks", "Starting")["status"] == "False"
    deployment = stage.there("deployments", "hooks-sink")
    template = deployment["spec"]["template"]["spec"]
    assert (deployment["spec"]["replicas"], template["automountServiceAccountToken"]) == (2, False)
    (container,) = template["containers"]
    assert container["command"] == ["delaysink"]
    assert "--endpoint=shop-client.default.svc:7070" in container["args"]
    secret = next(it["secret"] for it in template["volumes"] if "secret" in it)
    assert secret == {"secretName": "hook", "optional": True, "items": [{"key": "key", "path": "key"}]}
    document = json.loads(stage.there("configmaps", "hooks-sink")["data"][FILE])
    assert read_document(document).dead_letter_topic == "dead", "the process reads what the operator writes"
    assert stage.there("serviceaccounts", "hooks-sink")["automountServiceAccountToken"] is False
    owner = deployment["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["uid"]) == ("DelaySink", stage.there("delaysinks", "hooks")["metadata"]["uid"])

    pod(stage, "hooks", "127.0.77.1", 0)
    pod(stage, "hooks", "127.0.77.2", 1)
    with reporting("127.0.77.1", {"state": "Delivering"}), reporting("127.0.77.2", {"state": "Delivering"}) as second:
        assert until(stage, "hooks", "Delivering")["status"] == "True"
        second.update(state="CircuitOpen", message="10 deliveries in a row failed")
        told = until(stage, "hooks", "CircuitOpen")
        assert (told["status"], "hooks-sink-1: 10 deliveries" in told["message"]) == ("False", True)
        labels = 'cluster="shop",namespace="default",reason="CircuitOpen",sink="hooks"'
        stage.until(lambda: f"delay_operator_sink_ready{{{labels}}} 0.0" in exposed(operator))
        second.update(state="Delivering", message="")
        labels = labels.replace("CircuitOpen", "Delivering")
        stage.until(lambda: f"delay_operator_sink_ready{{{labels}}} 1.0" in exposed(operator))
        second.update(state="ClusterRefuses", message="hooks-sink may not consume orders (PERMISSION_DENIED)")
        assert until(stage, "hooks", "ClusterRefuses")["message"].endswith(
            "A DelayUser with serviceAccounts: [{name: hooks-sink}] needs Consume of topic orders and group hooks, and "
            "Produce to topic dead"
        )
        second.update(state="Delivering", message="")
        until(stage, "hooks", "Delivering")
        before = stage.there("deployments", "hooks-sink")["spec"]["template"]
        stage.patch("delaysinks", "hooks", {"spec": {"http": {"timeout": "20s"}}})
        stage.until(lambda: stage.there("deployments", "hooks-sink")["spec"]["template"] != before)


def test_410_ends_its_pods_until_the_spec_changes(stage: Stage) -> None:
    stage.operator()
    settled(stage)
    add(stage, "hooks")
    until(stage, "hooks", "Starting")
    pod(stage, "hooks", "127.0.77.3")
    with reporting("127.0.77.3", {"state": "Gone", "message": "the receiver answered 410"}) as report:
        told = until(stage, "hooks", "Gone")
        assert "answered 410" in told["message"]
        stage.until(lambda: stage.there("deployments", "hooks-sink")["spec"]["replicas"] == 0)
        report.update(state="Delivering", message="")  # a pod that is just ending changes nothing
        stage.until(lambda: ready(stage, "hooks")["reason"] == "Gone")
        stage.patch("delaysinks", "hooks", {"spec": {"http": {"url": "https://example.com/new"}}})
        stage.until(lambda: stage.there("deployments", "hooks-sink")["spec"]["replicas"] == 1)
        until(stage, "hooks", "Delivering")
    stage.patch("delaysinks", "hooks", {"spec": {"paused": True}})
    until(stage, "hooks", "Paused")
    stage.until(lambda: stage.there("deployments", "hooks-sink")["spec"]["replicas"] == 0)


BAD: list[tuple[Json, str]] = [
    ({"http": {"url": "http://10.0.0.1/"}}, "spec.http.url: 10.0.0.1 is private"),
    ({"http": {"url": "https://example.com/", "timeout": "1h"}}, "spec.http.timeout"),
    ({"http": {"url": "https://example.com/", "allow": ["10.0.0.1/8"]}}, "spec.http.allow"),
    ({"deadLetters": {"topic": "orders"}, "http": {"allow": None, "timeout": None}}, "spec.deadLetters.topic"),
]


def test_a_bad_spec_is_said_and_what_was_there_goes_on(stage: Stage) -> None:
    stage.operator()
    settled(stage)
    add(stage, "hooks")
    until(stage, "hooks", "Starting")
    before = stage.there("deployments", "hooks-sink")["spec"]
    for change, says in BAD:
        stage.patch("delaysinks", "hooks", {"spec": change})
        stage.until(lambda text=says: text in ready(stage, "hooks").get("message", ""), lambda: ready(stage, "hooks"))
        assert ready(stage, "hooks")["reason"] == "InvalidSpec"
    assert stage.there("deployments", "hooks-sink")["spec"] == before


def test_somebody_elses_deployment_is_left_alone(stage: Stage) -> None:
    stage.operator()
    settled(stage)
    body = {"metadata": {"name": "hooks-sink"}, "data": {"mine": "x"}}
    stage.server.store.create(fakekinds.find("configmaps"), NAMESPACE, body, "kubectl")
    add(stage, "hooks")
    assert "ConfigMap hooks-sink" in until(stage, "hooks", "NameTaken")["message"]
    assert stage.there("configmaps", "hooks-sink")["data"] == {"mine": "x"}


def test_what_answers_in_a_pods_place_does_no_harm() -> None:
    assert sinks.ask_pod("127.0.77.9") is None
    for report in ([], "text", {"state": "x" * 300_000}):
        with reporting("127.0.77.8", report):  # type: ignore[arg-type]
            assert sinks.ask_pod("127.0.77.8") is None
