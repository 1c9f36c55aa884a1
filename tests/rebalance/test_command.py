"""python -m delayrebalance on a local cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from click.testing import CliRunner
from delaylocal import LocalCluster
from delayrebalance.__main__ import main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
