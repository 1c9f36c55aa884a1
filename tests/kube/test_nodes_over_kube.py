"""Real nodes over a Kubernetes API server under load: killed, while answers are lost, while the server is frozen."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from delayregistry.model import TopicSpec

from tests.faults.support.load import Load
from tests.faults.support.trial import SEED, SHORT, run
from tests.kube.fakeapi import FakeApiServer
from tests.kube.nodes import KubeCluster
from tests.serve.support.client import poll

WORK = replace(SHORT, queues=6, pause_s=0.06)
FROZEN_S = 10.0  # longer than three leases


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApiServer]:
    with FakeApiServer(bookmark_s=5.0) as server:
        monkeypatch.setenv("KUBECONFIG", str(server.write_kubeconfig(tmp_path / "kubeconfig")))
        yield server


@pytest.fixture
def cluster(server: FakeApiServer, tmp_path: Path) -> Iterator[KubeCluster]:
    with KubeCluster(tmp_path / "cluster", server, topics=[TopicSpec("t", WORK.queues)]) as cluster:
        yield cluster


def kill_a_master(cluster: KubeCluster) -> None:
    node, before = sorted(cluster.masters())[0], cluster.epochs()
    cluster.kill(node)
    deadline_s = time.monotonic() + 60
    while cluster.epochs() == before:
        assert time.monotonic() < deadline_s, "nobody took over"
        time.sleep(0.05)


def test_a_killed_master_is_followed_by_another_and_nothing_is_lost(
    server: FakeApiServer, cluster: KubeCluster
) -> None:
    run("kill -9 over Kubernetes", cluster, WORK, lambda: kill_a_master(cluster))
    poll("every term is told", lambda: all(is_told(shard) for shard in server.list("delayshards")))


def is_told(shard: dict[str, Any]) -> bool:
    return bool(shard["status"]["servingEpoch"] == shard["spec"]["epoch"])


def test_a_failover_while_answers_are_lost_and_watches_break_loses_nothing(
    server: FakeApiServer, cluster: KubeCluster
) -> None:
    def harm() -> None:
        server.fault(method="PATCH", path="/delayshards/", drop="after", times=3)
        server.fault(method="PATCH", path="/delayshards/.*/status", drop="before", times=2)
        server.fault(method="PATCH", path="/delayshards/", code=500, times=2)
        server.fault(method="PATCH", path="/leases/", code=429, times=2)
        server.expire_watches()
        kill_a_master(cluster)
        server.break_watches()

    run("kill -9, lost answers", cluster, WORK, harm)


def test_an_api_server_frozen_under_load_costs_nothing_and_nobody_fails_over(
    server: FakeApiServer, cluster: KubeCluster
) -> None:
    acknowledged: list[int] = []

    def freeze() -> None:
        cluster.wait_ready()
        before, pids = cluster.epochs(), cluster.pids
        server.freeze()
        began_s = time.monotonic()
        while time.monotonic() - began_s < FROZEN_S:
            acknowledged.append(len(load.ledger.acknowledged))
            time.sleep(0.5)
        server.thaw()
        time.sleep(6.0)  # the control loop must not take leases that were not renewed for a death either
        assert (cluster.epochs(), cluster.pids) == (before, pids)

    cluster.wait_ready()
    load = Load(cluster.endpoints, WORK, SEED)
    load.start()
    try:
        poll("the load is under way", lambda: len(load.ledger.acknowledged) > 0)
        time.sleep(1.0)
        freeze()
    finally:
        load.finish()
    report = load.ledger.check()
    assert not any(report.broken.values()), report.broken
    longest = max(sum(1 for it in acknowledged if it == count) for count in acknowledged)
    assert acknowledged[-1] > acknowledged[0] + 500
    assert longest <= 5, f"nothing was acknowledged for {longest / 2} s"


def test_an_idle_cluster_of_nodes_writes_nothing_but_leases(server: FakeApiServer, cluster: KubeCluster) -> None:
    cluster.wait_ready()
    poll("it has come to rest", lambda: server.writes(time.monotonic() - 2.0, but=["/leases/"]) == 0, 60)
    began_s, idle_s = time.monotonic(), 6.0
    time.sleep(idle_s)
    assert server.writes(began_s, but=["/leases/"]) == 0
    for agent, most in (("delaynode", 3 * 3.2), ("delaycluster-operator", 6.0)):
        came = [it for it in server.requests(since_s=began_s) if it.agent == agent]
        print(f"\n{agent}: {len(came) / idle_s:.1f} requests/s")
        assert len(came) / idle_s < most


def test_a_node_that_knows_kubernetes_loads_few_of_its_modules() -> None:
    """All of them, with a model of each kind, are some 800, which take more than a second of processor time."""
    code = (
        "import delaynode.main, sys;"
        "from delayregistry.kube.client import Credentials, KubeClient; from kubernetes.client import Configuration;"
        "KubeClient(Credentials(Configuration(host='http://x')), agent='test');"
        "print(sum(name.startswith('kubernetes.') for name in sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert 0 < int(found.stdout) < 100
