"""`delaynode verify` and `delayctl verify` on the files of a real node."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from delaylocal import LocalCluster
from delaynode.store.log.files import DiskFiles
from delaynode.store.maintenance.marker import mark_damaged
from delayregistry.model import TopicSpec

from tests.serve.support.client import Client, Msg, Shard, wait_served

DELAYS = (0, 20, 90_000, 3_600_000, 26 * 3_600_000, 3 * 86_400_000)


NODE = "from delaynode.main import main; main()"
CTL = "from delayctl.main import main; main()"


def run(*arguments: object, program: str = NODE) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, "verify", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def events(*arguments: object) -> tuple[int, list[dict[str, Any]]]:
    ended = run("--json", *arguments)
    assert not ended.stderr, ended.stderr
    return ended.returncode, [json.loads(line) for line in ended.stdout.splitlines()]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("verify"), nodes=1, topics=[TopicSpec("t", 2)]) as running:
        wait_served(running)
        with Client(running.endpoints[0]) as client:
            for queue in range(2):
                shard = Shard(client, "t", queue)
                shard.send(*[Msg(b"body %d" % n, delay_ms=DELAYS[n % 6]) for n in range(600)])
                got = shard.receive(max_messages=50, wait_ms=5_000)
                shard.ack((0, 10))
                shard.nack(got[20:22], backoff_ms=0)
                gone = shard.send(*[Msg(delay_ms=3_600_000)] * 10)
                shard.cancel(gone)
        yield running


@pytest.fixture(scope="module")
def killed(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A node's data as kill -9 leaves it."""
    data = tmp_path_factory.mktemp("killed") / "n0"
    cluster.kill("n0", signal.SIGSTOP)
    try:
        shutil.copytree(cluster.data / "n0", data)
    finally:
        cluster.kill("n0", signal.SIGCONT)
    return data


@pytest.fixture
def data(killed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(killed, tmp_path / "n0"))


def shard_of(data: Path) -> Path:
    return min((data / "shards").iterdir())


def content(data: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in data.rglob("*") if path.is_file()}


def flip(path: Path, byte: int) -> None:
    changed = bytearray(path.read_bytes())
    changed[byte] ^= 4
    path.write_bytes(changed)


def test_while_a_node_runs_there_it_refuses(cluster: LocalCluster) -> None:
    for directory in (cluster.data, cluster.data / "n0", cluster.data / "n0" / "shards", shard_of(cluster.data / "n0")):
        ended = run(directory)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert "is used by another process: stop the node first" in ended.stderr


def test_what_a_killed_node_leaves_is_well_and_stays_as_it_is(data: Path) -> None:
    before = content(data)
    code, told = events(data)
    assert code == 0, told
    summaries = [event for event in told if event["event"] == "summary"]
    assert [summary["messages"] for summary in summaries] == [610, 610]
    assert all(summary["pending"] == 400 and summary["damage"] == 0 for summary in summaries)
    assert told[-1] == {"event": "total", "shards": 2, "damaged": []}
    assert content(data) == before
    code, told = events(shard_of(data))
    assert code == 0
    assert told[-1]["shards"] == 1


def test_a_node_that_stopped_cleanly_is_well(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "own", nodes=1, topics=[TopicSpec("t", 1)]) as own:
        wait_served(own)
        with Client(own.endpoints[0]) as client:
            Shard(client, "t", 0).send(*[Msg(delay_ms=delay) for delay in DELAYS * 5])
        own.stop()
        code, told = events(own.data)
    assert code == 0, told
    (summary,) = [event for event in told if event["event"] == "summary"]
    assert summary["pending"] + summary["entries"] == 30
    assert summary["units"] >= 20
    assert summary["slots"] > 2_000


def test_a_flipped_bit_is_named_and_the_status_is_1(data: Path) -> None:
    segment = min((shard_of(data) / "log").iterdir())
    flip(segment, 200)
    code, told = events(data)
    assert code == 1
    found = [event for event in told if event["event"] == "finding" and not event["note"]]
    assert any(event["path"] == str(segment) and event["offset"] <= 200 and "crc32" in event["what"] for event in found)
    assert told[-1]["damaged"] == [str(shard_of(data))]  # the other shard is well
    plain = run(data)
    assert plain.returncode == 1
    assert f"DAMAGE: {segment} at byte" in plain.stdout


def test_a_mark_goes_when_nothing_else_is_wrong_and_only_when_asked(data: Path) -> None:
    shard = shard_of(data)
    mark_damaged(DiskFiles(), str(shard), "CommitLog: fsync failed", 1, 2)
    code, told = events(data)
    assert code == 1
    (found,) = [event for event in told if event["event"] == "finding" and not event["note"]]
    assert (found["path"], "fsync failed" in found["found"]) == (str(shard / "damaged"), True)
    assert (shard / "damaged").exists()

    flip(min((shard / "log").iterdir()), 200)
    code, _ = events("--clear-damaged", data)
    assert code == 1
    assert (shard / "damaged").exists()

    flip(min((shard / "log").iterdir()), 200)
    code, told = events("--clear-damaged", data)
    assert code == 0, told
    assert not (shard / "damaged").exists()
    assert events(data)[0] == 0


def test_a_timer_log_with_a_hole_is_made_again_from_the_log_when_the_mark_is_cleared(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "own", nodes=1, topics=[TopicSpec("t", 1)]) as own:
        wait_served(own)
        with Client(own.endpoints[0]) as client:
            Shard(client, "t", 0).send(*[Msg(delay_ms=3_600_000 + n) for n in range(50)])
        own.stop()
        shard = shard_of(own.data / "n0")
        segment = min((shard / "timerlog").iterdir())
        before = segment.read_bytes()
        assert len(before) > 2_000
        segment.write_bytes(before[:520] + bytes(1_000) + before[1_520:])
        damaged = segment.read_bytes()
        assert events("--clear-damaged", shard)[0] == 1
        assert segment.read_bytes() == damaged  # it has no mark: a start mends it, or says why not
        mark_damaged(DiskFiles(), str(shard), "the check of a unit differs", 1, 2)
        code, told = events("--clear-damaged", shard)
        assert code == 0, told
        assert [event["positions"] for event in told if event["event"] == "mended"] == [[0]]
        assert segment.read_bytes() == before
        assert events(shard)[0] == 0


def test_wrong_usage_has_status_2(tmp_path: Path) -> None:
    assert run(tmp_path).returncode == 2  # no shard
    assert run(tmp_path / "nothing").returncode == 2
    assert run().returncode == 2
    assert run(tmp_path / "nothing", program=CTL).returncode == 2


def test_delayctl_shows_the_same(data: Path) -> None:
    def delayctl(*arguments: object) -> subprocess.CompletedProcess[str]:
        return run(*arguments, program=CTL)

    ended = delayctl(data)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("well") == 2
    flip(min((shard_of(data) / "log").iterdir()), 200)
    ended = delayctl(data)
    assert ended.returncode == 1, ended.stderr
    assert "DAMAGE" in ended.stdout
    lines = [json.loads(line) for line in delayctl("--json", data).stdout.splitlines()]
    assert lines[-1]["event"] == "total"


def test_delayctl_refuses_as_the_node_does(cluster: LocalCluster) -> None:
    ended = run(cluster.data, program=CTL)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("delayctl: ")
    assert "stop the node first" in ended.stderr
