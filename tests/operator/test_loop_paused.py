"""The control loop while it is paused, and how it is woken."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from delayoperator.control_loop.loop import ControlLoop, LoopClock
from delayregistry.model import BootstrapVolumes, ClusterSpec, NodeLease, TopicSpec
from delayregistry.sqlite import SqliteRegistry

IGNORE = BootstrapVolumes.IGNORE  # nobody is asked what nodes have


def test_a_paused_loop_chooses_masters_and_makes_nothing(tmp_path: Path) -> None:
    registry = SqliteRegistry(tmp_path / "registry.db", create=True)
    now_ms, paused = [1_000], [False]
    clock = LoopClock(lambda: now_ms[0], lambda: now_ms[0])
    loop = ControlLoop(registry, lambda: 7, lambda event: None, clock, paused=lambda: paused[0])

    def pass_time(rounds: int) -> None:
        for _ in range(rounds):
            now_ms[0] += 100
            registry.renew_lease(NodeLease("n0", "a", "h:1", "h:2", now_ms[0]))
            loop.round()

    version = registry.put_cluster(ClusterSpec("local", 1, (TopicSpec("orders", 1),), bootstrap_volumes=IGNORE), None)
    loop.round()
    assert [shard.name for shard in registry.list_shards()] == ["orders-0"]
    paused[0] = True
    both = (TopicSpec("orders", 1), TopicSpec("mails", 1))
    registry.put_cluster(ClusterSpec("local", 1, both, bootstrap_volumes=IGNORE), version)
    pass_time(5)
    (shard,) = registry.list_shards()
    assert shard.spec.master == "n0"
    paused[0] = False
    pass_time(1)
    assert {shard.name for shard in registry.list_shards()} == {"orders-0", "mails-0"}
    registry.close()


def test_a_resting_loop_is_woken_by_news_of_either_kind(tmp_path: Path) -> None:
    registry = SqliteRegistry(tmp_path / "registry.db", create=True)
    loop = ControlLoop(registry, lambda: 7, lambda event: None)
    rounds: list[float] = []
    inner = loop.round
    loop.round = lambda: (rounds.append(time.monotonic()), inner())[1]  # type: ignore[method-assign]
    stop, wake = threading.Event(), threading.Event()
    thread = threading.Thread(target=loop.run, args=(stop,), kwargs={"refresh_ms": 60_000, "wake": wake})
    thread.start()
    for event in (lambda: registry.put_cluster(ClusterSpec("local", 1), None), wake.set):
        time.sleep(0.5)
        before = len(rounds)
        event()
        until_s = time.monotonic() + 20
        while len(rounds) == before and time.monotonic() < until_s:
            time.sleep(0.01)
        assert len(rounds) > before
    assert len(rounds) < 10, "and it rests in between"
    stop.set()
    wake.set()
    thread.join(20)
    assert not thread.is_alive()
    registry.close()
