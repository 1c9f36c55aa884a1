"""Nodes killed, frozen and restarted under load: nothing acknowledged is lost, nothing comes early, nothing cancelled
comes at all.

DELAY_FAULT_ROUNDS: how often the node is killed in each test (default 10). DELAY_FAULT_SEED: another course of events.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest
from delaynode.registry.model import Durability, TopicSpec
from delayoperator.local import LocalCluster
from delayoperator.local.cluster import NODE_COMMAND
from numpy.typing import NDArray

from tests.faults.checker import Report
from tests.faults.load import Load, Traffic
from tests.serve.client import Client, Failure, Msg, Shard, pb, poll, request

I64 = NDArray[np.int64]
ROUNDS = int(os.environ.get("DELAY_FAULT_ROUNDS", "10"))
SEED = int(os.environ.get("DELAY_FAULT_SEED", "1"))
CHOOSE = random.Random(SEED)
SHORT = Traffic(farthest_ms=2_500)


def run(
    name: str, cluster: LocalCluster, traffic: Traffic, harm: Callable[[], None], settle_s: float = 0.5
) -> tuple[Load, Report]:
    """The load while `harm` does what it does; everything that the checker can say is checked."""
    cluster.wait_ready()
    load = Load(cluster.endpoints, traffic, SEED)
    load.start()
    begin = time.monotonic()
    try:
        time.sleep(settle_s)
        harm()
        cluster.wait_ready()
        time.sleep(settle_s)
    finally:
        load.finish()
    report = load.ledger.check()
    print(f"\n{name}: {time.monotonic() - begin:.0f} s; {report}")
    for what, found in report.broken.items():
        assert not found, f"{what}: {len(found)}, e.g. {found[:3]}"
    assert report.acknowledged > 500
    assert report.cancelled > 0
    check_queue(cluster, load)
    check_logs(cluster)
    return load, report


def check_queue(cluster: LocalCluster, load: Load) -> None:
    """The queue itself, read from its beginning: each message once, none that is cancelled, none left behind."""
    ledger = load.ledger
    with Client(cluster.endpoints[0]) as client:
        found: list[int] = []
        for queue in range(load.traffic.queues):
            shard = Shard(client, load.traffic.topic, queue)
            offset = 0
            while got := shard.fetch(offset, max_messages=5_000):
                found += [int.from_bytes(one.body[:8], "little") for one in got]
                offset = got[-1].offset + 1
            assert shard.stored() == (0, offset)
            assert shard.group().dead == 0
    assert len(found) == len(set(found)), "a message is in a queue twice"
    assert set(found) >= ledger.acknowledged.keys() - ledger.cancelled
    assert not set(found) & ledger.cancelled
    assert set(found) <= ledger.sent


def check_logs(cluster: LocalCluster) -> None:
    for log in sorted((cluster.data / "logs").glob("n*.log")):
        text = log.read_text()
        for sign in ("Traceback", "shard-damaged", "copy-damaged", "reign-refused", "reign-failed", "never retrieved"):
            assert sign not in text, f"{log.name}: {sign} in ...{text[max(0, text.index(sign) - 500) :][:2_000]}"


def kill_again_and_again(cluster: LocalCluster, rounds: int) -> None:
    """At any moment: under way for a while, just ready, or still recovering."""
    for _ in range(rounds):
        node = CHOOSE.choice(cluster.wishes.node_ids)
        if CHOOSE.random() < 0.75:
            cluster.wait_ready()
            time.sleep(CHOOSE.random() * 1.2)
        else:
            time.sleep(0.2 + CHOOSE.random())
        try:
            cluster.kill(node)
        except ProcessLookupError:
            time.sleep(0.1)


def test_a_node_killed_ten_times_under_load(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, nodes=1, topics=[TopicSpec("t", 4)]) as cluster:
        _, report = run("kill -9", cluster, Traffic(), lambda: kill_again_and_again(cluster, ROUNDS))
    assert report.retried_batches > 0, "no kill met a batch between its commit and its answer"


def test_a_killed_node_that_syncs_nothing_loses_nothing_either(tmp_path: Path) -> None:
    """Async: the page cache outlives a process."""
    topics = [TopicSpec("t", 4)]
    with LocalCluster(tmp_path, nodes=1, topics=topics, durability=Durability.ASYNC) as cluster:
        run("kill -9, Async", cluster, SHORT, lambda: kill_again_and_again(cluster, max(2, ROUNDS // 4)))


def test_random_nodes_of_three_killed_under_load(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, nodes=3, topics=[TopicSpec("t", 6)]) as cluster:
        traffic = replace(SHORT, queues=6, pause_s=0.06)
        run("kill -9, 3 nodes", cluster, traffic, lambda: kill_again_and_again(cluster, max(3, ROUNDS // 2)))


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
    """The very first starts, cut off anywhere: half a directory, half a reign must not be taken for whole ones."""
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
                Shard(client, "t", queue).send(Msg(b"%d" % queue))
                (one,) = Shard(client, "t", queue).receive(wait_ms=5_000)
                assert (one.offset, one.body) == (0, b"%d" % queue)
        check_logs(cluster)


def test_a_disk_that_takes_no_more_stops_the_shard_and_takes_back_nothing(tmp_path: Path) -> None:
    """A log file that can't grow, as on a full disk: what fails is not acknowledged, what is acknowledged stays."""
    limited = ("/bin/bash", "-c", 'ulimit -f 6000; exec "$0" "$@"', *NODE_COMMAND)  # KiB a file; no signal in Python
    acknowledged = 0

    def batch(shard: Shard, number: int) -> bytes:
        messages = [Msg(b"x" * 100_000, delay_ms=60_000)] * 5
        return shard.request(*messages, producer=1, number=number).SerializeToString()

    with LocalCluster(tmp_path, nodes=1, topics=[TopicSpec("t", 2)], node_command=limited) as cluster:
        cluster.wait_ready()
        with Client(cluster.endpoints[0]) as client:
            full, other = Shard(client, "t", 0), Shard(client, "t", 1)
            while isinstance(answer := full.client.attempt("Enqueue", batch(full, acknowledged)), bytes):
                acknowledged += 1
            assert (answer.code, answer.reason) == (grpc.StatusCode.DATA_LOSS, "SHARD_DAMAGED")
            assert "File too large" in answer.message
            with pytest.raises(Failure, match="has stopped"):
                full.receive()
            assert other.send(Msg(delay_ms=60_000)).seqs == [0]  # the node's other shards go on
    assert acknowledged > 5
    with LocalCluster(tmp_path) as cluster:
        cluster.wait_ready()
        with Client(cluster.endpoints[0]) as client:
            full = Shard(client, "t", 0)
            again, _ = stored(client.raw("Enqueue", batch(full, acknowledged)))
            assert again == 5 * acknowledged
            assert full.stored() == (5 * (acknowledged + 1), 0)  # whether the last try had been stored or not
            assert Shard(client, "t", 1).stored() == (1, 0)


def stored(answer: bytes) -> tuple[int, I64]:
    """(first seq, dues)"""
    found = pb.EnqueueResponse.FromString(answer)
    return found.first_seq, np.frombuffer(found.due, "<i8")


def pending_columns(shard: Shard) -> tuple[I64, I64]:
    """(due, seq) of all pending messages, in their order."""
    dues, seqs, after = [], [], {"after_due": 0, "after_seq": 0}
    while True:
        page = shard.call("ListPending", limit=10_000, **after)
        dues.append(np.frombuffer(page.due, "<i8"))
        seqs.append(np.frombuffer(page.seq, "<i8"))
        if not page.more:
            return np.concatenate(dues), np.concatenate(seqs)
        after = {"after_due": int(dues[-1][-1]), "after_seq": int(seqs[-1][-1])}


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
