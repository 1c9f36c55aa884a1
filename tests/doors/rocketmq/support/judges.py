"""The official clients as processes of their own, which do what a test tells them.

A judge is told by lines with tabs between fields:
`producer TOPIC`, `send TOPIC BODY AT_MS TAG KEYS NAME VALUE`, `recall TOPIC HANDLE`,
`push TOPIC GROUP TAGS`, `simple TOPIC GROUP TAGS WAIT_S`, `receive MOST LEASE_S`, `ack ID`, `change ID LEASE_S`. It
answers each by a line, and tells of each message that it gets: `received BODY ID TAG KEYS ATTEMPT DUE_MS NOW_MS
PROPERTIES`. A push consumer fails a body that begins with "fail" once, and works on "slow S" for so many seconds.
"""

from __future__ import annotations

import hashlib
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.peers.processes import Missing, build, program

PROGRAMS = Path(__file__).parent.parent / "judges"
ANSWER_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Received:
    body: str
    id: str
    tag: str
    keys: tuple[str, ...]
    attempt: int
    due_ms: int
    at_ms: int
    properties: str


class Judge:
    """A client's process. Owned by the test."""

    def __init__(self, command: Sequence[str | Path], log: Path, environment: Mapping[str, str]) -> None:
        self.log = log
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=errors, text=True, cwd=log.parent, env={**os.environ, "HOME": str(log.parent), **environment},
            )  # fmt: skip
        self.received: list[Received] = []
        self._answers: queue.Queue[list[str]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            kind, *fields = line.rstrip("\n").split("\t")
            if kind == "received":
                body, id_, tag, keys, attempt, due_ms, at_ms, properties = fields
                names = tuple(filter(None, keys.split(",")))
                self.received.append(Received(body, id_, tag, names, int(attempt), int(due_ms), int(at_ms), properties))
            elif kind in ANSWERS:
                self._answers.put([kind, *fields])

    def tell(self, *command: object) -> list[str]:
        """Its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write("\t".join(map(str, command)) + "\n")
        self.process.stdin.flush()
        return self._answers.get(timeout=ANSWER_SECONDS)

    def ask(self, *command: object) -> list[str]:
        """The answer's fields, of a command that is done."""
        kind, *fields = self.tell(*command)
        assert kind != "refused", (command, fields)
        return fields

    def send(
        self, topic: str, body: str, *, at_ms: int | str = "", tag: str = "", keys: str = "", name: str = "",
        value: str = "",
    ) -> tuple[str, str]:  # fmt: skip
        """The message's id and recall handle."""
        id_, handle = self.ask("send", topic, body, at_ms, tag, keys, name, value)
        return id_, handle

    def until(self, count: int, seconds: float = 20.0) -> list[Received]:
        """What it has got, once there is so much."""
        wait(lambda: len(self.received) >= count, f"{count} messages", seconds, lambda: repr(self.received))
        return self.received

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def start_judge(
    language: str,
    directory: Path,
    endpoint: str,
    *,
    key: str = "",
    token: str = "",
    ca: Path | None = None,
    clock_hours: int = 0,
) -> Judge:
    """key, token: an access key, a session token. ca: who is trusted; None: no TLS. clock_hours: by so much its wall
    clock is ahead. Skips the test without a client, or without libfaketime."""
    try:
        command = command_of(language)
    except Missing as error:
        pytest.skip(f"the official client in {language}: {error}")
    trusted = {} if ca is None else {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(ca), "NODE_EXTRA_CA_CERTS": str(ca)}
    arguments = [endpoint, key, "secret" if key else "", token, "" if ca is None else "tls"]
    clock = {}
    if clock_hours:
        library = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)
        if library is None:
            pytest.skip("libfaketime is not installed: apt-get install libfaketime")
        # The clock by which waits are measured stays what it is, as on such a machine.
        clock = {"LD_PRELOAD": str(library), "FAKETIME": f"{clock_hours:+}h", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    return Judge([*command, *arguments], directory / "log", {**trusted, **clock})


ANSWERS = ("ready", "stored", "recalled", "polled", "acked", "changed", "refused", "ended")


def wait(true: Callable[[], bool], what: str, seconds: float, seen: Callable[[], str] = lambda: "") -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not within {seconds} s: {what}; {seen()}"
        time.sleep(0.02)


def command_of(language: str) -> list[str | Path]:
    """The command of a judge, whose client is fetched first; its arguments follow. Raises Missing."""
    return list({"python": _python, "node": _node, "java": _java}[language]())


def kept_directory(language: str, *sources: str) -> Path:
    """A directory for what is fetched, which a change of these files replaces."""
    digest = hashlib.sha256(b"".join((PROGRAMS / language / name).read_bytes() for name in sources)).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return cache / "delaycluster" / f"rocketmq-{language}-{digest}"


def _python() -> Sequence[str | Path]:
    kept = kept_directory("python", "requirements.txt")
    if not (kept / "whole").exists():
        build([sys.executable, "-m", "venv", "--clear", kept], "no environment for Python's client")
        requirements = PROGRAMS / "python" / "requirements.txt"
        build([kept / "bin/pip", "install", "--quiet", "-r", requirements], "pip can't fetch Python's client")
        (kept / "whole").touch()
    return [kept / "bin/python", PROGRAMS / "python" / "judge.py"]


def _node() -> Sequence[str | Path]:
    npm = shutil.which("npm")
    if npm is None:
        raise Missing("npm is not installed")
    kept = kept_directory("node", "package.json")
    if not (kept / "whole").exists():
        kept.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROGRAMS / "node" / "package.json", kept)
        build([npm, "install", "--silent", "--ignore-scripts"], "npm can't fetch Node's client", cwd=kept)
        (kept / "whole").touch()
    return ["node", PROGRAMS / "node" / "judge.js", kept]


def _java() -> Sequence[str | Path]:
    maven = program(lambda: shutil.which("mvn"), "maven")
    program(lambda: shutil.which("javac"), "default-jdk-headless")
    kept = kept_directory("java", "pom.xml", "Judge.java")
    if not (kept / "Judge.class").exists():
        kept.mkdir(parents=True, exist_ok=True)
        goal = ["dependency:build-classpath", f"-Dmdep.outputFile={kept / 'classpath'}"]
        pom = PROGRAMS / "java" / "pom.xml"
        build([maven, "--batch-mode", "--quiet", "--file", pom, *goal], "Maven can't fetch Java's client")
        source = PROGRAMS / "java" / "Judge.java"
        build(["javac", "-cp", (kept / "classpath").read_text(), "-d", kept, source], "javac can't compile the judge")
    return ["java", "-Xmx256m", "-cp", f"{kept}:{(kept / 'classpath').read_text().strip()}", "Judge"]
