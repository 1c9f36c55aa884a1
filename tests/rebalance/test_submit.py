"""The job as docs/rebalance.md has it for other Spark clusters: through spark-submit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from delaylocal import LocalCluster
from delayrebalance import __main__ as command
from delayrebalance.session import java_missing


@pytest.mark.skipif(bool(java_missing()), reason="Spark needs Java")
def test_spark_submit_runs_the_job_with_its_own_master(hot: LocalCluster, tmp_path: Path) -> None:
    """spark-submit's stdout has Python's stderr too; the plan is the last line."""
    python = Path(sys.executable)
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    done = subprocess.run(
        [
            submit, "--master", "local[2]", "--conf", f"spark.local.dir={tmp_path}",
            "--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.driver.host=127.0.0.1",
            command.__file__, "--registry", f"sqlite:{hot.data / 'registry.db'}",
        ],
        capture_output=True, text=True, timeout=600, check=False, cwd=tmp_path,
        env={**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2_000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["before"]["peakMessages"], found["after"]["peakMessages"], found["ratio"]) == (1000, 500, 1)
    assert [(it["from"], it["to"]) for it in found["plan"]["moves"]] == [("n0", "n1")]
