"""What docs/celery.md says of tasks, row by row: a worker in a process of its own, and a real node."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from delayclient import sync
from delaylocal import LocalCluster

from tests.client.support.celeryworld import Shop, end, wait


@pytest.fixture(scope="module")
def worked(task_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shop, Any]]:
    """A shop, and its worker."""
    shop = Shop(task_cluster.endpoints[0], "c-rows", tmp_path_factory.mktemp("rows") / "log")
    with shop.worker("-c", "1") as worker:
        yield shop, worker


REJECTED = "rejected by the worker, whose log says why"


def letters(shop: Shop) -> dict[str, str]:
    """The reasons of the group's dead letters, by key."""
    with sync.Admin(shop.endpoint) as admin:
        return {one.key: one.dead_reason for one in admin.dead_letters(shop.queue, "celery")}


def test_rejected_task_comes_again_or_dies_and_an_unknown_one_dies_at_once(worked: tuple[Shop, Any]) -> None:
    shop, worker = worked
    again, once, unknown = shop.send("refuse", "again", True), shop.send("refuse", "once", False), shop.send("nix")
    wait(lambda: letters(shop) == dict.fromkeys((again.id, once.id, unknown.id), REJECTED), worker.said)
    at = [float(line[2]) for line in shop.lines("refuse again")]
    assert len(at) == 3, "the topic's maxAttempts"
    assert at[1] - at[0] >= 1, "the group's backoff is a second at first"
    assert at[2] - at[1] >= 2
    assert len(shop.lines("refuse once")) == 1
    shop.send("note", "after")
    wait(lambda: shop.lines("after"), worker.said)


@pytest.mark.parametrize("hours", [-5, 5])
def test_senders_clock_moves_what_it_counts_down_and_nothing_that_has_an_eta(
    worked: tuple[Shop, Any], monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    shop, worker = worked
    off = timedelta(hours=hours)
    monkeypatch.setattr(shop.app, "now", lambda: datetime.now(UTC) + off)
    due = datetime.now(UTC) + timedelta(seconds=2)
    shop.send("note", f"eta{hours}", due.timestamp(), eta=due)
    counted = shop.send("note", f"countdown{hours}", countdown=60)
    wait(lambda: shop.lines(f"eta{hours}"), worker.said)
    assert float(shop.lines(f"eta{hours}")[0][1]) >= 0
    if hours < 0:
        wait(lambda: shop.lines(f"countdown{hours}"), worker.said)
        return
    with sync.Admin(shop.endpoint) as admin:
        (row,) = admin.list_pending(shop.queue)
    assert abs(row.due_ms / 1000 - time.time() - off.total_seconds() - 60) < 30
    shop.app.control.revoke(counted.id)
    assert shop.pending() == 0


def test_worker_holds_as_many_as_it_prefetches_and_what_it_has_is_not_revoked(
    task_cluster: LocalCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With topic_prefix."""
    shop = Shop(task_cluster.endpoints[0], "held", tmp_path / "log", topic_prefix="c-own-", lease="60s")
    held = ["c-own-held", "celery"]
    with shop.worker("-c", "1", "--prefetch-multiplier", "3") as worker, sync.Admin(shop.endpoint) as admin:
        first = shop.send("until", str(tmp_path / "told"))
        wait(lambda: shop.lines("begin"), worker.said)
        for name in range(6):
            shop.send("long", str(name), 0)
        wait(lambda: sum(queue.available for queue in admin.groups(*held)) == 4, worker.said)
        assert sum(queue.in_flight for queue in admin.groups(*held)) == 3, "one that runs, with acks_late, and two"
        with caplog.at_level(logging.WARNING):
            shop.app.control.revoke(first.id)
        assert f"revoke: task {first.id} is not pending: a worker has it, or it has ended" in caplog.text
        (tmp_path / "told").touch()
        wait(lambda: len(shop.lines("end")) == 7, worker.said)
    assert len(shop.lines("begin")) == 7


def held(shop: Shop) -> int:
    """How many messages a worker has."""
    with sync.Admin(shop.endpoint) as admin:
        return sum(queue.in_flight for queue in admin.groups(shop.queue, "celery"))


def test_task_that_kills_its_worker_each_time_is_a_dead_letter_in_the_end(
    task_cluster: LocalCluster, tmp_path: Path
) -> None:
    shop = Shop(task_cluster.endpoints[0], "c-fatal", tmp_path / "log", lease="60s")
    task = shop.send("fatal")
    for attempt in range(1, 4):
        worker = shop.start("-P", "solo")
        try:
            wait(lambda: worker.poll() is not None, worker.said)  # noqa: B023
            assert len(shop.lines("fatal")) == attempt
            wait(lambda: not held(shop), worker.said)  # its agent lives on, and is killed below
        finally:
            end(worker)
    wait(lambda: letters(shop) == {task.id: "its worker was gone before it had settled this"})
    with shop.worker("-P", "solo") as worker:
        shop.send("note", "after")
        wait(lambda: shop.lines("after"), worker.said)
    assert len(shop.lines("fatal")) == 3
