"""One SparkSession for all tests here: a JVM takes seconds to start. Where Java is missing they are skipped, and say
so; where it is there and Spark does not start, they fail."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from delaynode.registry.model import TopicSpec
from delayoperator.local import LocalCluster
from delayoperator.rebalance.session import java_missing, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
        cluster.wait_ready()
        yield cluster
