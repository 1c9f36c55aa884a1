"""Makes the tree of a release that does not exist: this one, with the next file format and the next wire version.

    python -m e2e.nextversion DIRECTORY

What it changes is harmless and real, so that a node of either release would misread what it should not be given:

    format 6    APPEND has a new kind, whose payload begins with four more bytes; a new field of the checkpoint
    wire 2      every message between nodes ends with one more byte

The product knows nothing of it: a copy of the sources is edited, and a place that is not there any more is an error.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("node", "operator", "edge", "locks", "pyproject.toml", "README.md", "LICENSE", "Dockerfile", ".dockerignore")
TRANSPORT = "node/delaynode/replication/transport"
STORE = "node/delaynode/store"

APPEND_NEXT = 19  # the new kind of frame

EDITS: tuple[tuple[str, str, str], ...] = (
    (f"{STORE}/formats.py", "OLDEST, NEWEST = 1, 7", "OLDEST, NEWEST = 1, 8"),
    # ------------------------------------------------ frames
    (f"{STORE}/log/frames.py", "    TICK_AHEAD = 18\n", f"    TICK_AHEAD = 18\n    APPEND_NEXT = {APPEND_NEXT}\n"),
    (
        f"{STORE}/log/frames.py",
        "FrameKind.FIRE_AGAIN: 6, FrameKind.TICK_AHEAD: 7,\n}",
        "FrameKind.FIRE_AGAIN: 6, FrameKind.TICK_AHEAD: 7, FrameKind.APPEND_NEXT: 8,\n}",
    ),
    (
        f"{STORE}/log/frames.py",
        "FrameKind.APPEND_IDS}\n",
        "FrameKind.APPEND_IDS, FrameKind.APPEND_NEXT}\nAHEAD = (3).to_bytes(4, 'little')\n",
    ),
    (
        f"{STORE}/log/frames.py",
        "    if frame.kind is FrameKind.APPEND:\n        producer, number",
        "    if frame.kind is FrameKind.APPEND_NEXT:\n        columns.at = len(AHEAD)\n"
        "    if frame.kind is not FrameKind.APPEND_RUNS:\n        producer, number",
    ),
    (
        f"{STORE}/shard.py",
        "        kind = FrameKind.APPEND if len(runs) == 1 else FrameKind.APPEND_RUNS\n",
        "        kind = FrameKind.APPEND if len(runs) == 1 else FrameKind.APPEND_RUNS\n"
        "        if len(runs) == 1 and self.format >= 8:\n"
        "            kind, prefix = FrameKind.APPEND_NEXT, (3).to_bytes(4, 'little') + prefix\n",
    ),
    *(
        (f"{STORE}/verify/{name}.py", "case FrameKind.APPEND | ", "case FrameKind.APPEND | FrameKind.APPEND_NEXT | ")
        for name in ("log_pass", "repair")
    ),
    # ------------------------------------------------ the checkpoint
    (
        f"{STORE}/maintenance/checkpoint.py",
        "    format: int = formats.OLDEST\n",
        "    format: int = formats.OLDEST\n    written_by: str = 'the next release'\n",
    ),
    (
        f"{STORE}/maintenance/checkpoint.py",
        '    version = state.pop("format")\n',
        '    version = state.pop("format")\n    if version < 8:\n        del state["written_by"]\n',
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


class NotEdited(Exception):
    """The sources are not as this module knows them."""


def make(target: Path, source: Path = ROOT) -> None:
    """target: an empty directory, or none yet. Raises NotEdited."""
    for name in COPIED:
        if (source / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "target")
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


if __name__ == "__main__":
    make(Path(sys.argv[1]))
