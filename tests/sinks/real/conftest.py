"""Two real nodes; each test takes a topic of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from delaylocal import LocalCluster
from delayregistry.model import TopicSpec

TOPICS = [TopicSpec(f"sink{at}", 2, max_attempts=6) for at in range(24)] + [TopicSpec("dead", 1)]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("sinks"), nodes=2, topics=TOPICS) as running:
        running.wait_ready()
        yield running


@pytest.fixture(scope="session")
def free_topics() -> Iterator[str]:
    return (topic.name for topic in TOPICS if topic.name.startswith("sink"))


@pytest.fixture
def topic(free_topics: Iterator[str]) -> str:
    """One that no test has used yet."""
    return next(free_topics)
