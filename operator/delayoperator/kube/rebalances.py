"""One look at a cluster's DelayRebalances: what the state machine of rebalance_plan says becomes writes.

The status is written before anything is done for it, and on condition that nobody has changed the object meanwhile:
whoever is killed in between begins anew from it, and an operator that reads an old object writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from delayregistry.model import ShardObject
from delayregistry.port import Conflict, OutcomeUnknown, Registry
from pydantic import ValidationError

from delayoperator.control_loop.loop import Log, LoopClock
from delayoperator.control_loop.probe import Prober, fetched
from delayoperator.crds.rebalance import (
    DelayRebalanceSpec,
    DelayRebalanceStatus,
    MoveState,
    PlannedMove,
    RebalanceState,
)
from delayoperator.crds.rebalancing import Rebalancing
from delayoperator.crds.refusal import from_pydantic
from delayoperator.kube.api import Api, ApiError, Json
from delayoperator.kube.events import EventRecorder
from delayoperator.kube.kinds import DELAY_REBALANCE
from delayoperator.kube.rebalance_jobs import RebalanceJobs
from delayoperator.kube.shard_sizes import ShardSizes, weigh
from delayoperator.plan import ObservedNode
from delayoperator.rebalance_plan import Edit, RebalanceRequest, StepOutcome, World, step
from delayoperator.resources import ClusterView

VERBS = {"approve": "delaycluster.io/approve", "verb": "delaycluster.io/rebalance"}
INVALID = "InvalidSpec"
CONSUME_TRIES = 5  # against others who write the object meanwhile
SOON_S = 5.0  # between looks while a plan is carried out or a job runs: no watch tells of bytes, or of nodes at peace


@dataclass(frozen=True, slots=True)
class RebalanceResult:
    """under_way: what the DelayCluster's condition says of it; "" when nothing is rebalanced.
    failed: why the schedule's last run did not do its work; "" when it did."""

    under_way: str = ""
    failed: str = ""
    again_s: float | None = None
    wrote: bool = False
    errors: Sequence[ApiError] = ()


@dataclass(slots=True)
class _RoundResult:
    """What one look has come to so far."""

    wrote: bool = False
    again_s: float | None = None
    errors: list[ApiError] = field(default_factory=list)

    def again(self, in_s: float) -> None:
        self.again_s = max(0.0, in_s) if self.again_s is None else min(self.again_s, max(0.0, in_s))


