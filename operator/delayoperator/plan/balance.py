"""Decides which shards get other nodes, and which masters must be elsewhere (docs/control-plane.md).

Reasons, the first that applies: a node was lost for good; copies are missing, or too many; a node must be emptied;
copies share a machine or a zone and need not; a node has nothing, or next to nothing. What works stays where it is:
loads that merely differ are the rebalance job's matter, and a move asked for by people is not undone, for it leaves the
nodes of each shard in the wished order; one that brings copies together is refused. Where that job has moved something
(`by_load`) counts say nothing: what is few there may be much, and the other way round.

Aims are set for all shards at once; how many of them are under way at a time is the planner's to limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from delayregistry.model import ClusterSpec, ShardObject, ShardSpec

from delayoperator.plan.moves import Held, successor
from delayoperator.plan.observed import Liveness, Observed
from delayoperator.plan.placement import Placement, desired_replicas
from delayoperator.plan.replica_health import presumed_in_sync

PARTED = 8  # shards whose copies are brought apart, at a time
SHORT = 4  # a node with less than a SHORTth of its share is short of copies


@dataclass(frozen=True, slots=True)
class TargetChoice:
    target: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class MasterChoice:
    to: str
    reason: str


def unplaceable(desired: ClusterSpec, seen: Observed) -> frozenset[str]:
    """Nodes that get no copies of shards that exist: not known to live, about to end, or to be emptied."""
    return frozenset(
        node
        for node in desired.node_ids
        if seen.node(node).liveness is not Liveness.ALIVE or seen.node(node).stopping or node in desired.drained
    )


def choose_targets(
    desired: ClusterSpec, shards: Sequence[ShardObject], seen: Observed, load: Placement
) -> dict[str, TargetChoice | Held]:
    """New targets by shard name, and what can't be had. Counts them in `load`. For shards whose terms stand."""
    found: dict[str, TargetChoice | Held] = {}
    for shard in sorted(shards, key=lambda shard: _urgency(desired, shard, seen)):
        aim = _repaired(desired, shard, seen, load)
        if aim is not None:
            found[shard.name] = aim
    if not is_stable(desired, seen):
        return found
    if not found and all(shard.spec.target is None for shard in seen.shards):
        # A few at a time, and none before these are through: repairs and restarts wait for no more of them.
        found.update(islice(_parted(shards, load), PARTED))
    steady = [shard for shard in shards if shard.name not in found and shard.spec.target is None]
    found.update(_shares(steady, load, placed_by_load(seen.shards)))
    return found


def placed_by_load(shards: Iterable[ShardObject]) -> frozenset[str]:
    """The nodes that a rebalance has moved something from or to. shards: all, served or not."""
    return frozenset(node for shard in shards for node in shard.spec.by_load)


def outdated(desired: ClusterSpec, shard: ShardObject, seen: Observed) -> ShardSpec | None:
    """Without the nodes that are, or will be, other than those that the rebalance knew: they begin with nothing."""
    of = shard.spec.by_load
    kept = tuple(
        it for it in of if it in desired.node_ids and it not in desired.drained and not seen.node(it).replaceable
    )
    return None if kept == of else replace(shard.spec, by_load=kept)


def is_stable(desired: ClusterSpec, seen: Observed) -> bool:
    """Whether shards may be moved for balance: no node is away, about to be, or only just back."""
    views = [seen.node(node) for node in desired.node_ids]
    return all(
        view.replaceable or (view.liveness is Liveness.ALIVE and view.stable and not view.stopping) for view in views
    )


def choose_masters(
    desired: ClusterSpec, shards: Sequence[ShardObject], seen: Observed, load: Placement
) -> dict[str, MasterChoice]:
    """Masters to be handed over, by shard name: away from nodes that are about to end, and, when all is stable, back to
    where they were placed: from nodes that have at least two masters more, to nodes that have less than their share, or
    wherever they were placed by load."""
    found: dict[str, MasterChoice] = {}
    masters: Counter[str] = Counter(shard.spec.master for shard in shards if shard.spec.master is not None)
    quiet, by_load = is_stable(desired, seen), placed_by_load(seen.shards)
    share = masters.total() // max(1, len(load.usable()))
    for shard in shards:
        spec, master = shard.spec, shard.spec.master
        if spec.switchover is not None or master is None:
            continue
        if seen.node(master).stopping:
            to = successor(shard, seen, load, spec.replicas)
            if to is not None:
                found[shard.name] = MasterChoice(to, f"{master} is stopping: {to} takes over")
                masters[master] -= 1
                masters[to] += 1
            continue
        first = desired_replicas(spec)[0]
        if not quiet or spec.target is not None or first == master:
            continue
        if {master, first} & by_load:
            why = f"{first} is where a rebalance by load wants the master"
        elif masters[master] - masters[first] >= 2 or masters[first] < min(share, masters[master]):
            why = f"{master} has {masters[master]} masters, {first} {masters[first]}"
        else:
            continue
        if successor(shard, seen, load, (first,)) is not None:
            found[shard.name] = MasterChoice(first, why)
            masters[master] -= 1
            masters[first] += 1
    return found


