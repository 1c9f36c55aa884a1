"""`delayctl rebalance` with real Spark over real nodes: from a badly placed cluster to an even one, in commands."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delayclient import Producer
from delaylocal import LocalCluster
from delayregistry.model import ClusterSpec, ShardSpec, TopicSpec
from delayregistry.sqlite import SqliteRegistry

pytest.importorskip("pyspark")
pytestmark = [
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java"),
    pytest.mark.timeout(900),  # Spark starts in seconds, or in minutes where many others want the processor
]

HOT, COLD = 400, 10


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Two nodes with four shards each; those of n0 have nearly all that is due."""
    registry = SqliteRegistry(tmp_path / "registry.db", create=True)
    registry.put_cluster(ClusterSpec("local", 2, (TopicSpec("t", 8),)), None)
    for queue in range(8):
        registry.create_shard(ShardSpec(queue + 1, "t", queue, (f"n{queue // 4}",)))
    registry.close()
    with LocalCluster(tmp_path) as found:
        found.wait_ready()
        yield found


def delayctl(*arguments: str) -> subprocess.CompletedProcess[str]:
    # A process of its own, as Spark's session and Java stay with it.
    command = [sys.executable, "-c", "from delayctl.main import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env={**os.environ, "COLUMNS": "120"})


def done(*arguments: str) -> Any:
    result = delayctl(*arguments, "--json")
    assert (result.returncode, result.stderr) == (0, ""), "what Spark says goes into a log"
    return json.loads(result.stdout)


async def fill(endpoint: str) -> None:
    """n0's queues get HOT messages each, the others COLD, all due within ten minutes, three hours from now."""
    key_of: dict[int, str] = {}
    for number in range(1_000):
        key_of.setdefault(zlib.crc32(str(number).encode()) % 8, str(number))
    keys = [key_of[queue] for queue in range(8) for _ in range(HOT if queue < 4 else COLD)]
    due_ms = int(time.time() * 1000) + 3 * 3_600_000 + np.arange(len(keys), dtype=np.int64) % 600_000
    async with Producer(endpoint) as producer:
        await producer.send_batch("t", [b"x"] * len(keys), due_ms=due_ms, keys=keys)


def homes(cluster: LocalCluster) -> dict[str, tuple[str, ...]]:
    return {shard.name: shard.spec.replicas for shard in cluster.registry.list_shards()}


def test_a_badly_placed_cluster_is_evened_out_by_its_approved_plan(cluster: LocalCluster) -> None:
    at, to = ("--data", str(cluster.data)), ("--endpoint", cluster.endpoints[0])
    asyncio.run(fill(cluster.endpoints[0]))
    before = homes(cluster)

    proposal = done("rebalance", *at)
    assert proposal["state"] == "ProposalReady"
    plan = proposal["plan"]
    assert plan["before"]["peakMessages"] > 1.5 * plan["before"]["lowerBoundMessages"]
    assert plan["after"]["peakMessages"] <= 1.15 * plan["after"]["lowerBoundMessages"]
    assert {move["from"] for move in plan["moves"]} == {"n0"}
    assert homes(cluster) == before, "nothing moves before it is approved"

    pictured = done("wheel", "--nodes", "--proposed", *at, *to)
    assert pictured["before"]["peak_messages"] == pytest.approx(plan["before"]["peakMessages"], abs=1)
    assert pictured["after"]["peak_messages"] == pytest.approx(plan["after"]["peakMessages"], abs=1)

    over = done("rebalance", "--approve", plan["hash"], "--wait", *at)
    assert (over["state"], over["progress"]["movesDone"]) == ("Ready", len(plan["moves"]))
    moved = {move["shard"]: (move["to"],) for move in plan["moves"]}
    assert homes(cluster) == {**before, **moved}
    now = done("wheel", "--nodes", *to)
    assert now["before"]["peak_messages"] == pytest.approx(pictured["after"]["peak_messages"], abs=1)
    assert sum(node["messages"] for node in now["before"]["nodes"]) == pytest.approx(4 * (HOT + COLD))
