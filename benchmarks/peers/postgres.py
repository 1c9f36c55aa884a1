"""PostgreSQL: a cluster of its own with the settings of initdb, fsync and synchronous_commit on, and one table."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from delaylocal import ports

from benchmarks.peers.loads import POSTGRES
from benchmarks.peers.processes import Failed, Missing, Server, System, answer, await_ready, program, running

VERSIONS = Path("/usr/lib/postgresql")
USER = "postgres"  # root must not run it
TABLE = "CREATE TABLE delayed (due timestamptz NOT NULL, body bytea NOT NULL); CREATE INDEX ON delayed (due)"
CONNECTIONS = 1_000
SETTINGS = {
    "listen_addresses": ports.HOST,
    "max_connections": str(CONNECTIONS),
    "fsync": "on",
    "synchronous_commit": "on",
}


def _server() -> str | None:
    found = [path for path in VERSIONS.glob("*/bin/postgres") if path.parent.parent.name.isdecimal()]
    return str(max(found, key=lambda path: int(path.parent.parent.name))) if found else None


def prepare(_: Path) -> str:
    server = program(_server, "postgresql")
    if _user() is not None:
        try:
            pwd.getpwnam(USER)
        except KeyError:
            raise Missing(f"root must not run it, and there is no user {USER}") from None
    return answer([server, "--version"])


def _user() -> str | None:
    return None if os.geteuid() else USER


@contextmanager
def start(data: Path, _: Path) -> Iterator[Server]:
    server = Path(program(_server, "postgresql"))
    binaries, user = server.parent, _user()
    data.chmod(0o755)
    files, log = data / "files", data / "log"
    if user is not None:
        shutil.chown(data, user, user)
    as_user = {"user": user, "group": user, "extra_groups": []} if user else {}
    answer([binaries / "initdb", "-D", files, "-U", USER, "-A", "trust", "-E", "UTF8", "--no-locale"], **as_user)
    port = ports.choose(0, 1).grpc[0]
    options = [f"-c{name}={value}" for name, value in SETTINGS.items()]
    command = [server, "-D", files, f"-cport={port}", f"-cunix_socket_directories={data}", *options]
    ask: list[str | Path] = [
        binaries / "psql",
        "-h",
        ports.HOST,
        "-p",
        str(port),
        "-U",
        USER,
        "-d",
        "postgres",
        "-Atqc",
    ]
    # SIGINT: it ends its sessions and stops. SIGTERM would wait for them.
    with running(command, log, stop=signal.SIGINT, user=user) as process:
        await_ready(process, log, partial(_answers, ask))
        answer([*ask, TABLE])
        yield Server(process.pid, f"{ports.HOST}:{port}", lambda: int(answer([*ask, "SELECT count(*) FROM delayed"])))


def _answers(ask: list[str | Path]) -> bool:
    try:
        return answer([*ask, "SELECT 1"]) == "1"
    except Failed:
        return False


SYSTEM = System(POSTGRES, "postgres", prepare, start)
