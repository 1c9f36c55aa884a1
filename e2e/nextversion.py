"""Makes the tree of a release that does not exist: this one, with the next file format and the next wire version.

    python -m e2e.nextversion DIRECTORY

What it changes is harmless and real, so that a node of either release would misread what it should not be given:

    format 2    APPEND has a new kind, whose payload begins with a count of producer runs; a new field of the checkpoint
    wire 2      every message between nodes ends with one more byte

The product knows nothing of it: a copy of the sources is edited, and a place that is not there any more is an error.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("node", "operator", "locks", "pyproject.toml", "README.md", "LICENSE", "Dockerfile", ".dockerignore")
TRANSPORT = "node/delaynode/replication/transport"
STORE = "node/delaynode/store"

EDITS: tuple[tuple[str, str, str], ...] = (
    (f"{STORE}/formats.py", "OLDEST, NEWEST = 1, 1", "OLDEST, NEWEST = 1, 2"),
    # ------------------------------------------------ frames
    (f"{STORE}/log/frames.py", "    TRIM = 11\n", "    TRIM = 11\n    APPEND_RUNS = 12\n"),
    (
        f"{STORE}/log/frames.py",
        "SINCE_FORMAT = dict.fromkeys(FrameKind, 1)\n",
        "SINCE_FORMAT = {**dict.fromkeys(FrameKind, 1), FrameKind.APPEND_RUNS: 2}\n"
        "APPENDS = (FrameKind.APPEND, FrameKind.APPEND_RUNS)\n"
        "RUNS = (1).to_bytes(4, 'little')\n",
    ),
    (
        f"{STORE}/log/frames.py",
        "    producer, number = PayloadColumns(frame.payload).unpack(_APPEND)\n",
        "    columns = PayloadColumns(frame.payload)\n"
        "    columns.at = len(RUNS) if frame.kind is FrameKind.APPEND_RUNS else 0\n"
        "    producer, number = columns.unpack(_APPEND)\n",
    ),
    (
        f"{STORE}/log/frames.py",
        "def parse_append(frame: Frame) -> Append:\n    columns = PayloadColumns(frame.payload)\n",
        "def parse_append(frame: Frame) -> Append:\n    columns = PayloadColumns(frame.payload)\n"
        "    columns.at = len(RUNS) if frame.kind is FrameKind.APPEND_RUNS else 0\n",
    ),
    (
        f"{STORE}/shard.py",
        "        prefix = append_prefix(batch.producer, batch.number)\n",
        "        kind = FrameKind.APPEND_RUNS if self.format >= 2 else FrameKind.APPEND\n"
        "        runs = (1).to_bytes(4, 'little') if self.format >= 2 else b''\n"
        "        prefix = runs + append_prefix(batch.producer, batch.number)\n",
    ),
    (f"{STORE}/shard.py", "self._propose(FrameKind.APPEND, n,", "self._propose(kind, n,"),
    # ------------------------------------------------ the checkpoint
    (
        f"{STORE}/maintenance/checkpoint.py",
        "    format: int = formats.OLDEST\n",
        "    format: int = formats.OLDEST\n    written_by: str = 'the next release'\n",
    ),
    (
        f"{STORE}/maintenance/checkpoint.py",
        '    version = state.pop("format")\n',
        '    version = state.pop("format")\n    if version < 2:\n        del state["written_by"]\n',
    ),
    # ------------------------------------------------ the wire
    (f"{TRANSPORT}/connection.py", "WIRE = VersionRange(1, 1)", "WIRE = VersionRange(1, 2)"),
    (
        f"{TRANSPORT}/connection.py",
        "            self._end.received(decode(data))\n",
        "            if self._end.version >= 2:\n"
        "                if data[-1] != 2:\n"
        "                    raise BadMessage('it does not end as version 2 has it')\n"
        "                data = data[:-1]\n"
        "            self._end.received(decode(data))\n",
    ),
    (
        f"{TRANSPORT}/links.py",
        "            link.wire.write(encode(message))\n",
        "            link.wire.write(_ended(encode(message), link.version))\n",
    ),
    (
        f"{TRANSPORT}/links.py",
        "        self.wire.write(encode(message))\n",
        "        self.wire.write(_ended(encode(message), self.version))\n",
    ),
    (
        f"{TRANSPORT}/links.py",
        "class Links:\n",
        "def _ended(parts: list, version: int) -> list:\n"
        "    if version < 2:\n"
        "        return parts\n"
        "    head = bytes(parts[0])\n"
        "    longer = (int.from_bytes(head[:4], 'little') + 1).to_bytes(4, 'little')\n"
        "    return [longer + head[4:], *parts[1:], bytes([2])]\n\n\n"
        "class Links:\n",
    ),
)
READERS = (
    (re.compile(r"\bkind is FrameKind\.APPEND\b"), 'kind.name.startswith("APPEND")'),
    (
        re.compile(r"\bkind in \(FrameKind\.APPEND, FrameKind\.RELOCATE\)"),
        'kind.name in ("APPEND", "APPEND_RUNS", "RELOCATE")',
    ),
    (re.compile(r"\bcase FrameKind\.APPEND:"), "case FrameKind.APPEND | FrameKind.APPEND_RUNS:"),
)


class NotEdited(Exception):
    """The sources are not as this module knows them."""


def make(target: Path, source: Path = ROOT) -> None:
    """target: an empty directory, or none yet. Raises NotEdited."""
    for name in COPIED:
        if (source / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(source / name, target / name, ignore=ignored, dirs_exist_ok=True)
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / name, target / name)
    for name, before, after in EDITS:
        path = target / name
        text = path.read_text()
        if text.count(before) != 1:
            raise NotEdited(f"{name} has {before!r} {text.count(before)} times")
        path.write_text(text.replace(before, after))
    for path in sorted((target / STORE).rglob("*.py")):
        if path.name not in ("frames.py",):
            _read_both(path)


def _read_both(path: Path) -> None:
    """Whoever asks for APPEND frames means the new kind too."""
    text = path.read_text()
    for pattern, after in READERS:
        text = pattern.sub(after, text)
    left = [line for line in text.splitlines() if re.search(r"FrameKind\.APPEND\b(?! \|)", line)]
    if path.name == "shard.py":
        left = [line for line in left if "APPEND_RUNS if self.format" not in line]
    if left:
        raise NotEdited(f"{path}: what is to become of {left[0].strip()!r}?")
    path.write_text(text)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
