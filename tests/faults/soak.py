"""A long soak: mixed load on a local cluster, nodes killed at random, every promise checked at the end.

    python -m tests.faults.soak --minutes 30
    python -m tests.faults.soak --minutes 10 --nodes 3 --replicas 2 --max-attempts 2 --eager   # segments are emptied

Delays from 0.2 s to 5 s and, for one batch in twenty, up to several minutes; cancels and reschedules; consumers that
acknowledge, give back and forget. Every few seconds it notes each node's resident memory, file descriptors and bytes on
disk; at the end it says how they went, the median of the last third against that of the middle third, delivers all dead
letters once more, and verifies the files that the stopped nodes leave. Exit code 1 when a lease was broken, a file is
damaged, or eager nodes (`eager_node.py`) emptied no segment with a dead letter in it.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delaylocal import LocalCluster
from delaylocal.cluster import NODE_COMMAND
from delayregistry.model import TopicSpec

from tests.faults.support.load import Load, Traffic
from tests.faults.support.trial import check_logs
from tests.serve.support.client import Client, Shard

SAMPLE_SECONDS = 5.0
REDRIVE = pb.ResolveDeadLettersRequest.REDRIVE
EAGER_COMMAND = (sys.executable, "-m", "tests.faults.eager_node")


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at one node's process."""

    second: float  # since the start
    node: str
    pid: int
    age_seconds: float  # of the process
    rss_mib: float
    descriptors: int
    disk_mib: float  # of the node's data directory


def sample(cluster: LocalCluster, second: float) -> list[Sample]:
    found = []
    for node, pid in cluster.pids.items():
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            descriptors = len(os.listdir(f"/proc/{pid}/fd"))
            age = time.time() - Path(f"/proc/{pid}").stat().st_ctime
        except OSError:
            continue  # it has just been killed
        size = sum(_size(Path(at, name)) for at, _, names in os.walk(cluster.data / node) for name in names)
        found.append(
            Sample(round(second, 1), node, pid, round(age, 1), pages * 4096 / 2**20, descriptors, size / 2**20)
        )
    return found


