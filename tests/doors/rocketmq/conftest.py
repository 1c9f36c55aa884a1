"""One node of each edge for most tests; each test takes groups of its own, and topics where it needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from delaylocal import LocalCluster
from delaynode.config import EDGE_VARIABLE
from delayregistry.model import TopicSpec, TopicType

from tests.doors.rocketmq.support.judges import Judge, start_judge
from tests.doors.rocketmq.support.nodes import TRIED_EDGES
from tests.doors.rocketmq.support.wire import Rocket
from tests.serve.support.client import wait_served

TOPICS = (
    *(TopicSpec(f"t{number}", 2) for number in range(60)),
    TopicSpec("mortal", 1, max_attempts=2),
    TopicSpec("delayed", 1, TopicType.DELAY),
    TopicSpec("ordinary", 1, TopicType.NORMAL),
    TopicSpec("short", 1, max_delay_ms=3_600_000),
)


@pytest.fixture(scope="session", params=TRIED_EDGES)
def cluster(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """No test may stop it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(EDGE_VARIABLE, request.param)
        with LocalCluster(tmp_path_factory.mktemp("rocketmq"), nodes=1, topics=TOPICS) as running:
            wait_served(running)
            yield running
            assert "Traceback" not in (running.data / "logs" / "n0.log").read_text()


@pytest.fixture(scope="session")
def take(cluster: LocalCluster) -> Callable[[], str]:
    """A topic that no test has used yet."""
    left = iter(TOPICS)
    return lambda: next(left).name


@pytest.fixture
def topic(take: Callable[[], str]) -> str:
    return take()


@pytest.fixture
def rocket(cluster: LocalCluster) -> Iterator[Rocket]:
    with Rocket(cluster.endpoints[0]) as made:
        yield made


@pytest.fixture
def judge(tmp_path: Path) -> Iterator[Callable[..., Judge]]:
    """Starts an official client, as start_judge() does."""
    started: list[Judge] = []

    def start(language: str, endpoint: str, **more: Any) -> Judge:
        directory = tmp_path / f"{language}-{len(started)}"
        directory.mkdir()
        started.append(start_judge(language, directory, endpoint, **more))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.kill()
