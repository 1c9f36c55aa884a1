"""The command of an executor's pod, from what Spark says in its environment."""

from __future__ import annotations

import pytest
from delayrebalance.executor import BACKEND, command

SAID = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.1:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "1",
    "SPARK_EXECUTOR_MEMORY": "1024m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
    "SPARK_EXECUTOR_POD_NAME": "rebalance-exec-3",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_CONF_DIR": "/opt/spark/conf",
    "SPARK_JAVA_OPT_10": "-Dlast=1",
    "SPARK_JAVA_OPT_2": "-Dsecond=with space",
    "SPARK_JAVA_OPT_0": "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "PATH": "/usr/bin",
}


def test_the_executor_gets_what_spark_said_and_its_options_in_their_order() -> None:
    assert command(SAID, "/jars") == [
        "java",
        "--add-opens=java.base/java.nio=ALL-UNNAMED", "-Dsecond=with space", "-Dlast=1",
        "-Xms1024m", "-Xmx1024m",
        "-cp", "/opt/spark/conf:/jars/*",
        BACKEND,
        "--driver-url", "spark://CoarseGrainedScheduler@10.0.0.1:7078",
        "--executor-id", "3",
        "--cores", "1",
        "--app-id", "spark-1",
        "--hostname", "10.0.0.7",
        "--resourceProfileId", "0",
        "--podName", "rebalance-exec-3",
    ]  # fmt: skip


def test_outside_of_an_executors_pod_it_says_what_is_missing() -> None:
    with pytest.raises(KeyError, match="SPARK_DRIVER_URL"):
        command({name: value for name, value in SAID.items() if name != "SPARK_DRIVER_URL"}, "/jars")
