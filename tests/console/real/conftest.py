from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from delaylocal import LocalCluster
from delayregistry.model import TopicSpec
from playwright.sync_api import expect

from tests.console.support.browser import SLOW_MS, ConsoleBrowser, chromium, kept_pictures
from tests.console.support.console_process import running_console

expect.set_options(timeout=SLOW_MS)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three real nodes with a topic for each test, so that tests do not see each other's messages."""
    topics = [
        TopicSpec(name, 4)
        for name in ("orders", "herds", "letters", "moves", "keys", "hung", "evil", "zooms", "months")
    ]
    with LocalCluster(tmp_path_factory.mktemp("cluster"), nodes=3, topics=topics, port=0) as made:
        made.wait_ready()
        yield made


@pytest.fixture
def endpoint(cluster: LocalCluster) -> str:
    return cluster.endpoints[0]


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kept_pictures(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")  # Playwright's event loop runs in this thread: no longer than its tests
def window(cluster: LocalCluster, pictures: Path) -> Iterator[ConsoleBrowser]:
    """A browser on a console that may change things."""
    with running_console(cluster.endpoints[0], "--allow-changes") as link, chromium() as browser:
        made = ConsoleBrowser(browser, link, pictures)
        yield made
        made.close()
