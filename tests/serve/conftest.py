"""One node for most tests; each takes queues of its own from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from delaylocal import LocalCluster
from delaynode.config import EDGE_VARIABLE
from delayregistry.model import TopicSpec, TopicType

from tests.serve.support.client import Client, Shard, wait_served

QUEUES = 96
TOPICS = (
    TopicSpec("t", QUEUES),
    TopicSpec("few", 8, max_attempts=3),
    TopicSpec("short", 4, max_delay_ms=3_600_000),
    TopicSpec("delayed", 8, TopicType.DELAY),
    TopicSpec("ordinary", 4, TopicType.NORMAL),
    TopicSpec("metered", 1, max_attempts=3),
    TopicSpec("mortal", 1, max_attempts=1, dlq_retention_ms=4_000),
    TopicSpec("once", 8, deduplicate=True),
    TopicSpec("scheduled", 1),
    TopicSpec("herds", 1),
    TopicSpec("waits", 1),
    TopicSpec("foreseen", 1),
)


EDGES = ["grpcio", *(["compiled"] if find_spec("delayedge") is not None else [])]


@pytest.fixture(scope="session", params=EDGES)
def edge(request: pytest.FixtureRequest) -> Iterator[str]:
    """What carries the calls of nodes that are started while it is asked for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(EDGE_VARIABLE, request.param)
        yield request.param


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, edge: str) -> Iterator[LocalCluster]:
    """One node; no test may stop it."""
    with LocalCluster(tmp_path_factory.mktemp("serve"), nodes=1, topics=TOPICS) as running:
        wait_served(running)
        pid = running.pids["n0"]
        yield running
        assert running.pids.get("n0") == pid, "the node did not live through the tests"
        assert "Traceback" not in (running.data / "logs" / "n0.log").read_text()


@pytest.fixture(scope="session")
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster.endpoints[0]) as made:
        yield made


@pytest.fixture(scope="session")
def take(client: Client) -> Callable[[str], Shard]:
    """A queue of the topic that no test has used yet."""
    taken: dict[str, int] = {}

    def take_one(topic: str = "t") -> Shard:
        taken[topic] = taken.get(topic, -1) + 1
        assert taken[topic] < next(spec.queues for spec in TOPICS if spec.name == topic), f"no more queues in {topic}"
        return Shard(client, topic, taken[topic])

    return take_one


@pytest.fixture
def shard(take: Callable[[str], Shard]) -> Shard:
    return take("t")


@pytest.fixture
def own(tmp_path: Path) -> Iterator[LocalCluster]:
    """A node of the test's own, to be stopped and killed."""
    with LocalCluster(tmp_path / "own", nodes=1, topics=[TopicSpec("t", 2)]) as running:
        wait_served(running)
        yield running
