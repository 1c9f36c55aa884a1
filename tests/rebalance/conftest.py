"""One SparkSession for all tests here: a JVM takes seconds to start. Where Java is missing they are skipped, and say
so; where it is there and Spark does not start, they fail."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from delayapi.units import HOUR_MS
from delayclient.sync import SyncProducer
from delaylocal import LocalCluster
from delayrebalance.session import java_missing, spark_session
from delayregistry.model import TopicSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On a busy machine a JVM alone may take minutes to start. CI sets --timeout: there it waits behind all others."""
    if config.getoption("timeout") is None:
        for item in items:
            if item.path.is_relative_to(Path(__file__).parent):
                item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    if why := java_missing():
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    session = spark_session(
        "local[1]",
        conf={
            "spark.sql.shuffle.partitions": "2",
            "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            "spark.log.level": "OFF",  # tasks that are to fail fail loudly
            # Short queries: a compiler that starts at once is worth more than one that compiles well.
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.adaptive.enabled": "false",
        },
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two nodes, four shards of one topic, nothing in them."""
    data: Path = tmp_path_factory.mktemp("cluster")
    with LocalCluster(data, nodes=2, topics=[TopicSpec("orders", 4)]) as cluster:
        cluster.wait_ready(240)
        yield cluster


@pytest.fixture
def hot(tmp_path: Path) -> Iterator[LocalCluster]:
    """Two nodes; both shards of one of them have all that falls due in two hours, 500 messages each."""
    with LocalCluster(tmp_path / "hot", nodes=2, topics=[TopicSpec("orders", 4)]) as cluster:
        cluster.wait_ready(240)
        queues = [it.spec.queue for it in cluster.registry.list_shards() if it.spec.master == "n0"]
        due = int(time.time() * 1000) + 2 * HOUR_MS
        with SyncProducer(cluster.endpoints) as producer:
            for queue in queues[:2]:
                key = next(f"k{n}" for n in range(1000) if zlib.crc32(f"k{n}".encode()) % 4 == queue)
                producer.send_batch("orders", [b"x"] * 500, due_ms=due, keys=[key] * 500)
        yield cluster
