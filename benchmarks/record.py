"""Runs all workloads and writes the table of docs/benchmarks.md: `python benchmarks/record.py`.

Everything between the page's two marks is replaced, the rest stays. Each result is also a JSON line on stdout.
The machine should do nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.workloads import machine

ROOT = Path(__file__).resolve().parents[1]
DELAYCTL = Path(sys.executable).with_name("delayctl")
BEGIN, END = "<!-- recorded by benchmarks/record.py -->", "<!-- end of what is recorded -->"
NEW_PAGE = f"# Benchmarks\n\n{BEGIN}\n{END}\n"
MIB = 1 << 20
STALL_S = 0.5  # a virtual machine that was frozen for so long measures its host
TRIES = 4

Run: TypeAlias = Mapping[str, Any]
"""The output of `delayctl bench --json`."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table. `main` is the field whose median run is shown, with its spread."""

    name: str
    options: tuple[str, ...]
    main: str
    figures: Callable[[Run], str]
    target: str = ""
    met: Callable[[Run], bool] | None = None
    repeat: bool = True


def _per_second(run: Run) -> str:
    return f"{run['messages_per_second']:,.0f} messages/s"


def _enqueue(run: Run) -> str:
    return (
        f"{_per_second(run)}, {run['bytes_per_second'] / MIB:,.1f} MiB/s of bodies; the disk's sequential writes: "
        f"{run['disk_sequential_bytes_per_second'] / MIB:,.0f} MiB/s; processor a message: client "
        f"{run['client_cpu_us_per_message']:.2f}, node {run['node_cpu_us_per_message']:.2f} us"
    )


def _late(run: Run) -> str:
    late = run["lateness_ms"]
    wrong = f"early {run['early']}, missing {run['missing']}, duplicates {run['duplicates']}"
    shown = ", ".join(f"{name} {late[name]:.1f}" for name in ("min", "p50", "p99", "max"))
    return f"lateness {shown} ms; {wrong}"


def _herd(run: Run) -> str:
    return f"{_per_second(run)}; {_late(run)}"


def _restart(run: Run) -> str:
    return (
        f"{run['recovery_seconds']:.2f} s (the node itself {run['node_recovery_seconds']:.2f} s); "
        f"{run['pending_after']:,} pending, lost {run['lost']}"
    )


def _footprint(run: Run) -> str:
    steps = [
        f"{step['pending']:,} pending: {step['disk_bytes_per_message']:.0f} B a message on disk "
        f"({step['disk_overhead_bytes_per_message']:.0f} B over the body), memory {step['rss_bytes'] / MIB:.0f} MiB "
        f"(peak {step['peak_rss_bytes'] / MIB:.0f} MiB)"
        for step in run["steps"]
    ]
    return "; ".join(steps)


def _sound(run: Run) -> bool:
    return not (run["early"] or run["missing"] or run["duplicates"])


RATE = "messages_per_second"
TABLE = (
    Row(
        "W1 enqueue, `send_batch`",
        ("w1",),
        RATE,
        _enqueue,
        "600,000/s, or half the disk's rate",
        lambda run: run[RATE] >= 600_000 or run["disk_share"] >= 0.5,
    ),
    Row("W1, 1,000-message requests", ("w1", "--batch", "1000", "--messages", "2000000"), RATE, _enqueue),
    Row("W1, 100-message requests", ("w1", "--batch", "100", "--messages", "200000"), RATE, _enqueue),
    Row("W1, 1-message requests", ("w1", "--batch", "1", "--messages", "20000"), RATE, _enqueue),
    Row(
        "W1, one `Producer.send()` at a time",
        ("w1", "--send", "--messages", "500000"),
        RATE,
        _enqueue,
        "100,000/s",
        lambda run: run[RATE] >= 100_000,
    ),
    Row(
        "W2 herd, `receive_batch`",
        ("w2",),
        RATE,
        _herd,
        "1,200,000/s, p99 <= 200 ms, none early",
        lambda run: run[RATE] >= 1_200_000 and run["lateness_ms"]["p99"] <= 200 and _sound(run),
    ),
    Row(
        "W2 herd, `Consumer`, a message at a time",
        ("w2", "--each"),
        RATE,
        _herd,
        "150,000/s",
        lambda run: run[RATE] >= 150_000 and _sound(run),
    ),
    Row(
        "W3 steady 1,000/s",
        ("w3",),
        "lateness_ms",
        _late,
        "p50 <= 4 ms, p99 <= 10 ms, none early",
        lambda run: run["lateness_ms"]["p50"] <= 4 and run["lateness_ms"]["p99"] <= 10 and _sound(run),
    ),
    Row(
        "W4 restart after kill -9",
        ("w4",),
        "recovery_seconds",
        _restart,
        "<= 6 s with 10 million pending",
        lambda run: run["recovery_seconds"] <= 6 and not run["lost"],
        repeat=False,
    ),
    Row(
        "W5 footprint",
        ("w5",),
        "rss_bytes",
        _footprint,
        "body + 120 B; 400 MiB with 10 million pending",
        lambda run: run["disk_overhead_bytes_per_message"] <= 120 and run["rss_bytes"] <= 400 * MIB,
        repeat=False,
    ),
)


