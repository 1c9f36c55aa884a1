"""The examples in Go and TypeScript, with clients that are generated from the .proto, against real nodes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from delaylocal import LocalCluster
from delayregistry.model import TopicSpec

from e2e.cluster.golang import go_command
from tests.chart.places import ROOT
from tests.serve.support.client import wait_served

EXAMPLES = ROOT / "docs" / "examples"
GENERATE = {
    "PROTOS": str(ROOT / "node" / "delayapi" / "proto"),
    "PROTOC": f"{sys.executable} -m grpc_tools.protoc",
}
PRINTED = "order-18: CANCELLED\norder-17: check the payment\ndone: true\n"


def run(*command: str | Path, cwd: Path, seconds: float = 300, **environment: str) -> str:
    """What it prints."""
    full: Mapping[str, str] = {**os.environ, **GENERATE, **environment}
    ended = subprocess.run(command, cwd=cwd, env=full, capture_output=True, text=True, timeout=seconds, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def copied(language: str, directory: Path) -> Path:
    return Path(shutil.copytree(EXAMPLES / language, directory / language))


def test_go(tmp_path: Path) -> None:
    if shutil.which("go") is None:
        pytest.skip("no go command; Debian has it in golang-go")
    at, go = copied("go", tmp_path), go_command()
    path = f"{go.parent}:{os.environ['PATH']}"
    run("./generate.sh", cwd=at, PATH=path)
    run(go, "build", "-o", "example", ".", cwd=at, PATH=path)
    assert ended_on_nodes(tmp_path, [at / "example"], at) == PRINTED


def test_typescript(tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed; Debian has it in npm")
    at = copied("typescript", tmp_path)
    run("npm", "install", "--silent", "--ignore-scripts", cwd=at, HOME=str(tmp_path))
    run("npm", "run", "--silent", "build", cwd=at, HOME=str(tmp_path))
    assert ended_on_nodes(tmp_path, ["node", "dist/main.js"], at) == PRINTED


def ended_on_nodes(directory: Path, command: list[str | Path], cwd: Path) -> str:
    """What the program prints that is given the address of one of two nodes."""
    with LocalCluster(directory / "data", nodes=2, topics=[TopicSpec("orders", 4)]) as cluster:
        wait_served(cluster)
        return run(*command, f"http://{cluster.http[1]}", cwd=cwd, seconds=60)
