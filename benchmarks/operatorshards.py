"""The operator with many DelayShards: how long it takes to converge, what it needs, what it costs when nothing happens.

    python -m benchmarks.operatorshards [--shards 1000] [--nodes 5] [--idle 60] [--json]

The operator is its own process, over the tests' fake API server and nodes that only pretend (tests/operator): what is
measured is the operator, and the machine has the API server and the nodes besides. Figures:

    made_s, served_s, whole_s   from the DelayCluster's creation until all shards exist, are served, have their copies
    failover_s                  a node's container ends: until all that it led have other masters
    rss_mib, cpu_s              of the operator's process
    idle_*                      a quiet time: writes, requests, CPU
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.kube import fakekinds
from tests.operator.stage import Stage

TICKS_OF = 100  # clock ticks a second in /proc
_SHARDS = fakekinds.find("delayshards")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument("--idle", type=float, default=60.0, help="seconds")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, Stage(Path(directory), tick_s=0.3) as stage:
        found = measure(stage, options.shards, options.nodes, options.idle)
    if options.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:>16} {value:10.2f}")


def measure(stage: Stage, shards: int, nodes: int, idle_s: float) -> dict[str, float]:
    pid = stage.process().pid
    found: dict[str, float] = {"shards": shards, "nodes": nodes}
    began_s = time.monotonic()
    stage.create(nodes=nodes, topics=[{"name": "orders", "queues": shards}], failover={"leaseSeconds": 10})

    def field(name: str) -> int:
        return int((stage.get("delayclusters", "shop") or {}).get("status", {}).get(name, 0))

    for name, true in (
        ("made_s", lambda: len(stage.server.store.list(_SHARDS)[0]) == shards),
        ("served_s", lambda: field("servedShards") == shards),
        ("whole_s", stage.is_settled),
    ):
        _until(true)
        found[name] = time.monotonic() - began_s
    found["rss_mib"], found["cpu_s"] = _rss_mib(pid), _cpu_s(pid)
    time.sleep(15)  # what follows from a start is over
    since_s, cpu_s = time.monotonic(), _cpu_s(pid)
    time.sleep(idle_s)
    found["idle_s"] = idle_s
    found["idle_writes"] = stage.server.writes(since_s)
    found["idle_requests"] = len(stage.server.requests(since_s=since_s))
    found["idle_cpu_s"] = _cpu_s(pid) - cpu_s
    before = {it["metadata"]["name"]: it["spec"] for it in stage.server.list("delayshards")}
    led = [name for name, spec in before.items() if spec["master"] == "n1"]
    since_s = time.monotonic()
    stage.kubelet.kill("shop-1")

    def taken() -> bool:
        now = {it["metadata"]["name"]: it["spec"] for it in stage.server.list("delayshards")}
        return all(now[name]["epoch"] > before[name]["epoch"] for name in led)

    _until(taken)
    found["failed_over"], found["failover_s"] = len(led), time.monotonic() - since_s
    _until(stage.is_settled)
    found["rss_after_mib"] = _rss_mib(pid)
    return found


def _until(true: Callable[[], object], timeout_s: float = 600.0) -> None:
    until_s = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > until_s:
            raise SystemExit(f"not so after {timeout_s:.0f} s")
        time.sleep(0.2)


def _rss_mib(pid: int) -> float:
    line = next(it for it in Path(f"/proc/{pid}/status").read_text().splitlines() if it.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_OF


if __name__ == "__main__":
    main()
