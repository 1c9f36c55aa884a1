"""Where a new shard's replicas go.

A topic's queues are spread first: a topic's load comes in waves (a herd hits all its queues at once), so two of its
queues on one node cost more than one node with a shard more. Within that the emptiest nodes are taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set

from delaynode.registry.model import ShardSpec


class Placement:
    """Counts of what is where, moved on with each shard placed. Nodes in `avoid` are taken only when others run out."""

    def __init__(self, shards: Iterable[ShardSpec], nodes: Sequence[str], *, avoid: Set[str] = frozenset()) -> None:
        self._order = {node: place for place, node in enumerate(nodes)}
        self._avoid = avoid
        self._replicas: Counter[str] = Counter()
        self._masters: Counter[str] = Counter()
        self._topic_replicas: Counter[tuple[str, str]] = Counter()
        self._topic_masters: Counter[tuple[str, str]] = Counter()
        for shard in shards:
            self._count(shard.topic, shard.replicas, shard.master or shard.replicas[0])

    def place(self, topic: str, replicas: int) -> tuple[str, ...]:
        """Node ids for one more shard, no node twice; the first is to be its master.

        Fewer than `replicas` when there are fewer nodes. Ties go by the order of the nodes.
        """

        def replica_load(node: str) -> tuple[int, int, int]:
            return self._topic_replicas[topic, node], self._replicas[node], self._order[node]

        def master_load(node: str) -> tuple[bool, int, int, tuple[int, int, int]]:
            return node in self._avoid, self._topic_masters[topic, node], self._masters[node], replica_load(node)

        def slave_load(node: str) -> tuple[bool, tuple[int, int, int]]:
            return node in self._avoid, replica_load(node)

        master = min(self._order, key=master_load)
        slaves = sorted((node for node in self._order if node != master), key=slave_load)
        placed = (master, *slaves[: replicas - 1])
        self._count(topic, placed, master)
        return placed

    def _count(self, topic: str, replicas: tuple[str, ...], master: str) -> None:
        self._masters[master] += 1
        self._topic_masters[topic, master] += 1
        for node in replicas:
            self._replicas[node] += 1
            self._topic_replicas[topic, node] += 1
