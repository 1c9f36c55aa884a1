"""The rolling restart: which pod of an old revision goes next (the StatefulSet is OnDelete), or what it waits for.
A pod whose restart a person asked for has its turn like one of an old revision.

One at a time, and only while every shard has all its copies in sync: then no client misses the pod that goes. The
node hands its masters over on SIGTERM by itself; nodes with the fewest masters go first, so that the fewest clients
have to look for a new one twice.

A pod that can't start is replaced at once: nothing is lost by that, and a repaired image reaches it only so.
One that runs and is not ready goes first: when a sidecar's probe never passed and the change was taken back, the
restart waited for the very pod that was to go.

One shard that is Blocked must not keep a mended release from all the others: after a while it is not waited for any
more. But its copies may be all that is left of it, and the process that has one may know what is wrong: nodes that
hold one are left as they are, and that is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from delayoperator.cluster.shard_summary import (
    PodView,
    SetView,
    ShardSummary,
    counted_of,
    is_unready_for_long,
    ordinal,
    some,
)


@dataclass(frozen=True, slots=True)
class RestartPod:
    pod: PodView
    reason: str
    left: int  # pods of an old revision after this one


@dataclass(frozen=True, slots=True)
class RestartWaits:
    """Pods of an old revision are left, and it is not time for the next one."""

    message: str
    stuck: bool = False  # without people nothing will change: a pod of the new revision does not start, say


def next_restart(
    current: SetView,
    pods: Sequence[PodView],
    counted: ShardSummary,
    stuck: Mapping[str, frozenset[str]] | None = None,
    wall_ms: int = 0,
) -> RestartPod | RestartWaits | None:
    """stuck: shards that are Blocked for long, with the nodes that have copies of them; `counted` is without them.
    wall_ms: Unix time, for how long pods have not been ready."""
    if not current.observed:
        return None  # which revision is the new one is not known yet: the next round sees it
    old = [pod for pod in pods if pod.revision != current.update_revision or (pod.restart and not pod.deleting)]
    if not old:
        return None
    waiting = [pod for pod in old if pod.stopped is not None and not pod.deleting]
    if waiting and not any(pod.deleting for pod in pods):
        pod = waiting[0]
        return RestartPod(pod, f"{pod.name} {_why(pod)} and does not run ({pod.stopped})", len(old) - 1)
    held = stuck or {}
    return _waits(current, pods, counted, old, held, wall_ms) or _next(old, counted, held, current.replicas)


def afterwards(
    restarted: str, current: SetView, pods: Sequence[PodView], counted: ShardSummary, wall_ms: int = 0
) -> RestartWaits | None:
    """No pod of an old revision is left: what the last one that was restarted is waited for. None: all is as before."""
    whole = len(pods) == current.replicas and all(pod.ready for pod in pods) and counted.sound
    if whole:
        return None
    if unready := _unready_for_long(pods, wall_ms):
        return RestartWaits(f"{restarted} was the last; {unready}", stuck=True)
    return RestartWaits(f"{restarted} was the last; waiting until every shard has all its copies in sync")


def _waits(
    current: SetView,
    pods: Sequence[PodView],
    counted: ShardSummary,
    old: Sequence[PodView],
    stuck: Mapping[str, frozenset[str]],
    wall_ms: int,
) -> RestartWaits | None:
    left = f"{len(old)} of {current.replicas} pods to go"
    going = [pod.name for pod in pods if pod.deleting]
    if going:
        return RestartWaits(f"{left}; {', '.join(going)} is ending")
    failed = [f"{pod.name}: {pod.stopped}" for pod in pods if pod.stopped and pod.revision == current.update_revision]
    if failed:
        return RestartWaits(f"{left}; the new revision does not start ({some(failed)})", stuck=True)
    if len(pods) < current.replicas:
        return RestartWaits(f"{left}; {len(pods)} of {current.replicas} pods exist")
    unready = [pod for pod in pods if not pod.ready]
    if _may_go_unready(unready, old, counted, stuck):
        return None
    if for_long := _unready_for_long(unready, wall_ms):
        return RestartWaits(f"{left}; {for_long}", stuck=True)
    if unready:
        return RestartWaits(f"{left}; waiting for {', '.join(pod.name for pod in unready)} to be ready")
    if not counted.sound:
        why = counted.unserved or counted.unsynced or (f"{counted_of(counted.moving, 'shard')} on the move",)
        return RestartWaits(f"{left}; waiting until every shard has all its copies in sync: {some(why)}")
    return None


def _may_go_unready(
    unready: Sequence[PodView], old: Sequence[PodView], counted: ShardSummary, stuck: Mapping[str, frozenset[str]]
) -> bool:
    """The only pod that is not ready is an old one, and its process may end. It may lead, as when a sidecar alone is
    not ready: all shards must be whole, as for any other pod."""
    if len(unready) != 1 or unready[0] not in old:
        return False
    node = unready[0].node
    return counted.sound and not any(node in nodes for nodes in stuck.values())


def _unready_for_long(pods: Sequence[PodView], wall_ms: int) -> str:
    return some(
        [
            f"{pod.name} runs and does not become ready" + (f" ({_containers(pod.unready)})" if pod.unready else "")
            for pod in pods
            if is_unready_for_long(pod, wall_ms)
        ]
    )


def _containers(names: Sequence[str]) -> str:
    return f"container {names[0]}" if len(names) == 1 else f"containers {', '.join(names)}"


def _next(
    old: Sequence[PodView], counted: ShardSummary, stuck: Mapping[str, frozenset[str]], replicas: int
) -> RestartPod | RestartWaits:
    free = [pod for pod in old if not any(pod.node in nodes for nodes in stuck.values())]
    if not free:
        held = [f"{name} (copies on {', '.join(sorted(nodes))})" for name, nodes in sorted(stuck.items())]
        message = (
            f"{len(old)} of {replicas} pods to go, all with copies of shards that are Blocked; they are restarted when "
            f"these have masters again: {some(held)}"
        )
        return RestartWaits(message, stuck=True)
    pod = min(free, key=lambda pod: (pod.ready, counted.masters.get(pod.node, 0), -ordinal(pod.node)))
    masters = counted.masters.get(pod.node, 0)
    reason = f"{pod.name} {_why(pod)}; it hands {counted_of(masters, 'master')} over and is made anew"
    return RestartPod(pod, reason, len(old) - 1)


def _why(pod: PodView) -> str:
    why = f"is to be restarted ({pod.restart})" if pod.restart else "is of an old revision"
    return why if pod.ready or pod.stopped is not None else f"{why} and not ready"
