"""The process around it: what it is told, what it tells Prometheus and the kubelet, and what a node leaves behind."""

from __future__ import annotations

import asyncio
import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from delaynode.main import note_incarnation
from delayoperator.__main__ import DEFAULT_IMAGE, Options
from delayoperator.cluster.ended_processes import incarnation_of
from delayoperator.metrics import OperatorCollector, registry_of
from prometheus_client import generate_latest

from tests.operator.stage import Stage


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Options((), DEFAULT_IMAGE, "[::]:8080")),
        ({"WATCH_NAMESPACE": " a, b ,a,"}, Options(("a", "b"))),
        ({"WATCH_NAMESPACE": "", "DELAYNODE_IMAGE": "x:1", "OPERATOR_HTTP": "[::]:1"}, Options((), "x:1", "[::]:1")),
    ],
)
def test_what_the_environment_says(environment: dict[str, str], expected: Options) -> None:
    assert Options.from_environment(environment) == expected


def test_a_security_context_is_an_object_as_json() -> None:
    name = "DELAYNODE_POD_SECURITY_CONTEXT"
    assert Options.from_environment({name: '{"fsGroup": 7}'}).pod_security == {"fsGroup": 7}
    assert Options.from_environment({name: "{}"}).pod_security == {}
    assert Options.from_environment({name: ""}).pod_security is None
    for bad, says in (("{", "is no JSON"), ("[]", "an object is wanted"), ("7", "an object is wanted")):
        with pytest.raises(ValueError, match=f"^{name} is .*{says}"):
            Options.from_environment({name: bad})


def test_metrics_of_their_own_need_certificates() -> None:
    given = {"OPERATOR_METRICS": "[::]:8443", "OPERATOR_METRICS_CERTIFICATES": "/certs"}
    found = Options.from_environment(given)
    assert (found.metrics, found.metrics_certificates) == ("[::]:8443", "/certs")
    with pytest.raises(ValueError, match="OPERATOR_METRICS needs OPERATOR_METRICS_CERTIFICATES"):
        Options.from_environment({"OPERATOR_METRICS": "[::]:8443"})


def test_prometheus_is_told_of_each_cluster(stage: Stage) -> None:
    running = stage.operator()
    stage.create(topics=[{"name": "orders", "queues": 3}])
    stage.settled()
    registry = registry_of(
        OperatorCollector(running.operator.clusters, running.operator.api, running.operator.caches, lambda: True)
    )
    where = 'cluster="shop",namespace="default"'
    # A worker keeps what a round has seen once the round is over, and its status is written before.
    served = f'delay_operator_shards{{{where},state="served"}} 3.0'
    stage.until(lambda: served in generate_latest(registry).decode())
    text = generate_latest(registry).decode()
    assert f'delay_operator_nodes{{{where},state="ready"}} 3.0' in text
    assert f'delay_operator_condition{{{where},reason="Serving",type="Ready"}} 1.0' in text
    assert f"delay_operator_rounds_total{{{where}}}" in text
    assert f"delay_operator_last_look_seconds{{{where}}} " in text
    assert f"delay_operator_failovers_total{{{where}}} 0.0" in text, "first terms are none"
    with stage.kubelet.lock:
        stage.kubelet.kill(stage.there("delayshards", "shop.orders-0")["spec"]["master"].replace("n", "shop-"))
    failed_over = re.compile(rf"delay_operator_failovers_total{{{where}}} [1-3].0")
    stage.until(lambda: failed_over.search(generate_latest(registry).decode()))
    assert 'delay_operator_api_requests_total{verb="apply"}' in text
    assert 'delay_operator_watch_silent_seconds{namespace="",resource="statefulsets"} ' in text


def test_health_and_readiness(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    running = stage.operator()
    stage.create()
    stage.settled()
    address = running.operator.http_address

    def asked(path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{address}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    assert asked("/healthz") == (200, "ok\n")
    assert asked("/readyz") == (200, "ok: leads\n")
    assert asked("/metrics")[0] == 200
    monkeypatch.setattr(running.operator.clusters, "stuck", lambda: ["default/shop: its thread has died"])
    assert asked("/healthz") == (503, "clusters-stuck\n")
    (told,) = (it for it in running.events if it["event"] == "clusters-stuck")
    assert told["clusters"] == ["default/shop: its thread has died"]


def test_a_user_without_a_name_is_enough(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenShift chooses a uid that no /etc/passwd has, and other runtimes than its own write none into it."""

    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 1000650000")

    monkeypatch.setattr("getpass.getuser", nameless)
    running = stage.operator()
    stage.create()
    stage.settled()
    assert not [it for it in running.events if it["event"] == "watching-failed"]


def test_a_node_leaves_its_incarnation_for_the_kubelet(tmp_path: Path) -> None:
    log = tmp_path / "termination-log"
    note_incarnation("00aa", log)
    assert not log.exists(), "outside of a container there is no such file, and none is made"
    log.touch()
    note_incarnation("00aa", log)
    assert incarnation_of(log.read_text()) == "00aa"
    note_incarnation("00bb", tmp_path)  # no file: no harm


def test_credentials_that_are_not_there_yet_are_waited_for() -> None:
    from delayoperator import __main__ as process

    events: list[object] = []

    def missing() -> None:
        raise OSError("no credentials for Kubernetes")

    async def main() -> None:
        stop = asyncio.Event()
        waiting = asyncio.create_task(process._credentials(stop, events.append, missing))  # type: ignore[arg-type]
        await asyncio.sleep(0.1)
        assert not waiting.done()
        stop.set()
        assert await waiting is None

    asyncio.run(main())
    assert events == [{"event": "no-credentials", "error": "no credentials for Kubernetes"}]
