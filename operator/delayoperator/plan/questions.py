"""Which nodes have to be asked for their copies before a plan is made, and how soon (attack A5).

Asking costs a call to each node, so it is done only where the answers are used.
"""

from __future__ import annotations

from dataclasses import dataclass

from delayregistry.model import ShardObject

from delayoperator.plan.observed import Liveness, Observed
from delayoperator.plan.term import fault_of_master


@dataclass(frozen=True, slots=True)
class Questions:
    """Node ids, living ones only: a node whose lease has run out is chosen for nothing, whatever it says."""

    now: frozenset[str] = frozenset()  # shards that wait for a master
    soon: frozenset[str] = frozenset()  # a move is under way: a second's age does no harm


def questions(seen: Observed, *, all_nodes: bool = False) -> Questions:
    """The questions for a world whose copies have not been asked yet. all_nodes: a shard has no object, and copies of
    it may be anywhere."""
    now: set[str] = set()
    soon: set[str] = set()
    if all_nodes or any(shard.status is None for shard in seen.shards):
        now.update(node for node, view in seen.nodes.items() if view.incarnation is not None)
    for shard in seen.shards:
        if _urgent(shard, seen):
            now.update(shard.spec.replicas)
        elif _under_way(shard):
            soon.update(shard.spec.replicas)
    silent = {node for node in now | soon if seen.node(node).liveness is Liveness.DEAD or seen.between_processes(node)}
    living = (now | soon) - silent
    return Questions(frozenset(now & living), frozenset(soon & living - now))


def patrolled(seen: Observed) -> frozenset[str]:
    """Nodes to be asked now and then what they have, and whether they serve what the registry says that they serve:
    those alive."""
    living = (node for node, view in seen.nodes.items() if view.liveness is Liveness.ALIVE)
    return frozenset(node for node in living if not seen.between_processes(node))


def _urgent(shard: ShardObject, seen: Observed) -> bool:
    spec, status = shard.spec, shard.status
    if isinstance(fault_of_master(shard, seen), str) or (spec.uid, spec.epoch) in seen.served_by_another:
        return True
    if spec.switchover is not None and status is not None and status.handover is not None:
        return True
    # Its successor has to be found; with all in sync that needs no answers.
    leaderless_soon = seen.node(spec.master).stopping and spec.switchover is None and len(spec.replicas) > 1
    return leaderless_soon and status is not None and len(status.in_sync) < len(spec.replicas)


def _under_way(shard: ShardObject) -> bool:
    spec, status = shard.spec, shard.status
    if spec.target is not None or spec.leaving or spec.switchover is not None:
        return True
    return spec.master is not None and (status is None or status.serving_epoch < spec.epoch)
