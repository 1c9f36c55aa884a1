"""Whether a shard needs a new reign, and who may have it: the dangerous choice, kept small (DESIGN 5.4, 5.5).

A process never resumes a reign: a master whose lease names another process than the reign does is a dead master,
which may be chosen again, one epoch higher. Nobody outside the in-sync set is ever chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from delaynode.registry.model import ShardObject

from delayoperator.plan.world import CopyView, Liveness, NodeView, Observed


@dataclass(frozen=True, slots=True)
class Keep:
    """The reign stands."""


@dataclass(frozen=True, slots=True)
class Promote:
    node: str
    incarnation: str
    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing certain is known yet. Not a fault."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """A reign is needed and nobody may have it."""

    reason: str  # CamelCase, for the condition
    message: str


Decision = Keep | Promote | Wait | Refuse


def decide_reign(shard: ShardObject, seen: Observed) -> Decision:
    fault = _fault_of_master(shard, seen)
    if isinstance(fault, Keep | Wait):
        return fault
    spec = shard.spec
    if len(spec.replicas) == 1:
        # The only copy there can be. Its node opens the directory with this uid or refuses; nobody else may serve.
        return _sole(spec.replicas[0], seen.node(spec.replicas[0]), fault)
    copies = {node: view for node in spec.replicas if (view := seen.copies.get((shard.name, node))) is not None}
    if shard.status is None:
        return _first(shard, seen, copies, fault)
    return _failover(shard.status.in_sync, spec.replicas, seen, copies, fault)


def _fault_of_master(shard: ShardObject, seen: Observed) -> Keep | Wait | str:
    """Why a new reign is needed, as the start of a sentence; or that none is, or that this can't be told."""
    spec = shard.spec
    if spec.master is None:
        return "the shard has no master yet"
    view = seen.node(spec.master)
    if view.liveness is Liveness.DEAD:
        return f"{spec.master} is dead"
    if view.incarnation is not None and view.incarnation != spec.incarnation:
        return f"{spec.master} is a new process, which may not resume epoch {spec.epoch}"
    return Keep() if view.liveness is Liveness.ALIVE else Wait()


def _sole(node: str, view: NodeView, fault: str) -> Decision:
    if view.liveness is Liveness.DEAD:
        return Refuse("NodeAway", f"{node} has the only copy and its lease is not renewed; waiting for it")
    if view.incarnation is None:
        return Wait()
    # An uncertain node will do: there is nobody else to choose, and naming its process harms nobody.
    return Promote(node, view.incarnation, f"{fault}: {node} has the only copy")


def _first(shard: ShardObject, seen: Observed, copies: Mapping[str, CopyView], fault: str) -> Decision:
    """Nothing was ever accepted: status is written before. Any replica will do, the first in the list for balance."""
    holders = [node for node, copy in copies.items() if copy.log_end > 0]
    if holders:
        return Refuse(
            "StatusLost",
            f"{', '.join(holders)} have data of this shard but its status is gone (a restored registry?): "
            "`delayctl adopt` rebuilds it",
        )
    for node in shard.spec.replicas:
        view = seen.node(node)
        if view.liveness is Liveness.ALIVE and view.incarnation is not None:
            return Promote(node, view.incarnation, f"{fault}: {node} is its first living replica")
    if all(seen.node(node).liveness is Liveness.DEAD for node in shard.spec.replicas):
        return Refuse("NodeAway", f"all replicas are away: {', '.join(shard.spec.replicas)}")
    return Wait()


def _failover(
    in_sync: tuple[str, ...], replicas: tuple[str, ...], seen: Observed, copies: Mapping[str, CopyView], fault: str
) -> Decision:
    fit: list[tuple[int, int, str]] = []
    for node, copy in copies.items():
        if copy.copy_id in in_sync and not copy.damaged and seen.node(node).liveness is Liveness.ALIVE:
            fit.append((copy.epoch, copy.log_end, node))
    if fit:
        epoch, log_end, _ = max(fit)
        # Equal logs: the order of the replicas decides, so that the choice is the same in each round.
        node = next(node for node in replicas if (epoch, log_end, node) in fit)
        incarnation = seen.node(node).incarnation
        if incarnation is not None:
            return Promote(node, incarnation, f"{fault}: {node} is in sync with the highest log end, {log_end}")
    silent = [node for node in replicas if node not in copies and seen.node(node).liveness is not Liveness.DEAD]
    if silent:
        return Wait()
    damaged = [node for node, copy in copies.items() if copy.damaged and copy.copy_id in in_sync]
    if damaged:
        return Refuse("CopyDamaged", f"the in-sync copies that answer are damaged: {', '.join(damaged)}")
    return Refuse("NoInSyncReplica", "no living replica is in the in-sync set; waiting for one that is")
