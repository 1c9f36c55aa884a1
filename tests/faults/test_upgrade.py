"""Nodes of two releases in one cluster, under load: up, back, up again, final. Nothing is lost on the way.

The newer release is this one with the next file format and the next wire version (e2e/nextversion.py).
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest
from delaylocal import LocalCluster
from delaynode.store import formats
from delayregistry.model import TopicSpec

from e2e import nextversion
from tests.faults.support import release_of_node
from tests.faults.support.load import Traffic
from tests.faults.support.trial import run
from tests.serve.support.client import poll

TRAFFIC = Traffic(farthest_ms=2_000)
NEXT = formats.NEWEST + 1


class Releases:
    """Which release each node of a cluster runs."""

    def __init__(self, directory: Path, cluster: LocalCluster) -> None:
        self.directory, self.cluster = directory, cluster
        self.next = directory / "next"
        nextversion.make(self.next)

    def choose(self, node: str, tree: Path | None) -> None:
        """The node's next process is out of this tree, None: ours."""
        (self.directory / node).write_text(str(tree or ""))

    def start(self, node: str, tree: Path | None) -> None:
        """Stop the node, as the upgrade of its package would; it is started again."""
        self.choose(node, tree)
        before = self.cluster.kill(node, signal.SIGTERM)
        poll(f"{node} has stopped", lambda: self.cluster.pids.get(node, 0) != before, 60)

    def roll(self, tree: Path | None, *nodes: str) -> None:
        for node in nodes:
            self.start(node, tree)
            self.cluster.wait_ready(120)

    def written(self) -> int:
        found = self.cluster.registry.read_cluster()
        assert found is not None
        return found.spec.nodes_version

    def formats(self) -> set[int]:
        """Of the checkpoints that lie on the disks."""
        found = set()
        for path in self.cluster.data.glob("n*/shards/*/checkpoint"):
            data = path.read_bytes()
            size = int.from_bytes(data[8:12], "little")
            found.add(int(json.loads(data[16 : 16 + size])["version"]))
        return found

    def spoken(self, node: str) -> set[int]:
        """The wire versions of the links that the node has made."""
        lines = (self.cluster.data / "logs" / f"{node}.log").read_text().splitlines()
        events = [json.loads(line) for line in lines if line.startswith("{")]
        return {one["version"] for one in events if one["event"] == "link-up"}

    def last_words(self, node: str) -> str:
        return (self.cluster.data / "logs" / f"{node}.log").read_text()[-2_000:]


def has_newer_appends(cluster: LocalCluster) -> bool:
    """Whether some log on the disks has a frame that only the next release writes."""
    for path in cluster.data.glob("n*/shards/*/log/0*"):
        data, at = path.read_bytes(), 0
        while at + 64 <= len(data) and data[at : at + 4] == b"DLYF":
            if data[at + 12] == nextversion.APPEND_NEXT:
                return True
            at += int.from_bytes(data[at + 8 : at + 12], "little")
    return False


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    directory = tmp_path / "releases"
    directory.mkdir()
    return directory


def test_an_upgrade_goes_up_and_back_under_load_and_is_final_once_all_nodes_have_it(
    tmp_path: Path, trees: Path
) -> None:
    command = (sys.executable, "-P", release_of_node.__file__, str(trees))
    topics = [TopicSpec(TRAFFIC.topic, TRAFFIC.queues)]
    with LocalCluster(tmp_path / "data", nodes=3, replicas=2, topics=topics, node_command=command) as cluster:
        releases = Releases(trees, cluster)

        def harm() -> None:
            releases.roll(releases.next, "n0", "n1")
            assert releases.written() == formats.NEWEST
            assert NEXT not in releases.formats(), "the release before could not read it"
            releases.roll(None, "n1")  # back
            releases.roll(releases.next, "n1", "n2")
            poll("it is final", lambda: releases.written() == NEXT, 60)
            poll("masters write the new kind of frame", lambda: has_newer_appends(cluster), 60)

        poll("all nodes write this release's format", lambda: releases.written() == formats.NEWEST, 60)
        run("upgrade", cluster, TRAFFIC, harm)
        assert 1 in releases.spoken("n0")
        poll(
            "both ends are new", lambda: 2 in releases.spoken("n2") | releases.spoken("n1") | releases.spoken("n0"), 30
        )
        releases.start("n0", None)
        poll("the way back is refused", lambda: "the upgrade is final" in releases.last_words("n0"), 60)
        releases.choose("n0", releases.next)
        cluster.wait_ready(120)
        assert NEXT in releases.formats()
