"""What is said of copies of one shard that are on one machine or in one zone, and so may be lost together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from delayregistry.model import ShardObject

from delayoperator.plan import ObservedNode
from delayoperator.plan.placement import desired_replicas
from delayoperator.plan.topology import Topology


def shared_places(shards: Sequence[ShardObject], nodes: Mapping[str, ObservedNode]) -> tuple[str, ...]:
    """A sentence each shard whose copies are to share a place, machines first: the planner found nothing farther away.
    One sentence for all where all nodes share one, as on somebody's only machine.

    nodes: by node id; what is not known of one is shared with none.
    """
    topology = Topology({node: view.location for node, view in nodes.items()})
    all_in = {place for place, inside in topology.shared(sorted(nodes)) if len(inside) == len(nodes)}
    by_place = [
        (place, f"{shard.name} ({', '.join(inside)} {place})")
        for shard in shards
        for place, inside in topology.shared(desired_replicas(shard.spec))
    ]
    found = sorted((it for it in by_place if it[0] not in all_in), key=lambda it: not it[0].startswith("on machine"))
    return (*(f"all nodes are {place}" for place in sorted(all_in)), *(sentence for _, sentence in found))
