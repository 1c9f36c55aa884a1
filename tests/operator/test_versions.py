"""Which storage format a cluster's nodes write, and what is said while they differ: a table of cases."""

from __future__ import annotations

from dataclasses import replace

import pytest
from delayoperator.cluster.versions import NodesVersion, decide_nodes_version
from delayoperator.plan import Liveness, ObservedNode
from delayregistry.model import FIRST_VERSION, VersionRange

OLD = ObservedNode(Liveness.ALIVE, "i", formats=FIRST_VERSION, wire=FIRST_VERSION)
NEW = replace(OLD, formats=VersionRange(1, 2), wire=VersionRange(1, 2))
FAR = replace(OLD, formats=VersionRange(1, 2), wire=VersionRange(2, 3))
NODES = ("n0", "n1", "n2")
BOTH = "wire versions 1 (n0), 1 to 2 (n1, n2)"
MIXED = f"formats 1 (n0), 1 to 2 (n1, n2); {BOTH}; format 1 is written until every node reads a newer one"


def of(*views: ObservedNode) -> dict[str, ObservedNode]:
    return dict(zip(NODES, views, strict=False))


# nodes, format so far, settled, finalize -> what is decided
CASES = {
    "one release": (of(OLD, OLD, OLD), 1, True, True, NodesVersion(1)),
    "a node is old": (of(OLD, NEW, NEW), 1, True, True, NodesVersion(1, mixed=MIXED)),
    "the operator was told to wait": (
        of(NEW, NEW, NEW), 1, True, False,
        NodesVersion(1, held="every node reads format 2, and 1 is written: you can still go back"),
    ),
    "all read it": (of(NEW, NEW, NEW), 1, True, True, NodesVersion(2)),
    "a pod is being replaced": (of(NEW, NEW, NEW), 1, False, True, NodesVersion(1)),
    "a node is away": (of(NEW, NEW, replace(NEW, liveness=Liveness.DEAD)), 1, True, True, NodesVersion(1)),
    "a node stops": (of(NEW, NEW, replace(NEW, stopping=True)), 1, True, True, NodesVersion(1)),
    "a node has not come yet": (of(NEW, NEW), 1, True, True, NodesVersion(1)),
    "final": (of(NEW, NEW, NEW), 2, True, True, NodesVersion(2)),
    "an older node comes when it is final": (
        of(OLD, NEW, NEW), 2, True, True,
        NodesVersion(2, mixed=MIXED.replace("format 1 is", "format 2 is")),
    ),
    "two releases apart": (
        of(OLD, FAR, FAR), 1, True, True,
        NodesVersion(
            1, mixed=MIXED.replace(BOTH, "wire versions 1 (n0), 2 to 3 (n1, n2)"),
            apart="n0 and n1, n2: wire versions 1 and 2 to 3",
        ),
    ),
    "nobody is seen": ({}, 2, True, True, NodesVersion(2)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_format_is_raised_when_every_node_reads_it_and_never_lowered(case: str) -> None:
    nodes, written, settled, finalize, decided = CASES[case]
    assert decide_nodes_version(written, NODES, nodes, settled=settled, finalize=finalize) == decided


def test_a_node_that_was_scaled_in_is_not_waited_for() -> None:
    nodes = {**of(NEW, NEW), "n2": replace(OLD, liveness=Liveness.DEAD)}
    assert decide_nodes_version(1, NODES[:2], nodes, settled=True, finalize=True) == NodesVersion(2)
