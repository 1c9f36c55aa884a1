from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.operator.stage import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path) as stage:
        yield stage
