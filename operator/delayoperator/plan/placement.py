"""Where replicas go: of new shards, and of those that need another node.

A topic's queues are spread first: a topic's load comes in waves (a herd hits all its queues at once), so two of its
queues on one node cost more than one node with a shard more. Within that the emptiest nodes are taken. The first node
of a list becomes the shard's master whenever it can, so that masters stay where people and planner put them. Before
all that the copies of a shard are kept apart: in different zones, else on different machines, as far as there are any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set

from delayregistry.model import ShardSpec

from delayoperator.plan.topology import Topology


def desired_replicas(shard: ShardSpec) -> tuple[str, ...]:
    """The nodes that get this shard's copies, the desired master first."""
    return shard.replicas if shard.target is None else shard.target


class Placement:
    """Counts of the copies and masters by node, kept up to date with each decision.

    Nodes in `avoid` get new shards only when others run out, and never a copy of a shard that exists.
    """

    def __init__(
        self, shards: Iterable[ShardSpec], nodes: Sequence[str], topology: Topology, *, avoid: Set[str] = frozenset()
    ) -> None:
        self.topology = topology
        self._order = {node: place for place, node in enumerate(nodes)}
        self._avoid = avoid
        usable = [node for node in nodes if node not in avoid]
        self._known = topology.known_for_all(usable)
        self._usable_zones, self._usable_machines = self._known.zones(usable), self._known.machines(usable)
        self.replicas: Counter[str] = Counter()
        self.masters: Counter[str] = Counter()
        self._topic_replicas: Counter[tuple[str, str]] = Counter()
        self._topic_masters: Counter[tuple[str, str]] = Counter()
        for shard in shards:
            self.count(shard.topic, desired_replicas(shard))

    def place(self, topic: str, replicas: int) -> tuple[str, ...]:
        """Node ids for one more shard, no node twice; the first becomes its master.

        Fewer than `replicas` when there are fewer nodes. Ties go by the order of the nodes.
        """
        first = min(self._order, key=lambda node: (node in self._avoid, self._master_load(topic, node)))
        others = sorted(
            (node for node in self._order if node != first),
            key=lambda node: (node in self._avoid, self.replica_load(topic, node)),
        )
        placed = [first]
        while others and len(placed) < replicas:
            nearness = self.topology.nearness(placed)
            # The first of equals has the least load.
            node = min(others, key=lambda node: (node in self._avoid, nearness(node)))
            others.remove(node)
            placed.append(node)
        self.count(topic, placed)
        return tuple(placed)

    def another(self, topic: str, taken: Set[str], beside: Sequence[str], *, master: bool) -> str | None:
        """The best node that may get a copy and is not among `taken`; None when there is none.

        beside: the nodes of the shard's other copies, with which it shares a zone, or even a machine, only when there
        is no other.
        """
        load, nearness = self._master_load if master else self.replica_load, self.topology.nearness(beside)
        free = (node for node in self._order if node not in self._avoid and node not in taken)
        return min(free, key=lambda node: (nearness(node), load(topic, node)), default=None)

    def parted(self, topic: str, nodes: Sequence[str], order: Sequence[str]) -> dict[str, str]:
        """By node, another one for its copy, which is then farther from the shard's other copies. order: of `nodes`,
        those that may give theirs away, the first one first.

        Only what is known of all usable nodes counts: with some of them, all would go to these.
        """
        known, new, found = self._known, list(nodes), dict[str, str]()
        if not self._may_part(nodes):
            return found
        for node in order:
            others = [it for it in new if it != node]
            better = known.farther(node, others, self.usable())
            if better:
                nearness = known.nearness(others)
                other = min(better, key=lambda it: (nearness(it), self.replica_load(topic, it)))
                new[new.index(node)] = found[node] = other
        return found

    def _may_part(self, nodes: Sequence[str]) -> bool:
        """Cheap, for each shard in each round: false where three copies are in two zones, and there is no third."""
        return any(
            len(held) < len(nodes) and not usable <= held
            for held, usable in (
                (self._known.zones(nodes), self._usable_zones),
                (self._known.machines(nodes), self._usable_machines),
            )
        )

    def usable(self) -> list[str]:
        """The nodes that may get copies."""
        return [node for node in self._order if node not in self._avoid]

    def crowding(self, topic: str, node: str, other: str) -> int:
        """How many copies of the topic `node` has more than `other`."""
        return self._topic_replicas[topic, node] - self._topic_replicas[topic, other]

    def replica_load(self, topic: str, node: str) -> tuple[int, int, int]:
        # A person may have named a node that the cluster does not have.
        place = self._order.get(node, len(self._order))
        return self._topic_replicas[topic, node], self.replicas[node], place

    def _master_load(self, topic: str, node: str) -> tuple[int, int, tuple[int, int, int]]:
        return self._topic_masters[topic, node], self.masters[node], self.replica_load(topic, node)

    def count(self, topic: str, nodes: Sequence[str], by: int = 1) -> None:
        """Adds a shard's copies, or takes them away (by = -1)."""
        self.masters[nodes[0]] += by
        self._topic_masters[topic, nodes[0]] += by
        for node in nodes:
            self.replicas[node] += by
            self._topic_replicas[topic, node] += by

    def move(self, topic: str, old: Sequence[str], new: Sequence[str]) -> None:
        self.count(topic, old, -1)
        self.count(topic, new)
