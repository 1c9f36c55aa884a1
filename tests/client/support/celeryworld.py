"""Celery itself for tests: an application on one topic, workers in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import delayclient.celery  # noqa: F401
from celery import Celery
from delayclient import sync

MODULE = "tests.client.support.celerytasks"
READY_S = 60.0


class Shop:
    """options: broker_transport_options, for who sends and for workers."""

    def __init__(self, endpoint: str, queue: str, log: Path, **options: Any) -> None:
        self.endpoint, self.queue, self.log = endpoint, queue, log
        self.broker, self.options = f"delaycluster://{endpoint}", options
        self.app = Celery("sender", broker=self.broker, set_as_current=False)
        self.app.conf.update(task_default_queue=queue, broker_transport_options=options)

    def send(self, task: str, *args: object, **options: Any) -> Any:
        return self.app.send_task(f"{MODULE}.{task}", args, queue=self.queue, **options)

    def environment(self, lease: str = "2s") -> dict[str, str]:
        own = {"BROKER": self.broker, "QUEUE": self.queue, "LOG": str(self.log)}
        return os.environ | own | {"OPTIONS": json.dumps({"lease": lease, **self.options})}

    def start(self, *words: str, module: str = MODULE, folder: Path | None = None, lease: str = "2s") -> Any:
        """A worker, which may not get as far as "ready". Its `said` is the file of its output."""
        command = [sys.executable, "-m", "celery", "-A", module, "worker", "-l", "INFO", *words]
        said = self.log.with_suffix(f".{time.monotonic_ns()}.worker")
        with open(said, "wb") as output:
            process = subprocess.Popen(
                command,
                env=self.environment(lease),
                cwd=folder,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        process.said = said  # type: ignore[attr-defined]
        return process

    @contextmanager
    def worker(self, *words: str, **how: Any) -> Iterator[Any]:
        process = self.start(*words, **how)
        try:
            wait(lambda: " ready." in process.said.read_text(), process.said)
            yield process
        finally:
            end(process)

    def lines(self, first: str = "") -> list[list[str]]:
        return lines_of(self.log, first)

    def pending(self) -> int:
        with sync.Admin(self.endpoint) as admin:
            return len(list(admin.list_pending(self.queue)))


def end(worker: Any) -> None:
    """With all its processes, what a killed one has left behind too."""
    worker.terminate()
    try:
        worker.wait(20)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)


def lines_of(log: Path, first: str) -> list[list[str]]:
    text = log.read_text() if log.exists() else ""
    return [line.split() for line in text.splitlines() if line.startswith(first)]


def wait(what: Callable[[], object], about: object = "", seconds: float = READY_S) -> None:
    end_s = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end_s, about.read_text()[-3000:] if isinstance(about, Path) else about
        time.sleep(0.05)