def main() -> None:
    options = _options()
    directory = options.directory or Path(tempfile.gettempdir())
    lines = [*_heading(directory), *_header()]
    for row in TABLE:
        if options.only and row.options[0] not in options.only:
            continue
        command = _scaled(row, options.scale)
        runs = [_run([*command, "--directory", str(directory)]) for _ in range(options.repeat if row.repeat else 1)]
        lines.append(line(row, command, runs))
    write(options.write, "\n".join(lines))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run the benchmarks and write docs/benchmarks.md's table.")
    parser.add_argument(
        "--write", type=Path, default=ROOT / "docs/benchmarks.md", help="the page (default: %(default)s)"
    )
    parser.add_argument("--only", nargs="+", metavar="wN", help="these workloads; the table has only them then")
    parser.add_argument("--repeat", type=int, default=3, help="runs of W1 to W3, the median is shown (default: 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the usual number of messages, to try it out")
    parser.add_argument("--directory", type=Path, help="on the disk to measure (default: the system's temporary one)")
    return parser.parse_args()


USUAL = {"w1": 4_000_000, "w2": 200_000, "w3": 30_000, "w4": 10_000_000, "w5": 10_000_000}


def _scaled(row: Row, scale: float) -> list[str]:
    """The row's options with so much of its messages."""
    if scale == 1.0:
        return list(row.options)
    given = row.options.index("--messages") if "--messages" in row.options else len(row.options)
    usual = int(row.options[given + 1]) if given < len(row.options) else USUAL[row.options[0]]
    return [*row.options[:given], "--messages", str(max(100, int(usual * scale))), *row.options[given + 2 :]]


def _run(command: Sequence[str]) -> Run:
    """The result; of another try when the machine stood still meanwhile. Ends the program when the command fails."""
    for _ in range(TRIES):
        found = _once(command)
        if found["stalled_seconds"] < STALL_S:
            break
        print(f"the machine stood still for {found['stalled_seconds']:.1f} s during this run", file=sys.stderr)
    return found


def _once(command: Sequence[str]) -> Run:
    ended = subprocess.run([DELAYCTL, "bench", *command, "--json"], stdout=subprocess.PIPE, text=True, check=False)
    if not ended.stdout.startswith("{"):
        sys.exit(f"delayctl bench {' '.join(command)}: exit status {ended.returncode}")
    print(ended.stdout, end="", flush=True)
    found: Run = json.loads(ended.stdout)
    return found


def _heading(directory: Path) -> Iterator[str]:
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    yield f"{time.strftime('%Y-%m-%d', time.gmtime())}, {machine.describe(directory)}; client and node on it together."
    yield f"Commit {commit or 'unknown'}. Bodies of 256 B. Of several runs the median; lowest, highest, mean beside it."
    yield ""


def _header() -> Iterator[str]:
    yield "| Workload | Command | Measured | Runs | Target | Met |"
    yield "|---|---|---|---|---|---|"


def line(row: Row, options: Sequence[str], runs: Sequence[Run]) -> str:
    """The row of some runs with these options."""
    ordered = sorted(runs, key=lambda run: _main(row, run))
    median = ordered[(len(ordered) - 1) // 2]
    command = f"`delayctl bench {' '.join(options)}`"
    spread = _spread([_main(row, run) for run in ordered], "p99 " if row.main == "lateness_ms" else "")
    met = "" if row.met is None else "yes" if row.met(median) else "no"
    return f"| {row.name} | {command} | {row.figures(median)} | {spread} | {row.target} | {met} |"


def _main(row: Row, run: Run) -> float:
    value = run[row.main]
    return float(value["p99"] if isinstance(value, Mapping) else value)


def _spread(values: Sequence[float], what: str) -> str:
    if len(values) == 1:
        return "1"
    return f"{len(values)}: {what}{_short(values[0])} .. {_short(values[-1])}, mean {_short(statistics.fmean(values))}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def write(page: Path, recorded: str) -> None:
    """Replaces what is between the marks; a page without them gets them. Raises ValueError when only one is there."""
    text = page.read_text() if page.exists() else NEW_PAGE
    if (BEGIN in text) != (END in text):
        raise ValueError(f"{page}: one of the marks is missing: {BEGIN} and {END}")
    if BEGIN not in text:
        text = f"{text.rstrip()}\n\n{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n\n{recorded}\n\n{END}{after}")


if __name__ == "__main__":
    main()
