"""Several real processes on one registry: races, a stopped one, killed ones."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest
from delayregistry.model import NodeLease, ShardSpec, ShardStatus, Version
from delayregistry.port import Conflict, OutcomeUnknown, RegistryUnavailable
from delayregistry.sqlite import SqliteRegistry

Worker = subprocess.Popen[str]
StartWorker = Callable[..., Worker]

SPEC = ShardSpec(uid=1, topic="orders", queue=0, replicas=("n0",))


@pytest.fixture
def start_worker(path: Path) -> Iterator[StartWorker]:
    """Starts registry_worker.py with a command; it opens the file when it gets a line."""
    workers: list[Worker] = []

    def start(*command: str) -> Worker:
        worker = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("registry_worker.py")), str(path), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        worker.kill()
        worker.communicate()


def expect(worker: Worker, line: str) -> None:
    assert worker.stdout is not None
    assert worker.stdout.readline().strip() == line


def go(worker: Worker) -> None:
    assert worker.stdin is not None
    worker.stdin.write("\n")
    worker.stdin.flush()


def test_of_racing_processes_exactly_one_wins_each_epoch(registry: SqliteRegistry, start_worker: StartWorker) -> None:
    registry.create_shard(SPEC)
    workers = [start_worker("race", "orders-0", "50") for _ in range(4)]
    for worker in workers:
        expect(worker, "up")
    for worker in workers:
        go(worker)
    won = [line.split()[1] for worker in workers for line in worker.communicate(timeout=60)[0].splitlines()]
    assert sorted(map(int, won)) == list(range(1, 201))
    shard = registry.get_shard("orders-0")
    assert shard is not None
    assert shard.spec.epoch == 200


def test_of_racing_threads_exactly_one_wins_each_epoch(registry: SqliteRegistry) -> None:
    version = registry.create_shard(SPEC)
    outcomes: list[str] = []
    barrier = threading.Barrier(8)

    def write(number: int) -> None:
        barrier.wait()
        try:
            registry.write_status("orders-0", ShardStatus(number, "a", ()), version)
            outcomes.append("won")
        except Conflict:
            outcomes.append("conflict")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["conflict"] * 7 + ["won"]


def test_writes_of_many_threads_share_transactions_and_each_gets_its_own_answer(registry: SqliteRegistry) -> None:
    versions = {queue: registry.create_shard(ShardSpec(1, "orders", queue, ("n0",))) for queue in range(40)}
    before = registry.version()
    began = 0
    transaction = registry._writes.transaction

    def counted() -> AbstractContextManager[sqlite3.Connection]:
        nonlocal began
        began += 1
        return transaction()

    registry._group_commit._transaction = counted
    outcomes: dict[int, str] = {}
    barrier = threading.Barrier(40)

    def write(queue: int) -> None:
        stale = queue % 4 == 0
        barrier.wait()
        try:
            found = registry.write_status(
                f"orders-{queue}", ShardStatus(queue, "a", ()), Version("1000") if stale else versions[queue]
            )
            outcomes[queue] = found
        except Conflict:
            outcomes[queue] = "conflict"

    with transaction():  # somebody writes: the others wait together
        threads = [threading.Thread(target=write, args=(queue,)) for queue in range(40)]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
    for thread in threads:
        thread.join()
    assert sorted(queue for queue, outcome in outcomes.items() if outcome == "conflict") == list(range(0, 40, 4))
    assert began < 20  # two, unless threads were late
    assert registry.version() == before + 30
    for queue in range(40):
        shard = registry.get_shard(f"orders-{queue}")
        assert shard is not None
        written = outcomes[queue] != "conflict"
        assert (shard.status is not None, shard.version) == (written, outcomes[queue] if written else versions[queue])


def test_processes_that_create_the_file_at_once_all_open_it(start_worker: StartWorker) -> None:
    workers = [start_worker("create") for _ in range(4)]
    for worker in workers:
        expect(worker, "up")
    for worker in workers:
        go(worker)
    assert [worker.communicate(timeout=60)[0] for worker in workers] == ["0\n"] * 4


def test_a_process_stopped_inside_a_transaction_is_an_outage_with_bounds(
    registry: SqliteRegistry, start_worker: StartWorker
) -> None:
    version = registry.create_shard(SPEC)
    before = registry.version()
    holder = start_worker("hold")
    go(holder)
    expect(holder, "up")
    expect(holder, "holding")
    holder.send_signal(signal.SIGSTOP)

    started_s = time.monotonic()
    with pytest.raises(OutcomeUnknown):
        registry.write_spec("orders-0", SPEC, version)
    with pytest.raises(OutcomeUnknown):
        registry.create_shard(ShardSpec(2, "orders", 1, ("n0",)))
    with pytest.raises(RegistryUnavailable):
        registry.renew_lease(NodeLease("n0", "a", "e", "h", 1))
    with pytest.raises(RegistryUnavailable):
        registry.probe()
    assert time.monotonic() - started_s < 10  # four times the busy timeout of 0.3 s, generously

    assert registry.version() == before
    assert registry.get_shard("orders-0") is not None

    holder.kill()
    holder.wait()
    registry.write_spec("orders-0", SPEC, version)
    assert registry.version() == before + 1  # what the holder had begun is gone


def test_threads_behind_a_blocked_write_are_answered_in_time_too(
    registry: SqliteRegistry, start_worker: StartWorker
) -> None:
    version = registry.create_shard(SPEC)
    holder = start_worker("hold")
    go(holder)
    expect(holder, "up")
    expect(holder, "holding")
    outcomes: list[str] = []

    def write() -> None:
        try:
            registry.write_spec("orders-0", SPEC, version)
        except OutcomeUnknown:
            outcomes.append("unknown")

    threads = [threading.Thread(target=write) for _ in range(30)]
    started_s = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == ["unknown"] * 30
    assert time.monotonic() - started_s < 5  # 0.6 s; one after the other they would take 9


def test_killed_writers_lose_nothing_that_was_answered(
    registry: SqliteRegistry, path: Path, start_worker: StartWorker
) -> None:
    registry.create_shard(SPEC)
    chance = random.Random(7)
    for _ in range(5):
        writers = [start_worker("write", "orders-0"), start_worker("renew", "n0")]
        for worker in writers:
            go(worker)
            expect(worker, "up")
        expect_line = writers[0].stdout
        assert expect_line is not None
        expect_line.readline()
        time.sleep(chance.uniform(0, 0.1))
        for worker in writers:
            worker.kill()
        answered = [int(line.split()[1]) for line in writers[0].communicate()[0].splitlines() if len(line.split()) == 2]
        shard = registry.get_shard("orders-0")
        assert shard is not None
        assert shard.status is not None
        assert shard.status.serving_epoch >= max(answered, default=1)
        registry.write_conditions("orders-0", (), shard.version)  # and the file is writable at once
    registry.close()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
