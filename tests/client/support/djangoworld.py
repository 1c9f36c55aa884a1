"""Django's tasks on one queue: they are enqueued from the test, workers are processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.client.support.djangosettings")

from delayclient.django.backend import DelayBackend

from tests.client.support import djangotasks
from tests.client.support.celeryworld import lines_of, wait

ROOT = Path(__file__).resolve().parents[3]


class Project:
    def __init__(self, endpoint: str, queue: str, log: Path, **options: Any) -> None:
        self.endpoint, self.queue, self.log = endpoint, queue, log
        self.options: dict[str, Any] = {"endpoints": [endpoint], "lease": "2s", **options}
        self.backend = DelayBackend("default", {"QUEUES": [], "OPTIONS": self.options})

    def enqueue(self, name: str, *args: object, run_after: datetime | None = None) -> Any:
        task = getattr(djangotasks, name).using(queue_name=self.queue, run_after=run_after)
        return self.backend.enqueue(task, args, {})

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """A worker, which may not get as far as "ready". Its `said` is the file of its output."""
        command = [sys.executable, "-m", "django", "delay_worker", "--queue", self.queue, *words]
        own = {"OPTIONS": json.dumps(self.options), "LOG": str(self.log), "PYTHONUNBUFFERED": "1"}
        said = self.log.with_suffix(f".{time.monotonic_ns()}.worker")
        with open(said, "wb") as output:
            process = subprocess.Popen(command, env=os.environ | own, cwd=ROOT, stdout=output, stderr=output)
        process.said = said  # type: ignore[attr-defined]
        return process

    @contextmanager
    def worker(self, *words: str) -> Iterator[Any]:
        process = self.start(*words)
        try:
            wait(lambda: f"ready: {self.queue}" in process.said.read_text(), process.said)  # type: ignore[attr-defined]
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            finally:
                process.kill()

    def lines(self, first: str = "") -> list[list[str]]:
        return lines_of(self.log, first)
