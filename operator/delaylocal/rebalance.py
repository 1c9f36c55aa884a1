"""The local cluster's rebalance: drives the state machine of rebalance_plan from a file and the live map.

The status is kept before anything is done for it, so whoever is killed in between begins anew from the file.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from delayoperator.control_loop.loop import Log
from delayoperator.control_loop.probe import Prober, fetched
from delayoperator.crds.rebalance import DelayRebalanceStatus, MoveState, PlannedMove, RebalanceState
from delayoperator.plan import ObservedNode
from delayoperator.rebalance_plan import Edit, Job, JobState, RebalanceRequest, StepOutcome, World, step
from delayregistry.model import ClusterSpec, ShardObject
from delayregistry.port import Conflict, OutcomeUnknown, RegistryError
from delayregistry.sqlite import SqliteRegistry

from delaylocal.rebalance_file import RebalanceFile, RebalanceFileError, StoredRebalance

POLL_S = 0.1
MOVING_S = 0.5  # between looks while copies are on their way, for the progress
TROUBLE_S = 1.0
APPROVE, VERB = "delaycluster.io/approve", "delaycluster.io/rebalance"
_NO_JOB = Job(JobState.FAILED, "a local cluster makes no plans by itself: run `delayctl rebalance`")


class Rebalancer:
    """See the module. nodes: as the control loop sees them now. log: gets events, as those of the loop."""

    def __init__(
        self,
        data: Path,
        registry: SqliteRegistry,
        nodes: Callable[[], Mapping[str, ObservedNode]],
        prober: Prober,
        log: Log,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._file = RebalanceFile(data)
        self._registry = registry
        self._nodes = nodes
        self._prober = prober
        self._log = log
        self._wall_ms = wall_ms
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
            self._prober.close()

    def _has_news(self) -> bool:
        stamp = self._file.stamp()
        if not any(stamp):
            return False
        seen = stamp, self._registry.version(), self._nodes()
        due = self._recheck_at_ms is not None and self._wall_ms() >= self._recheck_at_ms
        if seen == self._seen and not due:
            return False
        self._seen = seen
        return True

    def round(self) -> None:
        """One step. Raises FileTrouble, RegistryError."""
        kept, found = self._file.read(), self._registry.read_cluster()
        if kept is None or found is None:
            return
        outcome = step(request_of(kept), kept.rebalance.status, self._world(found.spec, kept), self._wall_ms())
        self._recheck_at_ms = outcome.recheck_at_ms
        if _in_flight(outcome.status):
            soon_ms = self._wall_ms() + int(MOVING_S * 1000)
            self._recheck_at_ms = min(soon_ms, outcome.recheck_at_ms or soon_ms)
        if not self._keep(kept, outcome):
            return  # somebody else has changed it: the next round
        if not self._apply(outcome.edits):
            self._recheck_at_ms = self._wall_ms()
        self._consume(kept, outcome)
        for event in outcome.events:
            entry = {"event": "rebalance", "reason": event.reason.value, "message": event.message}
            self._log({**entry, "warning": True} if event.warning else entry)

    def _world(self, cluster: ClusterSpec, kept: StoredRebalance) -> World:
        shards = {shard.name: shard for shard in self._registry.list_shards()}
        status = kept.rebalance.status
        asks = status is not None and status.state is RebalanceState.PENDING_PROPOSAL
        return World(
            cluster,
            shards,
            self._nodes(),
            job=_NO_JOB if asks else Job(),
            copied={} if status is None else self._copied(status, shards),
        )

    def _copied(self, status: DelayRebalanceStatus, shards: Mapping[str, ShardObject]) -> dict[str, int]:
        """Bytes that copies on their way have fetched, by shard."""
        moving = {move.shard: move.to for move in _moves(status) if move.state is MoveState.MOVING}
        if not moving:
            return {}
        return fetched(moving, shards, self._registry.list_leases(), self._prober)

    def _keep(self, kept: StoredRebalance, outcome: StepOutcome) -> bool:
        if outcome.status == kept.rebalance.status:
            return True
        new = replace(kept, rebalance=kept.rebalance.model_copy(update={"status": outcome.status}))
        return self._file.edit(lambda now: new if now == kept else now) is new

    def _apply(self, edits: tuple[Edit, ...]) -> bool:
        """Whether all were written; those that were not are asked for again by the next step."""
        done = True
        for edit in edits:
            event = {"event": "action", "action": "Rebalance", "shard": edit.shard.name, "reason": edit.reason}
            try:
                self._registry.write_spec(edit.shard.name, edit.spec, edit.shard.version)
                self._log({**event, "outcome": "done"})
            except (Conflict, OutcomeUnknown) as error:
                self._log({**event, "outcome": type(error).__name__.lower(), "error": str(error)})
                done = False
        return done

    def _consume(self, kept: StoredRebalance, outcome: StepOutcome) -> None:
        names = [{"approve": APPROVE, "verb": VERB}[name] for name in outcome.consumed]
        if not names:
            return

        def without(now: StoredRebalance | None) -> StoredRebalance | None:
            if now is None:
                return None
            # One that was asked for since is not answered yet.
            left = {
                name: value
                for name, value in now.annotations.items()
                if name not in names or value != kept.annotations.get(name)
            }
            return replace(now, annotations=left)

        self._file.edit(without)


def request_of(kept: StoredRebalance) -> RebalanceRequest:
    return RebalanceRequest(
        kept.rebalance.spec, kept.generation, kept.annotations.get(APPROVE), kept.annotations.get(VERB)
    )


def _moves(status: DelayRebalanceStatus) -> list[PlannedMove]:
    return [] if status.plan is None else list(status.plan.moves or ())


def _in_flight(status: DelayRebalanceStatus) -> bool:
    return any(move.state is MoveState.MOVING for move in _moves(status))
