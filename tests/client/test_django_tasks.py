"""What docs/django.md says of tasks, each by a worker in a process of its own and a real node."""

from __future__ import annotations

import math
import signal
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from delayclient import sync
from delaylocal import LocalCluster

from tests.client.support.celeryworld import wait
from tests.client.support.djangoworld import Project


def project(cluster: LocalCluster, queue: str, tmp_path: Path, **options: object) -> Project:
    return Project(cluster.endpoints[0], queue, tmp_path / "log", **options)


def test_tasks_run_at_their_run_after_and_not_before_nor_once_cancelled(
    task_cluster: LocalCluster, tmp_path: Path
) -> None:
    it = project(task_cluster, "timed", tmp_path, topic_prefix="d-own-")
    with it.worker() as worker, sync.Admin(it.endpoint) as admin:
        begin = datetime.now(UTC) + timedelta(seconds=12)
        at = [begin + timedelta(milliseconds=37 * n, microseconds=n) for n in range(20)]
        kept = [it.enqueue("note", str(n), due.timestamp(), run_after=due) for n, due in enumerate(at)]
        called_off = it.enqueue("note", "cancelled", run_after=begin)
        due_ms = sorted(row.due_ms for row in admin.list_pending("d-own-timed"))
        assert due_ms == [math.ceil(due.timestamp() * 1000) for due in sorted([begin, *at])]
        assert [it.backend.cancel(called_off.id, "timed") for _ in range(2)] == [True, False]
        assert not it.backend.cancel("no task's id", "timed")
        wait(lambda: len(it.lines()) == 20, worker.said)
        assert not it.backend.cancel(kept[0].id, "timed"), "it has run"
    assert sorted(int(name) for name, _ in it.lines()) == list(range(20))
    assert min(float(late_s) for _, late_s in it.lines()) >= 0
    assert max(float(late_s) for _, late_s in it.lines()) < 5


def test_task_that_fails_comes_again_by_retry_and_is_a_dead_letter_with_its_error(
    task_cluster: LocalCluster, tmp_path: Path
) -> None:
    it = project(task_cluster, "d-failing", tmp_path, retry=True)
    with it.worker() as worker, sync.Admin(it.endpoint) as admin:
        it.enqueue("again", 1)
        wait(lambda: len(it.lines("try")) == 2, worker.said)
        it.enqueue("again", 9)
        wait(lambda: len(it.lines("try")) == 5, worker.said)
        wait(lambda: list(admin.dead_letters("d-failing", "django")), worker.said)
        (dead,) = admin.dead_letters("d-failing", "django")
    assert [line[1] for line in it.lines("try")] == ["1", "2", "1", "2", "3"]
    at = [float(line[2]) for line in it.lines("try")]
    assert at[1] - at[0] >= 1, "the group's backoff is a second at first"
    assert at[4] - at[3] >= 2, "and two then"
    assert dead.dead_reason == "RuntimeError('attempt 3')"


def test_task_of_a_worker_that_is_killed_comes_again_after_the_backoff(
    task_cluster: LocalCluster, tmp_path: Path
) -> None:
    """Its agent lives, and the lease is a minute."""
    it = project(task_cluster, "d-killed", tmp_path, lease="60s")
    with it.worker("--threads", "1") as first:
        it.enqueue("stuck", "x")
        wait(lambda: it.lines("begin"), first.said)
        with it.worker("--threads", "1") as second:
            first.send_signal(signal.SIGKILL)
            wait(lambda: len(it.lines("begin")) == 2, second.said, 10)
            wait(lambda: it.lines("end"), second.said)
    assert it.lines("begin") == [["begin", "x", "1"], ["begin", "x", "2"]]


def test_task_that_takes_longer_than_a_lease_runs_once(task_cluster: LocalCluster, tmp_path: Path) -> None:
    it = project(task_cluster, "d-long", tmp_path)
    with it.worker(), it.worker():
        it.enqueue("long", "x", 4.5)
        wait(lambda: it.lines("end"))
        time.sleep(1)
    assert it.lines("begin") == [["begin", "x", "1"]]
