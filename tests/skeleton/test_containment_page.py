"""docs/containment.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/containment.md").read_text()
NAMED = re.findall(r"`(test_\w+|attacks_\w+)`(?:: `([^`]+)`)?", PAGE)


def source_of(module: str) -> str:
    (path,) = (ROOT / "tests").rglob(f"{module}.py")
    return path.read_text()


@pytest.mark.parametrize(("module", "name"), NAMED)
def test_a_test_that_the_page_names_is_there(module: str, name: str) -> None:
    """`...` stands for the rest of a name, brackets for a parameter."""
    begin = re.sub(r"\[.*\]$", "", name).strip(".")
    assert re.search(rf"def (test_)?{re.escape(begin)}", source_of(module)), f"{module} has no {begin}"


def test_the_page_names_enough_of_them() -> None:
    assert len(NAMED) > 30
