"""docs/architecture.md names files that are there, and all packages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text()
FILES = re.findall(r"`((?:node|operator)/[\w/.]+)`", PAGE)


@pytest.mark.parametrize("file", FILES)
def test_a_file_that_the_page_names_is_there(file: str) -> None:
    assert (ROOT / file).is_file()


def test_the_page_names_a_file_of_every_package() -> None:
    packages = {path.parent for root in ("node", "operator") for path in (ROOT / root).glob("*/__init__.py")}
    named = {ROOT / Path(*Path(file).parts[:2]) for file in FILES}
    assert packages - named <= {ROOT / "node/delayctl", ROOT / "operator/delaylocal"}, "they are in its picture alone"
    assert all(package.name in PAGE for package in packages)
