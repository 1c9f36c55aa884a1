"""The comparison with other systems, without any of them: its table, and what it says of what it can't have."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.peers import __main__ as peers
from benchmarks.peers import client, processes, table
from benchmarks.peers.loads import Found, Load, Run, chosen, wrong
from benchmarks.peers.processes import Failed, Missing, Server, System

LOAD = Load(10, 10)
LATE = Load(64, 8, rate=1_000)
FOUND = Found(1_000.0, 2.0, 5.0, 9.0, 300.0, 40.0)


def runs(system: str, *per_second: float, load: Load = LOAD) -> list[Run]:
    """A run in each round."""
    return [Run(n, system, load, replace(FOUND, per_second=rate)) for n, rate in enumerate(per_second, 1)]


def system(name: str, stored: int = 0) -> System:
    """Always there; its server has so many messages."""

    @contextmanager
    def start(data: Path, _: Path) -> Iterator[Server]:
        yield Server(os.getpid(), "127.0.0.1:1", lambda: stored)

    return System(name, name.lower(), lambda _: f"{name} 1.0", start)


def absent(name: str) -> System:
    def prepare(_: Path) -> str:
        raise Missing("not installed")

    return replace(system(name), prepare=prepare)


def test_the_table_has_medians_and_the_ratio_of_each_round() -> None:
    all_runs = runs("DelayCluster", 500, 900, 600) + runs("PostgreSQL", 1_000, 1_000, 2_000)
    _, _, ours, theirs = table.lines(all_runs)
    assert ours == "| DelayCluster | 10 connections | 600 | 2.00 | 5.00 | 300 | 40 | 0.50 (0.30 .. 0.90) |"
    assert theirs.endswith("| 1.00 (1.00 .. 1.00) |")


def test_a_ratio_is_of_rounds_that_both_have_under_the_same_load() -> None:
    assert table.ratios(runs("Redis", 10, 30) + runs("PostgreSQL", 20), "Redis", LOAD) == [0.5]
    assert table.ratios(runs("Redis", 10) + runs("PostgreSQL", 20, load=Load(200, 4)), "Redis", LOAD) == []
    assert list(table.lines(runs("Redis", 10)))[-1].endswith("|  |")


def test_a_rate_that_was_not_kept_is_told_beside_the_lateness() -> None:
    *_, slow, kept = table.lines(runs("DelayCluster", 900, load=LATE) + runs("Redis", 999, load=LATE))
    assert "| 900 (too slow) |" in slow
    assert "| 999 |" in kept


def test_each_load_says_how_its_callers_are_connected() -> None:
    loads = chosen([1, 50], callers=200, shared=4, streams=20, window=16, late_rate=None)
    assert [load.label for load in loads] == [
        "1 connection",
        "50 connections",
        "200 callers on 4",
        "20 streams, window 16",
    ]
    assert chosen([1], callers=0, shared=4, streams=0, window=16, late_rate=None) == [Load(1, 1)]
    assert [load.rate for load in chosen([1], 200, 4, 20, 16, late_rate=500)] == [500]


def test_figures_are_per_request_of_what_was_measured() -> None:
    told = {"requests": 2_000, "seconds": 4.0, "p50_ms": 1.0, "p99_ms": 2.0, "max_ms": 3.0, "client_cpu_s": 0.1}
    assert Found.of(told, server_cpu_s=1.0) == Found(500.0, 1.0, 2.0, 3.0, 500.0, 50.0)


def test_what_is_lost_or_early_is_told() -> None:
    assert wrong(10, 10, FOUND) is None
    assert wrong(10, 9, FOUND) == "10 messages should be there, and 9 are"
    assert "3 messages were not delivered" in (wrong(10, 10, replace(FOUND, missing=3)) or "")
    assert "2 came early" in (wrong(10, 10, replace(FOUND, early=2)) or "")


def test_a_system_that_is_missing_is_told_and_the_others_are_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = system("There")
    assert peers.prepared([absent("Gone"), there], tmp_path) == ([there], {"Gone": "not installed"})
    assert "Gone can't be had here: not installed" in capsys.readouterr().err


def test_a_system_that_lost_a_message_fails_and_its_figures_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(client, "measure", lambda *_: (FOUND, 1_000))
    bench = peers.Bench(tmp_path, tmp_path / "client", [LOAD], 1.0, 0.0, busy=False)
    bench.round(1, system("Sound", stored=1_000))
    bench.round(1, system("Lossy", stored=999))
    assert [run.system for run in bench.runs] == ["Sound"]
    assert bench.failed == {"Lossy": "10 connections: 1,000 messages should be there, and 999 are"}
    assert "Lossy FAILED" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [], "the data of each system go with it"


def test_a_package_is_named_to_those_who_may_not_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    with pytest.raises(Missing, match="apt-get install --yes --no-install-recommends redis-server"):
        processes.program(lambda: None, "redis-server")
    assert processes.program(lambda: "/usr/bin/redis-server", "redis-server") == "/usr/bin/redis-server"


def test_a_build_that_fails_says_why() -> None:
    with pytest.raises(Missing, match=r"can't be built \(no network\?\): no route to host"):
        processes.build([sys.executable, "-c", "import sys; sys.exit('no route to host')"], "it can't be built")
    with pytest.raises(Missing, match="it can't be built: no-such-program is not installed"):
        processes.build(["no-such-program"], "it can't be built")


def test_without_go_it_is_said_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client.shutil, "which", lambda _: None)
    with pytest.raises(Missing, match=r"Go 1\.\d+ or newer"):
        client.compiled(tmp_path)


def test_a_process_ends_with_its_block_after_an_error_too(tmp_path: Path) -> None:
    with pytest.raises(KeyError), processes.running(["sleep", "60"], tmp_path / "log") as process:
        raise KeyError
    assert process.returncode == -15


def test_a_server_that_ends_at_its_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        processes.running(["sh", "-c", "echo no such directory; exit 3"], log) as process,
        pytest.raises(Failed, match="ended with status 3: no such directory"),
    ):
        processes.await_ready(process, log, lambda: False)


def test_processor_time_is_of_the_whole_tree_ended_children_included() -> None:
    assert processes.descendants(7, {7: 1, 8: 7, 9: 8, 10: 1}) == {7, 8, 9}
    before_s = processes.tree_cpu_s(os.getpid())
    subprocess.run([sys.executable, "-c", "sum(range(10_000_000))"], check=True)
    assert processes.tree_cpu_s(os.getpid()) > before_s + 0.02
