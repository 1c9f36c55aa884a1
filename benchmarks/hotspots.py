"""Where a workload's time goes: `python benchmarks/hotspots.py w1 --messages 8000000` runs `delayctl bench` with py-spy
on the node and on the client, and prints the lines of code that the samples were in, thread by thread.

py-spy is not among the project's dependencies: pip install py-spy. It slows both processes a little.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

DELAYCTL = Path(sys.executable).with_name("delayctl")
SAMPLES_PER_S = 200
NODE_MODULE = b"delaynode.main"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--top", type=int, default=15, help="lines shown of each process (default: 15)")
    parser.add_argument("--gil", action="store_true", help="only what holds the interpreter lock")
    parser.add_argument("--native", action="store_true", help="frames of C extensions too (much slower)")
    parser.add_argument("--after", type=float, default=1.5, help="seconds after the node's start (default: 1.5)")
    options, workload = parser.parse_known_args()
    spy = shutil.which("py-spy", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if spy is None:
        sys.exit("py-spy is missing: pip install py-spy")
    extra = [flag for flag, on in (("--gil", options.gil), ("--native", options.native)) if on]
    with tempfile.TemporaryDirectory(prefix="hotspots-") as directory:
        bench = subprocess.Popen([DELAYCTL, "bench", *workload])
        try:
            node = _node_of(bench)
            time.sleep(options.after)  # what is imported at the start is not the workload
            outputs = {name: Path(directory) / name for name in ("node", "client")}
            spies = [
                _spy(spy, pid, outputs[name], extra) for name, pid in (("node", node), ("client", bench.pid)) if pid
            ]
            bench.wait()
        finally:
            if bench.poll() is None:
                bench.terminate()
                bench.wait()
        for process in spies:
            process.send_signal(signal.SIGINT)
            process.wait()
        for name, output in outputs.items():
            if output.exists():
                print("\n".join(report(name, output.read_text(), options.top)))
    sys.exit(bench.returncode)


def _node_of(bench: subprocess.Popen[bytes]) -> int | None:
    """The pid of the node that the workload starts; None when it ended without one."""
    while bench.poll() is None:
        for pid in _children(bench.pid):
            try:
                if NODE_MODULE in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    return pid
            except FileNotFoundError:
                continue
        time.sleep(0.05)
    return None


def _children(pid: int) -> list[int]:
    found = []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(text) for text in thread.read_text().split()]
        except FileNotFoundError:
            continue
    return found


def _spy(spy: str, pid: int, output: Path, extra: list[str]) -> subprocess.Popen[bytes]:
    command = [spy, "record", "--pid", str(pid), "--rate", str(SAMPLES_PER_S), "--threads", "--format", "raw"]
    return subprocess.Popen(
        [*command, "--nonblocking", "--output", str(output), *extra],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def report(name: str, raw: str, top: int) -> Iterator[str]:
    """The threads, the lines that ran, and the functions that were being called, of py-spy's raw stacks."""
    threads: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    functions: Counter[str] = Counter()
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        thread, *frames = stack.split(";")
        threads[thread.rpartition(": ")[2]] += int(count)
        if frames:
            lines[f"{thread.rpartition(': ')[2]:16} {frames[-1]}"] += int(count)
        functions.update(dict.fromkeys({frame.rpartition(":")[0] for frame in frames}, int(count)))
    total = sum(threads.values())
    for title, counter in (("threads", threads), ("lines", lines), ("functions, with what they call", functions)):
        yield f"\n{name}: {title} ({total} samples, {SAMPLES_PER_S} a second and thread)"
        for what, samples in counter.most_common(top):
            yield f"  {100 * samples / max(total, 1):5.1f} %  {what}"


if __name__ == "__main__":
    main()
