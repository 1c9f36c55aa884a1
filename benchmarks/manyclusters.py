"""How what an operator needs grows with the number of its clusters.

    python -m benchmarks.manyclusters [--clusters 1 10 100] [--lease 3] [--idle 60] [--rounds 3]

For each number an operator as a process of its own, over the tests' fake API server, and clusters of two nodes that
only pretend (tests/operator), each with one topic of two shards with two copies. A column of figures for each:

    settled_s              from the first DelayCluster's creation until all are served and settled
    rss_mib, threads       of the operator's process, at the end of the idle time; peak_mib: at most since its start
    cpu                    its share of a core while nothing happens
    requests_s             a second while nothing happens, the renewals of the nodes not among them
    connections            open sockets, at the end of the idle time
    ended_s, ended_10_s    a container ends in one cluster, in ten at once (where there are so many): until all that
                           they led have begun another term. Median and worst of the rounds, as for
    silent_s, silent_10_s  a machine stops: likewise; the node leases have to run out
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.processes import cpu_of, status, until
from tests.operator.stage import Json, Stage

QUEUES = 2
AT_ONCE = 10  # clusters that fail together
LEASE_SECONDS = 5  # of the election, as in the chart
QUIET_S = 15.0  # what follows from a start or a failover is over


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--lease", type=int, default=3, help="seconds")
    parser.add_argument("--idle", type=float, default=60.0, help="seconds")
    parser.add_argument("--rounds", type=int, default=3, help="of each kind of failover")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for count in options.clusters:
        # As often as real nodes renew their leases: what is measured are the operator's watches of these too.
        with tempfile.TemporaryDirectory() as directory, Stage(Path(directory), tick_s=options.lease * 0.45) as stage:
            found = {"clusters": float(count)}
            measure(stage, found, count, options)
        if options.json:
            print(json.dumps(found), flush=True)
        else:
            print("\n".join(f"{name:>16} {value:10.2f}" for name, value in found.items()), flush=True)


def measure(stage: Stage, found: dict[str, float], count: int, options: argparse.Namespace) -> None:
    pid = stage.process(LEASE_SECONDS).pid
    names = [f"shop{number}" for number in range(count)]
    began_s = time.monotonic()
    for name in names:
        topics = [{"name": "orders", "queues": QUEUES}]
        stage.create(name, nodes=2, topics=topics, failover={"leaseSeconds": options.lease})
    until(lambda: all(stage.is_settled(name) for name in names))
    found["settled_s"] = time.monotonic() - began_s
    time.sleep(QUIET_S)
    since_s, cpu_s = time.monotonic(), cpu_of(pid)
    time.sleep(options.idle)
    found["cpu"] = (cpu_of(pid) - cpu_s) / options.idle
    came = Counter(it.method for it in stage.server.requests(since_s=since_s))
    found |= {method: number / options.idle for method, number in sorted(came.items())}
    found["requests_s"] = came.total() / options.idle
    found["rss_mib"], found["peak_mib"] = status(pid, "VmRSS") / 1024, status(pid, "VmHWM") / 1024
    found["threads"] = status(pid, "Threads")
    found["connections"] = _sockets(pid)
    for some, suffix in ((names[:1], ""), (names[:AT_ONCE], f"_{AT_ONCE}")):
        if suffix and len(some) < AT_ONCE:
            continue
        for what, harm in (("ended", stage.kubelet.kill), ("silent", stage.kubelet.frozen.add)):
            seconds = [_failover(stage, some, harm) for _ in range(options.rounds)]
            found[f"{what}{suffix}_s"] = statistics.median(seconds)
            found[f"{what}{suffix}_worst_s"] = max(seconds)


def _failover(stage: Stage, clusters: Sequence[str], harm: Callable[[str], object]) -> float:
    """Harms the first queue's master of each. Seconds until all that these led are in a new term: a container that has
    ended is back soon, and may be chosen again."""

    def specs(name: str) -> list[Json]:
        return [stage.there("delayshards", f"{name}.orders-{queue}")["spec"] for queue in range(QUEUES)]

    def in_sync(name: str) -> bool:
        shards = [stage.there("delayshards", f"{name}.orders-{queue}") for queue in range(QUEUES)]
        return all(len(it["status"]["inSync"]) == len(it["spec"]["replicas"]) for it in shards)

    until(lambda: all(stage.is_settled(name) and in_sync(name) for name in clusters))
    time.sleep(QUIET_S / 3)
    before = {name: specs(name) for name in clusters}
    since_s = time.monotonic()
    for name, (first, *_) in before.items():
        harm(f"{name}-{first['master'].removeprefix('n')}")

    def is_over(name: str) -> bool:
        pairs = zip(before[name], specs(name), strict=True)
        return all(now["epoch"] > was["epoch"] for was, now in pairs if was["master"] == before[name][0]["master"])

    until(lambda: all(map(is_over, clusters)), 0.02)
    found = time.monotonic() - since_s
    stage.kubelet.frozen.clear()
    return found


def _sockets(pid: int) -> int:
    found = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found += link.readlink().name.startswith("socket:")
    return found


if __name__ == "__main__":
    main()
