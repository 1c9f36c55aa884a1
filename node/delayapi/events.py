"""Events as JSON lines, each with its time and level: what every process of ours logs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
import threading
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TextIO

from delayapi.log_levels import LogLevel, is_logged, level_of

KEPT_BYTES: Final = 16 << 20
VARIABLE: Final = "DELAYCLUSTER_LOG_LEVEL"


class EventLog:
    """Call it with an event, from any thread. `to`: a file or a stream; None: stderr.

    level: events below it are not written; may be set at any time. A file that has grown beyond KEPT_BYTES is first put
    aside as `.1`. A reader that has gone, or a full disk, is no reason for the process to stop: the event is lost then.
    """

    def __init__(self, to: Path | TextIO | None = None, level: LogLevel = LogLevel.INFO) -> None:
        self._owned = isinstance(to, Path)
        if isinstance(to, Path):
            if to.exists() and to.stat().st_size > KEPT_BYTES:
                to.replace(to.with_name(to.name + ".1"))
            to = to.open("a", encoding="utf-8")
        self._out = to
        self.level = level
        self._lock = threading.Lock()

    def __call__(self, event: Mapping[str, object]) -> None:
        level = level_of(event)
        if not is_logged(level, self.level):
            return
        line = json.dumps({"time_ms": time.time_ns() // 1_000_000, "level": level, **event}, default=str)
        with self._lock, contextlib.suppress(OSError, ValueError):
            print(line, file=self._out or sys.stderr, flush=True)

    def close(self) -> None:
        if self._owned and self._out is not None:
            self._out.close()


_LEVELS: Final = (  # a library may have levels of its own between these
    (logging.ERROR, LogLevel.ERROR),
    (logging.WARNING, LogLevel.WARNING),
    (logging.INFO, LogLevel.INFO),
)


ENDS_OF_CALLS: Final = (asyncio.CancelledError.__name__, "ExecuteBatchError")
"""What gRPC logs as its own error of a call that was under way when the process ended, or whose client has gone."""


class LibraryRecords(logging.Handler):
    """Log records of the libraries that we use, as events like ours."""

    def __init__(self, log: EventLog) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        level = next((named for number, named in _LEVELS if record.levelno >= number), LogLevel.DEBUG)
        if record.exc_info and type(record.exc_info[1]).__name__ in ENDS_OF_CALLS:
            level = LogLevel.DEBUG
        try:
            message = record.getMessage()
        except Exception:  # the library's mistake must not end what it was doing
            message = f"{record.msg} {record.args}"
        event = {"event": "log", "level": level, "logger": record.name, "message": message}
        if record.exc_info:
            event["trace"] = (self.formatter or logging.Formatter()).formatException(record.exc_info)
        self._log(event)


def take_library_records(log: EventLog) -> None:
    """From now on the libraries of this process log through `log`."""
    logging.basicConfig(level=logging.INFO, handlers=[LibraryRecords(log)], force=True)


def _level(word: str) -> LogLevel:
    try:
        return LogLevel(word)
    except ValueError:
        raise ArgumentTypeError(f"{word!r} (here or in ${VARIABLE}) is not one of {', '.join(LogLevel)}") from None


def add_level_option(parser: ArgumentParser) -> None:
    """--log-level: the same for every program."""
    parser.add_argument(
        "--log-level",
        type=_level,  # the environment's word is held against it too
        default=os.environ.get(VARIABLE) or LogLevel.INFO,
        metavar="|".join(LogLevel),
        help=f"the least level of events in the log (default: ${VARIABLE}, else info)",
    )
