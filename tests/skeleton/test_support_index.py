"""The index of the tests' support modules in docs/testing.md."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| `(tests/\w+/support/(?:\w+/)?\w+\.py)` \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)


def test_every_support_module_is_in_the_index_once_and_the_index_names_no_other() -> None:
    rows = [path for path, _ in ROW.findall((ROOT / "docs/testing.md").read_text())]
    assert rows == sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/*/support/**/*.py"))


def test_every_room_that_the_index_names_exists() -> None:
    for path, users in ROW.findall((ROOT / "docs/testing.md").read_text()):
        for user in re.findall("`([^`]+)`", users):
            assert (ROOT / user).is_dir(), f"{path} is used in {user}"