def _urgency(desired: ClusterSpec, shard: ShardObject, seen: Observed) -> int:
    nodes = desired_replicas(shard.spec)
    if any(seen.node(node).replaceable for node in nodes):
        return 0
    return 1 if len(nodes) < desired.replicas else 2


def _is_no_node(desired: ClusterSpec, node: str, seen: Observed) -> bool:
    """A person has named a node that the cluster neither has nor had: it will never take a copy."""
    return node not in desired.node_ids and node not in seen.nodes


def _repaired(desired: ClusterSpec, shard: ShardObject, seen: Observed, load: Placement) -> TargetChoice | Held | None:
    topic, nodes = shard.spec.topic, desired_replicas(shard.spec)
    begun = shard.spec.replicas
    gone = [
        node
        for node in nodes
        if seen.node(node).replaceable
        or (node not in begun and seen.node(node).liveness is Liveness.DEAD)
        or _is_no_node(desired, node, seen)
    ]
    drained = [n for n in nodes if n in desired.drained and n not in gone]
    if len(nodes) == desired.replicas and not gone and not drained:
        return None
    kept = _without_surplus(desired, shard, gone, drained, seen, load)
    stay = [node for node in kept if node not in gone and node not in drained]
    new: list[str] = []
    for node in kept:
        # A newcomer takes the place of the one that goes: the master's, where it is the first.
        leaves = node not in stay
        other = load.another(topic, {*nodes, *new}, [*stay, *new], master=node == kept[0]) if leaves else None
        new.append(other or node)  # never fewer copies than before for want of a node
    while len(new) < desired.replicas and (other := load.another(topic, {*nodes, *new}, new, master=not new)):
        new.append(other)
    if set(new) != set(nodes):
        load.move(topic, nodes, new)
        return TargetChoice(tuple(new), _because(desired, nodes, gone, drained))
    if any(seen.node(node).liveness is Liveness.UNCERTAIN for node in desired.node_ids):
        return None  # there may be room
    return Held("NoRoom", f"{_because(desired, nodes, gone, drained)}: no other node can take a copy")


def _parted(shards: Sequence[ShardObject], load: Placement) -> Iterator[tuple[str, TargetChoice]]:
    for shard in shards:
        aim = _apart(shard, load)
        if aim is not None:
            yield shard.name, aim


def _apart(shard: ShardObject, load: Placement) -> TargetChoice | None:
    """Other nodes for copies that share a machine or a zone, as far as there are any farther away. A move brings a
    machine or a zone more, and no other for balance's sake takes one away (`_Donors`): so it comes to an end."""
    spec, old = shard.spec, desired_replicas(shard.spec)
    # The first of the wished nodes keeps its copy, then the master.
    order = sorted(old[1:], key=lambda node: (node != spec.master, load.replica_load(spec.topic, node)), reverse=True)
    others = load.parted(spec.topic, old, order)
    if not others:
        return None
    new = tuple(others.get(node, node) for node in old)
    load.move(spec.topic, old, new)
    shared = [(place, inside) for place, inside in load.topology.shared(old) if others.keys() & set(inside)]
    return TargetChoice(new, ", ".join(f"{len(inside)} copies are {place}" for place, inside in shared))


def _without_surplus(
    desired: ClusterSpec,
    shard: ShardObject,
    gone: Sequence[str],
    drained: Sequence[str],
    seen: Observed,
    load: Placement,
) -> list[str]:
    """The wished number of the present nodes at most, in their order: those that should go anyway are dropped first."""
    spec = shard.spec
    in_sync = presumed_in_sync(shard, seen)

    def worth(node: str) -> tuple[bool, bool, bool, bool, tuple[int, int, int]]:
        of_node = load.replica_load(spec.topic, node)
        return node in gone, node in drained, node != spec.master, node not in in_sync, of_node

    ranked = sorted(desired_replicas(spec), key=worth)
    nearness = {node: load.topology.nearness(ranked[:place])(node) for place, node in enumerate(ranked)}
    last = sorted(ranked, key=lambda it: (it in gone, it in drained, it not in in_sync, nearness[it]))
    kept = last[: desired.replicas]
    return [node for node in desired_replicas(spec) if node in kept]


