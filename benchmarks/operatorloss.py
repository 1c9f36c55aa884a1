"""How long a cluster is without a way to choose masters when the operator that leads is lost.

    python -m benchmarks.operatorloss [--rounds 10] [--lease 5]

Two operators as processes of their own, over the tests' fake API server, and a cluster of three nodes that only pretend
(tests/operator). Seconds, median and worst of the rounds:

    lost_s     the leader is killed and a node with masters falls silent at the same moment, as when the machine under
               both loses power: until all that the node led have other masters
    stopped_s  the leader is told to stop, as by a drain: until another process has the Lease
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

from tests.operator.stage import Stage

CLUSTER, QUEUES = "shop", 12
WARM_S = 6.0  # longer than a node's lease: the standby has watched every node


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--lease", type=int, default=5, help="seconds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, Stage(Path(directory)) as stage:
        for name, seconds in _rounds(stage, options.rounds, options.lease).items():
            print(f"{name:>10} median {statistics.median(seconds):6.2f} worst {max(seconds):6.2f}  {seconds}")


def _rounds(stage: Stage, rounds: int, lease_s: int) -> dict[str, list[float]]:
    stage.process(lease_s)
    _until(stage.leader)
    stage.process(lease_s)
    stage.create(CLUSTER, topics=[{"name": "orders", "queues": QUEUES}])
    found: dict[str, list[float]] = {"lost_s": [], "stopped_s": []}
    for number in range(2 * rounds):
        stage.settled(CLUSTER, 600)
        _until(lambda: "operator-stands-by" in _log(stage, -1))
        time.sleep(WARM_S)
        leader, before = _leader(stage), stage.leader()
        if number % 2:
            leader.terminate()
            found["stopped_s"].append(_until(lambda before=before: stage.leader() not in ("", before)))  # type: ignore[misc]
        else:
            stage.kubelet.frozen.add(f"{CLUSTER}-{_masters(stage)[0].removeprefix('n')}")
            silent = _masters(stage)[0]
            stage.kill(leader)
            found["lost_s"].append(_until(lambda silent=silent: silent not in _masters(stage)))  # type: ignore[misc]
            stage.kubelet.frozen.clear()
        leader.wait()
        stage.process(lease_s)
    return found


def _masters(stage: Stage) -> list[str]:
    return [it["spec"]["master"] for it in stage.server.list("delayshards")]


def _leader(stage: Stage) -> Popen[bytes]:
    """The process whose log says that it is the one that the Lease names."""
    for number, process in enumerate(stage.processes):
        for line in _log(stage, number).splitlines():
            if '"operator-leads"' in line and stage.leader() in line:
                return process
    raise SystemExit("nobody leads")


def _log(stage: Stage, number: int) -> str:
    return (stage.directory / f"operator-{number % len(stage.processes)}.log").read_text()


def _until(true: Callable[[], object]) -> float:
    since_s = time.monotonic()
    while not true():
        time.sleep(0.01)
    return round(time.monotonic() - since_s, 2)


if __name__ == "__main__":
    main()
