"""The worker processes and the files in which they write what was delivered."""

import asyncio
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from demo.ledger import DELIVERY

PROJECT = Path(__file__).resolve().parent.parent
STOP_SECONDS = 15.0


class WorkerDied(Exception):
    """A worker ended although nobody asked it to; says how."""


class Crew:
    """Starts `workers` processes of one group; stops them when left."""

    def __init__(self, endpoints: list[str], topic: str, group: str, directory: Path, workers: int = 2) -> None:
        command = [sys.executable, "-m", "demo.worker", ",".join(endpoints), topic, group]
        self.files = [directory / f"worker-{number}" for number in range(workers)]
        self._read = [0] * workers
        # A group of their own: Ctrl-C is for the demo, which then stops them.
        self._processes = [
            subprocess.Popen([*command, str(file)], cwd=PROJECT, stdin=subprocess.PIPE, process_group=0)
            for file in self.files
        ]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def news(self) -> NDArray[np.void]:
        """DELIVERY records written since the last call. Raises WorkerDied."""
        for number, process in enumerate(self._processes):
            if process.poll() is not None:
                raise WorkerDied(f"worker {number} ended with status {process.returncode}")
        parts = []
        for number, path in enumerate(self.files):
            size = path.stat().st_size if path.exists() else 0
            count = size // DELIVERY.itemsize - self._read[number]
            if count > 0:
                parts.append(np.fromfile(path, DELIVERY, count, offset=self._read[number] * DELIVERY.itemsize))
                self._read[number] += count
        return np.concatenate(parts) if parts else np.zeros(0, DELIVERY)

    @property
    def shares(self) -> list[int]:
        """How many deliveries each worker has written, as far as they were read."""
        return list(self._read)
