"""One step of a shard towards the nodes that its copies are wanted on (docs/protocol.md 5).

    target given -> missing ones become replicas -> each fetches its copy and grows into the in-sync set by itself
    -> master not wanted there: a switchover to one that is -> the others are `leaving`, the master takes them out of
    the in-sync set -> they are replicas no more; the move is over

No step takes away a copy before all wanted ones are in sync, nor one that the in-sync set names.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from delayregistry.model import ShardObject, ShardSpec, Switchover

from delayoperator.plan.observed import Liveness, Observed
from delayoperator.plan.placement import Placement, desired_replicas
from delayoperator.plan.replica_health import ReplicaHealth, answer_of, classify_replicas, presumed_in_sync


@dataclass(frozen=True, slots=True)
class SpecStep:
    spec: ShardSpec
    reason: str


@dataclass(frozen=True, slots=True)
class Held:
    """The requested move can't go on now."""

    reason: str  # CamelCase, for the condition
    message: str


def begins(shard: ShardObject) -> bool:
    """A move that is wanted and has not begun: no node fetches a copy yet."""
    spec = shard.spec
    return spec.target is not None and not set(spec.target) <= set(spec.replicas)


def next_step(shard: ShardObject, seen: Observed, load: Placement, *, may_begin: bool) -> SpecStep | Held | None:
    """The change to make now, or the reason why the shard waits, or None: nothing to do, or it goes on by itself. The
    shard's term must stand. may_begin: one more move may be in flight.
    """
    asked = _switchover(shard, seen)
    if isinstance(asked, SpecStep):
        return asked
    return _move(shard, seen, load, may_begin=may_begin) or asked


def successor(shard: ShardObject, seen: Observed, load: Placement, among: tuple[str, ...]) -> str | None:
    """The best of `among` to take over from the present master: in sync, and there to stay."""
    spec = shard.spec
    ready = presumed_in_sync(shard, seen)
    fit = [
        node
        for node in among
        if node != spec.master
        and node in ready
        and node not in spec.leaving
        and node not in seen.ineligible
        and (spec.uid, node) not in seen.excluded
        and seen.node(node).liveness is Liveness.ALIVE
        and not seen.between_processes(node)
        and not seen.node(node).stopping
    ]
    first = desired_replicas(spec)[0]
    return min(fit, key=lambda node: (node != first, load.masters[node]), default=None)


def _switchover(shard: ShardObject, seen: Observed) -> SpecStep | Held | None:
    spec = shard.spec
    if spec.switchover is None:
        return None
    to = spec.switchover.to
    if to == spec.master:
        return SpecStep(replace(spec, switchover=None), f"{to} is the master already")
    if to not in spec.replicas:
        return SpecStep(replace(spec, switchover=None), f"{to} has no copy: it can't take over")
    view = seen.node(to)
    if view.liveness is Liveness.DEAD or view.stopping:
        return SpecStep(replace(spec, switchover=None), f"{to} {'is stopping' if view.stopping else 'is dead'}")
    match classify_replicas(shard, seen)[to]:
        case ReplicaHealth.OUTSIDE | ReplicaHealth.NOTHING | ReplicaHealth.REBOOTED | ReplicaHealth.DAMAGED:
            return Held("NotInSync", f"{to} is to take over and is not in sync; {spec.master} stays until it is")
        case ReplicaHealth.UNCERTAIN if view.silent:
            return Held("NoAnswer", f"{to} is to take over and gives no answer; {spec.master} stays until it does")
        case _:
            return None


def _move(shard: ShardObject, seen: Observed, load: Placement, *, may_begin: bool) -> SpecStep | Held | None:
    spec, status = shard.spec, shard.status
    if spec.leaving and (spec.target is None or spec.master in spec.leaving):
        return SpecStep(replace(spec, leaving=()), "nobody is to leave any more")
    if spec.target is None or status is None or status.serving_epoch != spec.epoch:
        return None  # without a master at work no copy can join or leave
    missing = tuple(node for node in spec.target if node not in spec.replicas)
    if missing:
        if not may_begin:
            return None
        return SpecStep(replace(spec, replicas=(*spec.replicas, *missing)), f"{names(missing)} fetch a copy")
    if behind := _behind(shard, spec.target, seen):
        return None if isinstance(behind, Coming) else behind
    if spec.master not in spec.target:
        return _leave_master(shard, spec.target, seen, load)
    leaving = tuple(node for node in spec.replicas if node not in spec.target)
    if leaving != spec.leaving:
        return SpecStep(replace(spec, leaving=leaving), f"{names(spec.target)} are in sync: {names(leaving)} may leave")
    staying = {copy.replica_id for node in spec.target if (copy := answer_of(shard, node, seen)) is not None}
    if not set(status.in_sync) <= staying:
        return None  # the master is about to take the leaving ones out
    done = replace(spec, replicas=spec.target, target=None, leaving=())
    dropped = f"{names(leaving)} left the in-sync set and is dropped" if leaving else "all wanted copies are in sync"
    return SpecStep(done, dropped)


@dataclass(frozen=True, slots=True)
class Coming:
    """A copy is on its way: there is nothing to do, and nothing to report."""


def _behind(shard: ShardObject, target: tuple[str, ...], seen: Observed) -> SpecStep | Held | Coming | None:
    """While a wanted copy is not known to be in sync: what to do about it or to say. None: all are in sync."""
    known = classify_replicas(shard, seen)
    late = [node for node in target if known[node] is not ReplicaHealth.IN_SYNC]
    if not late:
        return None
    certain = [node for node in late if known[node] is not ReplicaHealth.UNCERTAIN]
    if certain and shard.spec.leaving:
        # The others' copies are needed after all.
        return SpecStep(replace(shard.spec, leaving=()), f"{names(tuple(certain))} fell out of sync: nobody leaves yet")
    for node in late:
        if known[node] is ReplicaHealth.UNREACHABLE:
            return Held("NodeAway", f"{node} is to have a copy and is away")
        if known[node] is ReplicaHealth.UNCERTAIN and seen.node(node).silent:
            return Held("NoAnswer", f"{node} is to have a copy and gives no answer")
    return Coming()


def _leave_master(
    shard: ShardObject, target: tuple[str, ...], seen: Observed, load: Placement
) -> SpecStep | Held | None:
    spec = shard.spec
    if spec.switchover is not None:
        return None
    to = successor(shard, seen, load, target)
    if to is None:
        return Held("NoSuccessor", f"{spec.master} is to give its copy away, and none of {names(target)} can take over")
    return SpecStep(
        replace(spec, switchover=Switchover(to)), f"{spec.master} is to give its copy away: {to} takes over"
    )


def names(nodes: tuple[str, ...]) -> str:
    return ", ".join(nodes) or "nobody"
