"""Shards that have no object: made empty, taken up again from copies that are on the nodes' disks, or neither yet.

A topic's shard may be missing because the topic is new; or because its object was deleted, with the whole cluster or
alone, or was not in the registry's state that was restored. An empty shard beside full copies would hide every message
that these have. So none is made before every node has said what it has.

What they say is of a moment ago, and a creation may land late: meanwhile another operator may have made the shard, it
may have taken messages, and a person may have deleted it (seed 57713). So they are asked again while the object of the
empty shard is there, before its first term: as long as it is there no other shard of its name can begin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from delayregistry.model import BootstrapVolumes, ClusterSpec, ShardObject, shard_name

from delayoperator.plan.adoption import Adopted, NotAdoptable, adopted, has_data, is_unreadable
from delayoperator.plan.observed import CopyView, Liveness, Observed

Histories = Mapping[int, Mapping[str, CopyView]]
"""By uid, then node id."""


@dataclass(frozen=True, slots=True)
class MakeEmpty:
    """No node has a copy of it."""


@dataclass(frozen=True, slots=True)
class TakeUp:
    """One history is there, and it is ours."""

    uid: int
    found: Adopted


@dataclass(frozen=True, slots=True)
class Unheard:
    """These nodes have not said what they have."""

    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Orphaned:
    """Copies are there, and a person has to say what becomes of them."""

    why: str


def unheard_nodes(desired: ClusterSpec, seen: Observed) -> tuple[str, ...]:
    """Nodes that may have copies of which nothing is known. One that was away for replaceAfter is waited for no more:
    what was there alone is lost for now, as with any shard. Nor is one that the cluster has no more, unless it runs."""
    missing = (node for node in desired.node_ids if not seen.node(node).replaceable)
    leaving = (node for node, view in seen.nodes.items() if view.liveness is Liveness.ALIVE)
    return tuple(node for node in dict.fromkeys((*missing, *leaving)) if not _is_heard(node, seen))


def lost_nodes(desired: ClusterSpec, seen: Observed) -> tuple[str, ...]:
    """Nodes that have been away for so long that they are not waited for: a copy there may be newer than all others."""
    nodes = dict.fromkeys((*desired.node_ids, *seen.nodes))
    return tuple(node for node in nodes if not _is_heard(node, seen) and seen.node(node).replaceable)


def _is_heard(node: str, seen: Observed) -> bool:
    view = seen.node(node)
    alive = view.liveness is not Liveness.DEAD and view.incarnation is not None
    return alive and seen.answered.get(node) == view.incarnation


def histories_by_shard(seen: Observed) -> dict[str, dict[int, Mapping[str, CopyView]]]:
    """By shard name: the uids that no object has, with their copies; those in which nothing was ever accepted aside."""
    found: dict[str, dict[int, Mapping[str, CopyView]]] = {}
    for uid, copies in seen.unclaimed.items():
        if has_data(copies):
            found.setdefault(next(iter(copies.values())).shard, {})[uid] = copies
    return found


def histories_of(name: str, seen: Observed) -> Histories:
    """histories_by_shard() of one shard."""
    return {
        uid: copies
        for uid, copies in seen.unclaimed.items()
        if next(iter(copies.values())).shard == name and has_data(copies)
    }


def decide_missing(
    desired: ClusterSpec, histories: Histories, seen: Observed, unheard: tuple[str, ...]
) -> MakeEmpty | TakeUp | Unheard | Orphaned:
    """What is to be done about a shard that has no object, or an empty shard's. histories: what is found of it."""
    policy = desired.bootstrap_volumes
    if policy is BootstrapVolumes.IGNORE:
        return MakeEmpty()
    if unheard:
        return Unheard(unheard)
    if not histories:
        return MakeEmpty()
    if policy is BootstrapVolumes.REFUSE:
        return Orphaned(f"{described(histories)}; spec.bootstrap.volumes is Refuse")
    if len(histories) > 1:
        return Orphaned(f"{len(histories)} histories, and only one can go on: {described(histories)}")
    ((uid, copies),) = histories.items()
    clusters = {copy.cluster for copy in copies.values()} - {""}  # a full disk may keep a copy from noting its own
    if clusters != {desired.name}:
        others = sorted(clusters - {desired.name}) or ["a cluster that is not known"]
        return Orphaned(f"{described(histories)}, of {' and '.join(others)}, and this is cluster {desired.name}")
    if lost := lost_nodes(desired, seen):
        return Orphaned(f"{described(histories)}; {', '.join(lost)} may have a newer copy, and does not answer")
    try:
        return TakeUp(uid, adopted(uid, copies))
    except NotAdoptable as error:
        return Orphaned(f"{described(histories)}: {error}")


def described(histories: Histories) -> str:
    """The copies in words: by history, where they are and how many messages they may hold."""
    return " and ".join(
        f"{uid:016x} on {', '.join(sorted(copies))} ({_pending(copies)})" for uid, copies in sorted(histories.items())
    )


def _pending(copies: Mapping[str, CopyView]) -> str:
    if not (most := most_pending(copies)) and any(map(is_unreadable, copies.values())):
        return "nobody can count what is pending"
    return f"{most:,} pending"


def most_pending(copies: Mapping[str, CopyView]) -> int:
    return max(copy.pending for copy in copies.values())


@dataclass(frozen=True, slots=True)
class OrphanReport:
    """waiting: shards that are not made yet since nodes have not said what they have, and which nodes. orphans: a
    sentence for each shard whose copies wait for a person's word; pending: the messages in them, at most."""

    waiting: tuple[str, ...] = ()
    unheard: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()
    pending: int = 0
    names: tuple[str, ...] = ()  # of the shards that `orphans` has a sentence about


def report_orphans(desired: ClusterSpec, seen: Observed) -> OrphanReport:
    """What people should know of copies without an object, as of this look."""
    found, unheard = histories_by_shard(seen), unheard_nodes(desired, seen)
    missing = dict.fromkeys(missing_shards(desired, seen.shards))
    waiting, orphans, pending = [], dict[str, str](), 0
    for name in missing:
        decision = decide_missing(desired, found.get(name, {}), seen, unheard)
        if isinstance(decision, Unheard):
            waiting.append(name)
        elif isinstance(decision, Orphaned):
            orphans[name] = decision.why
            pending += sum(map(most_pending, found[name].values()))
    if desired.bootstrap_volumes is not BootstrapVolumes.IGNORE:
        exists = {shard.name for shard in seen.shards}
        for name in sorted(found.keys() - missing.keys()):
            why = "beside the shard that has this name now" if name in exists else "no topic has this shard"
            orphans[name] = f"{described(found[name])}: {why}"
            pending += sum(map(most_pending, found[name].values()))
    said = tuple(f"{name}: {why}" for name, why in orphans.items())
    return OrphanReport(tuple(waiting), unheard if waiting else (), said, pending, tuple(orphans))


def missing_shards(desired: ClusterSpec, shards: Iterable[ShardObject]) -> Iterator[str]:
    """The names of the shards that topics have and the registry has not."""
    exists = {shard.name for shard in shards}
    names = (shard_name(topic.name, queue) for topic in desired.topics for queue in range(topic.queues))
    return (name for name in names if name not in exists)
