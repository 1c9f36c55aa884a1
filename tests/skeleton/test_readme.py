"""The README's examples, run as they are written, against a local cluster."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from delaylocal import LocalCluster
from delayregistry.model import TopicSpec

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
DEFAULT_ENDPOINT = "127.0.0.1:7070"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    """A node of the cluster that the README starts: topic orders with 8 queues."""
    assert "delayctl local --topic orders:8\n" in README
    with LocalCluster(tmp_path / "cluster", nodes=3, topics=[TopicSpec("orders", 8)], port=0) as cluster:
        cluster.wait_ready()
        yield cluster.endpoints[0]


def run(command: list[str], directory: Path, endpoint: str) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "DELAYCTL_ENDPOINT": endpoint}
    ended = subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_tour_in_the_terminal(endpoint: str, tmp_path: Path) -> None:
    (tour,) = [block for block in blocks("sh") if "delayctl produce" in block]
    printed = run(["bash", "-euo", "pipefail", "-c", tour], tmp_path, endpoint)
    assert '"key": "order-42"' in printed
    assert re.search(r"^ *1000 CANCELLED$", printed, re.MULTILINE)


def test_the_program(endpoint: str, tmp_path: Path) -> None:
    (program,) = blocks("python")
    assert DEFAULT_ENDPOINT in program
    printed = run([sys.executable, "-c", program.replace(DEFAULT_ENDPOINT, endpoint)], tmp_path, endpoint)
    assert "CANCELLED" in printed
    assert re.search(r"^order-42 b'pay, please' \d+ ms late$", printed, re.MULTILINE)


def test_every_command_in_the_table_exists() -> None:
    page = (ROOT / "docs/delayctl.md").read_text()
    named = set(re.findall(r"^\| `delayctl ([a-z]+)` \|", page, re.MULTILINE))
    command = "from delayctl.main import main; print(*main.list_commands(None))"
    listed = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True).stdout.split()
    assert named == set(listed)
