"""The target of a workload: a cluster of one node of its own in a temporary directory, or one that runs already."""

from __future__ import annotations

import re
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from delayclient.routing.access import Access
from delayclient.routing.routing import Cluster
from delaylocal import LocalCluster
from delayregistry.model import TopicSpec

NODE = "n0"
TOPIC = "bench"
READY_TIMEOUT_S = 60.0


class OwnNode:
    """A node that this process started and may kill."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster

    @property
    def directory(self) -> Path:
        """All that the node keeps."""
        return self.cluster.data / NODE

    @property
    def pid(self) -> int:
        return self.cluster.pids[NODE]

    def metric(self, name: str) -> float:
        """The sum of a metric's samples on the node's /metrics."""
        with urllib.request.urlopen(f"http://{self.cluster.http[0]}/metrics", timeout=10) as answer:
            text: str = answer.read().decode()
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))


@dataclass(frozen=True, slots=True)
class Target:
    """Where the workload's topic is. `directory`: on the disk under test; None when that is elsewhere. access: what the
    SDK is given for TLS and tokens."""

    endpoint: str
    topic: str
    queues: int
    own: OwnNode | None = None
    access: Access = field(default_factory=Access)

    @property
    def directory(self) -> Path | None:
        return None if self.own is None else self.own.cluster.data


@contextmanager
def own_node(queues: int, directory: Path | None = None, port: int = 0) -> Iterator[Target]:
    """One node with the topic `bench`, in a temporary directory in `directory`; both are gone afterwards.

    Raises delaylocal.LocalClusterError.
    """
    with tempfile.TemporaryDirectory(prefix="delay-bench-", dir=directory) as temporary:
        topic = TopicSpec(TOPIC, queues)
        with LocalCluster(Path(temporary) / "cluster", nodes=1, topics=[topic], port=port) as cluster:
            cluster.wait_ready(READY_TIMEOUT_S)
            yield Target(cluster.endpoints[0], TOPIC, queues, OwnNode(cluster))


async def elsewhere(endpoint: str, topic: str) -> Target:
    """A topic of a cluster that runs already. Raises DelayError: nobody there, no such topic."""
    async with Cluster(endpoint) as cluster:
        return Target(endpoint, topic, len((await cluster.route(topic)).queues))
