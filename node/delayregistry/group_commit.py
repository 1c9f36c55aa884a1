"""Writes of several threads in one SQLite transaction: one fsync for all of them, where each had its own.

When a node is lost, thousands of compare-and-swaps come at once (attack P3), and a cloud disk does a few hundred
fsyncs a second. The caller whose turn it is writes for all that wait.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

MAX_BATCH = 64

Write = Callable[[sqlite3.Connection, int], int]
"""(connection, the registry's next version) -> how many rows were changed: 1, or 0 when the write is refused."""


@dataclass(slots=True)
class _PendingWrite:
    write: Write
    done: bool = False
    version: int | None = None  # None: refused
    error: Exception | None = None


class GroupCommit:
    """transaction: gives a connection inside an IMMEDIATE transaction, committed at the end."""

    def __init__(self, transaction: Callable[[], AbstractContextManager[sqlite3.Connection]], timeout_s: float) -> None:
        self._transaction = transaction
        self._timeout_s = timeout_s
        self._turn = threading.Lock()
        self._queue_lock = threading.Lock()
        self._queue: list[_PendingWrite] = []

    def write(self, write: Write) -> int | None:
        """The version that the write was given; None when it was refused. Bounded by about twice the timeout.

        Raises sqlite3.Error when it is not known to be done: it may have been, and may even be done later.
        """
        mine = _PendingWrite(write)
        with self._queue_lock:
            self._queue.append(mine)
        if not self._turn.acquire(timeout=self._timeout_s):
            with self._queue_lock:
                if mine in self._queue:
                    self._queue.remove(mine)
            raise sqlite3.OperationalError(f"not answered within {self._timeout_s} s: another thread is waiting")
        try:
            while not mine.done:
                self._write_next()
        finally:
            self._turn.release()
        if mine.error is not None:
            raise mine.error
        return mine.version

    def _write_next(self) -> None:
        with self._queue_lock:
            batch, self._queue = self._queue[:MAX_BATCH], self._queue[MAX_BATCH:]
        try:
            with self._transaction() as db:
                self._write_all(batch, db)
        except Exception as error:
            for waiting in batch:
                waiting.error = error
        finally:
            for waiting in batch:
                waiting.done = True

    @staticmethod
    def _write_all(batch: list[_PendingWrite], db: sqlite3.Connection) -> None:
        before = last = int(db.execute("SELECT version FROM meta").fetchone()[0])
        for waiting in batch:
            if waiting.write(db, last + 1) == 1:
                last += 1
                waiting.version = last
        if last != before:
            db.execute("UPDATE meta SET version = ?", (last,))
