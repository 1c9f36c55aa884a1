"""Celery itself for tests: an application on one topic, workers in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path

from celery import Celery
from delayclient import sync

from tests.client.support import celerytasks

READY_S = 30.0


class Shop:
    """An application on one topic: tasks are sent from here, workers run beside."""

    def __init__(self, endpoint: str, queue: str, log: Path) -> None:
        self.endpoint, self.queue, self.log = endpoint, queue, log
        self.app: Celery = celerytasks.app
        self.broker = f"delaycluster://{endpoint}"
        self.app.conf.update(task_default_queue=queue, broker_url=self.broker)

    def send(self, task: str, *args: object, **options: object):
        return self.app.send_task(f"tests.client.support.celerytasks.{task}", args, queue=self.queue, **options)

    @contextmanager
    def worker(
        self,
        *words: str,
        module: str = "tests.client.support.celerytasks",
        folder: Path | None = None,
        lease: str = "2s",
    ):
        own = {"BROKER": self.broker, "QUEUE": self.queue, "LOG": str(self.log), "LEASE": lease}
        environment = os.environ | own
        command = [sys.executable, "-m", "celery", "-A", module, "worker", "-l", "INFO", *words]
        said = self.log.with_suffix(f".{time.monotonic_ns()}.worker")
        with open(said, "wb") as output:
            process = subprocess.Popen(
                command, env=environment, cwd=folder, stdout=output, stderr=output, start_new_session=True
            )
        try:
            wait(lambda: " ready." in said.read_text(), said)
            process.said = said  # type: ignore[attr-defined]
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            finally:
                with suppress(ProcessLookupError):  # what a killed one has left behind
                    os.killpg(process.pid, signal.SIGKILL)

    def lines(self, first: str = "") -> list[list[str]]:
        text = self.log.read_text() if self.log.exists() else ""
        return [line.split() for line in text.splitlines() if line.startswith(first)]

    def pending(self) -> int:
        with sync.Admin(self.endpoint) as admin:
            return len(list(admin.list_pending(self.queue)))


def wait(what: Callable[[], object], about: object = "", seconds: float = READY_S) -> None:
    end_s = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end_s, about.read_text()[-3000:] if isinstance(about, Path) else about
        time.sleep(0.05)
