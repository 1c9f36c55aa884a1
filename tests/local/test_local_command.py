"""`delayctl local` as people and scripts run it: its lines, its exit status, its signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from delayctl.cluster.local import _Signals, _write_context, local
from delaylocal.own_keys import OwnKeys

# The command, with the fake node in the place of the real one.
RUN = """
import sys
from delaylocal import cluster
from delayctl.cluster.local import local
node = sys.argv.pop(1)
cluster.LocalCluster.__init__.__kwdefaults__["node_command"] = (sys.executable, node)
local()
"""
Process = subprocess.Popen[str]
Run = Callable[..., Process]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    processes: list[Process] = []

    def run(*options: str, data: str = "data") -> Process:
        node = str(Path(__file__).with_name("fake_node.py"))
        command = [sys.executable, "-c", RUN, node, "--data", str(tmp_path / data), *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        return process

    yield run
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        process.communicate(timeout=60)


def line(process: Process) -> dict[str, Any]:
    assert process.stdout is not None
    text = process.stdout.readline()
    assert text, process.stderr.read() if process.stderr else ""
    found: dict[str, Any] = json.loads(text)
    return found


def running(pid: int) -> bool:
    """Whether the process still does something: a zombie, which no parent reaps here, does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_ready_line_then_a_clean_stop(run: Run, port: int, signum: signal.Signals) -> None:
    process = run("--nodes", "3", "--topic", "orders:8", "--port", str(port), "--json")
    ready = line(process)
    assert ready == {
        "event": "ready",
        "endpoints": [f"127.0.0.1:{port + number}" for number in range(3)],
        "http": [f"127.0.0.1:{port + 100 + number}" for number in range(3)],
        "pids": ready["pids"],
    }
    assert sorted(ready["pids"]) == ["n0", "n1", "n2"]
    process.send_signal(signum)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, ""), err
    assert not any(running(pid) for pid in ready["pids"].values())
    assert {json.loads(event)["event"] for event in err.splitlines()} == {"node-started"}


def test_a_signal_that_another_thread_received_wakes_who_waits() -> None:
    former = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    former[signal.SIGUSR1] = signal.getsignal(signal.SIGUSR1)
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        with closing(_Signals()) as signals:
            assert other.ident is not None
            timer = threading.Timer(0.3, signal.pthread_kill, (other.ident, signal.SIGHUP))
            timer.start()
            assert signals.next(20) == signal.SIGHUP
            assert signals.stopping
            timer.join()
    finally:
        done.set()
        other.join()
        for signum, handler in former.items():
            signal.signal(signum, handler)


def test_a_death_and_the_restart_are_lines_on_stderr(run: Run) -> None:
    process = run("--nodes", "1", "--topic", "orders:1", "--port", "0")
    pid = line(process)["pids"]["n0"]
    os.kill(pid, signal.SIGKILL)
    assert process.stderr is not None
    events = [json.loads(process.stderr.readline()) for _ in range(3)]
    assert [event["event"] for event in events] == ["node-started", "node-died", "node-restarted"]
    assert (events[1]["pid"], events[1]["signal"]) == (pid, "SIGKILL")
    assert events[2]["pid"] != pid
    assert running(events[2]["pid"])


def test_a_cluster_whose_events_nobody_reads_goes_on(run: Run) -> None:
    process = run("--nodes", "1", "--topic", "orders:1", "--port", "0")
    pid = line(process)["pids"]["n0"]
    assert process.stderr is not None
    process.stderr.close()
    for _ in range(2):
        os.kill(pid, signal.SIGKILL)
        old, deadline_s = pid, time.monotonic() + 20
        while pid == old or not running(pid):
            assert process.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
            children = Path(f"/proc/{process.pid}/task").glob("*/children")
            pid = next((int(child) for it in children for child in it.read_text().split()), old)
    process.stderr = None


def test_nodes_die_with_a_killed_supervisor_and_the_next_start_goes_on(run: Run, port: int) -> None:
    options = ("--nodes", "2", "--topic", "orders:2", "--port", str(port))
    process = run(*options)
    pids = line(process)["pids"].values()
    os.kill(next(iter(pids)), signal.SIGSTOP)  # a frozen node dies too
    process.kill()
    again = run(*options)
    assert line(again)["event"] == "ready"
    deadline_s = time.monotonic() + 5
    while any(running(pid) for pid in pids):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_a_signal_before_it_is_ready_stops_it_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NODE", "mute")
    process = run("--nodes", "1", "--topic", "orders:1", "--port", "0")
    assert process.stderr is not None
    assert json.loads(process.stderr.readline())["event"] == "node-started"
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "")


def test_a_second_one_on_the_directory_and_a_port_in_use_are_clear_errors(run: Run, port: int) -> None:
    process = run("--nodes", "1", "--topic", "orders:1", "--port", str(port))
    line(process)
    second = run("--port", "0")
    assert "runs on" in second.communicate(timeout=30)[1]
    assert second.returncode == 1
    elsewhere = run("--nodes", "1", "--topic", "orders:1", "--port", str(port), data="elsewhere")
    assert f"already in use on 127.0.0.1: port {port}, {port + 100}" in elsewhere.communicate(timeout=30)[1]
    assert elsewhere.returncode == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "name its first topic, --topic NAME:QUEUES"),
        (["--topic", "orders:0"], "allowed: 1 to"),
        (["--topic", "orders:many"], "expected NAME:QUEUES"),
        (["--topic", "orders:1:fast"], "expected NAME:QUEUES[:RATE]"),
        (["--topic", "orders:1:0"], "max_release_per_second is 0; allowed: 1 to"),
        (["--topic", "a:1", "--quotas", "a:rate=1"], "'rate' is none of pendingMessages"),
        (["--topic", "a:1", "--quotas", "a:pendingBytes=0"], "pending_bytes is 0; allowed: 1 to"),
        (["--topic", "a:1", "--quotas", "b:pendingBytes=1"], "no --topic names b"),
        (["--topic", "Orders:8"], "topic name 'Orders'"),
        (["--topic", "a:1", "--nodes", "0"], "--nodes"),
        (["--topic", "a:1", "--port", "70000"], "--port"),
        (["--topic", "a:1", "--zones", "a,,b"], "'' is no zone"),
    ],
)
def test_bad_options_are_said_and_start_nothing(tmp_path: Path, options: list[str], words: str) -> None:
    result = CliRunner().invoke(local, [*options, "--data", str(tmp_path / "data")])
    assert result.exit_code == 2
    assert words in result.output
    assert not (tmp_path / "data").exists()


def test_another_clusters_context_is_not_replaced_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DELAYCTL_CONFIG", str(tmp_path / "config.toml"))
    for directory, port in (("a", 1), ("a", 2), ("b", 3)):
        _write_context(SimpleNamespace(endpoints=[f"h:{port}"]), OwnKeys(tmp_path / directory))
    assert capsys.readouterr().err == "context 'local' was that of h:2, and is this cluster's now\n"
