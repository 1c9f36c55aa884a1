"""Where nodes run: on machines, in zones. Each may fail as a whole, with all of its nodes, so the copies of a shard are
kept apart: in different zones where they can be, else on different machines.

A node whose zone or machine is not known is in none: nothing is asked of it, and nothing is gained by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

SHOWN = 5  # nodes that a sentence names


@dataclass(frozen=True, slots=True)
class NodeLocation:
    """Where a node's process runs. Either is "" where it is not known."""

    machine: str = ""
    zone: str = ""


class Nearness(IntEnum):
    """What a node shares with the nearest of some others. The greater, the more fails with both."""

    APART = 0
    ZONE = 1
    MACHINE = 2


class Topology:
    """of: locations by node id."""

    def __init__(self, of: Mapping[str, NodeLocation]) -> None:
        self._of = of
        self._zones = {node: it.zone for node, it in of.items() if it.zone}
        self._machines = {node: it.machine for node, it in of.items() if it.machine}

    def zone(self, node: str) -> str:
        """An empty text where it is not known."""
        return self._zones.get(node, "")

    def zones(self, nodes: Iterable[str]) -> set[str]:
        """The zones that any of the nodes is in."""
        return {self._zones[node] for node in nodes if node in self._zones}

    def machines(self, nodes: Iterable[str]) -> set[str]:
        """The machines that any of the nodes is on."""
        return {self._machines[node] for node in nodes if node in self._machines}

    def known_for_all(self, nodes: Sequence[str]) -> Topology:
        """Without the zones where one of the nodes has none, and likewise without the machines: of some nodes only,
        these would draw everything to them."""
        zones, machines = all(map(self._zones.get, nodes)), all(map(self._machines.get, nodes))
        if zones and machines:
            return self
        return Topology(
            {
                node: NodeLocation(it.machine if machines else "", it.zone if zones else "")
                for node, it in self._of.items()
            }
        )

    def nearness(self, others: Iterable[str]) -> Callable[[str], Nearness]:
        """For any node: what it shares with the nearest of the others."""
        others = tuple(others)
        machines, zones = self.machines(others), self.zones(others)

        def of(node: str) -> Nearness:
            if self._machines.get(node) in machines:
                return Nearness.MACHINE
            return Nearness.ZONE if self._zones.get(node) in zones else Nearness.APART

        return of

    def shared(self, nodes: Sequence[str]) -> list[tuple[str, list[str]]]:
        """The places with more than one of the nodes, as `on machine m1` or `in zone a`, and those there, in their
        order. A zone is left out where its nodes share one machine: that says it all."""
        by_machine = _crowded(self._machines, nodes)
        by_zone = _crowded(self._zones, nodes)
        found = [(f"on machine {machine}", inside) for machine, inside in by_machine.items()]
        return found + [(f"in zone {zone}", it) for zone, it in by_zone.items() if it not in by_machine.values()]

    def place(self, node: str, level: Nearness) -> str:
        """`zone a` or `machine m1`; "" where that is not known."""
        name, of = ("machine", self._machines) if level is Nearness.MACHINE else ("zone", self._zones)
        return f"{name} {of[node]}" if node in of else ""

    def farther(self, node: str, others: Sequence[str], among: Iterable[str]) -> list[str]:
        """Returns the nodes of `among` that are known to share less with `others` than `node` does, the best first."""
        nearness = self.nearness(others)
        level = nearness(node)
        if level is Nearness.APART:
            return []
        better = (it for it in among if it not in others and nearness(it) < level and self.place(it, level))
        return sorted(better, key=nearness)

    def refusal(self, to: str, others: Sequence[str], better: Sequence[str], source: str) -> str:
        """Why `source`'s copy should not come to `to`, beside one of `others`, and what to do. better: as `farther`
        finds them, one at least."""
        level = self.nearness(others)(to)
        where = self.place(to, level)
        beside = ", ".join(node for node in others if self.place(node, level) == where)
        there = [f"{node} ({self.place(node, level)})" for node in better if node != source][:SHOWN]
        at, another = ("on", "on another machine") if level is Nearness.MACHINE else ("in", "in another zone")
        do = f"take a node {another}: {', '.join(there)}" if there else f"leave it on {source}"
        return f"{to} is {at} {where}, as {beside} with another copy: the operator would part them again; {do}"


def _crowded(of: Mapping[str, str], nodes: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for node in nodes:
        if node in of:
            found.setdefault(of[node], []).append(node)
    return {place: inside for place, inside in found.items() if len(inside) > 1}
