"""Real processes of a sink against a real cluster, and what they report."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp


class SinkProcess:
    """One process; an async context manager that ends it."""

    def __init__(self, folder: Path, endpoint: str, name: str, spec: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        path = folder / f"{name}.json"
        path.write_text(json.dumps({"kind": "DelaySink", "metadata": {"name": name}, "spec": spec}))
        self._log = folder / f"{self.address.rpartition(':')[2]}.log"
        self._words = [sys.executable, "-c", "from delaysink.main import main; main()", f"--sink={path}"]
        self._words += [f"--endpoint={endpoint}", f"--secrets={folder}", f"--listen={self.address}"]
        self._process: subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> SinkProcess:
        self._process = self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end(signal.SIGKILL)

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("wb") as log:
            return subprocess.Popen(self._words, stderr=log, stdout=log)

    async def end(self, by: signal.Signals = signal.SIGTERM) -> int:
        """Its exit code."""
        assert self._process is not None
        self._process.send_signal(by)
        return await asyncio.to_thread(self._process.wait, 120)

    def log_text(self) -> str:
        return self._log.read_text()

    def events(self) -> list[dict[str, Any]]:
        """What it has logged; lines that are not events fail the test."""
        return [json.loads(line) for line in self.log_text().splitlines()]

    async def get(self, path: str) -> str:
        async with aiohttp.ClientSession() as session, session.get(f"http://{self.address}{path}") as answer:
            return await answer.text()

    async def report(self, timeout_s: float = 60) -> dict[str, Any]:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    found: dict[str, Any] = json.loads(await self.get("/status"))
                    return found
                except aiohttp.ClientError:
                    await asyncio.sleep(0.1)

    async def until(self, timeout_s: float = 60, says: str = "", failures: int = 0, **wanted: Any) -> dict[str, Any]:
        """Its report, once it has these values, a message with this text, and so many failed attempts or more."""
        report: dict[str, Any] = {}
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    report = await self.report()
                    has_all = all(report[name] == value for name, value in wanted.items())
                    if has_all and says in report["message"] and report["failed"] >= failures:
                        return report
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"{wanted} {says!r} {failures=} did not come: {report} {self.events()}") from None
