"""Drives one DelayRebalance, wherever it is stored: reads it, lets `step` decide, and writes what was decided.

The status is written before anything is done for it, and on condition that nobody has changed the rebalance meanwhile:
a driver that dies in between begins anew from it, and one that has read an old rebalance writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from delayapi.log_levels import LogLevel
from delayregistry.model import ShardObject
from delayregistry.port import Conflict, OutcomeUnknown, Registry

from delayoperator.crds.rebalance import DelayRebalanceStatus, MoveState, RebalanceState
from delayoperator.plan.observed import ObservedNode
from delayoperator.rebalance_plan.plans import moves_of
from delayoperator.rebalance_plan.states import step
from delayoperator.rebalance_plan.step_values import Edit, Job, RebalanceEvent, RebalanceRequest, StepOutcome, World


class RebalanceConflict(Exception):
    """The rebalance has changed since it was read: the next round reads it again."""


class RebalanceStore(Protocol):
    """One DelayRebalance as it was read, and where it is written."""

    request: RebalanceRequest
    status: DelayRebalanceStatus

    def keep(self, status: DelayRebalanceStatus) -> bool:
        """Writes the status; whether there was anything to write. Raises RebalanceConflict."""

    def remove_verbs(self, verbs: frozenset[str]) -> None:
        """Takes the answered ones of {"approve", "verb"} away. Raises RebalanceConflict."""

    def record(self, event: RebalanceEvent) -> None:
        """Tells people."""

    def job(self) -> Job:
        """The job that was asked for at status.requested_at."""

    def start_job(self, status: DelayRebalanceStatus) -> bool:
        """Whether a job was started for status.requested_at. Raises RebalanceConflict."""
        return False


@dataclass(frozen=True, slots=True)
class RebalanceRound:
    """outcome: None when somebody has changed the rebalance meanwhile. retry: there is something to do at once."""

    outcome: StepOutcome | None
    wrote: bool
    retry: bool


class RebalanceDriver:
    """For one cluster. fetched_bytes: of copies on their way, by shard; it is asked with the node that each goes to.
    log: gets each edit with its outcome."""

    def __init__(
        self,
        registry: Registry,
        fetched_bytes: Callable[[Mapping[str, str], Mapping[str, ShardObject]], Mapping[str, int]],
        log: Callable[[Mapping[str, object]], None],
    ) -> None:
        self._registry, self._fetched_bytes, self._log = registry, fetched_bytes, log

    def observe(self, nodes: Mapping[str, ObservedNode], **more: Any) -> World | None:
        """The live map; None without a cluster. more: other fields of World. Raises RegistryError."""
        found = self._registry.read_cluster()
        if found is None:
            return None
        return World(found.spec, {shard.name: shard for shard in self._registry.list_shards()}, nodes, **more)

    def round(self, store: RebalanceStore, world: World, now_ms: int) -> RebalanceRound:
        """One step. Raises RegistryError, and what the store raises."""
        before = store.status
        if before.state is RebalanceState.PENDING_PROPOSAL:
            world = replace(world, job=store.job())
        moving = {move.shard: move.to for move in moves_of(before.plan) if move.state is MoveState.MOVING}
        world = replace(world, copied=self._fetched_bytes(moving, world.shards))
        outcome = step(store.request, before, world, now_ms)
        wrote = retry = False
        try:
            wrote = store.keep(outcome.status)
            for edit in outcome.edits:
                wrote, retry = True, not self._write(edit) or retry
            if outcome.wants_job:
                wrote = store.start_job(outcome.status) or wrote
            store.remove_verbs(outcome.consumed)
        except RebalanceConflict:
            return RebalanceRound(None, wrote, retry=True)
        for event in outcome.events:
            store.record(event)
        return RebalanceRound(outcome, wrote, retry)

    def _write(self, edit: Edit) -> bool:
        """Whether it was written; the next step asks again for one that was not."""
        event = {"event": "action", "action": "Rebalance", "shard": edit.shard.name, "reason": edit.reason}
        try:
            self._registry.write_spec(edit.shard.name, edit.spec, edit.shard.version)
        except (Conflict, OutcomeUnknown) as error:
            level = LogLevel.INFO if isinstance(error, Conflict) else LogLevel.WARNING
            self._log({**event, "level": level, "outcome": type(error).__name__.lower(), "error": str(error)})
            return False
        self._log({**event, "outcome": "done"})
        return True
