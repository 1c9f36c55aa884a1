"""Official clients on three nodes with two copies of each message: a node and a consumer are killed, or nodes restarted
one by one, and every message that was stored arrives, by the consumers that are left."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from delaylocal import LocalCluster
from delaynode.config import EDGE_VARIABLE
from delayregistry.model import TopicSpec

from tests.doors.rocketmq.support.judges import Judge, wait
from tests.doors.rocketmq.support.nodes import EVERYTHING, TRIED_EDGES
from tests.doors.rocketmq.support.wire import now_ms

Start = Callable[..., Judge]
TRIED_LANGUAGES = ["java", "python", "node"] if EVERYTHING else ["python"]


class Sending:
    """Sends until it is stopped, each body until it is stored."""

    def __init__(self, judge: Judge, topic: str) -> None:
        self.stored: list[str] = []
        self.refused = 0
        self._judge, self._topic, self._ended = judge, topic, threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for number in range(1_000_000):
            if self._ended.wait(0.02):
                return
            body, at_ms = f"m{number}", now_ms() + 2_000 if number % 2 else ""
            while self._judge.tell("send", self._topic, body, at_ms, "", "", "", "")[0] != "stored":
                self.refused += 1
            self.stored.append(body)

    def wait_more(self, count: int) -> None:
        """Until so many more are stored."""
        wanted = len(self.stored) + count
        wait(lambda: len(self.stored) >= wanted, f"{wanted} messages are stored", 300, lambda: f"{len(self.stored)}")

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()


def lost(sending: Sending, consumers: list[Judge]) -> set[str]:
    return set(sending.stored) - {one.body for consumer in consumers for one in list(consumer.received)}


@pytest.fixture(params=TRIED_EDGES, autouse=True)
def edge(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the nodes."""
    monkeypatch.setenv(EDGE_VARIABLE, request.param)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("language", TRIED_LANGUAGES)
def test_nothing_is_lost_when_a_node_and_a_consumer_are_killed(tmp_path: Path, judge: Start, language: str) -> None:
    topics = [TopicSpec("t", 3, max_attempts=100)]
    with LocalCluster(tmp_path / "cluster", nodes=3, replicas=2, topics=topics, lease_seconds=2) as cluster:
        cluster.wait_ready(240)
        producer, *consumers = (judge(language, cluster.endpoints[0]) for _ in range(3))
        producer.ask("producer", "t")
        for one in consumers:
            one.ask("push", "t", "g", "*")
        sending = Sending(producer, "t")
        sending.wait_more(25)
        consumers[0].kill()
        os.kill(cluster.pids["n1"], signal.SIGKILL)
        sending.wait_more(200)
        sending.stop()
        wait(lambda: not lost(sending, consumers), "all messages", 300, lambda: repr(lost(sending, consumers)))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("language", TRIED_LANGUAGES)
def test_nothing_is_lost_while_nodes_are_restarted_one_by_one(tmp_path: Path, judge: Start, language: str) -> None:
    topics = [TopicSpec("t", 3, max_attempts=100)]
    with LocalCluster(tmp_path / "cluster", nodes=3, replicas=2, topics=topics, lease_seconds=2) as cluster:
        cluster.wait_ready(240)
        producer, consumer = (judge(language, cluster.endpoints[0]) for _ in range(2))
        producer.ask("producer", "t")
        consumer.ask("push", "t", "g", "*")
        sending = Sending(producer, "t")
        for node in ("n0", "n1", "n2"):
            sending.wait_more(25)
            pid = cluster.pids[node]
            os.kill(pid, signal.SIGTERM)
            wait(lambda of=node, old=pid: cluster.pids.get(of) not in (None, old), f"{node} is back", 120)
            cluster.wait_ready(240)
        sending.wait_more(25)
        sending.stop()
        wait(lambda: not lost(sending, [consumer]), "all messages", 300, lambda: repr(lost(sending, [consumer])))
