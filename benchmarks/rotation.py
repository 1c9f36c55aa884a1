"""All certificates and both CAs replaced under load: `python -m benchmarks.rotation [--rate 5000] [--streams 500]`.

At both ends, in three steps, as tests/faults/support/rotation.py does it; the old leaves expire in the last one. Says
what was lost, what callers saw, and the longest pause of a queue.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import click
import numpy as np
from delayregistry.model import TopicSpec

from benchmarks.workloads.machine import describe
from tests.faults.support.failover import FaultCluster, result
from tests.faults.support.rotation import options, rotate
from tests.faults.support.sdkload import SdkLoad, Work

QUEUES = 8


@click.command(help=__doc__)
@click.option("--rate", type=click.IntRange(1), default=5_000, show_default=True, help="Messages/s.")
@click.option("--streams", type=click.IntRange(QUEUES), default=500, show_default=True, help="Of producers.")
@click.option("--nodes", type=click.IntRange(2), default=2, show_default=True)
@click.option("--directory", type=click.Path(exists=True, file_okay=False, path_type=Path), help="On the disk to use.")
def main(rate: int, streams: int, nodes: int, directory: Path | None) -> None:
    work = Work(rate=rate, producers=-(-streams // QUEUES), queues=QUEUES, every_s=1.0, farthest_ms=1_500)
    click.echo(describe(directory or Path(tempfile.gettempdir())))
    desired = {"topics": [TopicSpec("t", QUEUES)], "nodes": nodes, "secure": True}
    with (
        tempfile.TemporaryDirectory(prefix="delay-rotation-", dir=directory) as data,
        FaultCluster(Path(data), options=options, **desired) as cluster,
    ):
        cluster.wait_ready(60.0)
        load, began = SdkLoad(cluster.ways(), work), time.monotonic()
        load.start()
        try:
            rotate(cluster, lambda step: click.echo(f"{time.monotonic() - began:5.1f} s  {step}"))
        finally:
            load.finish()
        found = result("rotation", [], load, time.monotonic() - began)
        longest = max(float(np.diff(times).max()) for times in load.times.acknowledged)
        click.echo(f"{work.producers * QUEUES} streams of {work.producers} producers, half of them by certificate")
        click.echo(f"{found}\nlongest time without an acknowledgement on a queue: {longest:.2f} s")
        raise SystemExit(not found.good)


if __name__ == "__main__":
    main()
