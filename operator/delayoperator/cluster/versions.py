"""The nodes' version: the storage format that a cluster's nodes write (docs/upgrade.md).

It is raised once every node's lease says that it reads the next one, and never lowered: from then on copies have what
an older release can't read, so there is no way back to that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from delayregistry.model import VersionRange

from delayoperator.plan import Liveness, ObservedNode


@dataclass(frozen=True, slots=True)
class NodesVersion:
    """version: to be written from now on. Sentences, "" where it is not so: mixed: the nodes are of different
    releases. held: all of them read a newer format, and a person has to finalise it. apart: some can't talk."""

    version: int = 1
    mixed: str = ""
    held: str = ""
    apart: str = ""


def decide_nodes_version(
    written: int, wanted: Sequence[str], nodes: Mapping[str, ObservedNode], *, settled: bool, finalize: bool
) -> NodesVersion:
    """written: the format so far. wanted: the nodes that may have copies. settled: no pod is being replaced, nor about
    to be. finalize: nobody holds it back."""
    seen = {node: nodes[node] for node in wanted if node in nodes and nodes[node].incarnation is not None}
    formats = _by_range({node: view.formats for node, view in seen.items()})
    wires = _by_range({node: view.wire for node, view in seen.items()})
    agreed = min((view.formats.greatest for view in seen.values()), default=written)
    mixed = [f"{what} {_told(found)}" for what, found in (("formats", formats), ("wire versions", wires)) if found[1:]]
    message = "; ".join(mixed)
    if len(formats) > 1:
        message += f"; format {written} is written until every node reads a newer one"
    apart = [
        f"{', '.join(one)} and {', '.join(other)}: wire versions {here} and {there}"
        for (here, one), (there, other) in combinations(wires, 2)
        if here.common(there) is None
    ]
    version, held = written, ""
    if agreed > written and not mixed:
        all_live = all(_lives(nodes.get(node)) for node in wanted)
        if finalize and settled and all_live:
            version = agreed
        elif not finalize:
            held = f"every node reads format {agreed}, and {written} is written: you can still go back"
    return NodesVersion(version, message, held, "; ".join(apart))


def _lives(view: ObservedNode | None) -> bool:
    return view is not None and view.liveness is Liveness.ALIVE and not view.stopping


Found = list[tuple[VersionRange, list[str]]]


def _by_range(of_nodes: Mapping[str, VersionRange]) -> Found:
    """Ascending by what is read at most."""
    found: dict[VersionRange, list[str]] = {}
    for node, versions in sorted(of_nodes.items()):
        found.setdefault(versions, []).append(node)
    return sorted(found.items(), key=lambda one: (one[0].greatest, one[0].least))


def _told(found: Found) -> str:
    return ", ".join(f"{versions} ({', '.join(nodes)})" for versions, nodes in found)
