"""`delayctl console` as a process of its own, on a cluster of the test's"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

DELAYCTL = Path(sys.executable).with_name("delayctl")
START_S = 60


@contextmanager
def running_console(endpoint: str, *options: str) -> Iterator[str]:
    """The link that it prints."""
    with running(["--endpoint", endpoint, *options], {}) as link:
        yield link


@contextmanager
def running(options: Sequence[str], environment: Mapping[str, str]) -> Iterator[str]:
    """Likewise. environment: what is added to that of the test."""
    command = [DELAYCTL, "console", "--port", "0", *options]
    whole = {**os.environ, "PYTHONUNBUFFERED": "1", **environment}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=whole)
    watchdog = threading.Timer(START_S, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        link = process.stdout.readline().strip()
        watchdog.cancel()
        assert link.startswith("http://127.0.0.1:"), "the console has not started"
        yield link
    finally:
        watchdog.cancel()
        process.terminate()
        process.wait(30)
