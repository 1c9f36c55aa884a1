"""No store: gRPC's own server in Go, which writes and syncs each request and hands messages out of its memory. It is
what gRPC and the disk cost by themselves (client/bare.go)."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from delaylocal import ports

from benchmarks.peers.processes import QUEUES, Failed, Server, System, running, tail


def prepare(_: Path) -> str:
    return "gRPC's own server, no store"


@contextmanager
def start(data: Path, scratch: Path) -> Iterator[Server]:
    log, requests = data / "log", data / "requests"
    command = [scratch / "client", "bare", "-mode=serve", f"-address={requests}", f"-queues={QUEUES}"]
    with running(command, log, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None, "it is a pipe"
        if not (port := process.stdout.readline().strip()):
            raise Failed(f"the server did not start: {tail(log)}")
        yield Server(process.pid, f"{ports.HOST}:{port}", partial(_stored, requests), keeps_delivered=True)


def _stored(requests: Path) -> int:
    """How many requests the file has, a length before each."""
    data, at, count = requests.read_bytes(), 0, 0
    while at < len(data):
        (length,) = struct.unpack_from("<I", data, at)
        at, count = at + 4 + length, count + 1
    return count


SYSTEM = System("Bare gRPC", "bare", prepare, start, streams=True)
