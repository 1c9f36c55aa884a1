"""Zones: what may fail as a whole, with all of its nodes. Copies of a shard are kept in different ones where they can.

A node whose zone is not known is in none: nothing is asked of it, and nothing is gained by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

SHOWN = 5  # nodes that a sentence names


class Zones:
    """of: zones by node id; "" where one is not known."""

    def __init__(self, of: Mapping[str, str]) -> None:
        self._of = {node: zone for node, zone in of.items() if zone}

    def of(self, node: str) -> str:
        """An empty text where it is not known."""
        return self._of.get(node, "")

    def held(self, nodes: Iterable[str]) -> set[str]:
        """The zones that any of the nodes is in."""
        return {self._of[node] for node in nodes if node in self._of}

    def shared(self, node: str, others: Iterable[str]) -> bool:
        """One of the others is in the node's zone."""
        zone = self._of.get(node)
        return zone is not None and any(self._of.get(other) == zone for other in others)

    def crowded(self, nodes: Sequence[str]) -> dict[str, list[str]]:
        """The zones with more than one of the nodes, and those in it, in their order."""
        if len(self.held(nodes)) == sum(node in self._of for node in nodes):
            return {}
        found: dict[str, list[str]] = {}
        for node in nodes:
            if node in self._of:
                found.setdefault(self._of[node], []).append(node)
        return {zone: inside for zone, inside in found.items() if len(inside) > 1}

    def joined(self, new: str, old: str, others: Sequence[str]) -> bool:
        """With the copy of `old` on `new` two copies are in a zone that were apart. others: the shard's other nodes."""
        return self.shared(new, others) and not self.shared(old, others)

    def elsewhere(self, nodes: Iterable[str], among: Iterable[str]) -> list[str]:
        """Returns the nodes of `among` in zones that none of `nodes` is in."""
        held = self.held(nodes)
        return [node for node in among if node in self._of and self._of[node] not in held]

    def refusal(self, to: str, others: Iterable[str], better: Sequence[str], source: str) -> str:
        """Why `source`'s copy should not come to `to`, into the zone of one of `others`, and what to do. better: nodes
        in zones without a copy, one at least."""
        beside = ", ".join(node for node in others if self.shared(to, [node]))
        there = [f"{node} (zone {self.of(node)})" for node in better if node != source][:SHOWN]
        do = f"take a node in another zone: {', '.join(there)}" if there else f"leave it on {source}"
        return f"{to} is in zone {self.of(to)}, as {beside} with another copy: the operator would part them again; {do}"
