"""docs/coming-from.md leases that all its commands and programs are run: here."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from delaylocal import LocalCluster
from delayregistry.model import TopicSpec

PAGE = (Path(__file__).resolve().parents[2] / "docs/coming-from.md").read_text()
DEFAULT_ENDPOINT = "127.0.0.1:7070"
BLOCKS = re.findall(r"^```(sh|python)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SAID = {
    "dlq list": r"\A\Z",
    "--delay 2s --key order-1": r'"key": "order-1"',
    "--key no-level": r"acknowledged 1.*\n.*acknowledged 1",
    "--spread": r"20\d messages pending",
    "order-43.handle": r"^CANCELLED \S+\nALREADY_CANCELLED ",
    "shards orders --json": r'"watermark_ms": \d',
    "--key after": r"^DELAY_TOO_LONG",
    "--group cmq": r"^cmq +cmq +\d+ +0 ",
    "deferred": r"b'deferred' attempt 2",
    "--key quick": r'"key": "quick"',
    "strike": r"strike 3",
    "artemis": r"MOVED MOVED",
    "job-7": r"^CANCELLED ",
}
"""What a block prints, by a part of it that no other has."""


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The cluster that the page names."""
    assert "delayctl local --topic orders:8\n" in PAGE
    with LocalCluster(tmp_path_factory.mktemp("dc"), nodes=3, topics=[TopicSpec("orders", 8)], port=0) as cluster:
        cluster.wait_ready()
        yield cluster.endpoints[0]


@pytest.mark.parametrize(("language", "block"), BLOCKS, ids=[block.split("\n")[0][:60] for _, block in BLOCKS])
def test_a_block_of_the_page_does_what_it_says(language: str, block: str, endpoint: str, tmp_path: Path) -> None:
    command = ["bash", "-euo", "pipefail", "-c", block]
    if language == "python":
        assert DEFAULT_ENDPOINT in block
        command = [sys.executable, "-c", block.replace(DEFAULT_ENDPOINT, endpoint)]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "DELAYCTL_ENDPOINT": endpoint, "COLUMNS": "120"}
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=90, check=False)
    assert ended.returncode == 0, ended.stderr
    (expected,) = [words for part, words in SAID.items() if part in block]
    assert re.search(expected, ended.stdout, re.MULTILINE), ended.stdout
