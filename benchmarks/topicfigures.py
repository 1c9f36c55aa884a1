"""What the figures in DelayTopics' status cost: the operator's question, once a minute, of a node that has all shards.

`python -m benchmarks.topicfigures --shards 100,1000`. Each shard has messages that wait, and a group that is behind.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import click
from delayclient.sync import Consumer, Producer
from delaylocal import LocalCluster
from delayoperator.control_loop.loop import LoopClock
from delayoperator.control_loop.node_access import OperatorAccess
from delayoperator.control_loop.probe import GrpcProber
from delayoperator.kube.topic_loads import TopicLoads
from delayregistry.model import TopicSpec

from benchmarks.processes import cpu_of, until

MESSAGES = 20  # of each shard, spread over two hours
LOOKS = 10
BATCH = 10_000
READY_SECONDS = 300.0
GROUP_SECONDS = 60.0
LOOK_SECONDS = 30.0  # the operator waits for 10


def measure(shards: int) -> dict[str, object]:
    with (
        tempfile.TemporaryDirectory(prefix="topicfigures-") as root,
        LocalCluster(Path(root), nodes=1, topics=[TopicSpec("t", shards)]) as cluster,
    ):
        cluster.wait_ready(READY_SECONDS)
        endpoint, (pid,) = cluster.endpoints[0], cluster.pids.values()
        with Producer(endpoint) as producer:
            delays = [1_000 + 7_200_000 * number // (MESSAGES * shards) for number in range(MESSAGES * shards)]
            for first in range(0, len(delays), BATCH):
                part = delays[first : first + BATCH]
                producer.send_batch("t", [b"x" * 100] * len(part), delay_ms=part)
        with Consumer(endpoint, "t", "g") as consumer:
            consumer.receive(GROUP_SECONDS)  # and it is never acknowledged
        loads, prober, leases = TopicLoads(LoopClock()), GrpcProber(OperatorAccess()), cluster.registry.list_leases()

        def known() -> bool:
            loads.look(leases, prober, LOOK_SECONDS)
            return loads.of("t", shards) is not None

        until(known)
        took, before = [], cpu_of(pid)
        for _ in range(LOOKS):
            began = time.perf_counter()
            assert known(), "the node has not answered in time"
            took.append(time.perf_counter() - began)
        cpu = cpu_of(pid) - before
        found = loads.of("t", shards)
        prober.close()
    assert found is not None
    return {
        "shards": shards,
        "look_ms": round(statistics.median(took) * 1_000),
        "slowest_look_ms": round(max(took) * 1_000),
        "node_cpu_ms": round(cpu / LOOKS * 1_000),
        "pending": found.pending,
        "due": found.due,
        "oldest": found.oldest_ms > 0,
    }


@click.command(help=__doc__)
@click.option("--shards", default="100,1000", show_default=True)
def main(shards: str) -> None:
    for count in shards.split(","):
        click.echo(measure(int(count)))


if __name__ == "__main__":
    main()