class Rebalances:
    """For one DelayCluster. events: of its own, so that many moves leave the cluster's other events their room."""

    def __init__(
        self,
        api: Api,
        registry: Registry,
        events: EventRecorder,
        namespace: str,
        cluster: str,
        log: Log,
        prober: Callable[[], Prober],
        clock: LoopClock,
    ) -> None:
        self._api, self._registry, self._events, self._log, self._clock = api, registry, events, log, clock
        self._namespace, self._cluster = namespace, cluster
        self._new_prober = prober
        self._jobs = RebalanceJobs(api, namespace, cluster)
        self._prober: Prober | None = None

    def close(self) -> None:
        if self._prober is not None:
            self._prober.close()
            self._prober = None

    def reconcile(
        self, cluster: Json, view: ClusterView, nodes: Mapping[str, ObservedNode], *, paused: bool
    ) -> RebalanceResult:
        """cluster: the DelayCluster. view: as its objects are built. nodes: as the control loop sees them.

        Raises ApiError when they can't be listed, and Unavailable of the registry.
        """
        result = _RoundResult()
        try:
            failed = self._jobs.failed_run(view)
        except ApiError as error:  # plans are carried out all the same
            failed = ""
            result.errors.append(error)
        bodies = self._listed()
        found = self._registry.read_cluster() if bodies else None
        if found is None:
            return RebalanceResult(failed=failed, errors=result.errors)
        shards = {shard.name: shard for shard in self._registry.list_shards()}
        generation = int(cluster["metadata"].get("generation", 0))
        world = World(found.spec, shards, nodes, generation=generation, paused=paused, **_plan_defaults(cluster))
        states = {str(body["metadata"]["name"]): _state(body) for body in bodies}
        said = {str(body["metadata"]["name"]): body for body in bodies}
        for body in bodies:
            name = str(body["metadata"]["name"])
            others = [it for it, state in states.items() if it != name and state is RebalanceState.REBALANCING]
            try:
                status = self._reconcile_one(body, view, _with(world, busy=next(iter(others), None)), result)
            except ApiError as error:
                result.errors.append(error)
                result.again(SOON_S)
                continue
            if status is not None:
                states[name] = status.state
                said[name] = {**body, "status": _json(status)}
        going = [name for name, state in states.items() if state is RebalanceState.REBALANCING]
        sentence = "; ".join(_sentence(said[name]) for name in going)
        return RebalanceResult(sentence, failed, result.again_s, result.wrote, result.errors)

    def _listed(self) -> list[Json]:
        """The oldest first. None where the kind is not installed, or not ours to see."""
        try:
            bodies = self._api.list(DELAY_REBALANCE, self._namespace)
        except ApiError as error:
            if error.not_found or error.forbidden:
                return []
            raise
        mine = [it for it in bodies if (it.get("spec") or {}).get("cluster") == self._cluster]
        mine = [it for it in mine if "deletionTimestamp" not in it["metadata"]]
        return sorted(mine, key=lambda it: (str(it["metadata"].get("creationTimestamp", "")), it["metadata"]["name"]))

    def _reconcile_one(
        self, body: Json, view: ClusterView, world: World, result: _RoundResult
    ) -> DelayRebalanceStatus | None:
        """What its status is now; None: its spec or status can't be read, or somebody else has just written it."""
        meta = body["metadata"]
        try:
            spec = DelayRebalanceSpec.model_validate(body.get("spec") or {})
            before = DelayRebalanceStatus.model_validate(body.get("status") or {})
        except ValidationError as error:
            part = "spec" if error.title == DelayRebalanceSpec.__name__ else "status"
            why = "; ".join(map(str, from_pydantic(error, body.get(part), part)))
            self._events.record(meta, INVALID, why, warning=True, kind=DELAY_REBALANCE)
            return None
        notes = meta.get("annotations") or {}
        request = RebalanceRequest(
            spec, int(meta.get("generation", 1)), notes.get(VERBS["approve"]), notes.get(VERBS["verb"])
        )
        if before.state is RebalanceState.PENDING_PROPOSAL:
            world = _with(world, job=self._jobs.state_of(view, meta, before))
            result.again(SOON_S)
        now_ms = self._clock.wall_ms()
        shard_sizes = self._shard_sizes(request, before, world, now_ms)
        copied = self._copied(before, world.shards)
        world = _with(world, copied=copied, sizes=shard_sizes.sizes, coming=shard_sizes.coming)
        outcome = step(request, before, world, now_ms)
        try:
            meta = self._keep(meta, before, outcome, result)
            self._apply(outcome.edits, result)
            if outcome.wants_job and self._jobs.start(view, meta, outcome.status):
                result.wrote = True
            self._consume(meta, notes, outcome)
        except ApiError as error:
            if not error.conflict and not error.not_found:
                raise
            result.again(0.0)  # somebody has changed it: the next look sees what
            return None
        for event in outcome.events:
            self._events.record(meta, event.reason, event.message, warning=event.warning, kind=DELAY_REBALANCE)
        if outcome.wants_job or outcome.status.state is RebalanceState.REBALANCING:
            result.again(SOON_S)
        if outcome.recheck_at_ms is not None:
            result.again((outcome.recheck_at_ms - now_ms) / 1_000)
        return outcome.status

    def _keep(self, meta: Json, before: DelayRebalanceStatus, outcome: StepOutcome, result: _RoundResult) -> Json:
        """The metadata after the write."""
        old, new = _json(before), _json(outcome.status)
        patch = {key: new.get(key) for key in {*old, *new} if old.get(key) != new.get(key)}
        if not patch:
            return meta
        body = {"metadata": {"resourceVersion": meta["resourceVersion"]}, "status": _whole(patch, old)}
        written = self._api.merge(DELAY_REBALANCE, self._namespace, str(meta["name"]), body, "status")
        result.wrote = True
        return dict(written["metadata"])

    def _apply(self, edits: Sequence[Edit], result: _RoundResult) -> None:
        for edit in edits:
            event = {"event": "action", "action": "Rebalance", "shard": edit.shard.name, "reason": edit.reason}
            try:
                self._registry.write_spec(edit.shard.name, edit.spec, edit.shard.version)
                self._log({**event, "outcome": "done"})
            except (Conflict, OutcomeUnknown) as error:
                self._log({**event, "outcome": type(error).__name__.lower(), "error": str(error)})
                result.again(0.0)
            result.wrote = True

    def _consume(self, meta: Json, answered: Json, outcome: StepOutcome) -> None:
        """Takes the verbs that were answered away, and at once: a stop that is still there when somebody approves the
        rest would stop that too. One that was asked for meanwhile stays."""
        for last in (*[False] * (CONSUME_TRIES - 1), True):
            there = meta.get("annotations") or {}
            keys = [VERBS[name] for name in outcome.consumed]
            taken = {key: None for key in keys if key in there and there[key] == answered.get(key)}
            if not taken:
                return
            body = {"metadata": {"resourceVersion": meta["resourceVersion"], "annotations": taken}}
            try:
                self._api.merge(DELAY_REBALANCE, self._namespace, str(meta["name"]), body)
                return
            except ApiError as error:
                if last or not error.conflict:
                    raise
            found = self._api.get(DELAY_REBALANCE, self._namespace, str(meta["name"]))
            if found is None or found["metadata"].get("uid") != meta.get("uid"):
                return
            meta = found["metadata"]

    def _copied(self, status: DelayRebalanceStatus, shards: Mapping[str, ShardObject]) -> dict[str, int]:
        """Bytes that copies on their way have fetched, by shard."""
        moving = {move.shard: move.to for move in _moves(status) if move.state is MoveState.MOVING}
        if not moving:
            self.close()
            return {}
        if self._prober is None:
            self._prober = self._new_prober()
        return fetched(moving, shards, self._registry.list_leases(), self._prober)

    def _shard_sizes(
        self, asked: RebalanceRequest, status: DelayRebalanceStatus, world: World, now_ms: int
    ) -> ShardSizes:
        """Where a plan by hand is about to be made."""
        moves = asked.spec.moves
        new = status.state in (None, RebalanceState.NEW) or asked.verb is not None
        if not moves or world.paused or not (new or status.observed_generation != asked.generation):
            return ShardSizes()
        return weigh({move.shard for move in moves}, world.shards, self._registry.list_leases(), now_ms)


