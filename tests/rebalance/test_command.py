"""python -m delayoperator.rebalance on a local cluster."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from delayclient.sync import Producer
from delaynode.registry.model import TopicSpec
from delayoperator.local import LocalCluster
from delayoperator.rebalance.__main__ import main
from delayoperator.rebalance.model import HOUR_MS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.timeout(900)  # on a busy machine a JVM alone may take minutes to start


@pytest.fixture
def hot(tmp_path: Path) -> Iterator[LocalCluster]:
    """Two nodes; both shards of one of them have all that falls due in two hours, 500 messages each."""
    with LocalCluster(tmp_path / "hot", nodes=2, topics=[TopicSpec("orders", 4)]) as cluster:
        cluster.wait_ready()
        queues = [it.spec.queue for it in cluster.registry.list_shards() if it.spec.master == "n0"]
        due = int(time.time() * 1000) + 2 * HOUR_MS
        with Producer(cluster.endpoints) as producer:
            for queue in queues[:2]:
                key = next(f"k{n}" for n in range(1000) if zlib.crc32(f"k{n}".encode()) % 4 == queue)
                producer.send_batch("orders", [b"x"] * 500, due_ms=due, keys=[key] * 500)
        yield cluster


def run(*options: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, list(options))
    return done.exit_code, done.stdout, done.stderr


def test_a_local_cluster_gets_its_plan_printed(spark: SparkSession, hot: LocalCluster, tmp_path: Path) -> None:
    registry = f"sqlite:{hot.data / 'registry.db'}"
    code, out, err = run("--registry", registry, "--history", str(tmp_path / "kept"))
    assert code == 0, err
    found = json.loads(out)
    assert found["before"]["peakMessages"] == 1000
    assert found["after"]["peakMessages"] == 500
    assert found["ratio"] == 1
    assert [(it["from"], it["to"]) for it in found["plan"]["moves"]] == [("n0", "n1")]
    assert list((tmp_path / "kept").glob("taken=*/*.parquet"))

    code, out, _ = run("--registry", registry, "--dry-run")
    assert code == 0
    assert "1 moves, in their order" in out
    assert "1,000" in out
    assert "500" in out

    hot.kill("n1", 19)
    try:
        code, _, err = run("--registry", registry)
        assert code == 1
        assert "1 of 2 nodes do not answer" in err
        assert "n1" in err
    finally:
        hot.kill("n1", 18)


def test_what_is_no_registry_is_said(tmp_path: Path) -> None:
    code, _, err = run("--registry", f"sqlite:{tmp_path / 'none.db'}")
    assert code == 1
    assert "none.db" in err
