from __future__ import annotations

from collections.abc import Iterator

import pytest
from delaylocal import LocalCluster
from delayregistry.model import TopicSpec


@pytest.fixture(scope="session")
def real_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two real nodes with topics for one test each, so that tests do not see each other's messages."""
    topics = [TopicSpec(f"{kind}{n}", 4) for kind in ("sdk", "cli") for n in range(11)]
    topics += [TopicSpec(name, 2) for name in (*(f"sched{n}" for n in range(5)), "seen")]
    topics += [TopicSpec("once", 4, deduplicate=True), TopicSpec("reports", 1), TopicSpec("watched", 4)]
    topics += [TopicSpec("leaving", 4), TopicSpec("coming", 4), TopicSpec("wide", 100)]
    topics += [TopicSpec("settled", 2)]
    with LocalCluster(tmp_path_factory.mktemp("cluster"), nodes=2, topics=topics) as cluster:
        cluster.wait_ready()
        yield cluster


@pytest.fixture
def endpoint(real_cluster: LocalCluster) -> str:
    return real_cluster.endpoints[0]


@pytest.fixture(scope="session")
def task_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A real node with topics for one test of Celery's or Django's tasks each; what fails there dies at attempt 3."""
    celery = ("rows", "fatal", "own-held", "spoiled", "limits")
    django = ("own-timed", "failing", "killed", "long", "spoiled")
    names = [*(f"c-{name}" for name in celery), *(f"d-{name}" for name in django)]
    topics = [TopicSpec(name, 2, max_attempts=3) for name in names]
    with LocalCluster(tmp_path_factory.mktemp("tasks"), nodes=1, topics=topics) as cluster:
        cluster.wait_ready()
        yield cluster
