"""The local cluster's rebalance: a thread that drives the plan in its file over the live map."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from delayapi.log_levels import LogLevel
from delayoperator.control_loop.loop import Log, LoopClock
from delayoperator.control_loop.probe import CopyProgress, Prober
from delayoperator.crds.rebalance import DelayRebalanceStatus, MoveState
from delayoperator.plan import ObservedNode
from delayoperator.rebalance_plan import (
    Job,
    JobState,
    RebalanceConflict,
    RebalanceDriver,
    RebalanceEvent,
    RebalanceRequest,
    RebalanceStore,
    moves_of,
)
from delayregistry.port import RegistryError
from delayregistry.sqlite import SqliteRegistry

from delaylocal.rebalance_file import RebalanceFile, RebalanceFileError, StoredRebalance

POLL_S = 0.1
MOVING_S = 0.5  # between looks while copies are on their way, for the progress
TROUBLE_S = 1.0
NO_JOB = Job(JobState.FAILED, "a local cluster makes no plans by itself: run `delayctl rebalance`")


class Rebalancer:
    """See the module. nodes: as the control loop sees them now. log: gets events, as those of the loop."""

    def __init__(
        self,
        data: Path,
        registry: SqliteRegistry,
        nodes: Callable[[], Mapping[str, ObservedNode]],
        new_prober: Callable[[], Prober],
        log: Log,
    ) -> None:
        self._file, self._registry, self._nodes, self._log = RebalanceFile(data), registry, nodes, log
        self._copies = CopyProgress(registry, new_prober)
        self._driver = RebalanceDriver(registry, self._copies.fetched_bytes, log)
        self._wall_ms = LoopClock().wall_ms
        self._seen: object = None
        self._recheck_at_ms: int | None = None
        self._last_error = ""

    def run(self, stop: threading.Event) -> None:
        """Until `stop`."""
        try:
            while not stop.wait(POLL_S):
                try:
                    if self._has_news():
                        self.round()
                    self._last_error = ""
                except (RebalanceFileError, RegistryError) as error:
                    if str(error) != self._last_error:
                        self._log({"event": "rebalance-held-up", "error": str(error)})
                    self._last_error = str(error)
                    stop.wait(TROUBLE_S)
        finally:
            self._copies.close()

    def _has_news(self) -> bool:
        stamp = self._file.stamp()
        if not any(stamp):
            return False
        seen = stamp, self._registry.version(), self._nodes()
        due = self._recheck_at_ms is not None and self._wall_ms() >= self._recheck_at_ms
        news, self._seen = due or seen != self._seen, seen
        return news

    def round(self) -> None:
        """One step. Raises RebalanceFileError, RegistryError."""
        stored = self._file.read()
        world = None if stored is None else self._driver.observe(self._nodes())
        if stored is None or world is None:
            return
        now_ms = self._wall_ms()
        self._recheck_at_ms = now_ms  # a round that fails is done again
        done = self._driver.round(FileRebalanceStore(self._file, stored, self._log), world, now_ms)
        if done.outcome is None or done.retry:
            return
        self._recheck_at_ms = done.outcome.recheck_at_ms
        if any(move.state is MoveState.MOVING for move in moves_of(done.outcome.status.plan)):
            soon_ms = now_ms + int(MOVING_S * 1000)
            self._recheck_at_ms = min(soon_ms, done.outcome.recheck_at_ms or soon_ms)


class FileRebalanceStore(RebalanceStore):
    """Raises RebalanceFileError. log: gets the events: a local cluster has no other place for them."""

    def __init__(self, file: RebalanceFile, stored: StoredRebalance, log: Log) -> None:
        self._file, self._stored, self._log = file, stored, log
        self.request = RebalanceRequest.of(stored.rebalance.spec, stored.generation, stored.annotations)
        self.status = stored.rebalance.status or DelayRebalanceStatus.model_validate({})

    def keep(self, status: DelayRebalanceStatus) -> bool:
        if status == self.status:
            return False
        new = replace(self._stored, rebalance=self._stored.rebalance.model_copy(update={"status": status}))
        if self._file.edit(lambda now: new if now == self._stored else now) is not new:
            raise RebalanceConflict
        return True

    def remove_verbs(self, verbs: frozenset[str]) -> None:
        def without(now: StoredRebalance | None) -> StoredRebalance | None:
            if now is None:
                return None
            answered = self.request.answered(verbs, now.annotations)
            return replace(now, annotations={key: it for key, it in now.annotations.items() if key not in answered})

        if verbs:
            self._file.edit(without)

    def record(self, event: RebalanceEvent) -> None:
        level = LogLevel.WARNING if event.warning else LogLevel.INFO
        self._log({"event": "rebalance", "level": level, "reason": event.reason.value, "message": event.message})

    def job(self) -> Job:
        return NO_JOB