def _because(desired: ClusterSpec, nodes: Sequence[str], gone: Iterable[str], drained: Iterable[str]) -> str:
    why = [f"{node} is {'lost' if node in desired.node_ids else 'no node of this cluster'}" for node in gone]
    why += [f"{node} is to be emptied" for node in drained]
    if len(nodes) != desired.replicas:
        why.append(f"{desired.replicas} copies are wanted, not {len(nodes)}")
    return ", ".join(why)


def _shares(
    shards: Sequence[ShardObject], load: Placement, by_load: frozenset[str]
) -> Iterator[tuple[str, TargetChoice]]:
    """Gives nodes that have next to nothing their share: of masters first, then of other copies. It leaves out shards
    whose share a rebalance has chosen."""
    usable = load.usable()
    if len(usable) < 2:
        return
    share = sum(load.replicas[node] for node in usable) // len(usable)
    of_masters = sum(load.masters[node] for node in usable) // len(usable)
    few = [node for node in usable if not load.replicas[node] or load.replicas[node] * SHORT < share]
    short = [node for node in few if node not in by_load]
    if not short:
        return
    donors = _Donors(shards)
    for node in short:
        while load.replicas[node] < share:
            as_master = load.masters[node] < of_masters
            found = donors.pick(node, load, as_master=as_master) or donors.pick(node, load, as_master=not as_master)
            if found is None:
                break
            shard, donor = found
            old = desired_replicas(shard.spec)
            new = tuple(node if it == donor else it for it in old)
            why = f"{node} has {load.replicas[node]} copies, {donor} {load.replicas[donor]}"
            load.move(shard.spec.topic, old, new)
            yield shard.name, TargetChoice(new, why)


class _Donors:
    """The shards that could move, by the node that would give a copy and whether that is the master's place."""

    def __init__(self, shards: Iterable[ShardObject]) -> None:
        self._held: dict[tuple[str, bool], list[ShardObject]] = {}
        for shard in shards:
            for place, node in enumerate(desired_replicas(shard.spec)):
                self._held.setdefault((node, place == 0), []).append(shard)
        self._given: set[str] = set()
        self._to = ""
        # The shards that the node may get, by present owner and topic, the last first: each of a node's shards is
        # read once.
        self._free: dict[tuple[str, bool], dict[str, list[ShardObject]]] = {}

    def pick(self, to: str, load: Placement, *, as_master: bool) -> tuple[ShardObject, str] | None:
        """A shard for `to` from the fullest node that has one, of a topic that this brings further apart if it can."""
        if to != self._to:
            self._to, self._free = to, {}
        counts = load.masters if as_master else load.replicas
        donors = (node for node, first in self._held if first == as_master)
        for donor in sorted(donors, key=lambda node: (-counts[node], node)):
            if load.replicas[donor] <= load.replicas[to] + 1:
                continue
            shard = self._next(donor, load, as_master=as_master)
            if shard is not None:
                self._given.add(shard.name)
                return shard, donor
        return None

    def _next(self, donor: str, load: Placement, *, as_master: bool) -> ShardObject | None:
        to, key = self._to, (donor, as_master)
        if key not in self._free:
            self._free[key] = {}
            # The shards that the donor leads are taken first: the first node of a list must be the master.
            order = sorted(self._held[key], key=lambda it: as_master and it.spec.master != donor)
            for shard in reversed(order):
                if _may_take(to, donor, desired_replicas(shard.spec), load):
                    self._free[key].setdefault(shard.spec.topic, []).append(shard)
        free = self._free[key]
        while free:
            topic = max(free, key=lambda topic: (load.crowding(topic, donor, to), topic))
            shard = free[topic].pop()
            if not free[topic]:
                del free[topic]
            if shard.name not in self._given:
                return shard
        return None


def _may_take(to: str, donor: str, nodes: Sequence[str], load: Placement) -> bool:
    """No move for balance brings two copies closer to each other than they were."""
    if to in nodes:
        return False
    nearness = load.topology.nearness([node for node in nodes if node != donor])
    return nearness(to) <= nearness(donor)
