"""`delaynode verify DIR`: says what is wrong, and where, with the files of a stopped node or of one of its shards.

DIR: a node's data directory, a shard's directory, or any directory above some. Reads only, but for --clear-damaged.
Exit status: 0 all is well, 1 something is damaged, 2 wrong usage or a node is running there.

With --json a line each: {"event": "shard" | "progress" | "finding" | "mended" | "cleared" | "summary" | "total", ...}.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from delaynode.node.data_lock import DataInUse, lock_data
from delaynode.store.log.files import DiskFiles
from delaynode.store.maintenance import persist
from delaynode.store.verify import Finding, ReadOnlyFiles, Summary, size_of, verify_shard
from delaynode.store.verify.timer_log_repair import repair_timer_log

HEALTHY, DAMAGED, USAGE = 0, 1, 2
DEPTH = 5  # of directories below DIR in which shards are looked for
PROGRESS_SECONDS = 0.2

Report = Callable[[str, dict[str, object]], None]
"""tell(event, fields)."""


def shards_below(directory: Path) -> list[Path]:
    """The shards' directories at or below this one, by name."""
    found: list[Path] = []

    def search(at: Path, depth: int) -> None:
        if any((at / name).exists() for name in ("shard.json", "checkpoint")) or (at / "log").is_dir():
            found.append(at)
        elif depth:
            for below in sorted(p for p in at.iterdir() if p.is_dir() and not p.name.startswith(".")):
                search(below, depth - 1)

    search(directory, DEPTH)
    return found


def lock_shards(directory: Path, stack: ExitStack) -> list[Path]:
    """The shards at or below this directory, with the locks of the nodes whose data they are part of.

    Raises OSError, ValueError with a sentence for whoever named the directory.
    """
    shards = shards_below(directory)
    if not shards:
        raise ValueError(f"{directory}: no shard here")
    nodes = {parent for shard in shards for parent in list(shard.resolve().parents)[:2] if (parent / "lock").is_file()}
    try:
        for node in sorted(nodes):
            stack.enter_context(lock_data(str(node)))
    except DataInUse as error:
        raise ValueError(f"{error}: stop the node first") from error
    return shards


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="delaynode verify", description="Check the files of a stopped node or shard.")
    parser.add_argument("directory", type=Path, help="a node's data directory, or a shard's")
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    parser.add_argument(
        "--clear-damaged",
        action="store_true",
        help="let a shard serve again that is marked damaged, if nothing else is wrong or can be mended from its log",
    )
    args = parser.parse_args(argv)
    report = _json_line if args.json else _text
    with ExitStack() as stack:
        try:
            shards = lock_shards(args.directory, stack)
        except (OSError, ValueError) as error:
            return _refuse(str(error))
        damaged = [shard for shard in shards if not verify(shard, report, clear_damaged=args.clear_damaged)]
    report("total", {"shards": len(shards), "damaged": [str(shard) for shard in damaged]})
    return DAMAGED if damaged else HEALTHY


def _refuse(why: str) -> int:
    print(f"delaynode verify: {why}", file=sys.stderr)
    return USAGE


def verify(shard: Path, report: Report, *, clear_damaged: bool) -> bool:
    """Look at one shard; True when it is well, or was made so by removing its marker."""
    files = ReadOnlyFiles()
    directory = str(shard)
    report("shard", {"directory": directory, "bytes": size_of(files, directory)})
    told = time.monotonic()

    def progress(read: int) -> None:
        nonlocal told
        if time.monotonic() - told > PROGRESS_SECONDS:
            told = time.monotonic()
            report("progress", {"read": read})

    def found(finding: Finding) -> None:
        report("finding", {"text": str(finding), **asdict(finding)})

    def check() -> Summary:
        try:
            return verify_shard(files, directory, found, progress)
        except OSError as error:
            found(Finding(error.filename or directory, -1, "", f"can't be read: {error.strerror or error}"))
            return Summary(damage=1)
        finally:
            files.close()

    summary = check()
    if clear_damaged and summary.marked and summary.damage > 1:
        mended = repair_timer_log(DiskFiles(), directory)
        if mended:
            report("mended", {"directory": directory, "positions": mended})
            summary = check()
    if clear_damaged and summary.marked and summary.damage == 1:
        persist.clear_damaged(DiskFiles(), directory)
        summary.damage = 0
        report("cleared", {"directory": directory})
    report("summary", {"directory": directory, **asdict(summary)})
    return not summary.damage


def _json_line(event: str, fields: dict[str, object]) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def _text(event: str, fields: dict[str, object]) -> None:
    match event:
        case "finding":
            print(f"  {'note' if fields['note'] else 'DAMAGE'}: {fields['text']}", flush=True)
        case "mended":
            positions = fields["positions"]
            assert isinstance(positions, list)
            print(f"  made again from the log: flushes of the TimerLog at {', '.join(map(str, positions))}", flush=True)
        case "cleared":
            print("  nothing else is wrong: the mark is removed", flush=True)
        case "shard":
            print(f"{fields['directory']}", flush=True)
        case "summary":
            print(f"  {in_words(fields)}", flush=True)


def in_words(summary: dict[str, object]) -> str:
    """A summary event as a sentence."""

    def number(name: str) -> str:
        value = summary[name]
        assert isinstance(value, int)
        return f"{value:,}"

    state = f"{number('damage')} findings of damage" if summary["damage"] else "well"
    seconds, size = summary["seconds"], summary["bytes"]
    assert isinstance(seconds, float)
    assert isinstance(size, int)
    return (
        f"{state}: {number('frames')} frames with {number('messages')} messages, {number('units')} units, "
        f"{number('slots')} slots, {number('entries')} queue entries, {number('pending')} messages pending; "
        f"{size / 1e6:,.1f} MB in {seconds:.1f} s"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
