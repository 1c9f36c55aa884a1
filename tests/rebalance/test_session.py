"""The messages for machines on which Spark can't run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from delayrebalance.session import JAVA_PACKAGE, SparkMissing, java_missing, spark_session


def java(directory: Path, version: str, ends: int = 0) -> Path:
    (directory / "bin").mkdir(parents=True)
    path = directory / "bin" / "java"
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\nexit {ends}\n")
    path.chmod(0o755)
    return directory


@pytest.mark.parametrize("version", ["17.0.15", "21.0.2", "25-ea"])
def test_a_java_that_is_new_enough_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / "jdk", version)))
    assert java_missing() == ""


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_392", "what"])
def test_an_old_java_is_refused_with_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / "jdk", version)))
    assert version in java_missing()
    assert f"apt-get install {JAVA_PACKAGE}" in java_missing()


def test_without_java_the_package_is_named_before_spark_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkMissing, match=f"no java on the PATH. Debian: apt-get install {JAVA_PACKAGE}"):
        spark_session("local[1]")


@pytest.mark.parametrize("package", ["pyspark", "pyarrow"])
def test_without_pyspark_the_extra_is_named(package: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from delayrebalance.__main__ import main\n"
        "main(['--registry', 'sqlite:/nowhere/registry.db'])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    assert f"needs {package}" in ended.stderr
    assert "pip install 'delaycluster[spark]'" in ended.stderr
