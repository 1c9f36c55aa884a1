"""Checks the names of the production code: every class name occurs once, and no identifier uses a retired word.

A word is a part of an identifier between underscores or capitals: `yard` is in `yard`, `_yard_of` and `YardDoor`, not
in `yardstick`.
"""

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("node", "operator")
GENERATED = ROOT / "node/delayapi/proto/delay"

RETIRED: dict[str, str] = {  # word: what to write
    "abreast": "caught up",
    "beacon": "heartbeat",
    "bury": "add to the dead letters",
    "calm": "stable",
    "census": "shard summary",
    "detour": "fallback",
    "doomed": "pending delete",
    "mend": "repair",
    "overtaken": "superseded",
    "promise": "replica lease",
    "reign": "term",
    "scout": "retry gate",
    "shop": "resources",
    "shunned": "excluded",
    "spared": "discardable",
    "standing": "health",
    "steering": "registry editor",
    "stranger": "unidentified",
    "tended": "reconcile result",
    "tending": "reconciler",
    "upkeep": "maintenance",
    "wish": "spec, desired",
    "wishe": "spec, desired",
    "workshop": "resources",
    "yard": "context",
}
# identifiers that the wire, the disk or the API's users know
FROZEN: frozenset[str] = frozenset({"beacon_age_ms", "ENHANCE_YOUR_CALM"})

_PART = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
_RUST_NAME = re.compile(r'"(?:[^"\\]|\\.)*"|//.*|([A-Za-z_]\w*)')  # or a string or a comment, without the name


def sources() -> list[Path]:
    """The hand-written modules of the production code in Python."""
    return sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py") if not path.is_relative_to(GENERATED))


def edge_sources() -> list[Path]:
    """The compiled edge's: its stub, and Rust."""
    return sorted([*(ROOT / "edge").glob("*.pyi"), *(ROOT / "edge/src").rglob("*.rs")])


def class_names(path: Path) -> Iterator[tuple[str, int]]:
    """Each class of the module with its line, nested classes too; none of Rust's."""
    for node in ast.walk(ast.parse(path.read_text() if path.suffix != ".rs" else "")):
        if isinstance(node, ast.ClassDef):
            yield node.name, node.lineno


def identifiers(path: Path) -> Iterator[tuple[str, int]]:
    """Each identifier of the module with its line."""
    text = path.read_text()
    if path.suffix == ".rs":
        for number, line in enumerate(text.splitlines(), 1):
            yield from ((name, number) for name in _RUST_NAME.findall(line) if name)
    else:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME:
                yield token.string, token.start[0]


def retired_words(path: Path) -> Iterator[tuple[str, str, int]]:
    """Each identifier with a retired word: the identifier, the word, the line."""
    for name, line in identifiers(path):
        if name in FROZEN:
            continue
        for part in _PART.findall(name):
            word = part.lower()
            for form in (word, word.removesuffix("s")):
                if form in RETIRED:
                    yield name, form, line
                    break


def problems() -> Iterator[str]:
    """One sentence a problem, with its file and line."""
    places = defaultdict(list)
    for path in [*sources(), *edge_sources()]:
        where = path.relative_to(ROOT)
        for name, line in class_names(path):
            places[name].append(f"{where}:{line}")
        for name, word, line in retired_words(path):
            yield f"{where}:{line}: {name}: {word} is retired, write {RETIRED[word]}"
    for name, found in sorted(places.items()):
        if len(found) > 1:
            yield f"class {name} is defined {len(found)} times: {', '.join(found)}"


def main() -> int:
    """Print the problems; 1 if there is any."""
    found = list(problems())
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
