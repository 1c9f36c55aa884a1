"""What operator and nodes cost the API server, and what the API server's other objects cost the operator.

    python -m benchmarks.apirequests nodes [--lease 3] [--idle 60]
    python -m benchmarks.apirequests operator [--clusters 1] [--pods 0] [--config-maps 0] [--lease 3] [--idle 60]

`nodes`: real node processes of one cluster, idle. `operator`: the operator as a process of its own, with clusters of
two nodes that only pretend (tests/operator), among foreign objects of 4 KiB each. Both over the tests' fake API server,
which counts the requests. Figures:

    requests_s                  a second while nothing happens: of one node; of the operator for one cluster
    settled_s                   from the first DelayCluster's creation until all are served and settled
    rss_mib, peak_mib, threads  of the operator's process, at the end of the idle time; peak: since its start
    cpu                         its share of a core while nothing happens
    ended_s                     a container ends: until all that it led have other masters
    silent_s                    a machine stops: likewise; the node lease has to run out
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from delayregistry.model import TopicSpec

from benchmarks.processes import cpu_of, status, until
from tests.kube import fakekinds
from tests.kube.fakeapi import FakeApiServer
from tests.kube.nodes import KubeCluster
from tests.operator.stage import NAMESPACE, Stage

QUEUES = 2
FOREIGN_BYTES = 4_096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["nodes", "operator"])
    parser.add_argument("--clusters", type=int, default=1)
    parser.add_argument("--pods", type=int, default=0, help="foreign ones")
    parser.add_argument("--config-maps", type=int, default=0, help="likewise")
    parser.add_argument("--lease", type=int, default=3, help="seconds")
    parser.add_argument("--idle", type=float, default=60.0, help="seconds")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        if options.what == "nodes":
            found = nodes(Path(directory), options.lease, options.idle)
        else:
            tick_s = 0.3 if options.clusters < 10 else 1.0
            with Stage(Path(directory), tick_s=tick_s) as stage:
                found = operator(stage, options)
    if options.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:>16} {value:10.2f}")


def nodes(directory: Path, lease_s: int, idle_s: float) -> dict[str, float]:
    count = 3
    with FakeApiServer(bookmark_s=60.0) as server:
        os.environ["KUBECONFIG"] = str(server.write_kubeconfig(directory / "kubeconfig"))
        topics = [TopicSpec("t", 6)]
        with KubeCluster(directory / "data", server, nodes=count, topics=topics, lease_seconds=lease_s) as cluster:
            cluster.wait_ready()
            time.sleep(10)
            since_s = time.monotonic()
            time.sleep(idle_s)
            came = Counter((it.agent, it.method) for it in server.requests(since_s=since_s))
            found = {f"{agent} {method}": number / idle_s for (agent, method), number in sorted(came.items())}
            of_nodes = sum(number for (agent, _), number in came.items() if agent == "delaynode")
            return {**found, "requests_s": of_nodes / idle_s / count}


def operator(stage: Stage, options: argparse.Namespace) -> dict[str, float]:
    _add_foreign(stage, options.pods, options.config_maps)
    pid = stage.process().pid
    names = [f"shop{number}" for number in range(options.clusters)]
    began_s = time.monotonic()
    for name in names:
        topics = [{"name": "orders", "queues": QUEUES}]
        stage.create(name, nodes=2, topics=topics, failover={"leaseSeconds": options.lease})
    until(lambda: all(stage.is_settled(name) for name in names))
    found = {"settled_s": time.monotonic() - began_s}
    time.sleep(15)  # what follows from a start is over
    since_s, cpu_s = time.monotonic(), cpu_of(pid)
    time.sleep(options.idle)
    came = Counter(it.method for it in stage.server.requests(since_s=since_s))
    for method, number in sorted(came.items()):
        found[method] = number / options.idle / options.clusters
    found["requests_s"] = sum(came.values()) / options.idle / options.clusters
    found["cpu"] = (cpu_of(pid) - cpu_s) / options.idle
    found["rss_mib"], found["peak_mib"] = status(pid, "VmRSS") / 1024, status(pid, "VmHWM") / 1024
    found["threads"] = status(pid, "Threads")
    found["ended_s"] = _failover(stage, names[0], lambda pod: stage.kubelet.kill(pod))
    until(lambda: stage.is_settled(names[0]))
    time.sleep(5)
    found["silent_s"] = _failover(stage, names[-1], lambda pod: stage.kubelet.frozen.add(pod))
    return found


def _failover(stage: Stage, cluster: str, harm: Callable[[str], None]) -> float:
    """Harms the first queue's master. Seconds until all that it led have another."""

    def specs() -> list[dict[str, Any]]:
        return [stage.there("delayshards", f"{cluster}.orders-{queue}")["spec"] for queue in range(QUEUES)]

    master, since_s = specs()[0]["master"], time.monotonic()
    harm(f"{cluster}-{master.removeprefix('n')}")
    until(lambda: all(spec["master"] != master for spec in specs()), 0.02)
    return time.monotonic() - since_s


def _add_foreign(stage: Stage, pods: int, config_maps: int) -> None:
    text = "x" * FOREIGN_BYTES
    for number in range(pods):
        body = {"metadata": {"name": f"foreign-{number}", "annotations": {"text": text}}, "spec": {}}
        stage.server.store.create(fakekinds.find("pods"), NAMESPACE, body)
    for number in range(config_maps):
        body = {"metadata": {"name": f"foreign-{number}"}, "data": {"text": text}}
        stage.server.store.create(fakekinds.find("configmaps"), NAMESPACE, body)


if __name__ == "__main__":
    main()
