"""A long soak: mixed load on a local cluster, nodes killed at random, every promise checked at the end.

    python -m tests.faults.soak --minutes 30

Delays from 0.2 s to 5 s and, for one batch in twenty, up to several minutes; cancels and reschedules; consumers that
acknowledge, give back and forget. Every few seconds it notes each node's resident memory, file descriptors and bytes on
disk; at the end it says how they went, the median of the last third against that of the middle third, and verifies the
files that the stopped nodes leave. Exit code 1 when a promise was broken or a file is damaged.
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
from delaynode.registry.model import TopicSpec
from delayoperator.local import LocalCluster
from delayoperator.local.cluster import NODE_COMMAND

from tests.faults.load import Load, Traffic
from tests.faults.trial import check_logs

SAMPLE_SECONDS = 5.0


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
        size = sum(_size(path) for path in (cluster.data / node).rglob("*"))
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


def soak(
    minutes: float, nodes: int, queues: int, every_s: tuple[float, float], traffic: Traffic, seed: int, root: Path
) -> bool:
    choose = random.Random(seed)
    samples: list[Sample] = []
    kills = 0
    ended = threading.Event()
    # segments so small that many go within the soak
    command = (*NODE_COMMAND, "--log-segment-mib", "4")
    with LocalCluster(root, nodes=nodes, topics=[TopicSpec("t", queues)], node_command=command) as cluster:
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
        while time.monotonic() - began < minutes * 60:
            time.sleep(choose.uniform(*every_s))
            node = choose.choice(cluster.wishes.node_ids)
            try:
                cluster.kill(node)
                kills += 1
            except ProcessLookupError:
                continue
            cluster.wait_ready()
        seconds = time.monotonic() - began
        load.finish(seconds=900)
        ended.set()
        watcher.join()
        check_logs(cluster)
    broken_files = [node for node in cluster.wishes.node_ids if not verified(root / node)]
    report = load.ledger.check()
    click.echo(f"soak of {seconds / 60:.1f} min, {nodes} nodes, kill -9: {kills}; {report}")
    for what, unit in (("rss_mib", "MiB"), ("descriptors", ""), ("disk_mib", "MiB")):
        middle, last, highest = trend(samples, what, seconds)
        click.echo(f"{what} {unit}: middle third {middle:.0f}, last third {last:.0f}, highest {highest:.0f}")
    broken = {what: list(found)[:3] for what, found in report.broken.items() if found}
    if broken:
        click.echo(f"BROKEN: {broken}")
    return not broken_files and not broken


@click.command()
@click.option("--minutes", default=30.0, show_default=True)
@click.option("--nodes", default=1, show_default=True)
@click.option("--queues", default=4, show_default=True)
@click.option("--kill-every", nargs=2, default=(30.0, 90.0), show_default=True, help="Seconds between kills.")
@click.option("--body", default=2_000, show_default=True, help="Bytes of a body.")
@click.option("--farthest", default=240.0, show_default=True, help="Seconds: the longest delay.")
@click.option("--seed", default=1, show_default=True)
def main(
    minutes: float, nodes: int, queues: int, kill_every: tuple[float, float], body: int, farthest: float, seed: int
) -> None:
    """Mixed load and random kill -9 for a long time."""
    traffic = Traffic(queues=queues, body_bytes=body, pause_s=0.1, far_share=0.05, far_ms=int(farthest * 1000))
    with tempfile.TemporaryDirectory(prefix="soak-") as root:
        sys.exit(0 if soak(minutes, nodes, queues, kill_every, traffic, seed, Path(root)) else 1)


if __name__ == "__main__":
    main()
