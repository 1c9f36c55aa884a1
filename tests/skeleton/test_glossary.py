"""docs/glossary.md: its words are in order, and what it names is in the code."""

import ast
import re
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = re.findall(
    r"^\| (?!Word|---)([^|]+) \| ([^|]+) \| ([^|]*) ?\|$", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE
)
NAMES = [name for *_, where in ROWS for name in re.findall(r"`(\w+)`", where)]


@lru_cache
def defined() -> set[str]:
    """Every class, function, field and constant of the production code and of the calls' messages."""
    found: set[str] = set()
    for path in [*ROOT.glob("node/**/*.py"), *ROOT.glob("operator/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
    for path in ROOT.glob("node/delayapi/proto/**/*.proto"):
        found.update(re.findall(r"^\s*message (\w+)", path.read_text(), re.MULTILINE))
    return found


def test_there_are_rows() -> None:
    assert len(ROWS) > 50
    assert len(NAMES) > 40


@pytest.mark.parametrize("name", NAMES)
def test_what_a_row_names_is_in_the_code(name: str) -> None:
    assert name in defined()


def test_the_words_are_in_order() -> None:
    words = [word.lower().split(",")[0] for word, *_ in ROWS]
    assert words == sorted(words)
