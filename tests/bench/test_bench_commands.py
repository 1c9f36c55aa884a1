"""`delayctl bench` with tiny numbers: the fields that scripts rely on, nothing lost, nothing left behind."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from delayapi.proto.delay.v1 import delay_pb2
from delayclient.routing.routing import Cluster
from delayctl.main import main

from benchmarks.workloads import w2, w5
from benchmarks.workloads.commands import bench
from benchmarks.workloads.ledger import Lateness, Verdict
from benchmarks.workloads.target import Target, own_node

NOTHING_WRONG = {"early": 0, "missing": 0, "duplicates": 0}


@pytest.fixture(autouse=True)
def own_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def run(*arguments: str) -> dict[str, Any]:
    """The JSON object that a workload prints."""
    result = CliRunner().invoke(bench, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.mark.parametrize("how", [["--batch", "500"], ["--batch", "1", "--at-once", "8"], ["--send"]], ids=" ".join)
def test_w1_says_the_rate_and_the_disks_own(how: list[str]) -> None:
    found = run("w1", "--messages", "1500", "--queues", "2", *how)
    assert (found["workload"], found["messages"], found["body_bytes"], found["queues"]) == ("w1", 1500, 256, 2)
    assert found["messages_per_second"] > 0
    assert found["bytes_per_second"] == pytest.approx(256 * found["messages_per_second"])
    assert found["disk_sequential_bytes_per_second"] > 0


@pytest.mark.parametrize("how", [[], ["--each"]], ids=["columns", "each"])
def test_w2_accounts_for_every_message_of_the_herd(how: list[str]) -> None:
    found = run("w2", "--messages", "3000", "--queues", "2", *how)
    assert found["workload"] == "w2"
    assert {name: found[name] for name in NOTHING_WRONG} == NOTHING_WRONG
    assert found["delivered"] == 3000
    assert found["messages_per_second"] > 0
    assert list(found["lateness_ms"]) == ["min", "p50", "p99", "max"]


@pytest.mark.parametrize(
    "how",
    [["--clients", "20"], ["--clients", "12", "--connections", "3"], ["--clients", "4", "--stream", "--window", "5"]],
    ids=" ".join,
)
def test_w9_stores_a_message_a_request(how: list[str]) -> None:
    found = run("w9", "--messages", "300", "--queues", "2", *how)
    assert found["requests_per_second"] > 0
    latency = found["latency_ms"]
    assert 0 < latency["p50"] <= latency["p99"] <= latency["max"]
    assert found["node_cpu_us_per_request"] > 0


def test_w9_takes_a_window_with_streams_only() -> None:
    result = CliRunner().invoke(bench, ["w9", "--window", "4"])
    assert result.exit_code == 2
    assert "--window is of a --stream" in result.output


def test_w9_says_what_the_cluster_refuses() -> None:
    with own_node(2) as target:
        arguments = ["w9", "--endpoint", target.endpoint, "--messages", "5", "--clients", "2", "--topic"]
        assert CliRunner().invoke(bench, [*arguments, target.topic]).exit_code == 0
        result = CliRunner().invoke(bench, [*arguments, "nowhere"])
    assert result.exit_code == 1
    assert "unknown topic 'nowhere'" in result.output


def test_w10_accounts_for_every_message() -> None:
    found = run("w10", "--messages", "200", "--queues", "3", "--clients", "8", "--connections", "4")
    assert (found["missing"], found["duplicates"]) == (0, 0)
    assert 0 < found["latency_ms"]["p50"] <= found["latency_ms"]["max"]


def test_w3_accounts_for_every_message_of_the_flow() -> None:
    found = run("w3", "--seconds", "1", "--rate", "300", "--queues", "2")
    assert (found["workload"], found["messages"], found["delivered"]) == ("w3", 300, 300)
    assert {name: found[name] for name in NOTHING_WRONG} == NOTHING_WRONG


def test_w4_recovers_and_has_everything_pending() -> None:
    found = run("w4", "--messages", "5000", "--queues", "2")
    assert (found["workload"], found["pending"], found["pending_after"], found["lost"]) == ("w4", 5000, 5000, 0)
    assert found["recovery_seconds"] >= found["accepting_seconds"] > 0


def test_w5_measures_at_each_size_and_names_the_last() -> None:
    found = run("w5", "--messages", "4000", "--messages", "2000", "--queues", "2", "--settle", "0")
    assert [step["pending"] for step in found["steps"]] == [2000, 4000]
    assert (found["workload"], found["pending"], found["messages"]) == ("w5", 4000, 4000)
    assert found["disk_bytes_per_message"] >= 256
    assert found["rss_bytes"] > 0


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    run("w1", "--messages", "100", "--queues", "1")
    assert list(tmp_path.iterdir()) == []


def test_without_json_every_field_is_a_line() -> None:
    result = CliRunner().invoke(bench, ["w1", "--messages", "100", "--queues", "1"], catch_exceptions=False)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == "workload: w1"
    assert "messages: 100" in result.stdout


@pytest.mark.parametrize("fault", NOTHING_WRONG)
def test_a_workload_whose_messages_went_wrong_fails(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(*_: object) -> Verdict:
        late = Lateness(1.0, 1.0, 1.0, 1.0)
        return Verdict(100, 1.0, 100.0, late, **{**NOTHING_WRONG, fault: 3})

    monkeypatch.setattr(w2, "run", run)
    result = CliRunner().invoke(bench, ["w2", "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)[fault] == 3
    assert f"3 {fault}" in result.stderr


def test_a_workload_that_needs_its_own_node_takes_no_endpoint() -> None:
    for name in ("w4", "w5"):
        assert CliRunner().invoke(bench, [name, "--endpoint", "127.0.0.1:1"]).exit_code == 2
    with pytest.raises(ValueError, match="own"):
        asyncio.run(w5.run(w5.W5Settings((1,), 1, 0.0), Target("127.0.0.1:1", "t", 1), lambda _: None))


def test_an_endpoint_that_nobody_listens_on_is_an_error_and_not_a_hang() -> None:
    result = CliRunner().invoke(bench, ["w1", "--endpoint", "127.0.0.1:1", "--messages", "10", "--send"])
    assert result.exit_code == 3
    assert "127.0.0.1:1" in result.stderr


@pytest.fixture
def running() -> Iterator[Target]:
    with own_node(2) as target:
        yield target


def test_a_cluster_that_runs_already_is_used_and_keeps_no_group(running: Target) -> None:
    elsewhere = ["--endpoint", running.endpoint, "--topic", running.topic]
    assert run("w1", "--messages", "500", *elsewhere)["disk_sequential_bytes_per_second"] is None
    assert run("w2", "--messages", "500", *elsewhere)["delivered"] == 500
    assert run("w3", "--messages", "50", *elsewhere)["delivered"] == 50

    async def groups() -> list[str]:
        async with Cluster(running.endpoint) as cluster:
            request = delay_pb2.DescribeGroupRequest(topic=running.topic, queue=0)
            answer = await cluster.call(
                "DescribeGroup", running.topic, 0, request, delay_pb2.DescribeGroupResponse.FromString
            )
            return [group.group for group in answer.groups]

    assert asyncio.run(groups()) == []


def test_without_a_checkout_delayctl_says_where_bench_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not (Path(path) / "benchmarks").is_dir()])
    result = CliRunner().invoke(main, ["bench", "w1"])
    assert result.exit_code == 2
    assert "bench is not installed: it comes with a checkout of the project" in result.stderr
