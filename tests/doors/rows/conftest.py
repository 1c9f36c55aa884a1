"""Three nodes for most tests; each test takes a topic of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from delaylocal import LocalCluster
from delayregistry.model import TopicSpec, TopicType

from tests.doors.support.asking import Asking, Node, Wire
from tests.serve import conftest as serving
from tests.serve.support.client import wait_served

edge = serving.edge
TOPICS = [TopicSpec(f"t{at}", 3, max_attempts=3) for at in range(60)]
TOPICS += [TopicSpec("delayed", 1, TopicType.DELAY), TopicSpec("aside", 3), TopicSpec("spoiled", 3)]
TOPICS += [TopicSpec("unique", 3, deduplicate=True), TopicSpec("orders", 4),
           TopicSpec("fuzz", 3, max_attempts=3), TopicSpec("other", 1, deduplicate=True)]  # fmt: skip


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, edge: str) -> Iterator[LocalCluster]:
    """Three nodes; no test may stop one."""
    with LocalCluster(tmp_path_factory.mktemp("doors"), nodes=3, topics=TOPICS) as running:
        wait_served(running)
        pids = dict(running.pids)
        yield running
        assert running.pids == pids, "the nodes did not live through the tests"
        for node in pids:
            log = (running.data / "logs" / f"{node}.log").read_text()
            assert "Traceback" not in log, node
            assert "internal-error" not in log, node


@pytest.fixture(scope="session")
def nodes(cluster: LocalCluster) -> list[Node]:
    return [Node(*pair) for pair in zip(cluster.endpoints, cluster.http, strict=True)]


@pytest.fixture(scope="session")
def free_topics(cluster: LocalCluster) -> Iterator[str]:
    return (topic.name for topic in TOPICS if topic.name.startswith("t"))


@pytest.fixture
def topic(free_topics: Iterator[str]) -> str:
    """One that no test has used yet."""
    return next(free_topics)


@pytest.fixture
def ask(nodes: list[Node]) -> Iterator[Callable[..., Asking]]:
    """ask(node's number, wire): a client."""
    made: list[Asking] = []

    def make(node: int = 0, wire: Wire = "grpc") -> Asking:
        made.append(Asking(nodes[node], wire))
        return made[-1]

    yield make
    for one in made:
        one.close()
