"""Processes that this one starts, ends by their pid, and does not leave behind; programs that have to be there."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
INSTALL_TIMEOUT_S = 600.0
LOG_TAIL_BYTES = 1_500
COMPLAINT_CHARACTERS = 600
COLOURS = re.compile(r"\x1b\[[\d;]*m")
QUEUES = 8
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Missing(Exception):
    """A system can't be had on this machine. Says why, and what to do."""


class Failed(Exception):
    """A system or its client did not do what was asked of it."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs. stored: how many messages it has, those that were delivered too with `keeps_delivered`.
    queues: of its topic, where it has such."""

    pid: int
    address: str
    stored: Callable[[], int]
    keeps_delivered: bool = False
    queues: int = QUEUES


@dataclass(frozen=True, slots=True)
class System:
    """prepare: makes sure that it can be started, and returns its version; raises Missing. client: its name in the Go
    client. start: a new server with its data in this directory, given a scratch directory that lasts as long as all
    rounds; raises Failed."""

    name: str
    client: str
    prepare: Callable[[Path], str]
    start: Callable[[Path, Path], AbstractContextManager[Server]]
    streams: bool = False


@contextmanager
def running(
    command: Sequence[str | Path],
    log: Path,
    *,
    stop: signal.Signals = signal.SIGTERM,
    user: str | None = None,
    env: Mapping[str, str] | None = None,
    **streams: Any,
) -> Iterator[subprocess.Popen[str]]:
    """A process until the block ends; then it gets `stop`, and is killed when that is not enough. It also ends when
    this process is killed. What it says goes to `log`.

    In a session of its own: Linux shares a core among sessions first (autogroup, where no cgroup does), and each
    process of PostgreSQL makes one for itself. All others would share one part with the client and with what is busy
    beside them.
    """
    with log.open("a") as said:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", stop.name.removeprefix("SIG"), *command],
            **{"stdin": subprocess.DEVNULL, "stdout": said, "stderr": said, **streams},
            text=True,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
            env=None if env is None else {**os.environ, **env},
            cwd=log.parent,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(stop)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def await_ready(process: subprocess.Popen[str], log: Path, ready: Callable[[], bool]) -> None:
    """Raises Failed when the process ends, or is not ready within a minute."""
    end_s = time.monotonic() + READY_TIMEOUT_S
    while not ready():
        if process.poll() is not None:
            raise Failed(f"the server ended with status {process.returncode}: {tail(log)}")
        if time.monotonic() > end_s:
            raise Failed(f"the server is not ready after {READY_TIMEOUT_S:.0f} s: {tail(log)}")
        time.sleep(0.05)


def tail(log: Path) -> str:
    text = log.read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace").strip()
    return text or "(it said nothing)"


def answer(command: Sequence[str | Path], *, seconds: float = 60.0, **options: Any) -> str:
    """What a command prints. Raises Failed with what it complains of."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds, **options)
    except subprocess.TimeoutExpired:
        raise Failed(f"{_name(command)}: no answer within {seconds:.0f} s") from None
    if ended.returncode:
        raise Failed(f"{_name(command)}: {(ended.stderr or ended.stdout).strip()[-LOG_TAIL_BYTES:]}")
    return ended.stdout.strip()


def _name(command: Sequence[str | Path]) -> str:
    return Path(command[0]).name


# ------------------------------------------------------------------------------------------- what has to be there


def program(find: Callable[[], str | None], package: str) -> str:
    """A program of a Debian package, which is installed first where that is missing and we are root. Raises Missing."""
    if found := find():
        return found
    command = ["apt-get", "install", "--yes", "--no-install-recommends", package]
    if os.geteuid() or not shutil.which("apt-get"):
        raise Missing(f"not installed; install Debian's package as root: {' '.join(command)}")
    print(f"{package} is not installed: {' '.join(command)}", file=sys.stderr, flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for step in (["apt-get", "update", "--quiet"], command):
        build(step, f"apt-get can't install {package}", env=environment)
    if found := find():
        return found
    raise Missing(f"{package} was installed, and its program is not to be found")


def build(command: Sequence[str | Path], failed: str, **options: Any) -> None:
    """Runs a command that may need the network. Raises Missing, which begins with `failed`."""
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=INSTALL_TIMEOUT_S, **options
        )
    except subprocess.TimeoutExpired:
        raise Missing(f"{failed}: no end within {INSTALL_TIMEOUT_S:.0f} s (no network?)") from None
    except FileNotFoundError:
        raise Missing(f"{failed}: {command[0]} is not installed") from None
    if ended.returncode:
        complaint = COLOURS.sub("", f"{ended.stdout}\n{ended.stderr}").strip()[:COMPLAINT_CHARACTERS]
        raise Missing(f"{failed} (no network?): {complaint}")


# ------------------------------------------------------------------------------------------- processor time


def tree_cpu_s(root: int) -> float:
    """Processor time of a process, its living descendants, and the ended ones that were waited for."""
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            stats[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
    total_s = 0.0
    for pid in descendants(root, {pid: int(fields[1]) for pid, fields in stats.items()}):
        fields = stats[pid]
        own_s = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
        if fields[17] == "1":  # a PostgreSQL backend of a few ms: ticks of 10 ms would lose most of it
            own_s = _scheduled_s(pid, own_s)
        total_s += own_s + (int(fields[13]) + int(fields[14])) / TICKS_PER_S
    return total_s


def descendants(root: int, parents: Mapping[int, int]) -> set[int]:
    """The root and all below it, from the parent of each process."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found, left = set(), [root]
    while left:
        pid = left.pop()
        if pid in parents and pid not in found:
            found.add(pid)
            left += children.get(pid, [])
    return found


def _scheduled_s(pid: int, otherwise_s: float) -> float:
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return otherwise_s
