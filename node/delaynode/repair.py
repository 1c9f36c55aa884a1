"""`delaynode repair DIR`: a way past a frame of the log that can't be applied, for a shard of a stopped node.

DIR: a node's data directory, a shard's directory, or any directory above some. Without --confirm it reads only: it says
which frame it is, what skipping it or cutting the log there would lose, and the command that does it.
Exit status: 0 nothing is to be repaired, or it was; 1 a repair is needed, or was refused; 2 wrong usage or a node is
running there.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from delaynode.store.errors import Damaged, NewerFormat
from delaynode.store.log.files import DiskFiles, Files
from delaynode.store.maintenance import marker
from delaynode.store.verify import ReadOnlyFiles, repair
from delaynode.store.verify.repair import Diagnosis, RepairPlan, at_ms
from delaynode.verify import lock_shards

DONE, NEEDED, USAGE = 0, 1, 2

Report = Callable[[str], None]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="delaynode repair", description="Get a stopped shard past a frame of its log that can't be applied."
    )
    parser.add_argument("directory", type=Path, help="a node's data directory, or a shard's")
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--skip", type=int, action="append", metavar="OFFSET", help="of the frame; may be given again")
    ways.add_argument("--cut", type=int, metavar="OFFSET", help="end the log before this frame")
    parser.add_argument("--confirm", metavar="WORD", help="do it: the word that was printed with what it loses")
    args = parser.parse_args(argv)
    chosen = args.skip is not None or args.cut is not None
    if args.confirm and not chosen:
        parser.error("--confirm goes with --skip or --cut")
    with ExitStack() as stack:
        try:
            shards = lock_shards(args.directory, stack)
        except (OSError, ValueError) as error:
            return _refuse(str(error))
        if chosen and len(shards) > 1:
            return _refuse(f"{args.directory}: {len(shards)} shards here; name the directory of one")
        if chosen:
            return _repair_one(shards[0], args.skip, args.cut, args.confirm, _print)
        return max(inspect(shard, _print) for shard in shards)


def _refuse(why: str) -> int:
    print(f"delaynode repair: {why}", file=sys.stderr)
    return USAGE


def _print(line: str) -> None:
    print(line, flush=True)


def inspect(shard: Path, report: Report) -> int:
    """Say what is wrong with one shard, and what could be done. Reads only."""
    files, directory = ReadOnlyFiles(), str(shard)
    report(directory)
    try:
        found = repair.diagnose(files, directory)
        if found is None:
            marked = marker.is_marked(files, directory)
            report(f"  opens{', but is marked damaged: see delaynode verify --clear-damaged' if marked else ''}")
            return DONE
        _print_frame(found, report)
        _print_plan(repair.propose_skip(files, directory, found.frame.offset), directory, report)
        _print_plan(repair.plan_cut(files, directory, found.frame.offset), directory, report)
    except (Damaged, NewerFormat, OSError) as error:
        report(f"  not a frame that can't be applied, but: {error}")
        report("  see delaynode verify")
    finally:
        files.close()
    return NEEDED


def _repair_one(shard: Path, skip: list[int] | None, cut: int | None, confirm: str | None, report: Report) -> int:
    """Tell a plan, or carry it out when `confirm` is its word."""
    directory, disk = str(shard), DiskFiles()
    files: Files = disk
    try:
        plan = repair.plan_skip(files, directory, skip) if skip else repair.plan_cut(files, directory, cut or 0)
        report(directory)
        if confirm is None or plan.stuck is not None:
            _print_plan(plan, directory, report)
            return NEEDED
        if confirm != plan.word:
            report(f"  refused: the word {confirm!r} is not of this plan for this copy as it is now; look again")
            _print_plan(plan, directory, report)
            return NEEDED
        kept = repair.execute_plan(files, directory, plan)
    except ValueError as error:
        return _refuse(str(error))
    except (Damaged, NewerFormat, OSError) as error:
        report(f"  not repaired: {error}")
        return NEEDED
    finally:
        disk.close()
    report(f"  repaired: {_describe(plan)}; it opens. What was replaced is kept in {kept}")
    for loss in plan.loses:
        report(f"    {loss}")
    return DONE


def _print_frame(found: Diagnosis, report: Report) -> None:
    frame = found.frame
    report(f"  the frame at log offset {frame.offset} can't be applied: {found.why}")
    report(
        f"    {frame.kind.name} of epoch {frame.epoch}, written {at_ms(frame.wall_ms)}, count {frame.count:,}, "
        f"{frame.end - frame.offset:,} bytes; the log goes on for {found.log_end - frame.end:,} bytes"
    )


def _print_plan(plan: RepairPlan, directory: str, report: Report) -> None:
    report(f"  to {_describe(plan)}:")
    for loss in plan.loses:
        report(f"    {loss}")
    if plan.stuck is not None:
        report(f"    is no way out: {plan.stuck}")
        return
    at = " ".join(f"--{plan.what} {offset}" for offset in plan.at)
    report(f"    delaynode repair {shlex.quote(directory)} {at} --confirm {plan.word}")


def _describe(plan: RepairPlan) -> str:
    if plan.what == "cut":
        return f"cut the log at {plan.at[0]}"
    return f"skip the frame{'s' if len(plan.at) > 1 else ''} at {', '.join(map(str, plan.at))}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
