"""The Go client: built once for all runs, then a process for each."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from contextlib import nullcontext
from pathlib import Path

from benchmarks.peers.loads import Found, Load
from benchmarks.peers.processes import QUEUES, Failed, Missing, Server, System, answer, build, running, tail, tree_cpu_s

SOURCE = Path(__file__).parent / "client"
GO = "/usr/local/go/bin/go"  # where Go's own archive puts it
BODY_BYTES = 256
HANGS_AFTER_S = 90.0


def compiled(scratch: Path) -> Path:
    """Raises Missing: no Go, or its modules can't be fetched."""
    go = shutil.which("go") or shutil.which(GO)
    if go is None:
        raise Missing("the client needs Go 1.26 or newer: https://go.dev/dl")
    binary = scratch / "client"
    build(
        [go, "build", "-mod=readonly", "-buildvcs=false", "-o", binary, "."], "the Go client can't be built", cwd=SOURCE
    )
    return binary


def measure(
    binary: Path, system: System, server: Server, load: Load, seconds: float, warmup: float, log: Path, spinning: bool
) -> tuple[Found, int]:
    """One run, and how many messages were acknowledged. spinning: beside a process that never waits. Raises Failed."""
    # DelayCluster's client library sends through streams: so does the client in the lateness run.
    window = 1 if load.rate and system.streams else load.window
    options = {
        "address": server.address,
        "mode": "late" if load.rate else "store",
        "callers": load.callers,
        "connections": load.connections,
        "window": window,
        "queues": server.queues,
        "body": BODY_BYTES,
        "rate": load.rate or 1,
        "seconds": f"{seconds}s",
        "warmup": f"{warmup}s",
    }
    command = [binary, system.client, *(f"-{name}={value}" for name, value in options.items())]
    busy = running(["sh", "-c", "while :; do :; done"], log) if spinning else nullcontext()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with busy, running(command, log, **pipes) as process:
        hangs = threading.Timer(seconds + warmup + HANGS_AFTER_S, process.kill)
        hangs.start()
        try:
            return _measure(process, server, log)
        finally:
            hangs.cancel()


def _measure(process: subprocess.Popen[str], server: Server, log: Path) -> tuple[Found, int]:
    warm = _told(process, log)["stored"]
    before_s = tree_cpu_s(server.pid)
    assert process.stdin is not None, "it is a pipe"
    process.stdin.write("go\n")
    process.stdin.flush()
    told = _told(process, log)
    used_s = tree_cpu_s(server.pid) - before_s  # the client's connections are open yet: no backend has ended
    process.stdin.close()
    if process.wait():
        raise Failed(f"the client ended with status {process.returncode}: {tail(log)}")
    return Found.of(told, used_s), int(warm + told["requests"])


def _told(process: subprocess.Popen[str], log: Path) -> dict[str, float]:
    assert process.stdout is not None, "it is a pipe"
    line = process.stdout.readline()
    if not line:
        status = process.wait()
        raise Failed(f"the client {'hung' if status < 0 else f'ended with status {status}'}: {tail(log)}")
    told: dict[str, float] = json.loads(line)
    return told


def administer(binary: Path, system: str, address: str, mode: str) -> str:
    """What the client prints in a mode without a load. Raises Failed."""
    return answer([binary, system, f"-address={address}", f"-mode={mode}", f"-queues={QUEUES}"])
