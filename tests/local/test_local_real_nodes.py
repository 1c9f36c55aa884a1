"""The same with real `delaynode` processes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from delayctl.main import main
from delaylocal import LocalCluster
from delaynode.store.log.files import DiskFiles
from delaynode.store.maintenance.marker import mark_damaged
from delayregistry.model import TopicSpec

from tests.operator.runbook import DAMAGE, commands, filled, section


def test_real_nodes_serve_are_restarted_and_are_there_again_after_a_stop(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, nodes=2, topics=[TopicSpec("orders", 4)]) as cluster:
        cluster.wait_ready()
        before = {shard.name: shard.spec for shard in cluster.registry.list_shards()}
        cluster.kill("n1")
        cluster.wait_ready()
        for shard in cluster.registry.list_shards():
            assert shard.spec.epoch == (2 if shard.spec.master == "n1" else 1)
        assert cluster.stop() == ()
    with LocalCluster(tmp_path) as cluster:
        cluster.wait_ready()
        for shard in cluster.registry.list_shards():
            assert (shard.spec.uid, shard.spec.replicas) == (before[shard.name].uid, before[shard.name].replicas)


def test_a_killed_master_costs_no_lease(tmp_path: Path) -> None:
    """Neither the operator nor the next master waits for one to run out."""
    with LocalCluster(tmp_path, nodes=2, replicas=2, topics=[TopicSpec("orders", 2)], lease_seconds=20) as cluster:
        cluster.wait_ready()
        killed = {shard.name for shard in cluster.registry.list_shards() if shard.spec.master == "n1"}
        assert killed
        cluster.kill("n1")
        deadline = time.monotonic() + 12
        while waiting := [
            shard
            for shard in cluster.registry.list_shards()
            if shard.name in killed and (shard.status is None or shard.status.serving_epoch == 1)
        ]:
            assert time.monotonic() < deadline, waiting
            time.sleep(0.05)


def test_a_damaged_shard_is_said_at_the_start_and_the_others_are_served(tmp_path: Path) -> None:
    first = _start(tmp_path, "--nodes", "1", "--topic", "orders:2")
    assert "blocked" not in _ready(first)
    _stop(first)
    (shard,) = tmp_path.glob("n0/shards/orders-0-*")
    whole = {path: path.read_bytes() for path in (shard / "log/00000000000000000000", shard / "checkpoint")}
    log, checkpoint = whole
    log.write_bytes(bytes(byte ^ 0xFF for byte in log.read_bytes()))
    checkpoint.unlink()
    second = _start(tmp_path)
    blocked = _ready(second)["blocked"]
    said = _stop(second)
    assert list(blocked) == ["orders-0"]
    assert "is blocked, CopyDamaged" in blocked["orders-0"]
    assert f"not served: shard orders-0 {blocked['orders-0']}" in said
    # As docs/damage.md has it, where CopyDamaged leads to. The mark is of a failure while it served.
    assert "[damage.md](damage.md#when-a-shard-says-shard_damaged)" in section("CopyDamaged")
    look, clear = commands("When a shard says SHARD_DAMAGED", "delayctl verify", page=DAMAGE)
    mark_damaged(DiskFiles(), str(shard), "CommitLog: fsync failed", 1, 2)
    assert _run(look, shard) == 1
    assert _run(clear, shard) == 1
    assert (shard / "damaged").exists(), "something else is wrong too"
    for path, content in whole.items():  # the files are repaired
        path.write_bytes(content)
    assert _run(look, shard) == 1
    assert _run(clear, shard) == 0
    assert _run(look, shard) == 0
    third = _start(tmp_path)
    assert "blocked" not in _ready(third)
    _stop(third)


def _run(command: str, directory: Path) -> int:
    words = filled(command, DIR=str(directory))[1:]
    return CliRunner().invoke(main, words, catch_exceptions=False).exit_code


def _start(data: Path, *options: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-c",
        "from delayctl.main import main; main()",
        "local",
        "--data",
        str(data),
        "--port",
        "0",
        *options,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _ready(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Its one line."""
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


def _stop(process: subprocess.Popen[str]) -> str:
    """What it said on stderr."""
    process.terminate()
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 0
    return said
