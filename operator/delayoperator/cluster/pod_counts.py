"""Decides how many pods there must be, and which nodes are emptied before they go (docs/control-plane.md: scale-in
moves shards first).

More nodes come at once. Fewer: the leaving ones, the highest numbers as a StatefulSet has it, are named as drained in
the spec; once they were seen to be named so, the StatefulSet shrinks to the highest that still has a copy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from delayoperator.cluster.shard_summary import counted_of, ordinal


@dataclass(frozen=True, slots=True)
class Sizes:
    nodes: int  # of ClusterSpec: ids that may have copies
    pods: int  # of the StatefulSet
    leaving: tuple[str, ...] = ()  # to be drained besides those that people named
    message: str = ""  # "" when nothing changes


def sizes(
    wanted: int, pods: int, named: Mapping[str, int], drained: Collection[str], volumes: Collection[str] = ()
) -> Sizes:
    """wanted: spec.nodes. pods: what the StatefulSet has now; 0: there is none. named: by node id, the shards that have
    or are to have a copy there. drained: as the nodes and the planner read it now. volumes: the nodes that have one; a
    StatefulSet that is made again begins with all of them, for what is there may be on no other."""
    highest = _highest([node for node, count in named.items() if count])
    present = max(pods, highest, 0 if pods else _highest(volumes))
    if wanted >= present:
        grown = f"from {pods} to {wanted} nodes" if 0 < pods < wanted else ""
        return Sizes(wanted, wanted, message=grown)
    leaving = _ids(wanted, present)
    if not pods or not set(leaving) <= set(drained):
        # First the planner must know that nothing may be placed there any more; what was drained may have been another
        # cluster of this name.
        return Sizes(present, present, leaving, _message(wanted, leaving, named))
    kept = max(wanted, highest)
    return Sizes(kept, kept, _ids(wanted, kept), _message(wanted, leaving, named))


def spare_copies(held: Mapping[str, Collection[int]], placed: Mapping[int, Collection[str]]) -> dict[str, int]:
    """By node, how many of its copies no shard counts on. held: uids, as the nodes said them some seconds ago. placed:
    by uid, the nodes of each shard that there is now: one may have been deleted since they said so."""
    return {node: sum(node not in placed.get(uid, ()) for uid in uids) for node, uids in held.items()}


def without_copies_lost(
    size: Sizes, wanted: int, pods: int, spare: Mapping[str, int], volumes: Collection[str], gone: Collection[str]
) -> Sizes:
    """A node's volume is deleted with it, so one stays that has copies on which no shard counts, or may have some.

    spare: by node that has said what it has, the number of such copies. volumes: the nodes that have one. gone: nodes
    that have been away for so long that they are waited for no more.
    """
    held = [node for node in _ids(size.pods, pods) if node in volumes and node not in gone and spare.get(node) != 0]
    if not held:
        return size
    kept = _highest(held)
    leaving = _ids(wanted, kept)
    why = [
        f"{node} has copies on which no DelayShard counts" if node in spare else f"{node} has not said what it has"
        for node in held
    ]
    look = "; `delayctl nodes orphans` lists them" if any(node in spare for node in held) else ""
    return Sizes(kept, kept, leaving, f"{_message(wanted, leaving, {})}: {', '.join(why)}{look}")


def _highest(nodes: Collection[str]) -> int:
    return max((ordinal(node) + 1 for node in nodes), default=0)


def _ids(first: int, end: int) -> tuple[str, ...]:
    return tuple(f"n{number}" for number in range(first, end))


def _message(wanted: int, leaving: tuple[str, ...], named: Mapping[str, int]) -> str:
    left = [f"{node} still has {counted_of(named[node], 'shard')}" for node in leaving if named.get(node)]
    what = f"to {wanted} nodes: {', '.join(leaving)} {'goes' if len(leaving) == 1 else 'go'}"
    return f"{what}; {', '.join(left)}" if left else f"{what}, and no shard is left there"
