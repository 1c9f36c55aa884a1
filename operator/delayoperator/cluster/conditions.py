"""What a DelayCluster's status says: six conditions and some numbers, from everything that was seen.

Ready         every shard is served: clients lack nothing
Progressing   something that was asked for is on its way; which, and what it waits for
Degraded      something needs a look, though clients may lack nothing: the worst first, each with its names
Rebalancing   a DelayRebalance is being carried out
Upgrading     nodes of two releases, or a newer format that is not final
Scaling       with spec.autoscaling alone: the load to come needs another number of nodes than there is
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from delayoperator.cluster.annotations import Drains
from delayoperator.cluster.node_scaling import NodeAdvice
from delayoperator.cluster.pod_counts import Sizes
from delayoperator.cluster.reasons import DEGRADED, Reason, with_page
from delayoperator.cluster.restart import RestartPod, RestartWaits
from delayoperator.cluster.shard_summary import PodView, ShardSummary, counted_of, some
from delayoperator.cluster.versions import NodesVersion
from delayoperator.cluster.volumes import Volumes
from delayoperator.plan import Liveness, ObservedNode, OrphanReport
from delayoperator.resources.view import SecurityMode

MAX_MESSAGE_CHARS = 1_500  # of a message: a describe has to stay readable, and an object small


@dataclass(frozen=True, slots=True)
class ClusterProblem:
    reason: Reason  # of DEGRADED
    message: str


@dataclass(frozen=True, slots=True)
class ConditionUpdate:
    """One condition, without its times."""

    type: str
    status: bool
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class ClusterObservation:
    """What one round of maintenance saw and decided.

    invalid: why the present spec can't be accepted. has_accepted_spec: an earlier one is kept up.
    was_ready: the cluster has been complete before. problems: what went wrong at the edges of this round.
    rebalancing: which plans are carried out, and how far they are; "": none. orphans: copies without a DelayShard.
    security: the mode that holds for every pod.
    paused_by, drains: who asked for it; "": it is not paused. scaling: None without spec.autoscaling.
    sinks: the reason of each DelaySink's Ready, by name.
    """

    name: str
    wanted_nodes: int
    shard_summary: ShardSummary = field(default_factory=ShardSummary)
    pods: Sequence[PodView] = ()
    nodes: Mapping[str, ObservedNode] = field(default_factory=dict)
    sizes: Sizes = field(default_factory=lambda: Sizes(0, 0))
    restart: RestartPod | RestartWaits | None = None
    volumes: Volumes = field(default_factory=Volumes)
    paused_by: str = ""
    drains: Drains = field(default_factory=lambda: Drains({}))
    invalid: Sequence[str] = ()
    has_accepted_spec: bool = True
    was_ready: bool = False
    problems: Sequence[ClusterProblem] = ()
    rebalancing: str = ""
    orphans: OrphanReport = field(default_factory=OrphanReport)
    versions: NodesVersion = field(default_factory=NodesVersion)
    security: SecurityMode = SecurityMode.OFF
    scaling: NodeAdvice | None = None
    sinks: Mapping[str, str] = field(default_factory=dict)


def conditions(seen: ClusterObservation) -> tuple[ConditionUpdate, ...]:
    said = _ready(seen), _progressing(seen), _degraded(seen), _rebalancing(seen), _upgrading(seen)
    return tuple(finished(it) for it in (*said, *_scaling(seen)))


def finished(said: ConditionUpdate) -> ConditionUpdate:
    """The message as it is written: not too long, and with the page that says what to do."""
    message = said.message if len(said.message) <= MAX_MESSAGE_CHARS else said.message[: MAX_MESSAGE_CHARS - 3] + "..."
    return ConditionUpdate(said.type, said.status, said.reason, with_page(said.reason, message))


def _ready(seen: ClusterObservation) -> ConditionUpdate:
    counted = seen.shard_summary
    if not seen.has_accepted_spec:
        return ConditionUpdate("Ready", False, Reason.INVALID_SPEC, "; ".join(seen.invalid))
    ready = sum(pod.ready for pod in seen.pods)
    nodes = f"ready: {ready} of {counted_of(seen.wanted_nodes, 'node')}"
    served = f"{counted.served} of {counted_of(counted.desired, 'shard')}"
    surplus = f"; {counted_of(counted.surplus, 'shard')} that nobody asks for: kept" if counted.surplus else ""
    if counted.unserved:
        reason = Reason.SHARDS_NOT_SERVED if seen.was_ready else Reason.STARTING
        return ConditionUpdate("Ready", False, reason, f"served: {served}; {nodes}: {some(counted.unserved)}")
    if not ready and not seen.was_ready:
        return ConditionUpdate("Ready", False, Reason.STARTING, f"{nodes}{_why_not(seen.pods)}")
    if not counted.served and not ready:  # no topics, or only such as were just added
        return ConditionUpdate("Ready", False, Reason.NO_NODES_READY, f"{nodes}{_why_not(seen.pods)}")
    if not counted.desired:
        return ConditionUpdate("Ready", True, Reason.SERVING, f"no topics are asked for; {nodes}{surplus}")
    together = f"; copies that may fail together: {some(counted.together)}" if counted.together else ""
    return ConditionUpdate("Ready", True, Reason.SERVING, f"served: {served}; {nodes}{surplus}{together}")


def _progressing(seen: ClusterObservation) -> ConditionUpdate:
    if seen.invalid:
        stands = "; the last good spec stands" if seen.has_accepted_spec else ""
        return ConditionUpdate("Progressing", False, Reason.INVALID_SPEC, f"{'; '.join(seen.invalid)}{stands}")
    if seen.paused_by:
        message = f"{seen.paused_by}: nothing is changed and no shard is made or moved; masters still fail over"
        return ConditionUpdate("Progressing", False, Reason.PAUSED, message)
    for reason, message in _under_way(seen):
        return ConditionUpdate("Progressing", True, reason, message)
    empty = [f"{node} ({who})" for node, who in seen.drains.drained.items() if int(node[1:]) < seen.sizes.nodes]
    drained = f"; drained: {some(empty)}" if empty else ""
    return ConditionUpdate("Progressing", False, Reason.SETTLED, f"what was asked for is in place{drained}")


def _rebalancing(seen: ClusterObservation) -> ConditionUpdate:
    if seen.rebalancing:
        return ConditionUpdate("Rebalancing", True, Reason.REBALANCING, seen.rebalancing)
    return ConditionUpdate("Rebalancing", False, Reason.NOT_REBALANCING, "nothing is rebalanced")


def _upgrading(seen: ClusterObservation) -> ConditionUpdate:
    versions = seen.versions
    if versions.mixed:
        return ConditionUpdate("Upgrading", True, Reason.VERSIONS_MIXED, versions.mixed)
    if versions.held:
        return ConditionUpdate("Upgrading", True, Reason.UPGRADE_NOT_FINALIZED, versions.held)
    return ConditionUpdate("Upgrading", False, Reason.UP_TO_DATE, f"format {versions.version} is written")


def _scaling(seen: ClusterObservation) -> Iterator[ConditionUpdate]:
    if (said := seen.scaling) is not None:
        yield ConditionUpdate("Scaling", said.nodes != seen.wanted_nodes, said.reason, said.because)


def _under_way(seen: ClusterObservation) -> Iterator[tuple[Reason, str]]:
    counted = seen.shard_summary
    if seen.orphans.waiting:
        many = counted_of(len(seen.orphans.waiting), "shard")
        nodes = ", ".join(seen.orphans.unheard)
        yield Reason.VOLUMES_UNREAD, f"{many} wait until these nodes have said what their volumes have: {nodes}"
    if counted.coming:
        yield Reason.TOPICS_COMING, f"{counted_of(len(counted.coming), 'new shard')} on the way: {some(counted.coming)}"
    if not seen.was_ready and counted.unsynced and not counted.unserved:
        yield Reason.COPIES_COMING, f"copies of {counted_of(len(counted.unsynced), 'new shard')} are being made"
    if seen.sizes.leaving:
        yield Reason.SCALING_IN, seen.sizes.message
    if full := [_emptied(node, who, counted) for node, who in seen.drains.drained.items() if counted.named.get(node)]:
        yield Reason.DRAINING, some(full)
    if isinstance(seen.restart, RestartPod):
        yield Reason.ROLLING_RESTART, f"{seen.restart.reason}; {seen.restart.left} more to come"
    if isinstance(seen.restart, RestartWaits):
        yield Reason.ROLLING_RESTART, seen.restart.message
    if seen.sizes.message:
        yield Reason.SCALING_OUT, seen.sizes.message
    if len(seen.pods) != seen.sizes.pods or not all(pod.ready for pod in seen.pods):
        ready = sum(pod.ready for pod in seen.pods)
        yield Reason.PODS_STARTING, f"{ready} of {seen.sizes.pods} pods are ready{_why_not(seen.pods)}"
    if seen.volumes.grow or seen.volumes.growing:
        yield Reason.VOLUMES_GROWING, some([*(it.reason for it in seen.volumes.grow), *seen.volumes.growing])
    if counted.moving:
        yield Reason.MOVING_SHARDS, f"copies of {counted_of(counted.moving, 'shard')} are on their way to other nodes"


def _degraded(seen: ClusterObservation) -> ConditionUpdate:
    problems = sorted(_problems(seen), key=lambda problem: DEGRADED.index(problem.reason))
    if not problems:
        return ConditionUpdate("Degraded", False, Reason.HEALTHY, "nothing needs a look")
    worst = problems[0]
    also = [f"also {it.reason}: {it.message}" for it in problems[1:]]
    return ConditionUpdate("Degraded", True, worst.reason, "; ".join([worst.message, *also]))


def _problems(seen: ClusterObservation) -> Iterator[ClusterProblem]:
    yield from seen.problems
    counted = seen.shard_summary
    if seen.invalid:
        yield ClusterProblem(Reason.INVALID_SPEC, "; ".join(seen.invalid))
    if seen.drains.refused:
        yield ClusterProblem(Reason.ANNOTATION_REFUSED, "; ".join(seen.drains.refused))
    if counted.blocked:
        yield ClusterProblem(Reason.SHARDS_BLOCKED, some(counted.blocked))
    if seen.orphans.orphans:
        message = f"up to {counted_of(seen.orphans.pending, 'message')} in copies without a DelayShard"
        yield ClusterProblem(Reason.ORPHANED_COPIES, f"{message}: {some(seen.orphans.orphans)}")
    if counted.risked:
        yield ClusterProblem(Reason.ACKNOWLEDGED_AT_RISK, some(counted.risked))
    stopped = [f"{pod.name} ({pod.stopped})" for pod in seen.pods if _is_failing(pod)]
    if isinstance(seen.restart, RestartWaits) and seen.restart.stuck:
        yield ClusterProblem(Reason.ROLLOUT_STUCK, seen.restart.message)
    elif stopped:
        yield ClusterProblem(Reason.POD_NOT_STARTING, some(stopped))
    if seen.versions.apart:
        message = f"nodes have no wire version in common: {seen.versions.apart}"
        yield ClusterProblem(Reason.VERSIONS_INCOMPATIBLE, message)
    # Progressing and Ready report what a restart of ours brings with it, and what a new cluster has not got yet.
    if seen.restart is None and seen.was_ready:
        silent = [_where(node, seen.pods) for node, view in sorted(seen.nodes.items()) if _is_silent(node, view, seen)]
        if silent:
            yield ClusterProblem(Reason.NODE_SILENT, f"no sign of life from {', '.join(silent)}")
        if counted.unsynced:
            short = len(counted.unsynced)
            all_of_them = counted.desired + counted.surplus
            message = (
                f"{short} of {counted_of(all_of_them, 'shard')} without all copies in sync: {some(counted.unsynced)}"
            )
            yield ClusterProblem(Reason.COPIES_OUT_OF_SYNC, message)
    if counted.held:
        yield ClusterProblem(Reason.MOVES_HELD, some(counted.held))
    if seen.volumes.refused:
        message = f"volumes are to grow and may not: {some(seen.volumes.refused)}"
        yield ClusterProblem(Reason.VOLUMES_CANNOT_GROW, message)


def _emptied(node: str, who: str, counted: ShardSummary) -> str:
    return f"{node} is emptied: copies of {counted_of(counted.named[node], 'shard')} are left ({who})"


def _is_failing(pod: PodView) -> bool:
    """Its trouble won't go away by waiting a little: a pod that is only being made is none."""
    return pod.stopped is not None and not pod.deleting and not pod.stopped.startswith(("Pending", "ContainerCreating"))


def _is_silent(node: str, view: ObservedNode, seen: ClusterObservation) -> bool:
    return view.liveness is Liveness.DEAD and int(node[1:]) < seen.sizes.nodes


def _where(node: str, pods: Sequence[PodView]) -> str:
    pod = next((pod for pod in pods if pod.node == node), None)
    if pod is None:
        return f"{node} (it has no pod)"
    return f"{node} (pod {pod.name}{f' on {pod.machine}' if pod.machine else ''})"


def _why_not(pods: Sequence[PodView]) -> str:
    why = [f"{pod.name}: {pod.stopped or 'not ready yet'}" for pod in pods if not pod.ready]
    return f" ({some(why)})" if why else ""
