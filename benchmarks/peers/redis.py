"""Redis: a sorted set by due, each write in the append-only file and synced before its answer."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from delaylocal import ports

from benchmarks.peers.processes import Failed, Server, System, answer, await_ready, program, running

SETTINGS = {"appendonly": "yes", "appendfsync": "always", "save": "", "bind": ports.HOST}
KEY = "delayed"

_server = partial(shutil.which, "redis-server")


def prepare(_: Path) -> str:
    return answer([program(_server, "redis-server"), "--version"])


@contextmanager
def start(data: Path, _: Path) -> Iterator[Server]:
    log, port = data / "log", ports.choose(0, 1).grpc[0]
    options = [part for name, value in SETTINGS.items() for part in (f"--{name}", value)]
    command = [program(_server, "redis-server"), "--dir", str(data), "--port", str(port), *options]
    ask = ["redis-cli", "-e", "-h", ports.HOST, "-p", str(port)]
    with running(command, log) as process:
        await_ready(process, log, partial(_answers, ask))
        yield Server(process.pid, f"{ports.HOST}:{port}", lambda: int(answer([*ask, "ZCARD", KEY])))


def _answers(ask: list[str]) -> bool:
    try:
        return answer([*ask, "PING"]) == "PONG"
    except Failed:
        return False


SYSTEM = System("Redis", "redis", prepare, start)
