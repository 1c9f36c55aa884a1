"""Other harm to a cluster whose shards have two copies, under load: no control loop to choose masters, a registry that
takes no writes, a disk that fills up under one node."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from delayregistry.model import TopicSpec

from tests.faults.support.failover import FaultCluster
from tests.faults.support.sdkload import SdkLoad
from tests.faults.support.small_disk import SmallDisk, small_disk
from tests.faults.test_handover import WORK, through
from tests.faults.test_outages import HOLD_THE_REGISTRY
from tests.serve.support.client import poll

UNNOTICED_SECONDS = 3.0  # a longer pause than that is one


def longest_pause(load: SdkLoad, since: float, until: float) -> float:
    """The longest time without an acknowledgement or without a delivery, on any queue."""
    return max(
        b - a
        for times in (*load.times.acknowledged, *load.times.delivered)
        for a, b in itertools.pairwise([since, *(at for at in times if since < at < until), until])
    )


def epochs(cluster: FaultCluster) -> dict[str, int]:
    return {one.name: one.spec.epoch for one in cluster.shards()}


def test_without_the_control_loop_the_data_plane_goes_on_and_failover_waits_for_it(tmp_path: Path) -> None:
    with FaultCluster(tmp_path, topics=[TopicSpec("t", WORK.queues)]) as cluster:

        def away(load: SdkLoad) -> None:
            cluster.stop_operator()
            before, began = epochs(cluster), time.monotonic()
            time.sleep(4.0)  # longer than a lease
            assert longest_pause(load, began, time.monotonic()) < UNNOTICED_SECONDS
            node = sorted(cluster.masters())[0]
            mine = {one.spec.queue for one in cluster.masters()[node]}
            cluster.kill(node)
            time.sleep(5.0)
            assert epochs(cluster) == before
            asked = time.monotonic()
            queues = dict(enumerate(load.times.acknowledged))
            poll("the others go on", lambda: all(queues[it][-1] > asked for it in queues.keys() - mine))
            assert all(queues[it][-1] < asked - 2.0 for it in mine), f"{mine} were of {node}"
            cluster.start_operator()

        through(cluster, away)


def test_a_registry_held_for_longer_than_the_lease_stops_nothing(tmp_path: Path) -> None:
    with FaultCluster(tmp_path, topics=[TopicSpec("t", WORK.queues)]) as cluster:

        def hold(load: SdkLoad) -> None:
            before, held_s = epochs(cluster), 6.0
            program = [sys.executable, "-c", HOLD_THE_REGISTRY, str(tmp_path / "registry.db")]
            with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
                assert holder.stdin is not None
                assert holder.stdout is not None
                assert holder.stdout.readline() == b"held\n"
                began = time.monotonic()
                time.sleep(held_s)
                holder.stdin.close()
            time.sleep(4.0)  # nor does anybody take what was not renewed for a death
            assert longest_pause(load, began, time.monotonic()) < UNNOTICED_SECONDS
            assert epochs(cluster) == before

        through(cluster, hold)


def fuller(disk: SmallDisk) -> bool:
    with suppress(OSError):  # the node has taken some of it meanwhile
        disk.leave_free(0)
    return True


def test_a_disk_full_under_one_node_costs_its_shards_a_failover_and_nobody_a_message(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "n1", 400) as disk,
        FaultCluster(tmp_path, topics=[TopicSpec("t", WORK.queues)]) as cluster,
    ):

        def fill(load: SdkLoad) -> None:
            assert "n1" in cluster.masters()
            poll("others lead its shards", lambda: fuller(disk) and "n1" not in cluster.masters(), 40)
            led = time.monotonic()
            poll("all are served", lambda: all(times[-1] > led for times in load.times.acknowledged))
            disk.leave_free(300)
            poll("it has sound copies again", lambda: not cluster.unready(), 60)

        through(cluster, fill, ignored=("shard-damaged", "copy-damaged"))