def _plan_defaults(cluster: Json) -> dict[str, Any]:
    """For plans, as the DelayCluster has them now; what can't be read approves of nothing."""
    try:
        rebalancing = Rebalancing.model_validate((cluster.get("spec") or {}).get("rebalance") or {})
    except ValidationError:
        return {}
    return {
        "approval": rebalancing.approval, "automatic_below": rebalancing.automatic_below,
        "threshold": rebalancing.threshold,
    }  # fmt: skip


def _with(world: World, **changes: Any) -> World:
    return replace(world, **changes)


def _json(status: DelayRebalanceStatus) -> Json:
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


def _whole(patch: Json, old: Json) -> Json:
    """As a merge patch: what is in an object that was there and is to go needs a null."""
    found: Json = {}
    for key, new in patch.items():
        before = old.get(key)
        if isinstance(new, dict) and isinstance(before, dict):
            found[key] = {**dict.fromkeys(before), **_whole(new, before)}
        else:
            found[key] = new
    return found


def _moves(status: DelayRebalanceStatus) -> list[PlannedMove]:
    return [] if status.plan is None else list(status.plan.moves or ())


def _state(body: Json) -> RebalanceState | None:
    text = (body.get("status") or {}).get("state")
    return RebalanceState(text) if text in set(RebalanceState) else None


def _sentence(body: Json) -> str:
    progress = (body.get("status") or {}).get("progress") or {}
    done, total = progress.get("movesDone", 0), progress.get("movesTotal", 0)
    return f"DelayRebalance {body['metadata']['name']}: {done} of {total} moves are done"
