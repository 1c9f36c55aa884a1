"""The demo's flights as tasks of Celery and of Django, while the node that both were told of is killed.

DELAY_TASK_FLIGHTS=336776 for the whole year.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from celery.exceptions import OperationalError
from delayclient import sync
from delayclient.agent.client import AgentLost, ClusterRefused
from delaylocal import LocalCluster
from delayregistry.model import TopicSpec

from demo.flights import flight_body, read_rows, table_path
from tests.client.support.celeryworld import Shop, wait
from tests.client.support.djangoworld import Project

FLIGHTS = int(os.environ.get("DELAY_TASK_FLIGHTS", "400"))
AHEAD_S, APART_S = 5.0, 0.01
LAST_S = 60 + FLIGHTS / 50
TOLD = "n0"
"""The node whose endpoint is in the broker's URL, and in OPTIONS."""


def test_flights_are_all_worked_on_and_none_early_while_the_node_of_the_url_is_killed(tmp_path: Path) -> None:
    flights = [flight_body(row).decode() for row in itertools.islice(read_rows(table_path()), FLIGHTS)]
    topics = [TopicSpec(name, 6) for name in ("shop", "project")]
    with LocalCluster(tmp_path / "cluster", nodes=3, replicas=2, topics=topics, lease_seconds=2) as cluster:
        cluster.wait_ready()
        told = cluster.endpoints[int(TOLD[1:])]
        shop, project = Shop(told, "shop", tmp_path / "celery"), Project(told, "project", tmp_path / "django")
        half_sent = threading.Semaphore(0)

        def send(enqueue: Callable[[int, str, float], object]) -> None:
            for index, body in enumerate(flights):
                due_s = time.time() + AHEAD_S + index * APART_S
                while not stored(enqueue, index, body, due_s):
                    time.sleep(0.1)
                if index == FLIGHTS // 2:
                    half_sent.release()

        def by_celery(index: int, body: str, due_s: float) -> object:
            return shop.send("flight", index, body, due_s, countdown=due_s - time.time())

        def by_django(index: int, body: str, due_s: float) -> object:
            return project.enqueue("flight", index, body, due_s, run_after=datetime.fromtimestamp(due_s, UTC))

        with (
            shop.worker("-c", "2") as a, project.worker() as b,
            ThreadPoolExecutor(2) as pool, sync.Admin(",".join(cluster.endpoints)) as admin,
        ):  # fmt: skip
            senders = [pool.submit(send, enqueue) for enqueue in (by_celery, by_django)]
            for _ in senders:
                assert half_sent.acquire(timeout=LAST_S)
            cluster.kill(TOLD)
            for sender in senders:
                sender.result()
            for door, worker in ((shop, a), (project, b)):
                wait(lambda: len({line[1] for line in door.lines("flight")}) == FLIGHTS, worker.said, LAST_S)  # noqa: B023
            for topic, group in (("shop", "celery"), ("project", "django")):
                wait(lambda: left(admin, topic, group) == 0, f"{group} has not settled all", LAST_S)  # noqa: B023
    sha = [hashlib.sha256(body.encode()).hexdigest() for body in flights]
    for door in (shop, project):
        lines = door.lines("flight")
        assert {(int(index), digest) for _, index, digest, _ in lines} == set(enumerate(sha))
        assert min(float(late_s) for *_, late_s in lines) >= 0, "one is early"
        assert len(lines) - FLIGHTS < FLIGHTS / 3, "what comes again is what the killed node had handed out or stored"


def stored(enqueue: Callable[[int, str, float], object], index: int, body: str, due_s: float) -> bool:
    """What is not sure to be is sent again, as a program would."""
    try:
        enqueue(index, body, due_s)
    except (OperationalError, AgentLost):
        return False
    except ClusterRefused as error:
        if not error.retryable:
            raise
        return False
    return True


def left(admin: sync.SyncAdmin, topic: str, group: str) -> int:
    """Tasks that are not done, dead ones included."""
    queues = admin.groups(topic, group)
    return sum(queue.available + queue.waiting_retry + queue.in_flight + queue.dead for queue in queues)
