"""A FaultCluster in a process of its own: its control loop does not share the interpreter with a heavy load."""

from __future__ import annotations

import multiprocessing
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.faults.support.failover import FaultCluster

# wait_ready() is not among them: it would hold the pipe until all is well, and no test could look at the shards.
PASSED_ON = ("unready", "kill", "shards", "masters", "endpoints", "ways", "pids", "check_logs", "data", "logged")


class Separate(FaultCluster):
    """Looks like the cluster that it starts, and passes on the calls that a round makes, no others."""

    def __init__(self, data: Path, **desired: Any) -> None:
        mine, theirs = multiprocessing.Pipe()
        self._pipe = mine
        self._turn = threading.Lock()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_serve, args=(theirs, data, desired), daemon=False)

    def start(self) -> None:
        self._process.start()
        self._answer()

    def stop(self, timeout_s: float = 60.0) -> tuple[str, ...]:
        with self._turn:
            self._pipe.send(None)
        self._process.join(timeout_s)
        return ()

    def __getattribute__(self, name: str) -> Any:
        if name not in PASSED_ON:
            return object.__getattribute__(self, name)
        if name in ("endpoints", "pids", "data"):
            return self._ask(name)
        return lambda *args: self._ask(name, *args)

    def _ask(self, name: str, *args: Any) -> Any:
        with self._turn:
            self._pipe.send((name, args))
            return self._answer()

    def _answer(self) -> Any:
        answer = self._pipe.recv()
        if isinstance(answer, BaseException):
            raise answer
        return answer


def _serve(pipe: Connection, data: Path, desired: dict[str, Any]) -> None:
    with FaultCluster(data, **desired) as cluster:
        pipe.send(None)
        while (asked := pipe.recv()) is not None:
            name, args = asked
            try:
                found = getattr(cluster, name)
                pipe.send(found(*args) if callable(found) else found)
            except Exception as error:
                pipe.send(error)
