"""Pages as tests follow them: the commands of a section, with what their words in capitals stand for."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
OPERATIONS, DAMAGE = DOCS / "operations.md", DOCS / "damage.md"


def section(heading: str, page: Path = OPERATIONS) -> str:
    """Of a condition's reason, or of another heading; sections within it are not in it."""
    (found,) = re.findall(rf"^##+ {re.escape(heading)}\n(.*?)(?=^##|\Z)", page.read_text(), re.MULTILINE | re.DOTALL)
    return str(found)


def commands(heading: str, begin: str, item: str = "", page: Path = OPERATIONS) -> list[str]:
    """The commands of the section that begin so, in blocks too. item: words of the list item that has them."""
    flags = re.MULTILINE | re.DOTALL
    text = re.sub(r"^ *```\n *(.*?)(?: +#.*?)?\n *```$", r"`\1`", section(heading, page), flags=flags)
    items = [" ".join(it.split()) for it in re.split(r"\n *- ", text)]
    chosen = " ".join(it for it in items if item in it)
    return [found for found in re.findall(r"`([^`]+)`", chosen) if found.startswith(begin)]


def filled(command: str, **names: str) -> list[str]:
    """Its words. names: what its words in capitals stand for."""
    for word, meant in names.items():
        command = re.sub(rf"\b{word}\b", meant, command)
    return shlex.split(command)