def _size(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512 if path.is_file() else 0
    except OSError:
        return 0  # removed meanwhile


def trend(samples: list[Sample], what: str, seconds: float) -> tuple[float, float, float]:
    """(median of the middle third, of the last third, highest) of processes that are at least a minute old."""
    grown = [one for one in samples if one.age_seconds > 60] or samples
    values: dict[int, list[float]] = defaultdict(list)
    for one in grown:
        values[min(2, int(3 * one.second / seconds))].append(float(getattr(one, what)))
    middle, last = (float(np.median(values[third] or [0])) for third in (1, 2))
    return middle, last, max(max(found, default=0.0) for found in values.values())


def verified(directory: Path) -> bool:
    """Whether `delaynode verify` finds nothing wrong with what the node leaves behind."""
    command = [sys.executable, "-m", "delaynode.main", "verify", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    click.echo(done.stdout.rstrip() + done.stderr.rstrip())
    return done.returncode == 0


@dataclass(frozen=True, slots=True)
class Emptied:
    """By the logs of eager nodes: jobs that emptied segments, RELOCATEs they wrote, dead letters they moved."""

    jobs: int
    relocates: int
    letters: int

    @staticmethod
    def of(cluster: LocalCluster) -> Emptied:
        lines = [line for log in (cluster.data / "logs").glob("n*.log") for line in log.read_text().splitlines()]
        said = [json.loads(line) for line in lines if '"event": "emptied"' in line]
        return Emptied(len(said), sum(one["relocates"] for one in said), sum(one["letters"] for one in said))


def redrive(cluster: LocalCluster, traffic: Traffic) -> int:
    """Deliver every dead letter of group g once more, which reads its body, and acknowledge it; their number."""
    found = 0
    with Client(cluster.endpoints[0]) as client:
        for queue in range(traffic.queues):
            shard = Shard(client, traffic.topic, queue)
            count = shard.call("ResolveDeadLetters", group="g", action=REDRIVE).resolved
            found += shard.ack_all(shard.receive_all(count, seconds=30.0)) if count else 0
    return found


def soak(
    cluster: LocalCluster,
    minutes: float,
    every_s: tuple[float, float] | None,
    traffic: Traffic,
    seed: int,
    drain_s: float = 900.0,
) -> tuple[bool, Emptied]:
    """Whether every promise was kept.

    every_s: kill a node after so many seconds, again and again; None: never. drain_s: seconds that the last messages
    may take to come.
    """
    choose = random.Random(seed)
    samples: list[Sample] = []
    kills = 0
    ended = threading.Event()
    with cluster:
        cluster.wait_ready()
        load = Load(cluster.endpoints, traffic, seed)
        load.start()
        began = time.monotonic()

        def watch() -> None:
            while not ended.wait(SAMPLE_SECONDS):
                now = sample(cluster, time.monotonic() - began)
                samples.extend(now)
                for one in now:
                    click.echo(json.dumps(asdict(one)))

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        end = began + minutes * 60
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, choose.uniform(*every_s) if every_s is not None else left))
            if every_s is None:
                continue
            node = choose.choice(cluster.desired.node_ids)
            try:
                cluster.kill(node)
                kills += 1
            except ProcessLookupError:
                continue
            cluster.wait_ready()
        seconds = time.monotonic() - began
        load.finish(drain_s)
        letters = redrive(cluster, traffic)
        ended.set()
        watcher.join()
        check_logs(cluster)
    broken_files = [node for node in cluster.desired.node_ids if not verified(cluster.data / node)]
    report, emptied = load.ledger.check(), Emptied.of(cluster)
    click.echo(f"soak of {seconds / 60:.1f} min, {cluster.desired.nodes} nodes, kill -9: {kills}; {report}")
    click.echo(f"dead letters delivered once more: {letters}; {emptied}")
    for what, unit in (("rss_mib", "MiB"), ("descriptors", ""), ("disk_mib", "MiB")):
        middle, last, highest = trend(samples, what, seconds)
        click.echo(f"{what} {unit}: middle third {middle:.0f}, last third {last:.0f}, highest {highest:.0f}")
    broken = {what: list(found)[:3] for what, found in report.broken.items() if found}
    if broken:
        click.echo(f"BROKEN: {broken}")
    return not broken_files and not broken, emptied


@click.command()
@click.option("--minutes", default=30.0, show_default=True)
@click.option("--nodes", default=1, show_default=True)
@click.option("--queues", default=4, show_default=True)
@click.option("--kill-every", nargs=2, default=(30.0, 90.0), show_default=True, help="Seconds; 0 0: no kills.")
@click.option("--body", default=2_000, show_default=True, help="Bytes of a body.")
@click.option("--farthest", default=240.0, show_default=True, help="Seconds: the longest delay.")
@click.option("--replicas", default=1, show_default=True)
@click.option("--max-attempts", default=16, show_default=True)
@click.option("--eager", is_flag=True, help="Nodes with tiny segments that empty them at once.")
@click.option("--seed", default=1, show_default=True)
def main(
    minutes: float, nodes: int, queues: int, kill_every: tuple[float, float], body: int, farthest: float,
    replicas: int, max_attempts: int, eager: bool, seed: int,
) -> None:  # fmt: skip
    """Mixed load and random kill -9 for a long time."""
    traffic = Traffic(queues=queues, body_bytes=body, pause_s=0.1, far_share=0.05, far_ms=int(farthest * 1000))
    # segments so small that many go within the soak
    command = EAGER_COMMAND if eager else (*NODE_COMMAND, "--log-segment-mib", "4")
    topic = TopicSpec(traffic.topic, queues, max_attempts=max_attempts)
    with tempfile.TemporaryDirectory(prefix="soak-") as root:
        cluster = LocalCluster(Path(root), nodes=nodes, replicas=replicas, topics=[topic], node_command=command)
        kept, emptied = soak(cluster, minutes, kill_every if max(kill_every) else None, traffic, seed)
    sys.exit(0 if kept and (emptied.letters or not eager) else 1)


if __name__ == "__main__":
    main()
