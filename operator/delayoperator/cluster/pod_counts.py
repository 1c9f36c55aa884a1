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


def sizes(wanted: int, pods: int, named: Mapping[str, int], drained: Collection[str]) -> Sizes:
    """wanted: spec.nodes. pods: what the StatefulSet has now; 0: there is none. named: by node id, the shards that have
    or are to have a copy there. drained: as the nodes and the planner read it now."""
    highest = max((ordinal(node) + 1 for node, count in named.items() if count), default=0)
    present = max(pods, highest)
    if wanted >= present:
        grown = f"from {pods} to {wanted} nodes" if 0 < pods < wanted else ""
        return Sizes(wanted, wanted, message=grown)
    leaving = _ids(wanted, present)
    if not set(leaving) <= set(drained):
        # First the planner must know that nothing may be placed there any more.
        return Sizes(present, present, leaving, _message(wanted, leaving, named))
    kept = max(wanted, highest)
    return Sizes(kept, kept, _ids(wanted, kept), _message(wanted, leaving, named))


def _ids(first: int, end: int) -> tuple[str, ...]:
    return tuple(f"n{number}" for number in range(first, end))


def _message(wanted: int, leaving: tuple[str, ...], named: Mapping[str, int]) -> str:
    left = [f"{node} still has {counted_of(named[node], 'shard')}" for node in leaving if named.get(node)]
    what = f"to {wanted} nodes: {', '.join(leaving)} {'goes' if len(leaving) == 1 else 'go'}"
    return f"{what}; {', '.join(left)}" if left else f"{what}, and nothing is left there"
