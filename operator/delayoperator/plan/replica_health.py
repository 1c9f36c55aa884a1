"""What each replica of a shard is worth: what was seen becomes one of a few words, and decisions follow from those."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from delayregistry.model import ShardObject, copy_id_of

from delayoperator.plan.world import CopyView, Liveness, Observed, ObservedRole


class Standing(Enum):
    IN_SYNC = "in sync"  # answered: sound, and named by the in-sync set
    REBOOTED = "rebooted"  # as IN_SYNC, with Async durability, but its machine was started again since
    DAMAGED = "damaged"  # named by the in-sync set, and of no use
    OUTSIDE = "outside"  # has a sound copy that the in-sync set does not name
    NOTHING = "nothing"  # answered: has no copy, or one that is only being fetched, or a damaged one outside
    UNCERTAIN = "uncertain"  # gave no answer, or does not know its log's end yet
    AWAY = "away"  # gave no answer, and its lease has run out


def answer_of(shard: ShardObject, node: str, seen: Observed) -> CopyView | None:
    """The node's copy, as the process that its lease names told us; another process's answer is none."""
    copy = seen.copies.get((shard.name, node))
    if copy is None or seen.between_processes(node):
        return None
    return copy if copy.incarnation == seen.node(node).incarnation else None


def standings(shard: ShardObject, seen: Observed) -> Mapping[str, Standing]:
    """Of every replica, by node, in the order of the replicas. Without a status nothing is in sync."""
    in_sync = shard.status.in_sync if shard.status is not None else ()
    return {node: _standing(node, in_sync, shard, seen) for node in shard.spec.replicas}


def in_sync_nodes(shard: ShardObject, seen: Observed) -> frozenset[str]:
    """Those of which it is known."""
    return frozenset(node for node, standing in standings(shard, seen).items() if standing is Standing.IN_SYNC)


def presumed_in_sync(shard: ShardObject, seen: Observed) -> frozenset[str]:
    """Good enough to ask for a switchover, which looks again: as many entries as replicas means all of them."""
    status = shard.status
    known = standings(shard, seen)
    hopeful = {Standing.IN_SYNC}
    if status is not None and len(status.in_sync) == len(known):
        hopeful.add(Standing.UNCERTAIN)
    return frozenset(node for node, standing in known.items() if standing in hopeful)


def _standing(node: str, in_sync: tuple[str, ...], shard: ShardObject, seen: Observed) -> Standing:
    view = seen.node(node)
    if view.liveness is Liveness.DEAD:
        # Somebody whose lease is not renewed could not take up a reign, whatever it answers.
        return Standing.AWAY
    if seen.between_processes(node):
        return Standing.UNCERTAIN  # whatever was said a moment ago
    copy = answer_of(shard, node, seen)
    if copy is None:
        heard = view.incarnation is not None and seen.answered.get(node) == view.incarnation
        return Standing.NOTHING if heard else Standing.UNCERTAIN
    named = copy.entry in in_sync
    rebooted = not named and copy_id_of(copy.entry) in map(copy_id_of, in_sync) and copy.entry != ""
    if copy.role in (ObservedRole.FETCHING, ObservedRole.LEAVING):
        return Standing.NOTHING
    if copy.damaged is not None or copy.role is ObservedRole.DAMAGED:
        return Standing.DAMAGED if named or rebooted else Standing.NOTHING
    if copy.role is ObservedRole.OPENING and not (named and len(in_sync) == 1):
        return Standing.UNCERTAIN  # where it is the only one named, its log's end does not matter
    if named:
        return Standing.IN_SYNC
    return Standing.REBOOTED if rebooted else Standing.OUTSIDE
