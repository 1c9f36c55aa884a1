"""Keeps one process per node running: starts them, starts those again that end, stops them all.

Everything is started by one thread, which lives as long as the processes: they are killed when it ends (launch.py).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from delayapi.log_levels import LogLevel
from delayoperator.control_loop.loop import Log

from delaylocal import launch

POLL_S = 0.02
STOP_TIMEOUT_S = 20.0
INSIST_S = 3.0
STEADY_S = 3.0  # a process that lived this long was well: its end does not count as one of a series
BACKOFF_S = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0)  # before the next start, by the number of early ends in a row
LOG_KEPT_BYTES = 16 << 20


@dataclass
class _Node:
    command: tuple[str, ...]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    due_s: float = 0.0  # when to start it (monotonic)
    early_ends: int = 0
    signalled: bool = False  # by us, so that its end tells nothing about its health


class Supervisor:
    """Calls with the node id, in the supervisor's thread: `before_start` before each start of its process, `ended` once
    one has ended (its parent has waited for it: nothing of it runs) and before the next is started."""

    def __init__(
        self,
        commands: Mapping[str, Sequence[str]],
        logs: Path,
        log: Log,
        before_start: Callable[[str], None],
        ended: Callable[[str], None],
    ) -> None:
        self._nodes = {node: _Node(tuple(command), logs / f"{node}.log") for node, command in commands.items()}
        self._log = log
        self._before_start, self._ended = before_start, ended
        self._changed = threading.Condition()
        self._stop_at_s: float | None = None
        self._killed: tuple[str, ...] = ()
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def pids(self) -> dict[str, int]:
        """The processes that run now."""
        with self._changed:
            return {
                node: it.process.pid for node, it in self._nodes.items() if it.process and it.process.poll() is None
            }

    def log_path(self, node: str) -> Path:
        return self._nodes[node].log

    def early_ends(self, node: str) -> int:
        """How many times in a row its process ended soon after its start."""
        return self._nodes[node].early_ends

    def signal(self, node: str, signum: int, timeout_s: float = 5.0) -> int:
        """Sends a signal; returns the pid. After SIGKILL the process is gone when this returns.

        Raises ProcessLookupError when none runs.
        """
        with self._changed:
            process = self._nodes[node].process
            if process is None or process.poll() is not None:
                raise ProcessLookupError(f"{node} is not running")
            process.send_signal(signum)
            self._nodes[node].signalled = True
        if signum == signal.SIGKILL:
            process.wait(timeout_s)
        return process.pid

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> tuple[str, ...]:
        """Asks all to stop, kills those that have not after `timeout_s`. Returns the ids of those killed."""
        with self._changed:
            self._stop_at_s = time.monotonic() + timeout_s
            self._changed.notify_all()
        self._thread.join()
        return self._killed

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait(POLL_S)
                if self._stop_at_s is not None:
                    break
            for node, it in self._nodes.items():
                self._check_process(node, it)
        self._stop_all()

    def _check_process(self, node: str, it: _Node) -> None:
        now_s = time.monotonic()
        if it.process is not None and it.process.poll() is not None:
            self._record_exit(node, it, now_s)
        if it.process is None and now_s >= it.due_s:
            again = it.started_s > 0
            try:
                self._before_start(node)
                self._spawn(it)
            except Exception as error:  # whatever hinders this start must not end the supervision of the others
                it.due_s = now_s + BACKOFF_S[-1]
                self._log({"event": "node-not-started", "node": node, "error": str(error)})
                return
            pid = it.process.pid if it.process else 0
            self._log({"event": "node-restarted" if again else "node-started", "node": node, "pid": pid})

    def _record_exit(self, node: str, it: _Node, now_s: float) -> None:
        assert it.process is not None
        early = now_s - it.started_s < STEADY_S and not it.signalled
        it.early_ends = it.early_ends + 1 if early else 0
        wait_s = BACKOFF_S[min(it.early_ends, len(BACKOFF_S) - 1)]
        it.due_s = now_s + wait_s
        fate = _fate(it.process.returncode)
        level = LogLevel.INFO if it.signalled else LogLevel.ERROR
        event = {"event": "node-died", "level": level, "node": node, "pid": it.process.pid, **fate}
        event["restart_in_seconds"] = wait_s
        self._log({**event, "log": str(it.log)})
        with self._changed:
            it.process = None
        try:
            self._ended(node)
        except Exception as error:  # what follows from an end is less than the next start
            self._log({"event": "end-not-told", "node": node, "error": str(error)})

    def _spawn(self, it: _Node) -> None:
        if it.log.exists() and it.log.stat().st_size > LOG_KEPT_BYTES:
            it.log.replace(it.log.with_suffix(".log.1"))
        with it.log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), *it.command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,  # Ctrl-C in the terminal is for the supervisor alone
            )
        with self._changed:
            it.process, it.started_s, it.signalled = process, time.monotonic(), False

    def _stop_all(self) -> None:
        running = {node: it.process for node, it in self._nodes.items() if it.process and it.process.poll() is None}
        for process in running.values():
            # SIGTERM would have each hand its masters over first, to nodes that end too.
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGCONT)  # a process that was stopped (SIGSTOP) gets no other signal
        insisted_s = time.monotonic() + INSIST_S
        while any(process.poll() is None for process in running.values()):
            if time.monotonic() >= insisted_s:
                # A Python program that is just starting may have lost its KeyboardInterrupt.
                insisted_s = float("inf")
                for process in running.values():
                    process.send_signal(signal.SIGTERM)
            with self._changed:
                assert self._stop_at_s is not None
                if time.monotonic() >= self._stop_at_s:
                    break
                self._changed.wait(POLL_S)
        self._killed = tuple(node for node, process in running.items() if process.poll() is None)
        for node in self._killed:
            running[node].kill()
            self._log(
                {"event": "node-killed", "node": node, "pid": running[node].pid, "reason": "did not stop in time"}
            )
        for process in running.values():
            process.wait()


def _fate(returncode: int) -> dict[str, object]:
    if returncode >= 0:
        return {"exit_code": returncode}
    try:
        return {"signal": signal.Signals(-returncode).name}
    except ValueError:
        return {"signal": str(-returncode)}
