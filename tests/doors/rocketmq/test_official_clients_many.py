"""Official clients by the hundred, and at work for longer than a lease."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest
from delaylocal import LocalCluster

from tests.doors.rocketmq.support.judges import Judge
from tests.doors.rocketmq.support.nodes import EVERYTHING, TRIED_EDGES
from tests.doors.rocketmq.support.wire import now_ms

Start = Callable[..., Judge]
pytestmark = pytest.mark.parametrize("cluster", TRIED_EDGES, indirect=True, scope="session")
LANGUAGES = ["java", "python", "node"]
CONSUMERS, MESSAGES = 100, 300
LEASE_SECONDS = 60


@pytest.mark.skipif(not EVERYTHING, reason="a minute of a hundred clients: DELAY_ROCKETMQ_TESTS=all")
def test_a_hundred_push_consumers_of_one_group_share_its_messages(
    cluster: LocalCluster, topic: str, judge: Start
) -> None:
    producer, consumers = (judge("java", cluster.endpoints[0]) for _ in range(2))
    producer.ask("producer", topic)
    for _ in range(CONSUMERS):
        consumers.ask("push", topic, "g", "*")
    for number in range(MESSAGES):
        producer.send(topic, f"m{number}", at_ms=now_ms() + 3_000 if number % 2 else "")
    consumers.until(MESSAGES, 60)
    time.sleep(2)
    assert Counter(one.body for one in consumers.received) == Counter(f"m{number}" for number in range(MESSAGES))


@pytest.mark.skipif(not EVERYTHING, reason="two minutes for each client: DELAY_ROCKETMQ_TESTS=all")
@pytest.mark.parametrize("language", LANGUAGES)
def test_work_that_outlasts_its_lease_is_done_once(
    cluster: LocalCluster, topic: str, judge: Start, language: str
) -> None:
    worker, other = (judge(language, cluster.endpoints[0]) for _ in range(2))
    worker.ask("producer", topic)
    worker.ask("push", topic, "g", "*")
    worker.send(topic, f"slow {LEASE_SECONDS + 15}")
    worker.until(1)
    other.ask("push", topic, "g", "*")
    time.sleep(LEASE_SECONDS + 20)  # it is acknowledged by then
    worker.kill()
    time.sleep(8)  # what a lost client held comes again after five
    assert (len(worker.received), other.received) == (1, [])
