from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from delayregistry.sqlite import SqliteRegistry


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "registry.db"


@pytest.fixture
def registry(path: Path) -> Iterator[SqliteRegistry]:
    registry = SqliteRegistry(path, create=True, busy_timeout_ms=300)
    yield registry
    registry.close()
