"""The health of each replica of a shard: one of a few words, from which the decisions follow."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from delayregistry.model import ShardObject, copy_id_of

from delayoperator.plan.observed import CopyView, Liveness, Observed, ObservedRole


class ReplicaHealth(Enum):
    IN_SYNC = "in sync"  # answered: sound, and named by the in-sync set
    REBOOTED = "rebooted"  # as IN_SYNC, with Async durability, but its machine was started again since
    DAMAGED = "damaged"  # named by the in-sync set, and of no use
    OUTSIDE = "outside"  # has a sound copy that the in-sync set does not name
    NOTHING = "nothing"  # answered: has no copy, or one that is only being fetched, or a damaged one outside
    UNCERTAIN = "uncertain"  # gave no answer, or does not know its log's end yet
    UNREACHABLE = "away"  # gave no answer, and its lease has run out


def answer_of(shard: ShardObject, node: str, seen: Observed) -> CopyView | None:
    """The node's copy, as the process that its lease names told us; another process's answer is none."""
    copy = seen.copies.get((shard.name, node))
    if copy is None or seen.between_processes(node):
        return None
    return copy if copy.incarnation == seen.node(node).incarnation else None


def classify_replicas(shard: ShardObject, seen: Observed) -> Mapping[str, ReplicaHealth]:
    """The health of every replica, by node, in the order of the replicas. Without a status nothing is in sync."""
    in_sync = shard.status.in_sync if shard.status is not None else ()
    return {node: _health(node, in_sync, shard, seen) for node in shard.spec.replicas}


def presumed_in_sync(shard: ShardObject, seen: Observed) -> frozenset[str]:
    """Good enough to ask for a switchover, which looks again: as many entries as replicas means all of them."""
    status = shard.status
    known = classify_replicas(shard, seen)
    hopeful = {ReplicaHealth.IN_SYNC}
    if status is not None and len(status.in_sync) == len(known):
        hopeful.add(ReplicaHealth.UNCERTAIN)
    return frozenset(node for node, health in known.items() if health in hopeful)


def _health(node: str, in_sync: tuple[str, ...], shard: ShardObject, seen: Observed) -> ReplicaHealth:
    view = seen.node(node)
    if view.liveness is Liveness.DEAD:
        # A node whose lease is not renewed could not take up a term, whatever it answers.
        return ReplicaHealth.UNREACHABLE
    if seen.between_processes(node):
        return ReplicaHealth.UNCERTAIN  # whatever was said a moment ago
    copy = answer_of(shard, node, seen)
    if copy is None:
        heard = view.incarnation is not None and seen.answered.get(node) == view.incarnation
        return ReplicaHealth.NOTHING if heard else ReplicaHealth.UNCERTAIN
    named = copy.replica_id in in_sync
    rebooted = not named and copy_id_of(copy.replica_id) in map(copy_id_of, in_sync) and copy.replica_id != ""
    if copy.role in (ObservedRole.FETCHING, ObservedRole.LEAVING):
        return ReplicaHealth.NOTHING
    if copy.damaged is not None or copy.role is ObservedRole.DAMAGED:
        return ReplicaHealth.DAMAGED if named or rebooted else ReplicaHealth.NOTHING
    if copy.role is ObservedRole.STORED and rebooted:
        return ReplicaHealth.UNCERTAIN  # the process has not taken the object up yet: then it says in which boot it is
    if copy.role is ObservedRole.OPENING and not (named and len(in_sync) == 1):
        return ReplicaHealth.UNCERTAIN  # where it is the only one named, its log's end does not matter
    if named:
        return ReplicaHealth.IN_SYNC
    return ReplicaHealth.REBOOTED if rebooted else ReplicaHealth.OUTSIDE
