"""One look at a cluster's DelayRebalances, the oldest first, of which one at a time is carried out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from delayregistry.port import Registry
from pydantic import ValidationError

from delayoperator.control_loop.loop import Log, LoopClock
from delayoperator.control_loop.node_access import OperatorAccess
from delayoperator.control_loop.probe import CopyProgress, Prober
from delayoperator.crds.rebalance import DelayRebalanceSpec, DelayRebalanceStatus, RebalanceState
from delayoperator.crds.rebalancing import Rebalancing
from delayoperator.crds.refusal import from_pydantic
from delayoperator.kube.api import Api, ApiError, Json
from delayoperator.kube.caches import HeldObjects
from delayoperator.kube.events import EventRecorder
from delayoperator.kube.kinds import DELAY_REBALANCE
from delayoperator.kube.rebalance.jobs import RebalanceJobs
from delayoperator.kube.rebalance.shard_sizes import ShardSizes, weigh
from delayoperator.kube.rebalance.store import ResourceRebalanceStore, as_json
from delayoperator.plan import ObservedNode
from delayoperator.rebalance_plan import RebalanceDriver, World
from delayoperator.resources import ClusterView

INVALID = "InvalidSpec"
SOON_S = 5.0  # between looks while a plan is carried out or a job runs: no watch tells of bytes, or of nodes at peace


@dataclass(slots=True)
class RebalanceResult:
    """The result of one look, filled in as the look goes on.

    under_way: what the DelayCluster's condition says of it; "" when nothing is rebalanced.
    failed: why the schedule's last run did not do its work; "" when it did."""

    under_way: str = ""
    failed: str = ""
    again_s: float | None = None
    wrote: bool = False
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
        new_prober: Callable[[], Prober],
        access: OperatorAccess,
        clock: LoopClock,
    ) -> None:
        self._api, self._registry, self._events, self._clock = api, registry, events, clock
        self._namespace, self._cluster, self._access = namespace, cluster, access
        self._jobs = RebalanceJobs(api, namespace, cluster)
        self._copies = CopyProgress(registry, new_prober)
        self._driver = RebalanceDriver(registry, self._copies.fetched_bytes, log)

    def close(self) -> None:
        self._copies.close()

    def reconcile(
        self, cluster: Json, view: ClusterView, nodes: Mapping[str, ObservedNode], held: HeldObjects, *, paused: bool
    ) -> RebalanceResult:
        """cluster: the DelayCluster. view: as its objects are built. nodes: as the control loop sees them.

        Raises ApiError when they can't be listed, and Unavailable of the registry.
        """
        result = RebalanceResult()
        try:
            result.failed = self._jobs.failed_run(view, held)
        except ApiError as error:  # plans are carried out all the same
            result.errors.append(error)
        bodies = {str(body["metadata"]["name"]): body for body in self._found(held)}
        world = None
        if bodies:
            generation = int(cluster["metadata"].get("generation", 0))
            world = self._driver.observe(nodes, generation=generation, paused=paused, **_plan_defaults(cluster))
        if world is None:
            return result
        for name, body in bodies.items():
            others = (it for it, other in bodies.items() if it != name and _is_under_way(other))
            try:
                status = self._reconcile_one(body, view, replace(world, busy=next(others, None)), result)
            except ApiError as error:
                result.errors.append(error)
                result.again(SOON_S)
                continue
            if status is not None:
                bodies[name] = {**body, "status": as_json(status)}
        result.under_way = "; ".join(_sentence(body) for body in bodies.values() if _is_under_way(body))
        return result

    def _found(self, held: HeldObjects) -> list[Json]:
        """The oldest first. None where the kind is not installed, or not ours to see. They are read consistently while
        one may be carried out: its status is the memory of what was done, and only one is at a time."""
        try:
            known = DELAY_REBALANCE in held and all(map(_is_over, held[DELAY_REBALANCE]))
            bodies = held[DELAY_REBALANCE] if known else self._api.list(DELAY_REBALANCE, self._namespace)
        except ApiError as error:
            if error.not_found or error.forbidden:
                return []
            raise
        mine = [it for it in bodies if (it.get("spec") or {}).get("cluster") == self._cluster]
        mine = [it for it in mine if "deletionTimestamp" not in it["metadata"]]
        return sorted(mine, key=lambda it: (str(it["metadata"].get("creationTimestamp", "")), it["metadata"]["name"]))

    def _reconcile_one(
        self, body: Json, view: ClusterView, world: World, result: RebalanceResult
    ) -> DelayRebalanceStatus | None:
        """Its status now. None when its spec or status can't be read, or somebody else has just written it."""
        try:
            store = ResourceRebalanceStore(self._api, self._events, self._jobs, view, body)
        except ValidationError as error:
            part = "spec" if error.title == DelayRebalanceSpec.__name__ else "status"
            why = "; ".join(map(str, from_pydantic(error, body.get(part), part)))
            self._events.record(body["metadata"], INVALID, why, warning=True, kind=DELAY_REBALANCE)
            return None
        if store.status.state is RebalanceState.PENDING_PROPOSAL:
            result.again(SOON_S)
        now_ms = self._clock.wall_ms()
        shard_sizes = self._shard_sizes(store, world, now_ms)
        done = self._driver.round(store, replace(world, sizes=shard_sizes.sizes, coming=shard_sizes.coming), now_ms)
        result.wrote = done.wrote or result.wrote
        if done.retry:
            result.again(0.0)
        outcome = done.outcome
        if outcome is None:
            return None
        if outcome.wants_job or outcome.status.state is RebalanceState.REBALANCING:
            result.again(SOON_S)
        if outcome.recheck_at_ms is not None:
            result.again((outcome.recheck_at_ms - now_ms) / 1_000)
        return outcome.status

    def _shard_sizes(self, store: ResourceRebalanceStore, world: World, now_ms: int) -> ShardSizes:
        """Where a plan by hand is about to be made."""
        asked, status = store.request, store.status
        moves = asked.spec.moves
        new = status.state in (None, RebalanceState.NEW) or asked.verb is not None
        if not moves or world.paused or not (new or status.observed_generation != asked.generation):
            return ShardSizes()
        names = {move.shard for move in moves}
        return weigh(names, world.shards, self._registry.list_leases(), self._access, now_ms)


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


def _is_over(body: Json) -> bool:
    asked = any(key.startswith("delaycluster.io/") for key in body["metadata"].get("annotations") or {})
    return not asked and (body.get("status") or {}).get("state") in (RebalanceState.READY, RebalanceState.NOT_READY)


def _is_under_way(body: Json) -> bool:
    return (body.get("status") or {}).get("state") == RebalanceState.REBALANCING


def _sentence(body: Json) -> str:
    progress = (body.get("status") or {}).get("progress") or {}
    done, total = progress.get("movesDone", 0), progress.get("movesTotal", 0)
    return f"DelayRebalance {body['metadata']['name']}: {done} of {total} moves are done"
