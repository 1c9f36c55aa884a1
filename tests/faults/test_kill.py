"""Nodes killed under load: nothing acknowledged is lost, nothing comes early, nothing cancelled comes at all."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from delaylocal import LocalCluster
from delayregistry.model import Durability, TopicSpec

from tests.faults.support.load import Load, Traffic
from tests.faults.support.trial import (
    CHOOSE,
    I64,
    ROUNDS,
    SEED,
    SHORT,
    check_logs,
    joins,
    pending_columns,
    run,
    stored,
)
from tests.serve.support.client import Client, Failure, Msg, Shard, poll, request, wait_served


def kill_again_and_again(cluster: LocalCluster, rounds: int) -> None:
    """At any moment: under way for a while, just ready, or still recovering."""
    for _ in range(rounds):
        node = CHOOSE.choice(cluster.desired.node_ids)
        if CHOOSE.random() < 0.75:
            cluster.wait_ready()
            time.sleep(0.2 + CHOOSE.random() * 1.3)
        else:
            time.sleep(0.2 + CHOOSE.random())
        try:
            cluster.kill(node)
        except ProcessLookupError:
            time.sleep(0.1)


def test_a_node_killed_ten_times_under_load(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, nodes=1, topics=[TopicSpec("t", 4)]) as cluster:
        run("kill -9", cluster, Traffic(), lambda: kill_again_and_again(cluster, ROUNDS))


def test_a_killed_node_that_syncs_nothing_loses_nothing_either(tmp_path: Path) -> None:
    """Async: the page cache outlives a process."""
    topics = [TopicSpec("t", 4)]
    with LocalCluster(tmp_path, nodes=1, topics=topics, durability=Durability.ASYNC) as cluster:
        run("kill -9, Async", cluster, SHORT, lambda: kill_again_and_again(cluster, max(2, ROUNDS // 4)))


def test_random_nodes_of_three_killed_under_load(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, nodes=3, topics=[TopicSpec("t", 6)]) as cluster:
        traffic = replace(SHORT, queues=6, pause_s=0.06)
        run("kill -9, 3 nodes", cluster, traffic, lambda: kill_again_and_again(cluster, max(3, ROUNDS // 2)))


def test_killed_while_it_writes_checkpoints(tmp_path: Path) -> None:
    """Much pending, far ahead: the kills fall into the flushes of each shard's index, and into their repetition."""
    batch, batches = 10_000, 8
    with LocalCluster(tmp_path, nodes=1, topics=[TopicSpec("t", 16)]) as cluster:  # of 16, each flushes at 65,536 units
        cluster.wait_ready()
        load = Load(cluster.endpoints, replace(SHORT, queues=2, streams=1, producers=1), SEED)
        load.start()
        far = request("t", 0, [Msg(b"x" * 16, delay_ms=1)] * batch, producer=99)
        far.time = np.random.default_rng(SEED).integers(60_000, 39 * 86_400_000, batch).astype("<i8").tobytes()
        answers: dict[int, list[tuple[int, I64]]] = {queue: [] for queue in range(2, 8)}
        with Client(cluster.endpoints[0]) as client:
            for far.number in range(batches):
                for far.queue in answers:
                    data = far.SerializeToString()
                    while isinstance(answer := client.attempt("Enqueue", data), Failure):
                        time.sleep(0.05)
                    answers[far.queue].append(stored(answer))
                for _ in range(max(2, ROUNDS // 4) if far.number >= 6 else 0):
                    time.sleep(CHOOSE.random() * 0.6)
                    cluster.kill("n0")
                    cluster.wait_ready()
            load.finish()
            wait_served(cluster)
            report = load.ledger.check()
            print(f"\nkill -9 during checkpoints: {report}")
            assert not any(report.broken.values()), report.broken
            for queue, found in answers.items():
                shard = Shard(client, "t", queue)
                due = np.concatenate([dues for _, dues in found])
                seq = np.concatenate([first + np.arange(batch) for first, _ in found])
                order = np.lexsort((seq, due))
                listed_due, listed_seq = pending_columns(shard)
                assert np.array_equal(listed_due, due[order])
                assert np.array_equal(listed_seq, seq[order])
                assert shard.wheel().pending == batch * batches
        assert any(path.stat().st_size > 0 for path in tmp_path.rglob("timerlog/*")), "no shard has flushed"
        check_logs(cluster)


def test_killed_while_it_makes_its_shards(tmp_path: Path) -> None:
    """The very first starts, cut off anywhere: half a directory, half a term must not be taken for whole ones."""
    queues = 64
    with LocalCluster(tmp_path, nodes=1, topics=[TopicSpec("t", queues)]) as cluster:
        log = tmp_path / "logs" / "n0.log"
        for start in range(1, 5):
            poll(f"start {start}", lambda: log.exists() and log.read_text().count('"started"') == start, 30)  # noqa: B023
            time.sleep(CHOOSE.random() * 0.3)
            cluster.kill("n0")
            print(f"killed with {len(list(tmp_path.rglob('shard.json')))} shards made")
        cluster.wait_ready()
        with Client(cluster.endpoints[0]) as client:
            for queue in range(queues):
                shard = Shard(client, "t", queue)
                poll("it is served", lambda: joins(shard), 10)  # noqa: B023
                shard.send(Msg(b"%d" % queue))
                (one,) = shard.receive(wait_ms=5_000)
                assert (one.offset, one.body) == (0, b"%d" % queue)
        check_logs(cluster)
