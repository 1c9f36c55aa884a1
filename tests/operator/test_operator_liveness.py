"""When the operator's process says that it should be started again: its failover loop stands still, or has died."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from delayoperator.control_loop.loop import ControlLoop, LoopClock
from delayoperator.control_loop.probe import NullProber
from delayoperator.kube import shards
from delayoperator.kube.shards import STUCK_S, ShardsThread
from delayoperator.kube.worker import Worker
from delayregistry.model import ClusterSpec, NodeLease
from delayregistry.port import RegistryUnavailable
from delayregistry.sqlite import SqliteRegistry

from tests.operator.stage import Stage


class Loop:
    """A failover loop in its thread, over a registry whose leases can be held back, with a clock that tests move."""

    def __init__(self, directory: Path) -> None:
        self.now_ms, self.looks = 1_000, 0
        self.held, self.answer = threading.Event(), threading.Event()
        self.answer.set()
        self.error: Exception | None = None
        self.registry = SqliteRegistry(directory / "registry.db", create=True)
        self.registry.put_cluster(ClusterSpec("local", 1), None)
        self._list_leases = self.registry.list_leases
        self.registry.list_leases = self.leases  # type: ignore[method-assign]
        clock = LoopClock(lambda: self.now_ms, lambda: self.now_ms)
        self.thread = ShardsThread(self.registry, lambda event: None, lambda: None, NullProber, clock)

    def leases(self) -> tuple[NodeLease, ...]:
        self.looks += 1
        if not self.answer.is_set():
            self.held.set()
            self.answer.wait(30)
        if self.error is not None:
            raise self.error
        return self._list_leases()

    def until(self, true: Callable[[], object]) -> None:
        until_s = time.monotonic() + 30
        while not true():
            assert time.monotonic() < until_s
            time.sleep(0.01)

    def looked_again(self) -> None:
        seen = self.looks
        self.until(lambda: self.looks > seen + 1)


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    made = Loop(tmp_path)
    yield made
    made.answer.set()
    made.thread.stop()
    made.registry.close()


def test_a_loop_that_looks_at_the_leases_is_not_stuck_however_long_it_runs(loop: Loop) -> None:
    loop.thread.start()
    for _ in range(3):
        loop.now_ms += 3_600_000
        loop.looked_again()
        assert (loop.thread.stuck(), loop.thread.last_look_s()) == (None, 0.0)


def test_a_round_that_does_not_end_is_stuck_and_nothing_was_seen_meanwhile(loop: Loop) -> None:
    loop.thread.start()
    loop.looked_again()
    loop.answer.clear()
    assert loop.held.wait(30)
    loop.now_ms += int(STUCK_S * 1000)
    assert loop.thread.stuck() is None
    loop.now_ms += 1_000
    assert loop.thread.stuck() == "a round of its failover loop has not ended for 61 s"
    assert loop.thread.last_look_s() == STUCK_S + 1
    loop.answer.set()
    loop.looked_again()
    assert loop.thread.stuck() is None


def test_a_registry_that_gives_no_answer_is_no_reason_to_start_again(loop: Loop) -> None:
    loop.thread.start()
    loop.looked_again()
    loop.error = RegistryUnavailable("no answer")
    loop.looked_again()
    loop.now_ms += 600_000
    loop.looked_again()
    assert loop.thread.stuck() is None, "another process would get no answer either"
    assert loop.thread.last_look_s() == 600


def test_a_fault_that_comes_again_is_no_round_that_does_not_end(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "AGAIN_S", (0.01,))
    loop.thread.start()
    loop.looked_again()
    loop.error = ValueError("a fault of one cluster")
    loop.looked_again()
    loop.now_ms += 600_000
    loop.looked_again()
    assert loop.thread.fault == "ValueError: a fault of one cluster"
    assert loop.thread.stuck() is None, "to end the process would take failover from all other clusters too"


def test_a_loop_whose_thread_has_died_is_stuck_and_one_that_was_stopped_is_not(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    def ends(*_: object, **__: object) -> None:
        raise SystemExit  # which is no Exception: the loop is not begun anew

    monkeypatch.setattr(ControlLoop, "run", ends)
    loop.thread.start()
    loop.until(lambda: loop.thread.stuck() == "the thread of its failover loop has died")
    loop.thread.stop()
    assert loop.thread.stuck() is None


def test_the_process_says_which_clusters_worker_has_died(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    running = stage.operator()
    stage.create()
    stage.settled()
    assert running.operator.clusters.stuck() == []
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    def fails(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Worker, "_rest", fails)
    stage.edit(minInSync=2)
    stage.until(lambda: running.operator.clusters.stuck() == ["default/shop: its thread has died"])


def test_a_cluster_that_is_gone_is_not_stuck(stage: Stage) -> None:
    running = stage.operator()
    stage.create()
    stage.settled()
    stage.delete("delayclusters", "shop")
    stage.until(lambda: not running.operator.clusters.workers())
    assert running.operator.clusters.stuck() == []
