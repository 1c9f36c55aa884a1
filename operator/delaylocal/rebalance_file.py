"""The local cluster's DelayRebalance: one file beside its registry, written by `delayctl rebalance` and by the loop.

    DIR/rebalance.json    {"metadata": {"generation", "annotations"}, "spec": ..., "status": ...}, as in Kubernetes
    DIR/rebalance.lock    held while somebody reads, changes and writes it

A write is a new file put in the place of the old one, synced first: whoever is killed leaves the one or the other. The
loop writes the status; the command writes the rest, and the plan.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from delayoperator.crds.rebalance import DelayRebalance
from pydantic import ValidationError

NAME = "rebalance.json"
LOCK_S = 5.0  # a change takes milliseconds


class RebalanceFileError(Exception):
    """The file can't be read, written or locked, or is none of ours; says what to do."""


@dataclass(frozen=True, slots=True)
class StoredRebalance:
    """generation: of the spec, + 1 with each change. annotations: verbs that the loop has not taken up yet."""

    rebalance: DelayRebalance
    generation: int = 1
    annotations: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        body = self.rebalance.model_dump(mode="json", by_alias=True, exclude_none=True)
        return {"metadata": {"generation": self.generation, "annotations": dict(self.annotations)}, **body}


class RebalanceFile:
    """See the module. Any thread; other processes too."""

    def __init__(self, data: Path) -> None:
        self._path = data / NAME
        self._lock = data / "rebalance.lock"

    def stamp(self) -> tuple[int, int]:
        """Changes with every write: cheap enough to look at ten times a second. Zeros: there is no file."""
        try:
            found = self._path.stat()
        except OSError:
            return 0, 0
        return found.st_ino, found.st_mtime_ns

    def read(self) -> StoredRebalance | None:
        """None: there is none. Raises RebalanceFileError."""
        try:
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise RebalanceFileError(f"{self._path}: {error}") from error
        try:
            value = json.loads(text)
            metadata = value.pop("metadata")
            generation, annotations = int(metadata["generation"]), dict(metadata["annotations"])
            return StoredRebalance(DelayRebalance.model_validate(value), generation, annotations)
        except (ValueError, ValidationError, KeyError, TypeError, AttributeError) as error:
            raise RebalanceFileError(
                f"{self._path} is no DelayRebalance ({type(error).__name__}): remove it, and propose again"
            ) from error

    def edit(self, change: Callable[[StoredRebalance | None], StoredRebalance | None]) -> StoredRebalance | None:
        """What `change` makes of what is there; the same object: nothing is written. Raises RebalanceFileError."""
        with self._locked():
            found = self.read()
            wanted = change(found)
            if wanted is not None and wanted != found:
                self._write(wanted)
            return wanted

    def _write(self, wanted: StoredRebalance) -> None:
        new = self._path.with_name(NAME + ".new")
        try:
            with new.open("w", encoding="utf-8") as file:
                json.dump(wanted.as_json(), file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path)
            directory = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            raise RebalanceFileError(f"{self._path} can't be written: {error.strerror}") from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            lock = self._lock.open("a")
        except OSError as error:
            raise RebalanceFileError(f"{self._lock}: {error.strerror}") from error
        with lock:
            deadline_s = time.monotonic() + LOCK_S
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline_s:
                        raise RebalanceFileError(f"{self._lock} is held by another process for {LOCK_S:g} s") from None
                    time.sleep(0.01)
            yield
