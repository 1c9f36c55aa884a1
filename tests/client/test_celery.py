"""Celery itself, its workers in processes of their own, on `delaycluster://` with a real node."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from delayclient import sync
from delayclient.agent import frames
from delayclient.agent.client import Link
from delayclient.celery import NotTaken, Transport, due_ms
from delaylocal import LocalCluster
from delayregistry.model import TopicSpec
from kombu import Connection
from kombu.asynchronous import Hub
from kombu.exceptions import OperationalError

from tests.client.support.celeryworld import Shop, wait

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "celery"
POOLS = ("gevent", "eventlet", "threads")
TOPICS = (
    *POOLS,
    "due",
    "retry",
    "revoke",
    "killed",
    "alone",
    "long",
    "warm",
    "errors",
    "purged",
    "foreign",
    "shop-tasks",
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    topics = [TopicSpec(name, 4) for name in TOPICS]
    with LocalCluster(tmp_path_factory.mktemp("celery"), nodes=1, topics=topics) as cluster:
        cluster.wait_ready()
        yield cluster


@pytest.fixture
def shop(cluster: LocalCluster, tmp_path: Path, request: pytest.FixtureRequest) -> Shop:
    return Shop(cluster.endpoints[0], request.param, tmp_path / "log")


def on(topic: str):
    return pytest.mark.parametrize("shop", [topic], indirect=True)


@on("due")
def test_tasks_wait_in_the_cluster_and_run_when_they_are_due(shop: Shop) -> None:
    with shop.worker("-c", "2") as worker:
        due_s = time.time() + 12
        for name in range(20):
            shop.send("note", name, due_s, countdown=due_s - time.time())
        assert shop.pending() == 20
        assert " received" not in worker.said.read_text(), "a worker has what is not due"
        wait(lambda: len(shop.lines()) == 20, worker.said)
    late_s = [float(late) for _, late in shop.lines()]
    assert min(late_s) >= 0
    assert max(late_s) < 1
    assert sorted(int(name) for name, _ in shop.lines()) == list(range(20))


@on("retry")
def test_retries_are_sent_by_pool_processes_that_are_forked_again_and_again(shop: Shop) -> None:
    with shop.worker("-c", "1", "--max-tasks-per-child", "1", lease="60s") as worker:  # each runs once
        shop.send("again", 3)
        wait(lambda: len(shop.lines("try")) == 4, worker.said)
    assert [line[1] for line in shop.lines("try")] == ["0", "1", "2", "3"]
    assert len({line[2] for line in shop.lines("try")}) == 4


@pytest.mark.parametrize("shop", POOLS if os.environ.get("DELAY_CELERY_TESTS") == "all" else POOLS[:1], indirect=True)
def test_pool_works_on_many_tasks_at_once_and_sends(shop: Shop) -> None:
    """While they wait, leases of two seconds are extended; a retry is sent by a greenlet, or a thread.
    DELAY_CELERY_TESTS=all for each pool.
    """
    with shop.worker("-P", shop.queue, "-c", "20") as worker:
        due_s = time.time() + 2
        for name in range(10):
            shop.send("note", name, due_s, countdown=due_s - time.time())
            shop.send("long", name, 5)
        shop.send("again", 2)
        wait(lambda: len(shop.lines("end")) == 10, worker.said, 60)
        wait(lambda: len(shop.lines("try")) == 3, worker.said)
    late_s = [float(late) for name, late in (line for line in shop.lines() if line[0].isdigit())]
    assert len(late_s) == 10
    assert min(late_s) >= 0
    kinds = [line[0] for line in shop.lines() if line[0] in ("begin", "end")]
    assert kinds == ["begin"] * 10 + ["end"] * 10, "each began once, before the first had ended"


@on("revoke")
def test_revoked_task_leaves_the_cluster_and_never_runs(shop: Shop) -> None:
    kept = shop.send("note", "kept", countdown=11)
    tasks = [shop.send("note", "revoked", countdown=10) for _ in range(3)]
    assert kept.id not in [task.id for task in tasks]
    assert shop.pending() == 4
    shop.app.control.revoke([task.id for task in tasks])
    with pytest.raises(NotTaken, match="no remote control but revoke"):
        shop.app.control.ping()
    assert shop.pending() == 1
    with shop.worker("-c", "1") as worker:
        wait(lambda: shop.lines("kept"), worker.said)
    assert not shop.lines("revoked")


@on("long")
def test_task_that_takes_longer_than_a_lease_runs_once(shop: Shop) -> None:
    with shop.worker("-c", "1", "-n", "a@%h"), shop.worker("-c", "1", "-n", "b@%h"):
        shop.send("long", "x", 4.5)
        wait(lambda: shop.lines("end"))
        time.sleep(1)
    assert shop.lines("begin") == [["begin", "x", "False"]]


@on("killed")
def test_killed_workers_task_comes_again_when_its_lease_is_over_and_says_so(shop: Shop) -> None:
    killed(shop, os.killpg, lease="2s")  # its pool and its agent too: only the lease's end is left


@on("alone")
def test_task_of_a_worker_that_is_killed_alone_comes_again_after_the_backoff(shop: Shop) -> None:
    """Its agent lives, and sees two ends at once: that of the link, and that of the program."""
    killed(shop, os.kill, lease="60s")


def killed(shop: Shop, kill: Callable[[int, int], None], lease: str) -> None:
    with shop.worker("-c", "1", "-n", "a@%h", lease=lease) as first:
        shop.send("stuck", "x")
        wait(lambda: shop.lines("begin"), first.said)
        with shop.worker("-c", "1", "-n", "b@%h", lease=lease) as second:
            kill(first.pid, signal.SIGKILL)
            wait(lambda: len(shop.lines("begin")) == 2, second.said, 10)
            wait(lambda: shop.lines("end"), second.said)
    assert shop.lines("begin") == [["begin", "x", "False"], ["begin", "x", "True"]]


@on("warm")
def test_worker_that_is_told_to_end_gives_back_what_it_did_not_begin(shop: Shop) -> None:
    with shop.worker("-c", "1", "--prefetch-multiplier", "8", lease="60s") as first:  # none ends by itself
        for name in range(5):
            shop.send("long", name, 1)
        wait(lambda: shop.lines("begin"), first.said)
        first.terminate()
        first.wait(20)
    ended = len(shop.lines("end"))
    assert 1 <= ended < 5
    with shop.worker("-c", "4") as second:
        wait(lambda: len(shop.lines("end")) == 5, second.said)
    assert {line[2] for line in shop.lines("begin")} == {"False"}, "an attempt was lost"
    assert len(shop.lines("begin")) == 5


@on("errors")
def test_errors_say_what_is_wrong(shop: Shop) -> None:
    with pytest.raises(NotTaken, match="unknown topic 'nix'"):
        shop.app.send_task("t", queue="nix")
    with pytest.raises(NotTaken, match="DELAY_TOO_LONG"):
        shop.send("note", countdown=60 * 86_400)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nowhere = Connection(f"delaycluster://127.0.0.1:{closed.getsockname()[1]}")
        with nowhere, pytest.raises(OperationalError, match="reach"):
            nowhere.ensure_connection(max_retries=1)
    with Connection(shop.broker) as connection, connection.channel() as channel:
        with pytest.raises(NotTaken, match="deleted where the cluster's topics are declared"):
            channel._delete("errors")
        shop.send("note", countdown=60)
        assert channel.queue_purge("errors") == 1
        assert shop.pending() == 0


@on("purged")
def test_purge_cancels_what_waits_and_leaves_what_is_due(shop: Shop) -> None:
    """More than a page of it."""
    with sync.Producer(shop.endpoint) as producer:
        producer.send_batch("purged", [b"waits"] * 2_500, delay_ms=3_600_000)
    shop.send("note", "due")
    command = [sys.executable, "-m", "celery", "-A", "tests.client.support.celerytasks", "purge", "-f"]
    run = subprocess.run(command, env=shop.environment(), capture_output=True, text=True, timeout=120, check=True)
    assert "2500 messages" in run.stdout + run.stderr
    assert shop.pending() == 0
    with shop.worker("-c", "1") as worker:
        wait(lambda: shop.lines("due"), worker.said)


@on("foreign")
def test_what_celery_did_not_send_is_a_dead_letter_and_ends_no_worker(shop: Shop) -> None:
    with sync.Producer(shop.endpoint) as producer, sync.Admin(shop.endpoint) as admin:
        for body in (b"", b"[]", b"{}", b'{"properties": 1}', b"\xff"):
            producer.send("foreign", body)
        shop.send("note", "real")
        with shop.worker("-c", "1") as worker:
            wait(lambda: shop.lines("real"), worker.said)
            wait(lambda: sum(queue.dead for queue in admin.groups("foreign", "celery")) == 5, worker.said)


@pytest.fixture
def fake_agent(monkeypatch: pytest.MonkeyPatch) -> list[frames.Frame]:
    """What an agent sends with its answer to `consume`, in one write, as one does whose program is slow to read."""
    sent: list[frames.Frame] = []

    def serve(link: socket.socket) -> None:
        buffer = bytearray()
        while data := link.recv(4096):
            buffer += data
            while (found := frames.cut(buffer)) is not None:
                if (op := found[0]["op"]) in ("check", "consume", "close"):
                    link.sendall(b"".join(frames.encode(*frame) for frame in (({}, b""), *sent * (op == "consume"))))

    def open_link(_: Transport) -> Link:
        ours, its = socket.socketpair()
        threading.Thread(target=serve, args=(its,), daemon=True).start()
        return Link(ours)

    monkeypatch.setattr(Transport, "open_link", open_link)
    return sent


@pytest.mark.parametrize("loop_first", [True, False])
def test_delivery_that_came_with_the_answer_to_consume_reaches_the_worker(
    fake_agent: list[frames.Frame], loop_first: bool
) -> None:
    body = json.dumps({"body": "x", "properties": {}, "headers": {}}).encode()
    fake_agent.append(({"tag": 1, "topic": "q", "attempt": 1, "due_ms": 0, "handle": "h", "key": ""}, body))
    got: list[object] = []
    hub = Hub()
    with Connection("delaycluster://here") as connection, connection.channel() as channel:
        if loop_first:
            connection.register_with_event_loop(hub)
        channel.basic_consume("q", False, got.append, "tag")
        if not loop_first:
            connection.register_with_event_loop(hub)
        hub.run_once()
    assert len(got) == 1


def test_what_ended_a_subscription_is_said_also_when_it_came_before_an_answer(fake_agent: list[frames.Frame]) -> None:
    fake_agent.append(({"tag": 0, "error": {"message": "gone", "reason": "NOT_FOUND"}}, b""))
    with Connection("delaycluster://here") as connection, connection.channel() as channel:
        channel.basic_consume("q", False, print, "one")
        channel.basic_consume("r", False, print, "two")  # its call reads what came meanwhile
        with pytest.raises(NotTaken, match="gone"):
            connection.drain_events(timeout=1)


@on("shop-tasks")
def test_example_cancels_what_is_not_paid(shop: Shop) -> None:
    def run(*words: str, timeout_s: int = 600) -> str:
        command = [sys.executable, "shop.py", *words]
        environment = os.environ | {"BROKER": shop.broker, "PAYMENT_TIMEOUT_S": str(timeout_s)}
        return subprocess.run(command, cwd=EXAMPLE, env=environment, check=True, capture_output=True, text=True).stdout

    paid = run("paid").strip()
    assert shop.pending() == 1
    run("--paid", paid)
    assert shop.pending() == 0
    run("unpaid", timeout_s=2)
    with shop.worker("-c", "1", module="shop", folder=EXAMPLE) as worker:
        wait(lambda: "cancelled unpaid" in worker.said.read_text(), worker.said)
        assert "cancelled paid" not in worker.said.read_text()


def test_eta_is_rounded_up_and_without_a_zone_the_applications() -> None:
    assert due_ms("2026-11-26T12:00:00.000001+00:00") == due_ms("2026-11-26T12:00:00.001+00:00")
    assert due_ms("2026-11-26T13:00:00+01:00") == due_ms("2026-11-26T12:00:00+00:00")
    assert due_ms("2026-11-26T12:00:00") == due_ms("2026-11-26T12:00:00+00:00")


@pytest.mark.parametrize("module", ["celery", "agent.client", "django.backend"])
def test_a_program_with_an_agent_loads_no_grpc(module: str) -> None:
    """It forks its workers, and what has gRPC hangs after a fork: docs/decisions/0022-celery-agent.md."""
    heavy = "('grpc', 'google.protobuf', 'numpy')"
    code = f"import sys, delayclient.{module}; print(*(one for one in {heavy} if one in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == ""
