"""Other harm to a node under load: frozen, stopped, without its registry, without room on the disk."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest
from delaylocal import LocalCluster
from delaylocal.cluster import NODE_COMMAND
from delayregistry.model import TopicSpec

from tests.faults.support.trial import CHOOSE, SHORT, run, stored
from tests.serve.support.client import Client, Failure, Msg, Shard, wait_served

LEASE_S = 3.0
HOLD_THE_REGISTRY = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_node_frozen_under_load(tmp_path: Path) -> None:
    """Up to and beyond its lease of 3 s: what came due meanwhile comes late, nothing else."""

    def freeze() -> None:
        for frozen_s in (3.0, 4.5):
            pid = cluster.kill("n0", signal.SIGSTOP)
            time.sleep(frozen_s)
            cluster.kill("n0", signal.SIGCONT)
            time.sleep(0.3)
            cluster.wait_ready()
            time.sleep(0.5)
            assert cluster.pids["n0"] == pid

    with LocalCluster(tmp_path, nodes=1, topics=[TopicSpec("t", 4)]) as cluster:
        run("SIGSTOP", cluster, SHORT, freeze)


def test_a_clean_stop_under_load_again_and_again(tmp_path: Path) -> None:
    def stop() -> None:
        for _ in range(2):
            cluster.wait_ready()
            time.sleep(CHOOSE.random())
            cluster.kill("n0", signal.SIGTERM)
            time.sleep(0.5)

    with LocalCluster(tmp_path, nodes=1, topics=[TopicSpec("t", 4)]) as cluster:
        run("SIGTERM", cluster, SHORT, stop)
        assert "stop-failed" not in (tmp_path / "logs" / "n0.log").read_text()


def test_an_outage_of_the_registry_stops_nothing(tmp_path: Path) -> None:
    """No process can write to it for longer than a lease lasts: messages go in and out as before, no term changes."""

    def hold() -> None:
        """Hold it until some round trips have begun and ended: a node that waited for the registry would end none."""
        program = [sys.executable, "-c", HOLD_THE_REGISTRY, str(tmp_path / "registry.db")]
        with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
            assert holder.stdin is not None
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            began, late = time.monotonic(), []
            with Client(cluster.endpoints[0]) as client:
                shard = Shard(client, "aside", 0)
                while time.monotonic() < began + LEASE_S + 1 or len(late) < 2:
                    shard.send(Msg(delay_ms=50))
                    (one,) = shard.receive(wait_ms=15_000)
                    shard.ack_all([one])
                    late.append(one.received_ms - one.due_ms)
            holder.stdin.close()
        assert max(late) < 3_000  # a node that waited for it would have been late until it came back

    topics = [TopicSpec("t", 4), TopicSpec("aside", 1)]
    with LocalCluster(tmp_path, nodes=1, topics=topics) as cluster:
        run("registry held", cluster, SHORT, hold)
        assert {shard.spec.epoch for shard in cluster.registry.list_shards()} == {1}
        assert len(cluster.pids) == 1


def test_a_disk_that_takes_no_more_stops_the_shard_and_takes_back_nothing(tmp_path: Path) -> None:
    """A log file that can't grow, as on a full disk: what fails is not acknowledged, what is acknowledged stays."""
    limited = ("/bin/bash", "-c", 'ulimit -f 6000; exec "$0" "$@"', *NODE_COMMAND)  # KiB a file; no signal in Python
    acknowledged = 0

    def batch(shard: Shard, number: int) -> bytes:
        messages = [Msg(b"x" * 100_000, delay_ms=60_000)] * 5
        return shard.request(*messages, producer=1, number=number).SerializeToString()

    with LocalCluster(tmp_path, nodes=1, topics=[TopicSpec("t", 2)], node_command=limited) as cluster:
        wait_served(cluster)
        with Client(cluster.endpoints[0]) as client:
            full, other = Shard(client, "t", 0), Shard(client, "t", 1)
            while isinstance(answer := full.client.attempt("Enqueue", batch(full, acknowledged)), bytes):
                acknowledged += 1
            assert (answer.code, answer.reason) == (grpc.StatusCode.DATA_LOSS, "SHARD_DAMAGED")
            assert "File too large" in answer.message
            with pytest.raises(
                Failure, match=r"SHARD_DAMAGED: shard t-0 (has stopped|can't be served): .*File too large"
            ):
                full.receive()
            assert other.send(Msg(delay_ms=60_000)).seqs == [0]  # the node's other shards go on
    assert acknowledged > 5
    with LocalCluster(tmp_path) as cluster:
        wait_served(cluster)
        with Client(cluster.endpoints[0]) as client:
            full = Shard(client, "t", 0)
            again, _ = stored(client.raw("Enqueue", batch(full, acknowledged)))
            assert again == 5 * acknowledged
            assert full.stored() == (5 * (acknowledged + 1), 0)  # whether the last try had been stored or not
            assert Shard(client, "t", 1).stored() == (1, 0)
