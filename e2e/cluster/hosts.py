"""A host: a network namespace, and the processes that were started in it."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.settings import CONTROL_PLANE, PLACES, node_name
from e2e.cluster.shell import Word, out, sh, wait_for

FIRST = ("etcd", "coredns")  # one of them runs as long as there is a cluster


@dataclass(frozen=True, slots=True)
class Host:
    """Named like its namespace. Pid files are in run/NAME, logs in home/logs/NAME."""

    name: str

    def exists(self) -> bool:
        return self.name in out("ip", "netns", "list").split()

    def make(self) -> None:
        sh("ip", "netns", "add", self.name)
        self.ip("link", "set", "lo", "up")
        sh(*self.inside("sysctl", "-qw", "net.ipv4.ip_forward=1"), check=False)

    def inside(self, *argv: Word) -> list[str]:
        """The command that runs `argv` there."""
        return ["nsenter", f"--net=/run/netns/{self.name}", *map(str, argv)]

    def ip(self, *argv: str, check: bool = True) -> None:
        sh(*self.inside("ip", *argv), check=check, quiet=not check)

    # ------------------------------------------------------------ processes
    def pidfile(self, process: str) -> Path:
        return PLACES.run / self.name / f"{process}.pid"

    def runs(self, process: str) -> bool:
        try:
            os.kill(int(self.pidfile(process).read_text()), 0)
        except (OSError, ValueError):
            return False
        return True

    def start(self, process: str, *argv: Word) -> None:
        """In a session of its own, so that it outlives this command; nothing when it runs already.

        Called inside `kubelab exec` it still starts among the machine's mounts, not among that command's own.
        """
        if self.runs(process):
            return
        pidfile = self.pidfile(process)
        logs = PLACES.home / "logs" / self.name
        for directory in (pidfile.parent, logs):
            directory.mkdir(parents=True, exist_ok=True)
        env = {**os.environ, "PATH": f"{PLACES.bin}:/usr/lib/cni:{os.environ['PATH']}"}
        with open(logs / f"{process}.log", "ab") as log:
            started = subprocess.Popen(
                ["nsenter", _machine_mounts(), *self.inside(*argv)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=env,
            )
        pidfile.write_text(str(started.pid))

    def send_signal(self, process: str, number: signal.Signals) -> None:
        os.kill(int(self.pidfile(process).read_text()), number)

    def kill(self, process: str) -> None:
        """SIGKILL; returns when it has ended."""
        pidfile = self.pidfile(process)
        program = Path("/proc", pidfile.read_text(), "exe")  # a zombie has none that can be followed
        self.send_signal(process, signal.SIGKILL)
        wait_for(f"the end of {process}", lambda: not program.exists())
        pidfile.unlink()

    def power_off(self) -> None:
        """kill -9 of every process in the namespace, and of the containers, which have namespaces of their own."""
        found = set(out("ip", "netns", "pids", self.name, check=False).split())
        if shims := self._shims():
            found |= {*shims, *_descendants(shims)}
        for pid in found - {str(os.getpid())}:
            try:
                os.kill(int(pid), signal.SIGKILL)
            except OSError:
                continue  # it has ended by itself
        for pidfile in (PLACES.run / self.name).glob("*.pid"):
            pidfile.unlink()

    def _shims(self) -> list[str]:
        marker = str(PLACES.run / self.name) + "/"
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if "containerd-shim" in command and marker in command:
                found.append(process.name)
        return found


def control_plane_host() -> Host:
    return Host(CONTROL_PLANE)


def node_host(index: int) -> Host:
    return Host(node_name(index))


def known_nodes() -> list[int]:
    """The nodes that were ever started in this cluster, powered off or not."""
    prefix = node_name(0)[:-1]
    return sorted(int(path.name.removeprefix(prefix)) for path in PLACES.home.glob(f"{prefix}*") if path.is_dir())


def _machine_mounts() -> str:
    """nsenter's option for the mounts that the cluster's first processes were started among."""
    host = control_plane_host()
    pids = (host.pidfile(process).read_text() for process in FIRST if host.runs(process))
    return f"--mount=/proc/{next(pids, 'self')}/ns/mnt"


def _descendants(pids: list[str]) -> list[str]:
    """The descendants of all these processes together, by one look at /proc."""
    children: dict[str, list[str]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()  # a command's name may have spaces
        except OSError:
            continue
        children.setdefault(fields[1], []).append(process.name)
    found: list[str] = []
    waiting = list(pids)
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found
